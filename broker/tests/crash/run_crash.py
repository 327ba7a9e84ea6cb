"""The crash run: `kill -9` of a broker under load, again and again, and a checker that believes nobody.

Exit code 0 when every acknowledged message was there after every restart; 1 with faults, the store, the history of all
sends and the command that repeats the run.
"""

import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash.checker import check
from crash.history import load_history
from crash.log_walk import messages_by_queue, walk_log
from crash.rounds import CrashRun, Verdict
from crash.sabotage import Sabotage

FAULTS_SHOWN_MAX: Final = 30
RUNS: Final = Path(__file__).resolve().parents[3] / ".gantry"


def crash(
    directory: Path, seed: int, rounds: int, *, producers: int = 4, sabotage: Sabotage = Sabotage.NONE
) -> Verdict:
    """One run in `directory`."""

    async def run() -> Verdict:
        return await CrashRun(directory, seed, producers=producers, say=click.echo).run(rounds, sabotage)

    return asyncio.run(run())


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.option("--rounds", default=20, show_default=True, help="How often the broker is killed under load.")
@click.option("--seed", type=int, help="Repeat the plan of an earlier run; by default a new seed is drawn.")
@click.option(
    "--producers", default=4, show_default=True, help="Producers that send at once, 16 requests under way each."
)
@click.option(
    "--sabotage", type=click.Choice([one.value for one in Sabotage]), default="none", show_default=True,
    help="Damage the log before the last restart, to see the checker fail.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the store, the logs and the history even when nothing was found.")
@click.pass_context
def main(context: click.Context, rounds: int, seed: int | None, producers: int, sabotage: str, keep: bool) -> None:
    """Kill a broker under load, restart it, and look for every acknowledged message.

    Starts a name server and a broker on free ports of 127.0.0.1 with a store below .gantry. Producers send
    numbered messages with a digest, single and in batches, into three topics. After every kill the log's files are read
    without the broker; in some rounds queues, index or checkpoint are removed, in some the broker is killed again while
    it recovers; then every queue is pulled and messages are asked for by key. An acknowledged message must be at the
    offset and the place that its reply named, byte for byte; offsets are dense; nothing is invented, altered or stored
    twice; a producer's order is kept. The seed fixes the plan; the moment of a kill stays a matter of chance.

    \b
    Examples:
      .venv/bin/python broker/tests/crash/run_crash.py
      .venv/bin/python broker/tests/crash/run_crash.py --rounds 3 --seed 7
      .venv/bin/python broker/tests/crash/run_crash.py --rounds 1 --sabotage cut-tail
      .venv/bin/python broker/tests/crash/run_crash.py check .gantry/crash-x1y2z3
    """
    if context.invoked_subcommand is not None:
        return
    seed = random.randrange(1 << 32) if seed is None else seed
    click.echo(f"seed {seed}")
    began_at = time.monotonic()
    RUNS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="crash-", dir=RUNS))
    verdict = crash(directory, seed, rounds, producers=producers, sabotage=Sabotage(sabotage))
    report(verdict, time.monotonic() - began_at)
    if verdict.faults:
        options = "" if sabotage == "none" else f" --sabotage {sabotage}"
        command = f".venv/bin/python broker/tests/crash/run_crash.py --seed {seed} --rounds {rounds}"
        click.echo(f"replay: {command} --producers {producers}{options}")
    if verdict.faults or keep:
        click.echo(f"store, logs and history.jsonl: {directory}")
    else:
        shutil.rmtree(directory)
    sys.exit(1 if verdict.faults else 0)


@main.command("check")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def check_again(directory: Path) -> None:
    """Compare the history and the log's files that an earlier run left in DIRECTORY."""
    history = load_history(directory / "history.jsonl")
    faults = check(history, messages_by_queue(walk_log(directory / "store")))
    click.echo(f"{history}: {len(faults)} faults")
    for fault in faults[:FAULTS_SHOWN_MAX]:
        click.echo(f"FOUND {fault}")
    sys.exit(1 if faults else 0)


def report(verdict: Verdict, seconds: float) -> None:
    """Print the sums and the faults."""
    unknown = verdict.sent - verdict.acked - verdict.refused
    click.echo(
        f"\n{verdict.rounds} rounds in {seconds:.0f} s: {verdict.sent:,} sent, {verdict.acked:,} acknowledged, "
        f"{unknown:,} unknown, {verdict.refused:,} refused; "
        f"{verdict.stored:,} stored in {verdict.log_files} log files; "
        f"{verdict.recovery_kills} kills after a restart began, {verdict.recovery_hits} of them before "
        f"it had recovered, {verdict.removals} removals of derived files\n"
        f"{len(verdict.faults)} faults"
    )
    for fault in verdict.faults[:FAULTS_SHOWN_MAX]:
        click.echo(f"FOUND {fault}")


if __name__ == "__main__":
    main()
