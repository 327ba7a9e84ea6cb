"""A bounded number of places for a bounded number of bytes, given in the order of asking.

asyncio's semaphore looks through all its waiters whenever one is woken, which is quadratic for the thousands of sends
that may wait here. This one hands places over directly and touches each waiter once.
"""

import asyncio
from collections import deque
from typing import final


@final
class Slots:
    """`count` places that hold `bytes_max` bytes together. Belongs to one event loop."""

    def __init__(self, count: int, bytes_max: int) -> None:
        self._count = count
        self._bytes_max = bytes_max
        self.taken = 0
        self.taken_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def __repr__(self) -> str:
        return f"<Slots taken={self.taken} bytes={self.taken_bytes} waiting={len(self._waiting)}>"

    def take_if_free(self, size: int) -> bool:
        """Take a place for `size` bytes if there is one and nobody waits."""
        if self._waiting or not self._has_room(size):
            return False
        self._enter(size)
        return True

    async def take(self, size: int) -> None:
        """Take a place for `size` bytes when it is one's turn."""
        if self.take_if_free(size):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)  # The place had been handed over already; the next one must have it.
            else:
                self._hand_over()  # A large one that gives up may have kept smaller ones waiting.
            raise

    def give(self, size: int) -> None:
        """Give a place back; those who have waited longest get what is free."""
        self.taken -= 1
        self.taken_bytes -= size
        self._hand_over()

    def _hand_over(self) -> None:
        while self._waiting:
            turn, size = self._waiting[0]
            if turn.done():
                self._waiting.popleft()
            elif self._has_room(size):
                self._waiting.popleft()
                self._enter(size)
                turn.set_result(None)
            else:
                return

    def _has_room(self, size: int) -> bool:
        """One alone always has: a message larger than the limit would otherwise wait for ever."""
        if self.taken == 0:
            return True
        return self.taken < self._count and self.taken_bytes + size <= self._bytes_max

    def _enter(self, size: int) -> None:
        self.taken += 1
        self.taken_bytes += size
