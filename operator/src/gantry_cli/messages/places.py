"""The place of a stored message, as commands print it and take it back: `orders/broker-a/3@1200`."""

from __future__ import annotations

from typing import Final, NamedTuple

from gantry_cli.errors import InvalidInput
from gantry_client import MessageQueue, ReceivedMessage

PLACE_EXAMPLE: Final = "orders/broker-a/3@1200"


class Place(NamedTuple):
    """Where a message is: its topic, broker, queue and offset."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}@{self.offset}"

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)


def place_of(message: ReceivedMessage) -> Place:
    """Return the place of a message that was read."""
    queue = message.queue
    return Place(queue.topic, queue.broker_name, queue.queue_id, message.queue_offset)


def parse_place(text: str) -> Place:
    """Return the place that a text names. Raises InvalidInput."""
    topic, _, rest = text.partition("/")
    broker_name, _, numbers = rest.rpartition("/")
    queue_id, _, offset = numbers.partition("@")
    if not topic or not broker_name or not all(one.isascii() and one.isdigit() for one in (queue_id, offset)):
        raise InvalidInput(
            f"{text[:120]!r} is no place of a message; expected TOPIC/BROKER/QUEUE@OFFSET, as in {PLACE_EXAMPLE}, "
            "which `gantry search -v` prints"
        )
    return Place(topic, broker_name, int(queue_id), int(offset))
