"""Disk faults: a full disk refuses sends, a failed flush stops the broker, and reads continue."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gantry_broker.app import Broker
from gantry_broker.control.orders import execute_order
from gantry_broker.errors import StoreFailed
from gantry_broker.setting_keys import broker_settings
from gantry_status.orders import Drain, Failed
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import Dialogue, dialogue, local_conf, wait_until

LOG_FILE_BYTES = 8 * 1024 * 1024


@asynccontextmanager
async def broker_on(disk: FaultyDisk, clock: FakeClock, **conf: str) -> AsyncIterator[Broker]:
    broker = Broker(broker_settings(local_conf("/store", **conf)), disk=disk, clock=clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


async def fill(client: Dialogue) -> int:
    """Send until a send is refused; return the number of accepted ones."""
    for number in range(100):
        reply = await client.send(b"x" * 1_000_000)
        if reply.code != 0:
            assert reply.code == 14
            assert "disk is full" in (reply.remark or "")
            return number
    raise AssertionError("the disk is never full")


async def test_full_disk_refuses_sends_until_it_has_space() -> None:
    """Without space sends are refused with 14, which clients retry on another broker; reads continue."""
    disk, clock = FaultyDisk(), FakeClock()
    async with broker_on(disk, clock) as broker, dialogue(broker) as client:
        await client.send_ok(b"first")
        disk.capacity = disk.space("/").used + 1_000_000

        taken = await fill(client)

        assert broker.core.store.queues.get_or_create("TopicTest", 0).end == 1 + taken
        assert [message.body for message in await client.read(0, maxMsgNums="1")] == [b"first"]
        assert (await client.send(b"x" * 1_000_000)).code == 14
        disk.capacity = 10 * LOG_FILE_BYTES
        clock.advance(60_000)
        assert (await client.send_ok(b"y" * 1_000_000))["queueOffset"] == str(1 + taken)


async def test_store_without_a_role_record_starts_on_a_full_disk() -> None:
    """A store of RocketMQ, or of a version without roles, is served: its role need not be written down for that."""
    disk, clock = FaultyDisk(), FakeClock()
    async with broker_on(disk, clock) as broker, dialogue(broker) as client:
        await client.send_ok(b"first")
    disk.remove("/store/role.json")
    disk.capacity = disk.space("/").used

    async with broker_on(disk, clock) as broker, dialogue(broker) as client:
        assert [message.body for message in await client.read(0)] == [b"first"]
        assert (await client.send(b"more")).code == 14
        disk.capacity = 10 * LOG_FILE_BYTES


async def test_drain_with_a_failed_flush_is_answered_as_failed() -> None:
    """It is not refused: a refused order has changed nothing, and this one leaves a broker that ends."""
    disk, clock = FaultyDisk(), FakeClock()
    async with broker_on(disk, clock) as broker, dialogue(broker) as client:
        await client.send_ok()
        disk.fail_next("sync", errno.EIO, count=100)

        answer = await execute_order(broker.orders, Drain(timeout_ms=60_000))

        assert isinstance(answer, Failed) and "a flush failed" in answer.reason
        with pytest.raises(StoreFailed):
            await broker.wait_until_failed()
        assert (await client.send()).code == 14


async def test_failed_flush_stops_the_broker() -> None:
    """After a failed flush nothing is acknowledged, and the broker reports that it cannot continue."""
    disk, clock = FaultyDisk(), FakeClock()
    quick = {"flushIntervalCommitLog": "10", "flushCommitLogLeastPages": "0"}
    async with broker_on(disk, clock, **quick) as broker, dialogue(broker) as client:
        await client.send_ok()
        await wait_until(lambda: broker.core.store.log.flushed == broker.core.store.log.wrote)
        disk.fail_next("sync", errno.EIO, count=100)
        await client.send()

        with pytest.raises(StoreFailed):
            await broker.wait_until_failed()

        refused = await client.send()
        assert refused.code == 14
        assert "read-only" in (refused.remark or "")
        assert (await client.pull(0)).code == 0
    assert disk.exists("/store/abort"), "expected the marker of an unclean stop"
