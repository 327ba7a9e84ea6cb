"""A model world: one shard of brokers, its Lease, clients, faults, and deciding processes with old observations.

Time passes; records are sent, copied and acknowledged; reports are requested, answered and delivered, each at its own
time or never; actions are pending until they are delivered, once, twice or never. Every event is one call on the world,
so a seed determines a history. The judge is informed of every acknowledgement and every promotion.
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


@final
@dataclass(eq=False)
class Decider:
    """One operator or supervisor, with its observations and its pending actions."""

    name: int
    members: dict[int, Member] = field(default_factory=dict)
    lease: ObservedLease | None = None
    last_report: LastReport | None = None
    under_way: list[act.Action] = field(default_factory=list)
    decision: Decision = field(default_factory=Decision)


@final
class World(Fleet):
    """The model world of one test."""

    def __init__(self, spec: Spec, *, acks_needed: int, deciders: int = 2) -> None:
        super().__init__(spec, acks_needed)
        self.request: PromotionRequest | None = None
        self.leaving: set[int] = set()
        self.given_up: set[int] = set()
        self.is_paused = False
        self.is_fenced = False
        self.is_hibernated = False
        self.is_compared = True
        """Whether the Lease is replaced by compare-and-swap; a counterexample turns that off."""

        self.deciders: Final = [Decider(name) for name in range(deciders)]
        self.sidecars: Final = Sidecars(self)

    # -- observing -----------------------------------------------------------------------------------------------------

    def observe_member(self, name: int, number: int, *, asked_ms: int | None = None) -> Member | None:
        """Return what a deciding process would observe of a member now."""
        broker, asked = self.brokers.get(number), self.now_ms if asked_ms is None else asked_ms
        known = self.deciders[name].members.get(number)
        report = None if known is None else known.report
        if broker is None:
            return Member(number=number, process=Process.ABSENT, process_asked_ms=asked, report=report)
        if broker.is_up and self.reach(f"op{name}", number):
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
        if not self.reach(f"op{name}", number):
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
            is_leaving=number in self.leaving,
            report=report,
        )

    def receive(self, name: int, member: Member) -> None:
        """Deliver an observation to a deciding process, whenever it was made."""
        decider = self.deciders[name]
        decider.members[member.number] = member
        if member.process is Process.ABSENT and member.number not in self.spec.members:
            del decider.members[member.number]
        if member.report is not None:
            decider.last_report = last_report_after(decider.last_report, member.report)

    def read_lease(self, name: int) -> None:
        if not self.reach(f"op{name}", "api"):
            return
        decider = self.deciders[name]
        known = decider.lease
        if known is None or known.record != self.lease:
            decider.lease = ObservedLease(record=self.lease, seen_ms=self.now_ms)

    def observed(self, name: int) -> ObservedGroup:
        decider = self.deciders[name]
        shard = ObservedShard(
            number=0,
            lease=decider.lease,
            members=tuple(decider.members[number] for number in sorted(decider.members)),
            last_report=decider.last_report,
            request=self.request,
            replace_disks=tuple(sorted(self.given_up)),
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

    def decide(self, name: int) -> Decision:
        decider = self.deciders[name]
        decider.decision = decide(self.spec, self.observed(name), self.now_ms)
        decider.under_way += [one for one in decider.decision.actions if not isinstance(one, act.Wait)]
        return decider.decision

    def deliver(self, name: int, index: int, *, is_kept: bool = False) -> None:
        """Execute a pending action. With ``is_kept`` it stays pending, so that it is executed again later."""
        under_way = self.deciders[name].under_way
        if not under_way:
            return
        action = under_way[index % len(under_way)] if is_kept else under_way.pop(index % len(under_way))
        with suppress(Refused):
            self._do(name, action)
        self.acknowledge()

    def _do(self, name: int, action: act.Action) -> None:
        if isinstance(action, act.LeaseAction):
            if self.reach(f"op{name}", "api"):
                self._write(action)
            return
        if isinstance(action, act.ClearRequest):
            if self.request is not None and self.request.id == action.request:
                self.request = None
            return
        if isinstance(action, act.Hibernate):
            for number in self.brokers:
                self.flush(number)
                self.crash(number)
            return
        assert isinstance(action, act.MemberAction), action
        if isinstance(action, act.Start | act.Restart | act.Remove | act.ReplaceDisk):
            self._do_process(action)
            return
        broker = self.brokers.get(action.member)
        if broker is not None and broker.is_up and self.reach(f"op{name}", action.member):
            self._order(broker, action)

    def _order(self, broker: Broker, action: act.MemberAction) -> None:
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
                    self.judge.promoted(broker, self.lease)
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

    def _do_process(self, action: act.MemberAction) -> None:
        number = action.member
        match action:
            case act.Start():
                if number not in self.brokers and number in self.spec.members:
                    self.make(number)
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
                self.judge.removed(self.brokers.pop(number, None), self.brokers.values())
            case act.ReplaceDisk(disk_id=disk_id, is_accepted=is_accepted):
                meant = self.brokers.get(number)
                if meant is None or disk_id != meant.store.identity:
                    return
                if self.lost_disks.pop(number, None) is not None:
                    self.given_up.discard(number)
                    lost = self.brokers.pop(number)
                    self.judge.removed(lost, self.brokers.values(), is_accepted=is_accepted)
                    self.make(number)
                    self.brokers[number].store.owes = lost.store.lacks | lost.store.owes | set(lost.store.log)

    def _write(self, action: act.LeaseAction) -> None:
        version = None if self.lease is None else self.lease.version
        if self.is_compared and version != action.expected:
            return
        count = int(version or "0") + 1
        self.lease = msgspec.structs.replace(action.record, version=str(count))
