"""The ledger, the plan of faults and the file of a soak: each violation is found, and a correct history has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.machine import Machine
from gantry_soak.faults import NAMES, UNIT, newest_unit, newest_whole_file, plan_faults
from gantry_soak.ledger import Ledger, Stream, body_of
from gantry_soak.records import End, RecordFile, Sample, Start, read_run


@pytest.fixture
def stream() -> Stream:
    return Ledger().stream("s")


def test_a_correct_history_has_no_findings(stream: Stream) -> None:
    """Acknowledged messages that arrive, also twice, and unanswered ones that do not, are correct."""
    first, body = stream.begin()
    stream.acknowledge(first)
    stream.receive(body)
    stream.receive(body)
    stream.begin()
    assert stream.findings() == [] and stream.is_complete and stream.copies == 2


def test_an_acknowledged_message_that_never_arrives_is_lost(stream: Stream) -> None:
    """The finding names the message."""
    number, _ = stream.begin()
    stream.acknowledge(number)
    assert stream.findings() == ["s: 1 acknowledged messages never arrived: 0"] and not stream.is_complete


def test_a_changed_body_is_found(stream: Stream) -> None:
    """One changed bit is enough."""
    _, body = stream.begin()
    stream.receive(bytes([body[0] ^ 1]) + body[1:])
    assert stream.findings() == ["s: a body has changed"]


def test_a_message_that_was_never_sent_here_is_found(stream: Stream) -> None:
    """A message of another stream, or with a number that was not given out, is a finding."""
    stream.receive(body_of("t", 0))
    stream.receive(body_of("s", 7))
    assert len(stream.findings()) == 2


def test_a_forbidden_message_that_arrives_is_found(stream: Stream) -> None:
    """A message that was rolled back, or recalled with success, must not arrive, before or after."""
    _, rolled_back = stream.begin(is_forbidden=True)
    stream.receive(rolled_back)
    recalled, body = stream.begin()
    stream.acknowledge(recalled)
    stream.receive(body)
    stream.forbid(recalled)
    assert len(stream.findings()) == 2


def test_a_delayed_message_that_is_early_is_found(stream: Stream) -> None:
    """A message that arrives at once although it has a delay is a finding."""
    _, body = stream.begin()
    stream.receive(body, delay_ms=5_000)
    assert "too early" in stream.findings()[0]


def test_a_first_delivery_out_of_order_is_found(stream: Stream) -> None:
    """Within a key, first deliveries follow the order of the sends; repeated ones may come at any time."""
    bodies = []
    for _ in range(3):
        number, body = stream.begin()
        stream.acknowledge(number)
        bodies.append(body)
    for position in (0, 2, 0, 1):
        stream.receive(bodies[position], key="k")
    assert stream.findings() == ["s: message 1 of key k arrived for the first time after 2"]


def test_the_plan_of_faults_follows_from_the_seed() -> None:
    """The same seed gives the same plan, in ascending order, with quiet ends; an hour has every fault."""
    plan = plan_faults(3, 3600)
    assert plan == plan_faults(3, 3600) != plan_faults(4, 3600)
    assert {one.name for one in plan} == set(NAMES)
    times = [one.at_s for one in plan]
    assert times == sorted(times) and times[0] > 500 and times[-1] < 3400
    assert len(plan_faults(3, 30)) >= 1


def test_a_file_that_was_cut_off_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    """A run that was killed can be analysed; a file of another program is refused."""
    machine = Machine(processor="p", cores=2, memory_bytes=1 << 30, kernel="6.1", python="3.11", uvloop="1")
    path = tmp_path / "soak.jsonl"
    file = RecordFile(path)
    file.append(Start(started_at="now", machine=machine, seed=1, planned_s=9, interval_s=1, features=[]))
    file.append(Sample(at_s=1, processes=[], disk={}, tables={}, latencies=[], done={}))
    file.append(End(at_s=2, findings=[], sent=1, acknowledged=1, received=1))
    path.write_bytes(path.read_bytes()[:-9])
    run = read_run(path)
    assert len(run.samples) == 1 and run.end is None
    path.write_bytes(b'{"kind": "other"}\n\n')
    with pytest.raises(BenchmarkFailed, match="line 1"):
        read_run(path)
    path.write_bytes(b"")
    with pytest.raises(BenchmarkFailed, match="no start"):
        read_run(path)


def test_only_whole_files_are_damaged(tmp_path: Path) -> None:
    """The newest file below the flushed end is chosen, and none if all reach beyond it."""
    for start in (0, 100, 200):
        (tmp_path / f"{start:020}").write_bytes(bytes(100))
    assert newest_whole_file(tmp_path, 299) == tmp_path / f"{100:020}"
    assert newest_whole_file(tmp_path, 99) is None


def test_the_damaged_record_is_the_newest_of_its_topic_in_the_file(tmp_path: Path) -> None:
    """Units that point into other files, and empty ones, are left out."""
    log_file, queue = tmp_path / f"{1000:020}", tmp_path / "topic" / "3"
    log_file.write_bytes(bytes(500))
    queue.mkdir(parents=True)
    units = [(900, 50, 0), (1000, 60, 0), (1400, 70, 0), (1600, 80, 0), (0, 0, 0)]
    (queue / f"{200:020}").write_bytes(b"".join(UNIT.pack(*unit) for unit in units))
    assert newest_unit(tmp_path / "topic", log_file) == (1400, 70, 3, 12)
    assert newest_unit(tmp_path / "other", log_file) is None
