"""`make bench-send`: the broker's cost of a send, on both code paths, compared with other servers under the same load.

The servers are an echo on the same event loop, a C server that only appends and answers, Gantry's broker in pure Python
and with its compiled path, and with `--apache` Apache's broker. For every mode and body size they take the same load in
turn, several times; the figures are medians. A second part compares the requests of different clients. A path that is
not available is left out with the reason, and never measured under its name.
Goals are printed as met or not met. The exit code is 1 when a run had errors, or when a goal was missed and
`--assert-goals` was given. If a run fails or is interrupted, the finished cells are kept.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal, final, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e" / "interop"))

import click
import msgspec
from gantry_bench import speedups
from gantry_bench.append_server import missing_reason, start_append_server
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures
from gantry_bench.ha_apache import apache_missing_reason, start_apache_broker
from gantry_bench.loadgen import LoadGenerator, Run, Target, Timing, build
from gantry_bench.machine import Cores, Machine, assign_cores, describe_machine
from gantry_bench.measurement import (
    GOAL_BODY_BYTES,
    JAVA,
    MODES,
    SENDERS,
    Goal,
    Mode,
    ModeName,
    Sender,
    first_refusal,
    memory_goal,
    summarise,
)
from gantry_bench.memory import ResidentMemory
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.processes import (
    ACCESS_KEY,
    ROOT,
    access_control_keys,
    start_broker,
    start_echo_server,
    start_name_server,
)
from gantry_bench.results import json_option, shown_path, write_results
from gantry_bench.send_figures import (
    Cell,
    GantryPath,
    SenderCell,
    SenderRun,
    ServerName,
    missing_notes,
    mode_notes,
    send_goals,
    send_table,
    sender_note,
    sender_table,
)
from gantry_bench.speedups import CodePath, Setting
from gantry_bench.table import print_goals, print_surroundings
from rich.console import Console

RESULTS: Final = ROOT / "bench" / "results"
ROOM_BYTES: Final = 3 * 1024**3
"""The room for log files that are preallocated."""
BYTES_PER_SECOND: Final = 1.5 * 1024**3
"""What all servers of a cell store for a second of load on each, on a fast machine; the cell's stores are removed
after it."""
FIRST_LOAD_MS: Final = 8000
"""The load before Apache's first measurement, in which Java compiles its hot code; at most five measurements long."""
PartName = Literal["servers", "senders"]
SETTINGS: Final[dict[GantryPath, Setting]] = {"python": "off", "compiled": "auto"}


class Plan(msgspec.Struct, frozen=True):
    """The parameters of a run."""

    parts: tuple[PartName, ...]
    modes: tuple[Mode, ...]
    bodies_bytes: tuple[int, ...]
    senders: tuple[Sender, ...]
    repetitions: int
    timing: Timing
    has_apache: bool

    @property
    def sender_timing(self) -> Timing:
        """Half the duration, since every sender runs beside the usual one."""
        return Timing(warm_up_ms=self.timing.warm_up_ms // 2, duration_ms=max(self.timing.duration_ms // 2, 1))

    @property
    def sender_body_bytes(self) -> int:
        """The body size of the goals, if it is measured at all."""
        return GOAL_BODY_BYTES if GOAL_BODY_BYTES in self.bodies_bytes else self.bodies_bytes[-1]

    @property
    def free_bytes_needed(self) -> int:
        """The disk space for the stores of a cell."""
        seconds = self.repetitions * (self.timing.warm_up_ms + self.timing.duration_ms) / 1000
        return ROOM_BYTES + int(seconds * BYTES_PER_SECOND)


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    cores: Cores
    plan: Plan
    paths: list[CodePath]
    missing: dict[ServerName, str]
    cells: list[Cell]
    sender_cells: list[SenderCell]
    goals: list[Goal]
    idle_memory: list[ResidentMemory]
    runs: list[Run]
    errors: int
    """Wrong answers and refusals of all servers but Apache's, which refuses sends when it is overloaded."""


@final
class Session:
    """One benchmark run: echo server and Apache's broker run throughout, the others start anew for each cell."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self.cores = assign_cores(os.sched_getaffinity(0))
        self.paths = [speedups.probe(setting) for setting in SETTINGS.values()]
        self.missing: dict[ServerName, str] = {}
        self.cells: list[Cell] = []
        self.sender_cells: list[SenderCell] = []
        self.idle_memory: list[ResidentMemory] = []
        self.runs: list[Run] = []
        self._load = LoadGenerator(build(), core=self.cores.load)
        self._folders = 0
        for path, known in zip(SETTINGS, self.paths, strict=True):
            if path == "compiled" and not known.is_compiled:
                self.missing[path] = known.reason
        if reason := missing_reason():
            self.missing["c"] = reason
        if plan.has_apache and (reason := apache_missing_reason()):
            self.missing["apache"] = reason

    def run(self, folder: Path) -> None:
        """Measure every cell of the plan."""
        for note in missing_notes(self.missing):
            self._console.print(note, style="yellow", highlight=False)
        with ExitStack() as stack:
            name_server = stack.enter_context(start_name_server(folder))
            if "servers" in self._plan.parts:
                throughout = self._start_throughout(stack, folder)
                for mode in self._plan.modes:
                    for body_bytes in self._plan.bodies_bytes:
                        self._measure(mode, body_bytes, folder, name_server, throughout)
            if "senders" in self._plan.parts:
                for sender in self._plan.senders:
                    self._compare_sender(sender, folder, name_server)

    def _start_throughout(self, stack: ExitStack, folder: Path) -> dict[ServerName, Target]:
        """Start the servers whose state does not matter. Java gets a first load, in which it compiles its hot code."""
        targets: dict[ServerName, Target] = {
            "echo": stack.enter_context(start_echo_server(folder, core=self.cores.server))
        }
        if self._plan.has_apache and "apache" not in self.missing:
            self._report("starting Apache's broker")
            targets["apache"] = stack.enter_context(start_apache_broker(folder / "apache"))
            first_ms = min(FIRST_LOAD_MS, 5 * self._plan.timing.duration_ms)
            self._load.run(
                self._plan.modes[0], self._plan.bodies_bytes[0], target=targets["apache"],
                timing=Timing(warm_up_ms=0, duration_ms=first_ms),
            )  # fmt: skip
        return targets

    def _start_appenders(
        self, stack: ExitStack, folder: Path, name_server: str, secret: str = ""
    ) -> dict[ServerName, Target]:
        """Start the C server and a broker on each code path, all with empty logs; with a secret, sends are signed."""
        self._folders += 1
        account = (ACCESS_KEY, secret) if secret else None
        targets: dict[ServerName, Target] = {}
        if "c" not in self.missing:
            targets["c"] = stack.enter_context(
                start_append_server(folder / f"c-{self._folders}", core=self.cores.server)
            )
        for path, setting in SETTINGS.items():
            if path in self.missing:
                continue
            own = folder / f"{path}-{self._folders}"
            stack.callback(shutil.rmtree, own, ignore_errors=True)
            extra = {"brokerName": f"{path}-{self._folders}"}
            if secret:
                extra |= access_control_keys(folder, secret)
            broker = stack.enter_context(
                start_broker(
                    own, name_server=name_server, core=self.cores.server, extra=extra,
                    prefix=speedups.prefix_for(setting),
                )
            )  # fmt: skip
            targets[path] = broker.target
            self.idle_memory.append(broker.idle_memory)
        return {name: msgspec.structs.replace(target, account=account) for name, target in targets.items()}

    def _measure(
        self, mode: Mode, body_bytes: int, folder: Path, name_server: str, throughout: Mapping[ServerName, Target]
    ) -> None:
        self._report(f"{mode.text}, body {body_bytes} B")
        with ExitStack() as stack:
            targets = {**throughout, **self._start_appenders(stack, folder, name_server)}
            runs: dict[ServerName, list[Run]] = {name: [] for name in targets}
            for _ in range(self._plan.repetitions):
                for name, target in targets.items():
                    runs[name].append(self._load.run(mode, body_bytes, target=target, timing=self._plan.timing))
        all_runs = [run for of_server in runs.values() for run in of_server]
        self.runs += all_runs
        reports = {name: [run.report for run in of_server] for name, of_server in runs.items()}
        if not all(report.messages for report in reports.get("apache", [])):
            self.missing["apache"] = (
                f"it stored nothing in a run; first refusal: {first_refusal(reports.pop('apache'))}"
            )
        self.cells.append(
            Cell(
                mode=mode,
                body_bytes=body_bytes,
                servers={name: summarise(of_server) for name, of_server in reports.items()},
                other_cores=max(run.other_cores for run in all_runs),
            )
        )

    def _compare_sender(self, sender: Sender, folder: Path, name_server: str) -> None:
        mode, body_bytes = MODES["a"], self._plan.sender_body_bytes
        self._report(f"sender: {sender.text}")
        with ExitStack() as stack:
            usual = self._start_appenders(stack, folder, name_server)
            targets = usual
            if sender.is_signed:
                targets = self._start_appenders(stack, folder, name_server, secret=secrets.token_hex(16))
            runs: dict[ServerName, tuple[list[Run], list[Run]]] = {name: ([], []) for name in targets}
            for _ in range(self._plan.repetitions):
                for name, (of_usual, of_sender) in runs.items():
                    for one, target, into in ((JAVA, usual[name], of_usual), (sender, targets[name], of_sender)):
                        into.append(
                            self._load.run(mode, body_bytes, sender=one, target=target, timing=self._plan.sender_timing)
                        )
        all_runs = [run for both in runs.values() for one in both for run in one]
        self.runs += all_runs
        summaries = {
            name: SenderRun(*(summarise([run.report for run in one]) for one in both)) for name, both in runs.items()
        }
        self.sender_cells.append(
            SenderCell(sender, mode, body_bytes, summaries, max(run.other_cores for run in all_runs))
        )

    def _report(self, text: str) -> None:
        self._console.print(f"  {text} ...", style="dim", highlight=False)

    def results(self, started_at: str) -> Results:
        """Return the results of the run."""
        goals = send_goals(self.cells, self.sender_cells)
        if self.idle_memory:
            goals.append(memory_goal(max(memory.counted_bytes for memory in self.idle_memory)))
        return Results(
            started_at=started_at,
            machine=describe_machine(),
            cores=self.cores,
            plan=self._plan,
            paths=self.paths,
            missing=self.missing,
            cells=self.cells,
            sender_cells=self.sender_cells,
            goals=goals,
            idle_memory=self.idle_memory,
            runs=self.runs,
            errors=sum(
                summary.errors
                for servers in [cell.servers for cell in self.cells]
                for name, summary in servers.items()
                if name != "apache"
            )
            + sum(run.usual.errors + run.sender.errors for cell in self.sender_cells for run in cell.servers.values()),
        )


@contextmanager
def working_folder(free_bytes_needed: int) -> Iterator[Path]:
    """Make a folder in `bench/results`, and remove it at the end, also after an error."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(RESULTS).free
    if free_bytes < free_bytes_needed:
        raise BenchmarkFailed(f"{free_bytes >> 20} MiB are free on the disk and {free_bytes_needed >> 20} are needed")
    with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as folder:
        yield Path(folder)


def report(console: Console, results: Results, json_path: Path | None) -> None:
    """Print tables, goals and errors, write the results file, and print its name."""
    if results.cells:
        print_figures(console, send_table(results.cells, mode_notes(results.plan.modes)))
    if results.sender_cells:
        print_figures(console, sender_table(results.sender_cells, [sender_note(results.sender_cells)]))
    for note in missing_notes(results.missing):
        console.print(note, style="yellow", highlight=False)
    print_goals(console, results.goals)
    others = [cell.other_cores for cell in results.cells] + [cell.other_cores for cell in results.sender_cells]
    busiest = max(others, default=0.0)
    print_surroundings(console, results.machine, results.cores, busiest)
    path = write_results(results, results.started_at, folder=RESULTS, name="send", json_path=json_path)
    console.print(f"written to {shown_path(path, ROOT)}", highlight=False)
    if results.errors:  # last, because make bench reports the last line of a part that has failed
        refusal = first_refusal([run.report for run in results.runs])
        text = f"{results.errors} answers were wrong or refusals; the first refusal: {refusal}"
        console.print(text, style="red", soft_wrap=True)


def exit_code(results: Results, *, assert_goals: bool) -> int:
    """Return 0, or 1 after errors, or after a missed goal if that was requested."""
    is_missed = any(not goal.is_met for goal in results.goals)
    return 1 if results.errors or (assert_goals and is_missed) else 0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", "parts", multiple=True, type=click.Choice(get_args(PartName)), default=get_args(PartName),
    show_default=True, help="Part to run: one sender on every server, or every sender; may be given several times.",
)  # fmt: skip
@click.option(
    "--mode", "names", multiple=True, type=click.Choice(get_args(ModeName)), default=get_args(ModeName),
    show_default=True, help="Shape of the load; may be given several times.",
)  # fmt: skip
@click.option(
    "--body-bytes", "bodies_bytes", multiple=True, type=click.IntRange(1, 4 * 1024 * 1024), default=(128, 1024),
    show_default=True, help="Size of the message body; may be given several times.",
)  # fmt: skip
@click.option(
    "--sender", "sender_names", multiple=True, type=click.Choice(list(SENDERS)[1:]), default=list(SENDERS)[1:],
    show_default=True, help="Client whose requests are compared with Java's; may be given several times.",
)  # fmt: skip
@click.option("--apache", "has_apache", is_flag=True, help="Measure Apache's broker, too; needs Java and Maven.")
@click.option("--repetitions", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--warm-up-ms", type=click.IntRange(0, 30_000), default=500, show_default=True)
@click.option("--duration-ms", type=click.IntRange(100, 60_000), default=1500, show_default=True)
@json_option
@ASSERT_GOALS
def main(
    parts: Sequence[PartName], names: Sequence[ModeName], bodies_bytes: Sequence[int], sender_names: Sequence[str], *,
    has_apache: bool, repetitions: int, warm_up_ms: int, duration_ms: int, json_path: Path | None, assert_goals: bool,
) -> None:  # fmt: skip
    """Measure sends: rate, latency, and broker CPU per message, compared with an echo server and with a C server.

    Gantry's broker is measured in pure Python and, where it is available, with its compiled path. About six minutes.
    """
    plan = Plan(
        parts=tuple(dict.fromkeys(parts)),
        modes=tuple(MODES[name] for name in dict.fromkeys(names)),
        bodies_bytes=tuple(dict.fromkeys(bodies_bytes)),
        senders=tuple(SENDERS[name] for name in dict.fromkeys(sender_names)),
        repetitions=repetitions,
        timing=Timing(warm_up_ms=warm_up_ms, duration_ms=duration_ms),
        has_apache=has_apache,
    )
    console = Console(width=None if sys.stdout.isatty() else 170)
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    failure = ""
    try:
        session = Session(plan, console)
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    try:
        with working_folder(plan.free_bytes_needed) as folder:
            session.run(folder)
    except (BenchmarkFailed, KeyboardInterrupt) as error:
        failure = str(error) or "interrupted"
    results = session.results(started_at)
    if results.cells or results.sender_cells:
        report(console, results, json_path)
    if failure:
        raise click.ClickException(failure)
    sys.exit(exit_code(results, assert_goals=assert_goals))


if __name__ == "__main__":
    main()
