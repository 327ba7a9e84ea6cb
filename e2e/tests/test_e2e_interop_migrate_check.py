"""`gantry pipeline migrate-check` between Apache's broker and ours: first equal, then different."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gantry_interop import peers
from gantry_interop.processes import Nursery

from gantry_client import Admin, Message, Producer, PullConsumer
from gantry_wire.commands.clients import MessageQueue

pytestmark = [pytest.mark.needs_java, pytest.mark.needs_spark, pytest.mark.slow]

TOPICS = ("check_orders", "check_mail")
GROUP = "check_group"
QUEUES = 4
MESSAGES = 400
RUN_SECONDS_MAX = 1_200.0


async def fill(address: str, broker: str, first: int, count: int, *, spoilt: int = -1) -> None:
    """Send the same messages to the same queues; the message with the number `spoilt` differs."""
    async with Producer(address, "check-p") as producer:
        for number in range(first, first + count):
            topic = TOPICS[number % 2]
            body = b"another one" if number == spoilt else b"number %d " % number * 20
            message = Message(topic, body, tags="even" if number % 4 else None, keys=(f"k{number}",),
                              properties={"region": f"r{number % 3}"})  # fmt: skip
            await producer.send(
                message, queue=MessageQueue(topic=topic, broker_name=broker, queue_id=number // 2 % QUEUES)
            )


async def prepare(address: str) -> None:
    async with Admin(address) as admin:
        for topic in TOPICS:
            await admin.topics.create(topic, queues=QUEUES)


async def consume(address: str, offset: int) -> None:
    """Let a group consume up to this offset in each queue."""
    async with PullConsumer(address, GROUP) as consumer:
        for topic in TOPICS:
            for queue in await consumer.queues(topic):
                await consumer.commit(queue, offset)


def check(theirs: peers.Peer, ours: peers.Peer, folder: Path, *more: str) -> tuple[int, dict[str, object]]:
    """Run the command as a user does."""
    sets = [
        f"source.nameServers=[{theirs.address}]", f"nameServers=[{ours.address}]", f"runtime.destination={folder}",
        "topics.include=['check_.*']", f"consumerGroups=[{GROUP}]", "engine.cores=2", *more,
    ]  # fmt: skip
    words = [part for one in sets for part in ("--set", one)]
    done = subprocess.run(
        [sys.executable, "-m", "gantry_pipelines", "migrate-check", *words],
        capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    return done.returncode, json.loads((folder / "migrate-check.json").read_text())


def test_apaches_cluster_and_ours_are_compared_topic_by_topic(tmp_path: Path) -> None:
    """The exit code is 0 if messages and offsets are equal, and 1 after a change.

    The report has the place of a different message, of a missing one, and of a group that is behind. Apache's broker
    is only read.
    """
    with Nursery(tmp_path / "logs") as nursery:
        theirs = peers.start("apache", nursery, peers.Layout(tmp_path / "apache"))
        ours = peers.start("gantry", nursery, peers.Layout(tmp_path / "ours", settings={"brokerName": "broker-z"}))
        for peer, broker in ((theirs, "broker-a"), (ours, "broker-z")):
            asyncio.run(prepare(peer.address))
            asyncio.run(fill(peer.address, broker, 0, MESSAGES))
            asyncio.run(consume(peer.address, 30))
        same, document = check(theirs, ours, tmp_path / "same")
        asyncio.run(fill(theirs.address, "broker-a", MESSAGES, 9))
        asyncio.run(fill(ours.address, "broker-z", MESSAGES, 8, spoilt=MESSAGES + 2))
        asyncio.run(consume(theirs.address, 40))
        differs, found = check(theirs, ours, tmp_path / "differs")

    assert (same, document["verdict"], document["messages"]) == (0, "Same", MESSAGES)
    assert differs == 1
    assert found["byKind"] == {"content": 1, "fewer-messages": 1, "group-behind": 2 * QUEUES}
    [content] = [line for line in found["first"] if str(line).startswith("content")]  # type: ignore[attr-defined]
    assert "check_orders/broker-z/1" in content
