"""The recording of a crash job: Porcupine and the crash checker agree about jobs that keep their promises or do not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import final

import pytest
from crash.checker import check, stored_marks
from crash.history import History, Sent
from crash.load_consumer import ReadRecord
from crash.log_walk import Queue
from crash.payload import Mark, digest, make_body
from crash.second_judge import JobRecording
from gantry_histories.findings import Kind
from gantry_histories.judges import Judgement, Verdict

from gantry_wire.message import StoredMessage

RUN = b"run-0001"
QUEUE: Queue = ("CrashA", 0)


@final
class SmallJob:
    """Two starts of a broker with one queue: two messages are sent to each, and both starts are read back."""

    def __init__(self) -> None:
        self.history = History(RUN)
        self.recording = JobRecording(self.history, "broker")
        self.stored: list[StoredMessage] = []
        self.send(0)
        self.send(1)

    def send(self, sequence: int, *, is_acked: bool = True, is_stored: bool = True) -> None:
        """Send a message to the end of the queue."""
        mark = Mark(0, sequence)
        body = make_body(RUN, mark, b"")
        self.history.record_sent(Sent(mark, *QUEUE, digest(body).hex(), f"unique-{sequence}"))
        offset = len(self.stored)
        if is_stored:
            self.stored.append(StoredMessage(
                topic=QUEUE[0], queue_id=QUEUE[1], body=body, queue_offset=offset, physical_offset=offset * 100,
                properties_bytes=f"UNIQ_KEY\x01unique-{sequence}\x02".encode(),
            ))  # fmt: skip
        if is_acked:
            self.history.record_acked(mark, offset, offset * 100)

    def consume(self, end: int) -> None:
        """Let a consumer read the messages before ``end`` under load."""
        at = time.monotonic_ns()
        self.recording.record_reads([ReadRecord(QUEUE, 0, self.stored[:end], end, end, at, at, at)])

    def restart(self, *, lost: int = 0) -> None:
        """Kill the broker and start it again without the last messages; read back and settle."""
        self.recording.record_end()
        del self.stored[len(self.stored) - lost :]
        self.recording.record_readback({QUEUE: list(self.stored)}, time.monotonic_ns())
        self.history.settle(stored_marks(RUN, {QUEUE: self.stored}))
        self.recording.record_settled()

    def judge(self, path: Path, *, may_lose_tail: bool = False) -> tuple[Judgement, list[str]]:
        """Return the judgement, and the faults of the crash checker."""
        own = [str(fault) for fault in check(self.history, {QUEUE: self.stored}, may_lose_tail=may_lose_tail)]
        return self.recording.judge(path, own, may_lose_tail=may_lose_tail, shows_acknowledged=False), own


def is_linearizable(job: SmallJob, folder: Path, *, may_lose_tail: bool = False) -> bool:
    """Return the verdict of Porcupine. The crash checker must agree, unless only a consumer saw the violation."""
    judgement, _ = job.judge(folder / "judged.jsonl", may_lose_tail=may_lose_tail)
    assert judgement.second is not None
    assert Kind.DISAGREEMENT not in {finding.kind for finding in judgement.findings}, judgement
    return judgement.second.verdict is Verdict.LINEARIZABLE


@pytest.mark.needs_porcupine
@pytest.mark.parametrize("may_lose_tail", [True, False])
def test_job_that_keeps_everything_is_accepted(may_lose_tail: bool, tmp_path: Path) -> None:
    """Messages of both starts, one without a reply that is stored, and one that is not."""
    job = SmallJob()
    job.send(2, is_acked=False)
    job.send(3, is_acked=False, is_stored=False)
    job.consume(3)
    job.restart()
    job.send(4)
    job.restart()

    assert is_linearizable(job, tmp_path, may_lose_tail=may_lose_tail)


@pytest.mark.needs_porcupine
def test_lost_end_of_the_log_is_legal_only_with_an_anonymous_buffer(tmp_path: Path) -> None:
    """An acknowledged message is missing after the second start, and nothing before it."""
    for may_lose_tail in (True, False):
        job = SmallJob()
        job.recording.record_end()
        job.stored.pop()
        job.recording.record_readback({QUEUE: list(job.stored)}, time.monotonic_ns())

        assert is_linearizable(job, tmp_path, may_lose_tail=may_lose_tail) is may_lose_tail


@pytest.mark.needs_porcupine
def test_message_after_one_without_a_reply_may_be_lost_with_it(tmp_path: Path) -> None:
    """A kill between two replies: the later message is acknowledged, the earlier one is not, and both are lost."""
    job = SmallJob()
    job.send(2, is_acked=False)
    job.send(3)
    job.restart(lost=2)
    job.send(4)
    job.restart()

    assert is_linearizable(job, tmp_path, may_lose_tail=True)


@pytest.mark.needs_porcupine
def test_message_that_was_shown_may_not_be_lost(tmp_path: Path) -> None:
    """Even with an anonymous buffer. The crash checker compares that elsewhere; its faults are passed to the judges."""
    job = SmallJob()
    job.consume(2)
    job.recording.record_end()
    job.stored.pop()
    job.recording.record_readback({QUEUE: list(job.stored)}, time.monotonic_ns())

    judgement = job.recording.judge(
        tmp_path / "judged.jsonl", ["SHOWN, and gone"], may_lose_tail=True, shows_acknowledged=False
    )

    assert [finding.kind for finding in judgement.findings] == [Kind.VANISHED]
    assert judgement.second is not None
    assert judgement.second.verdict is Verdict.NOT_LINEARIZABLE


@pytest.mark.needs_porcupine
def test_message_that_was_not_stored_never_returns(tmp_path: Path) -> None:
    """After a start without it, a message without a reply counts as refused."""
    job = SmallJob()
    job.send(2, is_acked=False, is_stored=False)
    job.restart()
    body = make_body(RUN, Mark(0, 2), b"")
    returned = job.stored[-1]
    job.stored.append(StoredMessage(
        topic=QUEUE[0], queue_id=QUEUE[1], body=body, queue_offset=2, physical_offset=200,
        properties_bytes=returned.properties_bytes.replace(b"unique-1", b"unique-2"),
    ))  # fmt: skip
    job.recording.record_end()
    job.recording.record_readback({QUEUE: list(job.stored)}, time.monotonic_ns())

    assert not is_linearizable(job, tmp_path)


@pytest.mark.needs_porcupine
def test_disagreement_with_the_crash_checker_is_a_finding(tmp_path: Path) -> None:
    """Each of the two is named."""
    job = SmallJob()
    job.restart()

    judgement = job.recording.judge(
        tmp_path / "judged.jsonl", ["LOST: p0-1"], may_lose_tail=False, shows_acknowledged=True
    )

    [finding] = judgement.findings
    assert finding.kind is Kind.DISAGREEMENT
    assert "the crash checker found LOST: p0-1; Porcupine: Ok" in finding.evidence
