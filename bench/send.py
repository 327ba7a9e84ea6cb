"""`make bench-send`: the broker's cost of a send, compared with an echo on the same event loop.

For every mode and body size, an echo server and a broker with an empty store take the same load in turn, several times;
the figures are medians. The order (echo, broker, echo, broker, ...) spreads other work of the machine over both.
Goals are printed as met or not met. The exit code is 1 when a run had errors, or when a goal was missed and
`--assert-goals` was given.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args

import click
import msgspec
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.loadgen import LoadGenerator, Run, Target, Timing, build
from gantry_bench.machine import Cores, Machine, assign_cores, describe_machine
from gantry_bench.measurement import (
    MODES,
    Goal,
    Mode,
    ModeName,
    cpu_goal,
    first_refusal,
    memory_goal,
    summarise,
)
from gantry_bench.memory import ResidentMemory
from gantry_bench.processes import ROOT, start_broker, start_echo_server, start_name_server
from gantry_bench.table import Cell, print_cells, print_goals, print_surroundings
from rich.console import Console

RESULTS: Final = ROOT / "bench" / "results"
FREE_BYTES_NEEDED: Final = 6 * 1024**3
"""One cell writes about 2 GiB on a fast machine; segments are preallocated, and stores are removed after each cell."""


class Plan(msgspec.Struct, frozen=True):
    """The parameters of a run."""

    modes: tuple[Mode, ...]
    bodies_bytes: tuple[int, ...]
    header: str
    repetitions: int
    timing: Timing


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    cores: Cores
    plan: Plan
    cells: list[Cell]
    goals: list[Goal]
    idle_memory: list[ResidentMemory]
    runs: list[Run]
    errors: int


class Session:
    """One benchmark run: the echo server runs throughout, each cell gets a broker with an empty store."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self.cores = assign_cores(os.sched_getaffinity(0))
        self.cells: list[Cell] = []
        self.idle_memory: list[ResidentMemory] = []
        self.runs: list[Run] = []
        self._load = LoadGenerator(build(), core=self.cores.load)

    def run(self, folder: Path) -> None:
        """Measure every cell of the plan."""
        with start_echo_server(folder, core=self.cores.server) as echo, start_name_server(folder) as name_server:
            for mode in self._plan.modes:
                for body_bytes in self._plan.bodies_bytes:
                    self._measure(mode, body_bytes, folder=folder, echo=echo, name_server=name_server)

    def _measure(self, mode: Mode, body_bytes: int, *, folder: Path, echo: Target, name_server: str) -> None:
        self._console.print(f"  {mode.text}, body {body_bytes} B ...", style="dim", highlight=False)
        own_folder = folder / f"broker-{mode.name}-{body_bytes}"
        echo_runs: list[Run] = []
        broker_runs: list[Run] = []
        with start_broker(own_folder, name_server=name_server, core=self.cores.server) as broker:
            self.idle_memory.append(broker.idle_memory)
            for _ in range(self._plan.repetitions):
                for target, runs in ((echo, echo_runs), (broker.target, broker_runs)):
                    runs.append(
                        self._load.run(
                            mode, body_bytes, header=self._plan.header, target=target, timing=self._plan.timing
                        )
                    )
        shutil.rmtree(own_folder)
        self.runs += [*echo_runs, *broker_runs]
        self.cells.append(
            Cell(
                mode=mode,
                body_bytes=body_bytes,
                header=self._plan.header,
                echo=summarise([run.report for run in echo_runs]),
                broker=summarise([run.report for run in broker_runs]),
                other_cores=max(run.other_cores for run in [*echo_runs, *broker_runs]),
            )
        )

    def results(self, started_at: str) -> Results:
        """Return the results of the run."""
        goals = [cpu_goal(cell.mode, cell.body_bytes, cell.broker, cell.echo) for cell in self.cells]
        idle_bytes = max(memory.counted_bytes for memory in self.idle_memory)
        return Results(
            started_at=started_at,
            machine=describe_machine(),
            cores=self.cores,
            plan=self._plan,
            cells=self.cells,
            goals=[goal for goal in goals if goal is not None] + [memory_goal(idle_bytes)],
            idle_memory=self.idle_memory,
            runs=self.runs,
            errors=sum(cell.echo.errors + cell.broker.errors for cell in self.cells),
        )


@contextmanager
def working_folder() -> Iterator[Path]:
    """Make a folder in `bench/results`, and remove it at the end, also after an error."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(RESULTS).free
    if free_bytes < FREE_BYTES_NEEDED:
        raise BenchmarkFailed(f"{free_bytes >> 20} MiB are free on the disk and {FREE_BYTES_NEEDED >> 20} are needed")
    with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as folder:
        yield Path(folder)


def write_results(results: Results) -> Path:
    """Write the results to a file named by the time of the run."""
    path = RESULTS / f"send-{results.started_at.replace(':', '').replace('-', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return path


def report(console: Console, results: Results) -> None:
    """Print tables, goals, errors and the file's name."""
    print_cells(console, results.cells)
    print_goals(console, results.goals)
    print_surroundings(console, results.machine, results.cores, results.cells)
    if results.errors:
        refusal = first_refusal([run.report for run in results.runs])
        console.print(f"{results.errors} answers were wrong or refusals; the first refusal: {refusal}", style="red")
    console.print(f"written to {write_results(results).relative_to(ROOT)}", highlight=False)


def exit_code(results: Results, *, assert_goals: bool) -> int:
    """Return 0, or 1 after errors, or after a missed goal if that was requested."""
    is_missed = any(not goal.is_met for goal in results.goals)
    return 1 if results.errors or (assert_goals and is_missed) else 0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--mode", "names", multiple=True, type=click.Choice(get_args(ModeName)), default=get_args(ModeName),
    show_default=True, help="Shape of the load; may be given several times.",
)  # fmt: skip
@click.option(
    "--body-bytes", "bodies_bytes", multiple=True, type=click.IntRange(1, 4 * 1024 * 1024), default=(128, 1024),
    show_default=True, help="Size of the message body; may be given several times.",
)  # fmt: skip
@click.option(
    "--header", type=click.Choice(["json", "rocketmq"]), default="json", show_default=True,
    help="Serialization of request headers; rocketmq is the binary form.",
)  # fmt: skip
@click.option("--repetitions", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--warm-up-ms", type=click.IntRange(0, 30_000), default=500, show_default=True)
@click.option("--duration-ms", type=click.IntRange(100, 60_000), default=1500, show_default=True)
@click.option("--assert-goals", is_flag=True, help="Exit with 1 when a goal is missed.")
def main(
    names: Sequence[ModeName],
    bodies_bytes: Sequence[int],
    header: str,
    repetitions: int,
    warm_up_ms: int,
    duration_ms: int,
    assert_goals: bool,
) -> None:
    """Measure sends: rate, latency, and broker CPU per message, compared with an echo server on the same event loop."""
    plan = Plan(
        modes=tuple(MODES[name] for name in dict.fromkeys(names)),
        bodies_bytes=tuple(dict.fromkeys(bodies_bytes)),
        header=header,
        repetitions=repetitions,
        timing=Timing(warm_up_ms=warm_up_ms, duration_ms=duration_ms),
    )
    console = Console(width=None if sys.stdout.isatty() else 130)
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        session = Session(plan, console)
        with working_folder() as folder:
            session.run(folder)
        results = session.results(started_at)
        report(console, results)
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    sys.exit(exit_code(results, assert_goals=assert_goals))


if __name__ == "__main__":
    main()
