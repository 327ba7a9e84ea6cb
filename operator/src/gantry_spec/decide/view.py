"""One shard as a decision looks at it: what was seen, the spec, and the moment, with the questions that recur."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from gantry_spec.ballot import Ballot, Count, Loss, ballot_of, count, loss_of, missing, voters_of
from gantry_spec.lease import DURATION_MS, LeaseRecord, Term
from gantry_spec.ledger import Ledger, ledger_of
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import LastWord, Member, ObservedLease, ObservedShard, Process, PromotionRequest, Report, Role


@final
@dataclass(frozen=True)
class View:
    """One shard, whose Lease is there."""

    spec: Spec
    shard: ObservedShard
    now_ms: int
    template: str = ""
    """What members should be started with."""

    previous: Ledger | None = None
    lease_duration_ms: int = DURATION_MS

    # -- a person ------------------------------------------------------------------------------------------------------

    @cached_property
    def by_hand(self) -> PromotionRequest | None:
        """What a person has ordered where no Lease remembers terms; None wherever one does."""
        request = self.shard.request
        return request if request is not None and request.members else None

    @property
    def is_past(self) -> bool:
        """Whether the newest term is what members have recorded, and not what the person's order has led to."""
        goal = self.record.goal
        return self.by_hand is not None and (goal is None or goal.request != self.by_hand.id)

    @property
    def members_wanted(self) -> Sequence[int]:
        """The members that shall be there."""
        return self.spec.members if self.by_hand is None else self.by_hand.members

    @property
    def electable_members(self) -> frozenset[int]:
        """The members that may be the master: those of past terms, or those that the person names."""
        named = frozenset() if self.by_hand is None else frozenset(self.by_hand.electable)
        return named or self.record.members

    # -- members -------------------------------------------------------------------------------------------------------

    @cached_property
    def members(self) -> dict[int, Member]:
        """Who is there."""
        return {member.number: member for member in self.shard.members}

    def report(self, number: int) -> Report | None:
        """The newest of a member, however old."""
        member = self.members.get(number)
        return None if member is None else member.report

    def fresh(self, number: int) -> Report | None:
        """The newest of a member, if it is no older than a master may be silent."""
        report, member = self.report(number), self.members.get(number)
        if report is None or member is None or member.process in (Process.STOPPED, Process.ABSENT):
            return None
        return report if self.now_ms - report.asked_ms <= self.spec.failover.after else None

    def reports(self) -> Iterator[tuple[Member, Report]]:
        """Of everybody who has ever reported."""
        for member in self.shard.members:
            if member.report is not None:
                yield member, member.report

    @property
    def known_epochs(self) -> Iterator[int]:
        """All that a new one must be greater than."""
        if self.lease.record is not None:
            yield self.lease.record.epoch
        for _, report in self.reports():
            yield from report.epochs

    # -- the Lease -----------------------------------------------------------------------------------------------------

    @property
    def lease(self) -> ObservedLease:
        """As it was read last."""
        assert self.shard.lease is not None, "nothing is decided about a shard whose Lease cannot be read"
        return self.shard.lease

    @property
    def record(self) -> LeaseRecord:
        """What stands in it."""
        assert self.lease.record is not None, "asked only where there is one"
        return self.lease.record

    @property
    def term(self) -> Term:
        """The newest."""
        assert self.record.newest is not None, "asked only where there is one"
        return self.record.newest

    @cached_property
    def master(self) -> Report | None:
        """The newest report of the newest term's master, if it says that it is the master of just that."""
        report = self.report(self.term.master)
        is_master = report is not None and (report.role, report.epoch) == (Role.MASTER, self.term.epoch)
        return report if is_master else None

    @cached_property
    def steady_master(self) -> Report | None:
        """The same, if it is fresh, the epoch has a master, and nobody decides about another one."""
        if not self.record.is_settled or self.master is None:
            return None
        return self.master if self.fresh(self.term.master) is not None else None

    @cached_property
    def ledger(self) -> Ledger:
        """What is at risk."""
        return ledger_of(self.spec, self.shard, self.now_ms, self.previous)

    # -- promises ------------------------------------------------------------------------------------------------------

    def promised(self, epoch: int) -> list[Ballot]:
        """Who has promised just that epoch, and has had no role in it. Their logs stand still, so age is no matter."""
        return [
            ballot_of(member, report)
            for member, report in self.reports()
            if report.promised_epoch == epoch and report.epoch < epoch and report.last_epoch < epoch
        ]

    def possible(self, *, without: int | None = None) -> list[Ballot]:
        """Who could promise something now."""
        return [
            ballot_of(member, report)
            for member, report in self.reports()
            if member.number != without and self.fresh(member.number) is not None
        ]

    def silent_by_ms(self, term: Term, ballots: list[Ballot]) -> int | None:
        """When the master of a term acknowledged nothing more at the latest; None if it still might.

        It acknowledges nothing once it has promised a newer epoch, nor after the end of the process that was the
        master, nor when both its keys have run out: the Lease, and a grant of one slave. One that has everything may
        have been the master again in its next process (``regaining``): then its start says nothing.
        """
        member, word, bounds = self.members.get(term.master), self.last_word(term), []
        own = next((ballot for ballot in ballots if ballot.number == term.master), None)
        if own is not None:
            bounds.append(self.now_ms)
            then = "" if word is None else word.boot_id
            is_another = member is not None and then and member.boot_id and member.boot_id != then
            is_another = is_another and own.is_whole is not True
            if member is not None and is_another and member.started_by_ms is not None:
                bounds.append(member.started_by_ms)
        is_stopped = member is not None and member.process in (Process.STOPPED, Process.ABSENT)
        if member is not None and is_stopped and member.process_asked_ms >= self.lease.seen_ms:
            bounds.append(self.now_ms if member.stopped_by_ms is None else min(self.now_ms, member.stopped_by_ms))
        over_ms = self.keys_over_ms(term, ballots)
        bounds += [over_ms] if over_ms is not None and over_ms <= self.now_ms else []
        return min(bounds, default=None)

    def keys_over_ms(self, term: Term, ballots: list[Ballot]) -> int | None:
        """When the Lease and a grant of one slave of a term have run out; None if no slave of it has promised."""
        grants = [voter.grant_over_ms for voter in voters_of(term, ballots)]
        return max(self.lease.seen_ms + self.record.duration_ms, min(grants)) if grants else None

    def loss(self, winner: Ballot, ballots: list[Ballot], *, silent_by_ms: int | None = None) -> Loss:
        """What the winner lacks of all terms. ``silent_by_ms``: instead of what is known of that."""
        losses = []
        for term in self.record.terms:
            silent_ms = self.silent_by_ms(term, ballots) if silent_by_ms is None else silent_by_ms
            word = self.last_word(term)
            losses.append(loss_of(term, winner, ballots, word, self.now_ms if silent_ms is None else silent_ms))
        known = [loss.at_most for loss in losses if loss.at_most is not None]
        at_most = max(known, default=0) if len(known) == len(losses) else None
        return Loss(max((loss.at_least for loss in losses), default=0), at_most)

    def last_word(self, term: Term) -> LastWord | None:
        """What its master said last while it was the master, as kept, or as it still says."""
        words = [] if self.shard.last_word is None else [self.shard.last_word]
        report = self.report(term.master)
        if report is not None and (report.role, report.epoch) == (Role.MASTER, term.epoch):
            words.append(report.as_last_word())
        return max((word for word in words if word.epoch == term.epoch), key=lambda word: word.asked_ms, default=None)

    def count(self, ballots: Sequence[Ballot], *, wanted: int | None = None, is_forced: bool = False) -> Count:
        """Who wins."""
        return count(self.record, ballots, wanted=wanted, is_forced=is_forced, by_hand=self.by_hand)

    def missing(self, term: Term, ballots: Sequence[Ballot]) -> str:
        """What is still needed to outvote a term; empty if nothing is."""
        return missing(term, ballots, is_remembered=self.by_hand is None)

    def electable_after(self, winner: int) -> frozenset[int]:
        """S of the next term of ``winner``: whoever had a vote or was the master, and is still wanted."""
        if self.by_hand is None:
            return frozenset(self.record.members & set(self.spec.members)) - {winner}
        return self.electable_members - self._left_out(winner) - {winner}

    def _left_out(self, winner: int) -> frozenset[int]:
        """Silent masters of the past that a new master would wait for in vain, unless the person names them.

        Without acks a master waits for the grants of all of S, so a dead one would stop its successor. It can be left
        out, as no slave can: by what is recorded no member is able to elect it.
        """
        member = self.members.get(winner)
        if self.by_hand is None or self.by_hand.electable or member is None or member.acks_needed:
            return frozenset()
        return frozenset(term.master for term in self.record.terms if self.fresh(term.master) is None)

    @property
    def may_move(self) -> bool:
        """Whether the role may go to somebody else without being asked."""
        goal = self.record.goal
        is_requested = self.shard.request is not None and self.spec.failover.mode != "Disabled"
        is_meant = not self.record.is_settled and goal is not None and goal.may_move
        return self.spec.failover.mode == "Automatic" or is_requested or is_meant
