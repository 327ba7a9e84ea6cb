"""The source with Apache RocketMQ: messages of its broker are read by pull and from its files."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from admin_scene import wait_for
from gantry_interop import java, peers
from gantry_interop.processes import Nursery

from gantry_client import Admin, Message, Producer, ProducerSettings, SendReceipt
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.model import QueueRange, Task, TransportKind
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.settings import ReadSettings

pytestmark = [pytest.mark.needs_java, pytest.mark.slow]

COUNT = 3000


class Apache(NamedTuple):
    """A running broker of Apache's, and the messages that were sent to it."""

    address: str
    store: Path
    sent: list[tuple[Message, SendReceipt]]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    """A name server and a broker; messages sent alone, compressed, and in batches, with tags, keys and properties."""
    folder = tmp_path_factory.mktemp("apache")
    java.build()
    with Nursery(folder / "logs") as nursery:
        layout = peers.Layout(folder / "peer")
        address = peers.start("apache", nursery, layout).address
        yield Apache(address, _store_below(folder), asyncio.run(_send(address)))


def _store_below(folder: Path) -> Path:
    return next(folder.rglob("commitlog")).parent


async def _send(address: str) -> list[tuple[Message, SendReceipt]]:
    async with Admin(address) as admin:
        await admin.topics.create("orders", queues=4)
        await admin.topics.create("bills", queues=2)
    settings = ProducerSettings(compress_above_bytes=2000, send_timeout_ms=30_000)
    async with Producer(address, "senders", settings=settings) as producer:
        messages = [
            Message(
                "bills" if number % 10 == 0 else "orders",
                b"%d " % number + b"z" * (number * 7 % 3000),
                tags=("red", "green", "blue")[number % 3],
                keys=(f"key-{number}", "all"),
                properties={"number": str(number), "ü": "ö"},
            )
            for number in range(COUNT)
        ]
        single = [message for message in messages if message.topic == "bills"]
        batched = [message for message in messages if message.topic == "orders" and len(message.body) < 500]
        others = [message for message in messages if message.topic == "orders" and len(message.body) >= 500]
        sent = list(zip(single, await asyncio.gather(*map(producer.send, single)), strict=True))
        sent += list(zip(batched, await producer.send_batch(batched), strict=True))
        sent += list(zip(others, await asyncio.gather(*map(producer.send, others)), strict=True))
    return sent


def settings_of(apache: Apache, way: TransportKind) -> ReadSettings:
    with Catalog(ReadSettings(name_servers=apache.address)) as catalog:
        (broker,) = catalog.brokers()
    directories = {broker: str(apache.store)} if way is TransportKind.FILE else {}
    return ReadSettings(name_servers=apache.address, transport=way, directories=directories, patience_ms=60_000)


def rows_of(task: Task, settings: ReadSettings) -> list[dict[str, Any]]:
    return [row for batch in read_task(task, settings) for row in batch.to_pylist()]


@pytest.mark.parametrize("way", [TransportKind.PULL, TransportKind.FILE])
def test_topics_of_apache_are_read_as_sent(apache: Apache, way: TransportKind) -> None:
    """Topics, queues, bounds, and every message are as they were sent, at the offset in the send result."""
    settings = settings_of(apache, way)
    with Catalog(settings) as catalog:
        assert catalog.topics() == ["bills", "orders"]
        queues = catalog.queues(catalog.topics())
        assert len(queues) == 6
        wait_for(lambda: sum(one.end for one in catalog.bounds(queues).values()) == COUNT, "all of it is shown", 120)
        bounds = catalog.bounds(queues)
        (broker,) = catalog.brokers()
        ranges = tuple(QueueRange(queue, bounds[queue].begin, bounds[queue].end) for queue in queues)
        task = Task(broker, catalog.replicas(broker), way, ranges, COLUMNS)
        places = catalog.physical({one.queue: one.begin for one in ranges})
        log = catalog.logs([broker])[broker]

    rows = rows_of(task, settings)

    found = {(row["topic"], row["queue"], row["offset"]): row for row in rows}
    assert [(row["topic"], row["queue"], row["offset"]) for row in rows] == sorted(found)
    assert len(rows) == COUNT
    for message, receipt in apache.sent:
        row = found[receipt.queue.topic, receipt.queue.queue_id, receipt.queue_offset]
        assert (row["body"], row["tags"], row["keys"]) == (message.body, message.tags, " ".join(message.keys))
        assert row["messageId"] == receipt.message_id
        assert dict(row["properties"]).items() >= message.properties.items()
        assert row["bodySize"] == (len(zlib.compress(message.body, 5)) if row["sysFlag"] & 1 else len(message.body))
    assert any(row["sysFlag"] & 1 for row in rows), "expected some compressed bodies"
    first = {one.queue: found[one.queue.topic, one.queue.number, one.begin] for one in ranges}
    assert {queue: place for queue, (place, _) in places.items()} == {
        queue: row["physicalOffset"] for queue, row in first.items()
    }
    assert log.epochs == () and log.end > max(row["physicalOffset"] for row in rows)


def test_tags_times_and_groups_work_with_apaches_broker(apache: Apache) -> None:
    """Filtered rows are those with the tag; offsets by time and of groups are the broker's own."""
    settings = settings_of(apache, TransportKind.PULL)
    with Catalog(settings) as catalog:
        queues = catalog.queues(["orders"])
        wait_for(lambda: sum(one.end for one in catalog.bounds(queues).values()) == COUNT * 9 // 10, "shown", 120)
        bounds = catalog.bounds(queues)
        ranges = tuple(QueueRange(queue, bounds[queue].begin, bounds[queue].end) for queue in queues)
        (broker,) = catalog.brokers()
        task = Task(broker, catalog.replicas(broker), settings.transport, ranges, COLUMNS, frozenset({"red", "blue"}))
        rows = rows_of(task, settings)

        assert sorted(row["body"] for row in rows) == sorted(
            message.body for message, _ in apache.sent if message.topic == "orders" and message.tags != "green"
        )
        assert catalog.offsets_at(queues, 0) == dict.fromkeys(queues, 0)
        assert catalog.group_offsets("unknown-group", queues) == dict.fromkeys(queues)
        catalog.commit_group("archive", {queues[0]: 3})
        assert catalog.group_offsets("archive", queues)[queues[0]] == 3
