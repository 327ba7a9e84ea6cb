"""Fair reading: how many bytes a port takes in one turn of the event loop, and which connections are read in it.

A turn takes `ListenerSettings.turn_read_bytes_max` of a port, however many connections have sent something. What is
read beyond it is kept, and its connection waits in a queue with its reading paused. So does a connection that has
delivered its own share of a turn (`turn_bytes_max`), and, while others wait, every connection whose read was large: the
bytes of those that wait are then in the kernel and not in the broker's memory. Each turn serves the queue in order:

    turn n     served: A B C D, then new reads     waiting: E F G, and every new read beyond the budget
    turn n+1   served: E F G A                     waiting: B C D, ...

Short reads (below `COUNTED_READ_BYTES`) have a budget of the same size and a queue of their own. A connection that
sends little is therefore served in the turn in which its request arrives, unless the short requests of others fill that
turn; it never waits for large ones.

Counting is two additions for a short read and a few for a large one, and costs at most one callback for each turn.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, final

COUNTED_READ_BYTES: Final = 16 * 1024
"""Shorter reads are not counted one by one: a loop reads a socket twice in a turn only if the first read has filled its
buffer, which is larger. So such a connection never needs a bound of its own."""

SHORT_READS_STEP: Final = 64 * 1024
"""Short reads are counted when their sum reaches this, so that a few small requests schedule no callback. The sum may
span several turns: a turn can be charged with this much too much, and never with too little."""


class BusyConnection(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self, kept_bytes: int) -> None:
        """Serve what was kept of this connection, or else read it again. Never raises."""


class _Waiting(NamedTuple):
    connection: BusyConnection
    kept_bytes: int
    """What was read of it already; 0 if its bytes are in the kernel."""


@final
class _Lane:
    """One budget and its queue."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: Final = bytes_max
        self.taken_bytes = 0
        self.waiting: Final[deque[_Waiting]] = deque()

    def begin(self, unread_bytes: int) -> bool:
        """Serve the queue as far as the budget reaches. Whether anything was served or still waits."""
        count = len(self.waiting)
        self.taken_bytes = 0
        for _ in range(count):
            if self.taken_bytes >= self.bytes_max:
                break
            connection, kept_bytes = self.waiting.popleft()
            self.taken_bytes += kept_bytes or unread_bytes
            connection.take_turn(kept_bytes)
        return count > 0


@final
class ReadTurns:
    """The budget and the queues of one port. Owned by the event loop."""

    def __init__(self, connections_max: int, bytes_max: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.number = 0
        """The present turn."""
        self.short_bytes = 0
        """Short reads that are not counted yet; connections add to it."""
        self._unread_bytes: Final = max(1, bytes_max // connections_max)
        self._large: Final = _Lane(bytes_max)
        self._short: Final = _Lane(bytes_max)
        self._call_soon = call_soon
        self._is_scheduled = False

    def __repr__(self) -> str:
        waiting = len(self._large.waiting) + len(self._short.waiting)
        return f"<ReadTurns number={self.number} taken={self._large.taken_bytes} waiting={waiting}>"

    @property
    def has_waiting(self) -> bool:
        """Whether connections with large reads wait."""
        return bool(self._large.waiting)

    def take_large(self, size: int) -> bool:
        """Whether a read of `size` bytes may be served in this turn; it is counted if so."""
        large = self._large
        if large.taken_bytes >= large.bytes_max:
            return False
        large.taken_bytes += size
        if not self._is_scheduled:
            self._schedule()
        return True

    def take_short(self) -> bool:
        """Count what short reads have added up to. Whether the last one may be served in this turn."""
        short = self._short
        if short.taken_bytes >= short.bytes_max:
            return False
        short.taken_bytes += self.short_bytes
        self.short_bytes = 0
        self._schedule()
        return True

    def wait(self, connection: BusyConnection, kept_bytes: int = 0, *, is_short: bool = False) -> None:
        """Have `connection` take its turn when those before it have taken theirs, in the next turn at the earliest."""
        lane = self._short if is_short else self._large
        lane.waiting.append(_Waiting(connection, kept_bytes))
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._begin)  # from a callback: it runs in the next turn, before those of its reads

    def _begin(self) -> None:
        self._is_scheduled = False
        self.number += 1
        is_short_busy = self._short.begin(self._unread_bytes)
        is_large_busy = self._large.begin(self._unread_bytes)
        if is_short_busy or is_large_busy:
            self._schedule()
