"""The parts of the burst benchmark: its sends, its counts, the goals, and a small run against our broker.

The tests do not check speeds.
"""

from __future__ import annotations

import itertools
import subprocess
import threading
from pathlib import Path

import burst
import pytest
from gantry_bench import burst_figures, burst_load
from gantry_bench.burst_load import Outcome
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import markdown, publish
from gantry_bench.processes import ROOT, start_broker, start_name_server

from gantry_wire import Command, decode_command
from gantry_wire.frame import FrameReader

PROGRAMS = burst_figures.programs(5000)


def outcome(**changed: object) -> Outcome:
    values: dict[str, object] = {
        "sent": 5000, "stored": 5000, "refused": {}, "unanswered": 0, "seconds": 0.5, "honest_us": [1000.0, 3000.0],
        "honest_refused": 0,
    }  # fmt: skip
    return Outcome(**{**values, **changed})  # type: ignore[arg-type]


def cell(
    system: burst_figures.SystemName, *outcomes: Outcome, name: burst_load.ProgramName = "burst"
) -> burst_figures.Cell:
    return burst_figures.Cell(
        system=system, load=8, program=PROGRAMS[name], shape="java", outcomes=list(outcomes or [outcome()])
    )


@pytest.mark.parametrize(("shape", "length"), [("java", 32), ("other", 36)])
def test_unique_ids_have_the_requested_shape(shape: burst_load.ShapeName, length: int) -> None:
    """One sender's ids are 32 letters and digits, the other's are not, and all are different."""
    keys = list(itertools.islice(burst_load.unique_keys(shape), 1000))

    assert {len(key) for key in keys} == {length}
    assert all(key.isalnum() == (shape == "java") for key in keys)
    assert len(set(keys)) == 1000


def test_send_has_the_form_of_rocketmqs_clients() -> None:
    """The frame is a send of code 310 with a body of 800 bytes, and one-way only if requested."""
    [frame] = FrameReader().feed(burst_load.encode_send(7, "A" * 32, queue=1, is_oneway=True))
    command = decode_command(frame)

    assert (command.code, command.opaque, command.is_oneway, len(command.body)) == (310, 7, True, 800)
    assert command.ext["e"] == "1" and command.ext["i"].startswith("UNIQ_KEY\x01" + "A" * 32)


def test_replies_are_counted_by_code() -> None:
    """Every reply counts, also the successful ones."""
    replies = [Command(code=code, opaque=1, flag=1).encode() for code in (0, 2, 2, 14)]

    assert burst_load.count_codes(b"".join(replies)) == {0: 1, 2: 2, 14: 1}


def test_quantile_of_no_values_is_an_error() -> None:
    """A run without an answer to the honest client has no figures."""
    assert burst_load.quantile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert burst_load.quantile([5.0, 1.0, 3.0], 0.99) == 5.0
    with pytest.raises(BenchmarkFailed, match="honest client"):
        burst_load.quantile([], 0.5)


def test_our_refusals_are_limited_by_apaches_in_the_same_cell() -> None:
    """The limit of a cell is the number of Apache's refusals in it; without Apache none is allowed."""
    ours, theirs = outcome(refused={2: 10}, stored=4990), outcome(refused={2: 9}, stored=4991)

    beside = {goal.text: goal for goal in burst_figures.burst_goals([cell("Gantry", ours), cell("Apache", theirs)])}
    alone = burst_figures.burst_goals([cell("Gantry", ours)])

    refused = beside["refused: 5,000 sends at once, ids Java's, load 8"]
    assert (refused.limit, refused.measured, refused.is_met) == (9, 10, False)
    assert alone[0].limit == 0


def test_losses_are_a_goal_over_all_cells() -> None:
    """Sends that are neither stored nor refused, and refusals to the honest client, are summed over all of our
    cells."""
    cells = [
        cell("Gantry", outcome(stored=4000), outcome(), name="oneway-burst"),
        cell("Gantry", outcome(honest_refused=2)),
        cell("Apache", outcome(stored=0, honest_refused=9)),
    ]

    goals = {goal.text: goal.measured for goal in burst_figures.burst_goals(cells)}

    assert goals["neither stored nor refused, everywhere"] == 1000
    assert goals["refused to the honest client, everywhere"] == 2


def test_page_has_markers_for_the_table() -> None:
    """A published run replaces the tables of the page."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    figures = burst_figures.burst_figures([cell("Gantry", outcome(refused={2: 1429}, stored=3571))])

    published = publish(page, [figures], benchmark=burst.BENCHMARK)

    assert markdown(figures) in published
    assert "1,429 with 2 | 3,571 of 5,000" in published


def test_busy_processes_end_with_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background load ends with its cell, also if the cell fails."""
    children: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def remember(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        children.append(real(*arguments, **options))  # type: ignore[call-overload]
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)
    with pytest.raises(BenchmarkFailed), burst.busy_processes(2):
        assert all(child.poll() is None for child in children)
        raise BenchmarkFailed("the cell fails")

    assert len(children) == 2 and all(child.poll() is not None for child in children)


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("name", ["burst", "oneway-burst", "oneway-paced"])
@pytest.mark.parametrize("shape", ["java", "other"])
def test_small_run_stores_everything(tmp_path: Path, name: burst_load.ProgramName, shape: burst_load.ShapeName) -> None:
    """Every program runs to its end against our broker; all messages are stored and none is refused."""
    program = burst_figures.programs(100)[name]
    extra = {"mappedFileSizeCommitLog": str(16 << 20)}
    threads = threading.active_count()
    with (
        start_name_server(tmp_path) as name_server,
        start_broker(tmp_path / "broker", name_server=name_server, core=None, extra=extra) as broker,
    ):
        found = burst_load.run_program(program, shape, broker.target.address)

    assert (found.sent, found.stored, found.refused, found.unanswered) == (100, 100, {}, 0)
    assert found.honest_refused == 0
    assert threading.active_count() <= threads
