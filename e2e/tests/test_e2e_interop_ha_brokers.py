"""Complete brokers, ours and Apache's, in one group: ours takes over from Apache's, and Apache's is a slave of ours."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gantry_interop import ha_store, java, peers, probe
from gantry_interop.ha_store import FILE_BYTES
from gantry_interop.processes import Child, Nursery

from gantry_client import Admin, ClientError, FetchStatus, Message, NoRoute, Producer, PullConsumer, SendStatus
from gantry_status.order_client import OrderClient
from gantry_status.orders import HaRole, HaStatus, OrderError, Promote, StatusRequest
from gantry_testing.client import wait_until

pytestmark = pytest.mark.needs_java

TOPIC = "interop_ha"
GROUP = "interop_ha_group"
TIMEOUT_S = 240.0


async def fill(address: str, first: int, count: int) -> set[SendStatus]:
    """Send numbered messages, at most 32 at a time."""
    gate = asyncio.Semaphore(32)
    async with Producer(address, "ha-p") as producer:

        async def send(number: int) -> SendStatus:
            async with gate:
                body = b"%8d" % number + bytes(1_000)
                return (await producer.send(Message(TOPIC, body, keys=[f"key-{number}"]))).status

        return set(await asyncio.gather(*[send(first + number) for number in range(count)]))


async def is_accepted(address: str, number: int) -> bool:
    """Return whether a message is accepted."""
    try:
        return await fill(address, number, 1) == {SendStatus.SEND_OK}
    except NoRoute:
        return False


async def read_from_committed_offset(address: str, *, count_max: int) -> list[int]:
    """Return the numbers that a consumer gets from its committed offset on, and commit them."""
    numbers: list[int] = []
    async with PullConsumer(address, GROUP) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset = max(await consumer.committed(queue) or 0, 0)
            while len(numbers) < count_max:
                result = await consumer.fetch(queue, offset)
                if result.status is not FetchStatus.FOUND:
                    break
                numbers += [int(message.body[:8]) for message in result.messages]
                offset = result.next_offset
            await consumer.commit(queue, offset)
    return numbers


async def status_of(store: Path) -> HaStatus | None:
    """Return the status of our broker, or None if it does not run."""
    async with OrderClient(str(store / "control.sock")) as client:
        try:
            return await client.call(StatusRequest(), timeout_s=5.0)
        except OrderError:
            return None


async def reached(store: Path, end: int) -> bool:
    """Return whether the broker of a store has its log up to an offset."""
    status = await status_of(store)
    return status is not None and status.confirmed is not None and status.confirmed >= end


def log_end(broker: str) -> int:
    """Return the end of a broker's log, as the broker reports it."""
    table = json.loads(probe.send_request(broker, 28).body)["table"]
    return int(table["commitLogMaxOffset"])


def gantry_slave_layout(theirs: peers.Layout, directory: Path) -> peers.Layout:
    """Return the layout of our broker as a slave of Apache's; the name server has the address of its master."""
    settings = {
        **ha_store.JAVA_SETTINGS,
        "brokerRole": "SLAVE",
        "brokerId": "1",
        "haMasterIsClassic": "true",
        "registerNameServerPeriod": "10000",
    }
    return peers.Layout(directory, settings=settings, name_server_override=theirs.name_server)


@pytest.mark.slow
async def test_our_broker_takes_over_from_apaches(tmp_path: Path) -> None:
    """It copies three existing files and new messages, is killed meanwhile, and is promoted when Apache's has stopped.

    No message is lost, and the consumer continues at its offset.
    """
    await asyncio.to_thread(java.build)
    theirs = peers.Layout(tmp_path / "java", settings={**ha_store.JAVA_SETTINGS, "registerNameServerPeriod": "10000"})
    ours = gantry_slave_layout(theirs, tmp_path / "ours")
    with Nursery(tmp_path / "logs") as nursery:
        apache = await asyncio.to_thread(peers.start, "apache", nursery, theirs)
        async with Admin(apache.address) as admin:
            await admin.topics.create(TOPIC, queues=2)
        await fill(apache.address, 0, 3_200)
        before = await read_from_committed_offset(apache.address, count_max=500)
        broker = await asyncio.to_thread(peers.start_broker, "gantry", nursery, ours, "ours")
        await wait_until(lambda: reached(ours.store, 1 << 20), timeout_s=TIMEOUT_S)
        sending = asyncio.ensure_future(fill(apache.address, 3_200, 2_000))
        broker.kill()
        broker = await asyncio.to_thread(peers.start_broker, "gantry", nursery, ours, "ours")
        assert await sending == {SendStatus.SEND_OK}
        end = await asyncio.to_thread(log_end, apache.broker_address)
        await wait_until(lambda: reached(ours.store, end), timeout_s=TIMEOUT_S)
        offsets = ours.store / "config" / "consumerOffset.json"
        await wait_until(lambda: offsets.exists() and f"{TOPIC}@{GROUP}" in offsets.read_text(), timeout_s=TIMEOUT_S)
        await asyncio.to_thread(apache.broker.stop, peers.CLEAN_STOP_SECONDS_MAX)

        async with OrderClient(str(ours.store / "control.sock")) as client:
            status = await client.call(Promote(epoch=50))
        assert (status.role, status.epoch, status.begin) == (HaRole.MASTER, 50, 0)
        end = status.wrote or 0
        # The answer does not wait for the name server.
        await wait_until(lambda: is_accepted(apache.address, 5_200))
        assert await fill(apache.address, 5_201, 99) == {SendStatus.SEND_OK}
        after = await read_from_committed_offset(apache.address, count_max=100_000)
        broker.stop()

    assert end > 5 * FILE_BYTES
    assert ha_store.log_bytes(ours.store, 0, end) == ha_store.log_bytes(theirs.store, 0, end)
    assert len(before) >= 500
    assert sorted(before + after) == list(range(5_300))


@pytest.mark.slow
async def test_apaches_broker_is_a_slave_of_ours(tmp_path: Path) -> None:
    """Our SYNC_MASTER with a write buffer answers OK when Apache's slave has the message; topics are copied too."""
    await asyncio.to_thread(java.build)
    sync = {**ha_store.JAVA_SETTINGS, "brokerRole": "SYNC_MASTER", "haClassicPeers": "true"}
    sync["transientStorePoolEnable"] = "true"
    ours = peers.Layout(tmp_path / "ours", settings=sync)
    theirs = peers.Layout(tmp_path / "java", name_server_override=ours.name_server)
    with Nursery(tmp_path / "logs") as nursery:
        gantry = await asyncio.to_thread(peers.start, "gantry", nursery, ours)
        async with Admin(gantry.address) as admin:
            await admin.topics.create(TOPIC, queues=2)
        assert await fill(gantry.address, 0, 1) == {SendStatus.SLAVE_NOT_AVAILABLE}
        slave = ha_store.start_java_slave(nursery, theirs)
        await wait_until(lambda: _has_slave(ours.store), timeout_s=TIMEOUT_S)
        assert await fill(gantry.address, 1, 3_500) == {SendStatus.SEND_OK}
        topics = theirs.store / "config" / "topics.json"
        await wait_until(lambda: topics.exists() and TOPIC in topics.read_text(), timeout_s=TIMEOUT_S)
        status = await status_of(ours.store)
        assert status is not None and [one.number for one in status.slaves] == [-2]
        await asyncio.to_thread(slave.stop, peers.CLEAN_STOP_SECONDS_MAX)
        assert await fill(gantry.address, 4_000, 1) == {SendStatus.SLAVE_NOT_AVAILABLE}
        gantry.stop()

    end = status.wrote or 0
    assert end > 3 * FILE_BYTES
    assert ha_store.log_bytes(theirs.store, 0, end) == ha_store.log_bytes(ours.store, 0, end)


async def _has_slave(store: Path) -> bool:
    status = await status_of(store)
    return status is not None and len(status.slaves) == 1 and status.slaves[0].received == status.wrote


async def is_served(address: str, number: int) -> bool:
    """Return whether a message is accepted by brokers that may just be starting."""
    try:
        return await is_accepted(address, number)
    except ClientError:
        return False


@pytest.mark.slow
async def test_our_pair_comes_back_by_apaches_name_server(tmp_path: Path) -> None:
    """Both brokers are killed. The slave finds its master, which waits for it, by fields that Apache's server knows."""
    await asyncio.to_thread(java.build)
    master = peers.Layout(tmp_path / "master", settings={**ha_store.JAVA_SETTINGS, "brokerRole": "SYNC_MASTER"})
    slave = peers.Layout(
        tmp_path / "slave", settings={**ha_store.JAVA_SETTINGS, "brokerRole": "SLAVE", "brokerId": "1"},
        name_server_override=master.name_server,
    )  # fmt: skip
    with Nursery(tmp_path / "logs") as nursery:
        await asyncio.to_thread(peers.start_name_server, "apache", nursery, master)

        async def start_pair() -> list[Child]:
            first = await asyncio.to_thread(peers.start_broker, "gantry", nursery, master, "master")
            return [first, await asyncio.to_thread(peers.start_broker, "gantry", nursery, slave, "slave")]

        brokers = await start_pair()
        async with Admin(master.name_server) as admin:
            await admin.topics.create(TOPIC, queues=2)
        await wait_until(lambda: is_served(master.name_server, 0), timeout_s=TIMEOUT_S)
        for broker in brokers:
            broker.kill()

        await start_pair()
        await wait_until(lambda: is_served(master.name_server, 1), timeout_s=TIMEOUT_S)
        assert {0, 1} <= set(await read_from_committed_offset(master.name_server, count_max=100))
