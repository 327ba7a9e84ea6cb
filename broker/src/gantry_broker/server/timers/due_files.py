"""The due files: entries of the timer topic by the hour in which they are due, in sorted blocks.

    <store>/timers/<hour since 1970>   blocks, appended: [ head | entries in due order ] [ head | ... ] ...
    <store>/timers/later               entries of later hours, in the order in which they were read
    <store>/timers/position            sealed: how far the timer topic's queue is in the files, and the extent of each

With 40 days there are at most 961 files of hours. A flush appends to `later`, and to the files of this hour and of the
next one, so it syncs four files however far ahead messages are due. When `later` is large, and before each hour, its
entries move to the files of their hours (`due_index`). The blocks of an hour are merged when it comes due
(`due_merge`), so an hour of ten million messages is never in memory.

The position is written after the files are synced, and names the size and the CRC-32 of each. What a crash has left
beyond a size is overwritten by the next append, and a file that is not named is removed. A file that is missing, too
short, or not the one that was written, a position of another format or none: then all files are removed, and the timer
topic is read again from its start, since the files are derived.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.ports import Disk
from gantry_broker.ports.disk import DiskFile
from gantry_broker.server.timers.entries import ENTRY_BYTES, due_of, is_intact
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_wire.checksum import crc32

log = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000
DIRECTORY: Final = "timers"
POSITION: Final = "position"
LATER: Final = "later"
FORMAT: Final = 2
"""The format of the files. In format 1 there was a file for each minute."""
OFFSET_MAX: Final = 1 << 62
"""An offset beyond any queue."""
BLOCK_ENTRIES_MAX: Final = 4096
"""The limit of entries in a block: sorting so many takes a millisecond or two."""
READ_BYTES: Final = 8192 * ENTRY_BYTES
"""How much of `later` is read at a time: 320 KB."""
VERIFIED_BYTES: Final = 1 << 20
"""How much of a file is read at a time to verify it."""
_HEAD: Final = struct.Struct(">4sIQQ12x")
"""The head of a block has the size of an entry: magic number, count, first and last due time, then a CRC-32."""
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = b"DUE2"
assert _HEAD.size + _CRC.size == ENTRY_BYTES, "files have a multiple of the size of an entry"


class DamagedDueFile(Exception):
    """A due file has an invalid part, so all must be built again from the log. The text names the file and fault."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(f"{DIRECTORY}/{name}: {fault}")


class IndexedPosition(msgspec.Struct, frozen=True):
    """How far the queue of the timer topic is in the due files."""

    queue_offset: int = 0
    """The first message that is not in the files."""

    last_physical: int = -1
    """The physical offset of the message before it."""

    last_entry: str = ""
    """The entry of that message, in hex, by which a start recognizes a log that was replaced."""


class Extent(NamedTuple):
    """The part of a file that is used, from its start."""

    size: int = 0
    crc: int = 0
    """The CRC-32 of these bytes."""

    first_offset: int = OFFSET_MAX
    """The smallest queue offset of a record that has an entry here."""

    def extended(self, data: bytes, first_offset: int = OFFSET_MAX) -> Extent:
        """Return the extent with more data."""
        return Extent(self.size + len(data), crc32(data, self.crc), min(self.first_offset, first_offset))

    def is_same(self, other: Extent) -> bool:
        """Whether two extents have the same bytes."""
        return self[:2] == other[:2]


class _Contents(msgspec.Struct, frozen=True):
    """The content of the file `position`."""

    format: int = 1
    position: IndexedPosition = msgspec.field(default_factory=IndexedPosition)
    hours: dict[int, Extent] = msgspec.field(default_factory=dict)
    later: Extent = Extent()
    split_hour: int = 0


class Block(NamedTuple):
    """A block of the file of an hour."""

    start: int
    """The position of its first entry."""

    end: int
    first_ms: int
    last_ms: int


class Part(NamedTuple):
    """What is appended to a file."""

    hour: int | None
    """The hour of the file; None for `later`."""

    before: Extent
    """The present extent of the file."""

    data: bytes
    first_offset: int
    """The smallest queue offset of a record that has an entry in the data."""

    @property
    def after(self) -> Extent:
        """The extent of the file after the append."""
        return self.before.extended(self.data, self.first_offset)


def encode_block(entries: Sequence[bytes]) -> bytes:
    """Return a block of sorted entries."""
    assert 0 < len(entries) <= BLOCK_ENTRIES_MAX, "a block has a limited number of entries"
    head = _HEAD.pack(_MAGIC, len(entries), due_of(entries[0]), due_of(entries[-1]))
    return b"".join((head, _CRC.pack(crc32(head)), *entries))


def split_entries(data: bytes, name: str) -> list[bytes]:
    """Return the entries of these bytes of the file ``name``. Raises ``DamagedDueFile``."""
    entries = [data[first : first + ENTRY_BYTES] for first in range(0, len(data), ENTRY_BYTES)]
    if not all(map(is_intact, entries)):
        raise DamagedDueFile(name, "an entry does not match its checksum")
    return entries


def _decode_head(data: bytes, name: str, position: int) -> Block:
    """Return the block whose head is at this position of the file ``name``. Raises ``DamagedDueFile``."""
    if len(data) != ENTRY_BYTES or crc32(data[: _HEAD.size]) != _CRC.unpack_from(data, _HEAD.size)[0]:
        raise DamagedDueFile(name, f"the block at {position} does not match its checksum")
    magic, count, first_ms, last_ms = _HEAD.unpack_from(data)
    if magic != _MAGIC or not 0 < count <= BLOCK_ENTRIES_MAX:
        raise DamagedDueFile(name, f"the block at {position} has {count} entries and the magic number {magic!r}")
    start = position + ENTRY_BYTES
    return Block(start, start + int(count) * ENTRY_BYTES, int(first_ms), int(last_ms))


@final
class DueFiles:
    """The due files of one store.

    The fields belong to the event loop, which changes an extent after the append. A worker thread calls the methods
    that wait for the disk, one at a time.
    """

    def __init__(self, disk: Disk, store_path: str) -> None:
        self._disk: Final = disk
        self._directory: Final = f"{store_path}/{DIRECTORY}"
        self.hours: dict[int, Extent] = {}
        """The extent of the file of each hour."""
        self.later = Extent()
        """The extent of `later`."""
        self.split_hour = 0
        """Entries that are due in this hour or before are in the files of their hours; others may be in `later`."""
        self.saved_position = IndexedPosition()
        """The position that was saved last."""

    def __repr__(self) -> str:
        return f"<DueFiles {self._directory} hours={len(self.hours)} later={self.later.size}>"

    @property
    def first_offset(self) -> int:
        """The queue offset before which no record has an entry in the files, or will have one."""
        offsets = (extent.first_offset for extent in (self.later, *self.hours.values()))
        return min(self.saved_position.queue_offset, *offsets)

    @property
    def is_empty(self) -> bool:
        """Whether the files have no entry."""
        return not self.hours and not self.later.size

    # ------- the start

    def open(self) -> IndexedPosition:
        """Check the files; return the durable position, at the start of the queue if the files are not usable."""
        if not self._disk.exists(self._directory):
            self._make_directory()
        try:
            contents = read_sealed(self._disk, f"{self._directory}/{POSITION}", _Contents)
            reason = self._find_fault(contents)
        except (OSError, ValueError) as error:
            contents, reason = None, str(error)
        if contents is None or reason is not None:
            if self._disk.list(self._directory):
                log.warning("due files are not usable; reading the timer topic again", extra={"reason": reason})
                self.remove_all()
            return IndexedPosition()
        known = {POSITION, LATER, *(due_file_name(hour) for hour in contents.hours)}
        for name in self._disk.list(self._directory):
            if name not in known:
                self._disk.remove(f"{self._directory}/{name}")
        self.hours, self.later = dict(contents.hours), contents.later
        self.split_hour, self.saved_position = contents.split_hour, contents.position
        return contents.position

    def _find_fault(self, contents: _Contents | None) -> str | None:
        """Return why the files cannot be used; None if they can."""
        if contents is None:
            return f"{POSITION} is missing"
        if contents.format != FORMAT:
            return f"format {contents.format}, expected {FORMAT}"
        sizes = {due_file_name(hour): extent.size for hour, extent in contents.hours.items()} | {
            LATER: contents.later.size
        }
        for name, size in sizes.items():
            path = f"{self._directory}/{name}"
            found = self._disk.file_size(path) if self._disk.exists(path) else 0
            if found < size or size % ENTRY_BYTES:
                return f"{name} has {found} bytes, expected {size}"
        return None

    # ------- writing

    def append(self, parts: Iterable[Part]) -> None:
        """Append to files; durable when this returns."""
        for hour, before, data, _ in parts:
            name = LATER if hour is None else due_file_name(hour)
            self._disk.append_file(f"{self._directory}/{name}", data, end=before.size)
        self._disk.sync_directory(self._directory)

    def save_position(self, position: IndexedPosition) -> None:
        """Record how far the queue is in the files. Their entries must be durable before."""
        contents = _Contents(FORMAT, position, dict(self.hours), self.later, self.split_hour)
        write_sealed(self._disk, f"{self._directory}/{POSITION}", contents)
        self.saved_position = position

    def remove(self, hours: list[int]) -> None:
        """Remove the files of these hours, which the position names no more. A start removes what a crash has left."""
        for hour in hours:
            with suppress(FileNotFoundError):
                self._disk.remove(f"{self._directory}/{due_file_name(hour)}")

    def remove_all(self) -> None:
        """Remove all files. The position goes first, so that none is believed after a crash."""
        path = f"{self._directory}/{POSITION}"
        if self._disk.exists(path):
            self._disk.remove(path)
            self._disk.sync_directory(self._directory)
        self._disk.remove_tree(self._directory)
        self._make_directory()

    def forget(self) -> None:
        """Forget the files, which `remove_all` has removed."""
        self.hours, self.later, self.saved_position = {}, Extent(), IndexedPosition()

    def _make_directory(self) -> None:
        self._disk.make_directory(self._directory)
        self._disk.sync_directory(self._directory.rpartition("/")[0])

    # ------- reading

    def read_later(self, position: int) -> bytes:
        """Return entries of `later` from this position on. Raises ``DamagedDueFile`` if the file is too short."""
        length = min(READ_BYTES, self.later.size - position)
        [data] = self._read(LATER, [(position, length)])
        return data

    def read_parts(self, hour: int, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ranges (position, length) of an hour's file. Raises ``DamagedDueFile``."""
        return self._read(due_file_name(hour), ranges)

    def _read(self, name: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        with closing(self._open(name)) as file:
            found = [(length, file.pread(length, position)) for position, length in ranges]
        if any(len(data) != length for length, data in found):
            raise DamagedDueFile(name, "it is too short")
        return [data for _, data in found]

    def find_blocks(self, hour: int, known: Extent, end: Extent, key: bytes) -> list[Block]:
        """Return the blocks of an hour's file after ``known``, each from its first entry on that is not before ``key``,
        and only those that have one. Raises ``DamagedDueFile`` if the file has not the extent ``end``.
        """
        found: list[Block] = []
        name = due_file_name(hour)
        with closing(self._open(name)) as file:
            _verify(file, name, known, end)
            position = known.size
            while position < end.size:
                block = _decode_head(file.pread(ENTRY_BYTES, position), name, position)
                position = block.end
                if position > end.size:
                    raise DamagedDueFile(name, f"its last block ends at {position}, after the file's end {end.size}")
                start = _first_not_before(file, block, key)
                if start < block.end:
                    found.append(block._replace(start=start))
        return found

    def _open(self, name: str) -> DiskFile:
        try:
            return self._disk.open(f"{self._directory}/{name}")
        except FileNotFoundError:
            raise DamagedDueFile(name, "it is missing") from None


def _verify(file: DiskFile, name: str, known: Extent, end: Extent) -> None:
    """Raise ``DamagedDueFile`` if the file has not the extent ``end``, of which ``known`` is verified."""
    while known.size < end.size:
        data = file.pread(min(VERIFIED_BYTES, end.size - known.size), known.size)
        if not data:
            raise DamagedDueFile(name, f"it has {known.size} bytes, expected {end.size}")
        known = known.extended(data)
    if not known.is_same(end):
        raise DamagedDueFile(name, "it does not match its checksum")


def _first_not_before(file: DiskFile, block: Block, key: bytes) -> int:
    """Return the position of the first entry of a block that is not before ``key``; the end of the block if none is."""
    key_ms = due_of(key)
    if key_ms < block.first_ms:
        return block.start
    if key_ms > block.last_ms:
        return block.end
    low, high = 0, (block.end - block.start) // ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        if file.pread(ENTRY_BYTES, block.start + middle * ENTRY_BYTES) < key:
            low = middle + 1
        else:
            high = middle
    return block.start + low * ENTRY_BYTES


def due_file_name(hour: int) -> str:
    """Return the name of the file of an hour."""
    return f"{hour:08d}"
