"""A copy of a log in a directory: a store of RocketMQ or Gantry.

    commitlog/00000000000000000000        records; the file's name is the offset at which it begins
    consumequeue/<topic>/<queue>/0000...  | physical offset 8 | size 4 | tags code 8 |
    recovery-point.json, store.json       Gantry only: how far all is durable, and which epochs Gantry has written
    abort                                 exists while a broker runs, and after a crash

The audited part of the log: for a store that was stopped cleanly, up to the furthest end that the recovery point, the
queues or the log itself indicate, so that a log that was cut off is found. While a broker runs, or after a crash, only
up to the recovery point, which is never beyond what is confirmed; without one the copy cannot be audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from gantry_pipelines.audit.copies import (
    OFFSET_MAX,
    Algorithm,
    Bytes,
    CopyState,
    checksum_steps,
    checksum_text,
    merge_spans,
)
from gantry_pipelines.audit.errors import CopyUnreachable
from gantry_pipelines.audit.model import Span
from gantry_store_files import (
    UNIT,
    UNIT_BYTES,
    PlainDisk,
    Segment,
    is_empty,
    list_queue_locations,
    queue_location,
    read_identity,
    read_span,
    segments_of,
)
from gantry_store_files.recovery_point import RecoveryPointHead, read_recovery_point
from gantry_store_files.store_identity import IDENTITY_BACKUP, IDENTITY_FILE
from gantry_wire.message import RECORD_BYTES_MAX, RecordFault, check_record


@final
class DirectoryCopy:
    """The copy in a store's directory. It opens files for each read, and keeps none open."""

    def __init__(self, root: str) -> None:
        self._root: Final = Path(root)
        self._disk: Final = PlainDisk()
        if not (self._root / "commitlog").is_dir():
            raise CopyUnreachable(f"{root} is not a store: it has no folder commitlog")

    def __repr__(self) -> str:
        return f"<DirectoryCopy {self._root}>"

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> CopyState:
        """Return the audited part of the log; see the module's docstring.

        Raises ``CopyUnreachable`` where no part of a log can be audited.
        """
        log = self._log_segments()
        recovery_point = self._recovery_point()
        through = recovery_point.through if recovery_point is not None else 0
        begin = log[0].base_offset if log else through
        is_unfinished = (self._root / "abort").exists()
        notes: tuple[str, ...] = ()
        if is_unfinished and log and recovery_point is None:
            raise CopyUnreachable(
                f"{self._root}: a broker runs, or the store was not stopped cleanly, and it has no recovery point: "
                "no part of the log can be audited; stop the broker cleanly"
            )
        if is_unfinished:
            end = through
            notes = (
                "a broker is running, or the store was not stopped cleanly: audited up to the recovery point only",
            )
        else:
            end = max(through, self._queues_end(), self._records_end(log, max(through, begin, self._last_used(log))))
        units_end = OFFSET_MAX
        if recovery_point is not None and not is_unfinished and through < end:
            units_end = through
            notes = (f"the last {end - through} bytes were not yet confirmed: the next start builds their units",)
        deleted = recovery_point.deleted if recovery_point is not None else {}
        return CopyState(Span(begin, max(end, begin)), is_unfinished, self._sealed_spans(), deleted, notes, units_end)

    def _sealed_spans(self) -> tuple[Span, ...] | None:
        """Return where every record must have a seal: in the epochs that Gantry has written; None if unknown."""
        if not any((self._root / name).exists() for name in (IDENTITY_FILE, IDENTITY_BACKUP)):
            return ()
        identity = read_identity(self._disk, str(self._root))
        if identity is None:
            return None
        ends = [*(one.start for one in identity.epochs[1:]), OFFSET_MAX]
        return merge_spans(
            [Span(one.start, end) for one, end in zip(identity.epochs, ends, strict=True) if one.is_ours]
        )

    def _recovery_point(self) -> RecoveryPointHead | None:
        """Return the recovery point that the next start of this store would use; None if there is none."""
        return read_recovery_point(self._disk, str(self._root), read_identity(self._disk, str(self._root)))

    def _log_segments(self) -> tuple[Segment, ...]:
        return segments_of(self._disk, f"{self._root}/commitlog")

    def _last_used(self, log: Sequence[Segment]) -> int:
        """Return the begin of the last file that has a record: brokers create files in advance."""
        for segment in reversed(log):
            if any(read_span(self._disk, [segment], segment.base_offset, segment.base_offset + 8).data):
                return segment.base_offset
        return 0

    def _records_end(self, log: Sequence[Segment], start: int) -> int:
        """Return the end of the records from `start` on, a position at which a record begins or would begin."""
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
        """Return the end of the furthest record that the last unit of a queue points to."""
        furthest = 0
        for topic, queue in self.queues():
            first, end = self.queue_end(topic, queue)
            if end > first:
                physical, size, _ = UNIT.unpack(self.units(topic, queue, end - 1, 1))
                if 0 <= physical < OFFSET_MAX and 0 < size <= RECORD_BYTES_MAX:
                    furthest = max(furthest, physical + size)
        return self._clamp_end(furthest)

    def _clamp_end(self, end: int) -> int:
        """Limit an end to one file after the last one, because a damaged unit may point anywhere."""
        log = self._log_segments()
        return min(end, log[-1].end_offset + log[-1].size) if log else 0

    # -- the log -------------------------------------------------------------------------------------------------------

    def checksum(self, begin: int, end: int, algorithm: Algorithm) -> str | None:
        """Return the checksum of a range; None if a file is missing or too short."""
        texts: list[str] = []
        for low, high in checksum_steps(begin, end):
            data = self.read(low, high)
            if data.holes:
                return None
            texts.append(checksum_text(data.data, algorithm))
        return " ".join(texts)

    def read(self, begin: int, end: int) -> Bytes:
        """Read a range, with zeros where no file has bytes."""
        data, holes = read_span(self._disk, self._log_segments(), begin, end)
        return Bytes(begin, data, tuple(Span(low, high) for low, high in holes))

    # -- queues --------------------------------------------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """Return all queues that have a folder."""
        return [(location.topic, location.queue_id) for location in list_queue_locations(self._disk, str(self._root))]

    def knows_topic(self, topic: str) -> bool | None:
        """Return None: the topic table may be older than the log; the recovery point has deleted topics."""
        return None

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the range of offsets up to the last unit that is not empty, across holes before it."""
        segments = self._queue_segments(topic, queue)
        first = segments[0].base_offset // UNIT_BYTES if segments else 0
        for segment in reversed(segments):
            end = last_unit_end(read_span(self._disk, [segment], segment.base_offset, segment.end_offset).data)
            if end:
                return first, (segment.base_offset + end) // UNIT_BYTES
        return first, first

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        """Read units, with zeros where no file has bytes; fillers are returned unchanged."""
        return read_span(
            self._disk, self._queue_segments(topic, queue), first * UNIT_BYTES, (first + count) * UNIT_BYTES
        ).data

    def _queue_segments(self, topic: str, queue: int) -> tuple[Segment, ...]:
        return segments_of(self._disk, queue_location(str(self._root), topic, queue).directory)


def last_unit_end(data: bytes) -> int:
    """Return the end in bytes of the last unit in a file that is neither empty nor a filler; 0 if there is none."""
    end = -(-len(data.rstrip(b"\0")) // UNIT_BYTES) * UNIT_BYTES
    while end and is_empty(UNIT.unpack_from(data.ljust(end, b"\0"), end - UNIT_BYTES)):
        end -= UNIT_BYTES
    return end
