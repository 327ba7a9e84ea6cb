"""Checksums of a queue in memory: of its messages' records, and of the pages of its units.

``QueueSums``: a chain of checksums by which a pull proves in one pass over its answer that it is what was stored.

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

``UnitSums``: a checksum of each page of a consume queue that is known to hold what the log says.

    units   | page 0: 100 units | page 1 | ... | the page that is being filled |
    sums    |  crc or unknown   |  crc   | ... |  crc of its first units       |

A pull with a filter passes over the units that its tags refuse, without a look at their records: a flipped bit in a
tags code would hide a message. So it passes over units of known pages only. A page is known when this process has
written all of it, or when each of its units was compared with its record; from then on its checksum is compared at
every such pull, since the file may be altered while the broker runs. RocketMQ's unit has no room for a checksum, so
sums are in memory, beside the queue. A sum that does not match proves nothing: the page is compared again, and only
the log decides. So nothing has to be forgotten when units are rebuilt.

Owned by the loop's thread.
"""

from __future__ import annotations

from array import array
from math import gcd
from typing import Final, final

from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.settings import CONSUME_UNIT_BYTES
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

    def take(self) -> int:
        """How many more sums a chain may have: a chunk, or 0 where none is left."""
        count = CHUNK if self.left >= CHUNK else 0
        self.left -= count
        return count

    def give_back(self, count: int) -> None:
        """A chain has let go of ``count`` sums."""
        self.left += count


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
        more = self._budget.take()
        self.limit += more
        if not more and len(self.values) > 1:
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
        self._budget.give_back(self.limit)
        self.limit = 0
        del self.values[1:]


PAGE_UNITS_MAX: Final = 100
"""So that the checksum of a page costs a pull about a microsecond, and its four bytes little memory."""

UNKNOWN: Final = 0
"""No sum. A page whose sum is 0 is compared with the log at every pull: one of four billion."""

_NOTHING: Final = memoryview(b"")


@final
class UnitSums:
    """The sums of one queue."""

    __slots__ = ("_files", "_first", "_sums", "page_units", "tail_count", "tail_page", "tail_sum", "written_from")

    def __init__(self, files: FileQueue) -> None:
        self.page_units: Final = gcd(files.file_size // CONSUME_UNIT_BYTES, PAGE_UNITS_MAX)
        """A divisor of a file's units, so that no page lies in two files."""

        self.written_from = 0
        """Units from here on were written by this process."""

        self.tail_page = -1
        self.tail_count = 0
        """How many units of ``tail_page``, which is not full, ``tail_sum`` covers."""

        self.tail_sum = 0
        self._files: Final = files
        self._first = 0
        self._sums = array("I")

    def __repr__(self) -> str:
        return f"<UnitSums pages={len(self._sums)} from={self._first} written_from={self.written_from}>"

    def _sum(self, page: int, count: int) -> int:
        """The checksum of the first ``count`` units of a page; ``UNKNOWN`` where there is no file."""
        start = page * self.page_units * CONSUME_UNIT_BYTES
        file = self._files.mapped_at(start)
        if file is None:
            return UNKNOWN
        position = start - file.base_offset
        return crc32(file.view[position : position + count * CONSUME_UNIT_BYTES])

    def known(self, offset: int, end: int) -> memoryview:
        """The units ``[offset, end)`` as far as they lie in one full page that is known; empty where it is not."""
        units = self.page_units
        page = offset // units
        index = page - self._first
        file = self._files.mapped_at(page * units * CONSUME_UNIT_BYTES)
        if file is None or not 0 <= index < len(self._sums) or self._sums[index] == UNKNOWN:
            return _NOTHING
        start = page * units
        position = start * CONSUME_UNIT_BYTES - file.base_offset
        data = file.view[position : position + units * CONSUME_UNIT_BYTES]
        if crc32(data) != self._sums[index]:
            return _NOTHING
        return data[(offset - start) * CONSUME_UNIT_BYTES : (end - start) * CONSUME_UNIT_BYTES]

    def known_end(self, offset: int) -> int:
        """Where the units end, from ``offset`` on in its page, that are as they were when their sum was taken."""
        units = self.page_units
        page = offset // units
        index = page - self._first
        if (
            0 <= index < len(self._sums)
            and self._sums[index] != UNKNOWN
            and self._sum(page, units) == self._sums[index]
        ):
            return (page + 1) * units
        if page == self.tail_page and self._sum(page, self.tail_count) == self.tail_sum:
            return max(offset, page * units + self.tail_count)
        return offset

    def is_altered(self, page: int) -> bool:
        """Whether the page that is being filled is not as it was when its sum was taken."""
        return page == self.tail_page and self._sum(page, self.tail_count) != self.tail_sum

    def learn(self, page: int, count: int) -> None:
        """The first ``count`` units of a page are right."""
        if count < self.page_units:
            self.tail_page, self.tail_count, self.tail_sum = page, count, self._sum(page, count)
            return
        if not self._sums:
            self._first = page
        elif page < self._first:
            self._sums = array("I", bytes(4 * (self._first - page))) + self._sums
            self._first = page
        index = page - self._first
        if index >= len(self._sums):
            self._sums.frombytes(bytes(4 * (index + 1 - len(self._sums))))
        self._sums[index] = self._sum(page, count)

    def wrote(self, end: int) -> None:
        """The page that ends at ``end`` is full."""
        page = end // self.page_units - 1
        if end - self.page_units >= self.written_from and not self.is_altered(page):
            self.learn(page, self.page_units)

    def begin(self, offset: int) -> None:
        """What is there is of an earlier run; this process writes from ``offset`` on."""
        self.written_from = offset
        self.tail_page = -1
        self._sums = array("I")
