"""The crash run: repeated `kill -9` of a broker under load, in every mode, with independent checkers.

Exit code 0 when a cell (a flush mode and a medium of the write buffer) ran, every message was kept that its mode
promises to keep, and a run of `ROUNDS_DEMANDED` rounds or more proves that messages were at risk; otherwise 1, also if
`GANTRY_REQUIRE` promises root and a cell did not run. After a fault the run keeps the store and the history of all
sends, and prints the command that repeats the job: ten rounds with one store.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[3] / "e2e/histories"))

from crash.cells import CELLS
from crash.checker import check
from crash.history import load_history
from crash.jobs import RUNS
from crash.log_walk import messages_by_queue, walk_log
from crash.matrix import (
    FAULTS_SHOWN_MAX,
    ROUNDS_DEMANDED,
    Matrix,
    MatrixRun,
    Options,
    format_points_hit,
    format_totals,
    shortcomings,
)
from crash.sabotage import Sabotage
from gantry_histories.judges import PorcupineFailed, find_porcupine


def parse_cells(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    names = list(CELLS) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in CELLS]:
        raise click.BadParameter(f"unknown cell {', '.join(unknown)}; expected one of {', '.join(CELLS)}")
    return names


def exit_on_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Exit on SIGTERM, so that nothing stays mounted and no broker is left behind."""
    sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.option("--cells", default="all", show_default=True, callback=parse_cells, metavar="NAME,...",
              help=f"Which of {', '.join(CELLS)}.")  # fmt: skip
@click.option("--rounds", default=50, show_default=True, help="How often each cell's broker is killed under load.")
@click.option("--seed", type=int, help="Repeat the plan of an earlier run; by default a new seed is drawn.")
@click.option("--jobs", default=2, show_default=True, help="Number of jobs (ten rounds each) at a time.")
@click.option("--producers", default=4, show_default=True, help="Number of producers, each with 16 pending requests.")
@click.option(
    "--sabotage", type=click.Choice([one.value for one in Sabotage]), default="none", show_default=True,
    help="Damage the log before the last restart, or remove a safeguard of the broker; the checker must find it.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep stores, logs and histories even when nothing was found.")
@click.option("--verbose", is_flag=True, help="Print a line for each round.")
@click.pass_context
def main(
    context: click.Context, cells: list[str], rounds: int, seed: int | None, jobs: int, producers: int, sabotage: str,
    keep: bool, verbose: bool,
) -> None:  # fmt: skip
    """Kill a broker under load, restart it, and check every acknowledged message.

    A cell is a flush mode and a medium of the write buffer. Its rounds come in jobs of ten, each with a name
    server, a broker and a store of its own below .gantry, on free ports of 127.0.0.1. Producers send numbered messages
    with a digest, single and in batches. The broker is killed at a random moment, or ends itself at a crash point; then
    the log's files are read without it; in some rounds queues, index or checkpoint are removed, in some the broker dies
    again while it recovers; then every queue is pulled and messages are queried by key. An acknowledged message must be
    at the offsets of its reply, byte for byte; offsets are dense; nothing is invented, altered or stored twice; a
    producer's order is kept; a lost message never returns. Only anonymous memory with ASYNC_FLUSH may lose the newest
    messages. Porcupine judges the history of each job, too, and must agree.

    As root the run mounts a hugetlbfs and a tmpfs and reserves huge pages, and releases all of it at the end. The seed
    fixes the plan; the exact moment of a kill in the broker's work stays random.

    \b
    Examples:
      .venv/bin/python broker/tests/crash/run_crash.py
      .venv/bin/python broker/tests/crash/run_crash.py --cells async-tmpfs,sync-none --rounds 3 --seed 7 --verbose
      .venv/bin/python broker/tests/crash/run_crash.py --cells async-tmpfs --rounds 2 --sabotage no-replay
      .venv/bin/python broker/tests/crash/run_crash.py check .gantry/crash-async-tmpfs-x1y2z3
    """
    if context.invoked_subcommand is not None:
        return
    signal.signal(signal.SIGTERM, exit_on_sigterm)
    try:
        find_porcupine()  # built now, or reported as missing; without it a job has one judge
    except PorcupineFailed as error:
        raise click.ClickException(f"GANTRY_REQUIRE promises Porcupine, but: {error}") from error
    options = Options(
        cells=cells, seed=random.randrange(1 << 32) if seed is None else seed, rounds=rounds, parallel_jobs=jobs,
        producers=producers, sabotage=Sabotage(sabotage), is_kept=keep, is_verbose=verbose,
    )  # fmt: skip
    click.echo(f"seed {options.seed}, {rounds} rounds for each of {len(cells)} cells, {jobs} at a time")
    began_at = time.monotonic()
    RUNS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="crash-volumes-", dir=RUNS))
    try:
        matrix = MatrixRun(options, directory, click.echo).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    is_good = report(matrix, rounds)
    click.echo(
        f"seed {options.seed}: {'kept every promise' if is_good else 'FAILED'}, {time.monotonic() - began_at:.0f} s"
    )
    sys.exit(0 if is_good else 1)


@main.command("check")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def check_again(directory: Path) -> None:
    """Compare the history and the log's files that an earlier run has left in DIRECTORY."""
    history = load_history(directory / "history.jsonl")
    faults = check(history, messages_by_queue(walk_log(directory / "store")))
    click.echo(f"{history}: {len(faults)} faults")
    for fault in faults[:FAULTS_SHOWN_MAX]:
        click.echo(f"FOUND {fault}")
    sys.exit(1 if faults else 0)


def report(matrix: Matrix, rounds: int) -> bool:
    """Print the tables and all failures. Return whether the run has passed."""
    click.echo(f"\n{format_totals(matrix)}\n")
    if matrix.verdicts:
        click.echo(f"{format_points_hit(matrix)}\n")
    for cell, reason in matrix.skipped.items():
        click.echo(f"NOT RUN HERE {cell}: {reason}")
    if rounds < ROUNDS_DEMANDED:
        click.echo(f"fewer than {ROUNDS_DEMANDED} rounds: it is not checked that every crash point was reached")
    short = shortcomings(matrix, rounds)
    for text in short:
        click.echo(f"PROVES TOO LITTLE: {text}")
    is_promised = "root" in os.environ.get("GANTRY_REQUIRE", "").split(",")
    if matrix.skipped and is_promised:
        click.echo("GANTRY_REQUIRE promises root: a cell that did not run is a failure")
    has_faults = any(verdict.faults for verdict in matrix.verdicts.values())
    return not (has_faults or short or (matrix.skipped and is_promised) or not matrix.verdicts)


if __name__ == "__main__":
    main()
