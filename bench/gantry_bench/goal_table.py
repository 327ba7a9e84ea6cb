"""The table of goals of `make bench`: one row for each goal, with both code paths, Apache and the C server. Pure.

A goal is checked on the compiled path, or on the Python path if the compiled one was not measured. A goal whose figures
are missing is *not measured*, and neither met nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from statistics import median
from typing import Final

import msgspec

from gantry_bench.backlog import APACHE_RATIO_MIN as PULL_RATIO_MIN
from gantry_bench.backlog import BacklogCell, by_server, summarise_pulls
from gantry_bench.figures import Figures
from gantry_bench.goal_figures import GOAL_WAY, Measured, PartName
from gantry_bench.ha_cells import PLAIN, SETUPS, SYNC_BUFFERED, SYNC_PLAIN, HaCell, System, find_cell
from gantry_bench.ha_producer import rate_of
from gantry_bench.ha_table import LEVELS, find_measured, is_later, is_slower, ratio
from gantry_bench.measurement import (
    APACHE_RATIO_MIN,
    C_SERVER_RATIO_MAX,
    GOAL_BODY_BYTES,
    REFUSED_SHARE_MAX,
    SENDER_RATIO_MAX,
    Summary,
    cpu_ratio,
)
from gantry_bench.recovery import RecoveryCell, size_text
from gantry_bench.send_figures import PATHS, GantryPath, ServerName
from gantry_bench.send_figures import find_cell as find_send_cell

SYNC_LEVELS: Final = (64, 256)
SYNC_SHARE_MIN: Final = 0.8
RECOVERY_GB_PER_SECOND_MIN: Final = 0.85
"""Five times the 0.17 GB/s of the version before the compiled path."""
BEFORE_RATIO_MAX: Final = 1.05
"""The pure Python path may cost this much more than before: the tolerance of `bench-compare`."""
GOAL_CELLS: Final = tuple((setup, level) for setup in SETUPS for level in LEVELS)
"""The setups and numbers of sends in flight in which Gantry may not be slower than Apache."""
NOT_MEASURED: Final = "not measured"
MODE_WORK: Final[dict[str, str]] = {
    "a": "broker CPU per send, one connection, 64 outstanding in one write",
    "b": "broker CPU per send, 64 connections with one each",
}


class Judged(msgspec.Struct, frozen=True):
    """A figure for the table, and whether it meets the goal; None if that cannot be decided."""

    text: str
    is_met: bool | None


class GoalRow(msgspec.Struct, frozen=True):
    """One goal with its figures; a figure that was not measured is empty."""

    work: str
    goal: str
    paths: dict[GantryPath, Judged]
    apache: str = ""
    c_server: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met on the path on which it is checked; None if it was not measured."""
        return next((self.paths[path].is_met for path in PATHS if path in self.paths), None)

    @property
    def verdict(self) -> str:
        """Return the last column of the table."""
        return {True: "met", False: "**not met**", None: NOT_MEASURED}[self.is_met]


def goal_rows(measured: Measured) -> list[GoalRow]:
    """Return the rows of the table, also those of goals that were not measured."""
    rows = [row for mode in MODE_WORK for row in _send_rows(measured, mode)]
    rows += [_table_row(measured), _producer_row(measured), _share_row(measured), _single_row(measured)]
    rows += [_pull_row(measured), _recovery_row(measured), _sender_row(measured), _before_row(measured)]
    return rows


def goal_figures(rows: Sequence[GoalRow], measured: Measured, problems: Mapping[PartName, str]) -> Figures:
    """Return the table of goals, with notes on the parts that are missing."""
    notes = []
    if not measured.has_compiled:
        notes.append(
            f"The compiled path was not measured ({measured.compiled_missing}); goals are checked on the Python path."
        )
    if part := measured.busiest_part:
        notes.append(f"Other programs used up to {measured.other_cores[part]:.2f} cores, in the part {part}.")
    notes += [f"The part {name} has failed: {reason}." for name, reason in problems.items()]
    return Figures(
        name="goals",
        headings=["work, 1 KiB", "goal", "compiled", "Python", "Apache", "C server", ""],
        rows=[
            [
                row.work, row.goal, *(row.paths[path].text if path in row.paths else "" for path in PATHS),
                row.apache, row.c_server, row.verdict,
            ]
            for row in rows
        ],
        notes=notes,
    )  # fmt: skip


def _judge(judge: Callable[[GantryPath], Judged | None]) -> dict[GantryPath, Judged]:
    """Return the figures of every path that has one."""
    found = {path: judge(path) for path in PATHS}
    return {path: one for path, one in found.items() if one is not None}


# -- sends -------------------------------------------------------------------------------------------------------------


def _send_rows(measured: Measured, mode: str) -> list[GoalRow]:
    cells = [] if measured.send is None else measured.send.cells
    cell = find_send_cell(cells, mode, GOAL_BODY_BYTES)
    servers = {} if cell is None else cell.servers
    costs = {name: cost_text(one) for name, one in servers.items()}

    def against(name: ServerName, *, limit: float, is_floor: bool) -> dict[GantryPath, Judged]:
        other = servers.get(name)

        def judge(path: GantryPath) -> Judged | None:
            if path not in servers:
                return None
            if other is None:
                return Judged(costs[path], None)
            times = cpu_ratio(other, servers[path]) if is_floor else cpu_ratio(servers[path], other)
            if isnan(times):
                return Judged(costs[path], None)
            is_met = times >= limit if is_floor else times <= limit
            if is_met and other.refused_share > REFUSED_SHARE_MAX:
                return Judged(f"{costs[path]}, {times:.2f} x", None)
            return Judged(f"{costs[path]}, {times:.2f} x", is_met)

        return _judge(judge)

    work, most, least = MODE_WORK[mode], C_SERVER_RATIO_MAX[mode], APACHE_RATIO_MIN[mode]
    figures = {"apache": costs.get("apache", ""), "c_server": costs.get("c", "")}
    return [
        GoalRow(work, f"at most {most:g} x the C server", against("c", limit=most, is_floor=False), **figures),
        GoalRow(
            work, f"at least {least:g} x less than Apache", against("apache", limit=least, is_floor=True), **figures
        ),
    ]


def cost_text(one: Summary) -> str:
    """Return the CPU time of a message, with the least and the most of the repetitions, and many refusals."""
    text = f"{one.cpu_us_per_message:.2f} us"
    if one.repetitions > 1:
        text += f" ({one.cpu_us_per_message_least:.2f} to {one.cpu_us_per_message_most:.2f})"
    return f"{text}, {one.refused_share:.1%} refused" if one.refused_share > REFUSED_SHARE_MAX else text


def _sender_row(measured: Measured) -> GoalRow:
    cells = [] if measured.send is None else measured.send.sender_cells

    def judge(path: GantryPath) -> Judged | None:
        times = {
            cell.sender.name: cpu_ratio(cell.servers[path].sender, cell.servers[path].usual)
            for cell in cells
            if path in cell.servers
        }
        known = {name: one for name, one in times.items() if not isnan(one)}
        if not known:
            return None
        worst = max(known, key=lambda name: known[name])
        is_met = known[worst] <= SENDER_RATIO_MAX
        return Judged(f"{known[worst]:.2f} x ({worst})", None if is_met and len(known) < len(times) else is_met)

    text = f"at most {SENDER_RATIO_MAX:g} x Java's usual send"
    return GoalRow("broker CPU per send, costliest of the other senders", text, _judge(judge))


def _before_row(measured: Measured) -> GoalRow:
    work, goal = "pure Python path, CPU per send, worst cell", f"at most {BEFORE_RATIO_MAX:g} x before"
    if measured.before is None or not measured.before.cells:
        return GoalRow(work, f"{goal} (--before REV)", {})
    worst = max(measured.before.cells, key=lambda cell: cell.cpu_ratio)
    judged = Judged(f"{worst.cpu_ratio:.3f} x ({worst.name})", worst.cpu_ratio <= BEFORE_RATIO_MAX)
    return GoalRow(f"{work}, compared with {measured.before.before}", goal, {"python": judged})


# -- replication -------------------------------------------------------------------------------------------------------


def _table_row(measured: Measured) -> GoalRow:
    apache = measured.apache_cells

    def judge(path: GantryPath) -> Judged | None:
        own = measured.gantry_cells(path)
        if not own:
            return None
        pairs = [
            (ours, theirs)
            for setup, level in GOAL_CELLS
            if (ours := find_cell(own, "Gantry", setup, level)) is not None
            and (theirs := find_measured(apache, "Apache", setup, level)) is not None
        ]
        slower = sum(is_slower(*pair) for pair in pairs)
        later = sum(is_later(*pair) for pair in pairs)
        text = f"{slower} slower, {later} with a longer p99, of {len(pairs)}"
        return _judge_cells(text, has_missed=bool(slower or later), count=len(pairs))

    work = "replication, cells slower than Apache, or with a longer p99"
    return GoalRow(f"{work}; load generator", f"0 of {len(GOAL_CELLS)}", _judge(judge))


def _judge_cells(text: str, *, has_missed: bool, count: int) -> Judged:
    """Judge a goal on all cells: one is enough to miss it, and all must be compared to meet it."""
    if not count:
        return Judged("not compared", None)
    missing = len(GOAL_CELLS) - count
    return Judged(f"{text}; {missing} not compared" if missing else text, False if has_missed else missing == 0 or None)


def _producer_row(measured: Measured) -> GoalRow:
    def judge(path: GantryPath) -> Judged | None:
        file = measured.replication.get(path)
        runs = [] if file is None else file.producer_runs
        if not any(run.system == "Gantry" for run in runs):
            return None
        pairs = [
            (ours, theirs)
            for setup, threads in GOAL_CELLS
            if (ours := rate_of(runs, "Gantry", setup, threads)) is not None
            and (theirs := rate_of(runs, "Apache", setup, threads)) is not None
        ]
        slower = sum(not ours or ours < theirs for ours, theirs in pairs)
        return _judge_cells(f"{slower} slower, of {len(pairs)}", has_missed=slower > 0, count=len(pairs))

    work = "replication, cells slower than Apache; Apache's own producer"
    return GoalRow(work, f"0 of {len(GOAL_CELLS)}", _judge(judge))


def _shares(cells: Sequence[HaCell], system: System) -> dict[int, float]:
    """Return the rates with synchronous replication and a buffer, of those with neither, by the number outstanding."""
    shares = {}
    for level in SYNC_LEVELS:
        synced, plain = (find_cell(cells, system, setup, level) for setup in (SYNC_BUFFERED, PLAIN))
        if synced is not None and plain is not None:
            shares[level] = ratio(synced.messages_per_second, plain.messages_per_second)
    return shares


def _shares_text(shares: Mapping[int, float]) -> str:
    return ", ".join(f"{share:.2f} at {level}" for level, share in shares.items())


def _share_row(measured: Measured) -> GoalRow:
    def judge(path: GantryPath) -> Judged | None:
        shares = _shares(measured.gantry_cells(path), "Gantry")
        if not shares:
            return None
        is_met = min(shares.values()) >= SYNC_SHARE_MIN
        return Judged(_shares_text(shares), None if is_met and len(shares) < len(SYNC_LEVELS) else is_met)

    work = "sync replication with a buffer at 64 and 256, of async without a buffer"
    apache = _shares_text(_shares(measured.apache_cells, "Apache"))
    return GoalRow(work, f"at least {SYNC_SHARE_MIN:g}", _judge(judge), apache=apache)


def _single_row(measured: Measured) -> GoalRow:
    theirs = find_measured(measured.apache_cells, "Apache", SYNC_PLAIN, 1)
    limit_us = None if theirs is None else theirs.p50_us

    def judge(path: GantryPath) -> Judged | None:
        own = measured.gantry_cells(path)
        cells = [find_cell(own, "Gantry", setup, 1) for setup in (SYNC_BUFFERED, SYNC_PLAIN)]
        found = [cell for cell in cells if cell is not None]
        if not found:
            return None
        text = ", ".join(f"{cell.p50_us:,.0f} us with the buffer {cell.setup.buffer}" for cell in found)
        worst_us = max(cell.p50_us if cell.messages else float("inf") for cell in found)
        if limit_us is None or (worst_us <= limit_us and len(found) < len(cells)):
            return Judged(text, None)
        return Judged(text, worst_us <= limit_us)

    apache = "" if limit_us is None else f"{limit_us:,.0f} us"
    goal = "at most Apache's with its pool off"
    return GoalRow("sync replication, one outstanding send, p50", goal, _judge(judge), apache=apache)


# -- pulls and recovery ------------------------------------------------------------------------------------------------


def _pull_row(measured: Measured) -> GoalRow:
    cells = by_server([] if measured.backlog is None else summarise_pulls(measured.backlog.report.runs))
    apache = cells.get("apache")

    def judge(path: GantryPath) -> Judged | None:
        if path not in cells:
            return None
        text = _pull_text(cells[path])
        if apache is None or not apache.megabytes_per_cpu_second:
            return Judged(text, None)
        times = cells[path].megabytes_per_cpu_second / apache.megabytes_per_cpu_second
        return Judged(f"{text}, {times:.2f} x", times >= PULL_RATIO_MIN)

    text = "" if apache is None else _pull_text(apache)
    work = "pull of a backlog, one consumer, MB for a broker CPU second"
    return GoalRow(work, f"at least {PULL_RATIO_MIN:g} x Apache", _judge(judge), apache=text)


def _pull_text(cell: BacklogCell) -> str:
    text = f"{cell.megabytes_per_cpu_second:,.0f}"
    least, most = cell.megabytes_per_cpu_second_least, cell.megabytes_per_cpu_second_most
    return f"{text} ({least:,.0f} to {most:,.0f})" if cell.repetitions > 1 else text


def largest_recoveries(cells: Sequence[RecoveryCell]) -> list[RecoveryCell]:
    """Return the recoveries that the goal is about: of the largest log, without a recovery point."""
    own = [cell for cell in cells if cell.way == GOAL_WAY]
    largest = max((cell.log_bytes for cell in own), default=0)
    return [cell for cell in own if cell.log_bytes == largest]


def _recovery_row(measured: Measured) -> GoalRow:
    def judge(path: GantryPath) -> Judged | None:
        file = measured.recovery.get(path)
        cells = [] if file is None else largest_recoveries(file.cells)
        if not cells:
            return None
        rates = [cell.bytes_per_second / 1e9 for cell in cells]
        rate, spread = median(rates), f"{min(rates):.2f} to {max(rates):.2f}; " if len(rates) > 1 else ""
        text = f"{rate:.2f} GB/s ({spread}{size_text(cells[0].log_bytes)})"
        return Judged(text, rate >= RECOVERY_GB_PER_SECOND_MIN)

    goal = f"at least {RECOVERY_GB_PER_SECOND_MIN:g} GB/s"
    return GoalRow("recovery without a recovery point, 10 GB", goal, _judge(judge))
