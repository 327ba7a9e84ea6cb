"""Synchronous flush under load: the cost of waiting for the disk, and how many messages one sync answers. Pure.

A level is a number of sends in flight, on up to ``CONNECTIONS_MAX`` connections, each answer followed
by one send in a write of its own. At each level three brokers take the same load: with ASYNC_FLUSH, with SYNC_FLUSH,
and with SYNC_FLUSH on a disk whose every sync takes ``SLOW_SYNC_MS`` longer. On the slow one the disk sets the pace, so
that messages per sync show whether the next sync answers all waiting sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.loadgen import Run
from gantry_bench.measurement import Goal, Mode
from gantry_bench.runtime_info import LogProgress

Flush = Literal["async", "sync", "slow"]

LEVELS: Final = (1, 16, 64, 256)
CONNECTIONS_MAX: Final = 16
SLOW_SYNC_MS: Final = 5
SYNC_SHARE_LEVEL: Final = 256
SYNC_SHARE_MIN: Final = 0.6
"""Goal: at this level SYNC_FLUSH reaches at least this share of the messages per second of ASYNC_FLUSH."""
SLOW_SHARE_MIN: Final = 0.8
"""Goal: on the slow disk one sync answers at least this share of the sends in flight."""


class SyncRun(msgspec.Struct, frozen=True):
    """One run of the load generator, and the broker's progress meanwhile, warm-up included."""

    level: int
    flush: Flush
    run: Run
    progress: LogProgress

    @property
    def messages_per_sync(self) -> float:
        """Return the messages per sync; a run without a sync counts as one."""
        return self.progress.messages / max(1, self.progress.syncs)


class SyncCell(msgspec.Struct, frozen=True):
    """A level and a flush mode, as medians of the repetitions."""

    level: int
    flush: Flush
    messages_per_second: float
    messages_per_sync: float
    p50_us: float
    p99_us: float
    cpu_us_per_message: float
    errors: int


def load_of(level: int) -> Mode:
    """Return the load of a level."""
    connections = min(level, CONNECTIONS_MAX)
    outstanding = level // connections
    return Mode(
        name=f"sync{level}", connections=connections, outstanding=outstanding, frames_per_write=1, cpu_ratio_max=None
    )


def summarise_sync(runs: Sequence[SyncRun]) -> list[SyncCell]:
    """Return one cell for each level and flush mode, in the order of running."""
    keys = dict.fromkeys((run.level, run.flush) for run in runs)
    return [_cell(level, flush, [r for r in runs if (r.level, r.flush) == (level, flush)]) for level, flush in keys]


def _cell(level: int, flush: Flush, runs: Sequence[SyncRun]) -> SyncCell:
    reports = [run.run.report for run in runs]
    return SyncCell(
        level=level,
        flush=flush,
        messages_per_second=median(report.messages_per_second for report in reports),
        messages_per_sync=median(run.messages_per_sync for run in runs),
        p50_us=median(report.latency_us.p50 for report in reports),
        p99_us=median(report.latency_us.p99 for report in reports),
        cpu_us_per_message=median(report.server.cpu_us_per_message for report in reports),
        errors=sum(report.errors for report in reports),
    )


def sync_goals(cells: Sequence[SyncCell]) -> list[Goal]:
    """Return the goals that the measured cells allow to check."""
    by_key = {(cell.level, cell.flush): cell for cell in cells}
    goals = []
    base, synced = by_key.get((SYNC_SHARE_LEVEL, "async")), by_key.get((SYNC_SHARE_LEVEL, "sync"))
    if base is not None and synced is not None:
        text = f"SYNC_FLUSH rate at {SYNC_SHARE_LEVEL} outstanding"
        share = synced.messages_per_second / base.messages_per_second
        goals.append(Goal(text=text, limit=SYNC_SHARE_MIN, measured=share, unit="x ASYNC_FLUSH", is_floor=True))
    for cell in cells:
        if cell.flush == "slow":
            text = f"messages per sync, syncs {SLOW_SYNC_MS} ms slower, {cell.level} outstanding"
            share = cell.messages_per_sync / cell.level
            goals.append(Goal(text=text, limit=SLOW_SHARE_MIN, measured=share, unit="x outstanding", is_floor=True))
    return goals


def sync_figures(cells: Sequence[SyncCell], conditions: list[str]) -> Figures:
    """Return a row for each level, with ASYNC_FLUSH and both kinds of SYNC_FLUSH."""
    by_key = {(cell.level, cell.flush): cell for cell in cells}
    rows = []
    for level in dict.fromkeys(cell.level for cell in cells):
        base, synced, slow = (by_key[level, flush] for flush in ("async", "sync", "slow"))
        share = synced.messages_per_second / base.messages_per_second
        rows.append([
            str(level), f"{base.messages_per_second:,.0f}", f"{synced.messages_per_second:,.0f}", f"{share:.0%}",
            f"{base.p50_us:,.0f} / {base.p99_us:,.0f}", f"{synced.p50_us:,.0f} / {synced.p99_us:,.0f}",
            f"{synced.messages_per_sync:,.1f}", f"{slow.messages_per_second:,.0f}", f"{slow.messages_per_sync:,.1f}",
        ])  # fmt: skip
    return Figures(
        name="synchronous flush",
        headings=[
            "outstanding", "async msgs/s", "sync msgs/s", "sync of async", "async p50 / p99 us", "sync p50 / p99 us",
            "messages per sync", f"msgs/s, syncs {SLOW_SYNC_MS} ms slower", "messages per sync there",
        ],
        rows=rows,
        notes=conditions,
    )  # fmt: skip
