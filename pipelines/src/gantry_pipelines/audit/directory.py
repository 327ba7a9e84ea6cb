"""A copy of a log that lies in a directory: a store as RocketMQ and we write it.

    commitlog/00000000000000000000        records; the file's name is the offset at which it begins
    consumequeue/<topic>/<queue>/0000...  | physical offset 8 | size 4 | tags code 8 |
    recovery-point.json, store.json       ours: how far all is durable, and who wrote what; Apache's stores have none
    abort                                 there while a broker runs, and after a stop that was none

How much of the log counts: where a store was stopped cleanly, all that it says it has, wherever that is said
(recovery point, queues, the log itself): an end that was cut off must not make the log look shorter. While a broker
runs, or after a crash, only what the recovery point calls durable, which is never beyond what is confirmed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, final
from zlib import crc32

from gantry_pipelines.audit.copies import (
    OFFSET_MAX,
    PIECE_BYTES,
    UNIT_BYTES,
    Algorithm,
    Bytes,
    CopyState,
    joined,
    steps,
    summed,
)
from gantry_pipelines.audit.errors import CopyUnreachable
from gantry_pipelines.audit.model import Span
from gantry_pipelines.audit.units import UNIT, last_unit_end
from gantry_wire.message import RecordFault, check_record
from gantry_wire.names import path_component, topic_fault

NAME_DIGITS: Final = 20
RECORD_BYTES_MAX: Final = 64 << 20


class Segment(NamedTuple):
    """One file, named by where it begins."""

    base: int
    size: int
    path: str

    @property
    def end(self) -> int:
        return self.base + self.size


def segments_in(directory: Path) -> list[Segment]:
    """The files of a log or of a queue, by offset; none where there is no directory.

    A file that retention takes away between the listing and the question for its size is not there; the others are.
    """
    try:
        with os.scandir(directory) as entries:
            listed = [entry for entry in entries if _is_segment(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[Segment] = []
    for entry in listed:
        with suppress(FileNotFoundError):
            found.append(Segment(int(entry.name), entry.stat().st_size, entry.path))
    return sorted(found)


@contextmanager
def opened(segment: Segment) -> Iterator[BinaryIO | None]:
    """The segment, open for reading; None where retention has deleted it since it was listed.

    Every reader treats such a segment as if it had not been listed.
    """
    try:
        file = open(segment.path, "rb", buffering=0)  # noqa: SIM115
    except FileNotFoundError:
        yield None
        return
    with file:
        yield file


def _is_segment(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def sealed_line(path: Path) -> dict[str, Any] | None:
    """A file of ours that is a CRC in hex and then JSON; None where it is not there, or damaged."""
    try:
        crc, _, body = path.read_bytes().partition(b"\n")
        if int(crc, 16) != crc32(body):
            return None
        document = json.loads(body)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _last_used(log: list[Segment]) -> int:
    """Where the last file begins that has a record: brokers make files before they need them."""
    for segment in reversed(log):
        with opened(segment) as file:
            if file is not None and any(file.read(8)):
                return segment.base
    return 0


@final
class DirectoryCopy:
    """A store's directory. Opens files as it reads; holds none open."""

    def __init__(self, root: str) -> None:
        self._root: Final = Path(root)
        if not (self._root / "commitlog").is_dir():
            raise CopyUnreachable(f"{root} is no store: it has no folder commitlog")

    def __repr__(self) -> str:
        return f"<DirectoryCopy {self._root}>"

    def close(self) -> None:
        """Nothing is held open."""

    # -- what it says --------------------------------------------------------------------------------------------------

    def state(self) -> CopyState:
        """See the module."""
        log = segments_in(self._root / "commitlog")
        point = sealed_line(self._root / "recovery-point.json")
        through = int(point["through"]) if point else 0
        begin = log[0].base if log else through
        is_unfinished = (self._root / "abort").exists()
        notes: tuple[str, ...] = ()
        if is_unfinished:
            end = through
            notes = ("a broker has it open, or it was not stopped cleanly: only what is durable is looked at",)
        else:
            end = max(through, self._queues_end(), self._walked_end(log, max(through, begin, _last_used(log))))
        units_end = OFFSET_MAX
        if point and not is_unfinished and through < end:
            units_end = through
            notes = (f"the last {end - through} bytes were not confirmed to it: its next start makes their units",)
        deleted = {str(topic): int(place) for topic, place in (point or {}).get("deleted", {}).items()}
        return CopyState(Span(begin, max(end, begin)), is_unfinished, self._ours(), deleted, notes, units_end)

    def _ours(self) -> tuple[Span, ...] | None:
        """Where every record must have a seal. Nowhere, where we never wrote."""
        names = ("store.json", "store.json.bak")
        if not any((self._root / name).exists() for name in names):
            return ()
        identity = next((found for name in names if (found := sealed_line(self._root / name))), None)
        if identity is None:
            return None
        epochs = identity["epochs"]
        ends = [int(one["start"]) for one in epochs[1:]] + [OFFSET_MAX]
        spans = [Span(int(one["start"]), end) for one, end in zip(epochs, ends, strict=True) if one["is_ours"]]
        return joined(spans)

    def _walked_end(self, log: list[Segment], start: int) -> int:
        """Where the records end that follow `start`, a place at which one begins or would begin."""
        offset = start
        for segment in log:
            if segment.end <= offset:
                continue
            if segment.base > offset:
                break
            data = self.read(offset, segment.end).data
            position = 0
            while position < len(data):
                check = check_record(data, position, physical_offset=offset + position)
                if not check.size or check.fault not in (None, RecordFault.BLANK):
                    return offset + position
                position += check.size
            offset = segment.end
        return offset

    def _queues_end(self) -> int:
        """Behind the record to which the furthest unit leads."""
        furthest = 0
        for topic, queue in self.queues():
            first, end = self.queue_end(topic, queue)
            if end > first:
                physical, size, _ = UNIT.unpack(self.units(topic, queue, end - 1, 1))
                if 0 <= physical < OFFSET_MAX and 0 < size <= RECORD_BYTES_MAX:
                    furthest = max(furthest, physical + size)
        return self._clamped(furthest)

    def _clamped(self, end: int) -> int:
        """A unit with a spoilt place must not make the log endless: one file more than there is, at most."""
        log = segments_in(self._root / "commitlog")
        return min(end, log[-1].end + log[-1].size) if log else 0

    # -- the log -------------------------------------------------------------------------------------------------------

    def checksum(self, begin: int, end: int, algorithm: Algorithm) -> str | None:
        """None where a file is gone or too short."""
        texts: list[str] = []
        for low, high in steps(begin, end):
            data = self.read(low, high)
            if data.holes:
                return None
            texts.append(summed(data.data, algorithm))
        return " ".join(texts)

    def read(self, begin: int, end: int) -> Bytes:
        """With zeros where no file has bytes."""
        parts: list[bytes] = []
        holes: list[Span] = []
        for piece in self._pieces(begin, end):
            if isinstance(piece, Span):
                holes.append(piece)
                parts.append(bytes(piece.length))
            else:
                parts.append(piece)
        return Bytes(begin, b"".join(parts), joined(holes))

    def _pieces(self, begin: int, end: int) -> Iterator[bytes | Span]:
        """The range in order: bytes, or the span of a hole."""
        offset = begin
        for segment in segments_in(self._root / "commitlog"):
            if segment.end <= offset or segment.base >= end:
                continue
            with opened(segment) as file:
                if file is None:
                    continue
                if segment.base > offset:
                    yield Span(offset, segment.base)
                    offset = segment.base
                stop = min(segment.end, end)
                while offset < stop:
                    data = os.pread(file.fileno(), min(PIECE_BYTES, stop - offset), offset - segment.base)
                    if not data:
                        yield Span(offset, stop)
                        data = b""
                        offset = stop
                    else:
                        yield data
                        offset += len(data)
        if offset < end:
            yield Span(offset, end)

    # -- queues --------------------------------------------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """All that have a folder."""
        found: list[tuple[str, int]] = []
        root = self._root / "consumequeue"
        for topic in sorted(os.listdir(root)) if root.is_dir() else ():
            if topic_fault(topic) is None:
                # A topic that is deleted meanwhile has no queues.
                with suppress(FileNotFoundError, NotADirectoryError):
                    found += [(topic, int(name)) for name in sorted(os.listdir(root / topic)) if name.isdigit()]
        return found

    def knows_topic(self, topic: str) -> bool | None:
        """What was deleted stands in the recovery point; the table of topics may be older than the log."""
        return None

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        """By the last unit that is not empty, wherever there are holes before it."""
        segments = self._queue(topic, queue)
        if not segments:
            return 0, 0
        for segment in reversed(segments):
            with opened(segment) as file:
                end = 0 if file is None else last_unit_end(file.read())
            if end:
                return segments[0].base // UNIT_BYTES, (segment.base + end) // UNIT_BYTES
        return segments[0].base // UNIT_BYTES, segments[0].base // UNIT_BYTES

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        """Zeros where no file has bytes; fillers are zeros, too."""
        begin, end = first * UNIT_BYTES, (first + count) * UNIT_BYTES
        result = bytearray(end - begin)
        for segment in self._queue(topic, queue):
            low, high = max(segment.base, begin), min(segment.end, end)
            if low < high:
                with opened(segment) as file:
                    data = b"" if file is None else os.pread(file.fileno(), high - low, low - segment.base)
                result[low - begin : low - begin + len(data)] = data
        return bytes(result)

    def _queue(self, topic: str, queue: int) -> list[Segment]:
        return segments_in(self._root / "consumequeue" / path_component(topic) / str(queue))
