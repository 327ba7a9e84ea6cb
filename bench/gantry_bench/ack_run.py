"""What acknowledgements wait for, and the cost of each: the pairs of `make bench-acks`, their loads and the table.

All pairs of one disk run at the same time and take each load in turn, so that other work of the machine is spread over
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.ha_cells import PLAIN, SYNC_PLAIN, Setup
from gantry_bench.ha_pair import (
    BODY_BYTES,
    Pair,
    PairPlan,
    load_of,
    start_pair,
    wait_until_attached,
    wait_until_caught_up,
)
from gantry_bench.ha_table import ratio
from gantry_bench.loadgen import LoadGenerator, Timing, build
from gantry_bench.machine import Cores
from gantry_bench.measurement import Goal, Report
from gantry_bench.processes import BROKER_PROGRAM
from gantry_bench.scale import MEBIBYTE

FIRST_LEVEL: Final = 64
SHARE_LEVEL: Final = 256
SHARE_MIN: Final = 0.8
"""Goal: at this level a slave's disk costs at most a fifth of the rate, on the machine's own disk."""


class Wait(msgspec.Struct, frozen=True):
    """What an acknowledgement waits for, and what an acknowledged message survives by that."""

    name: str
    setup: Setup
    survives_machine: str
    """What the loss of one machine with its disk costs."""
    survives_power: str
    """What a power failure of all machines at once costs."""


SLAVE: Final = Wait("a slave", SYNC_PLAIN, "nothing", "the flush window")
SLAVE_DISK: Final = Wait("a slave's disk", Setup("async", "sync", False, True), "nothing", "nothing")
WAITS: Final = (
    Wait("nothing", PLAIN, "what the slave lacks", "the flush window"),
    SLAVE,
    SLAVE_DISK,
    Wait("a slave and the master's disk", Setup("sync", "sync", False), "nothing", "nothing"),
    Wait("both disks", Setup("sync", "sync", False, True), "nothing", "nothing"),
)


class AckScale(msgspec.Struct, frozen=True):
    """The size of a run."""

    sync_delays_ms: tuple[int, ...]
    """How much longer a sync takes; 0 is the machine's own disk."""
    levels: tuple[int, ...]
    """The numbers of sends in flight."""
    repetitions: int
    timing: Timing
    first_load_ms: int
    segment_bytes: int


FULL: Final = AckScale(
    sync_delays_ms=(0, 2), levels=(1, 16, 64, 256), repetitions=5, timing=Timing(warm_up_ms=500, duration_ms=2000),
    first_load_ms=3000, segment_bytes=512 * MEBIBYTE,
)  # fmt: skip
QUICK: Final = AckScale(
    sync_delays_ms=(0, 2), levels=(1, 64), repetitions=1, timing=Timing(warm_up_ms=100, duration_ms=300),
    first_load_ms=300, segment_bytes=16 * MEBIBYTE,
)  # fmt: skip


class AckRun(msgspec.Struct, frozen=True):
    """One load on one pair."""

    wait: str
    sync_delay_ms: int
    level: int
    report: Report


class AckCell(msgspec.Struct, frozen=True):
    """The medians of all repetitions of one load on one kind of pair."""

    messages_per_second: float
    p50_us: float
    p99_us: float


def measure(scale: AckScale, _cores: Cores, folder: Path, report_progress: Callable[[str], None]) -> list[AckRun]:
    """Measure all pairs on each disk. Raises BenchmarkFailed."""
    load = LoadGenerator(build(), core=None)
    runs: list[AckRun] = []
    for delay_ms in scale.sync_delays_ms:
        with ExitStack() as stack:
            report_progress(f"{_disk_text(delay_ms)}; starting")
            pairs = [(wait, _start(stack, wait, delay_ms, scale, folder, load)) for wait in WAITS]
            for level in scale.levels:
                report_progress(f"{_disk_text(delay_ms)}, {level} outstanding")
                for _ in range(scale.repetitions):
                    for wait, pair in pairs:
                        wait_until_caught_up(pair)
                        run = load.run(load_of(level), BODY_BYTES, target=pair.master, timing=scale.timing)
                        runs.append(AckRun(wait.name, delay_ms, level, run.report))
    return runs


def _start(stack: ExitStack, wait: Wait, delay_ms: int, scale: AckScale, folder: Path, load: LoadGenerator) -> Pair:
    slow = ("gantry_testing.slow_broker", "--sync-delay-ms", str(delay_ms), "--") if delay_ms else BROKER_PROGRAM
    plan = PairPlan(
        setup=wait.setup, segment_bytes=scale.segment_bytes, buffers_count=0, pool_path="", master_program=slow,
        slave_program=slow,
    )  # fmt: skip
    place = f"acks-{delay_ms}-{wait.setup.short}{'-flushed' if wait.setup.is_slave_flushed else ''}"
    pair = stack.enter_context(start_pair(plan, folder / place))
    wait_until_attached(pair, load)
    timing = Timing(warm_up_ms=0, duration_ms=scale.first_load_ms)
    load.run(load_of(FIRST_LEVEL), BODY_BYTES, target=pair.master, timing=timing)
    return pair


def summarise(runs: Sequence[AckRun]) -> dict[tuple[str, int, int], AckCell]:
    """Return a cell for each (wait, delay, level)."""
    keys = dict.fromkeys((run.wait, run.sync_delay_ms, run.level) for run in runs)
    cells = {}
    for key in keys:
        reports = [run.report for run in runs if (run.wait, run.sync_delay_ms, run.level) == key]
        cells[key] = AckCell(
            median(report.messages_per_second for report in reports),
            median(report.latency_us.p50 for report in reports),
            median(report.latency_us.p99 for report in reports),
        )
    return cells


def ack_figures(runs: Sequence[AckRun], scale: AckScale) -> list[Figures]:
    """Return a table for each disk: a row for each wait, a column for each level."""
    cells = summarise(runs)
    return [
        Figures(
            name=f"acknowledgements, {_disk_text(delay_ms)}",
            headings=[
                "an acknowledgement waits for", "loss of a machine costs", "power failure of all costs",
                *(f"{level} outstanding: msgs/s, p50 / p99 us" for level in scale.levels),
            ],
            rows=[
                [wait.name, wait.survives_machine, wait.survives_power]
                + [_cell_text(cells[wait.name, delay_ms, level]) for level in scale.levels]
                for wait in WAITS
            ],
            notes=[f"A master and a slave on one machine; {BODY_BYTES} bytes a body; medians of {scale.repetitions}."],
        )
        for delay_ms in scale.sync_delays_ms
    ]  # fmt: skip


def ack_goals(runs: Sequence[AckRun], scale: AckScale) -> list[Goal]:
    """Return the goal for the cost of waiting for a slave's disk, if the run has its level."""
    if SHARE_LEVEL not in scale.levels:
        return []
    cells = summarise(runs)
    flushed, received = (cells[wait.name, 0, SHARE_LEVEL].messages_per_second for wait in (SLAVE_DISK, SLAVE))
    text = f"rate at {SHARE_LEVEL} outstanding, waiting for a slave's disk"
    return [
        Goal(text=text, limit=SHARE_MIN, measured=ratio(flushed, received), unit="x a slave's memory", is_floor=True)
    ]


def count_errors(runs: Sequence[AckRun]) -> int:
    """Return how many sends were refused or answered wrongly."""
    return sum(run.report.errors for run in runs)


def _cell_text(cell: AckCell) -> str:
    return f"{cell.messages_per_second:,.0f}, {cell.p50_us:,.0f} / {cell.p99_us:,.0f}"


def _disk_text(delay_ms: int) -> str:
    return f"syncs {delay_ms} ms slower" if delay_ms else "the machine's disk"
