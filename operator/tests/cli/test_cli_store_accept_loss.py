"""`gantry store accept-loss` accepts the ranges that it shows, and no others without another question."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result
from store_commands.store_states import another_process, fill_store, fingerprint, gantry_store, make_killed_store

from gantry_broker.ports.clock import SystemClock
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.store.log_end import LogEndOwner, encode_log_end
from gantry_broker.store.loss import LossRecord
from gantry_broker.store.sealed_file import read_sealed
from gantry_cli.main import cli
from gantry_testing.store_world import StoreWorld


def lose_written_end(tmp_path: Path) -> tuple[StoreWorld, int, int]:
    """Return a killed store that lacks its last record, which only its page ``log-end`` shows, and that range."""
    world = fill_store(tmp_path)
    end, identity = world.store.log.wrote, world.store.identity
    start = world.sent[-2].end
    world.kill()
    size = world.settings.mapped_file_size_commit_log
    page = encode_log_end(LogEndOwner(identity.uuid, identity.generation, f"{SystemClock().boot_id()}/"), end)
    world.overwrite("log-end", 0, page)
    world.overwrite(f"commitlog/{start - start % size:020d}", start % size, bytes(end - start))
    return world, start, end


def answer(root: str, text: str) -> Result:
    """Run the command, and answer its question."""
    return CliRunner().invoke(cli, ["store", "accept-loss", root], input=text)


def test_range_that_only_the_recovery_finds_is_not_accepted_before_it_was_shown(tmp_path: Path) -> None:
    """The first run recovers the store, and accepts nothing; the second one shows the range, and accepts it."""
    world, start, end = lose_written_end(tmp_path)

    first = answer(world.root, "y\n")

    assert first.exit_code == 4
    assert f"[{start}, {end})" in first.stderr and "nothing was accepted" in first.stderr
    record = read_sealed(RealDisk(), world.path("loss.json"), LossRecord)
    assert record is not None and record.accepted == []
    second = answer(world.root, "y\n")
    assert second.exit_code == 0, second.output
    assert f"[{start}, {end})" in second.stderr
    assert answer(world.root, "y\n").exit_code == 0, "expected success, because nothing is missing any more"


def test_range_is_accepted_without_a_question_in_a_script(tmp_path: Path) -> None:
    """With `--yes` each range that the recovery finds is accepted, and printed."""
    world, start, end = lose_written_end(tmp_path)

    result = gantry_store("accept-loss", world.root, "--yes", "--json")

    assert result.exit_code == 0
    assert [(one["start"], one["end"]) for one in json.loads(result.output)["missing"]] == [(start, end)]


def test_declined_question_changes_nothing(tmp_path: Path) -> None:
    """The store is not even recovered."""
    world, _, _ = lose_written_end(tmp_path)
    before = fingerprint(tmp_path)

    assert answer(world.root, "n\n").exit_code == 4
    assert fingerprint(tmp_path) == before


def test_store_of_a_running_broker_is_left_to_its_order(tmp_path: Path) -> None:
    """The error names the order for a running broker; a directory without a store is no store."""
    make_killed_store(tmp_path)
    with another_process(tmp_path, "hold"):
        before = fingerprint(tmp_path)
        result = gantry_store("accept-loss", str(tmp_path / "store"), "--yes")
        assert (result.exit_code, fingerprint(tmp_path)) == (4, before)
        assert "gantry ha accept-loss" in result.stderr
    (tmp_path / "empty").mkdir()
    assert gantry_store("accept-loss", str(tmp_path / "empty"), "--yes").exit_code == 3
