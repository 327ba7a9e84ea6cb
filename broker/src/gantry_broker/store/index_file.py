"""One file of the key index: a hash table on disk, filled in order; entries are never changed.

    | header 40 | slots: 4 bytes each | entries: 20 bytes each, number 0 unused |
    header  begin time 8 | end time 8 | begin physical 8 | end physical 8 | used slots 4 | count 4 (starts at 1)
    entry   key hash 4 | physical offset 8 | seconds since begin time 4 | previous entry of the same slot 4

A slot holds the number of its newest entry, and an entry that of the previous one. The slots can be computed from the
entries. ``restore`` does so after a crash, when slots and entries may have reached the disk in any order.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple, final

from gantry_broker.ports.disk import Disk, DiskFile
from gantry_broker.store.mapped_file import translate_disk_full, zero_range
from gantry_broker.store.settings import INDEX_HEADER_BYTES, StoreSettings
from gantry_store_files.queue_units import partition

HEADER: Final = struct.Struct(">qqqqii")
"""The header of an index file, with the fields of ``IndexHeader``."""
assert HEADER.size == INDEX_HEADER_BYTES
SLOT: Final = struct.Struct(">i")
"""A slot: the number of its newest entry, 0 for an empty one."""
ENTRY: Final = struct.Struct(">iqii")
"""An entry, with the fields in the module's layout."""
ENTRY_BYTES: Final = 20
assert ENTRY.size == ENTRY_BYTES
SECONDS_MAX: Final = 0x7FFFFFFF
"""The largest difference of times that an entry can hold; a larger one is stored as this."""


class IndexHeader(NamedTuple):
    """The header of an index file, its first 40 bytes."""

    begin_timestamp_ms: int = 0
    """Store time of the first message with an entry."""

    end_timestamp_ms: int = 0
    """Store time of the last message with an entry."""

    begin_physical: int = 0
    """Where the first message with an entry begins."""

    end_physical: int = 0
    """Where the last message with an entry begins."""

    slots_used: int = 0
    """Number of slots that have an entry."""

    next_number: int = 1
    """The number of the next entry: one more than there are entries."""

    @property
    def begin(self) -> tuple[int, int]:
        """The fields that never change once the file has an entry."""
        return self.begin_timestamp_ms, self.begin_physical

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file may hold entries of ``[begin_ms, end_ms]``."""
        return begin_ms <= self.end_timestamp_ms and end_ms >= self.begin_timestamp_ms


class IndexFileDamaged(Exception):
    """A slot or an entry of an index file is invalid. Rebuild the file from the log."""


@final
class IndexFile:
    """An open index file. Written by the loop's thread, synced by the thread ``gantry-point`` (``point_writer``)."""

    def __init__(self, file: DiskFile, name: str, settings: StoreSettings) -> None:
        self.file: Final = file
        self.name: Final = name
        self.slots: Final = settings.max_hash_slot_num
        """Number of slots, which the setting ``maxHashSlotNum`` determines."""
        self.count_max: Final = settings.max_index_num
        """One more than the number of entries that fit into the file (``maxIndexNum``)."""
        self.entries_start: Final = INDEX_HEADER_BYTES + self.slots * 4
        """Where the entries begin, after header and slots."""
        self._stride: Final = settings.index_reserve_bytes
        self.header = IndexHeader()
        self.is_dirty = False
        """Whether anything was written since the last sync."""
        self.view: Final = file.view

    def __repr__(self) -> str:
        return f"<IndexFile {self.name} count={self.header.next_number} end={self.header.end_physical}>"

    @classmethod
    def create(cls, disk: Disk, directory: str, name: str, settings: StoreSettings) -> IndexFile:
        """Create a file with blocks for the slots and for the first entries. Raises ``StoreFull``."""
        path = f"{directory}/{name}"
        reserve = INDEX_HEADER_BYTES + settings.max_hash_slot_num * 4 + settings.index_reserve_bytes
        with translate_disk_full(path):
            index = cls(disk.create(path, settings.index_file_size, reserve=reserve), name, settings)
        index.write_header(IndexHeader())
        return index

    def inherit_end(self, last: IndexHeader) -> None:
        """Take the end of the previous file's header ``last`` into this header in memory, until the first entry."""
        self.header = self.header._replace(end_physical=last.end_physical, end_timestamp_ms=last.end_timestamp_ms)

    def load(self) -> bool:
        """Read the header; return False if it is invalid."""
        header = IndexHeader(*HEADER.unpack(self.file.pread(HEADER.size, 0)))
        number = max(1, header.next_number)
        if number > self.count_max:
            return False
        self.header = header._replace(next_number=number)
        return True

    @property
    def is_full(self) -> bool:
        return self.header.next_number >= self.count_max

    @property
    def is_complete(self) -> bool:
        """Whether another file may follow: the file is full, and its header has ordered times and offsets."""
        header = self.header
        is_ordered = 0 < header.begin_timestamp_ms <= header.end_timestamp_ms
        return self.is_full and is_ordered and 0 <= header.begin_physical <= header.end_physical

    def entry_position(self, number: int) -> int:
        return self.entries_start + number * ENTRY_BYTES

    def reserve_entry(self, number: int) -> int:
        """Reserve blocks for the entry ``number`` and some later ones; return the exclusive end of those numbers."""
        end = self.entry_position(number) + ENTRY_BYTES
        if end > self.file.reserved:
            with translate_disk_full(self.file.path):
                self.file.reserve(end + self._stride)
        return min(self.count_max, (self.file.reserved - self.entries_start) // ENTRY_BYTES)

    def write_header(self, header: IndexHeader) -> None:
        """Write the header into the file. Durable after the next ``sync``, which may run at the same time."""
        self.header = header
        HEADER.pack_into(self.view, 0, *header)
        self.is_dirty = True

    def raise_if_shortened(self) -> None:
        """Raise ``IndexFileDamaged`` if another process has shortened the file, whose map must not be touched then.

        The size of the file is restored, so that concurrent access meets zeros instead of a SIGBUS.
        """
        end = self.file.regrow()
        if end is not None:
            raise IndexFileDamaged(f"{self.file.path}: another process has shortened it to {end} bytes")

    def find(self, key_hash: int, *, count_max: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of up to ``count_max`` entries with ``key_hash``, newest first.

        Raises ``IndexFileDamaged`` at an invalid slot or entry, after the offsets before it.
        """
        self.raise_if_shortened()
        header, view = self.header, self.view
        if HEADER.unpack_from(view) != header:
            raise IndexFileDamaged(f"{self.file.path}: its header has changed since it was written")
        slot = key_hash % self.slots
        number = SLOT.unpack_from(view, INDEX_HEADER_BYTES + slot * 4)[0]
        previous = header.next_number
        found = 0
        # Numbers decrease strictly along a chain, so that damage cannot cause an endless loop.
        while number != 0 and found < count_max:
            if not 0 < number < previous:
                raise IndexFileDamaged(f"{self.file.path}: slot {slot} has entry {number} after entry {previous}")
            entry_hash, physical, seconds, before = ENTRY.unpack_from(view, self.entry_position(number))
            if entry_hash % self.slots != slot or not header.begin_physical <= physical <= header.end_physical:
                raise IndexFileDamaged(f"{self.file.path}: entry {number} does not belong to slot {slot}")
            time_ms = header.begin_timestamp_ms + seconds * 1000
            if seconds < 0 or time_ms + 999 < begin_ms:
                return
            if entry_hash == key_hash and time_ms <= end_ms:
                found += 1
                yield physical
            previous, number = number, before

    def restore(self, header: IndexHeader) -> None:
        """Reset the file to ``header``: zero later entries, and compute every slot from the entries before."""
        self.reserve_entry(header.next_number)
        end = self.entry_position(header.next_number)
        zero_range(self.file, end, self.file.size)
        words = array("I", self.file.pread((header.next_number - 1) * ENTRY_BYTES, self.entry_position(1)))
        hashes = words[0::5]
        hashes.byteswap()
        slots = array("I", bytes(self.slots * 4))
        slot_count = self.slots
        for number, key_hash in enumerate(hashes, start=1):
            slots[key_hash % slot_count] = number
        used = self.slots - slots.count(0)
        slots.byteswap()
        self.view[INDEX_HEADER_BYTES : self.entries_start] = slots.tobytes()
        self.write_header(header._replace(slots_used=used))

    def truncate(self, end: int) -> None:
        """Remove the entries of messages at or after ``end``. At least one entry must lie before it."""
        first = partition(1, self.header.next_number, lambda number: self._entry(number)[1] < end)
        _, physical, seconds, _ = self._entry(first - 1)
        end_ms = self.header.begin_timestamp_ms + seconds * 1000 + 999
        end_ms = min(end_ms, self.header.end_timestamp_ms)
        self.restore(self.header._replace(next_number=first, end_physical=physical, end_timestamp_ms=end_ms))

    def entry(self, number: int) -> tuple[int, int]:
        """Return the key hash and the physical offset of an entry."""
        return self._entry(number)[:2]

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        return ENTRY.unpack_from(self.view, self.entry_position(number))

    def sync(self) -> None:
        if self.is_dirty:
            self.is_dirty = False
            self.file.sync()


@final
class IndexCursor:
    """The write position in an index file, for one batch of messages that share a store time."""

    __slots__ = ("begin_ms", "file", "number", "numbers_end", "position", "seconds", "timestamp_ms")

    def __init__(self, file: IndexFile, timestamp_ms: int) -> None:
        """Reserve blocks for the next entries. Raises ``StoreFull`` if that fails and the next entry has none."""
        header = file.header
        self.begin_ms: Final = header.begin_timestamp_ms if header.next_number > 1 else timestamp_ms
        """The file's begin time: that of its first message."""
        self.file: Final = file
        self.timestamp_ms: Final = timestamp_ms
        self.number: Final = header.next_number
        self.position: Final = file.entry_position(header.next_number)
        self.numbers_end: Final = file.reserve_entry(header.next_number)
        """The exclusive end of the entry numbers that have blocks on the disk."""
        self.seconds: Final = min(max((timestamp_ms - self.begin_ms) // 1000, 0), SECONDS_MAX)
        """The time that each entry of the batch gets: seconds since the file's begin time."""

    def finish(self, number: int, slots_used: int, physical: int, end_ms: int | None = None) -> None:
        """Write the header after the entries below ``number``, the last of them for the message at ``physical``.

        ``end_ms`` is the store time of that message, if it is not that of the batch.
        """
        if number == self.number:
            return
        header = self.file.header
        begin_physical = header.begin_physical
        if header.next_number <= 1:
            begin_physical = ENTRY.unpack_from(self.file.view, self.position)[1]
        used, end_ms = header.slots_used + slots_used, self.timestamp_ms if end_ms is None else end_ms
        self.file.write_header(IndexHeader(self.begin_ms, end_ms, begin_physical, physical, used, number))
