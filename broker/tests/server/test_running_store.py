"""Copies of the store of a running broker."""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gantry_testing.running_store import copy_running_store


def test_copy_begins_again_if_a_file_is_renamed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is replaced while the folder is copied is in the copy once, under its final name."""
    store = tmp_path / "store"
    store.mkdir()
    for name in ("a.json.tmp", "b.json"):
        (store / name).write_text(name)

    def rename_after_listing(_folder: str, names: list[str]) -> tuple[()]:
        listings.append(names)
        with suppress(FileNotFoundError):
            (store / "a.json.tmp").rename(store / "a.json")
        return ()

    listings: list[list[str]] = []
    monkeypatch.setattr(shutil, "copytree", partial(shutil.copytree, ignore=rename_after_listing))

    copy = copy_running_store(store, tmp_path / "copy")

    assert [sorted(names) for names in listings] == [["a.json.tmp", "b.json"], ["a.json", "b.json"]]
    assert {path.name: path.read_text() for path in copy.iterdir()} == {"a.json": "a.json.tmp", "b.json": "b.json"}
