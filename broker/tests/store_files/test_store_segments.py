"""Segments of a log or queue, and spans that are split at their boundaries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gantry_broker.ports.disk import Disk
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_store_files import PlainDisk, Segment, StoreDisk, read_span, segment_name, segments_of, split_span
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_reading_disk import FaultyReadingDisk


@pytest.mark.parametrize("disk", [PlainDisk(), RealReadingDisk(), RealDisk()], ids=["plain", "reading", "broker"])
def test_segments_are_files_with_names_of_twenty_digits(tmp_path: Path, disk: StoreDisk) -> None:
    """Directories and other names are left out; the others are in the order of their offsets."""
    for base in (200, 0):
        (tmp_path / segment_name(base)).write_bytes(bytes(100))
    (tmp_path / segment_name(100)).mkdir()
    for foreign in ("100", "00000000000000000²00", segment_name(300) + ".tmp"):
        (tmp_path / foreign).touch()

    found = segments_of(disk, str(tmp_path))

    assert found == (
        Segment(0, 100, str(tmp_path / segment_name(0))), Segment(200, 100, str(tmp_path / segment_name(200))),
    )  # fmt: skip


def test_test_disks_list_the_same_segments() -> None:
    """The faulty disk, and the reading port over it, also leave out directories."""
    disk: Disk = FaultyDisk()
    disk.make_directory(f"/store/{segment_name(100)}")
    disk.write_file(f"/store/{segment_name(0)}", bytes(100))

    expected = (Segment(0, 100, f"/store/{segment_name(0)}"),)
    assert segments_of(disk, "/store") == segments_of(FaultyReadingDisk(disk), "/store") == expected


def test_segment_that_vanishes_during_the_listing_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention may delete the oldest file between the listing and the query of its size: the log is not empty."""
    paths = [tmp_path / segment_name(base) for base in (0, 100, 200)]
    for path in paths:
        path.write_bytes(bytes(100))
    real = os.listdir

    def listdir(directory: str) -> list[str]:
        names = real(directory)
        paths[0].unlink()
        return names

    monkeypatch.setattr(os, "listdir", listdir)

    assert [one.base_offset for one in segments_of(PlainDisk(), str(tmp_path))] == [100, 200]


@pytest.mark.parametrize("name", ["missing", "file"])
def test_missing_directory_has_no_segments(tmp_path: Path, name: str) -> None:
    """A missing directory, or a file in its place, is a log without files."""
    (tmp_path / "file").touch()

    assert segments_of(PlainDisk(), str(tmp_path / name)) == ()


LOG = (Segment(0, 100, "a"), Segment(100, 100, "b"), Segment(300, 100, "c"))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (50, 350, [(50, 100, "a"), (100, 200, "b"), (200, 300, None), (300, 350, "c")]), (100, 200, [(100, 200, "b")]),
        (250, 260, [(250, 260, None)]), (390, 500, [(390, 400, "c"), (400, 500, None)]), (70, 70, []),
    ],
)  # fmt: skip
def test_span_is_split_at_the_boundaries_of_its_files(
    start: int, end: int, expected: list[tuple[int, int, str | None]]
) -> None:
    """The pieces cover the span in order and without gaps; a range in no file is a piece without one."""
    found = [(one.start, one.end, one.segment and one.segment.path) for one in split_span(LOG, start, end)]

    assert found == expected


def test_bytes_in_no_file_are_a_hole_of_zeros(tmp_path: Path) -> None:
    """Missing, vanished and shortened files leave holes; adjacent holes are merged."""
    for number, base in enumerate((0, 100, 300, 400), start=1):
        (tmp_path / segment_name(base)).write_bytes(bytes([number]) * 100)
    disk = PlainDisk()
    segments = segments_of(disk, str(tmp_path))
    (tmp_path / segment_name(100)).unlink()
    os.truncate(tmp_path / segment_name(400), 30)

    data, holes = read_span(disk, segments, 50, 500)

    assert holes == ((100, 300), (430, 500))
    assert data == b"\1" * 50 + bytes(200) + b"\3" * 100 + b"\4" * 30 + bytes(70)
    assert read_span(disk, segments, 0, 100) == (b"\1" * 100, ())
