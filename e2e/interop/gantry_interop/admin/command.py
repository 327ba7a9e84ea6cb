"""The command `run.py admin`: runs the whole plan, and shows and records the verdicts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from gantry_interop import report, sdk_command
from gantry_interop.admin import page, plan, plan_runner, samples, scene, verdicts
from gantry_interop.admin.plan_runner import Compared
from gantry_interop.admin.verdicts import Verdict
from gantry_interop.errors import harness_errors
from gantry_interop.paths import new_run_directory
from gantry_interop.processes import Nursery


@click.command("admin")
@click.option("--record", is_flag=True, help="Store the verdicts and write docs/compatibility.md from them.")
def admin_command(record: bool) -> None:
    """Run the commands of Apache's mqadmin against Apache's servers and Gantry's, and compare what they print.

    Commands that need a controller, a container or files on their own disk are not run. Fails if a command differs that
    docs/compatibility.md calls the same, if the tool has a command that the plan lacks, if a command differs without a
    reason in the plan, or if one is the same although the plan expects a difference.
    """
    console = report.console()
    directory = new_run_directory("admin")
    start = time.time()
    with harness_errors(console), Nursery(directory / "logs") as nursery:
        known, compared = plan_runner.run_plan(nursery, directory, lambda one: _show(console, one))
    planned = plan.commands()
    found = verdicts.judge([name for name in known if name in planned], compared, plan.ABSENT)
    faults = [*verdicts.find_plan_faults(known, planned), *_find_broken(found, record)]
    faults += [
        f"the same, though the plan expects a difference: {typed}" for typed in verdicts.stale_deviations(compared)
    ]
    _write_steps(directory / "steps.json", compared)
    verdicts.write(found, directory / "results.json")
    if record:
        verdicts.write(found)
        samples.write(samples.choose(compared, scene.window(start)))
        page.write(found, len(plan.ALL), sdk_command.build_section(sdk_command.read()))
    counted = ", ".join(f"{count} {word}" for word, count in verdicts.count_by_word(found).items())
    console.print(f"{len(known)} commands: {counted}", highlight=False)
    for fault in faults:
        console.print(fault, style="red", highlight=False, markup=False)
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    sys.exit(1 if faults else 0)


def _find_broken(found: Sequence[Verdict], record: bool) -> list[str]:
    before = [] if record or not verdicts.RESULTS.exists() else verdicts.read()
    lost = [f"no longer the same: {one.command} ({one.word})" for one in verdicts.find_regressions(before, found)]
    return lost + [f"differs without a reason in the plan: {name}" for name in verdicts.unexplained_differences(found)]


def _show(console: Console, one: Compared) -> None:
    shown = "  " if one.is_same else "≠ "
    console.print(shown + one.step.typed, style=None if one.is_same else "yellow", highlight=False, markup=False)


def _write_steps(path: Path, compared: Sequence[Compared]) -> None:
    steps = [
        {
            "typed": one.step.typed, "command": one.step.command, "shows": one.step.shows, "same": one.is_same,
            "theirs_failed": one.is_theirs_failed, "ours_failed": one.is_ours_failed,
            "theirs": one.theirs, "ours": one.ours,
        }
        for one in compared
    ]  # fmt: skip
    path.write_text(json.dumps(steps, indent=1) + "\n")
