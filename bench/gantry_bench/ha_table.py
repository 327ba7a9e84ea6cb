"""The table of eight setups on Gantry and on Apache RocketMQ, its goals, and a list of the cells in which Gantry is
slower. Pure.

A goal compares two cells of the same run. A cell without any stored message counts as missed and not as
undefined. Apache's figures are shown, and checked only where a goal compares with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gantry_bench.figures import Figures
from gantry_bench.ha_cells import PLAIN, SYNC_BUFFERED, HaCell, Setup, System, find_cell
from gantry_bench.measurement import Goal

LEVELS: Final = (1, 16, 64, 256)
SHARE_LEVEL_MIN: Final = 64
SHARE_MIN: Final = 0.7
"""Goal: from this level on, synchronous replication with a buffer reaches at least this share of the rate of
asynchronous replication without a buffer.
"""
RELAY_RATIO_MAX: Final = 3.0
"""Goal: with one send in flight the median latency is at most so many times that of an echo behind a relay."""
SYSTEMS: Final[tuple[System, ...]] = ("Gantry", "Apache")


def ratio(part: float, whole: float) -> float:
    """Return part / whole, and 0 if ``whole`` is 0."""
    return part / whole if whole > 0 else 0.0


def find_measured(cells: Sequence[HaCell], system: System, setup: Setup, level: int) -> HaCell | None:
    """Return the cell; None if a run of it failed, or if no message was accepted."""
    cell = find_cell(cells, system, setup, level)
    return None if cell is None or cell.problem or not cell.messages else cell


def is_slower(ours: HaCell, theirs: HaCell) -> bool:
    """Whether the first cell has fewer messages a second. A cell without messages is slower than any other."""
    return not ours.messages or ours.messages_per_second < theirs.messages_per_second


def is_later(ours: HaCell, theirs: HaCell) -> bool:
    """Whether the first cell has a longer p99. The p99 of a cell without messages is 0, and counts as longer."""
    return not ours.messages or ours.p99_us > theirs.p99_us


def table_goals(cells: Sequence[HaCell], relay: Sequence[HaCell]) -> list[Goal]:
    """Return the goals that the measured cells allow to check."""
    goals = []
    for level in dict.fromkeys(cell.level for cell in cells):
        plain, synced = find_cell(cells, "Gantry", PLAIN, level), find_cell(cells, "Gantry", SYNC_BUFFERED, level)
        if level >= SHARE_LEVEL_MIN and plain is not None and synced is not None:
            share = ratio(synced.messages_per_second, plain.messages_per_second)
            text = f"sync replication, buffer on, {level} outstanding"
            goals.append(Goal(text=text, limit=SHARE_MIN, measured=share, unit="x async, buffer off", is_floor=True))
    synced, relayed = (
        find_cell(cells, "Gantry", SYNC_BUFFERED, 1),
        next((cell for cell in relay if cell.level == 1), None),
    )
    if synced is not None and relayed is not None:
        measured = ratio(synced.p50_us, relayed.p50_us) if synced.messages else float("inf")
        text = "sync replication, buffer on, 1 outstanding: p50"
        goals.append(Goal(text=text, limit=RELAY_RATIO_MAX, measured=measured, unit="x relayed echo"))
    ours = [cell for cell in cells if cell.system == "Gantry"]
    if ours:
        busy = sum(cell.busy_answers for cell in ours)
        goals.append(Goal(text="answers with code 2, all cells", limit=0, measured=busy, unit="answers"))
    return goals


def table_figures(cells: Sequence[HaCell], conditions: list[str]) -> Figures:
    """Return a row for each setup and level, with both systems where both ran."""
    keys = dict.fromkeys((cell.setup, cell.level) for cell in cells)
    has_apache = any(cell.system == "Apache" for cell in cells)
    systems = SYSTEMS if has_apache else SYSTEMS[:1]
    rows = []
    for setup, level in keys:
        row = [setup.flush, setup.replication, setup.buffer, str(level)]
        for system in systems:
            row += _columns(find_cell(cells, system, setup, level))
        rows.append(row)
    headings = ["flush", "replication", "buffer", "outstanding"]
    for system in systems:
        headings += [f"{system} msgs/s", "p50 / p99 / p99.9 us", "failures by code", "code 2"]
    return Figures(name="replication", headings=headings, rows=rows, notes=[*conditions, *slower_notes(cells)])


def _columns(cell: HaCell | None) -> list[str]:
    if cell is None:
        return ["", "", "", ""]
    if not cell.messages:
        return ["none", cell.problem, cell.failures_text, f"{cell.busy_answers:,}"]
    times = " / ".join(f"{value:,.0f}" for value in (cell.p50_us, cell.p99_us, cell.p99_9_us))
    failures = cell.failures_text + (f"; {cell.problem}" if cell.problem else "")
    return [f"{cell.messages_per_second:,.0f}", times, failures, f"{cell.busy_answers:,}"]


def slower_notes(cells: Sequence[HaCell]) -> list[str]:
    """List the cells in which Apache's broker had a higher rate or a lower p99, as sentences."""
    slower, later, compared = [], [], 0
    for ours in cells:
        theirs = find_measured(cells, "Apache", ours.setup, ours.level)
        if ours.system != "Gantry" or theirs is None:
            continue
        compared += 1
        name = f"{ours.setup.text}, {ours.level} outstanding"
        if is_slower(ours, theirs):
            slower.append(f"{name} ({ratio(ours.messages_per_second, theirs.messages_per_second):.2f}x)")
        if is_later(ours, theirs):
            times = f"{ratio(ours.p99_us, theirs.p99_us):.1f}x" if ours.messages else "no messages"
            later.append(f"{name} ({times})")
    if not compared:
        return []
    return [
        f"Fewer messages a second than Apache RocketMQ in {len(slower)} of {compared} cells{_list_text(slower)}",
        f"A longer p99 than Apache RocketMQ in {len(later)} of {compared} cells{_list_text(later)}",
    ]


def _list_text(names: list[str]) -> str:
    return ": " + "; ".join(names) + "." if names else "."


def relay_figures(cells: Sequence[HaCell], relay: Sequence[HaCell], conditions: list[str]) -> Figures:
    """Return the cost of a message to another process and back, compared with synchronous replication."""
    rows = []
    for relayed in relay:
        synced = find_cell(cells, "Gantry", SYNC_BUFFERED, relayed.level)
        if synced is None:
            continue
        rows.append([
            str(relayed.level), f"{relayed.messages_per_second:,.0f}", f"{relayed.p50_us:,.0f} / {relayed.p99_us:,.0f}",
            f"{synced.messages_per_second:,.0f}", f"{synced.p50_us:,.0f} / {synced.p99_us:,.0f}",
            f"{ratio(synced.p50_us, relayed.p50_us):.1f}",
        ])  # fmt: skip
    return Figures(
        name="relay",
        headings=[
            "outstanding", "relayed echo msgs/s", "its p50 / p99 us", "sync replication, buffer on, msgs/s",
            "its p50 / p99 us", "p50, x echo",
        ],
        rows=rows,
        notes=conditions,
    )  # fmt: skip
