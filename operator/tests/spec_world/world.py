"""A model world: one shard of brokers, its Lease, clients, faults, and several who decide, each with an old look.

Time passes, records are sent, copied and acknowledged; reports are asked for, answered and delivered, each at its own
time or never; what was decided is under way until it is delivered, twice or never. Everything that happens is one call
on the world, so a seed is a history. The judge hears of every acknowledgement and every promotion.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, final

import msgspec
from spec_world.brokers import RECORD_BYTES, Broker, Record, Refused, Store
from spec_world.judge import Judge

from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.decide.decision import Decision
from gantry_spec.lease import LeaseRecord
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import (
    Disk,
    LastWord,
    Member,
    Observed,
    ObservedLease,
    ObservedShard,
    Process,
    Report,
    Role,
    Wish,
)

PEAK_RECORDS_PER_S: Final = 20
LEASE_MS: Final = 6_000


@final
@dataclass(eq=False)
class Decider:
    """One operator, or one supervisor: all that it knows, and what it has ordered."""

    name: int
    members: dict[int, Member] = field(default_factory=dict)
    lease: ObservedLease | None = None
    last_word: LastWord | None = None
    under_way: list[act.Action] = field(default_factory=list)
    decision: Decision = field(default_factory=Decision)


@final
class World:
    """Owned by one test."""

    def __init__(self, spec: Spec, *, acks_needed: int, deciders: int = 2) -> None:
        self.spec = spec
        self.acks_needed: Final = acks_needed
        self.now_ms = 100_000
        self.template = "t0"
        self.lease: LeaseRecord | None = None
        self.lease_since_ms = 0
        self.brokers: dict[int, Broker] = {}
        self.lost_disks: dict[int, int] = {}
        self.cut: set[frozenset[int | str]] = set()
        """Pairs that do not reach each other: numbers, ``op0``, ``api``."""

        self.wish: Wish | None = None
        self.leaving: set[int] = set()
        self.given_up: set[int] = set()
        self.is_paused = False
        self.is_compared = True
        """Whether the Lease is: a twin turns that off."""

        self.deciders: Final = [Decider(name) for name in range(deciders)]
        self.judge: Final = Judge(spec)
        self._serial = 0
        for number in spec.members:
            self._make(number)

    def _make(self, number: int) -> None:
        identity = f"store-{number}-{self.next_serial()}"
        broker = Broker(number, Store(identity), self.acks_needed, self.template)
        self.brokers[number] = broker
        broker.start(self.template, self.acks_needed, self.now_ms)

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def reach(self, one: int | str, other: int | str) -> bool:
        return frozenset({one, other}) not in self.cut

    # -- what happens by itself ----------------------------------------------------------------------------------------

    def advance(self, by_ms: int, sends: float) -> None:
        """Time passes; masters take messages, ``sends`` of what they could, and acknowledge what they may."""
        self.now_ms += by_ms
        for broker in self.masters():
            if not broker.is_draining:
                for _ in range(int(PEAK_RECORDS_PER_S * by_ms / 1000 * sends)):
                    broker.store.log.append(Record(broker.store.epoch, self.next_serial()))
        self.acknowledge()

    def masters(self) -> list[Broker]:
        return [one for one in self.brokers.values() if one.is_up and one.role is Role.MASTER]

    def copy(self, number: int, records: int) -> None:
        """A slave and its master exchange something, if they reach each other."""
        slave = self.brokers.get(number)
        if slave is None or not slave.is_up or slave.role is not Role.SLAVE:
            return
        for master in self.masters():
            is_same = slave.master == master.address and slave.store.promised <= master.store.epoch
            if is_same and slave.store.epoch == master.store.epoch and self.reach(number, master.number):
                slave.copy_from(master, records, self.now_ms)
        self.acknowledge()

    def disconnect(self, number: int) -> None:
        """A master notices that a slave is gone."""
        for master in self.masters():
            master.acks.pop(number, None)

    def renew(self) -> None:
        """The sidecar of the master by the Lease renews it, and tells its broker."""
        if self.lease is None or not self.lease.is_settled or self.lease.newest is None:
            return
        reign = self.lease.newest
        broker = self.brokers.get(reign.master)
        if broker is None or not broker.is_up or not self.reach(broker.number, "api"):
            return
        if (broker.role, broker.store.epoch) == (Role.MASTER, reign.epoch):
            broker.lease_until_ms = self.now_ms + int(self.lease.duration_ms * 0.9)
        self.acknowledge()

    def flush(self, number: int) -> None:
        if number in self.brokers:
            store = self.brokers[number].store
            store.flushed = len(store.log)

    def acknowledge(self) -> None:
        for broker in self.masters():
            end = broker.acknowledged(self.now_ms)
            if end:
                self.judge.acknowledged(broker, end)

    # -- faults --------------------------------------------------------------------------------------------------------

    def crash(self, number: int) -> None:
        """The process dies; what it had survives it."""
        if number in self.brokers:
            self.brokers[number].is_up = False
            self.brokers[number].role = Role.UNASSIGNED

    def restart(self, number: int) -> None:
        broker = self.brokers.get(number)
        if broker is not None and not broker.is_up and number not in self.lost_disks:
            broker.start(broker.template, broker.acks_needed, self.now_ms)

    def cut_power(self, number: int) -> bool:
        """Its machine dies: what was not flushed is gone. Whether the group's mode covers that now."""
        broker = self.brokers.get(number)
        if broker is None or not self._is_covered(broker):
            return False
        self.crash(number)
        store = broker.store
        gone = store.log[store.flushed :]
        store.lacks |= set(gone)
        del store.log[store.flushed :]
        return True

    def lose_disk(self, number: int) -> bool:
        """The same for its disk; without acks, never for two at once: nothing covers that."""
        broker = self.brokers.get(number)
        others = [one for one in self.brokers.values() if one.number != number]
        is_second = self.lost_disks or any(self.judge.lacks_something(one.store) for one in others)
        if is_second and not self.acks_needed:
            return False
        if broker is None or number in self.lost_disks or not self._is_covered(broker):
            return False
        self.crash(number)
        self.lost_disks[number] = self.now_ms
        return True

    def _is_covered(self, broker: Broker) -> bool:
        """A mode with k acks covers k losses until the losers have everything again."""
        if not self.acks_needed:
            return True
        harmed = {one.number for one in self.brokers.values() if self.judge.lacks_something(one.store)}
        return len(harmed | self.lost_disks.keys() | {broker.number}) <= self.acks_needed

    # -- observing -----------------------------------------------------------------------------------------------------

    def look(self, name: int, number: int, *, asked_ms: int | None = None) -> Member | None:
        """What one who decides would hear now of a member."""
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
            before = None if known is None else known.stopped_by_ms
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

    def hear(self, name: int, member: Member) -> None:
        """One who decides gets a look, whenever it was taken."""
        decider = self.deciders[name]
        decider.members[member.number] = member
        if member.process is Process.ABSENT and member.number not in self.spec.members:
            del decider.members[member.number]
        report = member.report
        if report is not None and report.role is Role.MASTER:
            self._keep_word(decider, report)

    def _keep_word(self, decider: Decider, report: Report) -> None:
        word = decider.last_word
        if word is None or (report.epoch, report.asked_ms) > (word.epoch, word.asked_ms):
            decider.last_word = LastWord(
                epoch=report.epoch,
                boot_id=report.boot_id,
                epoch_start=report.epoch_start,
                wrote=report.wrote,
                peak_bytes_per_s=report.peak_bytes_per_s,
                asked_ms=report.asked_ms,
            )

    def read_lease(self, name: int) -> None:
        if not self.reach(f"op{name}", "api"):
            return
        decider = self.deciders[name]
        known = decider.lease
        if known is None or known.record != self.lease:
            decider.lease = ObservedLease(record=self.lease, seen_ms=self.now_ms)

    def observed(self, name: int) -> Observed:
        decider = self.deciders[name]
        shard = ObservedShard(
            number=0,
            lease=decider.lease,
            members=tuple(decider.members[number] for number in sorted(decider.members)),
            last_word=decider.last_word,
            wish=self.wish,
            replace_disks=tuple(sorted(self.given_up)),
        )
        return Observed(shards=(shard,), template=self.template, is_paused=self.is_paused, lease_duration_ms=LEASE_MS)

    # -- deciding and doing --------------------------------------------------------------------------------------------

    def decide(self, name: int) -> Decision:
        decider = self.deciders[name]
        decider.decision = decide(self.spec, self.observed(name), self.now_ms)
        decider.under_way += [one for one in decider.decision.actions if not isinstance(one, act.Wait)]
        return decider.decision

    def deliver(self, name: int, index: int, *, is_kept: bool = False) -> None:
        """Something that is under way arrives; ``is_kept`` has it arrive once more later."""
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
        if isinstance(action, act.ClearWish):
            if self.wish is not None and self.wish.id == action.wish:
                self.wish = None
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
                    raise Refused("it was to go on as the master, and is none")
                if is_new and place < (action.last_epoch, action.end):
                    raise Refused("it was named for a longer log")
                if broker.promote(epoch, electable, self.next_serial()):
                    self.judge.promoted(broker, self.lease)
            case act.Follow(epoch=epoch, master=master):
                broker.follow(epoch, master)
            case act.Fence(epoch=epoch):
                broker.fence(epoch)
            case act.Drain() | act.Withdraw():
                broker.drain()
            case _:
                raise AssertionError(f"no order: {action}")

    def _do_process(self, action: act.MemberAction) -> None:
        number = action.member
        match action:
            case act.Start():
                if number not in self.brokers and number in self.spec.members:
                    self._make(number)
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
            case act.ReplaceDisk(disk_id=disk_id):
                meant = self.brokers.get(number)
                if meant is None or disk_id != meant.store.identity:
                    return
                if self.lost_disks.pop(number, None) is not None:
                    self.given_up.discard(number)
                    lost = self.brokers.pop(number)
                    self.judge.removed(lost, self.brokers.values())
                    self._make(number)
                    self.brokers[number].store.owes = lost.store.lacks | lost.store.owes | set(lost.store.log)

    def _write(self, action: act.LeaseAction) -> None:
        version = None if self.lease is None else self.lease.version
        if self.is_compared and version != action.expected:
            return
        count = int(version or "0") + 1
        self.lease = msgspec.structs.replace(action.record, version=str(count))
        self.lease_since_ms = self.now_ms
