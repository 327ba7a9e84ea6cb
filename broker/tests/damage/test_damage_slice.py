"""Some trials of the damage run against real brokers, and trials with a falsified result, which the judge detects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from damage.run_damage import SLICE_TRIALS

PROGRAM = Path(__file__).with_name("run_damage.py")


def run(tmp_path: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Return the run's exit code, its output, and its results."""
    path = tmp_path / "damage.json"
    command = [sys.executable, str(PROGRAM), "--jobs", "2", "--json", str(path), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert path.exists(), result.stdout + result.stderr
    return result.returncode, result.stdout + result.stderr, json.loads(path.read_text())


@pytest.mark.verify
def test_damaged_store_serves_all_messages_or_reports_the_loss(tmp_path: Path) -> None:
    """Each trial ends complete, reported, healed, or refused with a remedy that works, as the table shows."""
    code, text, document = run(tmp_path, "--slice")

    assert code == 0, text
    outcomes = [trial["outcome"] for trial in document["trials"]]
    assert len(outcomes) + sum(document["not_possible"].values()) == SLICE_TRIALS
    assert len(outcomes) > SLICE_TRIALS * 3 // 4, "too many trials had nothing to damage"
    assert "FAULT" not in outcomes and "c complete, r reported" in text


HARMLESS = "lock/missing/clean/stopped/alone"
"""A combination (file, damage, stop, broker, setup) whose damage loses nothing."""
ACCOUNTS = "accounts/missing/clean/stopped/alone"
"""A combination of a broker with users."""
LOSS = "log-newest/missing/clean/stopped/alone"
"""A combination whose damage loses messages, so that deliveries wait."""


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    ("sabotage", "combination", "kind"),
    [
        ("wrong-body", HARMLESS, "altered message"), ("missing", HARMLESS, "missing without a report"),
        ("reused", HARMLESS, "offset given twice"),
        ("skipped", HARMLESS, "skipped by a consumer and served later, without a report"),
        ("granted", ACCOUNTS, "access of an account that must be refused"),
        ("forgotten", ACCOUNTS, "users or policies are missing or altered"),
        ("repeated", HARMLESS, "message stored twice"),
        ("not-delivered", LOSS, "pending message is not delivered, without a report"),
        ("no-wait-report", LOSS, "pending message is not delivered, without a report"),
    ],
)  # fmt: skip
def test_falsified_result_of_a_real_trial_is_found(tmp_path: Path, sabotage: str, combination: str, kind: str) -> None:
    """One body, message, offset or status in the results of a real trial is changed, and the run fails."""
    options = ("--only", combination, "--trials", "1", "--seed", "2", "--sabotage", sabotage)
    code, text, document = run(tmp_path, *options)

    [trial] = document["trials"]
    assert code == 1 and trial["outcome"] == "FAULT", text
    assert kind in {fault["kind"] for fault in trial["faults"]}
    assert trial["command"] in text
