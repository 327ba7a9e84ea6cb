"""The messages of one queue that are fetched and not done, and the offset up to which the group may commit.

    | ...... done ...... | x . . x . | ..... not fetched .....
                         ^           ^
                         commit      next_offset          x: not done   .: done out of order

Only the prefix in which everything is done may be committed: a consumer that starts from there after a crash receives
every message that was not done, and some messages twice. A backlog is dropped when its queue is released; messages
whose handler has not started then are left to the new owner.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from gantry_client.clock import wall_ms
from gantry_client.messages import ReceivedMessage


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogLimits:
    """Limits on the messages of one queue that are fetched and not done."""

    messages_max: int
    """The number of messages at which fetching pauses."""

    bytes_max: int
    """The number of body bytes at which fetching pauses."""

    span_max: int
    """The maximum distance between the committed offset and the next fetch. It bounds the redelivery that one stuck
    message causes."""


@final
class Backlog:
    """The fetched messages of one queue that are not done. Belongs to one event loop."""

    def __init__(self, start_offset: int) -> None:
        self.next_offset = start_offset
        """The offset at which the next fetch begins."""
        self.is_dropped = False
        """Whether the queue was released, so that no further handler starts."""
        self._sizes: dict[int, int] = {}
        """The body size of every message that is not done, by offset."""
        self._order: deque[int] = deque()
        """Offsets in the order of fetching, without the done ones at the front."""
        self._bytes = 0
        self.handler_started_at_ms = wall_ms()
        """The wall time at which a handler last started; initially the time of creation."""

        self._running = 0
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = " dropped" if self.is_dropped else ""
        return (
            f"<Backlog [{self.commit_offset}, {self.next_offset}) messages={self.messages}"
            f" running={self._running}{state}>"
        )

    @property
    def messages(self) -> int:
        """The number of messages that are not done."""
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        """The body bytes of the messages that are not done."""
        return self._bytes

    @property
    def span(self) -> tuple[int, int] | None:
        """The offsets of the first and the last message that are not done; None without messages."""
        return (self._order[0], max(self._sizes)) if self._sizes else None

    @property
    def commit_offset(self) -> int:
        """The offset to commit: every message below it is done."""
        return self._order[0] if self._order else self.next_offset

    @property
    def is_idle(self) -> bool:
        """Whether no handler is running."""
        return self._running == 0

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Add fetched messages; the next fetch begins at `next_offset`."""
        for message in messages:
            self._sizes[message.queue_offset] = len(message.stored_body)
            self._bytes += len(message.stored_body)
            self._order.append(message.queue_offset)
        self.next_offset = next_offset

    def start_handler(self) -> None:
        """Record that a handler starts on one of the messages."""
        self.handler_started_at_ms = wall_ms()
        self._running += 1

    def end_handler(self) -> None:
        """Record that a handler has ended, with success or failure."""
        self._running -= 1
        self._changed.set()

    def mark_done(self, offset: int) -> None:
        """Record that the message at `offset` is consumed, accepted by the broker for redelivery, or dropped."""
        self._bytes -= self._sizes.pop(offset, 0)
        while self._order and self._order[0] not in self._sizes:
            self._order.popleft()
        self._changed.set()

    def drop(self) -> None:
        """Release the queue: no further handler starts."""
        self.is_dropped = True
        self._changed.set()

    def has_room(self, limits: BacklogLimits) -> bool:
        return (
            len(self._sizes) < limits.messages_max
            and self._bytes < limits.bytes_max
            and self.next_offset - self.commit_offset < limits.span_max
        )

    async def wait_for_room(self, limits: BacklogLimits) -> None:
        """Wait until there is room for another fetch, or the backlog is dropped."""
        while not self.is_dropped and not self.has_room(limits):
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_idle(self) -> None:
        """Wait until no handler is running."""
        while self._running:
            self._changed.clear()
            await self._changed.wait()
