"""A short crash run with real processes: two rounds keep every promise, and a broker that breaks one is detected."""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parent))
run_crash = importlib.import_module("run_crash")

from crash.cells import CELLS, Cell  # noqa: E402 - found through run_crash's path
from crash.jobs import Job, jobs_of, run_job_in  # noqa: E402
from crash.media import Medium, mounted, why_unsupported  # noqa: E402
from crash.plans import JOB_ROUNDS, DerivedFiles, crash_moment, plan  # noqa: E402
from crash.sabotage import Sabotage  # noqa: E402

from gantry_broker.store import crash_points  # noqa: E402
from gantry_testing.programs import porcupine_program  # noqa: E402

BUFFERED_CELL = "async-tmpfs"
"""The cell (flush mode and medium of the write buffer) whose messages are for a while in the buffer only."""
needs_tmpfs = pytest.mark.skipif(why_unsupported(Medium.TMPFS) is not None, reason=str(why_unsupported(Medium.TMPFS)))


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[str]:
    """Provide a new tmpfs, mounted where that is allowed."""
    with mounted([Medium.TMPFS], tmp_path, brokers=1) as folders:
        yield str(folders[Medium.TMPFS])


@needs_tmpfs
def test_acknowledged_messages_in_write_buffer_survive_kills(tmp_path: Path, volume: str) -> None:
    """Nothing is lost in two rounds, one of which ends after an append and again in the replay of the buffer."""
    job = Job(cell=BUFFERED_CELL, seed=160, rounds=2, volume=volume)

    verdict = run_job_in(tmp_path, job, print)

    assert verdict.faults == [], f"replay: {job.replay}"
    assert (verdict.rounds, verdict.lost) == (2, 0)
    assert verdict.hits == {crash_points.AFTER_APPEND: 1, crash_points.MID_REPLAY: 1}
    assert verdict.acked >= 100 and verdict.stored >= verdict.acked
    assert verdict.second == ({"Ok": 1} if porcupine_program() is not None else {})


@needs_tmpfs
def test_broker_without_replay_is_detected(tmp_path: Path, volume: str) -> None:
    """Without the replay acknowledged messages are lost, and the run reports it."""
    job = Job(cell=BUFFERED_CELL, seed=4, rounds=10, volume=volume, sabotage=Sabotage.NO_REPLAY)

    verdict = run_job_in(tmp_path, job, print)

    assert any("LOST" in fault for fault in verdict.faults), job.replay


@pytest.mark.verify
def test_broker_that_shows_unconfirmed_messages_is_detected(tmp_path: Path) -> None:
    """A consumer of a broker that shows unconfirmed messages reads what a kill destroys, and the run reports it.

    The broker is killed when a message that the consumer has read is in no file, and not at a random moment.
    """
    job = Job(cell="async-anonymous", seed=28, rounds=2, sabotage=Sabotage.NO_HOLD)

    verdict = run_job_in(tmp_path, job, print)

    assert any("SHOWN" in fault for fault in verdict.faults), job.replay


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("sabotage", [Sabotage.CUT_TAIL, Sabotage.FLIP_BIT])
def test_log_damaged_while_broker_is_down_is_detected(tmp_path: Path, sabotage: Sabotage) -> None:
    """Acknowledged messages that are zeroed or changed in the files are reported as lost."""
    verdict = run_job_in(tmp_path, Job(cell="async-none", seed=2, rounds=1, sabotage=sabotage), print)

    assert any("LOST" in fault for fault in verdict.faults)


@pytest.mark.verify
def test_kept_run_can_be_checked_again(tmp_path: Path) -> None:
    """`check` reads history and store of a run without a broker, and detects an invented acknowledgement."""
    run_job_in(tmp_path, Job(cell="async-none", seed=3, rounds=1, producers=1), print)
    again = CliRunner().invoke(run_crash.main, ["check", str(tmp_path)])
    history = tmp_path / "history.jsonl"
    lines = history.read_text().splitlines()
    invented = {"send": [9, 9], "topic": "CrashA", "queue": 0, "digest": "", "unique": "x"}
    history.write_text(
        "\n".join([*lines, json.dumps(invented), json.dumps({"acked": [9, 9], "offset": 1, "at": 1})]) + "\n"
    )
    lied = CliRunner().invoke(run_crash.main, ["check", str(tmp_path)])

    assert again.exit_code == 0 and "0 faults" in again.output
    assert lied.exit_code == 1 and "LOST" in lied.output


@pytest.mark.parametrize("cell", CELLS.values(), ids=list(CELLS))
def test_five_jobs_reach_every_crash_point_of_their_cell(cell: Cell) -> None:
    """The default fifty rounds use each point of a cell at least twice, with any seed; a plan is reproducible."""
    for seed in (0, 1, 12345):
        jobs = jobs_of(str(cell), seed, 50)
        planned = [crash_moment(cell, one.seed, number) for one in jobs for number in range(one.rounds)]

        assert [one.rounds for one in jobs] == [JOB_ROUNDS] * 5
        assert all(planned.count(moment) >= 2 for moment in cell.crash_moments)
        assert None in planned
        assert plan(cell, seed, 7) == plan(cell, seed, 7)


def test_plans_differ_from_round_to_round() -> None:
    """Every kind of removal and of kills while recovering occurs in the rounds of a full run."""
    plans = [plan(CELLS[BUFFERED_CELL], seed, number) for seed in range(5) for number in range(10)]

    assert {one.removed for one in plans} == set(DerivedFiles)
    assert {len(one.recovery_kills) for one in plans} == {0, 1, 2}
    assert {len(one.start_crashes) for one in plans} == {0, 1, 2}


@pytest.mark.needs_root
def test_memory_is_reserved_for_the_run_and_released(tmp_path: Path) -> None:
    """The number of huge pages and the mounts are as before, here after an error."""
    if (reason := why_unsupported(Medium.HUGETLBFS)) is not None:
        pytest.skip(reason)
    before = Path("/proc/sys/vm/nr_hugepages").read_text()

    with pytest.raises(ZeroDivisionError), mounted(set(Medium), tmp_path, brokers=2) as folders:
        assert all(os.path.ismount(folder) for folder in folders.values())
        assert int(Path("/proc/sys/vm/nr_hugepages").read_text()) > int(before)
        raise ZeroDivisionError

    assert Path("/proc/sys/vm/nr_hugepages").read_text() == before
    assert list(tmp_path.iterdir()) == []
