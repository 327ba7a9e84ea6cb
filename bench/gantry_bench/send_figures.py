"""The servers of `make bench-send`, its cells, goals and tables. Pure.

Two tables: one load on every server (an echo, the C server, Gantry's broker on each of its code paths, Apache's
broker), and the requests of different clients on the servers that understand them. In the second table each sender is
compared with the usual one, whose load ran in turn with it on the same server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Final, Literal

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.measurement import (
    APACHE_RATIO_MIN,
    C_SERVER_RATIO_MAX,
    GOAL_BODY_BYTES,
    JAVA,
    REFUSED_SHARE_MAX,
    SENDER_RATIO_MAX,
    Goal,
    Mode,
    Sender,
    Summary,
    cpu_goal,
    cpu_ratio,
)

ServerName = Literal["echo", "c", "python", "compiled", "apache"]
GantryPath = Literal["python", "compiled"]

SERVER_TEXTS: Final[dict[ServerName, str]] = {
    "echo": "echo",
    "c": "C server",
    "python": "Gantry, Python",
    "compiled": "Gantry, compiled",
    "apache": "Apache",
}
PATHS: Final[tuple[GantryPath, ...]] = ("compiled", "python")
"""Gantry's code paths; goals are checked on the first that was measured."""
OUT_OF_REACH: Final = "Not measured"


class Cell(msgspec.Struct, frozen=True):
    """One load on every server, medians of the repetitions."""

    mode: Mode
    body_bytes: int
    servers: dict[ServerName, Summary]
    other_cores: float

    @property
    def path(self) -> GantryPath | None:
        """The path on which goals are checked."""
        return next((path for path in PATHS if path in self.servers), None)


class SenderRun(msgspec.Struct, frozen=True):
    """A sender on one server, and the usual sender in turn with it."""

    usual: Summary
    sender: Summary


class SenderCell(msgspec.Struct, frozen=True):
    """The requests of one kind of client on the servers."""

    sender: Sender
    mode: Mode
    body_bytes: int
    servers: dict[ServerName, SenderRun]
    other_cores: float


def find_cell(cells: Sequence[Cell], mode: str, body_bytes: int) -> Cell | None:
    """Return the cell of a mode and a body size, or None if it was not measured."""
    return next((cell for cell in cells if (cell.mode.name, cell.body_bytes) == (mode, body_bytes)), None)


def send_goals(cells: Sequence[Cell], sender_cells: Sequence[SenderCell]) -> list[Goal]:
    """Return the goals that the measured cells allow to check."""
    goals: list[Goal] = []
    for cell in cells:
        if cell.path is not None:
            goals += _cell_goals(cell, cell.servers[cell.path], SERVER_TEXTS[cell.path])
    for path in PATHS:
        for sender_cell in sender_cells:
            if path in sender_cell.servers:
                run = sender_cell.servers[path]
                text = f"{SERVER_TEXTS[path]}: CPU per message, {sender_cell.sender.text}"
                measured = cpu_ratio(run.sender, run.usual)
                goals.append(Goal(text=text, limit=SENDER_RATIO_MAX, measured=measured, unit="x Java's"))
    return [goal for goal in goals if not isnan(goal.measured)]


def _cell_goals(cell: Cell, broker: Summary, name: str) -> list[Goal]:
    goals = []
    if "echo" in cell.servers:
        goal = cpu_goal(cell.mode, cell.body_bytes, broker, cell.servers["echo"])
        if goal is not None:
            goals.append(msgspec.structs.replace(goal, text=f"{name}: {goal.text}"))
    if cell.body_bytes != GOAL_BODY_BYTES:
        return goals
    text = f"{name}: CPU per message, mode {cell.mode.name}, body {cell.body_bytes} B"
    if "c" in cell.servers and (limit := C_SERVER_RATIO_MAX.get(cell.mode.name)):
        measured = cpu_ratio(broker, cell.servers["c"])
        goals.append(Goal(text=text, limit=limit, measured=measured, unit="x C server"))
    apache = cell.servers.get("apache")
    is_compared = apache is not None and apache.refused_share <= REFUSED_SHARE_MAX
    if apache is not None and is_compared and (limit := APACHE_RATIO_MIN.get(cell.mode.name)):
        measured = cpu_ratio(apache, broker)
        goals.append(Goal(text=text, limit=limit, measured=measured, unit="x less than Apache", is_floor=True))
    return goals


def send_table(cells: Sequence[Cell], notes: Sequence[str] = ()) -> Figures:
    """Return a row for each load and server."""
    rows = []
    for cell in cells:
        for name, one in cell.servers.items():
            rows.append([cell.mode.name, f"{cell.body_bytes} B", SERVER_TEXTS[name], *_columns(one, cell.servers)])
    return Figures(
        name="sends",
        headings=[
            "mode", "body", "server", "msgs/s", "p50 / p99 / p99.9 us", "CPU us/msg", "x echo", "x C server",
            "frames/write", "replies/read", "busy", "load busy", "refused",
        ],
        rows=rows,
        notes=list(notes),
    )  # fmt: skip


def _columns(one: Summary, servers: Mapping[ServerName, Summary]) -> list[str]:
    times = " / ".join(f"{value:,.0f}" for value in (one.p50_us, one.p99_us, one.p99_9_us))
    ratios = [ratio_text(cpu_ratio(one, servers[name])) if name in servers else "" for name in _BASELINES]
    return [
        f"{one.messages_per_second:,.0f}", times, f"{one.cpu_us_per_message:.2f}", *ratios,
        f"{one.frames_per_write:.0f}", f"{one.replies_per_read:.1f}", f"{one.server_utilisation:.0%}",
        f"{one.load_generator_utilisation:.0%}", refused_text(one),
    ]  # fmt: skip


def ratio_text(times: float) -> str:
    """Return a ratio for a table; empty if there is none."""
    return "" if isnan(times) else f"{times:.2f}"


def refused_text(one: Summary) -> str:
    """Return the refusals and wrong answers for a table, with their share of all answers."""
    return f"{one.errors:,} ({one.refused_share:.1%})" if one.errors else "0"


_BASELINES: Final[tuple[ServerName, ServerName]] = ("echo", "c")


def sender_table(cells: Sequence[SenderCell], notes: Sequence[str] = ()) -> Figures:
    """Return a row for each sender, with CPU time and the ratio to the usual sender on each server."""
    names = [name for name in SERVER_TEXTS if any(name in cell.servers for cell in cells)]
    rows = []
    for cell in cells:
        row = [cell.sender.text]
        for name in names:
            run = cell.servers.get(name)
            row += ["", ""] if run is None else _sender_columns(run)
        rows.append(row)
    headings = ["request"]
    for name in names:
        headings += [f"{SERVER_TEXTS[name]}, CPU us/msg", "x Java's"]
    return Figures(name="senders", headings=headings, rows=rows, notes=list(notes))


def _sender_columns(run: SenderRun) -> list[str]:
    return [f"{run.sender.cpu_us_per_message:.2f}", ratio_text(cpu_ratio(run.sender, run.usual))]


def missing_notes(missing: Mapping[ServerName, str]) -> list[str]:
    """Return a sentence for each server that was not measured."""
    return [f"{OUT_OF_REACH}: {SERVER_TEXTS[name]} ({reason})." for name, reason in missing.items()]


def mode_notes(modes: Sequence[Mode]) -> list[str]:
    """Return a sentence with the meaning of each mode."""
    return [f"Mode {mode.text}." for mode in modes]


def sender_note(cells: Sequence[SenderCell]) -> str:
    """Return a sentence with the load of the table of senders."""
    first = cells[0]
    return f"Each sender in turn with {JAVA.text}, on the same server; mode {first.mode.name}, {first.body_bytes} B."
