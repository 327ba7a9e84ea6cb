"""Inject faults under load, and repair each one.

    await FaultInjector(group, supervisor, load, chance).inject(Fault.KILL_MASTER)

After every fault all members follow the newest master and have its whole log, so that the group's mode covers the next
fault, too.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, final

from gantry_histories.load import Load
from replication.group import POLL_S, Group, Member
from replication.network import CLIENTS
from replication.plans import Fault
from replication.supervisor import PATIENCE_S, NoPromotion, Supervisor

ACKNOWLEDGED_BETWEEN: Final = 40
"""Messages that are acknowledged before, during and after a fault."""
MOMENT_S: Final = 0.1
"""Within this time a member is killed that is being promoted, cuts its log or copies one."""
DELAY_MAX_S: Final = 0.3
"""A fault is injected after a random delay up to this."""


@final
class FaultInjector:
    """Injects faults into one group. Owned by one loop."""

    def __init__(self, group: Group, supervisor: Supervisor, load: Load, chance: random.Random) -> None:
        self._group: Final = group
        self._supervisor: Final = supervisor
        self._load: Final = load
        self._chance: Final = chance
        self._acts: Final[dict[Fault, Callable[[], Awaitable[None]]]] = {
            Fault.KILL_MASTER: self.kill_master,
            Fault.RESTART_MASTER: self.restart_master,
            Fault.KILL_SLAVE: self.kill_slave,
            Fault.PAUSE_MASTER: self.pause_master,
            Fault.PAUSE_SLAVE: self.pause_slave,
            Fault.PARTITION_MASTER: lambda: self.cut_master(to_slaves=True, from_slaves=True),
            Fault.DROP_FROM_MASTER: lambda: self.cut_master(to_slaves=True, from_slaves=False),
            Fault.DROP_TO_MASTER: lambda: self.cut_master(to_slaves=False, from_slaves=True),
            Fault.ISOLATE_MASTER: self.isolate_master,
            Fault.PARTITION_SLAVE: self.partition_slave,
            Fault.POWER_MASTER: self.power_off_master,
            Fault.POWER_SLAVE: self.power_off_slave,
            Fault.KILL_PROMOTED: self.kill_promoted,
            Fault.KILL_RETURNING: lambda: self.disturb_return(Member.kill),
            Fault.POWER_RETURNING: lambda: self.disturb_return(Member.lose_power),
            Fault.LAG_AND_KILL: self.lag_and_kill,
            Fault.WIPE_SLAVE: self.wipe_slave,
            Fault.SWITCH: self.switch,
        }
        assert set(self._acts) == set(Fault), "a fault has no method that injects it"

    async def inject(self, fault: Fault) -> None:
        """Wait until some messages are acknowledged, inject the fault, and repair it."""
        await self.send_some()
        await asyncio.sleep(self._chance.uniform(0, DELAY_MAX_S))
        await self._acts[fault]()
        await self._supervisor.make_all_electable()
        await self.send_some()
        await self._supervisor.wait_until_caught_up()

    async def send_some(self) -> None:
        """Wait until the producers have sent some messages that are acknowledged."""
        await self._load.wait_acknowledged(ACKNOWLEDGED_BETWEEN, PATIENCE_S)

    async def fail_over(self, *, among: Sequence[Member] | None = None) -> Member:
        """Promote a member other than the master, or one of ``among``, as soon as that is possible."""
        members = self._group.others(self._supervisor.master) if among is None else among
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await self._supervisor.promote_among(members)
                except NoPromotion as reason:
                    print(f"not yet: {reason}")
                    await asyncio.sleep(POLL_S)

    async def restart_and_follow(self, member: Member) -> None:
        """Start a member again that has ended, and order it to follow the master."""
        await member.process.start()
        await self._supervisor.order_to_follow([member])

    def _random_slave(self) -> Member:
        return self._chance.choice(self._group.others(self._supervisor.master))

    # -- the faults, as the members of ``Fault`` describe them ---------------------------------------------------------

    async def kill_master(self) -> None:
        old = self._supervisor.master
        await old.kill()
        await self.fail_over()
        await self.send_some_if_possible()
        await self.restart_and_follow(old)

    async def restart_master(self) -> None:
        old = self._supervisor.master
        await old.kill()
        await old.process.start()
        await self._supervisor.promote_most_complete()

    async def kill_slave(self) -> None:
        slave = self._random_slave()
        await slave.kill()
        await self.send_some_if_possible()
        await self.restart_and_follow(slave)

    async def pause_master(self) -> None:
        old = self._supervisor.master
        old.pause()
        old.is_cut_off = True
        await self.fail_over()
        await self.send_some_if_possible()
        old.resume()
        await self.send_some_if_possible()
        old.is_cut_off = False
        await self._supervisor.order_to_follow([old])

    async def pause_slave(self) -> None:
        slave = self._random_slave()
        slave.pause()
        await self.send_some_if_possible()
        slave.resume()

    async def cut_master(self, *, to_slaves: bool, from_slaves: bool) -> None:
        old, network = self._supervisor.master, self._group.network
        for slave in self._group.others(old):
            if to_slaves:
                network.drop_packets(old.number, slave.number)
            if from_slaves:
                network.drop_packets(slave.number, old.number)
        old.is_cut_off = True
        await self.fail_over()
        await self.send_some_if_possible()
        await self._heal(old)

    async def isolate_master(self) -> None:
        old, network = self._supervisor.master, self._group.network
        for other in (CLIENTS, *(slave.number for slave in self._group.others(old))):
            network.partition(old.number, other)
        old.is_cut_off = True
        await self.fail_over()
        await self.send_some_if_possible()
        await self._heal(old)

    async def _heal(self, old: Member) -> None:
        self._group.network.heal()
        await self.send_some_if_possible()
        old.is_cut_off = False
        await self._supervisor.order_to_follow([old])

    async def partition_slave(self) -> None:
        slave = self._random_slave()
        self._group.network.partition(self._supervisor.master.number, slave.number)
        slave.is_cut_off = True
        await self.send_some_if_possible()
        self._group.network.heal()
        slave.is_cut_off = False

    async def power_off_master(self) -> None:
        old = self._supervisor.master
        await old.lose_power()
        await self.fail_over()
        await self.send_some_if_possible()
        await self.restart_and_follow(old)

    async def power_off_slave(self) -> None:
        slave = self._random_slave()
        await slave.lose_power()
        await self.send_some_if_possible()
        await self.restart_and_follow(slave)

    async def kill_promoted(self) -> None:
        old = self._supervisor.master
        await old.kill()
        promotion = asyncio.ensure_future(self.fail_over())
        await asyncio.sleep(self._chance.uniform(0, MOMENT_S))
        promoted = self._chance.choice(self._group.others(old))
        await promoted.kill()
        promotion.cancel()
        await asyncio.gather(promotion, return_exceptions=True)
        for member in (old, promoted):
            if not member.process.is_running:
                await member.process.start()
        await self._supervisor.promote_most_complete()

    async def disturb_return(self, end: Callable[[Member], Awaitable[None]]) -> None:
        old, network = self._supervisor.master, self._group.network
        for slave in self._group.others(old):
            network.partition(old.number, slave.number)
        old.is_cut_off = True
        await asyncio.sleep(self._chance.uniform(0, DELAY_MAX_S))
        await self.fail_over()
        await self.send_some_if_possible()
        network.heal()
        old.is_cut_off = False
        await self._supervisor.order_to_follow([old])
        await asyncio.sleep(self._chance.uniform(0, MOMENT_S))
        await end(old)
        await self.restart_and_follow(old)

    async def lag_and_kill(self) -> None:
        old, slave = self._supervisor.master, self._random_slave()
        self._group.network.partition(old.number, slave.number)
        slave.is_cut_off = True
        # The slave may have a copy of every message that is in flight now. Later ones it cannot have.
        await self.send_some_if_possible(extra_messages=self._load.in_flight)
        await old.kill()
        slave.is_cut_off = False
        await self.fail_over()
        # Not before: the kernel still has what the killed master had sent, and would deliver it to the slave.
        self._group.network.heal()
        await self.send_some_if_possible()
        await self.restart_and_follow(old)

    async def wipe_slave(self) -> None:
        slave = self._random_slave()
        await slave.kill()
        shutil.rmtree(slave.store)
        await self.restart_and_follow(slave)
        await asyncio.sleep(self._chance.uniform(0, MOMENT_S))
        await slave.kill()
        await self.send_some_if_possible()
        await self.restart_and_follow(slave)

    async def switch(self) -> None:
        await self.fail_over()

    async def send_some_if_possible(self, *, extra_messages: int = 0) -> None:
        """Wait until some messages are acknowledged, unless too few slaves are available.

        ``extra_messages`` adds to their number: the first ones may be messages of which every member has a copy.
        """
        others = self._group.others(self._supervisor.master)
        if self._supervisor.may_acknowledge([other for other in others if other.is_up]):
            await self._load.wait_acknowledged(extra_messages + ACKNOWLEDGED_BETWEEN, PATIENCE_S)
        else:
            await asyncio.sleep(self._chance.uniform(0, DELAY_MAX_S))
