"""The archive's writer: only one is active, it adds only ranges that begin at the archive's end, and it deletes no
foreign data."""

from __future__ import annotations

import ctypes
import errno
import json
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spark_kit.toy_archive import archive_log, archive_new_messages
from spark_kit.toy_log import ToyLog

from gantry_pipelines.archive.compaction import CompactionRules, compact
from gantry_pipelines.archive.errors import (
    ArchiveBusy,
    CannotCompact,
    CannotLock,
    FencedOut,
    ManifestBroken,
    NoArchive,
    OtherArchive,
    RangesDoNotMeet,
    UnknownFile,
)
from gantry_pipelines.archive.file_writing import Packing
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.layout import WRITER
from gantry_pipelines.archive.lock import FolderLock, ObjectLock
from gantry_pipelines.archive.object_storage import ObjectStorage
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
    """Open the archive in another process, and answer with the error."""
    try:
        ArchiveWriter.open(Folder(root), FORMAT).close()
    except ArchiveBusy as error:
        answer.put(str(error))
    else:
        answer.put("")


@pytest.mark.verify
def test_second_writer_is_refused_while_the_first_is_open(tmp_path: Path) -> None:
    """The error names the process that holds the lock; after it is closed another writer can open the archive."""
    context = multiprocessing.get_context("forkserver")
    answer = context.Queue()

    def ask() -> str:
        process = context.Process(target=open_in_child, args=(str(tmp_path), answer))
        process.start()
        process.join(120)
        text: str = answer.get(timeout=120)
        return text

    with ArchiveWriter.open(Folder(str(tmp_path)), FORMAT):
        while_open = ask()
    afterwards = ask()

    assert "is being written by process" in while_open
    assert afterwards == ""


def test_fenced_writer_adds_no_record(tmp_path: Path) -> None:
    """If the lock is lost silently, `writer.json` names another owner, and no record is added."""
    storage = Folder(str(tmp_path))
    with ArchiveWriter.open(storage, FORMAT) as writer:
        storage.write(WRITER, json.dumps({"owner": "another", "host": "there", "process": 7}).encode())

        with pytest.raises(FencedOut, match="process 7 on there"):
            archive_new_messages(LOG, writer)

    assert writer.manifest.files() == [] and not list(tmp_path.glob("data/*/*/*"))


def test_repeated_batch_is_added_once(tmp_path: Path) -> None:
    """The same files change nothing the second time."""
    with ArchiveWriter.open(Folder(str(tmp_path)), FORMAT) as writer:
        first = archive_new_messages(LOG, writer)
        again = writer.commit("query", 0, first)

    assert len(first) == 3 and again == []


def test_gap_after_end_of_archive_is_refused(tmp_path: Path) -> None:
    """A range that does not begin where the archive ends is not added: the checkpoint is foreign, or ahead."""
    storage = archive_log(LOG, tmp_path / "one")
    later = ToyLog({QUEUE: 500})
    with ArchiveWriter.open(Folder(str(tmp_path / "two")), FORMAT) as other:
        far = [file for file in archive_new_messages(later, other) if file.range.begin >= 300]

    with ArchiveWriter.open(storage, FORMAT) as writer, pytest.raises(RangesDoNotMeet, match="up to 250"):
        writer.commit("query", 1, far)


@pytest.mark.parametrize(
    "other",
    [ArchiveFormat(200), ArchiveFormat(100, "Europe/Berlin"), ArchiveFormat(100, columns=FORMAT.columns[:-1])],
    ids=["grid", "zone", "columns"],
)
def test_format_of_archive_does_not_change(tmp_path: Path, other: ArchiveFormat) -> None:
    """Another grid, time zone, or set of columns is refused; the archive stays as it is."""
    storage = archive_log(LOG, tmp_path)

    with pytest.raises(OtherArchive):
        ArchiveWriter.open(storage, other)
    ArchiveWriter.open(storage, FORMAT).close()


def test_data_without_manifest_is_not_changed(tmp_path: Path) -> None:
    """A folder without a manifest is no archive, and its files are not deleted."""
    archive_log(LOG, tmp_path)
    (tmp_path / "_manifest").rename(tmp_path / "gone")

    with pytest.raises(NoArchive, match="data files but no manifest"):
        ArchiveWriter.open(Folder(str(tmp_path)), FORMAT)

    assert len(list(tmp_path.glob("data/*/*/*"))) == 3


def test_unknown_file_within_archived_ranges_stops_the_start(tmp_path: Path) -> None:
    """A file that is not in the manifest may show rows twice: an administrator has to decide about it."""
    storage = archive_log(LOG, tmp_path)
    first = sorted(tmp_path.glob("data/*/*/*"))[0]
    first.with_name(first.name.replace("100.parquet", "090.parquet")).write_bytes(first.read_bytes())

    with pytest.raises(UnknownFile, match=r"090\.parquet"):
        ArchiveWriter.open(storage, FORMAT)


def test_file_after_end_of_manifest_is_moved_aside(tmp_path: Path) -> None:
    """Readers do not see it any more, but it is kept in `_aside`."""
    storage = archive_log(LOG, tmp_path)
    last = sorted(tmp_path.glob("data/*/*/*"))[-1]
    sorted(tmp_path.glob("_manifest/records/*/*"))[-1].unlink()

    ArchiveWriter.open(storage, FORMAT).close()

    assert not last.exists() and len(list(tmp_path.glob("_aside/**/*.aside"))) == 1


def test_manifest_with_a_gap_is_refused(tmp_path: Path) -> None:
    """A missing record is detected at the start, before anything is written after it."""
    storage = archive_log(LOG, tmp_path)
    sorted(tmp_path.glob("_manifest/records/*/*"))[1].unlink()

    with pytest.raises(ManifestBroken, match=r"\[100, 200\) is missing"):
        ArchiveWriter.open(storage, FORMAT)


def test_archived_range_is_not_written_again() -> None:
    """Of a batch that begins before the archive's end only the rest is read; a gap is refused."""
    ranges = [QueueRange(QUEUE, 0, 350)]

    assert [(one.begin, one.end) for one in pieces_to_write(ranges, {QUEUE: 250}, 100)] == [(250, 300), (300, 350)]
    assert pieces_to_write(ranges, {QUEUE: 350}, 100) == []
    with pytest.raises(RangesDoNotMeet, match="delete the checkpoint"):
        pieces_to_write([QueueRange(QUEUE, 260, 350)], {QUEUE: 250}, 100)


def test_expired_messages_are_recorded_as_lost(tmp_path: Path) -> None:
    """A range that expired before it was read is lost in the manifest, so that ranges tile; a fork is an error."""
    [lost] = lost_ranges([Gap(QUEUE, 200, 300, GapKind.EXPIRED)], {QUEUE: 250})
    with ArchiveWriter.open(archive_log(LOG, tmp_path), FORMAT) as writer:
        writer.commit("query", 1, [lost])

        assert writer.manifest.faults() == [] and writer.manifest.ends() == {QUEUE: 300}
    assert lost.range == QueueRange(QUEUE, 250, 300)
    assert lost_ranges([Gap(QUEUE, 200, 300, GapKind.EXPIRED)], {}) == []
    with pytest.raises(LogForked):
        lost_ranges([Gap(QUEUE, 200, 300, GapKind.FORKED)], {QUEUE: 300})


class Time:
    """A fake clock that runs actions while a test waits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.doing: list[Any] = []

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        for do in self.doing:
            do()


def test_file_system_without_locks_is_no_other_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the cause; it does not name a process that has ended long ago."""
    storage = Folder(str(tmp_path))
    storage.write(WRITER, json.dumps({"owner": "a", "host": "there", "process": 7}).encode())

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("gantry_pipelines.archive.lock.fcntl.flock", refuse)
    with pytest.raises(CannotLock, match=r"No locks available.*use a file system with locks"):
        FolderLock(storage)


class LibraryWithoutExchange:
    """A C library whose `renameat2` fails as on NFS: the names are looked up before the flag is refused."""

    def renameat2(self, _: int, one: bytes, __: int, other: bytes, ___: int) -> int:
        ctypes.set_errno(errno.EINVAL if os.path.exists(one) and os.path.exists(other) else errno.ENOENT)
        return -1


def test_folder_without_exchange_is_not_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is CannotCompact, which a run reports before it continues, and the archive stays as it is."""
    storage = archive_log(LOG, tmp_path)
    before = storage.paths("data")
    monkeypatch.setattr("gantry_pipelines.archive.storage.ctypes.CDLL", lambda *_, **__: LibraryWithoutExchange())

    with ArchiveWriter.open(storage) as writer, pytest.raises(CannotCompact, match="cannot exchange two folders"):
        list(compact(writer, CompactionRules(), Packing(), LOG.first_us // 1000 + 10 * 86_400_000))

    assert len(before) > 1 and storage.paths("data") == before
    assert not list(tmp_path.glob("_staged/try-*"))


def test_object_store_is_not_compacted() -> None:
    """An object store has no folders that could be exchanged."""
    writer: Any = SimpleNamespace(storage=ObjectStorage("s3://bucket/archive"))

    with pytest.raises(CannotCompact, match="s3://bucket/archive"):
        list(compact(writer, CompactionRules(), Packing(), 0))


def test_object_lock_respects_an_owner_that_renews(tmp_path: Path) -> None:
    """Without flock a new writer watches the owner's number: while it grows, the archive is busy."""
    storage, time = Folder(str(tmp_path)), Time()
    owner = {"owner": "a", "host": "there", "process": 7, "beat": 0}
    storage.write(WRITER, json.dumps(owner).encode())

    def beat() -> None:
        owner["beat"] = int(time.seconds)
        storage.write(WRITER, json.dumps(owner).encode())

    time.doing = [beat]
    with pytest.raises(ArchiveBusy, match="process 7 on there"):
        ObjectLock(storage, time.now, time.wait)


def test_object_lock_is_taken_over_from_a_dead_owner_which_is_fenced(tmp_path: Path) -> None:
    """An owner that has not renewed for long enough loses the lock; if it continues, its check fails."""
    storage, time = Folder(str(tmp_path)), Time()
    first = ObjectLock(storage, time.now, time.wait)
    first._ended.set()

    second = ObjectLock(storage, time.now, time.wait)

    with pytest.raises(FencedOut):
        first.check()
    second.check()
    second.release()
    assert time.seconds >= 60 and not (tmp_path / WRITER).exists()
