"""A store's directory, listed while retention deletes in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gantry_pipelines.audit.directory import Segment, segments_in


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


@pytest.mark.verify
def test_where_there_is_no_directory_there_are_no_segments(tmp_path: Path) -> None:
    """A missing directory, or a file in its place, is a log without files."""
    (tmp_path / "file").touch()

    assert segments_in(tmp_path / "missing") == []
    assert segments_in(tmp_path / "file") == []
