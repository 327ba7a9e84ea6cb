"""A short crash run with real processes: two rounds keep every promise, and a damaged log does not pass."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parent))
run_crash = importlib.import_module("run_crash")

from crash.rounds import Derived, plan  # noqa: E402 - found through run_crash's path
from crash.sabotage import Sabotage  # noqa: E402


def test_acknowledged_messages_survive_kills(tmp_path: Path) -> None:
    """Two rounds of load, kill -9 and restart lose nothing; the seed is in the failure's text."""
    verdict = run_crash.crash(tmp_path, seed=1, rounds=2)

    assert verdict.faults == [], "replay: .venv/bin/python broker/tests/crash/run_crash.py --seed 1 --rounds 2"
    assert verdict.rounds == 2
    assert verdict.acked > 100 and verdict.stored >= verdict.acked


@pytest.mark.parametrize("sabotage", [Sabotage.CUT_TAIL, Sabotage.FLIP_BIT])
def test_a_log_damaged_behind_the_brokers_back_is_found(tmp_path: Path, sabotage: Sabotage) -> None:
    """The whole run can fail: acknowledged messages taken from the files are reported lost."""
    verdict = run_crash.crash(tmp_path, seed=2, rounds=1, sabotage=sabotage)

    assert any("LOST" in fault for fault in verdict.faults)


def test_a_kept_run_can_be_checked_again(tmp_path: Path) -> None:
    """`check` reads history and store of a run without a broker, and sees one made-up acknowledgement."""
    run_crash.crash(tmp_path, seed=3, rounds=1, producers=1)
    again = CliRunner().invoke(run_crash.main, ["check", str(tmp_path)])
    history = tmp_path / "history.jsonl"
    lines = history.read_text().splitlines()
    lie = {"send": [9, 9], "topic": "CrashA", "queue": 0, "digest": "", "unique": "x"}
    history.write_text("\n".join([*lines, json.dumps(lie), json.dumps({"acked": [9, 9], "offset": 1, "at": 1})]) + "\n")
    lied = CliRunner().invoke(run_crash.main, ["check", str(tmp_path)])

    assert again.exit_code == 0 and "0 faults" in again.output
    assert lied.exit_code == 1 and "LOST" in lied.output


def test_plans_differ_from_round_to_round_and_repeat_with_the_seed() -> None:
    """Every kind of removal and of kills while recovering comes up within a full run's rounds."""
    plans = [plan(5, number) for number in range(40)]

    assert plans == [plan(5, number) for number in range(40)]
    assert {one.removed for one in plans} == set(Derived)
    assert {len(one.recovery_kills) for one in plans} == {0, 1, 3}
