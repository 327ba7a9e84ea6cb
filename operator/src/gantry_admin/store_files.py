"""The files of a store, read beside the broker that writes them. Every method blocks: call them in a thread.

    commitlog/00000000000000000000        [ record | record | ... | blank )     the log is these, one behind the other
    consumequeue/<topic>/<queue>/0000...  | physical offset 8 | size 4 | tags code 8 |

The rule it guards: **no byte beyond min(confirmed, committed) is read as a message.** The limit is the caller's, from
the status page. Files may roll and be deleted meanwhile: all files of a range are open before the first byte of it
leaves, and one that is gone by then makes the range gone. No name from outside becomes a path but through
``path_component``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple, final

from gantry_admin.errors import Problem
from gantry_wire.message import RECORD_BYTES_MIN, record_store_timestamp
from gantry_wire.names import path_component, topic_fault
from gantry_wire.store_identity import EpochBegin, read_epochs

UNIT: Final = struct.Struct(">qiq")
FILLER_SIZE: Final = 0x7FFFFFFF
QUEUE_ID_MAX: Final = 0xFFFF
NAME_DIGITS: Final = 20
TIME_BYTES: Final = 80
"""Of a record, up to its store time."""


Unit = tuple[int, int, int]
"""Physical offset, size, tags code."""


class Segment(NamedTuple):
    """One file, named by where it begins."""

    base: int
    size: int
    path: str

    @property
    def end(self) -> int:
        return self.base + self.size


class Piece(NamedTuple):
    """A part of an open file."""

    file: FileIO
    position: int
    length: int


class Bounds(NamedTuple):
    """Of a queue: units ``[begin, end)``."""

    begin: int
    end: int


def segments_in(directory: Path) -> tuple[Segment, ...]:
    """The files of a log or queue, by offset; none where there is no directory."""
    found: list[Segment] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(entry.name) != NAME_DIGITS or not (entry.name.isascii() and entry.name.isdigit()):
                    continue
                try:
                    found.append(Segment(int(entry.name), entry.stat().st_size, entry.path))
                except FileNotFoundError:
                    continue
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(found))


def queue_directories(root: Path) -> Iterator[Path]:
    """The directories of all queues, by topic. A topic that is deleted meanwhile has none."""
    for topic in _names_in(root / "consumequeue"):
        for queue_id in _names_in(root / "consumequeue" / topic):
            yield root / "consumequeue" / topic / queue_id


def _names_in(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


@final
class StoreFiles:
    """One store. Holds nothing open; any thread."""

    def __init__(self, root: Path) -> None:
        self.root: Final = root
        self._log: Final = root / "commitlog"

    def __repr__(self) -> str:
        return f"<StoreFiles {self.root}>"

    # -- the log -------------------------------------------------------------------------------------------------------

    def log_segments(self) -> tuple[Segment, ...]:
        """The files of the log."""
        return segments_in(self._log)

    def epochs(self) -> tuple[EpochBegin, ...]:
        """Who wrote which part of the log; none where no whole ``store.json`` says it."""
        for name in ("store.json", "store.json.bak"):
            with suppress(OSError, ValueError):
                return read_epochs((self.root / name).read_bytes())
        return ()

    def open_range(self, start: int, end: int, stack: ExitStack) -> list[Piece]:
        """The parts of files that make up ``[start, end)`` of the log, open until ``stack`` ends.

        Raises ``Problem`` 410 when the beginning is gone meanwhile, and 503 when something in the middle is missing.
        """
        pieces: list[Piece] = []
        segments = self.log_segments()
        offset = start
        for segment in segments:
            if segment.end <= offset or segment.base >= end:
                continue
            if segment.base > offset:
                break
            try:
                file = stack.enter_context(FileIO(segment.path))
            except FileNotFoundError:
                break
            count = min(segment.end, end) - offset
            pieces.append(Piece(file, offset - segment.base, count))
            offset += count
        if offset == end:
            return pieces
        oldest = next((segment.base for segment in self.log_segments()), end)
        if oldest > start:
            raise Problem(410, f"what lies before offset {oldest} is not there any more", oldest=oldest)
        raise Problem(503, f"the log has no file for offset {offset}; look at its broker", offset=offset)

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a short range. Raises as ``open_range``."""
        with ExitStack() as stack:
            pieces = self.open_range(start, end, stack)
            return b"".join(os.pread(piece.file.fileno(), piece.length, piece.position) for piece in pieces)

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue_directory(self, topic: str, queue_id: int) -> Path:
        """Where a queue lies. Raises ``Problem`` 404 for names that cannot be one's."""
        if topic_fault(topic) is not None or not 0 <= queue_id <= QUEUE_ID_MAX:
            raise Problem(404, "there is no such queue here")
        return self.root / "consumequeue" / path_component(topic) / str(queue_id)

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic that have files."""
        if topic_fault(topic) is not None:
            return []
        names = _names_in(self.root / "consumequeue" / path_component(topic))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 5)

    def bounds(self, topic: str, queue_id: int, begin: int, end: int) -> Bounds:
        """The units whose messages lie in ``[begin, end)`` of the log. Raises ``Problem`` 404 without such a queue."""
        segments = segments_in(self.queue_directory(topic, queue_id))
        if not segments:
            raise Problem(404, "there is no such queue here")
        units = _Units(segments)
        last = units.partition(units.first, units.limit, lambda unit: unit[1] > 0 and 0 <= unit[0] < end)
        if last > units.first and not _lies_before(units.unit(last - 1), end):
            last -= 1
        first = units.partition(units.first, last, lambda unit: unit[1] == FILLER_SIZE or unit[0] < begin)
        return Bounds(first, last)

    def units(self, topic: str, queue_id: int, start: int, end: int) -> bytes:
        """The units ``[start, end)``, which the caller has bounded. Raises ``Problem`` 410 when they are gone."""
        data = bytearray()
        position, stop = start * UNIT.size, end * UNIT.size
        for segment in segments_in(self.queue_directory(topic, queue_id)):
            if segment.base <= position < min(segment.end, stop):
                count = min(segment.end, stop) - position
                try:
                    with open(segment.path, "rb", buffering=0) as file:
                        data += os.pread(file.fileno(), count, position - segment.base)
                except FileNotFoundError:
                    break
                position += count
        if len(data) != stop - start * UNIT.size:
            raise Problem(410, "these units are not there any more")
        return bytes(data)

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, begin: int, end: int) -> tuple[int, int]:
        """(the first unit that was stored at ``timestamp_ms`` or later, the queue's end)."""
        bounds = self.bounds(topic, queue_id, begin, end)
        units = _Units(segments_in(self.queue_directory(topic, queue_id)))
        found = units.partition(bounds.begin, bounds.end, lambda unit: self._stored_at(unit, begin) < timestamp_ms)
        return found, bounds.end

    def stored_at(self, topic: str, queue_id: int, offset: int, begin: int) -> int | None:
        """When the message of one unit was stored."""
        unit = _Units(segments_in(self.queue_directory(topic, queue_id))).unit(offset)
        stored = self._stored_at(unit, begin)
        return stored if stored >= 0 else None

    def _stored_at(self, unit: Unit, begin: int) -> int:
        physical, size, _ = unit
        if size in (0, FILLER_SIZE) or size < RECORD_BYTES_MIN or physical < begin:
            return -1
        try:
            return record_store_timestamp(self.read(physical, physical + TIME_BYTES))
        except Problem as problem:
            if problem.status != 410:
                raise
            return -1  # retention deleted its file meanwhile: it is older than whatever is left


def _lies_before(unit: Unit, end: int) -> bool:
    return unit[1] == FILLER_SIZE or unit[0] + unit[1] <= end


class _Units:
    """The units of a queue, one at a time: bisection has no use for their neighbours."""

    def __init__(self, segments: tuple[Segment, ...]) -> None:
        self._segments = segments
        self.first = segments[0].base // UNIT.size if segments else 0
        self.limit = segments[-1].end // UNIT.size if segments else 0

    def unit(self, offset: int) -> Unit:
        position = offset * UNIT.size
        for segment in self._segments:
            if segment.base <= position < segment.end:
                try:
                    with open(segment.path, "rb", buffering=0) as file:
                        data = os.pread(file.fileno(), UNIT.size, position - segment.base)
                except FileNotFoundError:
                    return (0, FILLER_SIZE, 0)  # expired meanwhile, as everything before it
                if len(data) == UNIT.size:
                    physical, size, tags = UNIT.unpack(data)
                    return physical, size, tags
        return (0, 0, 0)

    def partition(self, first: int, last: int, holds: Callable[[Unit], bool]) -> int:
        """The first unit of ``[first, last)`` for which ``holds`` does not hold."""
        while first < last:
            middle = (first + last) // 2
            if holds(self.unit(middle)):
                first = middle + 1
            else:
                last = middle
        return first
