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
    DERIVED = "derived"
    WRONG = "wrong"
    UNSETTLED = "unsettled"
    ODD = "odd"

    @property
    def is_damage(self) -> bool:
        return self in (Harm.LOST, Harm.DERIVED, Harm.WRONG)


class Kind(StrEnum):
    """The kind of a finding. The values are stable, because programs read them."""

    ROT = "rot"
    UNREADABLE = "unreadable"
    LOG_FILE = "log-file"
    LOST_END = "lost-end"
    MISSING = "missing"
    TORN_TAIL = "torn-tail"
    TIME_FALLS = "time-falls"
    NUMBERS_MISSING = "numbers-missing"
    UNIT_MISSING = "unit-missing"
    UNIT_WRONG = "unit-wrong"
    UNIT_STRAY = "unit-stray"
    UNIT_BEYOND = "unit-beyond"
    QUEUE_FILE = "queue-file"
    QUEUE_END = "queue-end"
    TOPIC_UNKNOWN = "topic-unknown"
    INDEX_MISSING = "index-missing"
    INDEX_STRAY = "index-stray"
    INDEX_CHAIN = "index-chain"
    INDEX_FILE = "index-file"
    CHECKPOINT = "checkpoint"
    RECOVERY_POINT = "recovery-point"
    IDENTITY = "identity"
    CONFIG = "config"
    CONSUMER_OFFSET = "consumer-offset"


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
        self.counts: Final[dict[Harm, int]] = dict.fromkeys(Harm, 0)
        self.omitted = 0

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
