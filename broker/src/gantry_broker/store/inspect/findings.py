"""Findings of a verification, with the harm of each.

An administrator first needs to know what a damage costs. So every finding states its harm:

    LOST        stored messages, or entries of tables, are missing or cannot be read
    DERIVED     a queue, the index or a small file is wrong; the log is complete, and a rebuild restores it
    WRONG       two things that must agree do not, but nothing is lost
    UNSETTLED   left by a crash and resolved by the next start, or just being written by a running broker
    ODD         harmless, but worth knowing

The first three are damage, and determine the exit code. Consecutive findings of one kind are one finding with a count:
a lost queue file is one line, not three hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, final

FINDINGS_MAX: Final = 2_000
"""Limit of the findings that are kept; others are only counted, so that a broken store cannot fill the memory."""

LOST_NAMED_MAX: Final = 50
"""Limit of the lost messages that one finding names."""


class Harm(StrEnum):
    """The harm of a finding; see the module."""

    LOST = "lost"
    """Stored messages, or entries of tables, are missing or cannot be read."""

    DERIVED = "derived"
    """A file is wrong that a start rebuilds from the log."""

    WRONG = "wrong"
    """Two things that must agree do not, but nothing is lost."""

    UNSETTLED = "unsettled"
    """The next start resolves it, or a running broker is just writing it."""

    ODD = "odd"
    """It is harmless, but worth knowing."""

    @property
    def is_damage(self) -> bool:
        return self in (Harm.LOST, Harm.DERIVED, Harm.WRONG)


class Kind(StrEnum):
    """The kind of a finding. The values are stable, because programs read them."""

    ROT = "rot"
    """Bytes of the log that were on the disk are damaged."""

    UNREADABLE = "unreadable"
    """The disk cannot read a part of the log."""

    LOG_FILE = "log-file"
    """A log file is missing, of another store, or does not fit its neighbours."""

    LOST_END = "lost-end"
    """The log ends before an offset that was on the disk."""

    MISSING = "missing"
    """A range of the log that was on the disk is lost; harmless if the loss was accepted."""

    TORN_TAIL = "torn-tail"
    """A crash interrupted the last write; the next start removes what it left."""

    TIME_FALLS = "time-falls"
    """A record has an earlier store time than the one before it."""

    NUMBERS_MISSING = "numbers-missing"
    """Queue offsets have no message in the log, or one has two messages."""

    UNIT_MISSING = "unit-missing"
    """A message of the log has no unit in its queue."""

    UNIT_WRONG = "unit-wrong"
    """A unit does not agree with the message of its queue offset."""

    UNIT_STRAY = "unit-stray"
    """A unit points to no message of its queue, or is empty before later ones."""

    UNIT_BEYOND = "unit-beyond"
    """A unit points after the end of the log."""

    QUEUE_FILE = "queue-file"
    """A queue file is missing, misplaced, or of a wrong size."""

    QUEUE_END = "queue-end"
    """A queue is shorter than the recovery point records."""

    TOPIC_UNKNOWN = "topic-unknown"
    """The log has messages of a topic that does not exist."""

    INDEX_MISSING = "index-missing"
    """A message with keys has no entry in the key index."""

    INDEX_STRAY = "index-stray"
    """An entry of the key index points to no message with its key."""

    INDEX_CHAIN = "index-chain"
    """The chains of an index file, by which queries find entries, are wrong."""

    INDEX_FILE = "index-file"
    """A file cannot be a file of the key index."""

    CHECKPOINT = "checkpoint"
    """The checkpoint does not agree with the log."""

    RECOVERY_POINT = "recovery-point"
    """The recovery point cannot be used by a start."""

    IDENTITY = "identity"
    """One or both copies of the store's identity cannot be used."""

    CONFIG = "config"
    """A JSON table or its copy cannot be used."""

    CONSUMER_OFFSET = "consumer-offset"
    """The committed offset of a group lies beyond its queue."""


class Message(NamedTuple):
    """A message, identified by topic, queue id and queue offset."""

    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True, kw_only=True)
class Finding:
    """One fault that a verification has found."""

    kind: Kind
    harm: Harm
    text: str
    """The description, one sentence for the user."""

    remedy: str = ""
    """What to do; empty if the general remedy of the harm applies."""

    offset: int | None = None
    """Physical offset in the log, if there is one."""

    length: int | None = None
    """Number of bytes of the log that are affected, from ``offset`` on."""

    path: str = ""
    """The file, if it is not a part of the log."""

    topic: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None
    count: int = 1
    """Number of units, entries or records with this fault."""

    lost: list[Message] = field(default_factory=list)
    """Lost messages, as far as they can be named."""

    lost_count: int = 0
    """Number of lost messages, named or not. A lower bound."""

    def repeat(self, count: int = 1) -> None:
        """Count ``count`` more units, entries or records with the same fault."""
        self.count += count

    def add_lost(self, message: Message) -> None:
        """Add a message that is known to be lost."""
        self.lost_count += 1
        if len(self.lost) < LOST_NAMED_MAX:
            self.lost.append(message)


@final
class Findings:
    """A bounded list of findings."""

    def __init__(self) -> None:
        self.kept: Final[list[Finding]] = []
        """The findings that are reported in full, at most ``FINDINGS_MAX``."""
        self.counts: Final[dict[Harm, int]] = dict.fromkeys(Harm, 0)
        self.omitted = 0
        """Number of findings that were counted and not kept."""

    def add(self, finding: Finding) -> Finding:
        """Add a finding and return it, so that the caller can extend it later."""
        self.counts[finding.harm] += 1
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(finding)
        else:
            self.omitted += 1
        return finding

    @property
    def is_damaged(self) -> bool:
        return any(count for harm, count in self.counts.items() if harm.is_damage)

    @property
    def lost_messages(self) -> int:
        """A lower bound of the number of lost messages."""
        return sum(finding.lost_count for finding in self.kept)
