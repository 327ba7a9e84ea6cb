"""A bounded number of places, given in the order of asking.

asyncio's semaphore looks through all its waiters whenever one is woken, which is quadratic for the thousands of sends
that may wait here. This one hands the place over directly and touches each waiter once.
"""

import asyncio
from collections import deque
from typing import final


@final
class Slots:
    """`count` places. Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"<Slots free={self._free} waiting={len(self._waiting)}>"

    def take_if_free(self) -> bool:
        """Take a place if one is free and nobody waits."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a place when it is one's turn."""
        if self.take_if_free():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # The place had been handed over already; the next one must have it.
            raise

    def give(self) -> None:
        """Give a place back; it goes to whoever has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
