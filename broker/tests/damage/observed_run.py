"""What is observed in one run of a trial's broker, for the judge: the answers to clients, the reports and the states.

The process of the run saves it to a file, so that it can be judged even if a signal ends the process.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from damage.expectations import Login, Message
from damage.reports import Report


class QueueRead(msgspec.Struct):
    """The result of reading a queue."""

    topic: str
    queue_id: int
    messages: list[Message]
    problem: str = ""
    """The first answer that was neither messages nor the end of the queue; empty if there was none."""
    tag: str = "*"
    """The tag filter of the subscription; `*` takes all messages."""
    damaged_records: list[str] = []
    """Faults of records that were served with code 0."""


class Reading(msgspec.Struct):
    """The results of reading all queues of one member once."""

    member: int
    is_master: bool
    is_last: bool
    """Whether this is the last reading of this member in a run: no later one can show that a queue has recovered."""
    queues: list[QueueRead] = []
    by_key: list[tuple[str, str, list[Message]]] = []
    """Queries by key: (topic, key, messages found)."""
    by_id: list[tuple[int, Message | None]] = []
    """Queries by message id: (physical offset in the id, message found)."""
    offsets: list[tuple[str, str, int, int | None]] = []
    """Consumer offsets: (group, topic, queue, offset)."""
    topics: dict[str, tuple[int, int]] | None = None
    """Number of read queues and of write queues, by topic; None if it was not asked for, like the next two."""
    groups: dict[str, int] | None = None
    """Maximum of retries, by consumer group."""
    setting: str | None = None
    """The value of the setting that was changed at run time."""
    users: dict[str, str] | None = None
    """The users, each with type, status and policies; None if they could not be listed, or there are none."""
    logins: list[tuple[Login, bool]] = []
    """The accounts that pulled from a topic, and whether they had access."""
    is_cut_off: bool = False
    """Whether the process ended during the reading."""

    sends_before: int = 0
    """Number of the trial's own sends before the reading, answered or not."""


class ContinuingConsumer(msgspec.Struct):
    """The messages of one consumer that read a queue of one member repeatedly, from where it had stopped."""

    member: int
    topic: str
    queue_id: int
    next_offset: int = 0
    """Queue offset at which the consumer would continue."""

    queue_offsets: list[int] = []
    """Queue offsets of the messages that it got."""


class Sent(msgspec.Struct, frozen=True):
    """A message that the trial sent, with the answer."""

    topic: str
    queue_id: int
    unique: str
    """The property `UNIQ_KEY`."""
    body: bytes
    code: int
    """The code of the answer; -1 without an answer."""
    remark: str = ""
    queue_offset: int = -1
    physical_offset: int = -1


class MemberState(msgspec.Struct, frozen=True):
    """The state that a member reports about itself."""

    member: int
    is_complete: bool | None
    """Whether it reports that no log data is missing; None if it does not know."""
    epochs: list[tuple[int, int]]
    """The epoch history of its log: (epoch, start)."""
    promised: int = 0
    """The epoch of its last promise to follow no older master."""


class ObservedRun(msgspec.Struct):
    """What was observed in one run of the broker, from its start to its stop."""

    readings: list[Reading] = []
    consumers: list[ContinuingConsumer] = []
    sends: list[Sent] = []
    reports: list[Report] = []
    refusals: list[tuple[int, str]] = []
    """Refused starts: (member, reason)."""
    remedies: list[str] = []
    """Remedies that were executed for members that had refused to start."""
    refused_for_good: list[int] = []
    """Members that did not start after any remedy."""
    states: list[MemberState] = []
    waiting_problem: str = ""
    """The problem in the status of a master that appends nothing until a loss of log data is accepted."""
    is_accepted: bool = False
    """Whether the loss was accepted in this run, before its sends and its last readings."""
    checked_transactions: list[str] = []
    """Unique keys of the transactions that the broker has checked with a client."""
    promotion: str = ""
    """How the shard got its master, or why it has none."""
    ended_by: str = ""
    """The signal, or the member and its error, that ended the process; empty after a planned stop or kill."""
    tracebacks: list[str] = []
    differences: list[str] = []
    """Differences between status, sidecar or tools and the reports in the log, and commands that do not work."""


def observed_run_path(folder: Path, number: int) -> Path:
    return folder / f"run-{number}.msgpack"


def load_observed_run(folder: Path, number: int) -> ObservedRun:
    """Load what was observed in a run of the broker."""
    path = observed_run_path(folder, number)
    return msgspec.msgpack.decode(path.read_bytes(), type=ObservedRun) if path.exists() else ObservedRun()
