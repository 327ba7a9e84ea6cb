"""Runs the append tail: every medium and the control in turn, each run in a process of its own.

The order within a round is fixed and the control comes in its middle, so that other work on the machine is spread over
all of them. Each run begins with an empty store and empty buffers and leaves nothing behind.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.machine import OtherWork, read_available_bytes, touch_memory
from gantry_bench.tail import LoopPlan, LoopReport, Medium, Round

APPEND_LOOP: Final = Path(__file__).resolve().parent.parent / "append_loop.py"
GRACE_SECONDS: Final = 180
"""Extra time of a run: opening may zero or allocate gigabytes of buffers, and closing syncs the rest."""


def run_round(
    plans: Sequence[LoopPlan], *, folder: Path, report_progress: Callable[[str], None] = lambda text: None
) -> Round:
    """Run one round. The control is among the plans."""
    reports: dict[Medium, LoopReport] = {}
    with OtherWork() as others:
        for plan in plans:
            report_progress(plan.medium)
            reports[plan.medium] = run_loop(plan, folder=folder)
    control = reports.pop("control")
    return Round(control=control, runs=list(reports.values()), other_cores=others.cores)


def run_loop(plan: LoopPlan, *, folder: Path) -> LoopReport:
    """Run the loop once in a process of its own, with an empty store below ``folder``."""
    store = folder / f"tail-{plan.medium}"
    plan = msgspec.structs.replace(plan, store_path=str(store))
    timeout_seconds = plan.warm_up_seconds + 10 * plan.seconds + GRACE_SECONDS
    touch_memory(read_available_bytes())
    try:
        done = subprocess.run(
            [sys.executable, str(APPEND_LOOP), msgspec.json.encode(plan).decode()],
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"the append loop on {plan.medium} did not end in {timeout_seconds:.0f} s") from error
    finally:
        shutil.rmtree(store, ignore_errors=True)
        clear_buffers(plan)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise BenchmarkFailed(f"the append loop on {plan.medium} failed: {lines[-1] if lines else 'silently'}")
    report = msgspec.json.decode(done.stdout, type=LoopReport)
    expected = "none" if plan.medium == "control" else plan.medium
    if report.used_medium != expected:
        raise BenchmarkFailed(f"the append loop on {plan.medium} used {report.used_medium}")
    return report


def clear_buffers(plan: LoopPlan) -> None:
    """Remove the buffers, so that the next store does not find them."""
    if plan.pool_path:
        for path in Path(plan.pool_path).iterdir():
            path.unlink()
