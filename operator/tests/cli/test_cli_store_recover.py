"""`gantry store recover` does what a start does, without a broker, and nothing where it must not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from click.testing import CliRunner
from looking.looks import (
    LOG,
    another_process,
    filled,
    fingerprint,
    gantry,
    leave_killed,
    look,
)

from gantry_cli.main import cli


def test_recover_leaves_a_crashed_store_cleanly_stopped(tmp_path: Path) -> None:
    """What a start does, without a broker: the tail is cut, queues are made whole, `abort` is gone."""
    world = filled(tmp_path)
    end = world.store.log.wrote
    world.kill()
    world.overwrite(f"commitlog/{end - end % 16384:020d}", end % 16384, b"half a record")
    shutil.rmtree(world.path("consumequeue/bills"))
    index_sizes = {path.stat().st_size for path in (tmp_path / "store" / "index").iterdir()}

    result = gantry("recover", world.root, "--yes", "--json")
    report = json.loads(result.output)

    assert result.exit_code == 0
    assert (report["end"], report["cut_bytes"], report["queues_rebuilt"]) == (end, 13, [["bills", 0], ["bills", 1]])
    assert not os.path.exists(world.path("abort"))
    assert look("verify", world.root).output.splitlines()[-1] == "good"
    assert {path.stat().st_size for path in (tmp_path / "store" / "index").iterdir()} == index_sizes
    assert gantry("recover", world.root, "--yes").exit_code == 0, "it can be done again"


def test_recover_asks_first(tmp_path: Path) -> None:
    """It says what will happen, and without a yes nothing does."""
    world = filled(tmp_path)
    world.kill()
    before = fingerprint(tmp_path)

    result = CliRunner().invoke(cli, ["store", "recover", world.root], input="n\n")

    assert result.exit_code == 4
    assert "a start would read the log from" in result.stderr
    assert fingerprint(tmp_path) == before


def test_recover_says_what_was_lost(tmp_path: Path) -> None:
    """Rot is stepped over and makes the exit code."""
    world = filled(tmp_path)
    world.kill()
    os.remove(world.path("recovery-point.json"))
    world.overwrite(LOG, 5000, b"XXXX")

    result = gantry("recover", world.root, "--yes")

    assert result.exit_code == 1
    assert "rot, stepped over" in result.output


def test_recover_refuses_while_a_broker_runs(tmp_path: Path) -> None:
    """The broker goes on, and nothing was touched."""
    leave_killed(tmp_path)
    with another_process(tmp_path, "hold") as holder:
        before = fingerprint(tmp_path)

        result = gantry("recover", str(tmp_path / "store"), "--yes")

        assert result.exit_code == 4
        assert f"pid {holder.pid}" in result.stderr
        assert fingerprint(tmp_path) == before


def test_recover_makes_no_store_where_there_is_none(tmp_path: Path) -> None:
    """A mistyped directory stays as it is."""
    result = gantry("recover", str(tmp_path), "--yes")

    assert result.exit_code == 3
    assert "there is no store" in result.stderr
    assert list(tmp_path.iterdir()) == []
