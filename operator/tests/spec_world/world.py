"""A model world: one shard of brokers, its Lease, clients, faults, and deciding processes with old observations.

Time passes; records are sent, copied and acknowledged; reports are requested, answered and delivered, each at its own
time or never; actions are pending until they are delivered, once, twice or never. Every event is one call on the world,
so a seed determines a history. The checker of invariants (`invariant_checker`) is informed of
every acknowledgement and every promotion.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, final

import msgspec
from spec_world.brokers import RECORD_BYTES, Broker, Refused
from spec_world.fleet import PEAK_RECORDS_PER_S, Fleet
from spec_world.sidecars import Sidecars

from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.decide.decision import Decision
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import (
    Disk,
    LastReport,
    Member,
    ObservedGroup,
    ObservedLease,
    ObservedShard,
    Process,
    PromotionRequest,
    Role,
    last_report_after,
)

LEASE_MS: Final = 6_000
"""How long a renewed Lease permits its master to acknowledge."""


@final
@dataclass(eq=False)
class Decider:
    """One operator or supervisor, with its observations and its pending actions."""

    number: int
    members: dict[int, Member] = field(default_factory=dict)
    """Its last observation of each member."""

    lease: ObservedLease | None = None
    last_report: LastReport | None = None
    pending_actions: list[act.Action] = field(default_factory=list)
    """The decided actions that are not executed yet."""

    decision: Decision = field(default_factory=Decision)
    """Its last decision."""


@final
class World(Fleet):
    """The model world of one test."""

    def __init__(self, spec: Spec, *, acks_needed: int, deciders: int = 2) -> None:
        super().__init__(spec, acks_needed)
        self.promotion_request: PromotionRequest | None = None
        """The present order of a person to promote a member."""

        self.leaving_members: set[int] = set()
        """The members whose machine is being drained."""

        self.replaceable_disks: set[int] = set()
        """The members whose lost disk a person has given up."""

        self.is_paused = False
        self.is_fenced = False
        self.is_hibernated = False
        self.is_lease_version_checked = True
        """Whether the Lease is replaced by compare-and-swap; a twin turns that off."""

        self.deciders: Final = [Decider(number) for number in range(deciders)]
        """The processes that decide at the same time, which partitions call `op0` and `op1`."""

        self.sidecars: Final = Sidecars(self)

    # -- observing -----------------------------------------------------------------------------------------------------

    def observe_member(self, decider_number: int, number: int, *, asked_ms: int | None = None) -> Member | None:
        """Return what a deciding process would observe of a member now."""
        broker, asked = self.brokers.get(number), self.now_ms if asked_ms is None else asked_ms
        known = self.deciders[decider_number].members.get(number)
        report = None if known is None else known.report
        if broker is None:
            return Member(number=number, process=Process.ABSENT, process_asked_ms=asked, report=report)
        if broker.is_up and self.can_reach(f"op{decider_number}", number):
            report = broker.report(asked, self.now_ms, PEAK_RECORDS_PER_S * RECORD_BYTES)
        process = Process.RUNNING if broker.is_up else Process.STOPPED
        stopped_ms = None
        if process is Process.STOPPED:
            is_same = known is not None and known.boot_id == f"{number}-{broker.boot}"
            before = known.stopped_by_ms if known is not None and is_same else None
            stopped_ms = self.now_ms if before is None else before
        boot_id, started_ms = f"{number}-{broker.boot}", self.now_ms
        if known is not None and known.boot_id == boot_id and known.started_by_ms is not None:
            started_ms = known.started_by_ms
        if not self.can_reach(f"op{decider_number}", number):
            process, stopped_ms = Process.UNKNOWN, None
            boot_id = "" if known is None else known.boot_id
        return Member(
            number=number,
            process=process,
            process_asked_ms=asked,
            stopped_by_ms=stopped_ms,
            boot_id=boot_id,
            started_by_ms=started_ms,
            disk_id=broker.store.identity,
            template=broker.template,
            acks_needed=broker.acks_needed,
            disk=Disk.LOST if number in self.lost_disks else Disk.PRESENT,
            disk_lost_since_ms=self.lost_disks.get(number),
            is_leaving=number in self.leaving_members,
            report=report,
        )

    def receive(self, decider_number: int, member: Member) -> None:
        """Deliver an observation to a deciding process, whenever it was made."""
        decider = self.deciders[decider_number]
        decider.members[member.number] = member
        if member.process is Process.ABSENT and member.number not in self.spec.members:
            del decider.members[member.number]
        if member.report is not None:
            decider.last_report = last_report_after(decider.last_report, member.report)

    def read_lease(self, decider_number: int) -> None:
        """Let a deciding process read the Lease, if it reaches the API server."""
        if not self.can_reach(f"op{decider_number}", "api"):
            return
        decider = self.deciders[decider_number]
        known = decider.lease
        if known is None or known.record != self.lease:
            decider.lease = ObservedLease(record=self.lease, seen_ms=self.now_ms)

    def observed_group(self, decider_number: int) -> ObservedGroup:
        """Return the group as a deciding process has observed it."""
        decider = self.deciders[decider_number]
        shard = ObservedShard(
            number=0,
            lease=decider.lease,
            members=tuple(decider.members[number] for number in sorted(decider.members)),
            last_report=decider.last_report,
            request=self.promotion_request,
            replace_disks=tuple(sorted(self.replaceable_disks)),
            is_fenced=self.is_fenced,
            is_scaled_to_zero=self.is_hibernated and not any(broker.is_up for broker in self.brokers.values()),
        )
        return ObservedGroup(
            shards=(shard,),
            template=self.template,
            is_paused=self.is_paused,
            is_hibernated=self.is_hibernated,
            lease_duration_ms=LEASE_MS,
        )

    # -- decisions and their execution ---------------------------------------------------------------------------------

    def decide(self, decider_number: int) -> Decision:
        """Let a deciding process decide by its observations; its actions become pending."""
        decider = self.deciders[decider_number]
        decider.decision = decide(self.spec, self.observed_group(decider_number), self.now_ms)
        decider.pending_actions += [one for one in decider.decision.actions if not isinstance(one, act.Wait)]
        return decider.decision

    def execute_pending(self, decider_number: int, index: int, *, is_kept: bool = False) -> None:
        """Execute the pending action at an index, modulo their number. With ``is_kept`` it is executed again later."""
        pending_actions = self.deciders[decider_number].pending_actions
        if not pending_actions:
            return
        place = index % len(pending_actions)
        action = pending_actions[place] if is_kept else pending_actions.pop(place)
        with suppress(Refused):
            self._execute(decider_number, action)
        self.acknowledge()

    def _execute(self, decider_number: int, action: act.Action) -> None:
        if isinstance(action, act.LeaseAction):
            if self.can_reach(f"op{decider_number}", "api"):
                self._write_lease(action)
            return
        if isinstance(action, act.ClearRequest):
            if self.promotion_request is not None and self.promotion_request.id == action.request:
                self.promotion_request = None
            return
        if isinstance(action, act.Hibernate):
            for number in self.brokers:
                self.flush(number)
                self.crash(number)
            return
        assert isinstance(action, act.MemberAction), action
        if isinstance(action, act.Start | act.Restart | act.Remove | act.ReplaceDisk):
            self._execute_on_process(action)
            return
        broker = self.brokers.get(action.member)
        if broker is not None and broker.is_up and self.can_reach(f"op{decider_number}", action.member):
            self._give_order(broker, action)

    def _give_order(self, broker: Broker, action: act.MemberAction) -> None:
        match action:
            case act.Promise(epoch=epoch):
                broker.promise(epoch)
            case act.Resume(epoch=epoch, electable=electable):
                if (broker.role, broker.store.epoch) == (Role.MASTER, epoch):
                    broker.promote(epoch, electable, self.next_serial())
            case act.Promote(epoch=epoch, electable=electable):
                place = (broker.store.last_epoch, len(broker.store.log) * RECORD_BYTES)
                is_new = broker.store.epoch != epoch
                is_gone = action.continues and (broker.role, broker.store.epoch) != (Role.MASTER, action.continues)
                if is_new and is_gone:
                    raise Refused(f"expected the master of epoch {action.continues}, but the broker is {broker.role}")
                if is_new and place < (action.last_epoch, action.end):
                    raise Refused("expected a longer log")
                if broker.promote(epoch, electable, self.next_serial()):
                    self.checker.check_promotion(broker, self.lease)
            case act.Follow(epoch=epoch, master=master):
                broker.follow(epoch, master)
            case act.Fence(epoch=epoch):
                broker.fence(epoch)
            case act.Drain():
                broker.drain()
            case act.Withdraw(clients_only=clients_only):
                broker.drain(withdraw=True, clients_only=clients_only)
            case _:
                raise AssertionError(f"no order: {action}")

    def _execute_on_process(self, action: act.MemberAction) -> None:
        number = action.member
        match action:
            case act.Start():
                if number not in self.brokers and number in self.spec.members:
                    self.create_broker(number)
                self.restart(number)
            case act.Restart(boot_id=boot_id):
                broker = self.brokers.get(number)
                if broker is not None and boot_id == f"{number}-{broker.boot}":
                    self.crash(number)
                    if number not in self.lost_disks:
                        broker.start(self.template, self.acks_needed, self.now_ms)
            case act.Remove(boot_id=boot_id):
                meant = self.brokers.get(number)
                if meant is None or boot_id != f"{number}-{meant.boot}":
                    return
                self.checker.check_removal(self.brokers.pop(number, None), self.brokers.values())
            case act.ReplaceDisk(disk_id=disk_id, is_accepted=is_accepted):
                meant = self.brokers.get(number)
                if meant is None or disk_id != meant.store.identity:
                    return
                if self.lost_disks.pop(number, None) is not None:
                    self.replaceable_disks.discard(number)
                    lost = self.brokers.pop(number)
                    self.checker.check_removal(lost, self.brokers.values(), is_accepted=is_accepted)
                    self.create_broker(number)
                    old = lost.store
                    gone = old.lost | old.lost_with_earlier_disks | set(old.log)
                    self.brokers[number].store.lost_with_earlier_disks = gone

    def _write_lease(self, action: act.LeaseAction) -> None:
        version = None if self.lease is None else self.lease.version
        if self.is_lease_version_checked and version != action.expected:
            return
        count = int(version or "0") + 1
        self.lease = msgspec.structs.replace(action.record, version=str(count))
