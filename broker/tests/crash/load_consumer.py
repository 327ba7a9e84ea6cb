"""A consumer under load: it pulls while the producers send, and remembers what it has read.

A consumer that has read a message continues after it. So what was visible must be stored after the crash, at the same
place, in every mode: even where acknowledged messages may be lost, no message that was visible may be lost.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, final

from crash.log_walk import Queue
from crash.producer import QUEUES, TOPICS
from crash.readback import pull

from gantry_remoting import CannotConnect, Channel, RemotingError
from gantry_wire.message import StoredMessage

PAUSE_S: Final = 0.01
"""Seconds between two rounds of pulls over all queues."""


class ReadRecord(NamedTuple):
    """The reply to a pull, or to several that read one queue to its end."""

    queue: Queue
    begin: int
    """The offset at which it begins."""

    messages: Sequence[StoredMessage]
    next_offset: int
    end: int
    """The end of the queue, from the reply."""

    connected_ns: int
    """When the connection was opened, in nanoseconds of this process's monotonic clock, like the next."""

    called_ns: int
    """When the request was made."""

    at_ns: int
    """When the reply arrived."""


@final
class LoadConsumer:
    """The consumer of one load. Owned by one event loop."""

    def __init__(self, stored: Mapping[Queue, Sequence[StoredMessage]]) -> None:
        """Create the consumer, which begins after the messages in `stored`."""
        self.consumed: dict[Queue, list[StoredMessage]] = {}
        self.reads: list[ReadRecord] = []
        """The replies to all pulls."""

        self._connected_ns = 0
        self._next_offsets = {
            (topic, queue_id): len(stored.get((topic, queue_id), ())) for topic in TOPICS for queue_id in range(QUEUES)
        }

    def __repr__(self) -> str:
        return f"<LoadConsumer consumed={sum(len(messages) for messages in self.consumed.values())}>"

    async def run(self, address: str) -> None:
        """Pull one queue after the other until the connection breaks."""
        try:
            channel = await Channel.connect(address)
        except CannotConnect:
            return
        self._connected_ns = time.monotonic_ns()
        try:
            while channel.is_open:
                for queue in self._next_offsets:
                    await self._pull_new(channel, queue)
                await asyncio.sleep(PAUSE_S)
        except RemotingError:
            return
        finally:
            await channel.close()

    async def _pull_new(self, channel: Channel, queue: Queue) -> None:
        begin, called_ns = self._next_offsets[queue], time.monotonic_ns()
        found = await pull(channel, queue, begin)
        self.reads.append(ReadRecord(
            queue, begin, found.messages, found.next_offset, found.max_offset, self._connected_ns, called_ns,
            time.monotonic_ns(),
        ))  # fmt: skip
        if found.messages:
            self.consumed.setdefault(queue, []).extend(found.messages)
        self._next_offsets[queue] = found.next_offset

    def missing(self, stored: Mapping[Queue, Sequence[StoredMessage]]) -> list[str]:
        """Return the messages that were read and are missing or different in `stored`."""
        return [
            f"{topic}/{queue_id} offset {message.queue_offset} at {message.physical_offset}"
            for (topic, queue_id), messages in self.consumed.items()
            for message in messages
            if message not in stored.get((topic, queue_id), ())[message.queue_offset : message.queue_offset + 1]
        ]
