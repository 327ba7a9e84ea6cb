"""What was fetched of one queue and is not done, and therefore how far the group may be committed.

    | ...... done ...... | x . . x . | ..... not fetched .....
                         ^           ^
                         commit      next_offset          x: not done   .: done out of turn

Only the prefix in which everything is done may be committed: whoever goes on from there after a crash meets every
message that was not done. It costs that some are met twice. A backlog is dropped when its queue is given away; what
was not begun then is left to the new owner.
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
    """How much of one queue may be fetched and not done."""

    messages_max: int
    bytes_max: int
    span_max: int
    """How far the next fetch may be ahead of the commit: one stuck message must not cost endless redelivery."""


@final
class Backlog:
    """The messages of one queue in hand. Belongs to one event loop."""

    def __init__(self, start_offset: int) -> None:
        self.next_offset = start_offset
        self.is_dropped = False
        self._sizes: dict[int, int] = {}
        """Bytes of every message that is not done, by offset."""
        self._order: deque[int] = deque()
        """Offsets as fetched; those at the front that are done are taken away."""
        self._bytes = 0
        self.begun_at_ms = wall_ms()
        """When a handler last began with one of the messages; at first, when all this began."""

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
        """Messages that are not done."""
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        """Bytes of their bodies."""
        return self._bytes

    @property
    def span(self) -> tuple[int, int] | None:
        """The offsets of the first and the last message that is not done."""
        return (self._order[0], max(self._sizes)) if self._sizes else None

    @property
    def commit_offset(self) -> int:
        """Everything below it is done."""
        return self._order[0] if self._order else self.next_offset

    @property
    def is_idle(self) -> bool:
        """Whether no handler runs."""
        return self._running == 0

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Take in what a fetch brought; the next one begins at `next_offset`."""
        for message in messages:
            self._sizes[message.queue_offset] = len(message.stored_body)
            self._bytes += len(message.stored_body)
            self._order.append(message.queue_offset)
        self.next_offset = next_offset

    def begin(self) -> None:
        """A handler starts with one of the messages."""
        self.begun_at_ms = wall_ms()
        self._running += 1

    def end(self) -> None:
        """That handler has ended, well or not."""
        self._running -= 1
        self._changed.set()

    def done(self, offset: int) -> None:
        """The message at `offset` is consumed, or in safe hands elsewhere."""
        self._bytes -= self._sizes.pop(offset, 0)
        while self._order and self._order[0] not in self._sizes:
            self._order.popleft()
        self._changed.set()

    def drop(self) -> None:
        """Give up the queue: nothing more is begun."""
        self.is_dropped = True
        self._changed.set()

    def has_room(self, limits: BacklogLimits) -> bool:
        return (
            len(self._sizes) < limits.messages_max
            and self._bytes < limits.bytes_max
            and self.next_offset - self.commit_offset < limits.span_max
        )

    async def wait_for_room(self, limits: BacklogLimits) -> None:
        """Return when another fetch may be made, or none is wanted any more."""
        while not self.is_dropped and not self.has_room(limits):
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_idle(self) -> None:
        """Return when no handler runs."""
        while self._running:
            self._changed.clear()
            await self._changed.wait()
