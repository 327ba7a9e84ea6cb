"""Messages in lists, which a fake broker has instead of a commit log."""

import asyncio
from dataclasses import dataclass, field
from typing import final

from msgspec.structs import replace

from gantry_wire.filters import TagFilter
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, encode_record, record_size
from gantry_wire.properties import TAGS

FIRST_PHYSICAL_OFFSET = 4096
"""The first offset is not 0, so that a test detects an offset that was lost on the way."""

BODY_START = 88
"""The position of the body in a record with IPv4 hosts, as a fake broker writes them."""


@final
@dataclass(slots=True)
class FakeQueue:
    """One queue: the messages `[min_offset, max_offset)`."""

    messages: list[StoredMessage] = field(default_factory=list)
    min_offset: int = 0
    """Messages below it are expired: `messages` keeps them, but readers do not get them."""

    @property
    def max_offset(self) -> int:
        return len(self.messages)


@final
class FakeLog:
    """All queues of one fake broker, and the pulls that wait for them."""

    def __init__(self, store_host: bytes) -> None:
        self.store_host = store_host
        self._queues: dict[tuple[str, int], FakeQueue] = {}
        self._by_physical_offset: dict[int, StoredMessage] = {}
        self._end = FIRST_PHYSICAL_OFFSET
        self.damaged: set[tuple[str, int, int]] = set()
        """Topic, queue and offset of messages that are read with a flipped bit in their bodies."""
        self._arrived = asyncio.Event()

    def queue(self, topic: str, queue_id: int) -> FakeQueue:
        return self._queues.setdefault((topic, queue_id), FakeQueue())

    def all_messages(self, topic: str) -> list[StoredMessage]:
        """Return every message of `topic`, queue by queue."""
        return [
            message for (name, _), queue in sorted(self._queues.items()) if name == topic for message in queue.messages
        ]

    def at(self, physical_offset: int) -> StoredMessage | None:
        return self._by_physical_offset.get(physical_offset)

    def delete(self, topic: str) -> None:
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]

    def append(self, message: StoredMessage) -> StoredMessage:
        """Store `message` at the end of its queue and wake waiting pulls."""
        queue = self.queue(message.topic, message.queue_id)
        stored = replace(message, queue_offset=queue.max_offset, physical_offset=self._end, store_host=self.store_host)
        queue.messages.append(stored)
        self._by_physical_offset[self._end] = stored
        self._end += record_size(
            len(stored.body), len(stored.topic.encode()), len(stored.properties_bytes), stored.sys_flag
        )
        self.wake()
        return stored

    def wake(self) -> None:
        """Let every waiting pull check the queue again."""
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def wait_for_arrival(self, timeout_ms: int) -> None:
        """Return when any message is appended, or after `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._arrived.wait()
        except TimeoutError:
            return

    def read(self, queue: FakeQueue, offset: int, messages_max: int, tags: TagFilter) -> tuple[list[bytes], int]:
        """Return records from `offset` on whose hash matches `tags`, and the offset after the last record checked."""
        found: list[bytes] = []
        while offset < queue.max_offset and len(found) < messages_max:
            message = queue.messages[offset]
            offset += 1
            if tags.accepts_code(tags_code(message.properties.get(TAGS))):
                record = bytearray(encode_record(message))
                if (message.topic, message.queue_id, message.queue_offset) in self.damaged:
                    record[BODY_START] ^= 1
                found.append(bytes(record))
        return found, offset
