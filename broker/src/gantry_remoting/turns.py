"""Whose turn it is to be read: a bounded number of busy connections in each turn of the event loop.

A connection that delivers more than its share of a turn waits for the next one (`ListenerSettings.turn_bytes_max`).
With many of them a turn would still be long, so only the first few of those that wait are read in it, in the order in
which they were cut. Connections that send little are never in this queue, and are read in every turn.

    turn n     read: A B C D, and all small ones      waiting: E F G
    turn n+1   read: E F G A, and all small ones      waiting: B C D
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final


class BusyConnection(Protocol):
    """A connection that has more to deliver."""

    def read_again(self) -> None:
        """Its turn has come. Never raises."""


@final
class ReadTurns:
    """The busy connections of one port. Owned by the event loop."""

    def __init__(self, connections_max: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._connections_max: Final = connections_max
        self._call_soon = call_soon
        self._waiting: deque[BusyConnection] = deque()
        self._resumed = 0
        self._is_scheduled = False

    def __repr__(self) -> str:
        return f"<ReadTurns resumed={self._resumed} waiting={len(self._waiting)}>"

    def wait(self, connection: BusyConnection) -> None:
        """Have `connection` read in this turn if there is a place, else in one of the next."""
        if self._waiting or self._resumed >= self._connections_max:
            self._waiting.append(connection)
        else:
            self._resumed += 1
            connection.read_again()
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._begin)  # from a callback: it runs in the next turn, before those of its reads

    def _begin(self) -> None:
        self._is_scheduled = False
        self._resumed = min(len(self._waiting), self._connections_max)
        for _ in range(self._resumed):
            self._waiting.popleft().read_again()
        if self._resumed:
            self._schedule()
