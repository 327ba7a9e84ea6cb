"""A model of a broker group that consists of logs and promises, for tests of code that sends orders to brokers.

Each member follows the rules of the control socket like a broker: a promise is never revoked, no member follows or is a
master in an epoch below its promise, a fenced master acknowledges nothing more. Its log is a list of records with the
epoch of their master, and replication is a method, so a test decides how far each member is when an order arrives. The
group records the acknowledged messages, so that a loss can be detected.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import final

from gantry_status.orders import UNKNOWN, HaRole, HaStatus, OrderRefused, Promised, SlaveState

Record = tuple[int, int]
"""The epoch and the serial number of a record."""


@final
@dataclass(eq=False)
class FakeMember:
    """One broker. Implements the ``Orders`` of the control server."""

    group: FakeGroup
    number: int
    role: HaRole = HaRole.UNASSIGNED
    epoch: int = 0
    """The epoch of the role."""
    promised: int = 0
    """The epoch below which the member follows no master."""
    log: list[Record] = field(default_factory=list)
    master_id: int = UNKNOWN
    """The number of the member that this one follows; of a master its own."""
    electable: list[int] = field(default_factory=list)
    """The numbers of the electable slaves of the term, as its master has them."""
    is_answering: bool = True
    is_complete: bool | None = True
    """Whether the sender of orders can reach it."""
    is_linked: bool = True
    """Whether the other members can reach it."""
    is_draining: bool = False
    """Whether it refuses sends, because it was ordered to drain."""
    drain_reason: str = ""
    """The reason for refusing to drain; empty to allow it."""
    granted_ms: int = 0
    """How long its last grant is still valid when it gives a promise."""
    name: str = "b"
    """The name of the broker, which all members of a shard share."""
    granted_ms_at_promotion: int | None = None
    """The rest of its last grant when it was promoted; None before that."""
    _promised_at: float | None = None
    """The monotonic time of its last promise."""
    received_orders: list[str] = field(default_factory=list)
    """Every order, as its name and its arguments."""

    # -- orders --------------------------------------------------------------------------------------------------------

    async def status(self) -> HaStatus:
        return HaStatus(
            role=self.role,
            epoch=self.epoch,
            promised_epoch=self.promised,
            broker_id=self.number,
            identity=f"{self.number:032x}",
            cluster="c",
            broker_name=self.name,
            ha_address=self.ha_address,
            begin=0,
            wrote=len(self.log),
            last_epoch=self.last_epoch,
            electable=tuple(self.electable),
            acks_needed=self.group.acks_needed,
            master_id=self.master_id,
            master=self._master_address,
            slaves=tuple(self._slaves()),
            granted_ms=self._granted_ms(),
            is_complete=self.is_complete,
            is_draining=self.is_draining,
            may_acknowledge=self.role is HaRole.MASTER,
        )

    @property
    def _master_address(self) -> str:
        master = self.group.members.get(self.master_id)
        return master.ha_address if master is not None and self.role is HaRole.SLAVE else ""

    def _slaves(self) -> list[SlaveState]:
        """Return the slaves that follow, each with the part of this log that it has."""
        found = []
        for one in self.group.members.values():
            if one is not self and one.master_id == self.number and one._is_following(self):
                identity = f"{one.number:032x}"
                found.append(SlaveState(identity=identity, number=one.number, received=one._shared_length(self)))
        return found

    def _granted_ms(self) -> int:
        """Return the rest of the last grant, which was given just before the promise, if there is one."""
        if self._promised_at is None:
            return self.granted_ms
        return max(0, self.granted_ms - int((time.monotonic() - self._promised_at) * 1000))

    async def promise(self, epoch: int, to: str) -> Promised:
        self.received_orders.append(f"promise {epoch}")
        self._require_not_promised(epoch)
        if epoch > self.epoch and self.role is not HaRole.UNASSIGNED:
            self.role = HaRole.UNASSIGNED if self.role is HaRole.MASTER else self.role
        self.promised = epoch
        self._promised_at = time.monotonic()
        return Promised(
            epoch=epoch,
            identity=f"{self.number:032x}",
            broker_id=self.number,
            last_epoch=self.last_epoch,
            end=len(self.log),
            granted_ms=self.granted_ms,
        )

    async def promote(self, epoch: int, electable: list[int], force: bool) -> HaStatus:
        self.received_orders.append(f"promote {epoch}")
        self.granted_ms_at_promotion = self._granted_ms()
        if self.role is HaRole.MASTER and epoch == self.epoch:
            self.is_draining = False
            return await self.status()
        self._require_not_promised(epoch)
        if epoch <= self.last_epoch:
            raise OrderRefused(f"the log has epoch {self.last_epoch} already")
        self.role, self.epoch, self.promised, self.master_id = HaRole.MASTER, epoch, epoch, self.number
        self.electable, self.is_draining = list(electable), False
        self.log.append((epoch, self.group.next_serial()))
        return await self.status()

    async def regain(self, epoch: int) -> HaStatus:
        self.received_orders.append(f"regain {epoch}")
        self._require_not_promised(epoch)
        if (self.master_id, self.epoch) != (self.number, epoch):
            raise OrderRefused(f"it was not the master of epoch {epoch}")
        self.role, self.promised = HaRole.MASTER, epoch
        return await self.status()

    async def follow(self, epoch: int, master: str) -> HaStatus:
        self.received_orders.append(f"follow {epoch} {master}")
        self._require_not_promised(epoch)
        found = next((one for one in self.group.members.values() if one.ha_address == master), None)
        if found is None:
            raise OrderRefused(f"no member at {master}")
        self.role, self.epoch, self.promised, self.is_draining = HaRole.SLAVE, epoch, epoch, False
        self.master_id, self.electable = found.number, list(found.electable)
        return await self.status()

    async def fence(self, epoch: int) -> HaStatus:
        self.received_orders.append(f"fence {epoch}")
        self._require_not_promised(epoch)
        self.role, self.promised, self.is_draining = HaRole.UNASSIGNED, epoch, False
        return await self.status()

    async def drain(self, timeout_ms: int, withdraw: bool = False, clients_only: bool = False) -> HaStatus:
        self.received_orders.append("withdraw" if withdraw else "drain")
        if self.drain_reason:
            raise OrderRefused(self.drain_reason)
        self.is_draining = True
        return await self.status()

    async def lease(self, renewed_ms: int, duration_ms: int) -> HaStatus:
        self.received_orders.append(f"lease {renewed_ms} {duration_ms}")
        return await self.status()

    async def flush(self, backup: str = "") -> HaStatus:
        self.received_orders.append(f"flush {backup}".rstrip())
        return await self.status()

    async def accept_loss(self, by: str) -> HaStatus:
        self.received_orders.append(f"accept-loss {by}")
        return await self.status()

    # -- the log -------------------------------------------------------------------------------------------------------

    @property
    def ha_address(self) -> str:
        return f"127.0.0.1:{20_000 + self.number}"

    @property
    def last_epoch(self) -> int:
        return self.log[-1][0] if self.log else 0

    def send(self) -> None:
        """Append a client's message, if the member accepts sends."""
        if self.role is HaRole.MASTER and not self.is_draining:
            self.log.append((self.epoch, self.group.next_serial()))

    def copy(self, records: int) -> None:
        """Replicate up to so many records as a slave, after cutting records that the master lacks."""
        master = self.group.members.get(self.master_id)
        if master is None or not self._is_following(master):
            return
        same = self._shared_length(master)
        del self.log[same:]
        self.log += master.log[same : same + records]

    def acknowledge(self) -> None:
        """As a master, acknowledge all sends that may be acknowledged, and make them visible to consumers.

        Acks of records of an older epoch count only together with a record of this one: a slave that has only those
        would lose the next election to a log whose last record is of an epoch in between.
        """
        if self.role is not HaRole.MASTER or not self.is_linked:
            return
        slaves = [self.group.members[number] for number in self.electable]
        if self.group.acks_needed == 0:
            if all(one._is_following(self) for one in slaves):  # each of them gives a grant
                self.group.acknowledged.update(self.log)
            return
        ends = sorted(
            (len(one.log) for one in slaves if one._is_following(self) and self._has_prefix(one.log)), reverse=True
        )
        end = ends[self.group.acks_needed - 1] if len(ends) >= self.group.acks_needed else 0
        if end and (self.log[end - 1][0] == self.epoch or self.group.are_old_epochs_counted):
            self.group.acknowledged.update(self.log[:end])

    def _is_following(self, master: FakeMember) -> bool:
        is_joined = self.is_linked and master.is_linked and master.role is HaRole.MASTER
        return self.role is HaRole.SLAVE and is_joined and self.epoch == master.epoch and self.promised <= master.epoch

    def _shared_length(self, master: FakeMember) -> int:
        """Return the length of the common prefix of both logs."""
        pairs = zip(self.log, master.log, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _has_prefix(self, log: list[Record]) -> bool:
        return self.log[: len(log)] == log

    def _require_not_promised(self, epoch: int) -> None:
        if epoch < self.promised:
            raise OrderRefused(f"epoch {self.promised} was promised")


@final
class FakeGroup:
    """The members, and the messages that their clients saw acknowledged."""

    def __init__(self, numbers: Iterable[int], *, acks_needed: int) -> None:
        self.acks_needed = acks_needed
        self.are_old_epochs_counted = False
        """Whether masters count acks of older epochs, which is wrong: see ``FakeMember.acknowledge``."""
        self.members: dict[int, FakeMember] = {number: FakeMember(self, number) for number in numbers}
        self.acknowledged: set[Record] = set()
        self._serial = 0

    @property
    def masters(self) -> list[FakeMember]:
        return [one for one in self.members.values() if one.role is HaRole.MASTER]

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def make_unreachable(self) -> None:
        """Make all members unreachable for orders."""
        for one in self.members.values():
            one.is_answering = False

    def begin(self, master: int, *, epoch: int = 1) -> None:
        """Make one member the master of an epoch; all others follow and have the whole log."""
        others = [number for number in self.members if number != master]
        for number, one in self.members.items():
            one.role = HaRole.MASTER if number == master else HaRole.SLAVE
            one.epoch = one.promised = epoch
            one.master_id = master
            one.electable = list(others)
            one.log = [(epoch, 0)]
