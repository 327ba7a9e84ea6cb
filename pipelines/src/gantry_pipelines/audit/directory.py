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

from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from gantry_pipelines.audit.copies import OFFSET_MAX, Algorithm, Bytes, CopyState, joined, steps, summed
from gantry_pipelines.audit.errors import CopyUnreachable
from gantry_pipelines.audit.model import Span
from gantry_store_files import (
    UNIT,
    UNIT_BYTES,
    PlainDisk,
    Segment,
    is_empty,
    queue_place,
    queue_places,
    read_identity,
    read_span,
    segments_of,
)
from gantry_store_files.recovery_point import RecoveryPointHead, read_recovery_point
from gantry_store_files.store_identity import IDENTITY_FILE, IDENTITY_TWIN
from gantry_wire.message import RECORD_BYTES_MAX, RecordFault, check_record


@final
class DirectoryCopy:
    """A store's directory. Opens files as it reads; holds none open."""

    def __init__(self, root: str) -> None:
        self._root: Final = Path(root)
        self._disk: Final = PlainDisk()
        if not (self._root / "commitlog").is_dir():
            raise CopyUnreachable(f"{root} is no store: it has no folder commitlog")

    def __repr__(self) -> str:
        return f"<DirectoryCopy {self._root}>"

    def close(self) -> None:
        """Nothing is held open."""

    # -- what it says --------------------------------------------------------------------------------------------------

    def state(self) -> CopyState:
        """See the module."""
        log = self._log()
        point = self._point()
        through = point.through if point is not None else 0
        begin = log[0].base_offset if log else through
        is_unfinished = (self._root / "abort").exists()
        notes: tuple[str, ...] = ()
        if is_unfinished:
            end = through
            notes = ("a broker has it open, or it was not stopped cleanly: only what is durable is looked at",)
        else:
            end = max(through, self._queues_end(), self._walked_end(log, max(through, begin, self._last_used(log))))
        units_end = OFFSET_MAX
        if point is not None and not is_unfinished and through < end:
            units_end = through
            notes = (f"the last {end - through} bytes were not confirmed to it: its next start makes their units",)
        deleted = point.deleted if point is not None else {}
        return CopyState(Span(begin, max(end, begin)), is_unfinished, self._ours(), deleted, notes, units_end)

    def _ours(self) -> tuple[Span, ...] | None:
        """Where every record must have a seal. Nowhere, where we never wrote."""
        if not any((self._root / name).exists() for name in (IDENTITY_FILE, IDENTITY_TWIN)):
            return ()
        identity = read_identity(self._disk, str(self._root))
        if identity is None:
            return None
        ends = [*(one.start for one in identity.epochs[1:]), OFFSET_MAX]
        return joined([Span(one.start, end) for one, end in zip(identity.epochs, ends, strict=True) if one.is_ours])

    def _point(self) -> RecoveryPointHead | None:
        """The recovery point that this store's next start would believe; None if there is none."""
        return read_recovery_point(self._disk, str(self._root), read_identity(self._disk, str(self._root)))

    def _log(self) -> tuple[Segment, ...]:
        return segments_of(self._disk, f"{self._root}/commitlog")

    def _last_used(self, log: Sequence[Segment]) -> int:
        """Where the last file begins that has a record: brokers make files before they need them."""
        for segment in reversed(log):
            if any(read_span(self._disk, [segment], segment.base_offset, segment.base_offset + 8).data):
                return segment.base_offset
        return 0

    def _walked_end(self, log: Sequence[Segment], start: int) -> int:
        """Where the records end that follow `start`, a place at which one begins or would begin."""
        offset = start
        for segment in log:
            if segment.end_offset <= offset:
                continue
            if segment.base_offset > offset:
                break
            data = self.read(offset, segment.end_offset).data
            position = 0
            while position < len(data):
                check = check_record(data, position, physical_offset=offset + position)
                if not check.size or check.fault not in (None, RecordFault.BLANK):
                    return offset + position
                position += check.size
            offset = segment.end_offset
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
        log = self._log()
        return min(end, log[-1].end_offset + log[-1].size) if log else 0

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
        data, holes = read_span(self._disk, self._log(), begin, end)
        return Bytes(begin, data, tuple(Span(low, high) for low, high in holes))

    # -- queues --------------------------------------------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """All that have a folder."""
        return [(place.topic, place.queue_id) for place in queue_places(self._disk, str(self._root))]

    def knows_topic(self, topic: str) -> bool | None:
        """What was deleted stands in the recovery point; the table of topics may be older than the log."""
        return None

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        """By the last unit that is not empty, wherever there are holes before it."""
        segments = self._queue(topic, queue)
        first = segments[0].base_offset // UNIT_BYTES if segments else 0
        for segment in reversed(segments):
            end = last_unit_end(read_span(self._disk, [segment], segment.base_offset, segment.end_offset).data)
            if end:
                return first, (segment.base_offset + end) // UNIT_BYTES
        return first, first

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        """Zeros where no file has bytes; fillers are as they lie there."""
        return read_span(self._disk, self._queue(topic, queue), first * UNIT_BYTES, (first + count) * UNIT_BYTES).data

    def _queue(self, topic: str, queue: int) -> tuple[Segment, ...]:
        return segments_of(self._disk, queue_place(str(self._root), topic, queue).directory)


def last_unit_end(data: bytes) -> int:
    """Behind the last unit in a file that is a message's, in bytes; 0 if there is none."""
    end = -(-len(data.rstrip(b"\0")) // UNIT_BYTES) * UNIT_BYTES
    while end and is_empty(UNIT.unpack_from(data.ljust(end, b"\0"), end - UNIT_BYTES)):
        end -= UNIT_BYTES
    return end
