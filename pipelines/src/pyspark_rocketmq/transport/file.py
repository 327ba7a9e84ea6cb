"""Read records from a store directory on this machine, whether its broker runs or not.

    status                                the status page: how far the log may be read
    store.json                            the epochs of the log
    commitlog/00000000000000000000        [ record | record | ... | blank )     consecutive files form the log
    consumequeue/<topic>/<queue>/0000...  | physical offset 8 | size 4 | tags code 8 |

The status page has the confirmed and committed positions, and stays valid when its broker is down. A store whose page
cannot be read is not read. A store without a page is Apache's, or a copy: there the queue units define where the log
ends, and only whole records count. This module never writes, and turns a name into a path only through
`queue_location`. Log files are mapped, since they are never shortened, and a record is copied once, into the batch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np

from gantry_status import PageNotFound, PageReader, Reading, StatusPageError
from gantry_store_files import (
    PlainDisk,
    QueueBounds,
    QueueLocation,
    QueueReader,
    Unit,
    has_expired,
    is_filler,
    list_queue_locations,
    queue_location,
    read_identity,
    segment_at,
    segments_of,
)
from gantry_store_files.queue_units import STORE_TIME_BYTES, begins_before, ends_before, head_store_time
from gantry_store_files.store_identity import Epoch
from gantry_wire.message import check_record
from gantry_wire.names import is_probably_internal
from pyspark_rocketmq.model import Bounds, EpochStart, LogState, QueueId, Replica, Task, TransportKind
from pyspark_rocketmq.replica_view import Bytes, NotYetAvailable, Piece, RangeDeleted, Unreachable
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.pieces import UNIT, Units, locate_unit, log_pieces

RANGE_BYTES_MIN: Final = 32 * 1024 * 1024
"""Only the records of a mapped range are touched, so ranges are long, and gaps between records cost nothing."""
GAP_BYTES_MIN: Final = RANGE_BYTES_MIN
"""The least number of unwanted bytes between two records that begin a new range."""
TORN_UNITS_MAX: Final = 100_000
"""How many units at the end of a queue may have no whole record, where no page of the current boot gives the range."""
NO_DIRECTORY: Final = os.devnull
"""The directory of a queue with an invalid name: it lists no files."""


class Span(NamedTuple):
    """The readable range of the log: `[begin, end)`."""

    begin: int
    end: int
    is_from_page: bool
    """Whether a status page of this machine's current boot gave it; otherwise records need a valid CRC."""


def topics_in(directory: str) -> dict[str, tuple[int, ...]]:
    """Return the topics that have queues in a store, except those that look like RocketMQ's own, and their queues."""
    found: dict[str, tuple[int, ...]] = {}
    for location in list_queue_locations(PlainDisk(), directory):
        if not is_probably_internal(location.topic):
            found[location.topic] = (*found.get(location.topic, ()), location.queue_id)
    return found


@final
class Store:
    """One store directory, with maps of its log files. One thread at a time."""

    def __init__(self, directory: str) -> None:
        """Open a store. Raises Unreachable if the directory has none."""
        self.root: Final = Path(directory)
        self._log: Final = self.root / "commitlog"
        if not self._log.is_dir():
            raise Unreachable(f"{directory} is not a readable store: it has no folder commitlog")
        self._page = PageReader(str(self.root / "status"))
        self._maps: dict[int, Bytes] = {}
        self._disk: Final = PlainDisk()
        self._queues: dict[QueueId, QueueReader] = {}
        """Readers with the files that were listed before; files are listed again when one is missing."""

    def __repr__(self) -> str:
        return f"<Store {self.root}>"

    def close(self) -> None:
        """Drop the maps; memory is released with the last batch that was cut from them."""
        self._maps.clear()
        self._page.close()

    # -- the log -------------------------------------------------------------------------------------------------------

    def span(self) -> Span:
        """Return the readable range of the log.

        Raises Unreachable while the broker recovers, and if its status page cannot be read.
        """
        reading = self._read_status()
        if reading is None:
            segments = segments_of(self._disk, str(self._log))
            return Span(segments[0].base_offset, segments[-1].end_offset, False) if segments else Span(0, 0, False)
        status = reading.status
        readable = status.readable
        if readable is None:
            raise Unreachable(
                f"the broker of {self.root} is {status.phase.name.lower()}, and has not reported how far to read"
            )
        return Span(readable.start, readable.end, reading.age_ms is not None)

    def epochs(self) -> list[Epoch]:
        """Return the epochs of the log; none for a store of Apache's."""
        identity = read_identity(self._disk, str(self.root))
        return [] if identity is None else identity.epochs

    def read(self, begin: int, end: int) -> Bytes:
        """Return the bytes `[begin, end)` of the log, not copied if they lie in one file.

        Raises RangeDeleted, NotYetAvailable, or Unreachable if a file cannot be opened.
        """
        parts: list[Bytes] = []
        while begin < end:
            base, data = self._map_at(begin)
            part = data[begin - base : end - base]
            parts.append(part)
            begin += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def _map_at(self, offset: int) -> tuple[int, Bytes]:
        """Return the mapped file that has an offset, and the offset at which it begins."""
        for base, data in self._maps.items():
            if base <= offset < base + len(data):
                return base, data
        segments = segments_of(self._disk, str(self._log))
        segment = segment_at(segments, offset)
        if segment is not None:
            try:
                with open(segment.path, "rb", buffering=0) as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise Unreachable(f"{segment.path} cannot be read: {error.strerror}") from error
            else:
                data = self._maps[segment.base_offset] = np.frombuffer(mapped, np.uint8)
                return segment.base_offset, data
        if segments and offset < segments[0].base_offset:
            raise RangeDeleted(
                f"{self.root} has the log from {segments[0].base_offset} on, but offset {offset} was requested"
            )
        raise NotYetAvailable(f"{self.root} has no file of the log for offset {offset}")

    def _read_status(self) -> Reading | None:
        """Return the broker's publication; None if the directory has no status page.

        Raises Unreachable for a page that cannot be read: it may limit what is readable.
        """
        try:
            return self._page.read()
        except PageNotFound:
            return None
        except StatusPageError as error:
            remedy = "make it readable, or remove it if no broker uses this directory"
            raise Unreachable(f"{error}; {remedy}") from error

    # -- queues --------------------------------------------------------------------------------------------------------

    def bounds(self, queue: QueueId) -> Bounds:
        """Return the units whose messages can be read; [0, 0) for a queue without files."""
        units, span = self._queue(queue), self.span()
        found = units.bounds(span.begin, span.end)
        end = found.end if span.is_from_page else self._find_whole_end(units, found.end)
        return Bounds(min(found.begin, end), end)

    def has_units(self, queue: QueueId, begin: int, end: int) -> bool:
        """Return whether units `[begin, end)` are certainly readable, by a quick check; if not, `bounds` decides."""
        units, span = self._queue(queue), self.span()
        if not span.is_from_page or not units.first <= begin < end <= units.limit:
            return False
        first, last = units.read_single_unit(begin), units.read_single_unit(end - 1)
        is_begun = not has_expired(first[0], first[1], span.begin)
        return is_begun and not is_filler(last) and begins_before(last, span.end) and ends_before(last, span.end)

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        """Return exactly these units. Raises RangeDeleted or NotYetAvailable."""
        known = self._queues.get(queue)
        data = None if known is None else known.read(begin, end)
        if data is None:
            known = self._queues[queue] = self._queue(queue)
            data = known.read(begin, end)
        if data is None:
            bounds = self.bounds(queue)
            text = f"{self.root} has [{bounds.begin}, {bounds.end}) of {queue}, but [{begin}, {end}) was requested"
            raise RangeDeleted(text) if begin < bounds.begin else NotYetAvailable(text)
        return np.frombuffer(data, UNIT)

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        """Return the first message stored at that time or later; the queue's end if there is none."""
        bounds = self.bounds(queue)
        found = QueueBounds(bounds.begin, bounds.end)
        return self._queue(queue).first_stored_at(timestamp_ms, found, self.span().begin, self._store_time)

    def _store_time(self, unit: Unit) -> int | None:
        """Return the store time of a unit's message; None where no record begins, -1 where it was deleted."""
        try:
            head = self.read(unit[0], unit[0] + STORE_TIME_BYTES)
        except RangeDeleted:
            return -1
        except NotYetAvailable:
            if is_filler(unit):
                return None
            raise
        return head_store_time(head.data, unit[0])

    def _queue(self, queue: QueueId) -> QueueReader:
        """Return a reader of the queue's current files; of no files if the name cannot be a topic's."""
        try:
            location = queue_location(str(self.root), queue.topic, queue.number)
        except ValueError:
            location = QueueLocation(queue.topic, queue.number, NO_DIRECTORY)
        return QueueReader(self._disk, location)

    def _find_whole_end(self, units: QueueReader, end: int) -> int:
        """Return the end of the last unit with a whole record: the log's end may be torn, or still in a buffer."""
        first = max(units.first, end - TORN_UNITS_MAX)
        for at in range(end - 1, first - 1, -1):
            unit = units.read_single_unit(at)
            if is_filler(unit):
                return at + 1
            with suppress(RangeDeleted, NotYetAvailable):
                check = check_record(self.read(unit[0], unit[0] + unit[1]).data, 0, physical_offset=unit[0])
                if check.is_good and check.size == unit[1]:
                    return at + 1
        return first


@final
class FileView:
    """A replica that is read by its files."""

    kind: Final = TransportKind.FILE

    def __init__(self, replica: Replica, settings: ReadSettings) -> None:
        """Open a replica's directory. Raises Unreachable if it has no store."""
        assert replica.directory is not None, "only replicas with a directory are read by files"
        self.replica: Final = replica
        self.where: Final = f"{replica.broker}:{replica.number} in {replica.directory}"
        self._settings = replace(
            settings,
            range_bytes=max(settings.range_bytes, RANGE_BYTES_MIN),
            gap_bytes_max=max(settings.gap_bytes_max, GAP_BYTES_MIN),
        )
        self._store = Store(replica.directory)

    def __repr__(self) -> str:
        return f"<FileView {self.where}>"

    @property
    def needs_body_check(self) -> bool:
        """Whether no status page of the current boot covers the log, so that the CRC of every body must be checked."""
        return not self._store.span().is_from_page

    def log(self) -> LogState:
        span = self._store.span()
        epochs = tuple(EpochStart(one.epoch, one.start) for one in self._store.epochs())
        return LogState(self.replica.broker, span.begin, span.end, epochs)

    def bounds(self, queues: tuple[QueueId, ...]) -> dict[QueueId, Bounds]:
        return {queue: self._store.bounds(queue) for queue in queues}

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        return self._store.offset_at(queue, timestamp_ms)

    def locate(self, queue: QueueId, offset: int) -> tuple[int, int]:
        self._require_readable(queue, offset, offset + 1)
        return locate_unit(self.units(queue, offset, offset + 1))

    def pieces(self, task: Task) -> Iterator[Piece]:
        for wanted in task.ranges:
            if wanted.count > 0:
                self._require_readable(wanted.queue, wanted.begin, wanted.end)
        yield from log_pieces(task, self, self._settings)

    def close(self) -> None:
        self._store.close()

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        return self._store.units(queue, begin, end)

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        for begin, end in wanted:
            limit = self._store.span().end
            if end > limit:
                raise NotYetAvailable(f"{self.where} has the log up to {limit}, but {end} was requested")
            yield self._store.read(begin, end)

    def _require_readable(self, queue: QueueId, begin: int, end: int) -> None:
        """Raise RangeDeleted or NotYetAvailable unless all units are readable.

        Units beyond the bounds may be zeros, or of another epoch.
        """
        if self._store.has_units(queue, begin, end):
            return
        bounds = self._store.bounds(queue)
        text = f"{self.where} has [{bounds.begin}, {bounds.end}) of {queue}, but [{begin}, {end}) was requested"
        if end > bounds.end:
            raise NotYetAvailable(text)
        if begin < bounds.begin:
            raise RangeDeleted(text)
