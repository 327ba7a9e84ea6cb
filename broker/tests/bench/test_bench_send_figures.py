"""The goals and tables of the send benchmark, on both code paths and beside the other servers. Pure parts only."""

from __future__ import annotations

import msgspec
from gantry_bench import measurement, send_figures
from gantry_bench.send_figures import Cell, SenderCell, SenderRun, ServerName
from test_bench_measurement import with_cpu


def cost(microseconds: float) -> measurement.Summary:
    """Return the figures of a server that uses this much CPU time per message."""
    return measurement.summarise([with_cpu(microseconds)])


def cell(mode: measurement.ModeName, body_bytes: int, **costs: float) -> Cell:
    """Return a cell with these CPU times, by server."""
    servers: dict[ServerName, measurement.Summary] = {
        name: cost(costs[name]) for name in send_figures.SERVER_TEXTS if name in costs
    }
    return Cell(mode=measurement.MODES[mode], body_bytes=body_bytes, servers=servers, other_cores=0.0)


def sender_cell(name: str, **ratios: float) -> SenderCell:
    """Return a cell of a sender that costs so many times as much as the usual one, by server."""
    servers: dict[ServerName, SenderRun] = {
        server: SenderRun(usual=cost(2.0), sender=cost(2.0 * ratios[server]))
        for server in send_figures.SERVER_TEXTS
        if server in ratios
    }
    return SenderCell(measurement.SENDERS[name], measurement.MODES["a"], 1024, servers, 0.0)


def verdicts(goals: list[measurement.Goal]) -> dict[str, tuple[float, bool]]:
    """Return the measured value of each goal and whether it is met, by text and unit."""
    return {f"{goal.text}: {goal.unit}": (round(goal.measured, 3), goal.is_met) for goal in goals}


def test_goals_are_checked_on_the_compiled_path() -> None:
    """The limits are ratios to the echo, to the C server and to Apache, the last two only for bodies of 1 KiB."""
    cells = [
        cell("a", 128, echo=0.5, c=1.0, python=7.0, compiled=1.7, apache=30.0),
        cell("b", 1024, echo=4.5, c=5.0, python=12.0, compiled=8.0, apache=20.0),
    ]

    found = verdicts(send_figures.send_goals(cells, []))

    assert found == {
        "Gantry, compiled: broker CPU per message, mode a, body 128 B: x echo": (3.4, True),
        "Gantry, compiled: broker CPU per message, mode b, body 1024 B: x echo": (1.778, True),
        "Gantry, compiled: CPU per message, mode b, body 1024 B: x C server": (1.6, False),
        "Gantry, compiled: CPU per message, mode b, body 1024 B: x less than Apache": (2.5, False),
    }


def test_python_path_alone_is_checked_under_its_own_name() -> None:
    """Without a compiled path its goals are those of the Python path, and a missing server has no goal."""
    found = verdicts(send_figures.send_goals([cell("a", 1024, c=1.0, python=7.0)], []))

    assert found == {"Gantry, Python: CPU per message, mode a, body 1024 B: x C server": (7.0, False)}


def test_every_sender_has_a_goal_on_each_path() -> None:
    """A sender may cost 1.5 times the usual one, compiled or not; the C server is shown without a goal."""
    cells = [sender_cell("keys", c=1.1, python=1.4, compiled=1.6), sender_cell("go", c=1.0, python=1.5)]

    found = verdicts(send_figures.send_goals([], cells))

    assert found == {
        "Gantry, compiled: CPU per message, code 310, JSON, two keys: x Java's": (1.6, False),
        "Gantry, Python: CPU per message, code 310, JSON, two keys: x Java's": (1.4, True),
        "Gantry, Python: CPU per message, code 10, JSON, Go's order: x Java's": (1.5, True),
    }
    table = send_figures.sender_table(cells)
    assert table.headings == [
        "request", "C server, CPU us/msg", "x Java's", "Gantry, Python, CPU us/msg", "x Java's",
        "Gantry, compiled, CPU us/msg", "x Java's",
    ]  # fmt: skip
    assert table.rows[1] == ["code 10, JSON, Go's order", "2.00", "1.00", "3.00", "1.50", "", ""]


def test_server_that_refuses_sends_has_no_goal() -> None:
    """Its cost of refusals counts for the accepted messages; up to 1 % of refusals are accepted."""
    refusing = msgspec.structs.replace(cost(30.0), errors=20, messages=980)
    one = cell("a", 1024, compiled=1.7)
    one.servers["apache"] = refusing

    assert send_figures.send_goals([one], []) == []
    one.servers["apache"] = msgspec.structs.replace(refusing, errors=5, messages=995)
    assert [goal.is_met for goal in send_figures.send_goals([one], [])] == [True]


def test_table_shows_refusals() -> None:
    """Each server has its number and their share of all answers."""
    one = cell("a", 1024, c=1.0)
    one.servers["apache"] = msgspec.structs.replace(cost(30.0), errors=20, messages=980)

    table = send_figures.send_table([one])

    assert table.headings[-1] == "refused"
    assert [row[-1] for row in table.rows] == ["0", "20 (2.0%)"]


def test_cell_without_cpu_time_has_neither_ratio_nor_goal() -> None:
    """A short run can be measured with no CPU time at all."""
    one = cell("a", 1024, c=0.0, compiled=1.7)

    assert send_figures.send_goals([one], []) == []
    assert [row[7] for row in send_figures.send_table([one]).rows] == ["", ""]


def test_table_has_a_row_for_each_server() -> None:
    """Ratios are to the echo and to the C server of the same load."""
    rows = send_figures.send_table([cell("a", 1024, echo=0.5, c=1.0, python=7.0)]).rows

    assert [(row[2], row[5], row[6], row[7]) for row in rows] == [
        ("echo", "0.50", "1.00", "0.50"), ("C server", "1.00", "2.00", "1.00"),
        ("Gantry, Python", "7.00", "14.00", "7.00"),
    ]  # fmt: skip
