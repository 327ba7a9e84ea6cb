"""Popped messages that are not acked, on brokers that are not the master: retention must know them there, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.server.admin.unconsumed import UNREAD_POPS, Unconsumed, find_oldest_unconsumed
from gantry_broker.server.pop.log_reader import PopLogReader
from gantry_broker.server.pop.service import Pops
from gantry_broker.setting_keys import broker_settings
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, local_conf, wait_until
from gantry_testing.popping import FLUSHED_SOON, Popped, ack, pop, send

QUEUE = (TOPIC, GROUP, 0)
CONF = {"brokerRole": "SYNC_MASTER", "roleAtStart": "UNASSIGNED", **FLUSHED_SOON}


@dataclass
class Pair:
    """A master and its slave. Two messages of one queue are popped at the master, and the first one is acked."""

    master: Broker
    slave: Broker
    client: Dialogue
    popped: Popped

    async def wait_until_copied(self) -> None:
        """Wait until the slave shows all records of the master, and has its offsets."""
        one, other = self.master, self.slave
        await wait_until(lambda: other.store.dispatcher.dispatched == one.store.log.wrote == other.store.log.wrote)
        await wait_until(lambda: other.core.offsets.find(GROUP, TOPIC, 0) == 2)


async def start(path: Path, number: int) -> Broker:
    settings = broker_settings(local_conf(path, **{**CONF, "brokerId": str(number)}))
    broker = Broker(settings, disk=RealDisk(), clock=SystemClock())
    await broker.start()
    return broker


async def follow(slave: Broker, master: Broker, epoch: int) -> None:
    """Let a broker follow the master of an epoch, and wait until its acks count."""
    await slave.orders.follow(epoch, master.settings.ha_address)
    number = slave.settings.broker_id
    await wait_until(lambda: any(one.broker_id == number and one.received >= 0 for one in master.replication.acks))


@asynccontextmanager
async def pair(path: Path) -> AsyncIterator[Pair]:
    master, slave = await start(path / "one", 1), await start(path / "two", 2)
    try:
        await master.orders.promote(10, [2], False)
        await follow(slave, master, 10)
        async with dialogue(master) as client:
            await send(client, b"1", b"2")
            popped = await pop(client, queueId=0)
            assert (await ack(client, popped.receipts[0])).code == 0
            both = Pair(master, slave, client, popped)
            await both.wait_until_copied()
            yield both
    finally:
        await slave.close()
        await master.close()


async def oldest_of_topic(broker: Broker) -> Unconsumed | None:
    """Return the oldest unconsumed message, as retention asks for it."""
    return await find_oldest_unconsumed(broker.core, {})


@pytest.mark.parametrize("is_guarded", [True, False], ids=["read from the log", "unknown, the twin"])
async def test_slave_keeps_popped_messages_until_they_are_acked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """A slave has no state of pops in memory, and the committed offset is the end of what was popped."""
    if not is_guarded:

        async def nothing(self: Pops) -> dict[tuple[str, str, int], int]:
            return {}

        monkeypatch.setattr(Pops, "oldest_unacked", nothing)
    async with pair(tmp_path) as both:
        found = await oldest_of_topic(both.slave)
        assert (found is not None and (found.topic, found.group) == (TOPIC, GROUP)) == is_guarded
        if found is not None:
            assert found.physical_offset == both.popped.messages[1].physical_offset
        assert (await ack(both.client, both.popped.receipts[1])).code == 0
        await both.wait_until_copied()
        assert await oldest_of_topic(both.slave) is None


async def test_former_master_does_not_wait_for_its_old_checkpoints(tmp_path: Path) -> None:
    """A message that was popped in its term is consumed when it is acked at the new master."""
    async with pair(tmp_path) as both:
        former, master = both.master, both.slave
        await master.orders.promise(11, "a test")
        await master.orders.promote(11, [1], False)
        await follow(former, master, 11)
        assert await former.pops.oldest_unacked() == {QUEUE: 1}
        async with dialogue(master) as client:
            assert (await ack(client, both.popped.receipts[1])).code == 0
        end = master.store.log.wrote
        await wait_until(lambda: former.store.dispatcher.dispatched >= end)

        assert former.pops.journal.state.oldest_open() == {QUEUE: 1}, "expected the state of the former term"
        assert await former.pops.oldest_unacked() == {}
        assert former.pops.runtime_info()["popInflightMessages"] == 0
        assert master.pops.runtime_info()["popInflightMessages"] == 0


async def test_nothing_is_deleted_while_the_checkpoints_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a record of pop consumption is damaged and may be healed, every message may be popped and not acked."""
    async with pair(tmp_path) as both:

        def wait(self: PopLogReader) -> bool:
            self.is_waiting = True
            return False

        monkeypatch.setattr(PopLogReader, "read_slice", wait)
        assert await both.slave.pops.oldest_unacked() is None
        found = await oldest_of_topic(both.slave)
        assert found is not None and (found.physical_offset, found.group) == (0, UNREAD_POPS)
