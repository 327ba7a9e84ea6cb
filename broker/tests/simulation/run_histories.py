"""Runs 20,000 histories of a store on a faulty disk, each compared with a model, two at a time.

Exit code 0 when all of them hold and, in a run of 2,000 or more, every situation that must be tested has occurred.
Exit code 1 with the situations that never occurred, or with the seed, the shortened history of the first that failed,
as lines for a test, and the command that repeats it.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Final, NamedTuple

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.directed import DIRECTED
from simulation.explore import format_history, run_and_check, run_histories, shorten
from simulation.regressions import REGRESSIONS
from simulation.situations import REQUIRED_SITUATIONS, SITUATIONS, missing_situations

CHUNK: Final = 200
"""The number of histories drawn from one seed, which a repetition runs."""
HISTORIES_DEMANDED: Final = 2_000
"""In a run with fewer histories, not every situation has to occur."""
PROGRESS_SECONDS: Final = 10.0


class Chunk(NamedTuple):
    """The result of the histories of one seed."""

    seed: int
    histories: int
    counts: Counter[str]
    """How often each situation has occurred."""

    failure: str | None
    """The lines of the history that failed, or None."""


def explore(seed: int, count: int) -> Chunk:
    """Run the histories of one seed in a worker process."""
    SITUATIONS.clear()
    failed = run_histories(seed, count)
    counts = Counter(SITUATIONS)
    return Chunk(seed, count, counts, format_history(shorten(failed)) if failed is not None else None)


def chunks(seed: int, histories: int, workers: int) -> Iterator[Chunk]:
    """Yield the results of the workers as they come."""
    tasks = [(seed + start, min(CHUNK, histories - start)) for start in range(0, histories, CHUNK)]
    with ProcessPoolExecutor(workers) as pool:
        waiting: set[Future[Chunk]] = set()
        while tasks or waiting:
            while tasks and len(waiting) < workers:
                waiting.add(pool.submit(explore, *tasks.pop(0)))
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def run_directed() -> None:
    """Run every directed history, and end the program with code 1 if one fails."""
    histories, began = (*DIRECTED, *REGRESSIONS), time.monotonic()
    for history in histories:
        failure = run_and_check(history)
        if failure is not None:
            click.echo(f"directed history {history.__name__} failed\n\nfails at {failure.place}: {failure.text}")
            sys.exit(1)
    click.echo(f"{len(histories)} directed histories held, in {time.monotonic() - began:.0f} s")


def show_situations(counts: Counter[str]) -> None:
    """Print the count of every required situation, also 0, and of every other one that has occurred."""
    for what in (*REQUIRED_SITUATIONS, *sorted(counts.keys() - set(REQUIRED_SITUATIONS))):
        if what != "history":
            click.echo(f"  {what:<42}{counts[what]:>10,}")


def repeat(chunk: Chunk) -> str:
    return (
        f"python broker/tests/simulation/run_histories.py --seed {chunk.seed} --histories {chunk.histories} --workers 1"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--histories", default=20_000, show_default=True, help="The number of histories.")
@click.option("--seed", type=int, help="Repeat an earlier run; by default a new seed is drawn.")
@click.option("--workers", default=2, show_default=True, help="The number of processes.")
@click.option("--directed", is_flag=True, help="Run the histories that were written for one safeguard each instead.")
def main(histories: int, seed: int | None, workers: int, *, directed: bool) -> None:
    """Run random histories of a store on a faulty disk, and compare each with a model."""
    if directed:
        run_directed()
        return
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    click.echo(f"seed {seed}: {histories:,} histories, {CHUNK} to a seed, {workers} at a time")
    began = reported_at = time.monotonic()
    counts: Counter[str] = Counter()
    for chunk in chunks(seed, histories, workers):
        counts += chunk.counts
        if chunk.failure is not None:
            click.echo(f"a history of seed {chunk.seed} failed; shortened:\n\n{chunk.failure}\n\n{repeat(chunk)}")
            sys.exit(1)
        now = time.monotonic()
        if now - reported_at >= PROGRESS_SECONDS:
            reported_at, done = now, counts["history"]
            rate = done / (now - began)
            left = (histories - done) / rate if rate else 0.0
            click.echo(f"  {done:,} histories, {rate:.0f} a second, about {left:.0f} s to go")
    click.echo(f"{counts['history']:,} histories held, in {time.monotonic() - began:.0f} s; situations that occurred:")
    show_situations(counts)
    missing = missing_situations(counts)
    if missing and histories >= HISTORIES_DEMANDED:
        click.echo(f"PROVES TOO LITTLE: never occurred: {', '.join(missing)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
