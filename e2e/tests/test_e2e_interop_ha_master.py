"""Apache's broker is the master of our store: we copy its log byte for byte and its tables, and Java opens our copy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gantry_interop import ha_store, java, peers, store_tool
from gantry_interop.ha_store import FILE_BYTES
from gantry_interop.processes import Nursery

from gantry_client import Admin, FetchStatus, Message, Producer, PullConsumer, SendStatus
from gantry_testing.local import wait_until
from gantry_wire import fastjson

pytestmark = pytest.mark.needs_java

TOPIC = "interop_ha"
GROUP = "interop_ha_group"
TIMEOUT_S = 240.0


async def fill(producer: Producer, count: int, first: int = 0) -> set[SendStatus]:
    """Send so many messages of a kilobyte, at most 64 at a time."""
    gate = asyncio.Semaphore(64)

    async def send(number: int) -> SendStatus:
        async with gate:
            body = b"%8d" % number + bytes(1_000)
            return (await producer.send(Message(TOPIC, body, keys=[f"key-{number}"]))).status

    return set(await asyncio.gather(*[send(first + number) for number in range(count)]))


async def commit_some(address: str) -> dict[int, int]:
    """Let a consumer commit an offset in every queue; return the offsets."""
    committed: dict[int, int] = {}
    async with PullConsumer(address, GROUP) as consumer:
        for queue in await consumer.queues(TOPIC):
            result = await consumer.fetch(queue, 0)
            assert result.status is FetchStatus.FOUND
            await consumer.commit(queue, result.next_offset)
            committed[queue.queue_id] = result.next_offset
    return committed


@pytest.mark.verify
async def test_our_slave_has_a_java_masters_whole_log_and_tables_and_java_opens_the_copy(tmp_path: Path) -> None:
    """It starts with an empty disk and three files behind, follows rolls under load, and again after a break."""
    await asyncio.to_thread(java.build)
    layout = peers.Layout(tmp_path / "java", settings={**ha_store.JAVA_SETTINGS, "brokerRole": "ASYNC_MASTER"})
    with Nursery(tmp_path / "logs") as nursery:
        peer = await asyncio.to_thread(peers.start, "apache", nursery, layout)
        async with Admin(peer.address) as admin, Producer(peer.address, "ha-p") as producer:
            await admin.topics.create(TOPIC, queues=2)
            await fill(producer, 3_500)
            committed = await commit_some(peer.address)
            async with ha_store.follow_as_gantry_slave(tmp_path / "ours", layout) as slave:
                await wait_until(lambda: slave.store.log.wrote > 3 * FILE_BYTES, TIMEOUT_S)
                await fill(producer, 2_000, 3_500)
                await wait_until(lambda: {"topics", "subscriptionGroup", "consumerOffset"} <= slave.tables.keys())
                tables = {name: fastjson.loads(document) for name, document in slave.tables.items()}
            reached = slave.store.log.wrote
            await fill(producer, 1_500, 5_500)
            async with ha_store.follow_as_gantry_slave(tmp_path / "ours", layout) as slave:
                await wait_until(lambda: slave.store.queues.get_or_create(TOPIC, 0).readable_end == 3_500, TIMEOUT_S)
                await wait_until(lambda: slave.store.queues.get_or_create(TOPIC, 1).readable_end == 3_500, TIMEOUT_S)
                await asyncio.to_thread(peer.stop)
                await wait_until(lambda: not slave.follower.is_streaming)
                end = slave.store.log.wrote
                assert [epoch.is_ours for epoch in slave.store.identity.epochs] == [False]

    assert end > reached > 3 * FILE_BYTES and end > 6 * FILE_BYTES
    assert ha_store.log_bytes(tmp_path / "ours", 0, end) == ha_store.log_bytes(layout.store, 0, end)
    assert tables["topics"]["topicConfigTable"][TOPIC]["writeQueueNums"] == 2
    offsets = tables["consumerOffset"]["offsetTable"][f"{TOPIC}@{GROUP}"]
    assert {int(queue): offset for queue, offset in offsets.items()} == committed
    assert GROUP in tables["subscriptionGroup"]["subscriptionGroupTable"]
    keys = [f"{TOPIC}#key-{number}" for number in (0, 3_600, 6_999)]
    found, theirs = (
        store_tool.read_store(root, tmp_path, shape=store_tool.SMALL, keys=keys)
        for root in (tmp_path / "ours", layout.store)
    )
    assert found.physical_offset_max == theirs.physical_offset_max == end
    assert found.topics[TOPIC] == theirs.topics[TOPIC]
    assert found.keys == theirs.keys and all(found.keys.values())


@pytest.mark.slow
async def test_java_sync_master_acknowledges_when_our_slave_has_the_message(tmp_path: Path) -> None:
    """With inSyncReplicas=2 it answers FLUSH_SLAVE_TIMEOUT while we are away, and SEND_OK while we follow."""
    await asyncio.to_thread(java.build)
    settings = {**ha_store.JAVA_SETTINGS, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "2000"}
    layout = peers.Layout(tmp_path / "java", settings=settings)
    with Nursery(tmp_path / "logs") as nursery:
        peer = await asyncio.to_thread(peers.start, "apache", nursery, layout)
        async with Admin(peer.address) as admin, Producer(peer.address, "ha-p") as producer:
            await admin.topics.create(TOPIC, queues=2)
            assert await fill(producer, 3) == {SendStatus.FLUSH_SLAVE_TIMEOUT}
            async with ha_store.follow_as_gantry_slave(tmp_path / "ours", layout) as slave:
                await wait_until(lambda: slave.follower.confirmed > 0, TIMEOUT_S)
                assert await fill(producer, 500, 3) == {SendStatus.SEND_OK}
            assert await fill(producer, 3, 503) == {SendStatus.FLUSH_SLAVE_TIMEOUT}


@pytest.mark.slow
async def test_killed_java_master_is_followed_after_its_restart(tmp_path: Path) -> None:
    """It is killed under load, twice; our log stays a prefix of its log, and is complete when it is back."""
    await asyncio.to_thread(java.build)
    layout = peers.Layout(tmp_path / "java", settings={**ha_store.JAVA_SETTINGS, "brokerRole": "ASYNC_MASTER"})
    with Nursery(tmp_path / "logs") as nursery:
        peer = await asyncio.to_thread(peers.start, "apache", nursery, layout)
        broker = peer.broker
        async with Admin(peer.address) as admin:
            await admin.topics.create(TOPIC, queues=2)
        async with ha_store.follow_as_gantry_slave(tmp_path / "ours", layout) as slave:
            for _ in range(2):
                before = slave.store.log.wrote
                async with Producer(peer.address, "ha-p") as producer:
                    sending = asyncio.ensure_future(fill(producer, 20_000))
                    await wait_until(lambda: slave.store.log.wrote > before + FILE_BYTES, TIMEOUT_S)  # noqa: B023
                    broker.kill()
                    sending.cancel()
                    await asyncio.wait([sending])
                await wait_until(lambda: not slave.follower.is_streaming)
                end = slave.store.log.wrote
                ours, theirs = (ha_store.log_bytes(root, 0, end) for root in (tmp_path / "ours", layout.store))
                assert ours == theirs
                broker = await asyncio.to_thread(peers.start_broker, "apache", nursery, layout)
                async with Producer(peer.address, "ha-p") as producer:
                    assert await fill(producer, 200) == {SendStatus.SEND_OK}
                await wait_until(lambda: slave.follower.is_streaming, TIMEOUT_S)
            await wait_until(lambda: slave.store.log.wrote >= slave.follower.tables.master_end > end, TIMEOUT_S)
            await asyncio.to_thread(broker.stop, peers.CLEAN_STOP_SECONDS_MAX)
            await wait_until(lambda: not slave.follower.is_streaming)
            end = slave.store.log.wrote

    assert end > 2 * FILE_BYTES
    assert ha_store.log_bytes(tmp_path / "ours", 0, end) == ha_store.log_bytes(layout.store, 0, end)
    found = store_tool.read_store(layout.store, tmp_path, shape=store_tool.SMALL)
    assert found.physical_offset_max == end
