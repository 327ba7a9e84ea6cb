"""The copy of a log in a store's directory, also while retention deletes files in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from gantry_pipelines.audit.copies import OFFSET_MAX
from gantry_pipelines.audit.directory import DirectoryCopy
from gantry_pipelines.audit.errors import CopyUnreachable
from gantry_pipelines.audit.model import Span
from gantry_store_files import UNIT, UNIT_BYTES, PlainDisk, Segment, StoreIdentity, encode_sealed, segments_of
from gantry_store_files.store_identity import Epoch

SEGMENT_BYTES = 5 * UNIT_BYTES
WHOLE = Span(0, 3 * SEGMENT_BYTES)
LATER = Span(SEGMENT_BYTES, 3 * SEGMENT_BYTES)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda copy: copy.read(*WHOLE), id="read"),
        pytest.param(lambda copy: copy.checksum(*WHOLE, "crc32"), id="checksum"),
        pytest.param(lambda copy: copy.checksum(*LATER, "crc32"), id="checksum-of-later-segments"),
        pytest.param(lambda copy: copy.state().span.end, id="state"),
        pytest.param(lambda copy: copy.queue_end("orders", 0)[1], id="queue_end"),
        pytest.param(lambda copy: copy.units("orders", 0, 0, 15), id="units"),
    ],
)
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["first", "middle", "last"])
def test_segment_deleted_before_it_is_opened_counts_as_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int, read: Callable[[DirectoryCopy], object]
) -> None:
    """Retention may delete a file between the listing and the opening: the answer is that of a later listing."""
    log, queue = tmp_path / "commitlog", tmp_path / "consumequeue" / "orders" / "0"
    for folder in (log, queue):
        folder.mkdir(parents=True)
        for base in range(0, WHOLE.end, SEGMENT_BYTES):
            (folder / f"{base:020d}").write_bytes(UNIT.pack(base, 100, 7) * 5)

    def listed_too_early(disk: PlainDisk, folder: str) -> tuple[Segment, ...]:
        segments = segments_of(disk, folder)
        Path(folder, f"{victim * SEGMENT_BYTES:020d}").unlink(missing_ok=True)
        return segments

    copy = DirectoryCopy(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("gantry_pipelines.audit.directory.segments_of", listed_too_early)
        answer = read(copy)

    assert answer == read(copy)


def test_last_used_segment_is_found_before_a_deleted_one(tmp_path: Path) -> None:
    """A file that was deleted before its first bytes are read is skipped, like one without records."""
    (tmp_path / "commitlog").mkdir()
    used = tmp_path / f"{0:020d}"
    used.write_bytes(b"x" * SEGMENT_BYTES)
    gone = Segment(SEGMENT_BYTES, SEGMENT_BYTES, str(tmp_path / f"{SEGMENT_BYTES:020d}"))

    assert DirectoryCopy(str(tmp_path))._last_used([Segment(0, SEGMENT_BYTES, str(used)), gone]) == 0


def test_topic_deleted_during_the_listing_hides_no_other_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may be deleted between the listing of topics and that of its queues: the others are listed."""
    (tmp_path / "commitlog").mkdir()
    for topic in ("first", "second"):
        (tmp_path / "consumequeue" / topic / "0").mkdir(parents=True)
    real = os.listdir

    def listdir(folder: Path) -> list[str]:
        if Path(folder).name == "first":
            raise FileNotFoundError(folder)
        return real(folder)

    monkeypatch.setattr(os, "listdir", listdir)

    assert DirectoryCopy(str(tmp_path)).queues() == [("second", 0)]


@pytest.mark.parametrize("name", ["007", "²", "٣", "2147483648"])
def test_directories_with_foreign_names_are_no_queues(tmp_path: Path, name: str) -> None:
    """A directory that the broker would not open as a queue is ignored."""
    (tmp_path / "commitlog").mkdir()
    for queue in (name, "7"):
        (tmp_path / "consumequeue" / "orders" / queue).mkdir(parents=True)

    assert DirectoryCopy(str(tmp_path)).queues() == [("orders", 7)]


def test_directory_is_no_segment(tmp_path: Path) -> None:
    """A directory with a name of twenty digits does not extend the log."""
    (tmp_path / "commitlog" / f"{0:020d}").mkdir(parents=True)

    assert DirectoryCopy(str(tmp_path)).state().span == Span(0, 0)


def test_newer_copy_of_the_identity_determines_where_seals_are_required(tmp_path: Path) -> None:
    """If `store.json` is older than its backup, the backup's epochs are used, as at a broker's start."""
    (tmp_path / "commitlog").mkdir()
    older = StoreIdentity("0" * 32, 3, [Epoch(1, 0)])
    newer = StoreIdentity("0" * 32, 4, [Epoch(1, 0), Epoch(2, 100, is_ours=False), Epoch(3, 200)])
    (tmp_path / "store.json").write_bytes(encode_sealed(older))
    (tmp_path / "store.json.bak").write_bytes(encode_sealed(newer))

    assert DirectoryCopy(str(tmp_path)).state().sealed_spans == (Span(0, 100), Span(200, OFFSET_MAX))


@pytest.mark.parametrize("form", ["%08x", "0x%08x", "%08X"])
def test_recovery_point_is_used_only_with_a_valid_checksum(tmp_path: Path, form: str) -> None:
    """A CRC in another format than the written one is invalid."""
    (tmp_path / "commitlog").mkdir()
    body = next(one for one in (b'{"through":%d}' % number for number in range(1, 100)) if crc32(one) >> 28 > 9)
    (tmp_path / "recovery-point.json").write_bytes((form % crc32(body)).encode() + b"\n" + body)
    (tmp_path / "abort").touch()

    through = json.loads(body)["through"]
    assert DirectoryCopy(str(tmp_path)).state().span.end == (through if form == "%08x" else 0)


@pytest.mark.parametrize(
    ("document", "end"),
    [
        ({"through": 40}, 40),
        ({"through": 40, "store": "0" * 32}, 40),
        ({"through": 40, "store": "1" * 32}, 0),
        ({"through": 40, "format": 2}, 0),
    ],
)
def test_audit_accepts_the_recovery_points_that_a_start_accepts(
    tmp_path: Path, document: dict[str, object], end: int
) -> None:
    """A recovery point of another store, or of an unknown format, proves nothing about this log."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "abort").touch()
    (tmp_path / "store.json").write_bytes(encode_sealed(StoreIdentity("0" * 32, 1, [Epoch(1, 0)])))
    (tmp_path / "recovery-point.json").write_bytes(encode_sealed(document))

    assert DirectoryCopy(str(tmp_path)).state().span.end == end


def test_unfinished_store_without_a_recovery_point_is_not_reported_as_clean(tmp_path: Path) -> None:
    """Nothing of a running broker of RocketMQ can be audited: no file says how far its log is durable."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    (tmp_path / "abort").touch()

    with pytest.raises(CopyUnreachable, match="no part of the log can be audited; stop the broker cleanly"):
        DirectoryCopy(str(tmp_path)).state()
