"""A store's directory, read while its broker runs, or does not.

    status                                the page: how far the log may be read
    store.json                            who wrote which part of it
    commitlog/00000000000000000000        [ record | record | ... | blank )     the log is these, one behind the other
    consumequeue/<topic>/<queue>/0000...  | physical offset 8 | size 4 | tags code 8 |

The page says what was confirmed and committed, and stays true when its broker is gone. A store without one is Apache's,
or a copy: there the queues' units say how far it goes, and a record counts if it is whole. Nothing here writes, and no
name becomes a path but through `path_component`. Log files are mapped: nobody ever shortens one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np

from gantry_status import PageReader, Reading, StatusPageError
from gantry_wire.message import RECORD_BYTES_MIN, check_record, record_store_timestamp
from gantry_wire.names import path_component, topic_fault
from gantry_wire.store_identity import EpochBegin, read_epochs
from pyspark_rocketmq.model import Bounds, QueueId
from pyspark_rocketmq.topics import is_internal
from pyspark_rocketmq.transport.base import Bytes, Gone, NotYet, Unreachable
from pyspark_rocketmq.transport.pieces import UNIT, Units

FILLER_SIZE: Final = 0x7FFFFFFF
NAME_DIGITS: Final = 20
UNWHOLE_MAX: Final = 100_000
"""How many units at a queue's end may lead to nothing whole, in a store without a page."""
LOG_END_MAX: Final = 1 << 62


class Segment(NamedTuple):
    """One file, named by where it begins."""

    base: int
    size: int
    path: str

    @property
    def end(self) -> int:
        return self.base + self.size


class Span(NamedTuple):
    """What of the log can be read: `[begin, end)`."""

    begin: int
    end: int
    is_said: bool
    """By a page of this machine's run; otherwise records are believed only with their CRC."""


def segments_in(directory: Path) -> tuple[Segment, ...]:
    """The files of a log or a queue, by offset; none where there is no directory."""
    found: list[Segment] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdigit():
                with suppress(FileNotFoundError):
                    found.append(Segment(int(entry.name), entry.stat().st_size, entry.path))
    return tuple(sorted(found))


def topics_in(directory: str) -> dict[str, tuple[int, ...]]:
    """Topics that have queues in a store, without RocketMQ's own, and the numbers of these queues."""
    root = Path(directory) / "consumequeue"
    found: dict[str, tuple[int, ...]] = {}
    for topic in _names_in(root):
        if topic_fault(topic) is None and not is_internal(topic):
            # A topic that is deleted meanwhile has no queues, and hides no other.
            names = [name for name in _names_in(root / path_component(topic)) if name.isascii() and name.isdigit()]
            if names:
                found[topic] = tuple(sorted(map(int, names)))
    return found


def _names_in(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


@final
class Store:
    """One directory. Keeps maps of its log files; one thread at a time."""

    def __init__(self, directory: str) -> None:
        """Raises Unreachable where there is no store."""
        self.root: Final = Path(directory)
        self._log: Final = self.root / "commitlog"
        if not self._log.is_dir():
            raise Unreachable(f"{directory} is no store that can be read here: it has no folder commitlog")
        self._page = PageReader(str(self.root / "status"))
        self._maps: dict[int, Bytes] = {}
        self._files: dict[QueueId, tuple[Segment, ...]] = {}
        """Of queues, as they were at a look before; whoever misses something looks again."""

    def __repr__(self) -> str:
        return f"<Store {self.root}>"

    def close(self) -> None:
        """Forget the maps; they end with the last batch that was cut from them."""
        self._maps.clear()
        self._page.close()

    # -- the log -------------------------------------------------------------------------------------------------------

    def span(self) -> Span:
        """What of the log can be read now. Raises Unreachable while its broker recovers."""
        reading = self._reading()
        if reading is None:
            segments = segments_in(self._log)
            return Span(segments[0].base, segments[-1].end, False) if segments else Span(0, 0, False)
        status = reading.status
        if status.confirmed is None or status.committed is None or status.min_physical is None:
            raise Unreachable(
                f"the broker of {self.root} is {status.phase.name.lower()}, and has not said how far to read"
            )
        end = min(status.confirmed, status.committed)
        return Span(min(status.min_physical, end), end, reading.age_ms is not None)

    def epochs(self) -> tuple[EpochBegin, ...]:
        """Who wrote which part; () of a store of Apache's."""
        for name in ("store.json", "store.json.bak"):
            with suppress(OSError, ValueError):
                return read_epochs((self.root / name).read_bytes())
        return ()

    def read(self, begin: int, end: int) -> Bytes:
        """The bytes `[begin, end)` of the log, not copied if they lie in one file. Raises Gone or NotYet."""
        parts: list[Bytes] = []
        while begin < end:
            base, data = self._map_at(begin)
            part = data[begin - base : end - base]
            parts.append(part)
            begin += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def _map_at(self, offset: int) -> tuple[int, Bytes]:
        for base, data in self._maps.items():
            if base <= offset < base + len(data):
                return base, data
        segments = segments_in(self._log)
        for segment in segments:
            if segment.base <= offset < segment.end:
                try:
                    with open(segment.path, "rb", buffering=0) as file:
                        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except FileNotFoundError:
                    break
                except OSError as error:
                    raise Unreachable(f"{segment.path} cannot be read: {error.strerror}") from error
                data = self._maps[segment.base] = np.frombuffer(mapped, np.uint8)
                return segment.base, data
        if segments and offset < segments[0].base:
            raise Gone(f"{self.root} has the log from {segments[0].base} on, and is asked for {offset}")
        raise NotYet(f"{self.root} has no file of the log for offset {offset}")

    def _reading(self) -> Reading | None:
        try:
            return self._page.read()
        except StatusPageError:
            return None

    # -- queues --------------------------------------------------------------------------------------------------------

    def bounds(self, queue: QueueId) -> Bounds:
        """The units whose messages can be read; of a queue without files [0, 0)."""
        segments, span = self._segments(queue), self.span()
        if not segments:
            return Bounds(0, 0)
        first, limit = segments[0].base // UNIT.itemsize, segments[-1].end // UNIT.itemsize
        end = _partition(first, limit, lambda at: self._is_before(self._unit(segments, at), span.end))
        if not span.is_said:
            end = self._whole_end(segments, first, end)
        begin = _partition(first, end, lambda at: self._is_gone(self._unit(segments, at), span.begin))
        return Bounds(begin, end)

    def has(self, queue: QueueId, begin: int, end: int) -> bool:
        """Whether units `[begin, end)` are surely within the bounds, at a glance; if not, the bounds may say more."""
        segments, span = self._segments(queue), self.span()
        if not segments or not span.is_said or not segments[0].base <= begin * UNIT.itemsize < end * UNIT.itemsize:
            return False
        is_begun = not self._is_gone(self._unit(segments, begin), span.begin)
        last = self._unit(segments, end - 1)
        return is_begun and int(last["size"]) != FILLER_SIZE and self._is_before(last, span.end)

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        """Exactly these. Raises Gone or NotYet."""
        position, limit = begin * UNIT.itemsize, end * UNIT.itemsize
        data = _bytes_of(self._files.get(queue, ()), position, limit)
        if data is None:
            self._files[queue] = self._segments(queue)
            data = _bytes_of(self._files[queue], position, limit)
        if data is None:
            bounds = self.bounds(queue)
            text = f"{self.root} has [{bounds.begin}, {bounds.end}) of {queue}, and is asked for [{begin}, {end})"
            raise Gone(text) if begin < bounds.begin else NotYet(text)
        return np.frombuffer(data, UNIT)

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        """The first message stored at that time or later; the queue's end if there is none."""
        segments, bounds = self._segments(queue), self.bounds(queue)

        def is_older(at: int) -> bool:
            physical = int(self._unit(segments, at)["physical"])
            try:
                record = self.read(physical, physical + RECORD_BYTES_MIN)
            except Gone:
                return True  # retention deleted its file meanwhile: it is older than whatever is left
            return record_store_timestamp(record.data) < timestamp_ms

        return _partition(bounds.begin, bounds.end, is_older)

    def _segments(self, queue: QueueId) -> tuple[Segment, ...]:
        if topic_fault(queue.topic) is not None or queue.number < 0:
            return ()
        return segments_in(self.root / "consumequeue" / path_component(queue.topic) / str(queue.number))

    def _unit(self, segments: tuple[Segment, ...], at: int) -> Any:
        data = _bytes_of(segments, at * UNIT.itemsize, (at + 1) * UNIT.itemsize)
        # Expired meanwhile, as everything before it.
        return np.frombuffer(data, UNIT)[0] if data is not None else np.array((0, FILLER_SIZE, 0), UNIT)[()]

    def _is_before(self, unit: Any, end: int) -> bool:
        size = int(unit["size"])
        return size == FILLER_SIZE or (size > 0 and int(unit["physical"]) + size <= end)

    def _is_gone(self, unit: Any, begin: int) -> bool:
        return int(unit["size"]) == FILLER_SIZE or int(unit["physical"]) < begin

    def _whole_end(self, segments: tuple[Segment, ...], first: int, end: int) -> int:
        """Behind the last unit that leads to a whole record: the log's end may be torn, or in a buffer."""
        for at in range(end - 1, max(first, end - UNWHOLE_MAX) - 1, -1):
            unit = self._unit(segments, at)
            physical, size = int(unit["physical"]), int(unit["size"])
            if size == FILLER_SIZE:
                return at + 1
            with suppress(Gone, NotYet):
                check = check_record(self.read(physical, physical + size).data, 0, physical_offset=physical)
                if check.is_good and check.size == size:
                    return at + 1
        return max(first, end - UNWHOLE_MAX)


def _bytes_of(segments: tuple[Segment, ...], position: int, end: int) -> bytes | None:
    """The bytes `[position, end)` of some files in a row; None if not all are there."""
    parts: list[bytes] = []
    for segment in segments:
        if segment.base <= position < min(segment.end, end):
            count = min(segment.end, end) - position
            try:
                with open(segment.path, "rb", buffering=0) as file:
                    part = os.pread(file.fileno(), count, position - segment.base)
            except FileNotFoundError:
                return None
            if len(part) != count:
                return None
            parts.append(part)
            position += count
    return b"".join(parts) if position == end else None


def _partition(first: int, last: int, holds: Callable[[int], bool]) -> int:
    """The first of `[first, last)` for which `holds` does not hold."""
    while first < last:
        middle = (first + last) // 2
        if holds(middle):
            first = middle + 1
        else:
            last = middle
    return first
