"""`make bench-ha`: the cost of replication, alone and compared with Apache RocketMQ.

Four parts: the table of flush, replication and buffer with a slave attached, on Gantry's brokers and on Apache's at the
same time, with a relayed echo as a baseline; Apache's own benchmark producer against both; synchronous replication in
control groups of 256 MiB and 4 GiB; and a slave with late acks. Goals are printed as met or not met; the exit code is 1
when an answer of Gantry was wrong or a refusal, or when a goal was missed and `--assert-goals` was given. With
`--publish` this benchmark's tables in docs/benchmarks.md are replaced by this run's.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e" / "interop"))

import click
import msgspec
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures, publish
from gantry_bench.ha_apache import apache_missing_reason
from gantry_bench.ha_parts import HaOutcome, HaParts, PartName
from gantry_bench.ha_run import Runner
from gantry_bench.ha_scale import FULL, QUICK, SHORT, HaScale
from gantry_bench.interrupts import interrupt_on_sigterm
from gantry_bench.loadgen import LoadGenerator, build
from gantry_bench.machine import Machine, OtherWork, describe_machine
from gantry_bench.measurement import Goal
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.page import goal_figures, machine_figures
from gantry_bench.processes import ROOT
from gantry_bench.results import json_option, shown_path, write_results
from gantry_bench.speedups import CodePath, probe
from gantry_bench.table import OTHER_CORES_NOTICED, print_goals
from rich.console import Console

RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
BENCHMARK: Final = "bench-ha"
QUIET_SECONDS: Final = 2.0
APACHE_PARTS: Final[frozenset[PartName]] = frozenset({"table", "producer"})


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    scale: HaScale
    without_apache: str
    path: CodePath
    """The code path of Gantry's brokers."""
    outcomes: dict[PartName, HaOutcome]

    @property
    def goals(self) -> list[Goal]:
        return [goal for outcome in self.outcomes.values() for goal in outcome.goals]

    @property
    def errors(self) -> int:
        return sum(outcome.errors for outcome in self.outcomes.values())


@contextmanager
def working_folder(free_bytes_needed: int) -> Iterator[Path]:
    """Make a folder in `bench/results`, and remove it at the end, also after an error."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(RESULTS).free
    if free_bytes < free_bytes_needed:
        raise BenchmarkFailed(f"{free_bytes >> 20} MiB are free on the disk and {free_bytes_needed >> 20} are needed")
    with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as folder:
        yield Path(folder)


def warn_if_busy(console: Console) -> None:
    """Warn if other programs are busy, because they distort the figures."""
    with OtherWork() as others:
        time.sleep(QUIET_SECONDS)
    if others.cores > OTHER_CORES_NOTICED:
        console.print(f"other programs use {others.cores:.1f} cores: the figures will mean little", style="yellow")


def report(console: Console, results: Results, *, json_path: Path | None, is_publishing: bool) -> None:
    """Print tables and goals, write the results file, and publish the tables if requested."""
    tables = [figures for outcome in results.outcomes.values() for figures in outcome.figures]
    for figures in tables:
        print_figures(console, figures)
    print_goals(console, results.goals)
    path = write_results(results, results.started_at, folder=RESULTS, name="ha", json_path=json_path)
    console.print(f"written to {shown_path(path, ROOT)}", highlight=False)
    if results.errors:
        console.print(f"{results.errors} answers of Gantry were wrong or refusals", style="red")
    elif is_publishing:
        tables = [machine_figures(results.machine, results.started_at), goal_figures(results.goals), *tables]
        PAGE.write_text(publish(PAGE.read_text(), tables, benchmark=BENCHMARK))
        console.print(f"published in {PAGE.relative_to(ROOT)}", highlight=False)


def measure(
    names: Sequence[PartName], scale: HaScale, console: Console, *, without: str, outcomes: dict[PartName, HaOutcome]
) -> None:
    """Run the parts; finished parts are in ``outcomes`` even if a later part fails."""
    if without and APACHE_PARTS & set(names):
        console.print(f"without Apache RocketMQ: {without}", style="yellow", highlight=False)
    warn_if_busy(console)
    load = LoadGenerator(build(), core=None)
    with working_folder(scale.free_bytes_needed) as folder:
        runner = Runner(
            scale, folder, load, has_apache=not without,
            report_progress=lambda text: console.print(
                f"  {time.strftime('%H:%M:%S')} {text} ...", style="dim", highlight=False
            ),
        )  # fmt: skip
        parts = HaParts(scale, runner, without=without)
        for name in names:
            outcomes[name] = parts.by_name[name]()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", "names", multiple=True, type=click.Choice(get_args(PartName)), default=get_args(PartName),
    show_default=True, help="Part to run; may be given several times.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Run for minutes to check the benchmark itself; the figures mean nothing.")
@click.option("--short", is_flag=True, help="Run all cells with shorter loads, as make bench does.")
@click.option(
    "--without-apache",
    "is_alone",
    is_flag=True,
    help="Measure only Gantry's brokers; needs no Java and a third of the time.",
)
@click.option("--publish", "is_publishing", is_flag=True, help="Replace its tables in docs/benchmarks.md.")
@json_option
@ASSERT_GOALS
def main(
    names: Sequence[PartName], *, quick: bool, short: bool, is_alone: bool, is_publishing: bool,
    json_path: Path | None, assert_goals: bool,
) -> None:  # fmt: skip
    """Measure replication: eight setups compared with Apache RocketMQ's, little memory, a slow slave. About an hour."""
    names = tuple(dict.fromkeys(names))
    if is_publishing and (quick or short or is_alone or set(names) != set(get_args(PartName))):
        raise click.UsageError("--publish needs a complete run, without --quick, --short, --only and --without-apache")
    console = Console(width=None if sys.stdout.isatty() else 200)
    scale = QUICK if quick else SHORT if short else FULL
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    outcomes: dict[PartName, HaOutcome] = {}
    failure: BenchmarkFailed | None = None
    needs_apache = not is_alone and bool(APACHE_PARTS & set(names))
    try:
        path = probe()
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    without = "not requested"
    try:
        without = apache_missing_reason() if needs_apache else without
        if is_publishing and without:
            raise click.ClickException(f"a page without Apache RocketMQ is not published: {without}")
        with interrupt_on_sigterm():
            measure(names, scale, console, without=without, outcomes=outcomes)
    except BenchmarkFailed as error:
        failure = error
    except KeyboardInterrupt:
        failure = BenchmarkFailed("interrupted; finished parts are kept")
    results = Results(
        started_at=started_at, machine=describe_machine(), scale=scale, without_apache=without, path=path,
        outcomes=outcomes,
    )  # fmt: skip
    if outcomes:
        report(console, results, json_path=json_path, is_publishing=is_publishing and failure is None)
    if failure is not None:
        raise click.ClickException(str(failure)) from failure
    is_missed = any(not goal.is_met for goal in results.goals)
    sys.exit(1 if results.errors or (assert_goals and is_missed) else 0)


if __name__ == "__main__":
    main()
