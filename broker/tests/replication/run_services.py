"""Runs of small groups whose brokers have messages to deliver later, with a judge of what arrived.

Exit code 0 when every run kept its promises; 1 if a run had findings or did not complete: its logs and the command that
repeats it are kept or printed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Final

import click

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parents[1] / "e2e/histories")]

from replication.service_runs import judge_pops, judge_retention, run_services, service_plan  # noqa: E402 - found by the line above

RUNS: Final = TESTS.parents[1] / ".gantry"
PROGRAM: Final = ".venv/bin/python broker/tests/replication/run_services.py"
FINDINGS_SHOWN_MAX: Final = 20
POPS: Final = "pops"
RETENTION: Final = "retention"
LOADS: Final = {POPS: judge_pops, RETENTION: judge_retention}
"""The loads other than that of services, by their options."""


def end_well(_number: int, _frame: FrameType | None) -> None:
    """Exit on SIGTERM, without leaving brokers behind."""
    sys.exit(1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--runs", default=3, show_default=True, help="How many groups are run and checked.")
@click.option("--seed", type=int, help="Of the first run; each next one has the next number. By default drawn.")
@click.option("--pops", "load", flag_value=POPS, help="Run consumers that pop, not delays, timers and transactions.")
@click.option("--retention", "load", flag_value=RETENTION, help="Delete log files before or after a slow consumer.")
@click.option("--keep", is_flag=True, help="Keep logs and stores even when nothing was found.")
def main(runs: int, seed: int | None, load: str | None, keep: bool) -> None:
    """Send messages that a broker delivers later, interrupt it, and check what arrived.

    Clients send messages with delay levels and with times, recall some, end transactions both ways, filter by tags, and
    let a handler fail until messages are dead letters. Between the batches the only broker is stopped, or killed, or
    the master of a pair is killed and its slave promoted, as the seed decides. Each message that was acknowledged must
    arrive, not before its time and, but for delays after a crash, once; nothing that was recalled or rolled back, or is
    in an open transaction, may arrive. With --pops, a message that was acked in time is never delivered again, and
    every other one is, but not before its invisible time is over. With --retention, a disk that is too full costs no
    message that a group has not consumed, and a consumer whose messages have expired continues with the first that is
    left. A seed in four cuts the power of a disk, which needs root.

    \b
    Examples:
      .venv/bin/python broker/tests/replication/run_services.py --runs 3
      .venv/bin/python broker/tests/replication/run_services.py --runs 1 --seed 7 --keep
      .venv/bin/python broker/tests/replication/run_services.py --pops --runs 3
      .venv/bin/python broker/tests/replication/run_services.py --retention --runs 2
    """
    signal.signal(signal.SIGTERM, end_well)
    first = random.randrange(1 << 32) if seed is None else seed
    RUNS.mkdir(exist_ok=True)
    logging.getLogger("gantry_client").addHandler(logging.NullHandler())  # clients report every kill
    began_at, bad = time.monotonic(), 0
    for number in range(first, first + runs):
        bad += not run_one(number, load, keep=keep)
    click.echo(f"seed {first}: {runs - bad} of {runs} runs kept every promise; {time.monotonic() - began_at:.0f} s")
    sys.exit(1 if bad else 0)


def run_one(seed: int, load: str | None, *, keep: bool) -> bool:
    """Execute one run; return whether it completed without findings."""
    directory = Path(tempfile.mkdtemp(prefix=f"services-{seed}-", dir=RUNS))
    found: list[str] | None = None
    try:
        if load is not None:
            click.echo(f"seed {seed}: {load}")
            found = asyncio.run(LOADS[load](seed, directory))
        else:
            plan = service_plan(seed)
            click.echo(f"seed {seed}: {plan.interruption}")
            found = asyncio.run(run_services(plan, directory))
    except Exception as error:  # noqa: BLE001 - any exception is reported as a run that did not complete
        click.echo(traceback.format_exc())
        click.echo(f"  did not complete: {type(error).__name__}: {error}")
    for finding in (found or [])[:FINDINGS_SHOWN_MAX]:
        click.echo(f"  FOUND {finding}")
    if keep or found is None or found:
        option = "" if load is None else f" --{load}"
        click.echo(f"  kept in {directory}; again: {PROGRAM}{option} --runs 1 --seed {seed}")
    else:
        shutil.rmtree(directory)
    return found == []


if __name__ == "__main__":
    main()
