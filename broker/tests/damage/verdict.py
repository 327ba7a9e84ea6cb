"""The verdict over a trial: its outcome, its faults by kind, and what the judge must know about the damaged file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from damage.file_kinds import FileKind

FAULTS_PER_KIND_MAX: Final = 4
"""Limit of the faults of one kind that are listed one by one."""


class Outcome(StrEnum):
    """The possible outcomes of a trial."""

    COMPLETE = "complete"
    REPORTED = "reported"
    HEALED = "healed"
    REFUSED = "refused"
    FAULT = "FAULT"


class FaultKind(StrEnum):
    """The kinds of faults that a trial may have."""

    ALTERED = "altered message"
    DAMAGED_RECORD = "damaged record served with code 0"
    REUSED = "offset given twice"
    INVENTED = "message that was never sent"
    DUPLICATE = "message stored twice"
    MISSING = "missing without a report"
    HIDDEN = "hidden from a tag filter without a report"
    NOT_FOUND = "not found by key or id without a report"
    STALLED = "queue is stalled"
    NOT_DELIVERED = "pending message is not delivered, without a report"
    CHECKED_AGAIN = "ended transaction is checked again, without a report"
    OFFSET = "consumer offset moved without a report"
    TABLE = "table changed without a report"
    GRANTED = "access of an account that must be refused"
    FORGOTTEN = "users or policies are missing or altered"
    EPOCHS = "epochs vanished without a report"
    EPOCH_REUSED = "epoch given twice"
    FALSELY_COMPLETE = "incomplete store reports itself as complete"
    SEND_REFUSED = "sends are refused without a report"
    NO_REMEDY = "refused without a remedy that works"
    NOT_NAMED = "refused without naming what is damaged"
    LOST_WITH_REPLICA = "lost although a replica has it"
    SKIPPED = "skipped by a consumer and served later, without a report"
    NO_MASTER = "no master, without a report"
    ENDED = "the process ended by itself, and should not have"
    NOT_SHOWN = "a source of users does not show what the log reports"
    HUNG = "the trial did not end"
    BROKEN = "the trial itself failed"


class Fault(msgspec.Struct, frozen=True):
    """One fault that the judge has found."""

    kind: FaultKind
    text: str


class Case(msgspec.Struct, frozen=True):
    """The damaged file, and the facts that the judge needs about it."""

    file_kind: FileKind
    file: str
    """The path of the file below the folder of its member."""
    member: int
    """The number of the member whose file was damaged; 1 is the first master."""
    setup: str
    """The kind of shard, a value of `shard.Setup`."""
    is_grouped: bool
    """Whether the broker has a replica: a master and a slave, and not one broker alone."""
    log_file_bytes: int
    """The size of every file of the log."""
    report_words: list[str]
    """Words, of which a report that names the damaged file must contain one."""
    is_killed: bool = False
    """Whether the first run of the broker is killed, and not stopped."""
    exactly_once_topics: list[str] = []
    """Topics whose messages are stored exactly once; others are delivered at least once."""


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of a trial, with its faults."""

    outcome: Outcome
    faults: list[Fault]
    notes: list[str] = []
    """Observations that are no faults, but help to understand the trial."""


def shortened(faults: Sequence[Fault]) -> list[Fault]:
    """Return a few faults of each kind; the last one counts the omitted ones."""
    return list(_shorten(faults))


def _shorten(faults: Sequence[Fault]) -> Iterator[Fault]:
    for kind in FaultKind:
        same = [fault for fault in faults if fault.kind is kind]
        yield from same[:FAULTS_PER_KIND_MAX]
        if len(same) > FAULTS_PER_KIND_MAX:
            yield Fault(kind, f"and {len(same) - FAULTS_PER_KIND_MAX} more")
