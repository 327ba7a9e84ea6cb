"""Brokers of one shard in this process, over real files: alone, or a master and a slave with ordered roles.

Roles are ordered here by the rules of ``gantry_spec``: a master whose process ended gets its role back if it may and no
other member has more; otherwise the member with the newest and longest log among those without a known loss, or
among all if each has one, is promoted, in an epoch that is newer than any before. The remembered epoch stands for the
Lease.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Final, final

from damage.file_kinds import BUFFER_FOLDER, STORE

from gantry_broker.app import Broker
from gantry_broker.errors import BrokerError
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.setting_keys import broker_settings
from gantry_status.orders import HaRole, HaStatus, OrderRefused
from gantry_testing.local import local_conf
from gantry_testing.slowness import patience

FIRST_EPOCH: Final = 3_000
"""The epoch of the first master, unless a trial continues with a later one."""
PATIENCE_S: Final = 8.0
"""How long a slave may take to catch up, on a fast machine."""
POLL_S: Final = 0.004
FILES: Final = {
    "mappedFileSizeCommitLog": str(128 * 1024),
    "maxMessageSize": str(16 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 50),
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
    "messageDelayLevel": "1s 7200s",
    "flushIntervalCommitLog": "3600000",
    "flushCommitLogThoroughInterval": "3600000",
    "transactionTimeOut": "100",
    "transactionCheckInterval": "200",
    "autoCreateTopicEnable": "false",
    "shutdownTimeout": "4000",
    "healWait": "2500",
}
"""Files so small that a few hundred messages fill several of each kind. Only what is asked for is flushed."""


class Setup(StrEnum):
    """The kind of shard that a broker belongs to."""

    ALONE = "alone"
    SYNC = "sync group"
    ASYNC = "async group"


@final
class ShiftedClock:
    """The machine's clocks, with the wall clock ahead by ``shift_ms``, so that delayed messages are due now."""

    def __init__(self, shift_ms: int = 0) -> None:
        self._clock: Final = SystemClock()
        self.shift_ms = shift_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self.shift_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def boot_ms(self) -> int:
        return self._clock.boot_ms()

    def boot_id(self) -> str:
        return self._clock.boot_id()


def conf_of(setup: Setup, number: int, *, has_write_buffers: bool, name: str) -> dict[str, str]:
    """Return the settings of a member. Its paths are relative to the folder of the shard, the current directory."""
    conf = local_conf(f"{number}/{STORE}", **FILES, brokerName=name)
    if has_write_buffers:
        # No commit by time, so that a start has buffers to replay.
        conf |= {
            "transientStorePoolEnable": "true", "transientStorePoolPath": f"{number}/{BUFFER_FOLDER}",
            "transientStorePoolSize": "3", "commitIntervalCommitLog": "3600000",
            "commitCommitLogLeastPages": "1000", "commitCommitLogThoroughInterval": "3600000",
        }  # fmt: skip
    if setup is not Setup.ALONE:
        role = "SYNC_MASTER" if setup is Setup.SYNC else "ASYNC_MASTER"
        conf |= {"roleAtStart": "UNASSIGNED", "brokerRole": role, "brokerId": str(number)}
    return conf


@final
class Shard:
    """The members of one shard, by number; 1 is the first master. Owned by one loop."""

    def __init__(
        self,
        setup: Setup,
        clock: ShiftedClock,
        *,
        has_write_buffers: bool,
        name: str = "shard",
        epoch: int = FIRST_EPOCH,
    ) -> None:
        self.setup: Final = setup
        self.clock: Final = clock
        self.numbers: Final = (1,) if setup is Setup.ALONE else (1, 2)
        self.brokers: dict[int, Broker] = {}
        self.refusals: dict[int, str] = {}
        """Why members did not start."""
        self.epoch = epoch
        """The newest epoch that a master was ever given, as a Lease remembers it."""
        self.master_number = 1
        self.on_failed: Callable[[int, BaseException], None] = lambda number, error: None
        """Called when a member fails."""

        self._watches: set[asyncio.Task[None]] = set()
        self._confs: Final = {
            number: conf_of(setup, number, has_write_buffers=has_write_buffers, name=name) for number in self.numbers
        }

    def __repr__(self) -> str:
        return f"<Shard {self.setup} master={self.master_number} up={sorted(self.brokers)}>"

    def change_settings(self, **conf: str) -> None:
        """Change settings for later starts."""
        for one in self._confs.values():
            one.update(conf)

    @property
    def master(self) -> Broker | None:
        return self.brokers.get(self.master_number)

    async def start(self, number: int) -> Broker | None:
        """Start a member without a role, or as the configured master. Return None if it refuses: see ``refusals``."""
        self.refusals.pop(number, None)
        os.makedirs(f"{number}/{BUFFER_FOLDER}", exist_ok=True)
        try:
            broker = Broker(broker_settings(self._confs[number]), disk=RealDisk(), clock=self.clock)
            await broker.start()
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise
            # A deliberate refusal has a text of its own; any other error ends the broker with a traceback.
            is_meant = isinstance(error, BrokerError | OSError)
            self.refusals[number] = str(error) if is_meant else f"{type(error).__name__}: {error}"
            logging.getLogger("gantry_broker").error("cannot start", extra={"reason": self.refusals[number]})
            return None
        self.brokers[number] = broker
        watch = asyncio.create_task(self._watch(number, broker))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return broker

    async def _watch(self, number: int, broker: Broker) -> None:
        try:
            await broker.wait_until_failed()
        except BrokerError as error:
            self.on_failed(number, error)

    async def start_all(self) -> None:
        """Start every member that does not run."""
        for number in self.numbers:
            if number not in self.brokers:
                await self.start(number)

    async def start_new(self) -> None:
        """Start a new shard: member 1 becomes the master, and the other follows."""
        await self.start_all()
        if self.setup is not Setup.ALONE:
            await self._promote(1)
            await self.order_to_follow()

    async def promote_master(self, *, can_regain: bool) -> str:
        """Give the shard a master among the running members; return how, or why there is none.

        With `can_regain` the last master gets its role back without an election if no other member has more.
        """
        if self.setup is Setup.ALONE:
            return "configured" if self.brokers else "it does not run"
        if not self.brokers:
            return "no member runs"
        statuses = {number: await broker.orders.status() for number, broker in self.brokers.items()}
        how = ""
        if can_regain and self._may_regain(statuses):
            with suppress(OrderRefused):
                await self.brokers[self.master_number].orders.regain(statuses[self.master_number].epoch)
                how = "regained"
        if not how:
            how = await self._elect()
        if self.master is not None:
            await self.order_to_follow()
        return how

    def _may_regain(self, statuses: dict[int, HaStatus]) -> bool:
        """Return whether the last master may get its role back: it allows it, and no other member has more."""
        own = statuses.get(self.master_number)
        if own is None or not own.may_regain or own.epoch != self.epoch:
            return False
        return all(one.log_position <= own.log_position for one in statuses.values())

    async def _elect(self) -> str:
        """Elect the member with the newest and longest log in a new epoch; return how, or why there is none."""
        promises = {}
        found = [await one.orders.status() for one in self.brokers.values()]
        epoch = 1 + max([self.epoch, *(max(one.epoch, one.promised_epoch, one.last_epoch) for one in found)])
        self.epoch = epoch
        for number, broker in self.brokers.items():
            with suppress(OrderRefused):
                promises[number] = await broker.orders.promise(epoch, "the damage run")
        statuses = {number: await self.brokers[number].orders.status() for number in promises}
        sure = {number for number, one in statuses.items() if one.is_complete is not False} or set(promises)
        if not sure:
            return "no member promises"
        winner = max(sure, key=lambda one: (promises[one].last_epoch, promises[one].end, one == self.master_number))
        # If acks are needed, all others may give them; otherwise only reachable members must grant.
        electable = [one for one in self.numbers if one != winner and (self.setup is Setup.SYNC or one in self.brokers)]
        await self.brokers[winner].orders.promote(epoch, electable, False)
        self.master_number = winner
        return f"member {winner} elected in epoch {epoch}"

    async def _promote(self, number: int) -> None:
        others = [one for one in self.numbers if one != number]
        await self.brokers[number].orders.promote(self.epoch, others, False)
        self.master_number = number

    async def promote_again(self) -> None:
        """In an async group, promote the master again in an epoch that requires no slave, if none follows."""
        master = self.master
        if self.setup is not Setup.ASYNC or master is None or master.replication.acks:
            return
        self.epoch = 1 + max(self.epoch, master.roles.epoch)
        with suppress(OrderRefused):
            await master.orders.promote(self.epoch, [], False)
            await self.order_to_follow()

    async def order_to_follow(self) -> None:
        """Order all other members to follow the master."""
        master = self.master
        assert master is not None
        for number, broker in self.brokers.items():
            if number != self.master_number:
                await broker.orders.follow(master.roles.epoch, master.settings.ha_address)

    async def wait_until_caught_up(self, patience_s: float = PATIENCE_S) -> bool:
        """Wait until every running slave has caught up with the master; return whether it did."""
        master = self.master
        if master is None or self.setup is Setup.ALONE:
            return master is not None
        others = [broker for number, broker in self.brokers.items() if number != self.master_number]

        def has_caught_up() -> bool:
            return len(master.replication.acks) >= len(others) and all(
                one.store.log.wrote == master.store.log.wrote
                and one.replication.confirmed >= master.store.log.wrote
                and one.roles.role is HaRole.SLAVE
                for one in others
            )

        return await wait_until_met(has_caught_up, patience_s)

    async def close(self) -> None:
        """Stop all members cleanly, the master first, which waits for its slaves."""
        for watch in self._watches:
            watch.cancel()
        for number in sorted(self.brokers, key=lambda one: one != self.master_number):
            await self.brokers[number].close()
        self.brokers.clear()


async def wait_until_met(predicate: Callable[[], bool], patience_s: float) -> bool:
    """Wait for a condition; return whether it was met in time, with more time on a slow machine."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience(patience_s)
    while not predicate():
        if loop.time() > end:
            return False
        await asyncio.sleep(POLL_S)
    return True
