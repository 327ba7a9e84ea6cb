"""The metadata of Iceberg tables in a folder: commits are durable, and old metadata is deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot
from spark_kit.iceberg_files import Archive, change, paths_of, rows_of

from gantry_pipelines.archive.settings import CatalogParameters
from gantry_pipelines.archive.tables import iceberg, iceberg_snapshots
from gantry_pipelines.archive.tables.folder_catalog import HINT, DurableFileIO, FolderCatalog, MetadataFolder
from gantry_pipelines.archive.tables.model import TableUnavailable
from gantry_spec.pipelines.parts import CatalogKind


class Killed(BaseException):
    """Stands for a kill of the process."""


def kill_process(*_: object, **__: object) -> None:
    """Take the place of a step that a kill prevents."""
    raise Killed


def set_clock(monkeypatch: pytest.MonkeyPatch, ahead_s: int) -> None:
    """Set the clock of the process ahead."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Return an archive in a folder, whose table does not exist yet."""
    return Archive(str(tmp_path / "archive"))


# -- durability --------------------------------------------------------------------------------------------------------


def test_manifests_are_durable_before_the_version_is_visible(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of a version is synced before the version gets its name, and the version before the hint names it."""
    table = archive.open()
    assert table.paths() == frozenset()
    steps: list[str] = []
    fsync, link, replace = os.fsync, os.link, os.replace

    def recorded_fsync(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    def recorded_link(source: Path, target: Path) -> None:
        link(source, target)
        steps.append(f"link {target.name}")

    def recorded_replace(source: Path, target: Path) -> None:
        replace(source, target)
        steps.append(f"replace {target.name}")

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "link", recorded_link)
    monkeypatch.setattr(os, "replace", recorded_replace)
    before = archive.metadata()

    table.commit(change(archive.files))

    new = archive.metadata() - before
    [version] = [name for name in new if name.endswith(".metadata.json")]
    linked = steps.index(f"link {version}")
    manifests = {name for name in new if name.endswith(".avro")}
    assert len(manifests) == 2 and manifests <= set(steps[:linked])
    assert any(name.endswith(".tmp") for name in steps[:linked]), "the version is synced under a temporary name"
    assert steps.index("metadata", linked) < steps.index(f"replace {HINT}")


def test_commit_survives_a_kill_before_the_hint(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version counts when its file exists; the next open finds it, and corrects the hint for readers."""
    table = archive.open()
    table.commit(change(archive.files[:1]))
    with monkeypatch.context() as patch:
        patch.setattr(MetadataFolder, "replace", kill_process)
        with pytest.raises(Killed):
            table.commit(change(archive.files[1:]))
    assert rows_of(archive.reader()) == archive.rows((0, 12)), "the hint is old"

    table = archive.open()

    assert table.paths() == paths_of(archive.files)
    assert rows_of(archive.reader()) == archive.rows((0, 48))
    table.commit(change(archive.late_files))
    assert rows_of(archive.reader()) == archive.rows((0, 60))


def test_commit_is_undone_by_a_kill_before_the_version(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its version file a commit has not happened, and files that it left do not disturb the next one."""
    table = archive.open()
    table.commit(change(archive.files[:1]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", kill_process)
        with pytest.raises(Killed):
            table.commit(change(archive.files[1:]))

    table = archive.open()

    assert table.paths() == paths_of(archive.files[:1])
    table.commit(change(archive.files[1:]))
    assert rows_of(archive.reader()) == archive.rows((0, 48))


def test_version_is_never_replaced(tmp_path: Path) -> None:
    """A file with the name of the next version makes the commit fail, and stays as it is."""
    folder = MetadataFolder(DurableFileIO(), str(tmp_path))
    folder.create("v1.metadata.json", b"one")

    with pytest.raises(FileExistsError):
        folder.create("v1.metadata.json", b"two")

    assert folder.read("v1.metadata.json") == b"one"
    assert [info.base_name for info in folder.files()] == ["v1.metadata.json"]


@pytest.mark.parametrize("is_refreshed", [False, True])
def test_commit_after_the_change_of_another_writer_is_refused(archive: Archive, is_refreshed: bool) -> None:
    """A change is the difference to the state that was read: with another state it could add a file twice."""
    one, other = archive.open(), archive.open()
    assert other.paths() == frozenset()
    one.commit(change(archive.files[:1]))
    if is_refreshed:
        other.expire(0)

    for _ in range(2):
        with pytest.raises(TableUnavailable, match="another writer has changed it"):
            other.commit(change(archive.files))

    assert other.paths() == paths_of(archive.files[:1])
    other.commit(change(archive.files[1:]))
    other.commit(change(archive.late_files))
    assert rows_of(archive.reader()) == archive.rows((0, 60))


def test_change_of_another_writer_during_a_commit_is_not_passed(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg does not repeat a commit on a state that the publisher has not read."""
    one, other = archive.open(), archive.open()
    one.paths()
    commit_table = FolderCatalog.commit_table

    def commit_late(catalog: FolderCatalog, *arguments: Any) -> Any:
        monkeypatch.setattr(FolderCatalog, "commit_table", commit_table)
        other.commit(change(archive.files[:1]))
        return commit_table(catalog, *arguments)

    monkeypatch.setattr(FolderCatalog, "commit_table", commit_late)
    with pytest.raises(TableUnavailable, match="another writer has changed it"):
        one.commit(change(archive.files))

    assert one.paths() == paths_of(archive.files[:1])


@pytest.mark.parametrize("behind_s", [50, 70])
def test_commit_with_a_clock_before_the_last_change(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, behind_s: int
) -> None:
    """Iceberg's Java library does not read a table whose history goes back by more than a minute."""
    table = archive.open()
    table.commit(change(archive.files[:1]))
    table.commit(change(archive.files[1:2]))
    versions = archive.metadata()
    set_clock(monkeypatch, -behind_s)

    if behind_s < 60:
        table.commit(change(archive.files[2:]))
        assert rows_of(archive.reader()) == archive.rows((0, 48))
        return
    with pytest.raises(TableUnavailable, match=r"the clock of this host is \d+ s before the last change of the table"):
        table.commit(change(archive.files[2:]))
    with pytest.raises(TableUnavailable, match="the clock of this host"):
        table.expire(int(time.time() * 1000) + 200_000)
    assert archive.metadata() == versions


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_metadata_is_bounded_with_many_commits(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are merged, also if every commit removes files, and only some old versions are kept."""
    monkeypatch.setattr(iceberg, "MANIFESTS_MAX", 4)
    properties = {**iceberg._PROPERTIES, "commit.manifest.min-count-to-merge": "4"}
    monkeypatch.setattr(iceberg, "_PROPERTIES", {**properties, "write.metadata.previous-versions-max": "3"})
    table = archive.open()
    table.commit(change(archive.files[:1]))
    counts = []
    for turn in range(14):
        one, other = archive.files[turn % 2 : turn % 2 + 1], archive.files[1 - turn % 2 : 2 - turn % 2]
        table.commit(change(other, one, {"gantry.turn": str(turn)}))
        reader = archive.reader()
        snapshot = reader.current_snapshot()
        assert snapshot is not None
        counts.append(len(snapshot.manifests(reader.io)))
        assert table.properties() == {"gantry.turn": str(turn)}
    for file in archive.files[2:]:
        table.commit(change([file]))

    assert max(counts) < 4
    assert archive.open().paths() == paths_of([archive.files[0], *archive.files[2:]])
    assert len([name for name in archive.metadata() if name.endswith(".metadata.json")]) == 4


def test_expiry_deletes_metadata_and_keeps_data(archive: Archive) -> None:
    """Snapshots that were replaced before a time are forgotten with their metadata; all data files stay."""
    table = archive.open()
    for file in archive.files:
        table.commit(change([file]))
    table.commit(change([], archive.files[:1]))
    leftover = Path(archive.root.address, "_iceberg/metadata/0-m0.avro")
    leftover.write_bytes(b"leftover of a killed process")
    first, second, *_ = (one.timestamp_ms for one in archive.reader().snapshots())
    os.utime(leftover, (second / 1000, second / 1000))
    before = archive.metadata()

    table.expire(before_ms=first)
    assert archive.metadata() == before and len(archive.reader().snapshots()) == 5

    table.expire(before_ms=int(time.time() * 1000) + 1000)

    reader = archive.open()._table
    [snapshot] = reader.snapshots()
    manifests = {manifest.manifest_path for manifest in snapshot.manifests(reader.io)}
    used = {os.path.basename(path) for path in (snapshot.manifest_list, *manifests)}
    assert {name for name in archive.metadata() if name.endswith(".avro")} == used
    assert all(Path(archive.root.address, file.path).exists() for file in archive.files)
    assert rows_of(archive.reader()) == archive.rows((12, 48))
    table.commit(change(archive.late_files))
    assert rows_of(archive.reader()) == archive.rows((12, 60))


def test_expiry_limits_the_number_of_snapshots(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones stay. Their readers, and those of the others that have planned, find all files."""
    monkeypatch.setattr(iceberg_snapshots, "SNAPSHOTS_MAX", 2)
    table = archive.open()
    for file in archive.files[:4]:
        table.commit(change([file]))
        time.sleep(0.005)
    newest = [one.snapshot_id for one in archive.reader().snapshots()][-2:]

    table.expire(before_ms=0)

    assert [one.snapshot_id for one in archive.reader().snapshots()] == newest
    assert rows_of(archive.reader()) == archive.rows((0, 48))


def test_expiry_with_a_clock_that_was_set_back(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of snapshots is that of the commits, and exactly the oldest are forgotten."""
    monkeypatch.setattr(iceberg_snapshots, "SNAPSHOTS_MAX", 2)
    table = archive.open()
    for index, file in enumerate(archive.files[:3]):
        with monkeypatch.context() as patch:
            set_clock(patch, 30 - 10 * index)
            table.commit(change([file]))
    times = [one.timestamp_ms for one in archive.reader().snapshots()]
    assert times == sorted(times, reverse=True)
    newest = [one.snapshot_id for one in archive.reader().snapshots()][-2:]

    table.expire(before_ms=0)

    assert [one.snapshot_id for one in archive.reader().snapshots()] == newest


@pytest.mark.parametrize("kind", [CatalogKind.FOLDER, CatalogKind.SQL])
def test_expiry_keeps_the_manifests_of_all_snapshots(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: CatalogKind
) -> None:
    """Of manifests that were made after the oldest snapshot, and merged before the newest, none is lost, though few
    lists are read, and the times of files are old."""
    monkeypatch.setattr(iceberg, "MANIFESTS_MAX", 4)
    monkeypatch.setattr(iceberg, "_PROPERTIES", {**iceberg._PROPERTIES, "commit.manifest.min-count-to-merge": "4"})
    table = archive.open(CatalogParameters(kind, "lake", {"uri": f"sqlite:///{tmp_path}/catalog.db"}))
    for turn in range(12):
        one, other = archive.files[turn % 4], archive.files[(turn + 1) % 4]
        table.commit(change([other], [one] if turn else []))
        time.sleep(0.005)
    snapshots = table._table.snapshots()
    manifests = [{one.manifest_path for one in snapshot.manifests(table._table.io)} for snapshot in snapshots]
    kept = snapshots[4:]
    assert set.union(*manifests[5:-1]) - manifests[4] - manifests[-1], "some are only in the middle"
    folder = "_iceberg" if kind is CatalogKind.FOLDER else "_iceberg_sql"
    names = archive.metadata(folder)
    for name in names:
        os.utime(f"{archive.root.address}/{folder}/metadata/{name}", (0, 0))
    read: list[int] = []
    read_manifests = Snapshot.manifests

    def read_and_count(snapshot: Snapshot, files: FileIO) -> list[ManifestFile]:
        read.append(snapshot.snapshot_id)
        return read_manifests(snapshot, files)

    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "manifests", read_and_count)
        table.expire(kept[0].timestamp_ms + 1)
        first_reads = len(read)
        table.expire(kept[0].timestamp_ms + 1)

    assert [one.snapshot_id for one in table._table.snapshots()] == [one.snapshot_id for one in kept]
    for snapshot in kept:
        assert len(table._table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) > 0
    used = {os.path.basename(path) for path in set.union(*manifests[4:])}
    used |= {os.path.basename(snapshot.manifest_list) for snapshot in kept}
    assert {name for name in archive.metadata(folder) if name.endswith(".avro")} == used < names
    assert (first_reads, len(read) - first_reads) == ((2, 2) if kind is CatalogKind.FOLDER else (6, 0))


def test_snapshot_that_was_replaced_later_is_kept(archive: Archive) -> None:
    """The age of a snapshot counts from its replacement, because readers may have planned on it until then."""
    table = archive.open()
    for file in archive.files[:3]:
        table.commit(change([file]))
        time.sleep(0.005)
    first, second, third = archive.reader().snapshots()

    table.expire(before_ms=second.timestamp_ms + 1)

    kept = archive.reader().snapshots()
    assert [one.snapshot_id for one in kept] == [second.snapshot_id, third.snapshot_id]
    old = archive.reader().scan(snapshot_id=second.snapshot_id).to_arrow()
    assert old.num_rows == archive.files[0].rows + archive.files[1].rows and first not in kept


def test_drop_deletes_the_metadata_only(archive: Archive) -> None:
    """A dropped table can be published again from the same files."""
    table = archive.open()
    table.commit(change(archive.files))

    table.drop()

    assert archive.metadata() == set()
    assert all(Path(archive.root.address, file.path).exists() for file in archive.files)
    again = archive.open()
    assert again.paths() == frozenset()
    again.commit(change(archive.files))
    assert rows_of(archive.reader()) == archive.rows((0, 48))


def test_table_survives_a_kill_while_it_is_dropped(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old versions are deleted first, then the newest, then its manifests: the table is complete or does not exist."""
    table = archive.open()
    table.commit(change(archive.files))
    remove = MetadataFolder.remove
    removed: list[str] = []

    def remove_one(folder: MetadataFolder, name: str) -> None:
        if removed:
            raise Killed
        remove(folder, name)
        removed.append(name)

    with monkeypatch.context() as patch:
        patch.setattr(MetadataFolder, "remove", remove_one)
        with pytest.raises(Killed):
            table.drop()

    assert len(removed) == 1
    table = archive.open()
    assert rows_of(archive.reader()) == archive.rows((0, 48))
    table.drop()
    assert archive.metadata() == set()
