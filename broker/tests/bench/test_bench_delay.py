"""The delay benchmark, small: it runs, writes its results, and its figures are correct.

The tests do not check durations, which are meaningful only on a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import delay
import msgspec
import pytest
from click.testing import CliRunner
from gantry_bench import delay_load, delay_run, reported_run, timer_faults, timer_run
from gantry_bench.delay_load import DelaySender, Stored
from gantry_bench.delay_run import DelayScale, lateness_of, quantile
from gantry_bench.errors import BenchmarkFailed

from gantry_wire.command import decode_command
from gantry_wire.frame import FrameReader

SMALL = DelayScale(
    pending=300, due_per_second=100, due_seconds=0.5, delays_s=(1, 2), body_bytes=64, segment_bytes=8 << 20
)


@pytest.mark.verify
def test_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages are delivered, each is counted once, and the results are written."""
    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(delay, "QUICK", SMALL)

    result = CliRunner().invoke(delay.main, ["--quick", "--only", "levels"])

    assert result.exit_code == 0, result.output
    [path] = (tmp_path / "results").iterdir()
    report = json.loads(path.read_text())["report"]
    assert (report["pending"], report["delivered"], report["errors"]) == (300, 50, 0)
    assert report["error_ms_p50"] >= 0, "expected no delivery before its time"


@pytest.mark.verify
def test_benchmark_of_timers_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers are delivered, the broker is killed and started again, and recalls are raced against delivery."""
    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")
    small = msgspec.structs.replace(timer_run.QUICK, pending=300, due_per_second=100, recalls=20)
    monkeypatch.setattr(delay, "QUICK_TIMERS", small)

    result = CliRunner().invoke(delay.main, ["--quick", "--only", "timers", "--pending", "200"])

    assert result.exit_code == 0, result.output
    [path] = (tmp_path / "results").iterdir()
    report = json.loads(path.read_text())["report"]
    assert (report["pending"], report["delivered"], report["errors"]) == (200, 100, 0)
    assert report["late_ms_p50"] >= 0 and report["restart_seconds"] > 0


@pytest.mark.parametrize(
    ("serials", "errors"),
    [([1, 2], 0), ([1], 1), ([1, 2, 2], 1), ([1, 2, 3], 1), ([], 2)],
    ids=["all", "lost", "twice", "recalled", "none"],
)
def test_errors_of_timers_are_counted(serials: list[int], errors: int) -> None:
    """A lost, early or repeated message, and one that was recalled, is an error of the run."""
    stored = [Stored(serial, 105, 100) for serial in serials]

    assert timer_run.count_errors(stored, {1, 2}, {3}) == errors
    early = [Stored(1, 99, 100), Stored(2, 100, 100)]
    assert timer_run.count_errors(early, {1, 2}, set()) == 1


@pytest.mark.verify
def test_benchmark_of_faults_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers come due across a kill, a promotion and jumps of the clock; none is lost or early."""
    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(delay, "QUICK_FAULTS", msgspec.structs.replace(timer_faults.QUICK, due_per_second=100))

    result = CliRunner().invoke(delay.main, ["--quick", "--only", "faults"])

    assert result.exit_code == 0, result.output
    [path] = (tmp_path / "results").iterdir()
    cells = json.loads(path.read_text())["report"]["cells"]
    assert [cell["delivered"] for cell in cells] == [300] * 4
    assert [cell["errors"] for cell in cells] == [0] * 4
    kill, promotion, forward, back = cells
    assert kill["waited"] > 0 and promotion["waited"] > 0
    assert forward["outage_seconds"] == 1 and forward["waited"] >= 90
    assert back["outage_seconds"] == 0


def test_timers_of_an_outage_are_separated_from_the_others() -> None:
    """What is due in the outage, or until it is caught up, is not late by the broker's fault; the first copy counts."""
    stored = [Stored(number, 100 + number, 100 + number) for number in range(10)]  # before the kill at 110
    stored += [Stored(9, 150, 109), *(Stored(number, 160, 100 + number) for number in range(10, 50))]
    stored += [Stored(number, 165, 100 + number) for number in range(50, 60)]
    stored += [Stored(number, 103 + number, 100 + number) for number in range(65, 75)]

    cell = timer_faults.judge("kill", stored, set(range(76)), stopped_ms=110, resumed_ms=None, refused=2)

    assert (cell.delivered, cell.repeated, cell.errors) == (70, 1, 2 + 6)
    assert (cell.outage_seconds, cell.waited, cell.catch_up_seconds) == (0.04, 40, 0.015)
    assert (cell.late_ms_p50, cell.late_ms_max) == (3, 15)
    early = timer_faults.judge("x", [Stored(1, 99, 100)], {1}, stopped_ms=110, resumed_ms=None, refused=0)
    assert early.errors == 1


@pytest.mark.parametrize(
    ("one", "errors"),
    [
        (Stored(1, stored_ms=99, due_ms=108), 0),  # due before the clock was set, and stored just afterwards
        (Stored(1, stored_ms=97, due_ms=108), 1),  # stored before it was due by the former clock, too
        (Stored(1, stored_ms=111, due_ms=112), 1),  # due after the clock was set
    ],
)
def test_message_that_was_due_when_the_clock_was_set_back_is_not_early(one: Stored, errors: int) -> None:
    """The broker stores some messages by the new clock that it has found due by the former one."""
    cell = timer_faults.judge("x", [one], {1}, stopped_ms=110, resumed_ms=110, refused=0, set_back_ms=10)

    assert cell.errors == errors


class AnsweringWriter:
    """A connection to a broker that refuses each third send, and answers in batches of a limited size."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.largest = 0
        self._reader = reader
        self._frames = FrameReader()

    def write(self, data: bytes) -> None:
        commands = [decode_command(frame) for frame in self._frames.feed(data)]
        self.largest = max(self.largest, len(commands))
        for command in commands:
            is_refused = command.body[7] % 3 == 0
            answer = command.reply(2, "[TIMEOUT_CLEAN_QUEUE]broker busy") if is_refused else command.reply()
            self._reader.feed_data(answer.encode())

    async def drain(self) -> None:
        await asyncio.sleep(0)


async def test_paced_sender_sends_no_growing_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the broker has paused, a sender has a limited number of unanswered sends; refused ones are known."""
    monkeypatch.setattr(delay_load, "OUTSTANDING_MAX", 10)
    reader = asyncio.StreamReader()
    writer = AnsweringWriter(reader)
    sender = DelaySender(reader, cast("asyncio.StreamWriter", writer), body_bytes=16)

    await sender.send_paced(1_000_000, 0.00005, levels=(5,))

    assert (writer.largest, sender.sent) == (10, 50)
    assert sender.refused == set(range(0, 50, 3)) and sender.errors == 17
    assert sender.first_refusal == "[TIMEOUT_CLEAN_QUEUE]broker busy"


@pytest.mark.parametrize(
    "copies", [[(1, 105)], [(1, 105), (1, 105)], [(2, 106), (1, 105)], []], ids=["lost", "doubled", "order", "none"]
)
def test_lost_message_fails_the_benchmark(copies: list[tuple[int, int]]) -> None:
    """A benchmark of a broker that loses messages fails."""
    with pytest.raises(BenchmarkFailed, match="lost, duplicated or out of order"):
        lateness_of([(1, 0), (2, 1)], copies, 100)


def test_lateness_is_the_time_beyond_the_delay() -> None:
    """Both times are the broker's own stamps."""
    assert lateness_of([(1, 0), (2, 1)], [(1, 105), (2, 101)], 100) == [5.0, 0.0]
    assert [quantile(range(1, 101), share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert quantile([7], 0.99) == 7


def test_full_run_has_the_scale_and_the_limits_of_its_goals() -> None:
    """A million pending under 100 MiB, p99 under 200 ms at 5,000 a second."""
    assert (delay_run.FULL.pending, delay_run.FULL.due_per_second) == (1_000_000, 5_000)
    assert (delay_run.RSS_GROWTH_MAX, delay_run.ERROR_MS_P99_MAX) == (100.0, 200.0)
