"""Atomic replacement of files: the order of effects, and the state after a failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gantry_remoting import durable_files


def test_bytes_are_durable_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at any moment leaves the old file or the new one, under its name."""
    path, steps = tmp_path / "new" / "offsets.json", list[str]()
    fsync, replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append(f"sync {'folder ' + name.name if name.is_dir() else name.read_bytes().decode()}")
        fsync(descriptor)

    def rename(beside: Path, target: Path) -> None:
        steps.append(f"rename to {target.name}")
        replace(beside, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    durable_files.replace_file(path, b"one")

    named = steps.index("rename to offsets.json")
    assert "sync one" in steps[:named]
    assert f"sync folder {tmp_path.name}" in steps[:named]
    assert steps[named + 1 :] == ["sync folder new"]
    assert path.read_bytes() == b"one"


def test_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    """A block that fails changes nothing, and leaves no temporary file."""
    path = tmp_path / "table.parquet"
    path.write_bytes(b"old")

    with pytest.raises(RuntimeError, match="half way"), durable_files.replacement_of(path) as beside:
        beside.write_bytes(b"ne")
        raise RuntimeError("half way")

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["table.parquet"]


def test_full_disk_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that only the sync reports counts: the file is not renamed."""
    path = tmp_path / "manifest.json"
    path.write_bytes(b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        durable_files.replace_file(path, b"new")

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["manifest.json"]
