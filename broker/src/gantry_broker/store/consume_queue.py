"""The consume queue: 20 bytes for each message of one queue of one topic, with its offset in the log.

    | physical offset 8 | size 4 | tags code 8 |        queue offset n is at byte 20 * n

    [base ... min_offset ...... readable_end ...... end)
                                  |                  `- the next queue offset that append hands out
                                  `- what consumers may see; equal to end unless dispatch is held

A queue is derived data: it is rebuilt from the log when it is missing, wrong or behind. A queue whose first known
offset is not at the start of a file has the units before it filled with (0, 0x7FFFFFFF, 0), as RocketMQ does.

``position``, ``limit`` and ``view`` are the write cursor: the append loop packs units itself, and calls ``extend`` when
``position`` reaches ``limit``, where the allocated blocks or a page of ``UnitSums`` end. Owned by the loop's thread;
the thread ``gantry-point`` (``point_writer``) reads ``readable_end`` and syncs the files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, final

from gantry_broker.errors import StoreFull
from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.mapped_file import MappedFile
from gantry_broker.store.queue_sums import QueueSums, SumsBudget, UnitSums
from gantry_broker.store.settings import CONSUME_UNIT_BYTES
from gantry_store_files.queue_units import FILLER_SIZE, NO_UNIT, UNIT, Unit, partition, partition_past_damage
from gantry_wire.hashing import java_string_hash
from gantry_wire.message import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, RECORD_BYTES_MIN

__all__ = ["FILLER_SIZE", "FILLER_UNIT", "UNIT", "ConsumeQueue"]

assert UNIT.size == CONSUME_UNIT_BYTES
FILLER_UNIT: Final = UNIT.pack(0, FILLER_SIZE, 0)
_EMPTY_VIEW: Final = memoryview(bytearray(0))


@final
class Tally:
    """Messages and bytes appended to one topic since this start. Owned by the loop's thread.

    A topic's queues share one tally, from the creation of the first queue until the topic is deleted. Messages that a
    slave copies are not counted, because its master counts them.
    """

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = 0
        """Number of messages appended since the start."""

        self.size = 0
        """Total size of their records, in bytes."""

    def __repr__(self) -> str:
        return f"<Tally count={self.count} size={self.size}>"


@final
class ConsumeQueue:
    """One queue of one topic, with the values that the append loop needs, computed once."""

    __slots__ = (
        "_budget", "end", "files", "flushed_end", "is_corrupt",
        "is_dirty", "key_seed", "key_seed_unique", "learned_sums", "limit", "magic", "min_offset",
        "position", "queue_id", "readable_end", "record_overhead", "rewritten_files", "stride", "sums", "tally",
        "topic", "topic_bytes", "topic_field", "unit_sums", "view",
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
        """Create a queue without files. ``tally`` is shared by the queues of a topic, ``budget`` by all queues."""
        encoded = topic.encode()
        is_v2 = len(encoded) > 127
        self.topic: Final = topic
        self.topic_bytes: Final = encoded
        self.queue_id: Final = queue_id
        self.files: Final = files
        self.tally: Final = tally or Tally()
        self.stride: Final = stride - stride % CONSUME_UNIT_BYTES
        """How many bytes of a file get blocks at a time."""
        self.magic: Final = MESSAGE_MAGIC_V2 if is_v2 else MESSAGE_MAGIC_V1
        """The magic of this topic's records, which depends on the length of its name."""
        self.topic_field: Final = (struct.pack(">h", len(encoded)) if is_v2 else bytes((len(encoded),))) + encoded
        """The topic as a record holds it: its length and its bytes."""
        self.record_overhead: Final = RECORD_BYTES_MIN - 1 + len(self.topic_field)
        self.key_seed: Final = java_string_hash(f"{topic}#") & 0xFFFFFFFF
        """The hash of ``topic#``, with which the hash of every key begins."""
        self.key_seed_unique: Final = self.key_seed * pow(31, 32, 1 << 32) & 0xFFFFFFFF
        """The same, as far as it enters the hash of a unique key, which has 32 characters."""
        self._budget: Final = budget or SumsBudget()
        self.sums: Final = QueueSums(self._budget)
        """Checksums of the records that this process has appended."""
        self.learned_sums: QueueSums | None = None
        """Checksums of other records that were read and verified; None before the first of them."""
        self.min_offset = 0
        self.end = 0
        self.readable_end = 0
        self.flushed_end = 0
        """End of the units that are on the disk."""
        self.is_corrupt = False
        """Whether a unit is known to be wrong, so that recovery points list the queue as damaged."""
        self.is_dirty = False
        """Whether units were zeroed or overwritten since the last sync."""
        self.unit_sums: Final = UnitSums(files)
        self.rewritten_files: Final[list[MappedFile]] = []
        """Files with rewritten units before ``flushed_end``; ``gantry-point`` syncs them."""
        self.view = _EMPTY_VIEW
        self.position = 0
        self.limit = 0

    def __repr__(self) -> str:
        return (
            f"<ConsumeQueue {self.topic}/{self.queue_id} min={self.min_offset} "
            f"readable={self.readable_end} end={self.end}>"
        )

    # -- sums of its records -------------------------------------------------------------------------------------------

    def matches_sums(self, offset: int, count: int, body: bytes) -> bool:
        """Return whether ``body`` is known to be the records of ``count`` messages from ``offset`` on."""
        learned = self.learned_sums
        return self.sums.matches(offset, count, body) or (
            learned is not None and learned.matches(offset, count, body)
        )  # fmt: skip

    def learn(self, offset: int, records: list[memoryview]) -> None:
        """Keep checksums of verified records of messages from ``offset`` on."""
        if self.learned_sums is None:
            self.learned_sums = QueueSums(self._budget)
        self.learned_sums.learn(offset, records)

    def forget_sums(self) -> None:
        """Drop all checksums of stored records, as after a start."""
        self.sums.release()
        if self.learned_sums is not None:
            self.learned_sums.release()
            self.learned_sums = None

    # -- writing -------------------------------------------------------------------------------------------------------

    def seek(self, offset: int) -> None:
        """Move the write cursor to queue offset ``offset``, which must be inside or just after the files."""
        start = offset * CONSUME_UNIT_BYTES
        file = self.files.at(start)
        if file is None:
            assert start == self.files.end_offset or not self.files.files, (self, offset)
            self.view, self.position, self.limit = _EMPTY_VIEW, 0, 0
            return
        self.view = file.view
        self.position = start - file.base_offset
        self.limit = min(file.size, file.file.reserved - file.file.reserved % CONSUME_UNIT_BYTES)
        # The cursor stops at the end of each page, so that ``extend`` is called and computes the page's checksum.
        units = self.unit_sums.page_units
        self.limit = min(self.limit, (offset // units + 1) * units * CONSUME_UNIT_BYTES - file.base_offset)
        self.limit = max(self.limit, self.position)

    def extend(self, offset: int) -> None:
        """Make room at the write cursor for the unit of queue offset ``offset``. Raises ``StoreFull``."""
        start = offset * CONSUME_UNIT_BYTES
        if offset % self.unit_sums.page_units == 0:
            self.unit_sums.record_full_page(offset)
        file = self.files.mapped_at(start)
        if file is None:
            file = self._create_file(start)
        end = start - file.base_offset + CONSUME_UNIT_BYTES
        if end > file.file.reserved:  # a system call, so not at the end of each page of sums
            try:
                file.reserve(min(file.size, end - CONSUME_UNIT_BYTES + self.stride))
            except StoreFull:  # The unit itself may fit into the last free block.
                file.reserve(end)
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
        """Write the unit of queue offset ``offset``. Skipped units become fillers, which stand for no message.

        Raises ``StoreFull``. This is the general path, for dispatch from the log; the append loop does the same inline.
        """
        if self.files.files:
            self.fill_to(offset, physical_offset)
        elif offset != self.readable_end:
            self.start_at(offset)
        self.put_next(UNIT.pack(physical_offset, size, tags_code))

    def put_next(self, unit: bytes) -> None:
        """Write the next unit, which must not be written yet. Raises ``StoreFull``."""
        if self.position >= self.limit:
            self.extend(self.readable_end)
        position = self.position
        self.view[position : position + CONSUME_UNIT_BYTES] = unit
        self.position = position + CONSUME_UNIT_BYTES
        self.readable_end += 1
        self.end = max(self.end, self.readable_end)

    def fill_to(self, offset: int, physical_offset: int) -> None:
        """Fill the units before ``offset``, whose messages are lost, so that ``offset`` is next. Raises ``StoreFull``.

        Fillers hold ``physical_offset``, because searches need physical offsets that rise along the queue; in a queue
        without a message they hold 0, and it begins at ``offset`` afterwards.
        """
        if self.readable_end < offset and not self.files.files:
            self.set_start_offset(offset)
            return
        is_first = self.min_offset == self.readable_end
        unit = FILLER_UNIT if is_first else UNIT.pack(physical_offset, FILLER_SIZE, 0)
        while self.readable_end < offset:
            if self.position >= self.limit:
                self.extend(self.readable_end)
            count = min(offset - self.readable_end, (self.limit - self.position) // CONSUME_UNIT_BYTES)
            following = self.position + count * CONSUME_UNIT_BYTES
            self.view[self.position : following] = unit * count
            self.position = following
            self.readable_end += count
            self.end = max(self.end, self.readable_end)
        if is_first:
            self.min_offset = offset

    def start_at(self, offset: int) -> None:
        """Set the start of an empty queue to ``offset``."""
        assert not self.files.files, self
        self.min_offset = self.end = self.readable_end = self.flushed_end = offset
        self.seek(offset)

    def set_start_offset(self, offset: int) -> None:
        """Set the next queue offset of a queue without files to ``offset``. Durable after the next ``sync``.

        Only a file keeps an offset over a restart, so one is created, with fillers before ``offset``. Raises
        ``StoreFull``; then the offset is kept only as long as this process runs.
        """
        self.start_at(offset - 1)
        try:
            self.put_next(FILLER_UNIT)
        except StoreFull:
            self.start_at(offset)
            raise
        self.min_offset = offset

    def rewind(self, end: int) -> None:
        """Remove the units ``[end, self.end)``: zero them, and move the cursor and the readable end before them."""
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

    def reserve_offset(self, offset: int) -> None:
        """Assign queue offset ``offset`` to a message whose unit is written later."""
        self.end = offset + 1

    def mark_corrupt(self) -> None:
        """Record that a unit is wrong: recovery points list the queue until ``mark_intact``. Any thread may call it."""
        self.is_corrupt = True

    def mark_intact(self) -> None:
        """Record that every unit agrees with the log again."""
        self.is_corrupt = False

    def replace_unit(self, offset: int, unit: bytes) -> None:
        """Overwrite a readable unit in place. Durable after the next ``sync``. Raises ``StoreFull``."""
        start = offset * CONSUME_UNIT_BYTES
        file = self.files.mapped_at(start)
        assert file is not None and self.min_offset <= offset < self.readable_end, (self, offset)
        position = start - file.base_offset
        file.reserve(position + CONSUME_UNIT_BYTES)
        file.view[position : position + CONSUME_UNIT_BYTES] = unit
        self.rewritten_files.append(file)
        self.is_dirty = True

    # -- search by physical offset -------------------------------------------------------------------------------------

    def end_before(self, physical_offset: int) -> int:
        """Return the end that the queue had when the log ended at ``physical_offset``. ``gantry-point`` may call it.

        Only units are read. Where a wrong end would do harm, ``QueueSearch.end_before`` proves it by the log.
        """
        return self.find_end(self.min_offset, self.readable_end, lambda unit: unit[0] < physical_offset)

    def find_end(self, first: int, last: int, is_before: Callable[[Unit], bool]) -> int:
        """Return the end of the first units for which ``is_before`` is true, also if one of them is damaged.

        Such a unit is passed. Reading repairs it.
        """
        return self._bisect(partition_past_damage, first, last, is_before)

    def trim(self, min_offset: int) -> tuple[MappedFile, ...]:
        """Move the start of the queue to ``min_offset`` and return the files before it, removed from the list.

        The last file stays even if everything in it has expired, because it keeps the next offset over a restart.
        """
        if min_offset <= self.min_offset:
            return ()
        assert min_offset <= self.readable_end, (self, min_offset)
        self.min_offset = min_offset
        return self.files.retire_before(min_offset * CONSUME_UNIT_BYTES)

    def limit_to_files(self, first: int, last: int) -> tuple[int, int]:
        """Return the part of the queue offsets ``[first, last)`` that the files have units for."""
        return _limit_to_files(self.files.files, first, last)

    def partition(self, first: int, last: int, is_before: Callable[[Unit], bool]) -> int:
        """Return the first queue offset in ``[first, last)`` for which ``is_before`` is false, by bisection."""
        return self._bisect(partition, first, last, is_before)

    def _bisect(
        self, bisect: Callable[[int, int, Callable[[int], bool]], int], first: int, last: int,
        is_before: Callable[[Unit], bool],
    ) -> int:  # fmt: skip
        """Bisect with ``bisect``.

        Other threads do so while the loop's thread trims the queue, so one list of files is used throughout.
        """
        files = self.files.files
        first, last = _limit_to_files(files, first, last)
        return bisect(first, last, lambda offset: is_before(self._read_unit(files, offset)))

    def stored_unit(self, offset: int) -> Unit:
        """Return the unit of any queue offset, readable or not; ``NO_UNIT`` outside of the files. Any thread."""
        return self._read_unit(self.files.files, offset)

    def stored_units(self, first: int, last: int) -> list[Unit]:
        """Return what ``stored_unit`` returns for the queue offsets ``[first, last)``, with few reads. Any thread."""
        files = self.files.files
        found: list[Unit] = []
        per_file = self.files.file_size // CONSUME_UNIT_BYTES
        while first < last:
            stop = min(last, (first // per_file + 1) * per_file)
            index = (first * CONSUME_UNIT_BYTES - files[0].base_offset) // self.files.file_size if files else -1
            raw = b""
            if 0 <= index < len(files):
                position = first * CONSUME_UNIT_BYTES - files[index].base_offset
                raw = files[index].file.pread((stop - first) * CONSUME_UNIT_BYTES, position)
            if len(raw) == (stop - first) * CONSUME_UNIT_BYTES:
                found += UNIT.iter_unpack(raw)
            else:
                found += [self._read_unit(files, offset) for offset in range(first, stop)]
            first = stop
        return found

    def _read_unit(self, files: tuple[MappedFile, ...], offset: int) -> Unit:
        start = offset * CONSUME_UNIT_BYTES
        index = (start - files[0].base_offset) // self.files.file_size if files else -1
        if not 0 <= index < len(files):
            return NO_UNIT
        file = files[index]
        raw = file.file.pread(CONSUME_UNIT_BYTES, start - file.base_offset)
        if len(raw) < CONSUME_UNIT_BYTES:
            # The result is meaningless now: the queue is corrupt, and callers check that afterwards.
            self.files.regrow_if_shortened(file)
            return NO_UNIT
        physical, size, tags_code = UNIT.unpack(raw)
        return physical, size, tags_code

    def reset(self, disk: Disk) -> None:
        """Delete all files, before the queue is rebuilt."""
        self.close()
        remove_durably(disk, self.files.directory)
        self.min_offset = self.end = self.readable_end = self.flushed_end = 0
        self.unit_sums.reset(0)

    # -- reading -------------------------------------------------------------------------------------------------------

    def raw(self, offset: int, end: int) -> bytes:
        """Return the units ``[offset, end)`` as far as they lie in one file; empty outside of the readable range."""
        if offset < self.min_offset or offset >= self.readable_end:
            return b""
        start = offset * CONSUME_UNIT_BYTES
        file = self.files.mapped_at(start)
        if file is None:
            return b""
        stop = min(min(end, self.readable_end) * CONSUME_UNIT_BYTES, file.end_offset)
        return bytes(file.view[start - file.base_offset : stop - file.base_offset])

    def units(self, offset: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (physical offset, size, tags code) of the readable units in ``[offset, end)``, across files."""
        end = min(end, self.readable_end)
        while offset < end:
            raw = self.raw(offset, end)
            if not raw:
                return
            yield from UNIT.iter_unpack(raw)
            offset += len(raw) // CONSUME_UNIT_BYTES

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Return the unit of one queue offset, or None if it is not readable."""
        return next(self.units(offset, offset + 1), None)

    # -- durability ----------------------------------------------------------------------------------------------------

    def sync(self) -> bool:
        """Fsync all units before ``readable_end``; return True if files were created or removed.

        Called by ``gantry-point``.
        """
        end = self.readable_end
        start = min(self.flushed_end, end) * CONSUME_UNIT_BYTES
        is_directory_dirty = self.files.is_directory_dirty
        if end == self.flushed_end and not is_directory_dirty and not self.is_dirty:
            return False
        self.is_dirty = False
        rewritten_files: set[MappedFile] = set()
        while self.rewritten_files:
            rewritten_files.add(self.rewritten_files.pop())
        for file in self.files.files:
            if file.end_offset > start or file in rewritten_files:
                file.file.sync()
        if is_directory_dirty:
            self.files.sync_directory()
        self.flushed_end = end
        return is_directory_dirty

    def close(self) -> None:
        self.view = _EMPTY_VIEW
        self.position = self.limit = 0
        self.files.close()


def _limit_to_files(files: tuple[MappedFile, ...], first: int, last: int) -> tuple[int, int]:
    if not files:
        return first, first  # The queue never had a file, or its topic has just been deleted.
    first = max(first, files[0].base_offset // CONSUME_UNIT_BYTES)
    return first, max(first, min(last, files[-1].end_offset // CONSUME_UNIT_BYTES))
