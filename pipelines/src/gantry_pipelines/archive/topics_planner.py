"""Plan a read of topics from an archive and its brokers, from one state of the manifest and of the files.

The manifest and the files may change at any moment, since a reader takes no lock. A plan that finds a file missing, or
messages lost, is made again from a newer manifest, until nothing has changed meanwhile.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gantry_pipelines.archive.errors import ArchiveError, ManifestBroken
from gantry_pipelines.archive.fork_check import (
    ADVICE,
    KnownMessage,
    check_not_forked,
    comparable_files,
    last_messages,
)
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest, RangeKind
from gantry_pipelines.archive.manifest_reader import ManifestReader
from gantry_pipelines.archive.planning import split_into_rounds
from gantry_pipelines.archive.read_planning import (
    LiveRanges,
    ReadPlan,
    archived_ends,
    available_bounds,
    live_ranges,
    plan_read,
)
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.tables.links import table_folder
from gantry_wire.names import is_internal_topic
from pyspark_rocketmq.batch_reader import locate_extents, plan_catalog_tasks, split_options
from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import DataLost, InvalidOption, LogForked
from pyspark_rocketmq.gaps import Gap, GapKind, record_gaps
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange, Task
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.position_check import PositionChecker
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.selection import PositionKind

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 20
"""Plans before the planner gives up; a plan only fails if the writer replaces files at the same moment."""

PAUSE_S: Final = 0.1
"""Seconds between two plans, and between two searches for a file that is about to be renamed."""

SEARCHES_MAX: Final = 20
"""Searches for files under their final names, before a plan takes staged ones, which the next start of a writer
renames: a writer that runs needs a moment, and one that was killed does not rename them."""


@final
@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A plan, its tasks and files, and what the brokers must still have when it is executed."""

    plan: ReadPlan
    tasks: tuple[Task, ...]
    """The tasks that read the ranges of brokers."""
    paths: Mapping[ArchivedFile, str]
    """Where each file was found, relative to the archive's root."""
    known: tuple[KnownMessage, ...]
    columns: tuple[str, ...]
    """The columns of all files."""


@final
class ArchivedTopicsPlanner:
    """Plans one read from a consistent state of the manifest."""

    def __init__(self, storage: Storage, archive_format: ArchiveFormat, options: ReadOptions) -> None:
        """Create a planner. Raises InvalidOption if the archive lacks a column that is needed."""
        self._storage: Final = storage
        self._options: Final = options
        self._columns: Final = archive_format.columns
        self._manifests: Final = ManifestReader(storage)
        needed = {*options.columns, *(("tags",) if options.tags is not None else ())}
        lacking = [name for name in COLUMNS if name in needed - {"topic", *archive_format.columns}]
        if lacking:
            raise InvalidOption(
                f"the archive in {storage} has no column {lacking[0]}: name the columns to be read with the option"
                f" columns; the archive has topic, {', '.join(archive_format.columns)}"
            )

    def plan(self, catalog: CatalogPort) -> PlannedRead:
        """Plan the read. Plans again if the writer has changed the manifest or the files meanwhile."""
        manifest, is_repeated = self._manifests.read_settled(), False
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._plan(manifest, catalog)
            except (FileNotFoundError, DataLost, ManifestBroken) as error:
                # Messages may have been archived, and then deleted, after the manifest was read.
                time.sleep(PAUSE_S)
                newer = self._manifests.read_settled()
                is_same = newer.records.keys() == manifest.records.keys()
                manifest = newer
                if is_same and isinstance(error, FileNotFoundError) and not is_repeated:
                    is_repeated = True  # a staged file may have been renamed, which does not change the manifest
                elif is_same and isinstance(error, FileNotFoundError):
                    raise ArchiveError(f"{error}: run gantry pipeline verify, and restore the file") from error
                elif is_same:
                    raise
        raise ArchiveError(f"{self._storage}: files were replaced during {ATTEMPTS_MAX} plans: read again later")

    def _plan(self, manifest: Manifest, catalog: CatalogPort) -> PlannedRead:
        faults = manifest.faults()
        if faults:
            raise ManifestBroken(f"ranges of the manifest in {self._storage} do not tile: {faults[0]}")
        at_brokers, not_found = self._options.subscription.find_queues(catalog)
        archived = frozenset(queue for queue in manifest.ends() if self._is_selected(queue))
        if not_found is not None and not self._options.subscription.covers({*archived, *at_brokers}):
            raise not_found
        live = live_ranges(manifest.files(), archived)
        bounds = self._wait_for_bounds(at_brokers, live, catalog)
        finder = FileFinder(self._storage, manifest)
        wanted = self._wanted(live, bounds, CombinedOffsets(catalog, live, bounds, self._storage, finder))
        plan = plan_read(wanted, live, bounds)
        read_queues = {part.file.range.queue for part in plan.parts}
        compared = comparable_files(live, bounds, read_queues)
        paths = finder.find([*(part.file for part in plan.parts), *compared])
        _check_ends(live, bounds, read_queues)
        known = last_messages(self._storage, compared, paths.__getitem__)
        for broker in sorted({one.queue.broker for one in known}):
            of_broker = [one for one in known if one.queue.broker == broker]
            check_not_forked(of_broker, catalog.replicas(broker), self._options.settings)
        self._accept_missing(plan.missing, live)
        return PlannedRead(plan, self._plan_tasks(plan.ranges, catalog), paths, tuple(known), self._columns)

    def _plan_tasks(self, ranges: Sequence[QueueRange], catalog: CatalogPort) -> tuple[Task, ...]:
        """Return the tasks that read from brokers."""
        options = self._options
        extents = [extent for some in split_into_rounds(ranges) for extent in locate_extents(some, catalog)]
        return tuple(plan_catalog_tasks(extents, catalog, split_options(options, options.columns, options.tags)))

    def _is_selected(self, queue: QueueId) -> bool:
        """Return whether a queue of the archive is read; as at brokers, a pattern matches no internal topic."""
        subscription = self._options.subscription
        return subscription.matches(queue) and not (subscription.pattern and is_internal_topic(queue.topic))

    def _wait_for_bounds(
        self, at_brokers: Sequence[QueueId], live: LiveRanges, catalog: CatalogPort
    ) -> dict[QueueId, Bounds]:
        """Return the bounds at brokers; waits for replicas that are behind the archive, as after a failover."""
        if not at_brokers:
            return {}
        patience_ms = self._options.settings.patience_ms
        checker = PositionChecker(catalog, SystemClock(), patience_ms=patience_ms, is_loss_fatal=False)
        ends = {queue: end for queue, end in archived_ends(live).items() if queue in set(at_brokers)}
        return dict(checker.check(ends, {}, at_brokers).bounds)

    def _wanted(
        self, live: LiveRanges, bounds: Mapping[QueueId, Bounds], offsets: "CombinedOffsets"
    ) -> list[QueueRange]:
        """Return the range of each queue that the options select. Raises InvalidOption and DataLost."""
        available = available_bounds(live, bounds)
        begins = self._options.start.resolve(available, offsets)
        ends = self._options.end.resolve(available, offsets)
        wanted = [QueueRange(queue, begins[queue], max(begins[queue], ends[queue])) for queue in sorted(available)]
        for one in wanted:
            if one.queue not in bounds and one.end >= available[one.queue].end:
                self._accept_absent(one)
        return [one for one in wanted if one.count]

    def _accept_absent(self, one: QueueRange) -> None:
        """Accept that messages after the archived ones cannot be read. Raises DataLost."""
        end = self._options.end
        if end.kind is PositionKind.OFFSETS and end.offsets[one.queue] >= 0:
            return
        if self._options.is_loss_fatal:
            raise DataLost(
                f"{one.queue} is archived up to {one.end}, but no broker has it: later messages may be lost; name"
                " endingOffsets, or set failOnDataLoss=false, to read the archived ones"
            )
        log.warning("no broker has archived queue; reading only its archive", extra={"queue": str(one.queue)})

    def _accept_missing(self, missing: Sequence[QueueRange], live: LiveRanges) -> None:
        """Record messages that neither the archive nor a broker has. Raises DataLost."""
        if missing and self._options.is_loss_fatal:
            one, count = missing[0], sum(other.count for other in missing)
            kinds = {file.kind for file in live.get(one.queue, ()) if _overlap(file.range, one)}
            reason = "were deleted from the broker before they were archived"
            if kinds == {RangeKind.EXPIRED}:
                reason = "have expired in the archive, and were deleted from the broker"
            elif kinds == {RangeKind.LOST}:
                reason = "are recorded as lost in the archive"
            raise DataLost(
                f"{one} {reason}; {count} messages are missing in {len(missing)} ranges: choose another start, or set"
                " failOnDataLoss=false to skip and count them"
            )
        gaps = [Gap(one.queue, one.begin, one.end, GapKind.EXPIRED) for one in missing]
        record_gaps(self._options.gaps_path, gaps)


def _overlap(one: QueueRange, other: QueueRange) -> bool:
    return one.queue == other.queue and one.begin < other.end and other.begin < one.end


def _check_ends(live: LiveRanges, bounds: Mapping[QueueId, Bounds], queues: Iterable[QueueId]) -> None:
    """Raise LogForked if a broker's queue ends before the archived messages that are read."""
    ends = archived_ends(live)
    for queue in sorted(queues):
        if queue in bounds and bounds[queue].end < ends[queue]:
            raise LogForked(
                f"{queue} is archived up to {ends[queue]}, but ends at {bounds[queue].end} on its broker: the log"
                f" was cut or forked, or the topic was created again; {ADVICE}"
            )


# -- where files are ---------------------------------------------------------------------------------------------------


@final
class FileFinder:
    """Finds the files of one state of the manifest, which a writer may be about to rename."""

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage: Final = storage
        self._manifest: Final = manifest

    def find(self, files: Iterable[ArchivedFile]) -> dict[ArchivedFile, str]:
        """Return the path of each file, relative to the root. Raises FileNotFoundError.

        An object store has each file at its final path, which is not looked up.
        """
        wanted = set(files)
        if not isinstance(self._storage, Folder):
            return {file: file.place.path for file in wanted}
        found: dict[ArchivedFile, str] = {}
        for _ in range(SEARCHES_MAX):
            found |= self._exist((file, _lasting_paths(file)) for file in sorted(wanted - found.keys(), key=_by_place))
            if len(found) == len(wanted):
                return found
            staged = self._exist((file, self._staged_paths(file)) for file in wanted - found.keys())
            lost = sorted(file.place.path for file in wanted - found.keys() - staged.keys())
            if lost:  # it may have been renamed after its final path was checked
                found |= self._exist((file, _lasting_paths(file)) for file in wanted - found.keys())
                lost = [path for path in lost if path not in {file.place.path for file in found}]
            if lost:
                raise FileNotFoundError(f"{lost[0]} is missing in {self._storage}")
            time.sleep(PAUSE_S)
        found |= self._exist((file, self._staged_paths(file)) for file in wanted - found.keys())
        if len(found) < len(wanted):
            raise FileNotFoundError(f"files of {self._storage} were renamed during {SEARCHES_MAX} searches")
        return found

    def _exist(self, candidates: Iterable[tuple[ArchivedFile, Sequence[str]]]) -> dict[ArchivedFile, str]:
        """Return the first path of each file at which a file of its size exists."""
        found: dict[ArchivedFile, str] = {}
        for file, paths in candidates:
            path = next((path for path in paths if self._storage.size(path) == file.size_bytes), None)
            if path is not None:
                found[file] = path
        return found

    def _staged_paths(self, file: ArchivedFile) -> list[str]:
        """Return where a file is that is committed and not published: staged, or in a day that is being exchanged."""
        exchanges = [record.exchange for record in self._manifest.live() if record.exchange and file in record.files]
        return [*([file.staged] if file.staged else []), *(f"{folder}/{file.place.name}" for folder in exchanges)]


def _by_place(file: ArchivedFile) -> Any:
    return file.place


def _lasting_paths(file: ArchivedFile) -> tuple[str, str]:
    """Return where a file stays: as the link of a table, which outlives a compaction, and in `data`."""
    link = f"{table_folder(file.range.queue.topic)}/{file.place.partition.folder}/{file.place.name}"
    return link, file.place.path


# -- offsets of times --------------------------------------------------------------------------------------------------


@final
class CombinedOffsets:
    """Offsets of times and groups in the archive and its brokers together."""

    def __init__(
        self, catalog: CatalogPort, live: LiveRanges, bounds: Mapping[QueueId, Bounds], storage: Storage,
        finder: FileFinder,
    ) -> None:  # fmt: skip
        self._catalog: Final = catalog
        self._live: Final = live
        self._bounds: Final = bounds
        self._storage: Final = storage
        self._finder: Final = finder

    def offsets_at(self, queues: Sequence[QueueId], timestamp_ms: int) -> dict[QueueId, int]:
        """Return for each queue its first message stored at that time or later, or its end if there is none."""
        at_brokers = self._catalog.offsets_at([queue for queue in queues if queue in self._bounds], timestamp_ms)
        first_files = {queue: file for queue in queues if (file := self._first_file(queue, timestamp_ms)) is not None}
        paths = self._finder.find(first_files.values())
        ends = available_bounds(self._live, self._bounds)
        found: dict[QueueId, int] = {}
        for queue in queues:
            offsets = [ends[queue].end]
            if queue in at_brokers and at_brokers[queue] < self._bounds[queue].end:
                offsets.append(at_brokers[queue])
            if queue in first_files:
                offsets.append(self._first_offset(paths[first_files[queue]], timestamp_ms))
            found[queue] = min(offsets)
        return found

    def group_offsets(self, group: str, queues: Sequence[QueueId]) -> dict[QueueId, int | None]:
        """Return the committed offsets of a consumer group; None where it has none."""
        known = self._catalog.group_offsets(group, [queue for queue in queues if queue in self._bounds])
        return {queue: known.get(queue) for queue in queues}

    def _first_file(self, queue: QueueId, timestamp_ms: int) -> ArchivedFile | None:
        for file in self._live.get(queue, ()):
            if file.kind is RangeKind.DATA and file.last_time_us >= timestamp_ms * 1000:
                return file
        return None

    def _first_offset(self, path: str, timestamp_ms: int) -> int:
        """Return the offset of the first message of a file that was stored at that time or later."""
        limit = pa.scalar(timestamp_ms * 1000, pa.int64())
        with self._storage.open(path) as opened, pq.ParquetFile(opened) as parquet:
            for batch in parquet.iter_batches(columns=["offset", "storeTime"]):
                is_late = pc.greater_equal(batch.column("storeTime").cast(pa.int64()), limit)
                offsets: list[Any] = batch.column("offset").filter(is_late).slice(0, 1).to_pylist()
                if offsets:
                    return int(offsets[0])
        raise ManifestBroken(f"{path} has no message of the last store time that the manifest has for it")
