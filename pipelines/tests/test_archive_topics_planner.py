"""The planner of reads from archive and brokers, on a real folder with the archive of a computed log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_kit.fake_catalog import FakeCatalog, FakeClock
from spark_kit.toy_archive import archive_log, archive_new_messages
from spark_kit.toy_log import NOON_US, ToyLog
from spark_kit.toy_run import GRID_ROWS

from gantry_pipelines.archive import topics_planner
from gantry_pipelines.archive.compaction import CompactionRules, compact, expire
from gantry_pipelines.archive.errors import ArchiveError, ManifestBroken
from gantry_pipelines.archive.file_writing import Packing
from gantry_pipelines.archive.fork_check import KnownMessage, check_not_forked, compare_messages, last_messages
from gantry_pipelines.archive.format import ArchiveFormat, read_format
from gantry_pipelines.archive.layout import RECORDS, day_end_ms
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest
from gantry_pipelines.archive.manifest_reader import ManifestReader, read_manifest
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables.links import TableLinks, table_folder
from gantry_pipelines.archive.tables.publication import ManifestState
from gantry_pipelines.archive.topics_planner import ArchivedTopicsPlanner, FileFinder, PlannedRead
from gantry_pipelines.archive.writer import ArchiveWriter
from pyspark_rocketmq.errors import DataLost, InvalidOption, LogForked
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.options import read_options

QUEUE = QueueId("orders", "broker-a", 0)
ARCHIVED = 250
"""The end of the archived offsets, in three files."""
STORED = 300
"""The end of the queue on its broker."""
NOON_MS = NOON_US // 1000
"""The store time of the first message; each later one has a millisecond more."""
DAY_END_MS = day_end_ms("2026-11-22", "UTC")


@pytest.fixture
def archive(tmp_path: Path) -> Folder:
    """An archive of one queue."""
    storage = archive_log(ToyLog({QUEUE: ARCHIVED}), tmp_path / "archive")
    assert isinstance(storage, Folder)
    return storage


@pytest.fixture
def catalog() -> FakeCatalog:
    """A broker that has the archived messages and some more."""
    found = FakeCatalog()
    queue = found.add_queue(QUEUE.topic, QUEUE.broker, QUEUE.number)
    for offset in range(STORED):
        found.append(queue, stored_ms=NOON_MS + offset)
    return found


@pytest.fixture(autouse=True)
def compared(monkeypatch: pytest.MonkeyPatch) -> list[KnownMessage]:
    """The messages that are compared with brokers, which the brokers of this module have as archived."""
    found: list[KnownMessage] = []
    monkeypatch.setattr(topics_planner, "check_not_forked", lambda known, *_: found.extend(known))
    monkeypatch.setattr(topics_planner, "PAUSE_S", 0.0)
    monkeypatch.setattr(topics_planner, "SystemClock", FakeClock)
    return found


def plan(storage: Folder, catalog: FakeCatalog, **options: object) -> PlannedRead:
    """Plan a read of the topic, or of what the options name."""
    named = {"subscribe", "subscribePattern", "assign"} & options.keys()
    given: dict[str, object] = {"nameServers": "127.0.0.1:1", "patience": "1s", **options}
    if not named:
        given["subscribe"] = QUEUE.topic
    parsed = read_options({name: str(value) for name, value in given.items()}, is_stream=False)
    return ArchivedTopicsPlanner(storage, read_format(storage), parsed).plan(catalog)


def spans(read: PlannedRead) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the offsets that are read from the archive, and those from brokers."""
    return (
        [(part.begin, part.end) for part in read.plan.parts],
        [(one.begin, one.end) for one in read.plan.ranges],
    )


def at_queue(offset: int) -> str:
    """Return an offset as an option."""
    return json.dumps({QUEUE.topic: {QUEUE.broker: {str(QUEUE.number): offset}}})


WHOLE = [(0, 100), (100, 200), (200, 250)]


def test_broker_is_read_from_the_end_of_the_archive(
    archive: Folder, catalog: FakeCatalog, compared: list[KnownMessage]
) -> None:
    """Without options everything is read; the last archived message is compared, with its identity."""
    read = plan(archive, catalog)
    assert spans(read) == (WHOLE, [(250, 300)])
    time_us = NOON_US + 249 * 1000
    assert compared == [KnownMessage(QUEUE, 249, (f"{QUEUE}-249", 249 * 500, 500, time_us))]
    assert read.known == tuple(compared)
    assert [read.paths[part.file] for part in read.plan.parts] == [part.file.place.path for part in read.plan.parts]


@pytest.mark.parametrize(
    ("options", "from_archive", "from_broker"),
    [
        ({"startingOffsets": at_queue(150)}, [(150, 200), (200, 250)], [(250, 300)]),
        ({"endingOffsets": at_queue(150)}, [(0, 100), (100, 150)], []),
        ({"startingOffsets": at_queue(260)}, [], [(260, 300)]),
        ({"startingOffsets": at_queue(-2), "endingOffsets": at_queue(-1)}, WHOLE, [(250, 300)]),
        ({"startingOffsets": "latest"}, [], []),
        ({"startingTimestamp": NOON_MS + 170}, [(170, 200), (200, 250)], [(250, 300)]),
        ({"startingTimestamp": NOON_MS + 270}, [], [(270, 300)]),
        ({"endingTimestamp": NOON_MS + 100}, [(0, 100)], []),
        ({"endingTimestamp": NOON_MS + 270}, WHOLE, [(250, 270)]),
        ({"startingOffsetsByTimestamp": at_queue(NOON_MS + 249)}, [(249, 250)], [(250, 300)]),
        ({"startingGroup": "readers"}, [(120, 200), (200, 250)], [(250, 300)]),
        ({"startingGroup": "others", "startingOffsets": "earliest"}, WHOLE, [(250, 300)]),
    ],
)  # fmt: skip
def test_positions_apply_to_archive_and_broker(
    archive: Folder, catalog: FakeCatalog, options: dict[str, object], from_archive: list[Any], from_broker: list[Any]
) -> None:
    """Offsets, times and groups select the same messages as if the broker had all of them; files are pruned."""
    catalog.commit_group("readers", {QUEUE: 120})
    catalog.expire(QUEUE, 220)  # the broker alone could not read earlier messages
    assert spans(plan(archive, catalog, **options)) == (from_archive, from_broker)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": at_queue(301)}, "is beyond"),
        ({"startingTimestamp": NOON_MS + 300}, "has no message of that time or later"),
        ({"assign": '{"orders": {"broker-a": [7]}}'}, "no broker has such a queue"),
        ({"subscribe": "nothing"}, "nothing"),
    ],
)
def test_positions_and_topics_that_nothing_has_are_refused(
    archive: Folder, catalog: FakeCatalog, options: dict[str, object], text: str
) -> None:
    """The errors are those of the source."""
    with pytest.raises(InvalidOption, match=text):
        plan(archive, catalog, **options)


def test_messages_before_the_archive_are_read_from_the_broker(tmp_path: Path, catalog: FakeCatalog) -> None:
    """A queue that is not archived from its beginning has its first messages from the broker."""
    log = ToyLog({QUEUE: ARCHIVED})
    storage = Folder(str(tmp_path / "late"))
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS)) as writer:
        _archive_range(writer, log, QueueRange(QUEUE, 120, 200))
    read = plan(storage, catalog, minPartitions=4)
    assert spans(read) == ([(120, 200)], [(0, 120), (200, 300)])
    offsets = sorted(at for task in read.tasks for one in task.ranges for at in range(one.begin, one.end))
    assert offsets == [*range(120), *range(200, 300)]
    catalog.expire(QUEUE, 50)
    assert spans(plan(storage, catalog)) == ([(120, 200)], [(50, 120), (200, 300)])


# -- missing messages --------------------------------------------------------------------------------------------------


def test_gap_between_archive_and_broker_is_an_error(archive: Folder, catalog: FakeCatalog, tmp_path: Path) -> None:
    """Messages that expired before they were archived stop the read, or are counted."""
    catalog.expire(QUEUE, 260)
    with pytest.raises(DataLost, match=r"\[250, 260\) were deleted from the broker before they were archived; 10 mess"):
        plan(archive, catalog)
    read = plan(archive, catalog, failOnDataLoss="false", gapsPath=str(tmp_path))
    assert spans(read) == (WHOLE, [(260, 300)])
    [gaps] = tmp_path.glob("gaps-*.json")
    assert json.loads(gaps.read_text())["rows"] == 10


def test_gap_is_not_skipped_silently(archive: Folder, catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: without the check of missing messages the read has a gap and no error."""
    catalog.expire(QUEUE, 260)
    monkeypatch.setattr(ArchivedTopicsPlanner, "_accept_missing", lambda *_: None)
    assert spans(plan(archive, catalog)) == (WHOLE, [(260, 300)])


def test_expired_range_is_read_from_the_broker_or_missing(archive: Folder, catalog: FakeCatalog) -> None:
    """After retention the broker's copy is read if it still exists; else the earliest message is a later one."""
    with ArchiveWriter.open(archive) as writer:
        list(expire(writer, 1, DAY_END_MS + 24 * 3_600_000))
    assert spans(plan(archive, catalog)) == ([], [(0, 300)])
    catalog.expire(QUEUE, 240)
    assert spans(plan(archive, catalog)) == ([], [(240, 300)])
    with pytest.raises(DataLost, match=r"\[200, 240\) have expired in the archive, and were deleted from the broker"):
        plan(archive, catalog, startingOffsets=at_queue(200))
    read = plan(archive, catalog, startingOffsets=at_queue(200), failOnDataLoss="false")
    assert spans(read) == ([], [(240, 300)])


# -- forks and deleted topics ------------------------------------------------------------------------------------------


def test_queue_that_ends_before_the_archive_is_an_error(archive: Folder, catalog: FakeCatalog) -> None:
    """A log that was cut below the archived end is an error even if losses are accepted."""
    catalog.fork(QUEUE.broker, 240)
    with pytest.raises(LogForked, match="archived up to 250, but ends at 240 on its broker"):
        plan(archive, catalog, failOnDataLoss="false")


def test_cut_log_without_the_check_reads_messages_of_another_history(
    archive: Folder, catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: without the check the archived messages that the log has lost are returned."""
    catalog.fork(QUEUE.broker, 240)
    monkeypatch.setattr(topics_planner, "_check_ends", lambda *_: None)
    assert spans(plan(archive, catalog)) == (WHOLE, [])


def test_replica_that_is_behind_is_waited_for(
    archive: Folder, catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover a replica may show old ends for a while; then no fork is reported."""
    catalog.brokers[QUEUE.broker].hidden[QUEUE] = 200
    clock = FakeClock()
    clock.at[1] = lambda: catalog.brokers[QUEUE.broker].hidden.clear()
    monkeypatch.setattr(topics_planner, "SystemClock", lambda: clock)
    assert spans(plan(archive, catalog)) == (WHOLE, [(250, 300)])
    assert clock.slept


def test_other_message_at_an_archived_offset_is_a_fork() -> None:
    """A message with another id, place or time at the compared offset is an error; the archived one is none."""
    log = ToyLog({QUEUE: 10})
    row = log.row(QUEUE, 9)
    known = KnownMessage(QUEUE, 9, (row["messageId"], row["physicalOffset"], row["size"], row["storeTime"]))
    compare_messages([known], list(log.batches([QueueRange(QUEUE, 9, 10)])))
    compare_messages([known], [])  # the broker has deleted it
    changes: list[Mapping[str, Any]] = [{"messageId": "other"}, {"physicalOffset": 1}, {"storeTime": NOON_US}]
    for change in changes:
        other = pa.RecordBatch.from_pylist([{**row, **change}], schema=next(log.batches([known_range(known)])).schema)
        with pytest.raises(LogForked, match="keep this archive, and start a new one"):
            compare_messages([known], [other])


def known_range(known: KnownMessage) -> QueueRange:
    """Return the range of one message."""
    return QueueRange(known.queue, known.offset, known.offset + 1)


def test_compared_messages_are_only_those_that_the_broker_has(
    archive: Folder, catalog: FakeCatalog, compared: list[KnownMessage]
) -> None:
    """If the broker has deleted the last archived message, only the offsets must meet."""
    catalog.expire(QUEUE, 250)
    assert spans(plan(archive, catalog)) == (WHOLE, [(250, 300)])
    assert compared == []
    check_not_forked([], (), read_options({"nameServers": "-", "subscribe": "x"}, is_stream=False).settings)


def test_topic_that_only_the_archive_has(archive: Folder) -> None:
    """A deleted topic is an error, unless the end is named or losses are accepted."""
    nothing = FakeCatalog()
    with pytest.raises(DataLost, match="is archived up to 250, but no broker has it"):
        plan(archive, nothing)
    assert spans(plan(archive, nothing, failOnDataLoss="false")) == (WHOLE, [])
    assert spans(plan(archive, nothing, endingOffsets=at_queue(250))) == (WHOLE, [])
    assert spans(plan(archive, nothing, endingTimestamp=NOON_MS + 5)) == ([(0, 5)], [])


def test_pattern_matches_archived_topics(tmp_path: Path) -> None:
    """A pattern selects archived topics and those of brokers, and no internal topic of the archive."""
    retry, other = QueueId("%RETRY%readers", "broker-a", 0), QueueId("others", "broker-a", 0)
    storage = archive_log(ToyLog({QUEUE: 10, retry: 10}), tmp_path / "archive")
    assert isinstance(storage, Folder)
    catalog = FakeCatalog()
    for queue in (QUEUE, other):
        catalog.add_queue(queue.topic, queue.broker, queue.number)
        catalog.append(queue, 12)
    read = plan(storage, catalog, subscribePattern=".*")
    assert {part.file.range.queue for part in read.plan.parts} == {QUEUE}
    assert read.plan.ranges == (QueueRange(QUEUE, 10, 12), QueueRange(other, 0, 12))


# -- files and the manifest --------------------------------------------------------------------------------------------


def test_columns_that_the_archive_lacks_are_refused(tmp_path: Path, catalog: FakeCatalog) -> None:
    """A column, or the tags of a selection, must be in the files; others can be read."""
    storage = Folder(str(tmp_path / "narrow"))
    narrow = tuple(name for name in ArchiveFormat().columns if name not in ("body", "tags"))
    with ArchiveWriter.open(storage, replace(ArchiveFormat(GRID_ROWS), columns=narrow)) as writer:
        archive_new_messages(ToyLog({QUEUE: ARCHIVED}), writer)
    for options, name in (
        ({}, "tags"),
        ({"columns": "offset,body"}, "body"),
        ({"columns": "offset", "tags": "a"}, "tags"),
    ):
        with pytest.raises(InvalidOption, match=f"has no column {name}: name the columns"):
            plan(storage, catalog, **options)
    assert spans(plan(storage, catalog, columns="topic,offset,keys")) == (WHOLE, [(250, 300)])


def test_links_of_tables_are_preferred(archive: Folder, catalog: FakeCatalog) -> None:
    """A planned link outlives a compaction; without links the files of `data` are planned."""
    before = plan(archive, catalog)
    state = ManifestState.of(read_manifest(archive))
    TableLinks(archive).make(QUEUE.topic, state.files[QUEUE.topic], ())
    linked = plan(archive, catalog)
    _compact(archive)
    merged = plan(archive, catalog)
    assert all(path.startswith(table_folder(QUEUE.topic)) for path in linked.paths.values())
    assert all(archive.size(path) for path in linked.paths.values())
    assert not any(archive.size(path) for path in before.paths.values())
    assert spans(merged) == ([(0, 250)], [(250, 300)])


def test_compaction_during_the_plan_is_planned_again(
    archive: Folder, catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If files were exchanged after the manifest was read, the plan is made again from the new manifest."""
    read = ManifestReader.read
    steps: Iterator[None] = iter([None])

    def read_then_compact(self: ManifestReader) -> Manifest:
        manifest = read(self)
        for _ in steps:
            _compact(archive)
        return manifest

    monkeypatch.setattr(ManifestReader, "read", read_then_compact)
    assert spans(plan(archive, catalog)) == ([(0, 250)], [(250, 300)])


def test_missing_file_is_an_error(archive: Folder, catalog: FakeCatalog) -> None:
    """A file of the manifest that was deleted, or has another size, is never left out."""
    path = read_manifest(archive).data()[1].place.path
    archive.write(path, b"cut")
    with pytest.raises(ArchiveError, match=r"is missing in .*: run gantry pipeline verify"):
        plan(archive, catalog)
    archive.remove(path)
    with pytest.raises(ArchiveError, match=r"is missing in .*: run gantry pipeline verify"):
        plan(archive, catalog)


def test_committed_file_that_is_not_renamed_is_read(archive: Folder, catalog: FakeCatalog) -> None:
    """After a kill between commit and rename the staged file is read."""
    [record] = [one for one in read_manifest(archive).records.values() if one.files[0].range.end == ARCHIVED]
    [file] = record.files
    assert file.staged
    archive.publish(file.place.path, file.staged)
    read = plan(archive, catalog)
    assert spans(read) == (WHOLE, [(250, 300)])
    assert read.paths[file] == file.staged


def test_file_that_is_renamed_while_it_is_opened_is_searched_again(
    archive: Folder, catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that starts renames staged files without a new record; a file that stays away is an error."""
    failures = iter([FileNotFoundError("renamed")])

    def read_later(*given: Any) -> list[KnownMessage]:
        for error in failures:
            raise error
        return last_messages(*given)

    monkeypatch.setattr(topics_planner, "last_messages", read_later)
    assert spans(plan(archive, catalog)) == (WHOLE, [(250, 300)])
    failures = iter([FileNotFoundError("renamed")] * 2)
    with pytest.raises(ArchiveError, match="renamed"):
        plan(archive, catalog)


def test_merged_day_that_is_not_exchanged_is_read(archive: Folder) -> None:
    """After a kill between the record of a compaction and its exchange the merged file is read."""
    _compact(archive)
    [record] = read_manifest(archive).live()
    [file] = record.files
    archive.publish(file.place.path, f"{record.exchange}/{file.place.name}")
    finder = FileFinder(archive, read_manifest(archive))
    assert finder.find([file]) == {file: f"{record.exchange}/{file.place.name}"}


def test_listing_that_lacks_a_record_is_repeated(
    archive: Folder, catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing during a compaction may have neither the old records nor the new one; nothing is skipped for that."""
    catalog.expire(QUEUE, 250)
    hide_records(monkeypatch)
    assert spans(plan(archive, catalog)) == (WHOLE, [(250, 300)])


def test_one_listing_may_skip_messages(archive: Folder, catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: a plan from a single listing begins after the records that the listing lacks."""
    catalog.expire(QUEUE, 250)
    hide_records(monkeypatch)
    monkeypatch.setattr(ManifestReader, "read_settled", ManifestReader.read)
    assert spans(plan(archive, catalog)) == (WHOLE[1:], [(250, 300)])


def hide_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a record from each of the first two listings."""
    read = ManifestReader.read
    hidden = iter([100, 200])

    def read_partly(self: ManifestReader) -> Manifest:
        manifest = read(self)
        end = next(hidden, None)
        kept = (one for one in manifest.records.values() if end is None or one.files[0].range.end != end)
        return Manifest.of(kept)

    monkeypatch.setattr(ManifestReader, "read", read_partly)


def test_manifest_with_a_permanent_hole_is_refused(archive: Folder, catalog: FakeCatalog) -> None:
    """A record that is missing for good is a broken manifest, even if the broker has its messages."""
    [name] = [one.name for one in read_manifest(archive).records.values() if one.files[0].range.end == 200]
    archive.remove(f"{RECORDS}/{name}")
    with pytest.raises(ManifestBroken, match="do not tile"):
        plan(archive, catalog)


def _compact(archive: Folder) -> None:
    """Merge the files of the day."""
    with ArchiveWriter.open(archive) as writer:
        assert list(compact(writer, CompactionRules(after_ms=0), Packing(), DAY_END_MS))


def _archive_range(writer: ArchiveWriter, log: ToyLog, one: QueueRange) -> list[ArchivedFile]:
    """Archive one range of the log."""
    from gantry_pipelines.archive.file_writing import write_files
    from gantry_pipelines.archive.grid import split_on_grid

    pieces = list(split_on_grid(one, writer.format.grid_rows))
    files = list(write_files(log.batches(pieces), pieces, writer.storage, writer.format, Packing()))
    return writer.commit("query", 0, files)
