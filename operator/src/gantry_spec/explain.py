"""``explain``: a forecast of what would happen if the master of a shard failed now, with the loss in bytes.

It calls the same functions that make the decision: which members could promise, whether their promises outvote every
term, which member would win, and what would be lost. So the forecast is what would be done if the master is known to
have acknowledged nothing after this moment. Where acknowledgements do not wait for slaves and the master merely does
not answer, an election also counts what it may acknowledge until its Lease expires. That bound is higher than the
forecast, and may exceed ``failover.maxDataLossBytes`` although the forecast does not.
"""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.ballot import Ballot, Loss, count_ballots, voters_of
from gantry_spec.decide.view import ShardView
from gantry_spec.gate import check_loss
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import FailoverMode
from gantry_spec.observed import Member, ObservedGroup
from gantry_status.text import bytes_text


@final
class CandidateOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """A member that might become master, as a candidate in the forecast."""

    number: int
    """The member's own number, counted from 1."""

    last_epoch: int | None = None
    """The epoch of the last record in its log; None if unknown."""

    end: int | None = None
    """The end of its log; None if unknown."""

    gap_bytes: int | None = None
    """How many bytes the candidate's log is behind the master's; None if unknown."""

    has_vote: bool = False
    """Whether the member could vote in the election."""

    blocked_by: str = ""
    """Why the member could not become master, or has no vote; empty otherwise."""


@final
class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast for one shard if its master failed now."""

    shard: int
    master: int | None = None
    """The number of the present master; None if the Lease names none."""

    epoch: int = 0
    """The newest epoch in the Lease."""

    candidates: tuple[CandidateOutlook, ...] = ()
    """The other members, each as a candidate."""

    winner: int | None = None
    """The number of the member that would win the election; None if none would."""

    loss_at_least: int = 0
    """The fewest bytes that would be lost."""

    loss_at_most: int | None = None
    """The most bytes that could be lost; None if unknown."""

    election_loss: str = ""
    """The statement that the election of the newest master has an unknown loss; empty if the loss was limited."""

    blocked_by: tuple[str, ...] = ()
    """Why there would be no automatic failover; empty if there would be one."""

    can_be_requested: bool = True
    """Whether a request could promote the winner. None is executed while the group is paused or hibernated or the shard
    is fenced, nor with the mode ``Disabled``."""

    @property
    def lines(self) -> list[str]:
        """The forecast as lines of text, for people."""
        head = f"shard {self.shard}: if master {self.master} of epoch {self.epoch} died now"
        if self.master is None:
            head = f"shard {self.shard}: no master"
        lines = [f"{head}, {self._outcome()}"]
        lines += [f"  {self.election_loss}"] if self.election_loss else []
        for one in self.candidates:
            what = "unknown" if one.gap_bytes is None else f"{bytes_text(one.gap_bytes)} behind"
            why = f": {one.blocked_by}" if one.blocked_by else ""
            lines.append(f"  member {one.number}: {what}{why}")
        return lines + [f"  blocked: {reason}" for reason in self.blocked_by]

    def _outcome(self) -> str:
        if self.winner is None:
            return "no member could be elected"
        verb = "would take over" if not self.blocked_by else "could be promoted by order"
        if not self.can_be_requested:
            verb = "would be elected, but could not be promoted"
        return f"member {self.winner} {verb}, and {bytes_text(self.loss_at_most)} would be lost at most"


def explain(spec: Spec, observed: ObservedGroup, now_ms: int) -> tuple[Outlook, ...]:
    """Return the forecast for every shard."""
    outlooks = []
    for shard in observed.shards:
        if shard.lease is None or shard.lease.record is None or shard.lease.record.newest is None:
            reason = "the Lease cannot be read" if shard.lease is None else "the shard has no master yet"
            outlooks.append(Outlook(shard=shard.number, blocked_by=(reason,)))
        else:
            view = ShardView(spec, shard, now_ms, observed.template)
            outlooks.append(_outlook(view, observed))
    return tuple(outlooks)


def _outlook(view: ShardView, observed: ObservedGroup) -> Outlook:
    """Return the forecast for one shard."""
    term = view.term
    ballots = view.possible_ballots(without=term.master)
    outcome = count_ballots(view.record, ballots)
    loss = Loss(0, None)
    blocked = ["the group is paused"] if observed.is_paused else []
    blocked += ["the group is hibernated"] if observed.is_hibernated else []
    blocked += ["the shard is fenced"] if view.shard.is_fenced else []
    mode = view.spec.failover.mode
    can_be_requested = not blocked and mode is not FailoverMode.DISABLED
    if outcome.winner is None:
        blocked.append(outcome.reason)
    else:
        loss = view.loss(outcome.winner, ballots, silent_by_ms=view.now_ms)
        verdict = check_loss(loss.at_most, view.spec)
        blocked += [] if verdict.is_allowed else [verdict.reason]
    if mode is not FailoverMode.AUTOMATIC:
        blocked.append(f"failover.mode is {mode}")
    return Outlook(
        shard=view.shard.number,
        master=term.master if view.healthy_master is not None else None,
        epoch=term.epoch,
        candidates=tuple(
            _candidate(view, member, ballots) for member in view.shard.members if member.number != term.master
        ),
        winner=None if outcome.winner is None else outcome.winner.number,
        loss_at_least=loss.at_least,
        loss_at_most=None if loss.is_unproven else loss.at_most,
        election_loss=term.election_loss,
        blocked_by=tuple(blocked),
        can_be_requested=can_be_requested,
    )


def _candidate(view: ShardView, member: Member, ballots: list[Ballot]) -> CandidateOutlook:
    """Return one member as a candidate of the forecast."""
    ballot = next((one for one in ballots if one.number == member.number), None)
    if ballot is None:
        return CandidateOutlook(number=member.number, blocked_by="no recent report")
    last_report = view.last_report(view.term)
    gap = None if last_report is None or last_report.wrote is None else max(0, last_report.wrote - ballot.end)
    has_vote = ballot in voters_of(view.term, ballots)
    reason = "" if ballot.number in view.record.members else "it is not electable yet"
    if not reason and not has_vote:
        reason = "its store was replaced, or may have lost data since it acknowledged"
    return CandidateOutlook(
        number=ballot.number,
        last_epoch=ballot.last_epoch,
        end=ballot.end,
        gap_bytes=gap,
        has_vote=has_vote,
        blocked_by=reason,
    )
