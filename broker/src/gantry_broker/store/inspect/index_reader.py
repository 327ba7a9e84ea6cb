"""Reading of index files: their shapes, headers, and entries in order.

    | header 40 | slots: 4 bytes each | entries: 20 bytes each, number 0 unused |

A file does not contain its number of slots: it is a setting, and the tools have no settings. RocketMQ's defaults are
recognized by the file's size. For any other shape the newest entry is searched: the header contains the offset of its
message, so its position in the file, and with it the number of slots, is found by searching for that offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, final

from gantry_broker.ports.reading import ReadingDisk, ReadingFile
from gantry_broker.store.index_file import ENTRY, ENTRY_BYTES, HEADER, SLOT, IndexHeader
from gantry_broker.store.settings import INDEX_HEADER_BYTES, StoreSettings

BLOCK_ENTRIES: Final = 4096
"""Number of entries that are read at once."""
SEARCH_BYTES: Final = 1 << 20
"""How much of the file is read at once, for its slots or in a search."""
SLOT_BYTES: Final = SLOT.size
_DEFAULT: Final = StoreSettings()


class Entry(NamedTuple):
    """One entry of an index file."""

    key_hash: int
    physical: int
    """Where the message begins in the log."""

    seconds: int
    """Store time of the message, in seconds after the file's begin time."""

    previous: int
    """The number of the previous entry of the same slot; 0 if there is none."""


class IndexShape(NamedTuple):
    """The numbers of slots and entries of a file."""

    slots: int
    entries: int

    @property
    def entries_start(self) -> int:
        return INDEX_HEADER_BYTES + self.slots * SLOT_BYTES


@final
class IndexReader:
    """Reads one index file as it was when it was opened. Entries that a running broker adds later are not read."""

    def __init__(self, disk: ReadingDisk, path: str) -> None:
        self.path: Final = path
        self._file: Final[ReadingFile] = disk.open(path)
        self.size: Final = self._file.size
        raw = self._file.pread(HEADER.size, 0)
        self.header: Final = IndexHeader(*HEADER.unpack(raw)) if len(raw) == HEADER.size else None
        self.shape: Final = self._find_shape()

    def close(self) -> None:
        self._file.close()

    @property
    def count(self) -> int:
        """The number of entries in the file."""
        if self.header is None or self.shape is None:
            return 0
        return max(0, min(self.header.next_number, self.shape.entries) - 1)

    @property
    def fault(self) -> str:
        """Why this cannot be an index file; empty if it can."""
        if self.header is None:
            return f"its {self.size} bytes are less than a header"
        if self.header.next_number > 1 and self.shape is None:
            return "its header and its entries do not belong together"
        if self.shape is not None and self.header.next_number > self.shape.entries:
            return f"its header counts {self.header.next_number - 1} entries, but only {self.shape.entries - 1} fit"
        return ""

    @property
    def is_loadable(self) -> bool:
        """Whether a start would accept the header: it only checks that the number of entries fits."""
        entries = self.shape.entries if self.shape is not None else self.size // ENTRY_BYTES
        return self.header is not None and self.header.next_number <= entries

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, in the order of creation."""
        for number in range(1, self.count + 1, BLOCK_ENTRIES):
            length = min(BLOCK_ENTRIES, self.count + 1 - number) * ENTRY_BYTES
            data = self._file.pread(length, self._entry_position(number))
            for fields in ENTRY.iter_unpack(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]):
                yield Entry(*fields)

    def slots(self) -> Iterator[bytes]:
        """Yield the table of slots, in pieces."""
        if self.shape is not None:
            end = self.shape.entries_start
            for position in range(INDEX_HEADER_BYTES, end, SEARCH_BYTES):
                yield self._file.pread(min(SEARCH_BYTES, end - position), position)

    def _entry_position(self, number: int) -> int:
        assert self.shape is not None, "an index without a shape has no entries"
        return self.shape.entries_start + number * ENTRY_BYTES

    # -- the shape -----------------------------------------------------------------------------------------------------

    def _find_shape(self) -> IndexShape | None:
        if self.size == _DEFAULT.index_file_size:
            return IndexShape(_DEFAULT.max_hash_slot_num, _DEFAULT.max_index_num)
        header = self.header
        if header is None or header.next_number <= 1:
            return None
        # Offset 0 is eight zeros, which are everywhere; then the check of the slots decides.
        pattern = header.end_physical.to_bytes(8, "big", signed=True)
        overlap = len(pattern) - 1
        for chunk in range(INDEX_HEADER_BYTES, self.size, SEARCH_BYTES):
            data = self._file.pread(SEARCH_BYTES + overlap, chunk)
            position = data.find(pattern)
            while position >= 0:
                shape = self._shape_with_last_entry(chunk + position - 4)
                if shape is not None:
                    return shape
                position = data.find(pattern, position + 1)
        return None

    def _shape_with_last_entry(self, position: int) -> IndexShape | None:
        """Return the shape if the newest entry begins at ``position`` and the oldest entry then fits the header."""
        header = self.header
        assert header is not None, "the caller has checked it"
        slots, odd = divmod(position - (header.next_number - 1) * ENTRY_BYTES - INDEX_HEADER_BYTES, SLOT_BYTES)
        if odd or slots < 1:
            return None
        entries, rest = divmod(self.size - INDEX_HEADER_BYTES - slots * SLOT_BYTES, ENTRY_BYTES)
        if rest or entries < header.next_number:
            return None
        shape = IndexShape(slots, entries)
        first = self._entry_at(shape, 1)
        newest = self._entry_at(shape, header.next_number - 1)
        if first is None or newest is None or first.physical != header.begin_physical or first.previous != 0:
            return None
        raw = self._file.pread(SLOT_BYTES, INDEX_HEADER_BYTES + newest.key_hash % slots * SLOT_BYTES)
        # The slot holds its newest entry. A running broker may have added a newer one to the slot since.
        is_in_slot = len(raw) == SLOT_BYTES and header.next_number - 1 <= SLOT.unpack(raw)[0] < entries
        return shape if newest.physical == header.end_physical and newest.key_hash >= 0 and is_in_slot else None

    def _entry_at(self, shape: IndexShape, number: int) -> Entry | None:
        raw = self._file.pread(ENTRY_BYTES, shape.entries_start + number * ENTRY_BYTES)
        return Entry(*ENTRY.unpack(raw)) if len(raw) == ENTRY_BYTES else None
