"""The consume queue: 20 bytes for each message of one queue of one topic, saying where in the log it is.

    | physical offset 8 | size 4 | tags code 8 |        queue offset n is at byte 20 * n

    [base ... min_offset ...... readable_end ...... end)
                                  |                  `- the next queue offset that append hands out
                                  `- what consumers may see; equal to end unless dispatch is held back

Derived: everything here can be computed from the log, and is when it is missing, wrong or behind. A queue whose first
known offset is not at the start of a file has the units before it filled with (0, 0x7FFFFFFF, 0), as RocketMQ does.

``position``, ``limit`` and ``view`` are the write cursor: the append loop packs units itself, and calls ``extend`` when
``position`` reaches ``limit``, the end of what has blocks. Owned by the loop's thread; the flush thread reads ``end``
counters and syncs files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, final

from gantry_broker.errors import StoreFull
from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.mapped_file import MappedFile, scrub
from gantry_broker.store.queue_sums import QueueSums, SumsBudget, UnitSums
from gantry_broker.store.settings import CONSUME_UNIT_BYTES
from gantry_store_files.queue_units import FILLER_SIZE, UNIT, has_expired, partition
from gantry_wire.hashing import java_string_hash
from gantry_wire.message import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, RECORD_BYTES_MIN

__all__ = ["FILLER_SIZE", "FILLER_UNIT", "UNIT", "ConsumeQueue"]

assert UNIT.size == CONSUME_UNIT_BYTES
FILLER_UNIT: Final = UNIT.pack(0, FILLER_SIZE, 0)
_EMPTY_VIEW: Final = memoryview(bytearray(0))


@final
class Tally:
    """What was appended to one topic since this start. Owned by the loop's thread.

    A topic's queues share one tally, from the first of them until the topic is deleted. What a slave copies is not
    counted: its master was asked to store it.
    """

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = 0
        """Messages."""

        self.size = 0
        """Bytes of their records."""

    def __repr__(self) -> str:
        return f"<Tally count={self.count} size={self.size}>"


@final
class ConsumeQueue:
    """One queue of one topic, and what the append loop needs to know of it, computed once."""

    __slots__ = (
        "_budget", "end", "files", "flushed_end", "is_corrupt",
        "is_dirty", "key_seed", "key_seed_unique", "learned_sums", "limit", "magic", "min_offset",
        "position", "queue_id", "readable_end", "record_overhead", "replaced", "stride", "sums", "tally", "topic",
        "topic_bytes", "topic_field", "unit_sums", "view",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        queue_id: int,
        files: FileQueue,
        *,
        stride: int,
        tally: Tally | None = None,
        budget: SumsBudget | None = None,
    ) -> None:
        """``tally`` is shared by the queues of a topic, ``budget`` by all queues."""
        encoded = topic.encode()
        is_v2 = len(encoded) > 127
        self.topic: Final = topic
        self.topic_bytes: Final = encoded
        self.queue_id: Final = queue_id
        self.files: Final = files
        self.tally: Final = tally or Tally()
        self.stride: Final = stride - stride % CONSUME_UNIT_BYTES
        self.magic: Final = MESSAGE_MAGIC_V2 if is_v2 else MESSAGE_MAGIC_V1
        self.topic_field: Final = (struct.pack(">h", len(encoded)) if is_v2 else bytes((len(encoded),))) + encoded
        self.record_overhead: Final = RECORD_BYTES_MIN - 1 + len(self.topic_field)
        self.key_seed: Final = java_string_hash(f"{topic}#") & 0xFFFFFFFF
        self.key_seed_unique: Final = self.key_seed * pow(31, 32, 1 << 32) & 0xFFFFFFFF
        self._budget: Final = budget or SumsBudget()
        self.sums: Final = QueueSums(self._budget)
        """Of what this process has appended."""
        self.learned_sums: QueueSums | None = None
        """Of what was read and verified, if anything was that is in no chain."""
        self.min_offset = 0
        self.end = 0
        self.readable_end = 0
        self.flushed_end = 0
        self.is_corrupt = False
        self.is_dirty = False
        self.unit_sums: Final = UnitSums(files)
        self.replaced: Final[list[MappedFile]] = []
        """Files with units that were written again behind ``flushed_end``'s back; ``gantry-point`` syncs them."""
        self.view = _EMPTY_VIEW
        self.position = 0
        self.limit = 0

    def __repr__(self) -> str:
        return (
            f"<ConsumeQueue {self.topic}/{self.queue_id} min={self.min_offset} "
            f"readable={self.readable_end} end={self.end}>"
        )

    # -- sums of its records -------------------------------------------------------------------------------------------

    def proves(self, offset: int, count: int, body: bytes) -> bool:
        """Whether ``body`` is known to be the records of ``count`` messages from ``offset`` on."""
        learned = self.learned_sums
        return self.sums.proves(offset, count, body) or (
            learned is not None and learned.proves(offset, count, body)
        )  # fmt: skip

    def learn(self, offset: int, records: list[memoryview]) -> None:
        """These records of messages from ``offset`` on were verified."""
        if self.learned_sums is None:
            self.learned_sums = QueueSums(self._budget)
        self.learned_sums.learn(offset, records)

    def forget_sums(self) -> None:
        """Know nothing of what was stored, as after a start."""
        self.sums.release()
        if self.learned_sums is not None:
            self.learned_sums.release()
            self.learned_sums = None

    # -- writing -------------------------------------------------------------------------------------------------------

    def seek(self, offset: int) -> None:
        """Put the write cursor at queue offset ``offset``, which must be inside or just behind the files."""
        start = offset * CONSUME_UNIT_BYTES
        file = self.files.at(start)
        if file is None:
            assert start == self.files.end_offset or not self.files.files, (self, offset)
            self.view, self.position, self.limit = _EMPTY_VIEW, 0, 0
            return
        self.view = file.view
        self.position = start - file.base_offset
        self.limit = min(file.size, file.file.reserved - file.file.reserved % CONSUME_UNIT_BYTES)
        # A full page comes by ``extend``, where its sum is taken.
        units = self.unit_sums.page_units
        self.limit = min(self.limit, (offset // units + 1) * units * CONSUME_UNIT_BYTES - file.base_offset)
        self.limit = max(self.limit, self.position)

    def extend(self, offset: int) -> None:
        """Make room at the write cursor for the unit of queue offset ``offset``. Raises ``StoreFull``."""
        start = offset * CONSUME_UNIT_BYTES
        if offset % self.unit_sums.page_units == 0:
            self.unit_sums.wrote(offset)
        file = self.files.mapped_at(start)
        if file is None:
            file = self._create_file(start)
        position = start - file.base_offset
        file.reserve(min(file.size, position + self.stride))
        self.seek(offset)
        assert self.position < self.limit, self

    def _create_file(self, start: int) -> MappedFile:
        file_size = self.files.file_size
        base = start - start % file_size
        filler = start - base if not self.files.files else 0
        file = self.files.create(base, reserve=min(file_size, filler + self.stride))
        file.view[:filler] = FILLER_UNIT * (filler // CONSUME_UNIT_BYTES)
        self.files.adopt(file)
        return file

    def put(self, offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Write the unit of queue offset ``offset``. Units skipped on the way become filler. Raises ``StoreFull``.

        The general path, for dispatch from the log; the append loop does the same inline.
        """
        if self.files.files:
            self.fill_to(offset, physical_offset)
        elif offset != self.readable_end:
            self.start_at(offset)
        self.put_next(UNIT.pack(physical_offset, size, tags_code))

    def put_next(self, unit: bytes) -> None:
        """Write the next unit, which nobody may have written yet. Raises ``StoreFull``."""
        if self.position >= self.limit:
            self.extend(self.readable_end)
        position = self.position
        self.view[position : position + CONSUME_UNIT_BYTES] = unit
        self.position = position + CONSUME_UNIT_BYTES
        self.readable_end += 1
        self.end = max(self.end, self.readable_end)

    def fill_to(self, offset: int, physical_offset: int) -> None:
        """Let the next number be ``offset``: those before it are of messages that are lost. Raises ``StoreFull``.

        Their units say ``physical_offset``, so that physical offsets rise along the queue, by which it is searched. A
        queue without a message begins at ``offset`` then.
        """
        if self.readable_end < offset and not self.files.files:
            self.set_start_offset(offset)
            return
        is_first = self.min_offset == self.readable_end
        unit = FILLER_UNIT if is_first else UNIT.pack(physical_offset, FILLER_SIZE, 0)
        while self.readable_end < offset:
            self.put_next(unit)
        if is_first:
            self.min_offset = offset

    def start_at(self, offset: int) -> None:
        """Let an empty queue begin at ``offset``."""
        assert not self.files.files, self
        self.min_offset = self.end = self.readable_end = self.flushed_end = offset
        self.seek(offset)

    def set_start_offset(self, offset: int) -> None:
        """Let a queue without files give its next message the number ``offset``, also after a restart.

        A file that exists is what keeps a number, so there is one, with filler before ``offset``. Raises ``StoreFull``;
        then the number holds as long as this process.
        """
        self.start_at(offset - 1)
        try:
            self.put_next(FILLER_UNIT)
        except StoreFull:
            self.start_at(offset)
            raise
        self.min_offset = offset

    def rewind(self, end: int) -> None:
        """Take back the units ``[end, self.end)``, which nobody has seen: zero them and put the cursor there."""
        for offset in range(end, self.end):
            start = offset * CONSUME_UNIT_BYTES
            file = self.files.mapped_at(start)
            if file is not None and start - file.base_offset + CONSUME_UNIT_BYTES <= file.file.reserved:
                position = start - file.base_offset
                file.view[position : position + CONSUME_UNIT_BYTES] = bytes(CONSUME_UNIT_BYTES)
        self.is_dirty = True
        self.end = end
        self.readable_end = min(self.readable_end, end)
        self.flushed_end = min(self.flushed_end, end)
        self.seek(self.readable_end)

    def take_number(self, offset: int) -> None:
        """The queue offset ``offset`` is given to a message whose unit comes later."""
        self.end = offset + 1

    def mark_corrupt(self) -> None:
        """A unit is wrong: recovery points list the queue, until ``mark_whole``. Any thread."""
        self.is_corrupt = True

    def mark_whole(self) -> None:
        """Every unit is as the log has it."""
        self.is_corrupt = False

    def replace_unit(self, offset: int, unit: bytes) -> None:
        """Write a readable unit again, in place. Durable after the next ``sync``. Raises ``StoreFull``."""
        start = offset * CONSUME_UNIT_BYTES
        file = self.files.mapped_at(start)
        assert file is not None and self.min_offset <= offset < self.readable_end, (self, offset)
        position = start - file.base_offset
        file.reserve(position + CONSUME_UNIT_BYTES)
        file.view[position : position + CONSUME_UNIT_BYTES] = unit
        self.replaced.append(file)
        self.is_dirty = True

    # -- recovery ------------------------------------------------------------------------------------------------------

    def load(self, *, before: int, min_physical: int, is_clean: bool = False, written: int = 0) -> int:
        """Open the files, and keep only the leading units whose messages begin before physical offset ``before``.

        Those are known to be durable and in order; whatever follows is zeroed, to be put again from the log. After a
        clean stop nothing can follow if not right away, and reading every file to its end is spared. The answer is
        where the units ended whose messages begin before ``written``.
        """
        self.files.load(setting="mappedFileSizeConsumeQueue", is_derived=True)
        first = self.files.base_offset // CONSUME_UNIT_BYTES
        last = self.files.end_offset // CONSUME_UNIT_BYTES
        end = self._partition(first, last, lambda physical, size: size > 0 and 0 <= physical < before)
        self.min_offset = self._partition(first, end, lambda physical, size: has_expired(physical, size, min_physical))
        found_end = self._partition(end, last, lambda physical, size: size > 0 and 0 <= physical < written)
        self.end = self.readable_end = self.flushed_end = end
        self.unit_sums.begin(end)
        for file in self.files.retire_before(self.min_offset * CONSUME_UNIT_BYTES):
            # A crash came between the deletion of log files and this.
            file.close()
            self.files.unlink(file)
        self.files.remove_from(end * CONSUME_UNIT_BYTES + 1)
        for file in self.files.files:
            used = min(max(end * CONSUME_UNIT_BYTES - file.base_offset, 0), file.size)
            next_unit = file.file.pread(CONSUME_UNIT_BYTES, used)
            if is_clean and next_unit.count(0) == len(next_unit):
                pass
            elif scrub(file.file, used, file.size):
                # Or the stale units would be back after the next crash, and be trusted by then.
                self.is_dirty = True
            with suppress(StoreFull):  # reading needs no blocks, and the next unit asks for them again
                file.reserve(used)
        if not is_clean:
            # Names and units may be in the page cache only, of a recovery that built it and was cut off.
            self.files.doubt_names()
            self.flushed_end = self.min_offset
        self.seek(end)
        return found_end

    def end_before(self, physical_offset: int) -> int:
        """The end that the queue had when the log ended at ``physical_offset``. The flush thread may ask."""
        return self._partition(self.min_offset, self.readable_end, lambda physical, _: physical < physical_offset)

    def min_offset_at(self, min_physical: int) -> int:
        """What ``min_offset`` becomes when the log begins at ``min_physical``. Any thread may ask.

        Of a queue that ``is_corrupt`` afterwards it means nothing.
        """
        first, last = self.min_offset, self.readable_end
        return self._partition(first, last, lambda physical, size: has_expired(physical, size, min_physical))

    def trim(self, min_offset: int) -> tuple[MappedFile, ...]:
        """Let the queue begin at ``min_offset``; the files that hold nothing from there on, out of the list.

        The last file stays even if everything in it has expired: it is what keeps the next offset over a restart.
        """
        if min_offset <= self.min_offset:
            return ()
        assert min_offset <= self.readable_end, (self, min_offset)
        self.min_offset = min_offset
        return self.files.retire_before(min_offset * CONSUME_UNIT_BYTES)

    def _partition(self, first: int, last: int, holds: Callable[[int, int], bool]) -> int:
        """The first queue offset in ``[first, last)`` whose (physical offset, size) does not hold, by bisection.

        Other threads ask while the loop's thread trims, so all of it is about one list of files.
        """
        files = self.files.files
        if not files:
            return first  # it has never had any, or its topic was deleted a moment ago
        base = files[0].base_offset
        first = max(first, base // CONSUME_UNIT_BYTES)
        last = min(last, files[-1].end_offset // CONSUME_UNIT_BYTES)

        def holds_at(offset: int) -> bool:
            file = files[(offset * CONSUME_UNIT_BYTES - base) // self.files.file_size]
            raw = file.file.pread(CONSUME_UNIT_BYTES, offset * CONSUME_UNIT_BYTES - file.base_offset)
            if len(raw) < CONSUME_UNIT_BYTES:
                # What is found now means nothing: the queue is corrupt, and callers look at that afterwards.
                self.files.mend(file)
                raw = bytes(CONSUME_UNIT_BYTES)
            physical, size, _ = UNIT.unpack(raw)
            return holds(physical, size)

        return partition(first, last, holds_at)

    def reset(self, disk: Disk) -> None:
        """Drop all files: the queue is going to be built again."""
        self.close()
        remove_durably(disk, self.files.directory)
        self.min_offset = self.end = self.readable_end = self.flushed_end = 0
        self.unit_sums.begin(0)

    # -- reading -------------------------------------------------------------------------------------------------------

    def raw(self, offset: int, end: int) -> bytes:
        """The units ``[offset, end)`` as far as they lie in one file; empty outside of what is readable."""
        if offset < self.min_offset or offset >= self.readable_end:
            return b""
        start = offset * CONSUME_UNIT_BYTES
        file = self.files.mapped_at(start)
        if file is None:
            return b""
        stop = min(min(end, self.readable_end) * CONSUME_UNIT_BYTES, file.end_offset)
        return bytes(file.view[start - file.base_offset : stop - file.base_offset])

    def units(self, offset: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(physical offset, size, tags code) of the readable units in ``[offset, end)``, over file borders."""
        end = min(end, self.readable_end)
        while offset < end:
            raw = self.raw(offset, end)
            if not raw:
                return
            yield from UNIT.iter_unpack(raw)
            offset += len(raw) // CONSUME_UNIT_BYTES

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """The unit of one queue offset, or None where there is none to read."""
        return next(self.units(offset, offset + 1), None)

    # -- durability ----------------------------------------------------------------------------------------------------

    def sync(self) -> bool:
        """Make all units before ``readable_end`` durable; True if files came or went. Called by the flush thread."""
        end = self.readable_end
        start = min(self.flushed_end, end) * CONSUME_UNIT_BYTES
        is_directory_dirty = self.files.is_directory_dirty
        if end == self.flushed_end and not is_directory_dirty and not self.is_dirty:
            return False
        self.is_dirty = False
        replaced: set[MappedFile] = set()
        while self.replaced:
            replaced.add(self.replaced.pop())
        for file in self.files.files:
            if file.end_offset > start or file in replaced:
                file.file.sync()
        if is_directory_dirty:
            self.files.sync_directory()
        self.flushed_end = end
        return is_directory_dirty

    def close(self) -> None:
        self.view = _EMPTY_VIEW
        self.position = self.limit = 0
        self.files.close()
