"""Checksums of a queue in memory: one chain over its messages' records, and one for each page of its units.

``QueueSums``: a chain of checksums by which a pull proves in one pass that its answer is exactly what was stored.

    messages of a queue        m0      m1      m2      m3        as they follow each other in the queue
    sums               c0      c1      c2      c3      c4        c[i+1] = crc32(record of m[i], c[i])
                               `-- crc32(m1 + m2, c1) == c3 --'

A seal proves one record, and checking 32 of them makes a pull half as expensive again. A chain of sums over a queue's
records, in the order of the queue, needs one call for the body of a pull, wherever its records lie in the log, and it
is computed over the very bytes that are sent. So a change of the file by another process, or by the storage behind the
page cache, is detected by the next read, and not once per start.

The append loop continues the chain of what it writes. For messages that were stored before this start, reads in order
build a second chain. Both are in memory only and a hint: a body that does not match is verified record by record, and
only that decides. So no sum has to be dropped when a queue is truncated or rebuilt.

``UnitSums``: a checksum of each page of a consume queue that is known to match the log.

    units   | page 0: 100 units | page 1 | ... | the page that is being filled |
    sums    |  crc or unknown   |  crc   | ... |  crc of its first units       |

A pull with a filter skips the units that its tags refuse without reading their records: a flipped bit in a tags code
would hide a message. So it skips units of known pages only. A page is known when this process has written all of it, or
when each of its units was compared with its record; from then on its checksum is compared at every such pull, since the
file may be altered while the broker runs. RocketMQ's unit has no room for a checksum, so sums are in memory, beside the
queue. A sum that does not match proves nothing: the page is compared again, and only the log decides. So no sum has to
be dropped when units are rebuilt.

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
"""How many sums a chain is allotted at a time."""

SUMS_MAX: Final = 8 << 20
"""The most sums of all queues together: 32 MiB, for eight million messages. A chain without more drops its oldest."""


@final
class SumsBudget:
    """The budget of sums that all chains share."""

    __slots__ = ("left",)

    def __init__(self, sums_max: int = SUMS_MAX) -> None:
        self.left = sums_max

    def take(self) -> int:
        """Allot more sums to a chain. Return how many: a chunk, or 0 if none is left."""
        count = CHUNK if self.left >= CHUNK else 0
        self.left -= count
        return count

    def give_back(self, count: int) -> None:
        """Return ``count`` sums of a chain to the budget."""
        self.left += count


@final
class QueueSums:
    """One chain of sums of consecutive messages of one queue, from message ``start`` on."""

    __slots__ = ("_budget", "limit", "start", "values")

    def __init__(self, budget: SumsBudget) -> None:
        self.start = 0
        """The queue offset of the message before which the first sum is taken."""

        self.values = array("I", (0,))
        """The sums, one more than messages. The append loop appends to it."""

        self.limit = 0
        """How many sums ``values`` may have before ``prepare_next`` must be called."""

        self._budget: Final = budget

    def __repr__(self) -> str:
        return f"<QueueSums {self.start}..{self.end}>"

    @property
    def end(self) -> int:
        """The queue offset after the last message of the chain."""
        return self.start + len(self.values) - 1

    def prepare_next(self, offset: int) -> None:
        """Prepare the chain so that the next sum is that of message ``offset``."""
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

    def matches(self, offset: int, count: int, body: bytes) -> bool:
        """Return whether ``body`` is exactly the stored records of ``count`` messages from ``offset`` on."""
        first, values = offset - self.start, self.values
        return first >= 0 and first + count < len(values) and crc32(body, values[first]) == values[first + count]

    def learn(self, offset: int, records: list[memoryview]) -> None:
        """Add the sums of verified records, the first of which is message ``offset``."""
        for number, record in enumerate(records, offset):
            if number != self.end or len(self.values) >= self.limit:
                self.prepare_next(number)
            if len(self.values) < self.limit:
                self.values.append(crc32(record, self.values[-1]))

    def release(self) -> None:
        """Return all sums to the budget, when the queue is closed or its sums are dropped."""
        self._budget.give_back(self.limit)
        self.limit = 0
        del self.values[1:]


PAGE_UNITS_MAX: Final = 100
"""Largest number of units in a page: its checksum costs a pull about a microsecond, and four bytes of memory."""

UNKNOWN: Final = 0
"""The value for no sum. A page whose sum really is 0, one in four billion, is compared with the log at every pull."""

_NOTHING: Final = memoryview(b"")


@final
class UnitSums:
    """The sums of the pages of one queue's units."""

    __slots__ = (
        "_files",
        "_first",
        "_sums",
        "filling_count",
        "filling_page",
        "filling_sum",
        "page_units",
        "written_from",
    )

    def __init__(self, files: FileQueue) -> None:
        self.page_units: Final = gcd(files.file_size // CONSUME_UNIT_BYTES, PAGE_UNITS_MAX)
        """A divisor of a file's units, so that no page lies in two files."""

        self.written_from = 0
        """The first unit that this process has written."""

        self.filling_page = -1
        """The page that is being filled; -1 if no sum of it is known."""

        self.filling_count = 0
        """How many units of ``filling_page``, which is not full, are covered by ``filling_sum``."""

        self.filling_sum = 0
        """The sum of the first ``filling_count`` units of ``filling_page``."""
        self._files: Final = files
        self._first = 0
        self._sums = array("I")

    def __repr__(self) -> str:
        return f"<UnitSums pages={len(self._sums)} from={self._first} written_from={self.written_from}>"

    def _sum(self, page: int, count: int) -> int:
        """Return the checksum of the first ``count`` units of a page; ``UNKNOWN`` if there is no file."""
        start = page * self.page_units * CONSUME_UNIT_BYTES
        file = self._files.mapped_at(start)
        if file is None:
            return UNKNOWN
        position = start - file.base_offset
        return crc32(file.view[position : position + count * CONSUME_UNIT_BYTES])

    def read_known(self, offset: int, end: int) -> memoryview:
        """Return the units ``[offset, end)`` as far as they lie in one full, known page; empty if it is not known."""
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
        """Return the end of the units from ``offset`` on, in its page, that still match the page's sum."""
        units = self.page_units
        page = offset // units
        index = page - self._first
        if (
            0 <= index < len(self._sums)
            and self._sums[index] != UNKNOWN
            and self._sum(page, units) == self._sums[index]
        ):
            return (page + 1) * units
        if page == self.filling_page and self._sum(page, self.filling_count) == self.filling_sum:
            return max(offset, page * units + self.filling_count)
        return offset

    def is_altered(self, page: int) -> bool:
        """Return whether the page that is being filled no longer matches its sum."""
        return page == self.filling_page and self._sum(page, self.filling_count) != self.filling_sum

    def learn(self, page: int, count: int) -> None:
        """Record the sum of the first ``count`` units of a page, which are known to be right."""
        if count < self.page_units:
            self.filling_page, self.filling_count, self.filling_sum = page, count, self._sum(page, count)
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

    def record_full_page(self, end: int) -> None:
        """Record the sum of the full page that ends at ``end``, unless other processes have written or altered it."""
        page = end // self.page_units - 1
        if end - self.page_units >= self.written_from and not self.is_altered(page):
            self.learn(page, self.page_units)

    def reset(self, offset: int) -> None:
        """Drop all sums: units before ``offset`` are of an earlier run, and this process writes from there on."""
        self.written_from = offset
        self.filling_page = -1
        self._sums = array("I")
