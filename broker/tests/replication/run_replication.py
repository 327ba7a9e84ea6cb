"""The replication run: groups of three brokers under load, faults and promotions, and two independent judges.

Exit code 0 when every promise was kept; 1 if a run had findings or did not complete: its logs, the history of what
clients saw, and the command that repeats it are printed or kept. Exit code 1 also if `GANTRY_REQUIRE` names root and
this machine cannot have network namespaces, or names porcupine and Porcupine cannot be built.
"""

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

import click

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parents[1] / "e2e/histories")]

from gantry_histories.findings import Finding  # noqa: E402 - found by the line above
from gantry_histories.judges import PorcupineFailed, find_porcupine  # noqa: E402
from replication import network  # noqa: E402
from replication.guard_scenarios import GUARD_SCENARIOS, run_scenario  # noqa: E402
from replication.plans import Fault, plan_for  # noqa: E402
from replication.run_without_guards import GUARDS  # noqa: E402
from replication.seeded_run import RunResult, run_plan  # noqa: E402

RUNS: Final = TESTS.parents[1] / ".gantry"
PROGRAM: Final = ".venv/bin/python broker/tests/replication/run_replication.py"
FINDINGS_SHOWN_MAX: Final = 20


def end_well(_number: int, _frame: FrameType | None) -> None:
    """Exit on SIGTERM, without leaving mounts or brokers behind."""
    sys.exit(1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--runs", default=100, show_default=True, help="How many groups are run and checked.")
@click.option("--seed", type=int, help="Of the first run; each next one has the next number. By default drawn.")
@click.option("--without", type=click.Choice(sorted(GUARDS)), multiple=True,
              help="Take a guard from every broker, to see the checker fail.")  # fmt: skip
@click.option("--scenario", type=click.Choice(sorted(GUARD_SCENARIOS)),
              help="Run the situation for which this guard exists, instead of seeded plans. Needs root.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep logs and histories even when nothing was found.")
def main(runs: int, seed: int | None, without: tuple[str, ...], scenario: str | None, keep: bool) -> None:
    """Run groups of three brokers under load, with faults and promotions, and check what their clients saw.

    Each run has a name server and three brokers, each in a network namespace of its own where that is possible. Clients
    send numbered messages and consume them while a master or slave is killed, stopped for a while, cut off in one
    direction or both, or loses its power; a supervisor moves the master's role. No acknowledged message may be lost,
    nothing invented, no old master acknowledges after its successor, no consumer skips any, and in the end all logs are
    equal. An asynchronous group may lose the end of its old master's log at a failover. Porcupine judges each history,
    too, and must agree.

    \b
    Examples:
      .venv/bin/python broker/tests/replication/run_replication.py
      .venv/bin/python broker/tests/replication/run_replication.py --runs 1 --seed 7 --keep
      .venv/bin/python broker/tests/replication/run_replication.py --runs 20 --without promises
      .venv/bin/python broker/tests/replication/run_replication.py --runs 1 --scenario grants
    """
    signal.signal(signal.SIGTERM, end_well)
    reason = network.namespaces_missing()
    if reason is not None:
        click.echo(f"NOT RUN HERE partitions and power losses: {reason}")
        if "root" in os.environ.get("GANTRY_REQUIRE", "").split(","):
            click.echo("GANTRY_REQUIRE promises root")
            sys.exit(1)
    try:
        find_porcupine()  # built now, or reported as missing; without it a run has one judge
    except PorcupineFailed as error:
        raise click.ClickException(f"GANTRY_REQUIRE promises Porcupine, but: {error}") from error
    if scenario is not None:
        if reason is not None:
            raise click.UsageError(f"--scenario needs network namespaces: {reason}")
        bad = sum(not run_situation(scenario, without=without, keep=keep) for _ in range(runs))
        sys.exit(1 if bad else 0)
    first = random.randrange(1 << 32) if seed is None else seed
    RUNS.mkdir(exist_ok=True)
    began_at, bad, faults, answers = time.monotonic(), 0, Counter[Fault](), Counter[str]()
    verdicts = Counter[str]()
    for number in range(first, first + runs):
        result = run_one(number, is_root=reason is None, without=without, keep=keep)
        if result is None or result.findings:
            bad += 1
        if result is not None:
            faults.update(result.plan.faults)
            answers += result.answers
            verdicts[str(result.judgement.second.verdict if result.judgement.second else "not run")] += 1
    for fault in Fault:
        click.echo(f"  {fault:<16} {faults[fault]:>5}")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(answers.items()))
    second = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    click.echo(f"seed {first}: {runs - bad} of {runs} runs kept every promise; Porcupine: {second or 'not run'}; "
               f"{counts}; {time.monotonic() - began_at:.0f} s")  # fmt: skip
    sys.exit(1 if bad else 0)


def run_one(seed: int, *, is_root: bool, without: tuple[str, ...], keep: bool) -> RunResult | None:
    """Execute one run and return its report; None if it did not complete."""
    plan = plan_for(seed, is_root=is_root)
    click.echo(str(plan))
    directory = Path(tempfile.mkdtemp(prefix=f"replication-{seed}-", dir=RUNS))
    result = None
    try:
        result = asyncio.run(run_plan(plan, directory, is_root=is_root, without=without))
    except Exception:  # noqa: BLE001 - any exception is reported as a failure
        click.echo(traceback.format_exc())
    if result is not None:
        click.echo(f"  {result}")
        for finding in result.findings[:FINDINGS_SHOWN_MAX]:
            click.echo(f"  FOUND {finding}")
    if keep or result is None or result.findings:
        words = "".join(f" --without {guard}" for guard in without)
        click.echo(f"  kept in {directory}; again: {PROGRAM} --runs 1 --seed {seed}{words}")
    else:
        shutil.rmtree(directory)
    return result


def run_situation(guard: str, *, without: tuple[str, ...], keep: bool) -> bool:
    """Run the scenario of a guard once; return whether it completed without findings."""
    RUNS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"replication-{guard}-", dir=RUNS))
    found: list[Finding] | None = None
    try:
        found = asyncio.run(run_scenario(guard, directory, without=without))
    except Exception as error:  # noqa: BLE001 - any exception is reported as a run that did not complete
        click.echo(f"  did not complete: {type(error).__name__}: {error}")
    for finding in (found or [])[:FINDINGS_SHOWN_MAX]:
        click.echo(f"  FOUND {finding}")
    is_good = found == []
    click.echo(f"scenario {guard}: {'no promise was broken' if is_good else 'FAILED'}")
    if keep or not is_good:
        click.echo(f"  kept in {directory}")
    else:
        shutil.rmtree(directory)
    return is_good


if __name__ == "__main__":
    main()
