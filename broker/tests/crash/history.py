"""The history of all sends and their replies, with which the checker compares the stored messages.

Every send is recorded before it goes out and again when its outcome is known, in memory and in a file, so that a failed
run can be examined afterwards. A message is identified by its mark, the producer and the sequence number in its body. A
send without an outcome is unknown: it may or may not be stored.

Once a broker has recovered and all its queues were read, nothing is unknown any more: `settle` records which messages
are stored and which are gone. From then on stored ones must stay, and gone ones must never return.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, final

from crash.payload import Mark

from gantry_wire.message import StoredMessage


class Outcome(Enum):
    """The outcome of a send, as far as it is known."""

    UNKNOWN = "unknown"
    """No answer, or one that promises nothing (codes 10, 11, 12)."""

    ACKED = "acked"
    """Code 0: stored, at the place that the reply named. Or it was unknown, and was stored after a recovery."""

    REFUSED = "refused"
    """Another code: not stored."""

    GONE = "gone"
    """It was unknown, or might be lost, and was not stored after a recovery."""


@dataclass(slots=True)
class Sent:
    """One message of one producer."""

    mark: Mark
    topic: str
    queue_id: int
    body_digest: str
    unique_id: str
    """The property `UNIQ_KEY`, by which messages are queried."""

    outcome: Outcome = Outcome.UNKNOWN
    queue_offset: int = -1
    """The offset in its queue; -1 until it is known, like the next."""

    physical_offset: int = -1
    """The offset in the log."""

    epoch: int = field(default=0, compare=False)
    """The number of the broker's start to which it was sent, from 1."""

    sent_ns: int = field(default=0, compare=False)
    """When it was sent, in nanoseconds of this process's monotonic clock."""

    answered_ns: int = field(default=0, compare=False)
    """When a reply acknowledged or refused it; 0 without such a reply."""


@final
class History:
    """All sends of a run, by mark. Owned by one event loop."""

    def __init__(self, run: bytes, file: IO[str] | None = None) -> None:
        self.run = run
        """The eight bytes with which every body of this run begins."""
        self.sent: dict[Mark, Sent] = {}
        self.acked_count = 0
        """The number of messages that a reply has acknowledged, including those that are gone now."""
        self.epoch = 1
        """The number of the broker's current start."""
        self._file = file
        self._write({"run": run.hex()})

    def __repr__(self) -> str:
        return f"<History sent={len(self.sent)} acked={self.count(Outcome.ACKED)}>"

    def record_sent(self, sent: Sent) -> None:
        """Record a message that is about to be sent."""
        assert sent.mark not in self.sent, "a sequence number was used twice"
        self.sent[sent.mark] = sent
        sent.epoch, sent.sent_ns = self.epoch, time.monotonic_ns()
        self._write({
            "send": list(sent.mark), "topic": sent.topic, "queue": sent.queue_id, "digest": sent.body_digest,
            "unique": sent.unique_id,
        })  # fmt: skip

    def record_acked(self, mark: Mark, queue_offset: int, physical_offset: int) -> None:
        """Record that a reply has acknowledged a message, with its offsets."""
        self.acked_count += 1
        self.sent[mark].answered_ns = time.monotonic_ns()
        self._record_stored(mark, queue_offset, physical_offset)

    def _record_stored(self, mark: Mark, queue_offset: int, physical_offset: int) -> None:
        sent = self.sent[mark]
        sent.outcome, sent.queue_offset, sent.physical_offset = Outcome.ACKED, queue_offset, physical_offset
        self._write({"acked": list(mark), "offset": queue_offset, "at": physical_offset})

    def record_refused(self, mark: Mark, code: int) -> None:
        """Record that a reply has refused a message."""
        self.sent[mark].outcome = Outcome.REFUSED
        self.sent[mark].answered_ns = time.monotonic_ns()
        self._write({"refused": list(mark), "code": code})

    def settle(self, stored: Mapping[Mark, StoredMessage]) -> None:
        """Record after a recovery which messages are stored; all others that were not refused are gone."""
        for mark, sent in self.sent.items():
            message = stored.get(mark)
            if message is not None and sent.outcome is Outcome.UNKNOWN:
                self._record_stored(mark, message.queue_offset, message.physical_offset)
            elif message is None and sent.outcome in (Outcome.UNKNOWN, Outcome.ACKED):
                sent.outcome = Outcome.GONE
                self._write({"gone": list(mark)})

    def count(self, outcome: Outcome) -> int:
        """Return how many messages have this outcome now."""
        return sum(1 for sent in self.sent.values() if sent.outcome is outcome)

    def _write(self, event: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(event) + "\n")

    def flush(self) -> None:
        """Write everything that was recorded to the file."""
        if self._file is not None:
            self._file.flush()


def load_history(path: Path) -> History:
    """Load the history that a run has left in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    history = History(bytes.fromhex(lines[0]["run"]))
    for event in lines[1:]:
        if "send" in event:
            mark = Mark(*event["send"])
            history.record_sent(Sent(mark, event["topic"], event["queue"], event["digest"], event["unique"]))
        elif "acked" in event:
            history.record_acked(Mark(*event["acked"]), event["offset"], event["at"])
        elif "gone" in event:
            history.sent[Mark(*event["gone"])].outcome = Outcome.GONE
        else:
            history.record_refused(Mark(*event["refused"]), event["code"])
    return history
