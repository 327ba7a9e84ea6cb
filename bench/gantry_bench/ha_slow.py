"""The slow slave: the cost of acks that arrive 5 ms later. Pure.

With a fixed number of sends in flight an ack's delay must add once to each send's time: L0 + 5 ms, where L0 is the mean
time without the delay. With enough sends in flight the delay must change neither the rate nor the duration of pulls
meanwhile. And a master whose disk is as slow as its slave waits for both at once: 5 ms and not 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.ha_table import ratio
from gantry_bench.loadgen import Run
from gantry_bench.measurement import Goal

ACK_DELAY_MS: Final = 5
SYNC_DELAY_MS: Final = 5
BOUND_LEVEL: Final = 256
BOUND_SHARE_MIN: Final = 0.9
"""Goal: at this level at least this share of the rate that L0 + 5 ms allows."""
SATURATION_LEVEL: Final = 4096
SATURATED_SHARE_MIN: Final = 0.9
"""Goal: from this level on at least this share of the rate without a delay."""
PULL_RATIO_MAX: Final = 1.5
BOTH_P50_MS_MAX: Final = 8.0
"""Goal: with one send in flight, while disk and slave are 5 ms slower each."""

Kind = Literal["ack", "both"]


class PullReport(msgspec.Struct, frozen=True):
    """Pulls that were answered during a load."""

    pulls: int
    p50_us: float
    p99_us: float
    refused: int


class SlowRun(msgspec.Struct, frozen=True):
    """One run; ``both`` is a master with a slow disk and a slow slave."""

    kind: Kind
    level: int
    delay_ms: float
    run: Run
    pulls: PullReport | None = None


class SlowCell(msgspec.Struct, frozen=True):
    """Medians of the repetitions of a cell."""

    kind: Kind
    level: int
    delay_ms: float
    messages_per_second: float
    mean_us: float
    p50_us: float
    p99_us: float
    pull_p99_us: float
    pulls: int
    pulls_refused: int
    errors: int


def pull_report(samples_us: Sequence[float], refused: int) -> PullReport:
    """Return the median and the 99th percentile: in the sorted samples, this share of them comes before it."""
    ordered = sorted(samples_us)
    if not ordered:
        return PullReport(pulls=0, p50_us=0, p99_us=0, refused=refused)
    p50, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    return PullReport(pulls=len(ordered), p50_us=p50, p99_us=p99, refused=refused)


def summarise_slow(runs: Sequence[SlowRun]) -> list[SlowCell]:
    """Return one cell for each kind, level and delay, in the order of running."""
    keys = dict.fromkeys((one.kind, one.level, one.delay_ms) for one in runs)
    return [_cell([one for one in runs if (one.kind, one.level, one.delay_ms) == key]) for key in keys]


def _cell(runs: Sequence[SlowRun]) -> SlowCell:
    reports = [one.run.report for one in runs]
    pulls = [one.pulls for one in runs if one.pulls is not None]
    return SlowCell(
        kind=runs[0].kind,
        level=runs[0].level,
        delay_ms=runs[0].delay_ms,
        messages_per_second=median(report.messages_per_second for report in reports),
        mean_us=median(report.latency_us.mean for report in reports),
        p50_us=median(report.latency_us.p50 for report in reports),
        p99_us=median(report.latency_us.p99 for report in reports),
        pull_p99_us=median([report.p99_us for report in pulls] or [0.0]),
        pulls=sum(report.pulls for report in pulls),
        pulls_refused=sum(report.refused for report in pulls),
        errors=sum(report.errors for report in reports),
    )


def bound(plain: SlowCell) -> float:
    """Return the messages per second that this level of sends in flight allows if each takes L0 and the delay."""
    return plain.level / (plain.mean_us / 1e6 + ACK_DELAY_MS / 1e3)


def slow_goals(cells: Sequence[SlowCell]) -> list[Goal]:
    """Return the goals that the measured cells allow to check."""
    by_key = {(cell.kind, cell.level, cell.delay_ms): cell for cell in cells}
    goals: list[Goal] = []
    for level in dict.fromkeys(cell.level for cell in cells if cell.kind == "ack"):
        plain, slow = by_key.get(("ack", level, 0)), by_key.get(("ack", level, ACK_DELAY_MS))
        if plain is not None and slow is not None:
            goals += _pair_goals(plain, slow)
    both = by_key.get(("both", 1, ACK_DELAY_MS))
    if both is not None:
        text = f"p50, 1 outstanding, disk {SYNC_DELAY_MS} ms and acks {ACK_DELAY_MS} ms slower"
        goals.append(Goal(text=text, limit=BOTH_P50_MS_MAX, measured=both.p50_us / 1000, unit="ms"))
    return goals


def _pair_goals(plain: SlowCell, slow: SlowCell) -> list[Goal]:
    text = f"acks {ACK_DELAY_MS} ms later, {plain.level} outstanding"
    goals = []
    if plain.level >= SATURATION_LEVEL:
        share, unit = ratio(slow.messages_per_second, plain.messages_per_second), "x without a delay"
        goals.append(Goal(text=text, limit=SATURATED_SHARE_MIN, measured=share, unit=unit, is_floor=True))
    elif plain.level == BOUND_LEVEL:
        share, unit = ratio(slow.messages_per_second, bound(plain)), f"x {plain.level}/(L0 + {ACK_DELAY_MS} ms)"
        goals.append(Goal(text=text, limit=BOUND_SHARE_MIN, measured=share, unit=unit, is_floor=True))
    if plain.pulls and slow.pulls:
        share = ratio(slow.pull_p99_us, plain.pull_p99_us)
        goals.append(Goal(text=f"{text}: p99 of pulls", limit=PULL_RATIO_MAX, measured=share, unit="x without a delay"))
    return goals


def slow_figures(cells: Sequence[SlowCell], conditions: list[str]) -> Figures:
    """Return a row for each cell."""
    names = {"ack": "acks", "both": f"acks, disk {SYNC_DELAY_MS} ms slower, SYNC_FLUSH"}
    by_key = {(cell.kind, cell.level, cell.delay_ms): cell for cell in cells}
    rows = []
    for cell in cells:
        plain = by_key.get((cell.kind, cell.level, 0))
        allowed = f"{bound(plain):,.0f}" if plain is not None and plain is not cell else ""
        rows.append([
            names[cell.kind], f"{cell.delay_ms:g} ms", str(cell.level), f"{cell.messages_per_second:,.0f}", allowed,
            f"{cell.mean_us:,.0f} / {cell.p50_us:,.0f} / {cell.p99_us:,.0f}",
            f"{cell.pull_p99_us:,.0f}" if cell.pulls else "", str(cell.errors + cell.pulls_refused),
        ])  # fmt: skip
    return Figures(
        name="slow slave",
        headings=[
            "what is late", "by", "outstanding", "msgs/s", "that L0 and the delay allow", "mean / p50 / p99 us",
            "p99 of pulls us", "failures",
        ],
        rows=rows,
        notes=conditions,
    )  # fmt: skip
