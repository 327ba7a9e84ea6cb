"""``explain``: what would happen if the master of a shard died now. Said before it happens, and counted in bytes.

It asks the same functions that would decide: who could promise, whether that outvotes every term, who would be named,
and what would be lost. So what is announced here is what is done, unless the master takes more meanwhile.
"""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.ballot import Ballot, Loss, count, voters_of
from gantry_spec.decide.view import View
from gantry_spec.gate import may_lose
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import FailoverMode
from gantry_spec.manifest.quantities import bytes_text
from gantry_spec.observed import Member, Observed


@final
class CandidateOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """One who might be the master then."""

    number: int
    last_epoch: int | None = None
    end: int | None = None
    gap_bytes: int | None = None
    """What the master has more now; None if nobody knows."""

    has_voice: bool = False
    blocked_by: str = ""
    """Why it could not be; empty if it could."""


@final
class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """One shard without its master."""

    shard: int
    master: int | None = None
    epoch: int = 0
    candidates: tuple[CandidateOutlook, ...] = ()
    winner: int | None = None
    loss_at_least: int = 0
    loss_at_most: int | None = None
    """None if nobody knows."""

    blocked_by: tuple[str, ...] = ()
    """Why the role would not move by itself; empty if it would."""

    @property
    def lines(self) -> list[str]:
        """For people."""
        head = f"shard {self.shard}: if master {self.master} of epoch {self.epoch} died now"
        if self.master is None:
            head = f"shard {self.shard}: there is no master"
        lines = [f"{head}, {self._outcome()}"]
        for one in self.candidates:
            what = "unknown" if one.gap_bytes is None else f"{bytes_text(one.gap_bytes)} behind"
            why = f": {one.blocked_by}" if one.blocked_by else ""
            lines.append(f"  member {one.number}: {what}{why}")
        return lines + [f"  blocked: {reason}" for reason in self.blocked_by]

    def _outcome(self) -> str:
        if self.winner is None:
            return "nobody could be elected"
        verb = "would take over" if not self.blocked_by else "could be promoted by order"
        return f"member {self.winner} {verb}, and {bytes_text(self.loss_at_most)} would be lost at most"


def explain(spec: Spec, observed: Observed, now_ms: int) -> tuple[Outlook, ...]:
    """Of every shard."""
    outlooks = []
    for shard in observed.shards:
        if shard.lease is None or shard.lease.record is None or shard.lease.record.newest is None:
            reason = "its Lease cannot be read" if shard.lease is None else "it has not begun"
            outlooks.append(Outlook(shard=shard.number, blocked_by=(reason,)))
        else:
            view = View(spec, shard, now_ms, observed.template)
            outlooks.append(_outlook(view, is_paused=observed.is_paused))
    return tuple(outlooks)


def _outlook(view: View, *, is_paused: bool) -> Outlook:
    term = view.term
    ballots = view.possible(without=term.master)
    outcome = count(view.record, ballots)
    loss = Loss(0, None)
    blocked = ["the group is paused"] if is_paused else []
    blocked += ["the shard is fenced"] if view.shard.is_fenced else []
    if outcome.winner is None:
        blocked.append(outcome.reason)
    else:
        loss = view.loss(outcome.winner, ballots, silent_by_ms=view.now_ms)
        verdict = may_lose(loss.at_most, view.spec)
        blocked += [] if verdict.is_allowed else [verdict.because]
    mode = view.spec.failover.mode
    if mode is not FailoverMode.AUTOMATIC:
        blocked.append(f"failover.mode is {mode}")
    return Outlook(
        shard=view.shard.number,
        master=term.master if view.steady_master is not None else None,
        epoch=term.epoch,
        candidates=tuple(
            _candidate(view, member, ballots) for member in view.shard.members if member.number != term.master
        ),
        winner=None if outcome.winner is None else outcome.winner.number,
        loss_at_least=loss.at_least,
        loss_at_most=loss.at_most,
        blocked_by=tuple(blocked),
    )


def _candidate(view: View, member: Member, ballots: list[Ballot]) -> CandidateOutlook:
    ballot = next((one for one in ballots if one.number == member.number), None)
    if ballot is None:
        return CandidateOutlook(number=member.number, blocked_by="it has not been heard lately")
    word = view.last_word(view.term)
    gap = None if word is None or word.wrote is None else max(0, word.wrote - ballot.end)
    has_voice = ballot in voters_of(view.term, ballots)
    reason = "" if ballot.number in view.record.members else "it is no member that may be elected yet"
    if not reason and not has_voice:
        reason = "its store is another one than the one that acknowledged, or has lost something"
    return CandidateOutlook(
        number=ballot.number,
        last_epoch=ballot.last_epoch,
        end=ballot.end,
        gap_bytes=gap,
        has_voice=has_voice,
        blocked_by=reason,
    )
