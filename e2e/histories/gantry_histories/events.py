"""Events that the clients and the supervisor of a group record, as one JSON object per line.

    sent -> answered                       a producer; the outcome of a send without an answer stays unknown
    shown ... shown read                   a consumer: every message it received, then the reply that had them
    committed -> commit_answered           a consumer: every offset it committed, and that the broker confirmed it
    offset_read                            a consumer: its group's offset, as a broker has stored it
    term                                   the supervisor: from now on this broker may be the master of this epoch
    contents ... ended                     the end of the run: every queue, and what the mode may lose (`recording`)

Both judges read this format: `gantry_histories.check` and the program in `e2e/histories/porcupine`. All times are
nanoseconds of one monotonic clock, that of the process in which the clients run. Nothing here depends on the brokers'
implementation, because the checker must be independent of the code that it checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Final, NamedTuple, final

import msgspec


class Queue(NamedTuple):
    """One queue of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Outcome(StrEnum):
    """The outcome of a send, as far as its producer can tell."""

    OK = "ok"
    """Code 0: the message is acknowledged, at the offsets that the reply names."""

    UNKNOWN = "unknown"
    """No reply, or code 10, 11 or 12: the message may or may not be stored."""

    REFUSED = "refused"
    """Another code: the message is not stored."""


UNKNOWN_CODES: Final = (10, 11, 12)


def outcome_of(code: int) -> Outcome:
    """Return the outcome that a reply's code stands for."""
    if code == 0:
        return Outcome.OK
    return Outcome.UNKNOWN if code in UNKNOWN_CODES else Outcome.REFUSED


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent", tag_field="event"):
    """A message was sent. Every key is sent at most once."""

    client: str
    """The name of the producer."""

    stream: int
    """The number of the client's connection: messages on one connection are ordered."""

    key: str
    queue: Queue
    digest: str
    """The digest of the body (`bodies`)."""

    at: int
    """When the request was made; see the module's docstring on times."""


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag="answered", tag_field="event"):
    """The reply to a send arrived."""

    key: str
    outcome: Outcome
    broker: str
    """The address of the broker to which the message was sent."""

    at: int
    """When the reply arrived."""

    code: int = 0
    queue_offset: int = -1
    """The offset in the queue, from the reply; -1 if the reply has none."""

    physical_offset: int = -1
    """The offset in the log, from the message id in the reply; -1 if the reply has none."""

    epoch: int = -1
    """The epoch of the master that answered, or -1 if the client does not know it."""


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag="shown", tag_field="event"):
    """A consumer received a message."""

    client: str
    queue: Queue
    queue_offset: int
    physical_offset: int
    key: str | None
    """The key of the message, or None if the body is corrupt."""

    digest: str
    broker: str
    at: int


class Committed(msgspec.Struct, frozen=True, kw_only=True, tag="committed", tag_field="event"):
    """A consumer committed ``offset``: it has processed every message before it."""

    client: str
    queue: Queue
    offset: int
    at: int


class Read(msgspec.Struct, frozen=True, kw_only=True, tag="read", tag_field="event"):
    """A pull was answered, with the messages of the ``count`` events ``Shown`` of this client and queue before it."""

    client: str
    queue: Queue
    begin: int
    """The offset at which the consumer asked for messages."""

    next: int
    """The offset at which it continues, from the reply: it skips what is before it and was not in the reply."""

    end: int
    """The end of the queue, from the reply; -1 if the reply has none."""

    count: int
    """The number of messages in the reply."""

    broker: str
    connected: int
    """When the connection was opened: the broker's process has run since then."""

    called: int
    """When the request was made."""

    at: int
    """When the reply arrived."""


class CommitAnswered(msgspec.Struct, frozen=True, kw_only=True, tag="commit_answered", tag_field="event"):
    """A broker confirmed the last commit of a consumer in a queue."""

    client: str
    queue: Queue
    offset: int
    broker: str
    connected: int
    """When the connection was opened."""

    at: int
    """When the reply arrived."""


class OffsetRead(msgspec.Struct, frozen=True, kw_only=True, tag="offset_read", tag_field="event"):
    """A broker returned the offset of a consumer's group in a queue."""

    client: str
    queue: Queue
    offset: int
    """The stored offset; -1 if the broker has none."""

    broker: str
    connected: int
    """When the connection was opened."""

    called: int
    """When the request was made."""

    at: int
    """When the reply arrived."""


class Term(msgspec.Struct, frozen=True, kw_only=True, tag="term", tag_field="event"):
    """A broker is about to be promoted to master of an epoch."""

    epoch: int
    broker: str
    """The address of the broker."""

    at: int
    """When it was recorded, before the order to promote."""

    is_estimated: bool = False
    """Whether ``at`` is only the first acknowledgement in this term that is known, so that the term began earlier."""


Event = Sent | Answered | Shown | Read | Committed | CommitAnswered | OffsetRead | Term

_encode: Final = msgspec.json.Encoder().encode


@final
@dataclass
class History:
    """All events of one run, by their kind; sends and answers by the key of the message."""

    sent: dict[str, Sent] = field(default_factory=dict)
    answered: dict[str, Answered] = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    offsets: list[Committed | CommitAnswered | OffsetRead] = field(default_factory=list)
    """Everything about the offsets of groups, in the order in which it was recorded."""

    terms: list[Term] = field(default_factory=list)

    def __repr__(self) -> str:
        acknowledged = sum(1 for answer in self.answered.values() if answer.outcome is Outcome.OK)
        return f"<History sent={len(self.sent)} acknowledged={acknowledged} shown={len(self.shown)}>"

    def add(self, event: Event) -> None:
        """Add one event to the history."""
        match event:
            case Sent():
                assert event.key not in self.sent, f"{event.key} was sent twice"
                self.sent[event.key] = event
            case Answered():
                assert event.key in self.sent, f"{event.key} was answered and not sent"
                self.answered[event.key] = event
            case Shown():
                self.shown.append(event)
            case Read():
                self.reads.append(event)
            case Committed() | CommitAnswered() | OffsetRead():
                self.offsets.append(event)
            case Term():
                self.terms.append(event)

    @property
    def committed(self) -> list[Committed]:
        """Return the requests of commits, without their replies."""
        return [event for event in self.offsets if isinstance(event, Committed)]

    def acknowledged_sends(self) -> Iterable[tuple[Sent, Answered]]:
        """Yield the sends that were acknowledged with code 0."""
        for key, answer in self.answered.items():
            if answer.outcome is Outcome.OK:
                yield self.sent[key], answer


@final
class Journal:
    """Records events in memory and, line by line, in a file that survives a failed run."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self.history: Final = History()
        self._file: Final = file

    @property
    def path(self) -> Path:
        """The path of the file. The journal must have one."""
        assert self._file is not None, "this journal has no file"
        return Path(self._file.name)

    def flush(self) -> None:
        """Write everything that was recorded to the file."""
        if self._file is not None:
            self._file.flush()

    def add(self, event: Event) -> None:
        """Record one event in memory and in the file."""
        self.history.add(event)
        if self._file is not None:
            self._file.write(_encode(event) + b"\n")
