"""A store directory, written by the broker's own store, with a status page if a test wants one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gantry_status import PageWriter, Phase, Status, new_origin
from gantry_testing.store_world import StoreWorld, make_world
from pyspark_rocketmq.model import QueueId, QueueRange, Replica, Task, TransportKind
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.settings import ReadSettings

BROKER = "broker-a"


def written_store(folder: Path, count: int = 120) -> StoreWorld:
    """Write messages to three queues of two topics, over several log files, and close the store."""
    folder.mkdir(parents=True, exist_ok=True)
    world = make_world("real", folder)
    world.open()
    for number in range(count):
        topic, queue = (("orders", 0), ("orders", 1), ("bills", 0))[number % 3]
        tag = ("red", "green", None)[number % 5 % 3]
        world.append([world.draft(topic, queue, tag=tag, body=b"body %d " % number + b"x" * (number % 300))])
        world.clock.advance(10)
    world.close()
    return world


def ranges_of(world: StoreWorld, *topics: str) -> tuple[QueueRange, ...]:
    """Return the ranges of everything that was sent to some topics (or to all)."""
    counts: dict[QueueId, int] = {}
    for _, topic, number, _, _ in world.sent:
        if not topics or topic in topics:
            queue = QueueId(topic, BROKER, number)
            counts[queue] = counts.get(queue, 0) + 1
    return tuple(QueueRange(queue, 0, count) for queue, count in sorted(counts.items()))


def settings_of(*stores: StoreWorld, **more: Any) -> ReadSettings:
    """Return settings for reading only directories; the first store is the master's."""
    directories = {f"{BROKER}:{number}": world.root for number, world in enumerate(stores)}
    given: dict[str, Any] = {"name_servers": "", "directories": directories, "patience_ms": 0}
    return ReadSettings(**given | more)


def replicas_of(*stores: StoreWorld) -> tuple[Replica, ...]:
    return tuple(Replica(BROKER, number, "", directory=world.root) for number, world in enumerate(stores))


def task_of(*stores: StoreWorld, ranges: tuple[QueueRange, ...] | None = None, **more: Any) -> Task:
    """Return a task for a whole store, or some ranges of it, from these replicas in turn."""
    wanted = ranges_of(stores[0]) if ranges is None else ranges
    given: dict[str, Any] = {"transport": TransportKind.FILE, "columns": COLUMNS} | more
    return Task(BROKER, replicas_of(*stores), ranges=wanted, **given)


def rows_of(task: Task, settings: ReadSettings) -> list[dict[str, Any]]:
    return [row for batch in read_task(task, settings) for row in batch.to_pylist()]


def places_of(rows: list[dict[str, Any]]) -> list[tuple[str, int, int, bytes]]:
    return [(row["topic"], row["queue"], row["offset"], row["body"]) for row in rows]


def sent_places(world: StoreWorld, *topics: str) -> list[tuple[str, int, int, bytes]]:
    """Return topic, queue, offset and body of the sent messages, in the order of the log."""
    return [
        (topic, queue, offset, body) for _, topic, queue, offset, body in world.sent if not topics or topic in topics
    ]


@contextmanager
def page_over(world: StoreWorld, **facts: int | None) -> Iterator[PageWriter]:
    """Write a status page for a store, as its broker publishes it."""
    status = Status(
        published_boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        published_wall_ms=int(time.time() * 1000),
        phase=Phase.SERVING,
        **facts,  # type: ignore[arg-type]
    )
    writer = PageWriter(f"{world.root}/status", new_origin(BROKER, "0.1.0"), status)
    try:
        yield writer
    finally:
        writer.close()
