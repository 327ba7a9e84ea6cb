"""The one writer. The rule: there is one, it enters only what meets the end of the archive, and nobody's data is
deleted."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from spark_kit.toy_archive import archived, enter
from spark_kit.toy_log import ToyLog

from gantry_pipelines.archive.errors import (
    ArchiveBusy,
    FencedOut,
    ManifestBroken,
    NoArchive,
    OtherArchive,
    RangesDoNotMeet,
    UnknownFile,
)
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.layout import WRITER
from gantry_pipelines.archive.lock import ObjectLock
from gantry_pipelines.archive.planning import lost_ranges, pieces_to_write
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.writer import ArchiveWriter
from pyspark_rocketmq.errors import LogForked
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import QueueId, QueueRange

QUEUE = QueueId("orders", "broker-a", 0)
LOG = ToyLog({QUEUE: 250})
FORMAT = ArchiveFormat(100)


def open_in_child(root: str, answer: Any) -> None:
    """In another process."""
    try:
        ArchiveWriter.open(Folder(root), FORMAT).close()
    except ArchiveBusy as error:
        answer.put(str(error))
    else:
        answer.put("")


@pytest.mark.verify
def test_there_is_one_writer(tmp_path: Path) -> None:
    """While one has the archive another is refused and told who has it; afterwards it is not."""
    context = multiprocessing.get_context("forkserver")
    answer = context.Queue()

    def ask() -> str:
        process = context.Process(target=open_in_child, args=(str(tmp_path), answer))
        process.start()
        process.join(120)
        said: str = answer.get(timeout=120)
        return said

    with ArchiveWriter.open(Folder(str(tmp_path)), FORMAT):
        while_open = ask()
    afterwards = ask()

    assert "is being written by process" in while_open
    assert afterwards == ""


def test_a_writer_that_was_taken_over_enters_nothing(tmp_path: Path) -> None:
    """Where the lock is lost without a word the name in the archive is another's: nothing more is entered."""
    storage = Folder(str(tmp_path))
    with ArchiveWriter.open(storage, FORMAT) as writer:
        storage.write(WRITER, json.dumps({"owner": "another", "host": "there", "process": 7}).encode())

        with pytest.raises(FencedOut, match="process 7 on there"):
            enter(LOG, writer)

    assert writer.manifest.files() == [] and not list(tmp_path.glob("data/*/*/*"))


def test_a_batch_that_comes_again_is_entered_once(tmp_path: Path) -> None:
    """The same batch, whole or its rest, changes nothing the second time, and leaves nothing staged."""
    with ArchiveWriter.open(Folder(str(tmp_path)), FORMAT) as writer:
        first = enter(LOG, writer)
        again = writer.commit("query", 0, first)

    assert len(first) == 3 and again == []


def test_a_gap_is_refused(tmp_path: Path) -> None:
    """What does not begin where the archive ends is not entered: a checkpoint of elsewhere, or one that ran ahead."""
    storage = archived(LOG, tmp_path / "one")
    later = ToyLog({QUEUE: 500})
    with ArchiveWriter.open(Folder(str(tmp_path / "two")), FORMAT) as other:
        far = [file for file in enter(later, other) if file.range.begin >= 300]

    with ArchiveWriter.open(storage, FORMAT) as writer, pytest.raises(RangesDoNotMeet, match="up to 250"):
        writer.commit("query", 1, far)


@pytest.mark.parametrize(
    "other",
    [ArchiveFormat(200), ArchiveFormat(100, "Europe/Berlin"), ArchiveFormat(100, columns=FORMAT.columns[:-1])],
    ids=["grid", "zone", "columns"],
)
def test_what_binds_an_archive_does_not_change(tmp_path: Path, other: ArchiveFormat) -> None:
    """Another grid, time zone, or set of columns is refused; the archive stays as it is."""
    storage = archived(LOG, tmp_path)

    with pytest.raises(OtherArchive):
        ArchiveWriter.open(storage, other)
    ArchiveWriter.open(storage, FORMAT).close()


def test_data_without_a_manifest_is_left_alone(tmp_path: Path) -> None:
    """A folder whose manifest is gone is no archive, and what is in it is nobody's to delete."""
    archived(LOG, tmp_path)
    (tmp_path / "_manifest").rename(tmp_path / "gone")

    with pytest.raises(NoArchive, match="no manifest"):
        ArchiveWriter.open(Folder(str(tmp_path)), FORMAT)

    assert len(list(tmp_path.glob("data/*/*/*"))) == 3


def test_a_file_within_the_ranges_stops_the_start(tmp_path: Path) -> None:
    """A file that the manifest does not have shows rows twice: a person looks at it, the archive does not guess."""
    storage = archived(LOG, tmp_path)
    first = sorted(tmp_path.glob("data/*/*/*"))[0]
    first.with_name(first.name.replace("100.parquet", "090.parquet")).write_bytes(first.read_bytes())

    with pytest.raises(UnknownFile, match=r"090\.parquet"):
        ArchiveWriter.open(storage, FORMAT)


def test_a_file_beyond_the_manifest_is_set_aside(tmp_path: Path) -> None:
    """It is not seen any more, and not lost either."""
    storage = archived(LOG, tmp_path)
    last = sorted(tmp_path.glob("data/*/*/*"))[-1]
    sorted(tmp_path.glob("_manifest/records/*/*"))[-1].unlink()

    ArchiveWriter.open(storage, FORMAT).close()

    assert not last.exists() and len(list(tmp_path.glob("_aside/**/*.aside"))) == 1


def test_a_manifest_with_a_gap_is_refused(tmp_path: Path) -> None:
    """A record that is gone is noticed at the start, before anything is written behind it."""
    storage = archived(LOG, tmp_path)
    sorted(tmp_path.glob("_manifest/records/*/*"))[1].unlink()

    with pytest.raises(ManifestBroken, match=r"nothing has \[100, 200\)"):
        ArchiveWriter.open(storage, FORMAT)


def test_a_range_that_is_there_is_not_written_again() -> None:
    """Of a batch that is done again, or begins below the archive's end, only the rest is read; a gap is refused."""
    ranges = [QueueRange(QUEUE, 0, 350)]

    assert [(one.begin, one.end) for one in pieces_to_write(ranges, {QUEUE: 250}, 100)] == [(250, 300), (300, 350)]
    assert pieces_to_write(ranges, {QUEUE: 350}, 100) == []
    with pytest.raises(RangesDoNotMeet, match="delete the checkpoint"):
        pieces_to_write([QueueRange(QUEUE, 260, 350)], {QUEUE: 250}, 100)


def test_messages_that_were_gone_are_written_down(tmp_path: Path) -> None:
    """A range that expired before it was read is in the manifest as lost, so ranges tile; a fork is never hidden."""
    [lost] = lost_ranges([Gap(QUEUE, 200, 300, GapKind.EXPIRED)], {QUEUE: 250})
    with ArchiveWriter.open(archived(LOG, tmp_path), FORMAT) as writer:
        writer.commit("query", 1, [lost])

        assert writer.manifest.faults() == [] and writer.manifest.ends() == {QUEUE: 300}
    assert lost.range == QueueRange(QUEUE, 250, 300)
    assert lost_ranges([Gap(QUEUE, 200, 300, GapKind.EXPIRED)], {}) == []
    with pytest.raises(LogForked):
        lost_ranges([Gap(QUEUE, 200, 300, GapKind.FORKED)], {QUEUE: 300})


class Time:
    """A clock that others do something at."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.doing: list[Any] = []

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        for do in self.doing:
            do()


def test_without_a_lock_of_the_system_a_name_that_grows_is_respected(tmp_path: Path) -> None:
    """Where there is no flock, who wants to write watches: a name that goes on growing keeps its archive."""
    storage, time = Folder(str(tmp_path)), Time()
    owner = {"owner": "a", "host": "there", "process": 7, "beat": 0}
    storage.write(WRITER, json.dumps(owner).encode())

    def beat() -> None:
        owner["beat"] = int(time.seconds)
        storage.write(WRITER, json.dumps(owner).encode())

    time.doing = [beat]
    with pytest.raises(ArchiveBusy, match="process 7 on there"):
        ObjectLock(storage, time.now, time.wait)


def test_without_a_lock_of_the_system_a_dead_name_is_replaced_and_notices(tmp_path: Path) -> None:
    """A name that stands still for long enough is nobody's; who had it and comes back enters nothing."""
    storage, time = Folder(str(tmp_path)), Time()
    first = ObjectLock(storage, time.now, time.wait)
    first._ended.set()

    second = ObjectLock(storage, time.now, time.wait)

    with pytest.raises(FencedOut):
        first.check()
    second.check()
    second.release()
    assert time.seconds >= 60 and not (tmp_path / WRITER).exists()
