"""What verifying finds wrong, in words that decide what to do about it.

The first question at 3 a.m. is not what is damaged but what that costs. So every finding says its harm:

    LOST        messages or facts that were stored are not there, or cannot be read
    DERIVED     a queue, the index or a small file is wrong; the log has everything, a rebuild brings it back
    WRONG       two things that must agree do not, and nothing is lost by it
    UNSETTLED   what a crash leaves and the next start settles, or a running broker is just writing
    ODD         worth knowing, harmless

The first three are damage, and make the exit code. Findings of one kind that follow each other are one finding with
a count: a lost queue file is one line and not three hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, final

FINDINGS_MAX: Final = 2_000
"""How many are kept; the rest is counted only, so that a store of rubbish cannot fill the memory."""

LOST_NAMED_MAX: Final = 50
"""How many lost messages one finding names."""


class Harm(StrEnum):
    """See the module."""

    LOST = "lost"
    DERIVED = "derived"
    WRONG = "wrong"
    UNSETTLED = "unsettled"
    ODD = "odd"

    @property
    def is_damage(self) -> bool:
        return self in (Harm.LOST, Harm.DERIVED, Harm.WRONG)


class Kind(StrEnum):
    """What was found. The values are stable: programs read them."""

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
    """A message by the name that its consumers know."""

    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True, kw_only=True)
class Finding:
    """One thing that is not as it must be."""

    kind: Kind
    harm: Harm
    text: str
    """One sentence for a person."""

    remedy: str = ""
    """What to do, when it is not what the harm's general remedy says."""

    offset: int | None = None
    """Where in the log."""

    length: int | None = None
    path: str = ""
    """Which file, when it is not the log."""

    topic: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None
    count: int = 1
    """How many units, entries or records it stands for."""

    lost: list[Message] = field(default_factory=list)
    """Messages that are gone, as far as they can be named."""

    lost_count: int = 0
    """How many are gone, named or not. A lower bound."""

    def repeat(self, count: int = 1) -> None:
        """The same was found of ``count`` more units, entries or records."""
        self.count += count

    def lose(self, message: Message) -> None:
        """One more message is known to be gone."""
        self.lost_count += 1
        if len(self.lost) < LOST_NAMED_MAX:
            self.lost.append(message)


@final
class Findings:
    """The list, bounded."""

    def __init__(self) -> None:
        self.kept: Final[list[Finding]] = []
        self.counts: Final[dict[Harm, int]] = dict.fromkeys(Harm, 0)
        self.omitted = 0

    def add(self, finding: Finding) -> Finding:
        """Take it in, and give it back for whoever has more to say of it."""
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
        """A lower bound of the messages that are gone."""
        return sum(finding.lost_count for finding in self.kept)
