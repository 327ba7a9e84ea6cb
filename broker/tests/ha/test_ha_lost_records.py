"""A record that rots on the master before any slave has it does not stop replication: void records take its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.follower import Follower
from gantry_broker.ha.healing import Healer
from gantry_broker.ha.master_session import MasterFacts
from gantry_broker.ha.server import ReplicationServer
from gantry_broker.ha.slave_session import SlaveFacts
from gantry_broker.ha.store_log import MasterStore, SlaveStore
from gantry_broker.store.damage import Damage
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import wait_until
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import locate_record, overwrite_log

COUNT = 200
DAMAGED = 57
"""The number of the message that is damaged, counted from 0."""

FILE_BYTES = TINY.mapped_file_size_commit_log


class Group:
    """A master, whose log is damaged, and slaves, which follow it when the test says so."""

    def __init__(self, members: list[StoreWorld], *, expected: int) -> None:
        self.master, *self.slaves = members
        self.lost: list[Damage] = []
        self.acks = AckSet(acks_needed=1, is_flushed_wanted=False)
        self.tasks: list[asyncio.Task[None]] = []
        self.server = ReplicationServer(self._facts, MasterStore(self.master.store), self.acks, on_acks=lambda: None)
        self.healer = Healer(
            self.master.store, lambda: self.server.streams, nullcontext,
            count_expected=lambda: expected, on_lost=self._on_lost,
        )  # fmt: skip

    def _facts(self) -> MasterFacts:
        return MasterFacts("c", "b", FILE_BYTES, self.master.store.identity.epoch)

    async def _on_lost(self, damage: Damage) -> None:
        self.lost.append(damage)

    def follow(self, number: int) -> None:
        """Let a slave follow the master."""
        world = self.slaves[number - 1]
        store = SlaveStore(world.store)
        facts = SlaveFacts("c", "b", number, world.store.identity.uuid, FILE_BYTES, 0, True, "")

        def on_copied() -> None:
            store.dispatch(follower.confirmed)

        follower = Follower(store, lambda: facts, ("127.0.0.1", self.server.port), on_copied=on_copied)
        self.tasks.append(asyncio.ensure_future(follower.run()))

    def damage(self, number: int = DAMAGED) -> int:
        """Damage a message of the master, and return its offset."""
        start = locate_record(self.master, number)[0]
        overwrite_log(self.master, start + 90, b"\xee")
        return start

    async def waiting_at(self, offset: int, slaves: int) -> None:
        """Wait until so many slaves have acknowledged everything before ``offset``."""
        await wait_until(lambda: sum(one.received == offset for one in self.acks) == slaves)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        await self.healer.close()
        await self.server.close()


def make_members() -> list[StoreWorld]:
    """Return a master with messages, and two slaves without."""
    members = [StoreWorld(FaultyDisk(), f"/node{number}", TINY) for number in range(3)]
    for world in members:
        world.open()
    members[0].send("orders", COUNT)
    return members


@asynccontextmanager
async def group(members: list[StoreWorld] | None = None, *, expected: int) -> AsyncIterator[Group]:
    one = Group(members or make_members(), expected=expected)
    await one.server.start("127.0.0.1", 0)
    try:
        yield one
    finally:
        await one.stop()


async def test_record_that_no_slave_has_is_lost_and_reported() -> None:
    """Both slaves are connected and wait at it."""
    async with group(expected=2) as one:
        start = one.damage()
        one.follow(1)
        await one.waiting_at(start, 1)
        await asyncio.sleep(0.05)
        assert not one.lost, "the other slave may have it"

        one.follow(2)
        await one.waiting_at(start, 2)
        one.healer.retry_damaged(2.0)

        await wait_until(lambda: bool(one.lost))
        assert (one.lost[0].start, one.master.store.guard.damage.counters.lost) == (start, 1)


async def test_record_that_another_slave_has_is_healed() -> None:
    """A slave that waits does not make it lost."""
    async with group(expected=2) as one:
        one.follow(1)
        await one.waiting_at(one.master.store.log.wrote, 1)
        start = one.damage()
        one.follow(2)
        await wait_until(lambda: one.master.store.guard.damage.counters.healed == 1 or bool(one.lost))

        assert not one.lost and one.master.store.guard.message_at(start) == one.master.records[start]


async def test_slave_that_does_not_wait_at_it_changes_nothing() -> None:
    """Both copies are damaged, and every slave is past it: it is skipped, and the log stays as it is."""
    async with group(expected=1) as one:
        one.follow(1)
        await one.waiting_at(one.master.store.log.wrote, 1)
        start = one.damage()
        overwrite_log(one.slaves[0], start + 90, b"\xee")
        one.master.bodies("orders")

        await wait_until(lambda: one.master.store.guard.damage.counters.lost == 1)
        assert not one.lost


async def test_record_that_a_slave_has_damaged_is_not_given_up() -> None:
    """It was replicated, and perhaps acknowledged: a person decides, although another slave waits at it."""
    async with group(expected=2) as one:
        one.follow(1)
        await one.waiting_at(one.master.store.log.wrote, 1)
        start = one.damage()
        overwrite_log(one.slaves[0], start + 90, b"\xee")
        one.follow(2)
        await one.waiting_at(start, 1)

        await wait_until(lambda: one.master.store.guard.damage.counters.lost == 1)
        assert not one.lost


@pytest.mark.parametrize("number", [DAMAGED, 0], ids=["in the middle", "first"])
async def test_slave_copies_void_records(number: int) -> None:
    """The master's next process sends them, and both logs are equal in the end."""
    members = make_members()
    master, slave, _ = members
    async with group(members, expected=1) as one:
        start = one.damage(number)
        one.follow(1)
        await wait_until(lambda: any(stream.waits_at(start) for stream in one.server.streams))
        await wait_until(lambda: bool(one.lost))
        sent = master.sent_bodies("orders")
    master.store.prepare_void(start)()
    master.kill()
    master.open()

    async with group(members, expected=1) as one:
        one.follow(1)
        await one.waiting_at(master.store.log.wrote, 1)
        await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote)

    assert not one.lost
    for world in (master, slave):
        assert world.bodies("orders") == sent[:number] + sent[number + 1 :]
        assert list(world.store.queues.topics()) == ["orders"]
    assert slave.store.guard.message_at(start) == master.store.guard.message_at(start)
