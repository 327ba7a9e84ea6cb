"""Checksums by which a pull proves in one pass over its answer that it is what was stored.

    messages of a queue        m0      m1      m2      m3        as they follow each other in the queue
    sums               c0      c1      c2      c3      c4        c[i+1] = crc32(record of m[i], c[i])
                               `-- crc32(m1 + m2, c1) == c3 --'

A seal proves one record, and checking 32 of them costs a pull half as much again. A chain of sums over a queue's
records, in the order of the queue, needs one call for the body of a pull, wherever its records lie in the log, and it
is called on the very bytes that are sent. So a change of the file by another process, or by the media behind the page
cache, is found by the next read, and not once per start.

The append loop continues the chain of what it writes; of messages that were stored before this start a second chain is
learned by whoever reads them in order. Both are in memory only and a hint: a body that does not match is verified
record by record, and only that decides. So nothing has to be forgotten when a queue is cut or built again.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from gantry_wire.checksum import crc32

CHUNK: Final = 1024
"""So many sums are allotted to a chain at a time."""

SUMS_MAX: Final = 8 << 20
"""Of all queues together: 32 MiB, the newest eight million messages."""


@final
class SumsBudget:
    """How many sums all chains together may keep."""

    __slots__ = ("left",)

    def __init__(self, sums_max: int = SUMS_MAX) -> None:
        self.left = sums_max


@final
class QueueSums:
    """One chain: sums of neighbouring messages of one queue, from message ``start`` on."""

    __slots__ = ("_budget", "limit", "start", "values")

    def __init__(self, budget: SumsBudget) -> None:
        self.start = 0
        """The message that the first sum stands before."""

        self.values = array("I", (0,))
        """One more than there are messages. The append loop appends to it."""

        self.limit = 0
        """How many it may have before ``go_on`` must be called."""

        self._budget: Final = budget

    def __repr__(self) -> str:
        return f"<QueueSums {self.start}..{self.end}>"

    @property
    def end(self) -> int:
        """The message behind the last one."""
        return self.start + len(self.values) - 1

    def go_on(self, offset: int) -> None:
        """Be ready to take the sum of message ``offset`` as the next one."""
        if not self.start <= offset <= self.end:
            self.start = offset
            del self.values[1:]
            self.values[0] = 0
        else:
            del self.values[offset - self.start + 1 :]
        if len(self.values) < self.limit:
            return
        if self._budget.left >= CHUNK:
            self._budget.left -= CHUNK
            self.limit += CHUNK
        elif len(self.values) > 1:
            dropped = max(1, len(self.values) // 2)
            del self.values[:dropped]
            self.start += dropped

    def proves(self, offset: int, count: int, body: bytes) -> bool:
        """Whether ``body`` is the records of ``count`` messages from ``offset`` on, as they were stored."""
        first, values = offset - self.start, self.values
        return first >= 0 and first + count < len(values) and crc32(body, values[first]) == values[first + count]

    def learn(self, offset: int, records: list[memoryview]) -> None:
        """These records, the first of which is message ``offset``, were verified."""
        for number, record in enumerate(records, offset):
            if number != self.end or len(self.values) >= self.limit:
                self.go_on(number)
            if len(self.values) < self.limit:
                self.values.append(crc32(record, self.values[-1]))

    def release(self) -> None:
        """The queue is no more."""
        self._budget.left += self.limit
        self.limit = 0
        del self.values[1:]
