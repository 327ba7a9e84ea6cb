"""Interrupt every operation of the operator at every effect: `scripts/interruptions`.

First each operation runs alone, and its effects are counted: writes to the API server, and orders to sidecars. Then it
is repeated once for each fault at each effect, and for pairs of faults from a seed. After each run the operation must
have reached its goal, no acknowledged record may be lost, no volume in use may be deleted, the objects must be those of
the run without interruptions, and nothing may be written any more.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interruptions.faults import Fault, Interruption, pairs, single
from interruptions.operations import OPERATIONS
from interruptions.runs import RunResult, run_operation
from interruptions.twins import TWINS, planted

EXAMPLES_MAX: Final = 5


class Job(NamedTuple):
    """One run of an operation."""

    operation: str
    interruptions: tuple[Interruption, ...]
    twin: str = ""

    def command(self) -> str:
        """Return the command that repeats the run."""
        where = ",".join(f"{one.fault}@{one.effect}" for one in self.interruptions)
        twin = f" --twin '{self.twin}'" if self.twin else ""
        return f"scripts/interruptions --operation '{self.operation}' --at '{where}'{twin}"


class Row:
    """The results of one operation."""

    def __init__(self, name: str, alone: RunResult) -> None:
        self.name: Final = name
        self.alone: Final = alone
        self.runs = self.unmet = 0
        self.violations: list[str] = []
        self.stuck: list[str] = []
        self.leaks: list[str] = []

    def add(self, job: Job, result: RunResult) -> None:
        """Add the result of a run with interruptions."""
        self.runs += 1
        self.unmet += len(result.interruptions) < len(job.interruptions)
        if result.violation:
            self.violations.append(f"{result.violation}; again: {job.command()}")
        elif result.stuck:
            self.stuck.append(f"{result.stuck}; again: {job.command()}")
        elif result.objects != self.alone.objects:
            differing = sorted(f"{kind} {name}" for kind, name in result.objects ^ self.alone.objects)
            self.leaks.append(f"other objects than without interruptions: {differing}; again: {job.command()}")

    @property
    def problems(self) -> list[str]:
        return [*self.violations, *self.stuck, *self.leaks]

    def __str__(self) -> str:
        counts = (len(self.alone.effects), self.runs, len(self.violations), len(self.stuck), len(self.leaks))
        return f"{self.name:<26}" + "".join(f"{count:>14,}" for count in counts)


HEADING: Final = f"{'operation':<26}" + "".join(
    f"{text:>14}" for text in ("effects", "interruptions", "violations", "stuck", "leaks")
)


def run_job(job: Job) -> tuple[Job, RunResult]:
    """Run one job in this process."""
    logging.disable(logging.CRITICAL)
    with planted(job.twin):
        return job, asyncio.run(run_operation(job.operation, job.interruptions))


def jobs_of(name: str, alone: RunResult, *, pair_count: int, seed: int, every: int, twin: str) -> Iterator[Job]:
    """Yield the jobs of an operation: every fault at every effect, or at each ``every``-th place, and the pairs."""
    effects = len(alone.effects)
    plans = single(effects)[seed % every :: every] + pairs(effects, pair_count, f"{seed}/{name}")
    return (Job(name, plan, twin) for plan in plans)


def parse_interruptions(text: str) -> tuple[Interruption, ...]:
    """Parse ``409@12,killed after@14``. Raises ``click.BadParameter``."""
    found = []
    for part in text.split(","):
        fault, at, effect = part.strip().rpartition("@")
        if not at or fault not in list(Fault) or not effect.isdigit():
            faults = ", ".join(Fault)
            raise click.BadParameter(f"{part!r} is no interruption: write FAULT@EFFECT, with one of {faults}")
        found.append(Interruption(Fault(fault), int(effect)))
    return tuple(found)


def interrupt(names: Iterable[str], workers: int, *, pair_count: int, seed: int, every: int, twin: str) -> list[Row]:
    """Run operations with interruptions, and print a row for each."""
    rows = []
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for name in names:
            _, alone = run_job(Job(name, ()))
            row = Row(name, alone)
            if not alone.is_good:
                row.violations.append(f"without interruptions: {alone.violation or alone.stuck}")
            jobs = jobs_of(name, alone, pair_count=pair_count, seed=seed, every=every, twin=twin)
            for job, result in pool.imap_unordered(run_job, jobs, chunksize=4):
                row.add(job, result)
            click.echo(row)
            rows.append(row)
    return rows


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--operation",
    "names",
    multiple=True,
    type=click.Choice(list(OPERATIONS)),
    metavar="NAME",
    help=f"Operation to interrupt; may be given several times: {', '.join(OPERATIONS)}. Default: all.",
)
@click.option(
    "--pairs",
    "pair_count",
    default=100,
    show_default=True,
    type=click.IntRange(0),
    help="Pairs of interruptions of each operation.",
)
@click.option("--seed", default=1, show_default=True, help="Determines the pairs.")
@click.option(
    "--every",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Run only one of N single interruptions, for a quick look.",
)
@click.option(
    "--workers", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1), help="Number of processes."
)
@click.option(
    "--at", metavar="FAULT@EFFECT,...", help="Run one operation once, with these interruptions, and print its effects."
)
@click.option("--twin", default="", type=click.Choice(["", *TWINS]), metavar="FAULT",
              help=f"Plant a fault into the operator, which must be found: {', '.join(TWINS)}.")  # fmt: skip
def main(
    names: tuple[str, ...], pair_count: int, seed: int, every: int, workers: int, at: str | None, twin: str
) -> None:
    """Interrupt the operator at every effect of every operation.

    \b
      scripts/interruptions                                    everything; minutes
      scripts/interruptions --operation failover --pairs 2000
      scripts/interruptions --operation 'scale in' --at 'killed after@12'    one run again
      scripts/interruptions --twin 'act twice'                 must fail

    Exit code: 0, or 1 if an interruption has broken a promise, left objects behind or stopped an operation.
    """
    chosen = names or tuple(OPERATIONS)
    if at is not None:
        sys.exit(repeat(chosen, parse_interruptions(at) if at else (), twin))
    began = time.monotonic()
    click.echo(HEADING)
    rows = interrupt(chosen, workers, pair_count=pair_count, seed=seed, every=every, twin=twin)
    problems = [f"{row.name}: {text}" for row in rows for text in row.problems]
    for text in problems[:EXAMPLES_MAX]:
        click.echo(text)
    if len(problems) > EXAMPLES_MAX:
        click.echo(f"... and {len(problems) - EXAMPLES_MAX} more")
    runs, seconds = sum(row.runs for row in rows), time.monotonic() - began
    unmet = sum(row.unmet for row in rows)
    click.echo(f"{runs:,} interruptions of {len(rows)} operations in {seconds:.0f} s; {len(problems)} found")
    if unmet:
        click.echo(f"{unmet} of them ended before their second interruption")
    sys.exit(1 if problems else 0)


def repeat(names: tuple[str, ...], interruptions: tuple[Interruption, ...], twin: str) -> int:
    """Run one operation once, and print what happened. Return the exit code."""
    if len(names) != 1:
        raise click.UsageError("--at needs exactly one --operation")
    _, result = run_job(Job(names[0], interruptions, twin))
    planned = {one.effect: one.fault for one in interruptions}
    for number, text in enumerate(result.effects, start=1):
        click.echo(f"{number:>4} {text}{f'    <- {planned[number]}' if number in planned else ''}")
    click.echo(result.violation or result.stuck or "good")
    return 0 if result.is_good else 1


if __name__ == "__main__":
    main()
