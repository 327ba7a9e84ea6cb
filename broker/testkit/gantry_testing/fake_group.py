"""A group of brokers that are nothing but their logs and promises, for whoever gives orders to brokers.

Each member keeps the rules of the control socket as a broker does: a promise is never taken back, nobody has a role
below what it has promised, a master that is fenced acknowledges nothing more. Its log is a list of records that know
who wrote them, and replication is a call, so a test decides who has got how far when the orders come. What has been
acknowledged is put down by the group, which is how a loss is seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import final

from gantry_status.orders import UNKNOWN, HaRole, HaStatus, OrderRefused, Promised, SlaveState

Record = tuple[int, int]
"""Epoch and serial number."""


@final
@dataclass(eq=False)
class FakeMember:
    """One broker. An ``Orders`` of the control server."""

    group: FakeGroup
    number: int
    role: HaRole = HaRole.UNASSIGNED
    epoch: int = 0
    promised: int = 0
    log: list[Record] = field(default_factory=list)
    master_id: int = UNKNOWN
    electable: list[int] = field(default_factory=list)
    is_answering: bool = True
    """Whether whoever gives orders can reach it."""
    is_linked: bool = True
    """Whether the others can."""
    is_draining: bool = False
    drain_reason: str = ""
    """Why it refuses to be drained."""
    granted_ms: int = 0
    name: str = "b"
    granted_ms_at_promotion: int | None = None
    """The rest of its last grant when it was promoted; None before that."""
    _promised_at: float | None = None
    ordered: list[str] = field(default_factory=list)

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
            is_whole=True,
            is_draining=self.is_draining,
            may_acknowledge=self.role is HaRole.MASTER,
        )

    @property
    def _master_address(self) -> str:
        master = self.group.members.get(self.master_id)
        return master.ha_address if master is not None and self.role is HaRole.SLAVE else ""

    def _slaves(self) -> list[SlaveState]:
        """The slaves that follow, each with as much of this log as it has."""
        found = []
        for one in self.group.members.values():
            if one is not self and one.master_id == self.number and one._follows(self):
                identity = f"{one.number:032x}"
                found.append(SlaveState(identity=identity, number=one.number, received=one._shared(self)))
        return found

    def _granted_ms(self) -> int:
        """The rest of the last grant: it was given just before the promise, if there is one."""
        if self._promised_at is None:
            return self.granted_ms
        return max(0, self.granted_ms - int((time.monotonic() - self._promised_at) * 1000))

    async def promise(self, epoch: int, to: str) -> Promised:
        self.ordered.append(f"promise {epoch}")
        self._demand(epoch)
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
        self.ordered.append(f"promote {epoch}")
        self.granted_ms_at_promotion = self._granted_ms()
        if self.role is HaRole.MASTER and epoch == self.epoch:
            self.is_draining = False
            return await self.status()
        self._demand(epoch)
        if epoch <= self.last_epoch:
            raise OrderRefused(f"epoch {self.last_epoch} is in the log already")
        self.role, self.epoch, self.promised, self.master_id = HaRole.MASTER, epoch, epoch, self.number
        self.electable, self.is_draining = list(electable), False
        self.log.append((epoch, self.group.next_serial()))
        return await self.status()

    async def regain(self, epoch: int) -> HaStatus:
        self.ordered.append(f"regain {epoch}")
        self._demand(epoch)
        if (self.master_id, self.epoch) != (self.number, epoch):
            raise OrderRefused(f"it was not the master of epoch {epoch}")
        self.role, self.promised = HaRole.MASTER, epoch
        return await self.status()

    async def follow(self, epoch: int, master: str) -> HaStatus:
        self.ordered.append(f"follow {epoch} {master}")
        self._demand(epoch)
        found = next((one for one in self.group.members.values() if one.ha_address == master), None)
        if found is None:
            raise OrderRefused(f"nobody is at {master}")
        self.role, self.epoch, self.promised, self.is_draining = HaRole.SLAVE, epoch, epoch, False
        self.master_id, self.electable = found.number, list(found.electable)
        return await self.status()

    async def fence(self, epoch: int) -> HaStatus:
        self.ordered.append(f"fence {epoch}")
        self._demand(epoch)
        self.role, self.promised, self.is_draining = HaRole.UNASSIGNED, epoch, False
        return await self.status()

    async def drain(self, timeout_ms: int, withdraw: bool = False, goes_on: bool = False) -> HaStatus:
        self.ordered.append("withdraw" if withdraw else "drain")
        if self.drain_reason:
            raise OrderRefused(self.drain_reason)
        self.is_draining = True
        return await self.status()

    async def lease(self, renewed_ms: int, duration_ms: int) -> HaStatus:
        self.ordered.append(f"lease {renewed_ms} {duration_ms}")
        return await self.status()

    async def flush(self) -> HaStatus:
        self.ordered.append("flush")
        return await self.status()

    async def accept_loss(self, by: str) -> HaStatus:
        self.ordered.append(f"accept-loss {by}")
        return await self.status()

    # -- the log -------------------------------------------------------------------------------------------------------

    @property
    def ha_address(self) -> str:
        return f"127.0.0.1:{20_000 + self.number}"

    @property
    def last_epoch(self) -> int:
        return self.log[-1][0] if self.log else 0

    def send(self) -> None:
        """A client's message, if sends are taken."""
        if self.role is HaRole.MASTER and not self.is_draining:
            self.log.append((self.epoch, self.group.next_serial()))

    def copy(self, records: int) -> None:
        """As a slave, get up to so many records more, first cutting what the master has not."""
        master = self.group.members.get(self.master_id)
        if master is None or not self._follows(master):
            return
        same = self._shared(master)
        del self.log[same:]
        self.log += master.log[same : same + records]

    def acknowledge(self) -> None:
        """As a master, answer all sends that may be answered, and show consumers what they may see.

        Acks of what an older epoch wrote count only together with something of this one: a slave that has just that
        would lose the next election to a log whose last record is of an epoch in between.
        """
        if self.role is not HaRole.MASTER or not self.is_linked:
            return
        slaves = [self.group.members[number] for number in self.electable]
        if self.group.acks_needed == 0:
            if all(one._follows(self) for one in slaves):  # each of them grants it
                self.group.acknowledged.update(self.log)
            return
        ends = sorted((len(one.log) for one in slaves if one._follows(self) and self._has(one.log)), reverse=True)
        end = ends[self.group.acks_needed - 1] if len(ends) >= self.group.acks_needed else 0
        if end and (self.log[end - 1][0] == self.epoch or self.group.are_old_epochs_counted):
            self.group.acknowledged.update(self.log[:end])

    def _follows(self, master: FakeMember) -> bool:
        is_joined = self.is_linked and master.is_linked and master.role is HaRole.MASTER
        return self.role is HaRole.SLAVE and is_joined and self.epoch == master.epoch and self.promised <= master.epoch

    def _shared(self, master: FakeMember) -> int:
        """Up to where both logs are the same."""
        pairs = zip(self.log, master.log, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _has(self, log: list[Record]) -> bool:
        return self.log[: len(log)] == log

    def _demand(self, epoch: int) -> None:
        if epoch < self.promised:
            raise OrderRefused(f"epoch {self.promised} was promised")


@final
class FakeGroup:
    """The members, and what their clients were told."""

    def __init__(self, numbers: Iterable[int], *, acks_needed: int) -> None:
        self.acks_needed = acks_needed
        self.are_old_epochs_counted = False
        """True makes masters wrong: see ``FakeMember.acknowledge``."""
        self.members: dict[int, FakeMember] = {number: FakeMember(self, number) for number in numbers}
        self.acknowledged: set[Record] = set()
        self._serial = 0

    @property
    def masters(self) -> list[FakeMember]:
        return [one for one in self.members.values() if one.role is HaRole.MASTER]

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def silence(self) -> None:
        """Nobody can be given orders."""
        for one in self.members.values():
            one.is_answering = False

    def begin(self, master: int, *, epoch: int = 1) -> None:
        """One is the master, all others follow and have everything."""
        others = [number for number in self.members if number != master]
        for number, one in self.members.items():
            one.role = HaRole.MASTER if number == master else HaRole.SLAVE
            one.epoch = one.promised = epoch
            one.master_id = master
            one.electable = list(others)
            one.log = [(epoch, 0)]
