"""Damage under a real broker process is shown by every source that users have, and a source that is silent is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from damage.process_run import ShownState, differences, report_of_line
from damage.test_damage_judge import good_run, kinds, verdict
from damage.verdict import FaultKind

PROGRAM = Path(__file__).with_name("run_damage.py")
STAMP = "2026-11-23 19:03:19,229"
MISSING_LINE = (
    f"{STAMP} ERROR gantry_broker.store.recovery_report durable log data is missing ranges=['[300, 400)'] "
    "causes=['tail'] lost_flushed_bytes=100 reason='100 bytes of the log are missing: [300, 400) (tail)'"
)
DAMAGED_LINE = f"{STAMP} ERROR gantry_broker.store.damage stored message is damaged offset=100 bytes=60"
ACCEPTED_LINE = f"{STAMP} WARNING gantry_broker.server.roles.roles loss of log data accepted ranges=['[300, 400)']"


@pytest.mark.verify
def test_a_loss_and_rot_under_real_processes_are_shown_everywhere(tmp_path: Path) -> None:
    """Status page, role status, sidecar and `gantry store verify` show what the log reports; the remedy works."""
    path = tmp_path / "damage.json"
    options = ["--processes", "--trials", "2", "--seed", "2", "--jobs", "2", "--json", str(path)]
    done = subprocess.run([sys.executable, str(PROGRAM), *options], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [trial["outcome"] for trial in json.loads(path.read_text())["trials"]] == ["reported", "reported"]


def test_a_line_of_the_log_is_read_with_its_facts() -> None:
    """Values may contain spaces and equal signs; other lines are no reports."""
    report = report_of_line(f"{STAMP} WARNING gantry_broker.x an event text='a b=c' count=3 pairs=[(1, 2)] none=None")

    assert report is not None and (report.level, report.text) == ("WARNING", "an event")
    assert report.facts == {"text": "a b=c", "count": 3, "pairs": [(1, 2)], "none": None}
    assert report_of_line("Traceback (most recent call last):") is None


@pytest.mark.parametrize(
    ("lines", "shown", "is_found"),
    [
        ([], ShownState("page", 0, False), False),
        ([], ShownState("page", 100, False), True),
        ([], ShownState("page", 0, True), True),
        ([MISSING_LINE], ShownState("page", 100, False), False),
        ([MISSING_LINE], ShownState("page", 0, False), True),
        ([MISSING_LINE], ShownState("page", 99, False), True),
        ([DAMAGED_LINE], ShownState("page", 0, True), False),
        ([DAMAGED_LINE], ShownState("page", 0, False), True),
        ([MISSING_LINE, ACCEPTED_LINE], ShownState("page", 0, False), False),
        ([MISSING_LINE, ACCEPTED_LINE], ShownState("page", 100, False), True),
    ],
)
def test_a_source_that_shows_something_else_than_the_log_is_found(
    lines: list[str], shown: ShownState, is_found: bool
) -> None:
    """Both silence about damage and unreported damage are found."""
    reports = [report for line in lines if (report := report_of_line(line)) is not None]

    assert len(reports) == len(lines)
    assert bool(differences(reports, [shown])) is is_found


def test_damage_that_a_source_does_not_show_is_a_fault() -> None:
    """It is a fault even if clients were served correctly."""
    run = good_run()
    run.differences = ["/metrics shows 0 missing bytes of the log, the log reports 100"]

    assert kinds(verdict(run)) == {FaultKind.NOT_SHOWN}
