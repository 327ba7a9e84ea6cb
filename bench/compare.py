"""`make bench-compare BEFORE=REV`: the cost of a change, measured by the same loads on an earlier commit and this tree.

Both brokers, or both masters with their slaves, run at the same time and take each load in turn, a round at a time;
every second round begins with the other side. A *ratio* compares the two loads of one round, and a cell shows the
median of its rounds: disturbances longer than a round affect both sides and cancel out. The cells are those
of `make bench-send` and setups of `make bench-ha`. The earlier broker runs with the libraries of this tree's
environment. The goal holds for every cell: neither more CPU time for a message nor fewer messages a second than the
tolerance allows.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, Literal, final, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e" / "interop"))

import click
import msgspec
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.ha_cells import PLAIN, SYNC_BUFFERED, Setup
from gantry_bench.ha_pair import (
    BODY_BYTES,
    Pair,
    PairPlan,
    load_of,
    room_needed,
    start_pair,
    wait_until_attached,
    wait_until_caught_up,
)
from gantry_bench.loadgen import LoadGenerator, Run, Target, Timing, build
from gantry_bench.machine import Cores, Machine, assign_cores, describe_machine
from gantry_bench.measurement import MODES, Goal, Mode
from gantry_bench.media import buffer_place
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.parts import ROOM_FOR_HEADERS_BYTES
from gantry_bench.processes import ROOT, start_broker, start_name_server
from gantry_bench.results import json_option, shown_path, write_results
from gantry_bench.table import OTHER_CORES_NOTICED, print_goals
from rich.console import Console
from rich.table import Table

RESULTS: Final = ROOT / "bench" / "results"
TOLERANCE: Final = 0.05
SEND_BODIES_BYTES: Final = (128, 1024)
HA_SETUPS: Final = (
    PLAIN,
    Setup(flush="sync", replication="async", has_buffer=False),
    Setup(flush="async", replication="sync", has_buffer=False),
    SYNC_BUFFERED,
    Setup(flush="sync", replication="sync", has_buffer=True),
)
HA_LEVELS: Final = (1, 64)
HA_SEGMENT_BYTES: Final = 256 << 20
HA_BUFFERS: Final = 3
FIRST_LOAD: Final = Timing(warm_up_ms=0, duration_ms=500)
SOURCE_ROOTS: Final = ("broker/src", "operator/src")

PartName = Literal["send", "ha"]
Side = Literal["before", "after"]
SIDES: Final[tuple[Side, Side]] = ("before", "after")


class Cell(msgspec.Struct, frozen=True):
    """One load on both sides: medians, and the median of the ratios of its rounds."""

    name: str
    cpu_us: dict[Side, float]
    messages_per_second: dict[Side, float]
    cpu_ratio: float
    rate_ratio: float
    errors: int
    other_cores: float


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    before: str
    rounds: int
    timing: Timing
    machine: Machine
    cells: list[Cell]
    runs: dict[str, dict[Side, list[Run]]]


def compare_runs(name: str, runs: dict[Side, list[Run]]) -> Cell:
    """Reduce the rounds of one cell to medians and median ratios, after to before."""
    reports = {side: [run.report for run in runs[side]] for side in SIDES}
    for side in SIDES:
        for number, report in enumerate(reports[side], 1):
            if not report.messages:
                text = f"{name}: in round {number} the broker {side} the change answered no message with code 0"
                raise BenchmarkFailed(f"{text} ({report.first_refusal or 'no refusal either'})")
    pairs = list(zip(reports["before"], reports["after"], strict=True))
    return Cell(
        name=name,
        cpu_us={side: median(report.server.cpu_us_per_message for report in reports[side]) for side in SIDES},
        messages_per_second={side: median(report.messages_per_second for report in reports[side]) for side in SIDES},
        cpu_ratio=median(new.server.cpu_us_per_message / old.server.cpu_us_per_message for old, new in pairs),
        rate_ratio=median(new.messages_per_second / old.messages_per_second for old, new in pairs),
        errors=sum(report.errors for side in SIDES for report in reports[side]),
        other_cores=max(run.other_cores for side in SIDES for run in runs[side]),
    )


def compare_all(runs: Mapping[str, dict[Side, list[Run]]]) -> tuple[list[Cell], list[str]]:
    """Reduce all cells. A cell that cannot be compared is a text in the second list, and the others are kept."""
    cells: list[Cell] = []
    problems: list[str] = []
    for name, of_cell in runs.items():
        try:
            cells.append(compare_runs(name, of_cell))
        except BenchmarkFailed as error:
            problems.append(str(error))
    return cells, problems


def goals_of(cells: Sequence[Cell]) -> list[Goal]:
    """Return two goals, for CPU time and for the rate: each is checked for its worst cell, which its text names."""
    costliest = max(cells, key=lambda cell: cell.cpu_ratio)
    slowest = min(cells, key=lambda cell: cell.rate_ratio)
    cpu = f"broker CPU per message, worst cell ({costliest.name})"
    rate = f"messages per second, worst cell ({slowest.name})"
    return [
        Goal(text=cpu, limit=1 + TOLERANCE, measured=costliest.cpu_ratio, unit="x before"),
        Goal(text=rate, limit=1 - TOLERANCE, measured=slowest.rate_ratio, unit="x before", is_floor=True),
    ]


@contextmanager
def extract_commit(revision: str, folder: Path) -> Iterator[Path]:
    """Extract the source folders of a commit into a folder of their own."""
    place = folder / "before"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", revision, *SOURCE_ROOTS], capture_output=True, check=False
    )
    if done.returncode != 0:
        raise BenchmarkFailed(f"cannot read the commit {revision}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(place, filter="data")
    yield place


def prefix_for(tree: Path) -> tuple[str, ...]:
    """Return a command prefix that makes Python import the packages of ``tree``. Raises BenchmarkFailed."""
    roots = [tree / root for root in SOURCE_ROOTS]
    prefix = ("env", f"PYTHONPATH={os.pathsep.join(map(str, roots))}")
    command = [*prefix, sys.executable, "-c", "import gantry_broker; print(gantry_broker.__file__)"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tree).stdout.strip()
    if not Path(found).is_relative_to(tree):
        raise BenchmarkFailed(f"a broker started for {tree} imports gantry_broker from {found or 'no path'}")
    return prefix


@final
class Comparison:
    """Runs the cells. ``prefixes`` start a broker of either side, ``report`` receives a line about the next step."""

    def __init__(
        self,
        prefixes: dict[Side, tuple[str, ...]],
        folder: Path,
        *,
        cores: Cores,
        rounds: int,
        timing: Timing,
        report: Callable[[str], None],
    ) -> None:
        self._prefixes = prefixes
        self._folder = folder
        self._cores = cores
        self._rounds = rounds
        self._timing = timing
        self._report = report
        binary = build()
        self._pinned, self._free = LoadGenerator(binary, core=cores.load), LoadGenerator(binary, core=None)
        self.runs: dict[str, dict[Side, list[Run]]] = {}

    def send(self) -> None:
        """Measure the cells of `make bench-send`: both brokers on one core, the load generator on the other."""
        with start_name_server(self._folder) as name_server:
            for mode in MODES.values():
                for body_bytes in SEND_BODIES_BYTES:
                    self._send_cell(mode, body_bytes, name_server)

    def _send_cell(self, mode: Mode, body_bytes: int, name_server: str) -> None:
        name = f"send {mode.name}, {body_bytes} B"
        with ExitStack() as stack:
            targets: dict[Side, Target] = {}
            for side in SIDES:
                folder = self._folder / f"send-{mode.name}-{body_bytes}-{side}"
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                broker = start_broker(
                    folder, name_server=name_server, core=self._cores.server, prefix=self._prefixes[side],
                    extra={"brokerName": f"broker-{side}"},
                )  # fmt: skip
                targets[side] = stack.enter_context(broker).target
            self._measure(name, partial(self._load_broker, targets, mode, body_bytes))

    def _load_broker(self, targets: dict[Side, Target], mode: Mode, body_bytes: int, side: Side, timing: Timing) -> Run:
        return self._pinned.run(mode, body_bytes, target=targets[side], timing=timing)

    def ha(self) -> None:
        """Measure setups of `make bench-ha`: two masters, each with its slave."""
        for setup in HA_SETUPS:
            with ExitStack() as stack:
                pairs = self._pairs(stack, setup)
                for level in HA_LEVELS:
                    self._measure(f"{setup.text}, {level} outstanding", partial(self._load_pair, pairs, level))

    def _load_pair(self, pairs: dict[Side, Pair], level: int, side: Side, timing: Timing) -> Run:
        wait_until_caught_up(pairs[side])
        return self._free.run(load_of(level), BODY_BYTES, target=pairs[side].master, timing=timing)

    def _pairs(self, stack: ExitStack, setup: Setup) -> dict[Side, Pair]:
        plans = {
            side: PairPlan(
                setup=setup, segment_bytes=HA_SEGMENT_BYTES, buffers_count=HA_BUFFERS, pool_path="",
                master_prefix=self._prefixes[side], slave_prefix=self._prefixes[side],
            )
            for side in SIDES
        }  # fmt: skip
        if needed := room_needed(list(plans.values()), ROOM_FOR_HEADERS_BYTES):
            path = stack.enter_context(buffer_place(needed)).path
            plans = {side: msgspec.structs.replace(plan, pool_path=path) for side, plan in plans.items()}
        pairs = {side: stack.enter_context(start_pair(plans[side], self._folder / f"ha-{side}")) for side in SIDES}
        for pair in pairs.values():
            wait_until_attached(pair, self._free)
        return pairs

    def _measure(self, name: str, run: Callable[[Side, Timing], Run]) -> None:
        self._report(name)
        for side in SIDES:
            run(side, FIRST_LOAD)
        runs: dict[Side, list[Run]] = {side: [] for side in SIDES}
        for number in range(self._rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                runs[side].append(run(side, self._timing))
        self.runs[name] = runs


def print_cells(console: Console, cells: Sequence[Cell]) -> None:
    """Print one row for each cell, and a warning if other programs were busy."""
    table = Table(title="before and after the change", title_justify="left")
    table.add_column("cell")
    for heading in ("CPU us/msg before", "after", "ratio", "msgs/s before", "after", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in cells:
        table.add_row(
            cell.name,
            *(f"{cell.cpu_us[side]:.2f}" for side in SIDES), f"{cell.cpu_ratio:.3f}",
            *(f"{cell.messages_per_second[side]:,.0f}" for side in SIDES), f"{cell.rate_ratio:.3f}",
        )  # fmt: skip
    console.print(table)
    busiest = max((cell.other_cores for cell in cells if cell.name.startswith("send")), default=0.0)
    if busiest > OTHER_CORES_NOTICED:
        console.print(f"other programs used up to {busiest:.1f} cores: repeat on a quiet machine", style="yellow")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", metavar="REV")
@click.option(
    "--only", "names", multiple=True, type=click.Choice(get_args(PartName)), default=get_args(PartName),
    show_default=True, help="Part to run; may be given several times.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=10, show_default=True, help="Loads of each cell and side."
)
@click.option("--duration-ms", type=click.IntRange(100, 60_000), default=1000, show_default=True)
@json_option
@ASSERT_GOALS
def main(
    before: str, names: Sequence[PartName], *, rounds: int, duration_ms: int, json_path: Path | None, assert_goals: bool
) -> None:
    """Compare this tree with the commit REV in sends and replication. About 12 minutes.

    The tree may have uncommitted changes: `bench-compare HEAD` measures those, or the noise of the machine if
    there are none.
    """
    console = Console(width=None if sys.stdout.isatty() else 160)

    def report(cell: str) -> None:
        console.print(f"  {time.strftime('%H:%M:%S')} {cell}", style="dim", highlight=False)

    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    timing = Timing(warm_up_ms=200, duration_ms=duration_ms)
    RESULTS.mkdir(parents=True, exist_ok=True)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as name,
            extract_commit(before, Path(name)) as tree,
        ):
            comparison = Comparison(
                {"before": prefix_for(tree), "after": prefix_for(ROOT)},
                Path(name), cores=assign_cores(os.sched_getaffinity(0)), rounds=rounds, timing=timing,
                report=report,
            )  # fmt: skip
            parts: dict[PartName, Callable[[], None]] = {"send": comparison.send, "ha": comparison.ha}
            for part in dict.fromkeys(names):
                parts[part]()
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    cells, problems = compare_all(comparison.runs)
    if not cells:
        raise click.ClickException("\n".join(problems))
    goals = goals_of(cells)
    print_cells(console, cells)
    print_goals(console, goals)
    results = Results(
        started_at=started_at, before=before, rounds=rounds, timing=timing, machine=describe_machine(), cells=cells,
        runs=comparison.runs,
    )  # fmt: skip
    path = write_results(results, started_at, folder=RESULTS, name="compare", json_path=json_path)
    console.print(f"written to {shown_path(path, ROOT)}", highlight=False)
    for problem in problems:
        console.print(problem, style="red", highlight=False)
    errors = sum(cell.errors for cell in cells)
    if errors:
        console.print(f"{errors} answers were wrong or refusals", style="red")
    is_missed = any(not goal.is_met for goal in goals)
    sys.exit(1 if errors or problems or (assert_goals and is_missed) else 0)


if __name__ == "__main__":
    main()
