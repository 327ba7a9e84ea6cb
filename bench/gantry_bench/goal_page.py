"""The section of `make bench` in docs/benchmarks.md: the table of goals, and the tables behind it. Pure.

Every table has a place between markers in the page (`gantry_bench.figures`). A part without results has a table without
rows, and the reason below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from gantry_bench.backlog import backlog_table
from gantry_bench.figures import Figures
from gantry_bench.goal_figures import Measured, PartName
from gantry_bench.goal_table import goal_figures, goal_rows
from gantry_bench.ha_cells import HaCell, find_cell
from gantry_bench.page import machine_figures
from gantry_bench.recovery import size_text
from gantry_bench.send_figures import PATHS, missing_notes, mode_notes, send_table, sender_note, sender_table

PATH_TEXTS = {"compiled": "compiled", "python": "Python"}


def page_figures(measured: Measured, problems: Mapping[PartName, str], started_at: str) -> list[Figures]:
    """Return every table of the section, in the order of the page."""
    tables = [goal_figures(goal_rows(measured), measured, problems)]
    if measured.send is not None:
        tables.insert(0, machine_figures(measured.send.machine, started_at))
    return [
        *tables, *_send_tables(measured), replication_table(measured), _producer_table(measured),
        _backlog_table(measured), recovery_table(measured),
    ]  # fmt: skip


def _send_tables(measured: Measured) -> list[Figures]:
    if measured.send is None:
        return [_empty("sends"), _empty("senders")]
    notes = missing_notes(measured.send.missing)
    cells, sender_cells = measured.send.cells, measured.send.sender_cells
    modes = list(dict.fromkeys(cell.mode for cell in cells))
    counts = {one.repetitions for cell in cells for one in cell.servers.values()}
    first = send_table(cells, [*mode_notes(modes), *_medians_note(counts), *notes])
    counts = {
        one.repetitions for cell in sender_cells for run in cell.servers.values() for one in (run.usual, run.sender)
    }
    sender_notes = [sender_note(sender_cells), *_medians_note(counts)] if sender_cells else []
    return [first, sender_table(sender_cells, sender_notes)]


def _medians_note(counts: Collection[int]) -> list[str]:
    """Return a sentence on the repetitions, the fewest if they differ; none without a figure."""
    if not counts:
        return []
    return ["One run of each." if min(counts) == 1 else f"Medians of {min(counts)} runs."]


def _empty(name: str, note: str = "Not measured.") -> Figures:
    return Figures(name=name, headings=["figures"], rows=[], notes=[note])


def replication_table(measured: Measured) -> Figures:
    """Return a row for each setup and number of outstanding sends, with both code paths and Apache."""
    systems: list[tuple[str, list[HaCell]]] = [
        (f"Gantry, {PATH_TEXTS[path]}", measured.gantry_cells(path)) for path in PATHS if path in measured.replication
    ]
    systems = [*systems, ("Apache", measured.apache_cells)]
    systems = [(name, cells) for name, cells in systems if cells]
    if not systems:
        return _empty("replication")
    headings = ["flush", "replication", "buffer", "outstanding"]
    for name, _ in systems:
        headings += [f"{name}, msgs/s", "p50 / p99 us"]
    rows = []
    for setup, level in dict.fromkeys((cell.setup, cell.level) for _, cells in systems for cell in cells):
        row = [setup.flush, setup.replication, setup.buffer, str(level)]
        for _, cells in systems:
            row += _columns(find_cell(cells, cells[0].system, setup, level))
        rows.append(row)
    path, file = next(iter(measured.replication.items()))
    notes = list(file.table_notes)
    if len(measured.replication) > 1:
        notes.append(
            f"These notes are those of the {PATH_TEXTS[path]} path. The brokers of the other path ran alone, later."
        )
    return Figures(name="replication", headings=headings, rows=rows, notes=notes)


def _columns(cell: HaCell | None) -> list[str]:
    if cell is None or not cell.messages:
        return ["none" if cell is not None else "", "" if cell is None else cell.problem]
    times, refused = f"{cell.p50_us:,.0f} / {cell.p99_us:,.0f}", sum(cell.failures.values())
    details = [times, *([f"{refused:,} refused"] if refused else []), *([cell.problem] if cell.problem else [])]
    return [f"{cell.messages_per_second:,.0f}", "; ".join(details)]


def _producer_table(measured: Measured) -> Figures:
    for path, file in measured.replication.items():
        if table := file.producer_table:
            notes = [*table.notes, f"Gantry's brokers ran on the {PATH_TEXTS[path]} path."]
            return msgspec.structs.replace(table, name="producer", notes=notes)
    return _empty("producer")


def _backlog_table(measured: Measured) -> Figures:
    if measured.backlog is None:
        return _empty("backlog")
    report = measured.backlog.report
    table = backlog_table(report)
    counts = Counter(run.server for run in report.runs).values()
    return msgspec.structs.replace(table, notes=[*_medians_note(counts), *table.notes])


def recovery_table(measured: Measured) -> Figures:
    """Return a row for each recovery on each code path."""
    rows = [
        [
            PATH_TEXTS[path], size_text(cell.log_bytes), cell.way, size_text(cell.read_bytes),
            f"{cell.report.seconds:.2f}", f"{cell.bytes_per_second / 1e9:.2f}", f"{cell.report.cpu_seconds:.2f}",
        ]
        for path in PATHS
        if path in measured.recovery
        for cell in measured.recovery[path].cells
    ]  # fmt: skip
    if not rows:
        return _empty("recovery")
    paths = [path for path in PATHS if path in measured.recovery]
    notes = [f"{PATH_TEXTS[path]}: {note}" for path in paths for note in measured.recovery[path].notes]
    headings = ["path", "log", "what is read", "read", "seconds", "GB/s", "CPU seconds"]
    return Figures(name="recovery", headings=headings, rows=rows, notes=notes)
