"""A store's directory, listed while retention deletes in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gantry_pipelines.audit import directory
from gantry_pipelines.audit.copies import UNIT_BYTES
from gantry_pipelines.audit.directory import DirectoryCopy, Segment, segments_in
from gantry_pipelines.audit.model import Span
from gantry_pipelines.audit.units import UNIT


def test_a_segment_that_vanishes_while_it_is_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may delete the oldest file between the listing and the question for its size: the log is not empty."""
    paths = [tmp_path / f"{base:020d}" for base in (0, 100, 200)]
    for path in paths:
        path.write_bytes(bytes(100))
    real = os.scandir

    @contextmanager
    def scandir(directory: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(directory) as entries:
            listed = list(entries)
        paths[0].unlink()
        yield iter(listed)

    monkeypatch.setattr(os, "scandir", scandir)

    assert segments_in(tmp_path) == [Segment(100, 100, str(paths[1])), Segment(200, 100, str(paths[2]))]


SEGMENT_BYTES = 5 * UNIT_BYTES
WHOLE = Span(0, 3 * SEGMENT_BYTES)
LATER = Span(SEGMENT_BYTES, 3 * SEGMENT_BYTES)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda copy: copy.read(*WHOLE), id="read"),
        pytest.param(lambda copy: copy.checksum(*WHOLE, "crc32"), id="checksum"),
        pytest.param(lambda copy: copy.checksum(*LATER, "crc32"), id="checksum-behind-it"),
        pytest.param(lambda copy: copy.state().span.end, id="state"),
        pytest.param(lambda copy: copy.queue_end("orders", 0)[1], id="queue_end"),
        pytest.param(lambda copy: copy.units("orders", 0, 0, 15), id="units"),
    ],
)
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_segment_that_vanishes_before_it_is_opened_counts_as_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int, read: Callable[[DirectoryCopy], object]
) -> None:
    """Retention may delete a file between the listing and the opening: the answer is that of a later listing."""
    log, queue = tmp_path / "commitlog", tmp_path / "consumequeue" / "orders" / "0"
    for folder in (log, queue):
        folder.mkdir(parents=True)
        for base in range(0, WHOLE.end, SEGMENT_BYTES):
            (folder / f"{base:020d}").write_bytes(UNIT.pack(base, 100, 7) * 5)
    real = directory.segments_in

    def listed_too_early(folder: Path) -> list[Segment]:
        segments = real(folder)
        (folder / f"{victim * SEGMENT_BYTES:020d}").unlink(missing_ok=True)
        return segments

    copy = DirectoryCopy(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(directory, "segments_in", listed_too_early)
        answer = read(copy)

    assert answer == read(copy)


def test_the_last_used_segment_is_found_past_one_that_vanished(tmp_path: Path) -> None:
    """A file that is gone before its first bytes are read is passed over, as one without records is."""
    used = tmp_path / f"{0:020d}"
    used.write_bytes(b"x" * SEGMENT_BYTES)
    gone = Segment(SEGMENT_BYTES, SEGMENT_BYTES, str(tmp_path / f"{SEGMENT_BYTES:020d}"))

    assert directory._last_used([Segment(0, SEGMENT_BYTES, str(used)), gone]) == 0


def test_a_topic_that_vanishes_while_queues_are_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.verify
def test_where_there_is_no_directory_there_are_no_segments(tmp_path: Path) -> None:
    """A missing directory, or a file in its place, is a log without files."""
    (tmp_path / "file").touch()

    assert segments_in(tmp_path / "missing") == []
    assert segments_in(tmp_path / "file") == []
