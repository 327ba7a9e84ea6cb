"""`gantry store recover` recovers a store as a start would, and refuses where it must not write."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from click.testing import CliRunner
from store_commands.store_states import (
    LOG,
    another_process,
    fill_store,
    fingerprint,
    gantry_store,
    make_killed_store,
    run_reading_command,
)

from gantry_cli.main import cli


def test_recover_leaves_crashed_store_cleanly_stopped(tmp_path: Path) -> None:
    """The torn tail is truncated, queues are rebuilt, and the file `abort` is removed."""
    world = fill_store(tmp_path)
    end = world.store.log.wrote
    world.kill()
    world.overwrite(f"commitlog/{end - end % 16384:020d}", end % 16384, b"half a record")
    shutil.rmtree(world.path("consumequeue/bills"))
    index_sizes = {path.stat().st_size for path in (tmp_path / "store" / "index").iterdir()}

    result = gantry_store("recover", world.root, "--yes", "--json")
    report = json.loads(result.output)

    assert result.exit_code == 0
    assert (report["end"], report["cut_bytes"], report["queues_rebuilt"]) == (end, 13, [["bills", 0], ["bills", 1]])
    assert not os.path.exists(world.path("abort"))
    assert run_reading_command("verify", world.root).output.splitlines()[-1] == "good"
    assert {path.stat().st_size for path in (tmp_path / "store" / "index").iterdir()} == index_sizes
    assert gantry_store("recover", world.root, "--yes").exit_code == 0, "it cannot be repeated"


def test_recover_requires_confirmation(tmp_path: Path) -> None:
    """The command shows its plan, and changes nothing without confirmation."""
    world = fill_store(tmp_path)
    world.kill()
    before = fingerprint(tmp_path)

    result = CliRunner().invoke(cli, ["store", "recover", world.root], input="n\n")

    assert result.exit_code == 4
    assert "the next start would read the log from" in result.stderr
    assert fingerprint(tmp_path) == before


def test_recover_reports_corrupt_range(tmp_path: Path) -> None:
    """A corrupt range is skipped, reported, and sets the exit code."""
    world = fill_store(tmp_path)
    world.kill()
    os.remove(world.path("recovery-point.json"))
    world.overwrite(LOG, 5000, b"XXXX")

    result = gantry_store("recover", world.root, "--yes")

    assert result.exit_code == 1
    assert "corrupt range skipped" in result.output


def test_recover_reports_whole_records_that_it_cuts_off(tmp_path: Path) -> None:
    """They were not known to be flushed, but may have been acknowledged: a loss, as `repair-plan` predicts it."""
    world = fill_store(tmp_path)
    torn = world.sent[-4].end
    world.kill()
    world.overwrite(f"commitlog/{torn - torn % 16384:020d}", torn % 16384 + 90, b"XXXX")
    plan = gantry_store("repair-plan", world.root)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")

    result = gantry_store("recover", world.root, "--yes")
    report = json.loads(gantry_store("recover", str(tmp_path / "copy"), "--yes", "--json").output)

    assert (plan.exit_code, result.exit_code) == (1, 1)
    assert "2 whole records among them" in plan.output and "2 whole records among them" in result.output
    assert "lost: 2 messages after the torn record; they may have been acknowledged" in result.output
    assert (report["end"], report["cut_records"], report["lost_flushed_bytes"]) == (torn, 2, 0)
    assert gantry_store("recover", world.root, "--yes").exit_code == 0, "expected that nothing is left to cut off"


def test_recover_refuses_while_a_broker_runs(tmp_path: Path) -> None:
    """A store that a broker has open is not changed."""
    make_killed_store(tmp_path)
    with another_process(tmp_path, "hold") as holder:
        before = fingerprint(tmp_path)

        result = gantry_store("recover", str(tmp_path / "store"), "--yes")

        assert result.exit_code == 4
        assert f"pid {holder.pid}" in result.stderr
        assert fingerprint(tmp_path) == before


def test_recover_creates_no_store(tmp_path: Path) -> None:
    """A directory without a store is not changed."""
    result = gantry_store("recover", str(tmp_path), "--yes")

    assert result.exit_code == 3
    assert "no store found" in result.stderr
    assert list(tmp_path.iterdir()) == []
