"""Clients of the scenarios: numbered messages are sent, and all messages of a topic are read.

    body = "NUMBER" of a send; an answer is kept with its status, or the name of the exception

Both systems get the same client, `gantry_client`, so that a difference is one of the servers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from gantry_client import (
    Admin,
    ClientError,
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    ReceivedMessage,
    SendStatus,
)

TOPIC: Final = "museum"
QUEUES: Final = 4
SEND_TIMEOUT_MS: Final = 20_000
"""Longer than a broker waits for a flush or for a slave, so that its own answer arrives."""


@final
@dataclass(frozen=True)
class Sent:
    """One send and its answer."""

    number: int
    answer: str
    """A status, or the name of the exception."""

    at: float
    """When it was answered, in seconds of the monotonic clock."""

    @property
    def is_acknowledged(self) -> bool:
        return self.answer == SendStatus.SEND_OK.name


def producer(name_server: str) -> Producer:
    """Return a producer that reports the first answer of the broker, without retries."""
    return Producer(
        name_server, "museum-producer", settings=ProducerSettings(send_timeout_ms=SEND_TIMEOUT_MS, retries=0)
    )


async def create_topic(name_server: str, topic: str = TOPIC, queues: int = QUEUES) -> None:
    """Create a topic, and wait for its route."""
    async with Admin(name_server) as admin:
        await admin.topics.create(topic, queues=queues)


async def send_one(sender: Producer, number: int, topic: str = TOPIC) -> Sent:
    """Send one message; an error is an answer, too."""
    try:
        receipt = await sender.send(Message(topic, str(number).encode()))
    except ClientError as error:
        return Sent(number, type(error).__name__, time.monotonic())
    return Sent(number, receipt.status.name, time.monotonic())


async def send_many(sender: Producer, numbers: Sequence[int], topic: str = TOPIC) -> list[Sent]:
    """Send messages at the same time."""
    return list(await asyncio.gather(*(send_one(sender, number, topic) for number in numbers)))


def count_answers(sent: Sequence[Sent]) -> str:
    """Return how often each answer came, as text."""
    counts = Counter(one.answer for one in sent)
    return ", ".join(f"{counts[answer]:,} {answer}" for answer in sorted(counts))


async def read_queue(consumer: PullConsumer, queue: MessageQueue) -> list[ReceivedMessage]:
    """Return all messages of a queue that consumers can read."""
    offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    found: list[ReceivedMessage] = []
    while offset < end:
        result = await consumer.fetch(queue, offset)
        found += result.messages
        offset = result.next_offset
    return found


async def read_topic(name_server: str, topic: str = TOPIC) -> list[ReceivedMessage]:
    """Return all messages of a topic."""
    async with PullConsumer(name_server, "museum-reader") as consumer:
        return [one for queue in await consumer.queues(topic) for one in await read_queue(consumer, queue)]


def numbers_of(messages: Sequence[ReceivedMessage]) -> set[int]:
    """Return the numbers of messages that `send_one` sent."""
    return {int(one.body) for one in messages}
