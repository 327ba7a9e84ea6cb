"""`make bench-burst`: how bursts of sends are handled, compared with Apache RocketMQ's broker in the same run.

A *program* is what the sender does over its one connection: it writes many sends at once, or many one-way sends at
once, or one-way sends at a steady rate. Each program runs against both brokers in turn, beside 0, 8 and 20 busy
processes, with unique ids in the form of Java's clients and with ids in another form. Meanwhile an honest client sends
one message at a time to the same broker.
The exit code is 1 when a run failed, or when a goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e" / "interop"))

import click
import msgspec
from gantry_bench.burst_figures import (
    BURST_COUNT,
    ID_SHAPE_NAMES,
    Cell,
    SystemName,
    burst_figures,
    burst_goals,
    programs,
)
from gantry_bench.burst_load import Outcome, Program, ProgramName, ShapeName, run_program
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures, publish
from gantry_bench.ha_apache import apache_missing_reason, start_apache_broker
from gantry_bench.interrupts import interrupt_on_sigterm
from gantry_bench.machine import Machine, describe_machine
from gantry_bench.measurement import Goal
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.page import goal_figures, machine_figures
from gantry_bench.processes import ROOT, start_broker, start_name_server
from gantry_bench.table import print_goals
from rich.console import Console
from send import RESULTS, working_folder

PAGE: Final = ROOT / "docs" / "benchmarks.md"
BENCHMARK: Final = "bench-burst"
LOADS: Final = (0, 8, 20)
REPETITIONS: Final = 5
FREE_BYTES_NEEDED: Final = 6 * 1024**3
BUSY_SECONDS_MAX: Final = 600
"""A busy process ends by itself after this time, even if the benchmark has failed."""
BUSY_PROGRAM: Final = (
    "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
)


class Plan(msgspec.Struct, frozen=True):
    """The parameters of a run."""

    programs: tuple[Program, ...]
    shapes: tuple[ShapeName, ...]
    """The forms of the messages' unique ids."""
    loads: tuple[int, ...]
    """The numbers of busy processes beside the broker."""
    repetitions: int


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    plan: Plan
    without_apache: str
    cells: list[Cell]
    goals: list[Goal]


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run so many processes of normal priority that use all available CPU time."""
    command = [sys.executable, "-c", BUSY_PROGRAM, str(BUSY_SECONDS_MAX)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def run_cell(
    system: SystemName, address: str, program: Program, shape: ShapeName, *, load: int, repetitions: int
) -> Cell:
    """Run all repetitions of a cell. A paced program, which takes seconds, runs once."""
    outcomes: list[Outcome] = []
    for _ in range(1 if program.per_second else repetitions):
        outcomes.append(run_program(program, shape, address))
    return Cell(system=system, load=load, program=program, shape=shape, outcomes=outcomes)


def measure(plan: Plan, addresses: dict[SystemName, str], report: Callable[[str], None]) -> Iterator[Cell]:
    """Yield every cell of the plan; both systems run each cell in turn."""
    for system, address in addresses.items():
        report(f"{system}: warming up")
        for shape in plan.shapes:
            for _ in range(3):
                run_program(plan.programs[0], shape, address)
    for load in plan.loads:
        for program in plan.programs:
            for shape in plan.shapes:
                report(f"load {load}, {program.text}, ids {ID_SHAPE_NAMES[shape]}")
                for system, address in addresses.items():
                    with busy_processes(load):
                        yield run_cell(system, address, program, shape, load=load, repetitions=plan.repetitions)


@contextmanager
def both_brokers(folder: Path, *, has_apache: bool) -> Iterator[dict[SystemName, str]]:
    """Yield the addresses of Gantry's broker and, if requested, of Apache's, with empty stores and default limits."""
    with ExitStack() as stack:
        name_server = stack.enter_context(start_name_server(folder))
        gantry = stack.enter_context(start_broker(folder / "ours", name_server=name_server, core=None))
        addresses: dict[SystemName, str] = {"Gantry": gantry.target.address}
        if has_apache:
            addresses["Apache"] = stack.enter_context(start_apache_broker(folder / "theirs")).address
        yield addresses


def write_results(results: Results) -> Path:
    """Write the results to a file named by the time of the run."""
    path = RESULTS / f"burst-{results.started_at.replace(':', '').replace('-', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return path


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--program", "names", multiple=True, type=click.Choice(get_args(ProgramName)), default=get_args(ProgramName),
    show_default=True, help="Program to run; may be given several times.",
)  # fmt: skip
@click.option(
    "--load", "loads", multiple=True, type=click.IntRange(0, 64), default=LOADS, show_default=True,
    help="Busy processes beside it; may be given several times.",
)  # fmt: skip
@click.option("--count", type=click.IntRange(10, 1_000_000), default=BURST_COUNT, show_default=True, help="Sends.")
@click.option("--repetitions", type=click.IntRange(1, 100), default=REPETITIONS, show_default=True)
@click.option("--without-apache", "is_alone", is_flag=True, help="Measure only Gantry's broker; needs no Java.")
@click.option("--publish", "is_publishing", is_flag=True, help="Replace its tables in docs/benchmarks.md.")
@ASSERT_GOALS
def main(
    names: Sequence[ProgramName], loads: Sequence[int], *, count: int, repetitions: int, is_alone: bool,
    is_publishing: bool, assert_goals: bool,
) -> None:  # fmt: skip
    """Measure bursts, compared with Apache's broker: refusals, losses, an honest client's p99. About ten minutes."""
    is_full_run = (tuple(names), tuple(loads), count) == (get_args(ProgramName), LOADS, BURST_COUNT)
    if is_publishing and (is_alone or not is_full_run):
        raise click.UsageError(
            "--publish needs a complete run, without --program, --load, --count and --without-apache"
        )
    console = Console(width=None if sys.stdout.isatty() else 200)
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    plan = Plan(
        programs=tuple(programs(count)[name] for name in dict.fromkeys(names)), shapes=get_args(ShapeName),
        loads=tuple(dict.fromkeys(loads)), repetitions=repetitions,
    )  # fmt: skip
    cells: list[Cell] = []
    try:
        without = "not requested" if is_alone else apache_missing_reason()
        if without:
            console.print(f"without Apache RocketMQ: {without}", style="yellow", highlight=False)
        if is_publishing and without:
            raise click.ClickException(f"a page without Apache RocketMQ is not published: {without}")
        with (
            interrupt_on_sigterm(),
            working_folder(FREE_BYTES_NEEDED) as folder,
            both_brokers(folder, has_apache=not without) as addresses,
        ):
            for cell in measure(plan, addresses, lambda text: console.print(f"  {text} ...", style="dim")):
                cells.append(cell)
    except (BenchmarkFailed, OSError) as error:
        raise click.ClickException(str(error)) from error
    figures, goals = burst_figures(cells), burst_goals(cells)
    print_figures(console, figures)
    print_goals(console, goals)
    machine = describe_machine()
    results = Results(
        started_at=started_at, machine=machine, plan=plan, without_apache=without, cells=cells, goals=goals
    )
    console.print(f"written to {write_results(results).relative_to(ROOT)}", highlight=False)
    if is_publishing:
        tables = [machine_figures(machine, started_at), goal_figures(goals), figures]
        PAGE.write_text(publish(PAGE.read_text(), tables, benchmark=BENCHMARK))
        console.print(f"published in {PAGE.relative_to(ROOT)}", highlight=False)
    sys.exit(1 if assert_goals and any(not goal.is_met for goal in goals) else 0)


if __name__ == "__main__":
    main()
