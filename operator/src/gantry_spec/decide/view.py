"""One shard as input of a decision: its observed state, the spec and the time, with derived values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from gantry_spec.ballot import Ballot, ElectionResult, Loss, ballot_of, count_ballots, loss_of, missing_votes, voters_of
from gantry_spec.lease import DURATION_MS, LeaseRecord, Term
from gantry_spec.ledger import Ledger, ledger_of
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import (
    LastReport,
    Member,
    ObservedLease,
    ObservedShard,
    Process,
    PromotionRequest,
    Report,
    Role,
)


@final
@dataclass(frozen=True)
class ShardView:
    """One shard whose Lease could be read."""

    spec: Spec
    shard: ObservedShard
    now_ms: int
    """The present time on the observer's clock."""

    template: str = ""
    """The hash of the configuration with which members should be started."""

    previous: Ledger | None = None
    """The shard's ledger of the last round, from which the age of the bytes at risk is calculated; None if there is
    none."""

    lease_duration_ms: int = DURATION_MS
    """The duration of a Lease that is created from now on."""

    # -- the manual promotion ------------------------------------------------------------------------------------------

    @cached_property
    def manual_request(self) -> PromotionRequest | None:
        """The request of a manual promotion, where no Lease records terms; None where a Lease does."""
        request = self.shard.request
        return request if request is not None and request.members else None

    @property
    def is_from_members(self) -> bool:
        """Whether the newest term is the one that members have recorded, and not yet a result of the manual request."""
        goal = self.record.goal
        return self.manual_request is not None and (goal is None or goal.promotion_request != self.manual_request.id)

    @property
    def expected_members(self) -> Sequence[int]:
        """The numbers of the members that the shard should have."""
        return self.spec.members if self.manual_request is None else self.manual_request.members

    @property
    def electable_members(self) -> frozenset[int]:
        """The members that may become master: those of past terms, or those that the person names."""
        named = frozenset() if self.manual_request is None else frozenset(self.manual_request.electable)
        return named or self.record.members

    # -- members -------------------------------------------------------------------------------------------------------

    @cached_property
    def members(self) -> dict[int, Member]:
        """The observed members, by number."""
        return {member.number: member for member in self.shard.members}

    def report(self, number: int) -> Report | None:
        """Return the newest report of a member, however old it is."""
        member = self.members.get(number)
        return None if member is None else member.report

    def fresh_report(self, number: int) -> Report | None:
        """Return the newest report of a member that is not known to be stopped, if no older than ``failover.after``."""
        report, member = self.report(number), self.members.get(number)
        if report is None or member is None or member.process in (Process.STOPPED, Process.ABSENT):
            return None
        return report if self.now_ms - report.asked_ms <= self.spec.failover.after else None

    def reports(self) -> Iterator[tuple[Member, Report]]:
        """Yield all members that have ever reported, with their reports."""
        for member in self.shard.members:
            if member.report is not None:
                yield member, member.report

    @property
    def known_epochs(self) -> Iterator[int]:
        """The epochs that a new epoch must be greater than."""
        if self.lease.record is not None:
            yield self.lease.record.epoch
        for _, report in self.reports():
            yield from report.epochs

    # -- the Lease -----------------------------------------------------------------------------------------------------

    @property
    def lease(self) -> ObservedLease:
        """The Lease as it was read last."""
        assert self.shard.lease is not None, "a view is only made of a shard whose Lease could be read"
        return self.shard.lease

    @property
    def record(self) -> LeaseRecord:
        """The record in the Lease."""
        assert self.lease.record is not None, "only called if there is one"
        return self.lease.record

    @property
    def term(self) -> Term:
        """The newest term of the record."""
        assert self.record.newest is not None, "only called if there is one"
        return self.record.newest

    @cached_property
    def master(self) -> Report | None:
        """The newest report of the newest term's master, if it reports the master role in that term."""
        report = self.report(self.term.master)
        is_master = report is not None and (report.role, report.epoch) == (Role.MASTER, self.term.epoch)
        return report if is_master else None

    @cached_property
    def healthy_master(self) -> Report | None:
        """The report of ``master`` if it is fresh and no election is in progress; otherwise None."""
        if not self.record.is_settled or self.master is None:
            return None
        return self.master if self.fresh_report(self.term.master) is not None else None

    @cached_property
    def ledger(self) -> Ledger:
        """The durability ledger of the shard."""
        return ledger_of(self.spec, self.shard, self.now_ms, self.previous)

    # -- promises ------------------------------------------------------------------------------------------------------

    def promised_ballots(self, epoch: int) -> list[Ballot]:
        """Return ballots (``Ballot``) of members that promised an epoch and had no role in it. Their logs cannot change
        any more."""
        return [
            ballot_of(member, report)
            for member, report in self.reports()
            if report.promised_epoch == epoch and report.epoch < epoch and report.last_epoch < epoch
        ]

    def possible_ballots(self, *, without: int | None = None) -> list[Ballot]:
        """Return the ballots of the members that could promise an epoch now."""
        return [
            ballot_of(member, report)
            for member, report in self.reports()
            if member.number != without and self.fresh_report(member.number) is not None
        ]

    def silent_by_ms(self, term: Term, ballots: list[Ballot]) -> int | None:
        """Return the latest time at which the master of a term can have acknowledged; None if it still might.

        It acknowledges nothing once it has promised a newer epoch, nor after the end of the process that was the
        master, nor once both the Lease and the grant of one slave have expired. A master that has everything may have
        recovered its role in its next process (``role_recovery``); in that case the start of that process proves
        nothing."""
        member, last_report, bounds = self.members.get(term.master), self.last_report(term), []
        own = next((ballot for ballot in ballots if ballot.number == term.master), None)
        if own is not None:
            bounds.append(self.now_ms)
            boot_id = "" if last_report is None else last_report.boot_id
            is_another = member is not None and boot_id and member.boot_id and member.boot_id != boot_id
            is_another = is_another and own.is_complete is not True
            if member is not None and is_another and member.started_by_ms is not None:
                bounds.append(member.started_by_ms)
        is_stopped = member is not None and member.process in (Process.STOPPED, Process.ABSENT)
        if member is not None and is_stopped and member.process_asked_ms >= self.lease.seen_ms:
            bounds.append(self.now_ms if member.stopped_by_ms is None else min(self.now_ms, member.stopped_by_ms))
        over_ms = self.lease_and_grant_expire_ms(term, ballots)
        bounds += [over_ms] if over_ms is not None and over_ms <= self.now_ms else []
        return min(bounds, default=None)

    def lease_and_grant_expire_ms(self, term: Term, ballots: list[Ballot]) -> int | None:
        """Return when the Lease and the grant of one slave of a term expire; None if no slave of it has promised."""
        grants = [voter.grant_expires_ms for voter in voters_of(term, ballots)]
        return max(self.lease.seen_ms + self.record.duration_ms, min(grants)) if grants else None

    def loss(self, winner: Ballot, ballots: list[Ballot], *, silent_by_ms: int | None = None) -> Loss:
        """Return how much of all terms the winner lacks. ``silent_by_ms`` overrides the observed time."""
        losses = []
        for term in self.record.terms:
            silent_ms = self.silent_by_ms(term, ballots) if silent_by_ms is None else silent_by_ms
            silent_ms = self.now_ms if silent_ms is None else silent_ms
            losses.append(loss_of(term, winner, ballots, self.last_report(term), silent_ms))
        known = [loss.at_most for loss in losses if loss.at_most is not None]
        at_most = max(known, default=0) if len(known) == len(losses) else None
        at_least = max((loss.at_least for loss in losses), default=0)
        return Loss(at_least, at_most, any(loss.is_unproven for loss in losses))

    def last_report(self, term: Term) -> LastReport | None:
        """Return the newest report of a term's master from its time as master, kept or current; None if unknown."""
        known = [] if self.shard.last_report is None else [self.shard.last_report]
        report = self.report(term.master)
        if report is not None and (report.role, report.epoch) == (Role.MASTER, term.epoch):
            known.append(report.as_last_report())
        return max((one for one in known if one.epoch == term.epoch), key=lambda one: one.asked_ms, default=None)

    def count_ballots(
        self, ballots: Sequence[Ballot], *, preferred: int | None = None, is_forced: bool = False
    ) -> ElectionResult:
        """Return the winner of an election with these ballots."""
        return count_ballots(
            self.record, ballots, preferred=preferred, is_forced=is_forced, manual_request=self.manual_request
        )

    def missing_votes(self, term: Term, ballots: Sequence[Ballot]) -> str:
        """Return which votes are still needed to outvote a term; empty if none are."""
        return missing_votes(term, ballots, are_all_terms_known=self.manual_request is None)

    def electable_after(self, winner: int) -> frozenset[int]:
        """Return S, the electable slaves of the next term of ``winner``: voters and masters of past terms that remain.

        In a manual promotion these are the ``electable_members``, without failed masters that need not be waited for.
        """
        if self.manual_request is None:
            return frozenset(self.record.members & set(self.spec.members)) - {winner}
        return self.electable_members - self._unreachable_masters(winner) - {winner}

    def _unreachable_masters(self, winner: int) -> frozenset[int]:
        """Return silent masters of past terms that a new master must not wait for, unless the person names them.

        Without acks a master waits for the grants of all electable slaves (S), so a failed old master would block its
        successor. It may be left out, unlike a slave: it is not in the recorded S, so it cannot be elected.
        """
        member = self.members.get(winner)
        if self.manual_request is None or self.manual_request.electable or member is None or member.acks_needed:
            return frozenset()
        return frozenset(term.master for term in self.record.terms if self.fresh_report(term.master) is None)

    @property
    def may_move(self) -> bool:
        """Whether the role may move to another member without a further request."""
        goal = self.record.goal
        is_requested = self.shard.request is not None and self.spec.failover.mode != "Disabled"
        is_allowed_by_goal = not self.record.is_settled and goal is not None and goal.may_move
        return self.spec.failover.mode == "Automatic" or is_requested or is_allowed_by_goal
