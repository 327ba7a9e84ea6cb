"""Records out of a store's directory that this machine sees, read while its broker runs, or does not.

    status                                the page: how far the log may be read
    store.json                            who wrote which part of it
    commitlog/00000000000000000000        [ record | record | ... | blank )     the log is these, one behind the other
    consumequeue/<topic>/<queue>/0000...  | physical offset 8 | size 4 | tags code 8 |

The page says what was confirmed and committed, and stays true when its broker is gone. A store without one is Apache's,
or a copy: there the queues' units say how far it goes, and a record counts if it is whole. Nothing here writes, and no
name becomes a path but through `path_component`. Log files are mapped, since nobody ever shortens one, and a record is
copied once, into the batch.
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

from gantry_status import PageReader, Reading, StatusPageError
from gantry_store_files import (
    PlainDisk,
    QueueBounds,
    QueuePlace,
    QueueReader,
    Unit,
    has_expired,
    is_filler,
    queue_place,
    queue_places,
    read_identity,
    segment_at,
    segments_of,
)
from gantry_store_files.queue_units import STORE_TIME_BYTES, begins_before, ends_before, head_store_time
from gantry_store_files.store_identity import Epoch
from gantry_wire.message import check_record
from gantry_wire.names import looks_internal
from pyspark_rocketmq.model import Bounds, EpochStart, LogState, QueueId, Replica, Task, TransportKind
from pyspark_rocketmq.replica_view import Bytes, Gone, NotYet, Piece, Unreachable
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.pieces import UNIT, Units, log_pieces, place_of

RANGE_BYTES_MIN: Final = 32 * 1024 * 1024
"""Nothing of a mapped range is touched but its records, so ranges are long, and gaps between records are free."""
GAP_BYTES_MIN: Final = RANGE_BYTES_MIN
UNWHOLE_MAX: Final = 100_000
"""How many units at a queue's end may lead to nothing whole, in a store without a page."""
NO_DIRECTORY: Final = os.devnull
"""Where a queue lies that cannot be: nothing is listed there."""


class Span(NamedTuple):
    """What of the log can be read: `[begin, end)`."""

    begin: int
    end: int
    is_said: bool
    """By a page of this machine's run; otherwise records are believed only with their CRC."""


def topics_in(directory: str) -> dict[str, tuple[int, ...]]:
    """Topics that have queues in a store, without RocketMQ's own, and the numbers of these queues."""
    found: dict[str, tuple[int, ...]] = {}
    for place in queue_places(PlainDisk(), directory):
        if not looks_internal(place.topic):
            found[place.topic] = (*found.get(place.topic, ()), place.queue_id)
    return found


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
        self._disk: Final = PlainDisk()
        self._queues: dict[QueueId, QueueReader] = {}
        """With the files that were listed before; they are listed again when something is missing from them."""

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
            segments = segments_of(self._disk, str(self._log))
            return Span(segments[0].base_offset, segments[-1].end_offset, False) if segments else Span(0, 0, False)
        status = reading.status
        readable = status.readable
        if readable is None:
            raise Unreachable(
                f"the broker of {self.root} is {status.phase.name.lower()}, and has not said how far to read"
            )
        return Span(readable.start, readable.end, reading.age_ms is not None)

    def epochs(self) -> list[Epoch]:
        """Who wrote which part; none of a store of Apache's."""
        identity = read_identity(self._disk, str(self.root))
        return [] if identity is None else identity.epochs

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
            raise Gone(f"{self.root} has the log from {segments[0].base_offset} on, and is asked for {offset}")
        raise NotYet(f"{self.root} has no file of the log for offset {offset}")

    def _reading(self) -> Reading | None:
        try:
            return self._page.read()
        except StatusPageError:
            return None

    # -- queues --------------------------------------------------------------------------------------------------------

    def bounds(self, queue: QueueId) -> Bounds:
        """The units whose messages can be read; of a queue without files [0, 0)."""
        units, span = self._queue(queue), self.span()
        found = units.bounds(span.begin, span.end)
        end = found.end if span.is_said else self._whole_end(units, found.end)
        return Bounds(min(found.begin, end), end)

    def has(self, queue: QueueId, begin: int, end: int) -> bool:
        """Whether units `[begin, end)` are surely within the bounds, at a glance; if not, the bounds may say more."""
        units, span = self._queue(queue), self.span()
        if not span.is_said or not units.first <= begin < end <= units.limit:
            return False
        first, last = units.lone_unit(begin), units.lone_unit(end - 1)
        is_begun = not has_expired(first[0], first[1], span.begin)
        return is_begun and not is_filler(last) and begins_before(last, span.end) and ends_before(last, span.end)

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        """Exactly these. Raises Gone or NotYet."""
        known = self._queues.get(queue)
        data = None if known is None else known.read(begin, end)
        if data is None:
            known = self._queues[queue] = self._queue(queue)
            data = known.read(begin, end)
        if data is None:
            bounds = self.bounds(queue)
            text = f"{self.root} has [{bounds.begin}, {bounds.end}) of {queue}, and is asked for [{begin}, {end})"
            raise Gone(text) if begin < bounds.begin else NotYet(text)
        return np.frombuffer(data, UNIT)

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        """The first message stored at that time or later; the queue's end if there is none."""
        bounds = self.bounds(queue)
        found = QueueBounds(bounds.begin, bounds.end)
        return self._queue(queue).first_stored_at(timestamp_ms, found, self.span().begin, self._store_time)

    def _store_time(self, unit: Unit) -> int | None:
        """When the message at a unit's place was stored; None where none begins, -1 where it has expired."""
        try:
            head = self.read(unit[0], unit[0] + STORE_TIME_BYTES)
        except Gone:
            return -1
        except NotYet:
            if is_filler(unit):
                return None
            raise
        return head_store_time(head.data, unit[0])

    def _queue(self, queue: QueueId) -> QueueReader:
        """Its files as they are now; none for a name that cannot be a topic's."""
        try:
            place = queue_place(str(self.root), queue.topic, queue.number)
        except ValueError:
            place = QueuePlace(queue.topic, queue.number, NO_DIRECTORY)
        return QueueReader(self._disk, place)

    def _whole_end(self, units: QueueReader, end: int) -> int:
        """Behind the last unit that leads to a whole record: the log's end may be torn, or in a buffer."""
        first = max(units.first, end - UNWHOLE_MAX)
        for at in range(end - 1, first - 1, -1):
            unit = units.lone_unit(at)
            if is_filler(unit):
                return at + 1
            with suppress(Gone, NotYet):
                check = check_record(self.read(unit[0], unit[0] + unit[1]).data, 0, physical_offset=unit[0])
                if check.is_good and check.size == unit[1]:
                    return at + 1
        return first


@final
class FileView:
    """A replica, by its files."""

    kind: Final = TransportKind.FILE

    def __init__(self, replica: Replica, settings: ReadSettings) -> None:
        """Raises Unreachable where there is no store."""
        assert replica.directory is not None, "only replicas with a directory are read so"
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
    def is_doubtful(self) -> bool:
        """Whether no page vouches for the log, so that every record has to prove itself."""
        return not self._store.span().is_said

    def log(self) -> LogState:
        span = self._store.span()
        epochs = tuple(EpochStart(one.epoch, one.start) for one in self._store.epochs())
        return LogState(self.replica.broker, span.begin, span.end, epochs)

    def bounds(self, queues: tuple[QueueId, ...]) -> dict[QueueId, Bounds]:
        return {queue: self._store.bounds(queue) for queue in queues}

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        return self._store.offset_at(queue, timestamp_ms)

    def place(self, queue: QueueId, offset: int) -> tuple[int, int]:
        self._demand(queue, offset, offset + 1)
        return place_of(self.units(queue, offset, offset + 1))

    def pieces(self, task: Task) -> Iterator[Piece]:
        for wanted in task.ranges:
            if wanted.count > 0:
                self._demand(wanted.queue, wanted.begin, wanted.end)
        yield from log_pieces(task, self, self._settings)

    def close(self) -> None:
        self._store.close()

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        return self._store.units(queue, begin, end)

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        for begin, end in wanted:
            limit = self._store.span().end
            if end > limit:
                raise NotYet(f"{self.where} has the log up to {limit}, and is asked for {end}")
            yield self._store.read(begin, end)

    def _demand(self, queue: QueueId, begin: int, end: int) -> None:
        """Raises Gone or NotYet unless all of it can be read: units beyond that may be zeros, or another history's."""
        if self._store.has(queue, begin, end):
            return
        bounds = self._store.bounds(queue)
        text = f"{self.where} has [{bounds.begin}, {bounds.end}) of {queue}, and is asked for [{begin}, {end})"
        if end > bounds.end:
            raise NotYet(text)
        if begin < bounds.begin:
            raise Gone(text)
