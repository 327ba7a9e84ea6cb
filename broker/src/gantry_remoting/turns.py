"""Fair reading: how many bytes a port takes in one turn of the event loop, and which connections are read in it.

A turn takes `ListenerSettings.turn_read_bytes_max` of a port, however many connections have sent something. Bytes that
are read beyond it are kept, and their connection waits in a queue with its reading paused. So does a connection that
has delivered its own share of a turn (`turn_bytes_max`), and, while others wait, every connection whose read was large:
the bytes of those that wait are then in the kernel and not in the broker's memory. Each turn serves the queue in order:

    turn n     served: A B C D, then new reads     waiting: E F G, and every new read beyond the budget
    turn n+1   served: E F G A                     waiting: B C D, ...

Short reads (below `COUNTED_READ_BYTES`) have a budget of the same size and a queue of their own. A connection that
sends little is therefore served in the turn in which its request arrives, unless the short requests of others, or the
replies of the port (`budgets.ReplyTurns`), fill that turn; it never waits for large reads.

Accounting is two additions for a short read and a few for a large one, and costs at most one callback for each turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntFlag
from typing import Final, NamedTuple, Protocol, final

COUNTED_READ_BYTES: Final = 16 * 1024
"""Shorter reads are not counted one by one: a loop reads a socket twice in a turn only if the first read has filled its
buffer, which is larger. So such a connection never needs a bound of its own."""

SHORT_READS_STEP: Final = 64 * 1024
"""Short reads are counted when their sum reaches this, so that a few small requests schedule no callback. The sum may
include reads of earlier turns, and the last reads of a turn may be counted in a later one: the count of a turn may be
wrong by this many bytes, in either direction."""


class ReadPause(IntFlag):
    """The reasons why a connection is not read. It is read again when no reason is left."""

    NONE = 0
    TURN_SPENT = 1
    """It waits for a later turn of the loop: it has delivered `turn_bytes_max` in this one, the port has taken
    `turn_read_bytes_max`, or its read was large and others wait."""
    REPLIES_UNREAD = 2
    """More reply bytes than `reply_bytes_high` wait for the peer."""
    PORT_BUSY = 4
    """Its requests wait for a turn in which the port has written less than `turn_reply_bytes_max`."""
    ANSWERS_DEFERRED = 8
    """Its next request waits until some of the earlier deferred answers are given (`deferred_answers`)."""


class BusyConnection(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self, kept_bytes: int) -> None:
        """Serve the kept bytes of this connection, or read it again. Never raises."""


class _Waiting(NamedTuple):
    connection: BusyConnection
    kept_bytes: int
    """The bytes of it that were already read; 0 if they are in the kernel."""


@final
class _Lane:
    """A budget with its queue."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: Final = bytes_max
        self.taken_bytes = 0
        self.waiting: Final[deque[_Waiting]] = deque()

    def begin(self, unread_bytes: int) -> bool:
        """Serve the queue as far as the budget allows. Return whether anything was served or still waits."""
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
        """The number of the present turn."""
        self.short_bytes = 0
        """The sum of short reads that are not counted yet; connections add to it."""
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
        """Return whether connections with large reads wait."""
        return bool(self._large.waiting)

    def take_large(self, size: int) -> bool:
        """Count a read of `size` bytes if it may be served in this turn, and return whether it may."""
        large = self._large
        if large.taken_bytes >= large.bytes_max:
            return False
        large.taken_bytes += size
        if not self._is_scheduled:
            self._schedule()
        return True

    def take_short(self) -> bool:
        """Count the sum of short reads. Return whether the last one may be served in this turn."""
        short = self._short
        if short.taken_bytes >= short.bytes_max:
            return False
        short.taken_bytes += self.short_bytes
        self.short_bytes = 0
        self._schedule()
        return True

    def enqueue(self, connection: BusyConnection, kept_bytes: int = 0, *, is_short: bool = False) -> None:
        """Add `connection` to the queue; it takes its turn in order, in the next turn at the earliest.

        `kept_bytes` were read from it and not served yet; with `is_short` it waits in the queue of short reads.
        """
        lane = self._short if is_short else self._large
        lane.waiting.append(_Waiting(connection, kept_bytes))
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            # This is called from a callback, so `_begin` runs in the next turn, before the reads of that turn.
            self._call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        self.number += 1
        is_short_busy = self._short.begin(self._unread_bytes)
        is_large_busy = self._large.begin(self._unread_bytes)
        if is_short_busy or is_large_busy:
            self._schedule()


@final
class ReadControl:
    """Controls when one connection is read: its share of a turn, and the reasons for a pause. Owned by the connection.

    It holds no reference to the connection: a cycle would hold the memory of a closed connection until the garbage
    collector runs.
    """

    __slots__ = ("_granted_turn", "_transport", "_turn", "_turn_bytes", "_turn_bytes_max", "_turns",
                 "is_waiting_for_turn", "pauses")  # fmt: skip

    def __init__(self, transport: asyncio.Transport, turns: ReadTurns, turn_bytes_max: int) -> None:
        self.pauses = ReadPause.NONE
        self.is_waiting_for_turn = False
        """Whether the connection is in the queue of its port."""
        self._transport = transport
        self._turns = turns
        self._turn_bytes_max = turn_bytes_max
        self._turn = 0
        self._turn_bytes = 0
        self._granted_turn = -1

    def take(self, connection: BusyConnection, size: int) -> bool:
        """Return whether a read may be served in this turn.

        A connection whose next read belongs to a later turn is paused.
        """
        turns = self._turns
        if size < COUNTED_READ_BYTES:
            turns.short_bytes += size
            if turns.short_bytes < SHORT_READS_STEP or turns.take_short():
                return True
            turns.short_bytes -= size  # it is counted when it is served
            return False
        if self._turn != turns.number:
            self._turn, self._turn_bytes = turns.number, 0
        self._turn_bytes += size
        if self._granted_turn != turns.number and not turns.take_large(size):
            return False
        if self._turn_bytes >= self._turn_bytes_max or turns.has_waiting:
            self.wait_for_turn(connection)
        return True

    def wait_for_turn(self, connection: BusyConnection, kept_bytes: int = 0, *, is_short: bool = False) -> None:
        """Pause reading until the connection has taken its turn. The arguments are those of `ReadTurns.enqueue`."""
        if not self.is_waiting_for_turn:
            self.is_waiting_for_turn = True
            self.pause(ReadPause.TURN_SPENT)
            self._turns.enqueue(connection, kept_bytes, is_short=is_short)

    def grant_turn(self) -> None:
        """Allow the connection its share of this turn, which the port has already counted."""
        self._granted_turn = self._turns.number

    def pause(self, reason: ReadPause) -> None:
        """Pause reading until `reason` is removed."""
        if not self.pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self.pauses |= reason

    def resume(self, reason: ReadPause) -> None:
        """Remove `reason`, and read again if no other is left. A closing connection is not read any more."""
        was_paused = bool(self.pauses)
        self.pauses &= ~reason
        if reason is ReadPause.TURN_SPENT:
            self.is_waiting_for_turn = False
        if was_paused and not self.pauses and not self._transport.is_closing():
            self._transport.resume_reading()
