"""Byte budgets: the memory of all connections of a port for one purpose, and which connections are closed beyond it.

A limit for each connection does not bound a port: 8,000 connections times 16 MiB of an unfinished frame are 125 GiB. A
port has one budget for unfinished frames and one for unread replies, and both apply before a peer has authenticated. A
third one is for the unfinished frames of connections that have not authenticated, where that is required.

Accounting must not slow the path of a message. `add` only sums up the bytes that were taken; bytes that are released
are not reported. When that sum could have reached the budget, every connection is measured once, and only if they
really hold too much some are closed:

    0 ......... 7/8 budget ......... budget ......... 9/8 budget
                ^ closed down to      ^ closed from    ^ never more, except for the bytes of one read or one reply

Connections are closed in the order of their cost: bytes times the seconds for which they have been held, so the largest
and oldest go first. An honest frame of 4 MiB that is half a second old costs less than 100 KiB that have been held for
half a minute. A tenth of a second is added to every age, so that among new ones the largest goes.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol, final

from gantry_remoting.close_log import CloseReason

COUNTED_WRITE_BYTES: Final = 64 * 1024
"""Shorter writes are not counted in a turn: small replies then cost no callback."""
AGE_OFFSET_S: Final = 0.1
"""Added to every age, so that a new holding is judged by its size alone."""


class Holder(Protocol):
    """A connection, as a budget uses it."""

    def evict(self, reason: CloseReason) -> None:
        """Close the connection now and free its memory."""


class Holding(NamedTuple):
    """The bytes that one connection holds now."""

    holder: Holder
    held_bytes: int
    """How many bytes it holds for the budget's purpose."""

    since: float
    """When it took the oldest of these bytes, in the loop's time."""


@final
class ByteBudget:
    """The byte budget of one port for one purpose. Owned by the event loop."""

    def __init__(
        self,
        bytes_max: int,
        reason: CloseReason,
        measure: Callable[[], Iterable[Holding]],
        now: Callable[[], float],
    ) -> None:
        """Create a budget. ``measure`` lists what connections hold now; evicted ones are closed for ``reason``."""
        self.bytes_max: Final = bytes_max
        self._reason = reason
        self._measure = measure
        self._now = now
        self._claimed_bytes = 0
        self._next_measure_bytes = bytes_max

    def __repr__(self) -> str:
        return f"<ByteBudget claimed={self._claimed_bytes} max={self.bytes_max}>"

    def add(self, count: int) -> None:
        """Count bytes that a connection has taken. May close connections, including the caller's own."""
        self._claimed_bytes += count
        if self._claimed_bytes > self._next_measure_bytes:
            self._enforce()

    @property
    def held_bytes(self) -> int:
        """Return the bytes that all connections hold now, by measuring."""
        return sum(holding.held_bytes for holding in self._measure())

    def _enforce(self) -> None:
        holdings = list(self._measure())
        held_bytes = sum(holding.held_bytes for holding in holdings)
        if held_bytes > self.bytes_max:
            held_bytes = self._evict_costliest(holdings, held_bytes)
        self._claimed_bytes = held_bytes
        self._next_measure_bytes = max(self.bytes_max, held_bytes + self.bytes_max // 8)

    def _evict_costliest(self, holdings: list[Holding], held_bytes: int) -> int:
        """Close the most costly connections until an eighth is free, so that not every read has to do it."""
        now = self._now()
        holdings.sort(key=lambda holding: holding.held_bytes * (AGE_OFFSET_S + now - holding.since), reverse=True)
        for holding in holdings:
            if held_bytes <= self.bytes_max - self.bytes_max // 8:
                break
            holding.holder.evict(self._reason)
            held_bytes -= holding.held_bytes
        return held_bytes


class Deferred(Protocol):
    """A connection with requests that wait for a turn of the loop."""

    def resume(self) -> None:
        """Handle the requests that wait."""


@final
class ReplyTurns:
    """The bytes that a port writes in one turn of the loop, and the connections that wait for the next turn.

    Owned by the event loop. Small requests may ask for replies of many megabytes, and a budget frees the memory of
    closed connections only when the turn ends. So a turn has a bound, and requests beyond it wait in one queue, first
    come, first served: connections that always have more requests go to its end, and none is starved.
    """

    def __init__(self, bytes_max: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.is_full = False
        """Whether no more requests should be handled in this turn."""
        self._bytes_max: Final = bytes_max
        self._call_soon = call_soon
        self._written_bytes = 0
        self._is_scheduled = False
        self._waiting: OrderedDict[Deferred, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ReplyTurns written={self._written_bytes} waiting={len(self._waiting)}>"

    def add(self, count: int) -> None:
        """Count a write of at least COUNTED_WRITE_BYTES in this turn."""
        self._written_bytes += count
        self.is_full = self._written_bytes >= self._bytes_max
        self._schedule()

    def enqueue(self, connection: Deferred) -> None:
        """Add `connection` to the queue; it is resumed in one of the next turns, once."""
        self._waiting.setdefault(connection, None)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a turn: waiting connections are served before those that are read in it."""
        self._is_scheduled = False
        self._written_bytes, self.is_full = 0, False
        for _ in range(len(self._waiting)):
            if self.is_full:
                break
            self._waiting.popitem(last=False)[0].resume()
        if self._waiting:
            self._schedule()
