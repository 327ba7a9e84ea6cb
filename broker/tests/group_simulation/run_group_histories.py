"""Runs histories of simulated groups, in which many faults overlap, and lets two judges decide about each.

Exit code 0 when every history is good and, in a run of 100 or more, every fault and combination that must be tested has
occurred. Exit code 1 otherwise, with the seeds of the histories that are not good and the command that repeats each.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Final

import click

TESTS: Final = Path(__file__).resolve().parents[1]
ROOT: Final = TESTS.parents[1]
sys.path[:0] = [str(TESTS), str(ROOT / "e2e/histories")]

from gantry_histories.judges import PorcupineFailed, find_porcupine  # noqa: E402 - found by the line above
from group_simulation.group_guards import GUARDS  # noqa: E402
from group_simulation.group_history import HistoryResult, run_history  # noqa: E402
from group_simulation.history_tally import HISTORIES_DEMANDED, Tally, read_tallies, write_tally  # noqa: E402
from group_simulation.mixed_faults import plan_for  # noqa: E402

RUNS: Final = ROOT / ".gantry"
PROGRAM: Final = "scripts/history"
PROGRESS_S: Final = 30.0
TASKS_MAX: Final = 50
"""Histories that a worker runs before another one replaces it."""
FINDINGS_SHOWN_MAX: Final = 10


def run_one(seed: int, porcupine: Path | None, directory: Path | None) -> HistoryResult:
    """Run the history of one seed in a worker process. Without a directory its file is deleted."""
    sys.unraisablehook = lambda _: None  # what an ended process leaves is no error
    if directory is not None:
        return run_history(plan_for(seed), directory, porcupine, keeps_logs=True)
    place = Path(tempfile.mkdtemp(prefix=f"history-{seed}-"))
    try:
        return run_history(plan_for(seed), place, porcupine)
    finally:
        shutil.rmtree(place)


def begin_worker(without: Sequence[str]) -> None:
    """Prepare a worker process: remove guards, and log nothing."""
    logging.getLogger().addHandler(logging.NullHandler())
    for guard in without:
        GUARDS[guard]()


def run_all(
    seeds: Sequence[int], workers: int, porcupine: Path | None, without: Sequence[str], *, keep: bool
) -> Iterator[HistoryResult]:
    """Yield the results of histories as they come."""
    # The order in which sets of texts are iterated must not differ between runs.
    os.environ["PYTHONHASHSEED"] = "0"
    context = multiprocessing.get_context("spawn")
    left = iter(seeds)
    with ProcessPoolExecutor(workers, context, begin_worker, (without,), max_tasks_per_child=TASKS_MAX) as pool:
        waiting: set[Future[HistoryResult]] = set()
        while True:
            while len(waiting) < workers and (seed := next(left, None)) is not None:
                waiting.add(pool.submit(run_one, seed, porcupine, _directory(seed) if keep else None))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def _directory(seed: int) -> Path:
    """Return an empty directory for the files of a history."""
    path = RUNS / f"history-{seed}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def parse_part(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, int]:
    """Return the number of a part, and of all parts."""
    first, separator, second = text.partition("/")
    if not (separator and first.isdigit() and second.isdigit() and 1 <= int(first) <= int(second)):
        raise click.BadParameter(f"{text!r} is no part: write K/N, for example 1/4")
    return int(first), int(second)


def show(result: HistoryResult, without: Sequence[str]) -> None:
    """Print a history that is not good, and how to repeat it."""
    words = "".join(f" --without {guard}" for guard in without)
    click.echo(f"{result.plan}\n  {result.problem or result.judgement}")
    for finding in result.findings[:FINDINGS_SHOWN_MAX]:
        click.echo(f"  FOUND {finding}")
    click.echo(f"  again: {PROGRAM} --seed {result.plan.seed}{words}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--seed", type=int, help="Seed of the first history; each next one has the next number. By default drawn."
)
@click.option("--histories", default=1, show_default=True, help="How many histories are run, in all parts.")
@click.option("--part", default="1/1", show_default=True, callback=parse_part, metavar="K/N",
              help="Run only every N-th history, beginning with the K-th.")  # fmt: skip
@click.option("--workers", default=2, show_default=True, help="The number of processes.")
@click.option("--result", type=click.Path(path_type=Path, dir_okay=False), help="Write the counts to this file.")
@click.option("--merge", type=click.Path(path_type=Path, exists=True), multiple=True,
              help="Run nothing, and show the sum of these files; repeatable.")  # fmt: skip
@click.option("--without", type=click.Choice(sorted(GUARDS)), multiple=True,
              help="Take a guard from every broker, to see the judges find it.")  # fmt: skip
def main(
    seed: int | None, histories: int, part: tuple[int, int], workers: int, result: Path | None,
    merge: tuple[Path, ...], without: tuple[str, ...],
) -> None:  # fmt: skip
    """Run histories of a simulated group with overlapping faults.

    A history has three brokers, a name server, clients and an operator, all with their real code, in one process and
    in virtual time. Meanwhile bits of one member's files flip, two machines lose power at once, brokers are suspended
    and killed, clocks jump, disks are slow and the network is cut. Afterwards the results of the clients are judged
    by gantry_histories and by Porcupine. A seed determines a history. A single history is kept in
    .gantry/history-SEED, with its events and the logs of all brokers.

    \b
    Examples:
      scripts/history --seed 7
      scripts/history --seed 1 --histories 10000 --part 1/4 --result part-1.json
      scripts/history --merge part-1.json --merge part-2.json --merge part-3.json --merge part-4.json
      scripts/history --histories 50 --without promises
    """
    if merge:
        try:
            tally = read_tallies(merge)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        finish(tally, is_whole=tally.done == tally.histories)
    try:
        porcupine = find_porcupine()
    except PorcupineFailed as error:
        raise click.ClickException(f"GANTRY_REQUIRE promises Porcupine, but: {error}") from error
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    number, parts = part
    seeds = range(seed + number - 1, seed + histories, parts)
    tally = Tally(seed=seed, histories=histories, parts=[f"{number}/{parts}"])
    keep = histories == 1
    began = reported_at = time.monotonic()
    for one in run_all(seeds, min(workers, len(seeds)), porcupine, without, keep=keep):
        tally.count(one)
        if keep:
            for note in one.notes:
                click.echo(f"  {note}")
            click.echo(f"  digest of the events: {one.digest}")
        if keep or not one.is_good:
            show(one, without)
        if result is not None:
            write_tally(result, tally)
        now = time.monotonic()
        if now - reported_at >= PROGRESS_S:
            reported_at = now
            rest_s = (len(seeds) - tally.done) * (now - began) / tally.done
            click.echo(f"  {tally.done:,} of {len(seeds):,} histories, {len(tally.failures)} not good, "
                       f"about {rest_s:.0f} s to go")  # fmt: skip
    if keep:
        click.echo(f"kept in {RUNS / f'history-{seed}'}")
    finish(tally, is_whole=parts == 1)


def finish(tally: Tally, *, is_whole: bool) -> None:
    """Print the summary and exit."""
    for line in tally.lines():
        click.echo(line)
    for failure in tally.failures:
        click.echo(f"NOT GOOD seed {failure.seed}: {failure.problem or failure.findings[0]}")
    missing = tally.missing() if is_whole and tally.histories >= HISTORIES_DEMANDED else []
    if missing:
        click.echo(f"PROVES TOO LITTLE: never occurred: {', '.join(missing)}")
    sys.exit(1 if tally.failures or missing else 0)


if __name__ == "__main__":
    main()
