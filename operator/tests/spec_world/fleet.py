"""The brokers of a model world, and the events that change them: time, sends, copies, renewals, crashes and losses.

The checker of invariants (`invariant_checker`) is informed of every acknowledgement. A fault that the group's mode does
not cover is skipped, since the group gives no guarantee for it.
"""

from __future__ import annotations

from typing import Final

from spec_world.brokers import Broker, Record, Store
from spec_world.invariant_checker import InvariantChecker

from gantry_spec.lease import LeaseRecord
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Role

PEAK_RECORDS_PER_S: Final = 20
"""The greatest load of a master."""


class Fleet:
    """The brokers of one shard, their Lease, and the network between all."""

    def __init__(self, spec: Spec, acks_needed: int) -> None:
        self.spec = spec
        self.acks_needed = acks_needed
        """How many slaves must acknowledge a message, by the settings of new processes."""

        self.now_ms = 100_000
        self.template = "t0"
        """The hash of the present pod template; a broker with another one has to be restarted."""

        self.lease: LeaseRecord | None = None
        """The record in the Lease, which is the truth; deciding processes have copies of different ages."""

        self.brokers: dict[int, Broker] = {}
        self.lost_disks: dict[int, int] = {}
        """The time of the loss of a disk, by member."""

        self.partitions: set[frozenset[int | str]] = set()
        """The pairs that cannot reach each other: numbers of members, deciders ``op0`` and ``op1``, ``api``."""

        self.checker: Final = InvariantChecker(spec)
        """Checks the invariants at each acknowledgement, promotion and removal."""

        self._serial = 0
        for number in spec.members:
            self.create_broker(number)

    def create_broker(self, number: int) -> None:
        """Create a broker with an empty disk, and start it."""
        identity = f"store-{number}-{self.next_serial()}"
        broker = Broker(number, Store(identity), self.acks_needed, self.template)
        self.brokers[number] = broker
        broker.start(self.template, self.acks_needed, self.now_ms)

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def can_reach(self, one: int | str, other: int | str) -> bool:
        """Return whether no partition separates two members, deciding processes or the API server."""
        return frozenset({one, other}) not in self.partitions

    # -- events --------------------------------------------------------------------------------------------------------

    def advance(self, by_ms: int, load: float) -> None:
        """Advance the clock. Masters take the share ``load`` of their greatest load, and acknowledge what they may."""
        self.now_ms += by_ms
        for broker in self.masters():
            if not (broker.is_draining or broker.is_withdrawn):
                for _ in range(int(PEAK_RECORDS_PER_S * by_ms / 1000 * load)):
                    broker.store.log.append(Record(broker.store.epoch, self.next_serial()))
        self.acknowledge()

    def masters(self) -> list[Broker]:
        return [one for one in self.brokers.values() if one.is_up and one.role is Role.MASTER]

    def replicate(self, number: int, records: int) -> None:
        """Copy records from a master to its slave, if they reach each other."""
        slave = self.brokers.get(number)
        if slave is None or not slave.is_up or slave.role is not Role.SLAVE:
            return
        for master in self.masters():
            is_same = slave.master == master.address and slave.store.promised <= master.store.epoch
            if is_same and slave.store.epoch == master.store.epoch and self.can_reach(number, master.number):
                slave.copy_from(master, records, self.now_ms)
        self.acknowledge()

    def disconnect(self, number: int) -> None:
        """Let the masters notice that a slave has disconnected."""
        for master in self.masters():
            master.acks.pop(number, None)

    def renew_lease(self) -> None:
        """Renew the Lease by the sidecar of the recorded master, and inform its broker."""
        if self.lease is None or not self.lease.is_settled or self.lease.newest is None:
            return
        term = self.lease.newest
        broker = self.brokers.get(term.master)
        if broker is None or not broker.is_up or not self.can_reach(broker.number, "api"):
            return
        if (broker.role, broker.store.epoch) == (Role.MASTER, term.epoch):
            broker.lease_until_ms = self.now_ms + int(self.lease.duration_ms * 0.9)
        self.acknowledge()

    def flush(self, number: int) -> None:
        if number in self.brokers:
            store = self.brokers[number].store
            store.flushed = len(store.log)

    def acknowledge(self) -> None:
        """Let all masters acknowledge to clients what they may, and check that."""
        for broker in self.masters():
            end = broker.acknowledged(self.now_ms)
            if end:
                self.checker.check_acknowledged(broker, end)

    # -- faults --------------------------------------------------------------------------------------------------------

    def crash(self, number: int) -> None:
        """Kill a broker's process. Its log survives."""
        if number in self.brokers:
            self.brokers[number].is_up = False
            self.brokers[number].role = Role.UNASSIGNED

    def restart(self, number: int) -> None:
        broker = self.brokers.get(number)
        if broker is not None and not broker.is_up and number not in self.lost_disks:
            broker.start(broker.template, broker.acks_needed, self.now_ms)

    def cut_power(self, number: int) -> bool:
        """Cut the power of a machine, which loses unflushed records. Return False if the mode does not cover it."""
        broker = self.brokers.get(number)
        if broker is None or not self._is_covered(broker):
            return False
        self.crash(number)
        store = broker.store
        gone = store.log[store.flushed :]
        store.lost |= set(gone)
        del store.log[store.flushed :]
        return True

    def lose_disk(self, number: int) -> bool:
        """Lose a broker's disk. Return False if the mode does not cover that now; without acks only one may be lost."""
        broker = self.brokers.get(number)
        others = [one for one in self.brokers.values() if one.number != number]
        is_second = self.lost_disks or any(self.checker.has_lost_records(one.store) for one in others)
        if is_second and not self.acks_needed:
            return False
        if broker is None or number in self.lost_disks or not self._is_covered(broker):
            return False
        self.crash(number)
        self.lost_disks[number] = self.now_ms
        return True

    def _is_covered(self, broker: Broker) -> bool:
        """Return whether the mode covers another loss: k acks cover k members that do not have everything again."""
        if not self.acks_needed:
            return not self.lost_disks
        harmed = {one.number for one in self.brokers.values() if self.checker.has_lost_records(one.store)}
        return len(harmed | self.lost_disks.keys() | {broker.number}) <= self.acks_needed
