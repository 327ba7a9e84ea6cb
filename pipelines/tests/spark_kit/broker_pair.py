"""A real master and a real slave with their sidecars, and stores that they have written: `gantry up`, small files.

The messages are of many kinds: with and without tags, delayed, in several topics and queues, from a few bytes to some
thousands, and of a topic that was deleted and created again. A seed determines them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from local_group_kit import FREE_PORTS, Group

from gantry_client import Admin, Message, Producer
from pyspark_rocketmq.model import Replica

TOPICS: Final = ("orders", "payments", "audit_trail")
RECREATED_TOPIC: Final = "lived_twice"
QUIET_S: Final = 3.0
"""Longer than the delay of delayed messages, and than the age of an observation of the group."""
BROKER_SETTINGS: Final = (
    '{diskMaxUsedSpaceRatio: "95", diskSpaceCleanForciblyRatio: "99", diskSpaceWarningLevelRatio: "99",'
    ' waitTimeMillsInSendQueue: "60000", maxHashSlotNum: "1000", maxIndexNum: "4000",'
    ' mappedFileSizeConsumeQueue: "20000"}'
)


def messages(seed: int, count: int) -> Iterator[Message]:
    """Yield the messages of a seed."""
    rng = random.Random(seed)
    for number in range(count):
        topic = rng.choices(TOPICS, (6, 3, 1))[0]
        body = rng.randbytes(rng.choice((8, 100, 700, 3_000)))
        tags = rng.choice((None, "paid", "sent", "Ä-lost"))
        level = 1 if rng.random() < 0.02 else 0
        yield Message(topic, body, tags=tags, keys=(f"key-{rng.randrange(50)}", f"n{number}"), delay_level=level)


async def send_all(name_servers: str, seed: int, count: int) -> None:
    """Send the messages of a seed in their order; a refused message is an error."""
    async with Producer(name_servers) as producer:
        pending: list[Message] = []
        for message in messages(seed, count):
            pending.append(message)
            if len(pending) == 64:
                await asyncio.gather(*(producer.send(one) for one in pending))
                pending = []
        await asyncio.gather(*(producer.send(one) for one in pending))


async def send_to_recreated_topic(name_servers: str, count: int) -> None:
    """Send to a topic that is deleted and created again: offsets begin at 0, and older records have no units."""
    async with Admin(name_servers) as admin, Producer(name_servers) as producer:
        for life in (1, 2):
            await admin.topics.create(RECREATED_TOPIC, queues=2)
            for number in range(count * life):
                await producer.send(Message(RECREATED_TOPIC, b"life %d, number %d" % (life, number), tags="once"))
            if life == 1:
                await admin.topics.delete(RECREATED_TOPIC)


async def delete_topic(name_servers: str, topic: str) -> None:
    """Delete a topic; its messages stay in the log until they expire."""
    async with Admin(name_servers) as admin:
        await admin.topics.delete(topic)


@contextmanager
def running_pair(folder: Path, *, segment: str = "1Mi") -> Iterator[Group]:
    """Run a group of a master and a slave that are in sync; it is stopped at the end."""
    group = Group(folder, broker=BROKER_SETTINGS, writeBuffer=f'{{medium: "Off", segmentSize: {segment}}}')
    group.up(*FREE_PORTS)
    try:
        group.wait_until(group.is_healthy)
        yield group
    finally:
        group.down()


def wait_until_quiescent(group: Group) -> None:
    """Wait until delayed messages are delivered and everything is confirmed: then all units are written."""
    since, seen = time.monotonic(), ""

    def is_quiescent() -> bool:
        nonlocal since, seen
        now = str(sorted((one.name, one.wrote, one.confirmed) for one in group.status().members))
        is_confirmed = all(one.wrote == one.confirmed for one in group.status().members)
        if now != seen or not is_confirmed:
            since, seen = time.monotonic(), now
        return time.monotonic() - since > QUIET_S

    group.wait_until(is_quiescent)


def write_pair(folder: Path, *, seed: int, count: int) -> tuple[Path, Path]:
    """Return the stores of a master and a slave that were written together and stopped cleanly."""
    with running_pair(folder) as group:
        asyncio.run(send_all(group.name_server, seed, count))
        asyncio.run(send_to_recreated_topic(group.name_server, 20))
        group.wait_until(group.is_healthy)
        wait_until_quiescent(group)
    stores = tuple(group.state.store(0, number) for number in (1, 2))
    return stores[0], stores[1]


def directories(master: Path, slave: Path, broker: str = "broker-a") -> tuple[Replica, ...]:
    """Return the two stores as replicas that are read by their files."""
    return tuple(
        Replica(broker, number, "127.0.0.1:1", directory=str(path)) for number, path in enumerate((master, slave))
    )


def sidecars(group: Group, broker: str = "crew-0") -> tuple[Replica, ...]:
    """Return the members of a running group as replicas that are read through their sidecars."""
    members = sorted(group.record.members, key=lambda one: one.number)
    return tuple(Replica(broker, one.number - 1, "127.0.0.1:1", sidecar=one.sidecar_url) for one in members)


def copy_store(store: Path, target: Path) -> Path:
    """Copy a store to a directory in which it may be corrupted."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(store, target, ignore=shutil.ignore_patterns("*.sock", "lock"))
    return target
