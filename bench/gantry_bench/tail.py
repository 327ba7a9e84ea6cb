"""The append tail: the report of one run of the loop, and the summary of several rounds. Pure.

A round is one run of each medium and of the control. The *excess* of a medium at a percentile is its call time there
minus the control's in the same round: what files, page cache, buffer and helper threads add to the same Python work on
the same machine in the same minute. The median of the rounds' excesses counts. For a ratio, an
excess below ``EXCESS_US_MIN`` counts as that much, so that one near zero cannot make the ratio infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import Figures
from gantry_bench.measurement import Goal

Medium = Literal["control", "none", "tmpfs", "hugetlbfs", "anonymous"]

PERCENTILES: Final = {"p50": 0.50, "p99": 0.99, "p99_9": 0.999, "p99_99": 0.9999}
EXCESS_US_MIN: Final = 1.0
"""Smaller values count as this one, because they are noise: reading the clock twice costs a tenth of it."""
TAIL_RATIO_MIN: Final = 20.0
"""Goal: without the buffer the excess at p99.99 is at least this many times the excess with it."""
CRASH_SAFE: Final[tuple[Medium, ...]] = ("hugetlbfs", "tmpfs")
"""The media whose buffers survive their process."""


class LoopPlan(msgspec.Struct, frozen=True):
    """The parameters of one run."""

    medium: Medium
    store_path: str
    pool_path: str
    """The folder of the buffers; empty for anonymous memory and without buffers."""

    messages_per_second: int
    messages_per_call: int
    """The messages that one pass of the broker's loop appends."""

    body_bytes: int
    warm_up_seconds: float
    seconds: float
    flush_interval_ms: int
    segment_bytes: int
    buffers_count: int


class CallTimes(msgspec.Struct, frozen=True):
    """Percentiles of an append call, in microseconds."""

    p50: float
    p99: float
    p99_9: float
    p99_99: float
    max: float


class LoopReport(msgspec.Struct, frozen=True):
    """The report of one run."""

    medium: Medium
    used_medium: str
    """The medium that the store reports for its buffers."""

    messages: int
    seconds: float
    wrote_bytes: int
    call_us: CallTimes
    late_ms_max: float
    """The largest delay of a message: how far the loop was behind its schedule."""

    syncs: int
    """How often the log was synced during the run."""

    cpu_seconds: float
    page_faults: int


class TailCell(msgspec.Struct, frozen=True):
    """One medium: medians of the rounds, except for the least and the largest of them."""

    medium: Medium
    call_us: CallTimes
    excess_us: CallTimes
    """The excess over the control; all zero for the control."""

    excess_p99_99_least: float
    """The smallest excess at p99.99 of all rounds; the next field is the largest."""
    excess_p99_99_most: float
    late_ms_max: float
    syncs_per_second: float
    cores: float
    """CPU time of loop and helper threads, in cores."""


class Round(msgspec.Struct, frozen=True):
    """One run of the control, and one of each medium; these are in the order of running."""

    control: LoopReport
    runs: list[LoopReport]
    other_cores: float


def call_times(took_ns: Sequence[int]) -> CallTimes:
    """Return the percentiles in microseconds: in the sorted times, the percentile's share of them comes before it."""
    if not took_ns:
        raise BenchmarkFailed("a run without a message has no percentiles")
    ordered = sorted(took_ns)
    figures = {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000 for name, share in PERCENTILES.items()
    }
    return CallTimes(**figures, max=ordered[-1] / 1000)


def excess_of(run: LoopReport, control: LoopReport) -> CallTimes:
    """Return the difference to the control at each percentile, which may be negative."""
    return _combine([run.call_us, control.call_us], lambda values: values[0] - values[1])


def summarise_tail(rounds: Sequence[Round]) -> list[TailCell]:
    """Return the control, then each medium in the order of running."""
    cells = [_cell([(one.control, one.control) for one in rounds])]
    for place in range(len(rounds[0].runs)):
        cells.append(_cell([(one.runs[place], one.control) for one in rounds]))
    return cells


def _cell(pairs: Sequence[tuple[LoopReport, LoopReport]]) -> TailCell:
    runs = [run for run, _ in pairs]
    excesses = [excess_of(run, control) for run, control in pairs]
    return TailCell(
        medium=runs[0].medium,
        call_us=_combine([run.call_us for run in runs], median),
        excess_us=_combine(excesses, median),
        excess_p99_99_least=min(one.p99_99 for one in excesses),
        excess_p99_99_most=max(one.p99_99 for one in excesses),
        late_ms_max=max(run.late_ms_max for run in runs),
        syncs_per_second=median(run.syncs / run.seconds for run in runs),
        cores=median(run.cpu_seconds / run.seconds for run in runs),
    )


def _combine(times: Sequence[CallTimes], reduce: Callable[[list[float]], float]) -> CallTimes:
    """Combine the same percentile of all call times by ``reduce``, for each percentile."""
    fields = CallTimes.__struct_fields__
    return CallTimes(**{name: reduce([float(getattr(one, name)) for one in times]) for name in fields})


def excess_ratio(without: TailCell, with_buffer: TailCell) -> float:
    """Return how many times smaller the excess at p99.99 is with the buffer."""
    return max(without.excess_us.p99_99, EXCESS_US_MIN) / max(with_buffer.excess_us.p99_99, EXCESS_US_MIN)


def tail_goals(cells: Sequence[TailCell]) -> list[Goal]:
    """Return the goals for buffers that survive their process; anonymous memory is only shown."""
    by_medium = {cell.medium: cell for cell in cells}
    without = by_medium.get("none")
    if without is None:
        return []
    return [
        Goal(
            text=f"append p99.99 excess without a buffer, against {medium}",
            limit=TAIL_RATIO_MIN,
            measured=excess_ratio(without, by_medium[medium]),
            unit="x",
            is_floor=True,
        )
        for medium in CRASH_SAFE
        if medium in by_medium
    ]


def tail_figures(cells: Sequence[TailCell], conditions: list[str]) -> Figures:
    """Return the control's own times, then the excess of each medium."""
    control = cells[0].call_us
    rows = [["control (its own times)", *_times(control), "", "", f"{cells[0].cores:.2f}"]]
    for cell in cells[1:]:
        name = "no buffer" if cell.medium == "none" else cell.medium
        spread = f"{cell.excess_p99_99_least:,.0f} to {cell.excess_p99_99_most:,.0f}"
        rows.append([name, *_times(cell.excess_us), spread, f"{cell.syncs_per_second:.0f}", f"{cell.cores:.2f}"])
    return Figures(
        name="append tail",
        headings=["excess, us", "p50", "p99", "p99.9", "p99.99", "max", "p99.99, rounds", "syncs/s", "cores"],
        rows=rows,
        notes=conditions,
    )


def _times(times: CallTimes) -> list[str]:
    return [
        f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"
        for value in (times.p50, times.p99, times.p99_9, times.p99_99, times.max)
    ]
