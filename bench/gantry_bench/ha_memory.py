"""Synchronous replication with little memory, compared with much memory. Pure.

In RocketMQ, four times the messages needed four times the heap, since every message was first built on the heap.
Gantry's broker writes a message directly to its final place. So a broker in a control group of 256 MiB must be as fast
as one of 4 GiB; a third, whose 256 MiB include the page cache of its log, is shown without a goal.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.ha_cells import HaRun, Setup
from gantry_bench.ha_table import ratio
from gantry_bench.measurement import Goal

GroupName = Literal["256 MiB", "4 GiB", "256 MiB with its page cache"]

MEBIBYTE: Final = 1 << 20
SHARE_MIN: Final = 0.95
"""Goal: in the small group at least this share of the messages per second of the large one, in every cell."""
OWN_BYTES: Final[dict[GroupName, int]] = {
    "256 MiB": 256 * MEBIBYTE,
    "4 GiB": 4096 * MEBIBYTE,
    "256 MiB with its page cache": 256 * MEBIBYTE,
}


class MemoryRun(msgspec.Struct, frozen=True):
    """One run of a pair whose brokers have this memory limit each."""

    group: GroupName
    run: HaRun
    own_bytes: int
    """The own memory of the larger broker, right after the run."""

    limit_hits: int
    """How often the limit was reached since the start."""


def limit_bytes(group: GroupName, *, segment_bytes: int, tmpfs_bytes: int) -> int:
    """Return the limit of a group: its own memory, plus the allowance for mapped pages if these are separate.

    Mapped pages are the log's current file and the next one, with their queues. Buffers on tmpfs count as memory of
    the control group, so each limit is larger by them.
    """
    room = 0 if group == "256 MiB with its page cache" else 2 * segment_bytes
    return OWN_BYTES[group] + room + tmpfs_bytes


def rate(runs: Sequence[MemoryRun], group: GroupName, setup: Setup, level: int) -> float | None:
    """Return the median rate over the repetitions; None without any."""
    reports = [
        one.run.run.report
        for one in runs
        if (one.group, one.run.setup, one.run.level) == (group, setup, level) and one.run.run is not None
    ]
    return median(report.messages_per_second for report in reports) if reports else None


def memory_goals(runs: Sequence[MemoryRun]) -> list[Goal]:
    """Return a goal for the worst level of each setup."""
    goals = []
    for setup in dict.fromkeys(one.run.setup for one in runs):
        shares = []
        for level in dict.fromkeys(one.run.level for one in runs if one.run.setup == setup):
            small, large = rate(runs, "256 MiB", setup, level), rate(runs, "4 GiB", setup, level)
            if small is not None and large is not None:
                shares.append((ratio(small, large), level))
        if shares:
            share, level = min(shares)
            text = f"in 256 MiB, {setup.text}, worst at {level} outstanding"
            goals.append(Goal(text=text, limit=SHARE_MIN, measured=share, unit="x in 4 GiB", is_floor=True))
    return goals


def memory_figures(runs: Sequence[MemoryRun], conditions: list[str]) -> Figures:
    """Return a row for each setup and level."""
    rows = []
    for setup, level in dict.fromkeys((one.run.setup, one.run.level) for one in runs):
        cells = [one for one in runs if (one.run.setup, one.run.level) == (setup, level)]
        rates = {group: rate(runs, group, setup, level) or 0.0 for group in OWN_BYTES}
        row = [setup.flush, setup.buffer, str(level), f"{rates['256 MiB']:,.0f}", f"{rates['4 GiB']:,.0f}"]
        row.append(f"{ratio(rates['256 MiB'], rates['4 GiB']):.2f}")
        row.append(f"{rates['256 MiB with its page cache']:,.0f}")
        for group in ("256 MiB", "4 GiB"):
            own = max((one.own_bytes for one in cells if one.group == group), default=0)
            row.append(f"{own / MEBIBYTE:,.0f}")
        row.append(f"{max((one.limit_hits for one in cells if one.group == '256 MiB'), default=0):,}")
        rows.append(row)
    return Figures(
        name="small memory",
        headings=[
            "flush", "buffer", "outstanding", "msgs/s in 256 MiB", "in 4 GiB", "ratio",
            "in 256 MiB with its page cache", "own memory MiB, small", "large", "limit met, small",
        ],
        rows=rows,
        notes=conditions,
    )  # fmt: skip
