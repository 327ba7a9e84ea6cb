"""What clients and the supervisor of a group write down, one JSON object a line.

    sent -> answered                       a producer; a send without an answer is unknown for ever
    shown ... committed                    a consumer: every message it was given, every offset it gave back
    reign                                  the supervisor: from now on this broker may be the master of this epoch

All times are nanoseconds of one monotonic clock, that of the process in which the clients run. Nothing here knows how
the brokers work: the judgement must not lean on what is judged.
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
    """How a send ended, as far as its producer knows."""

    OK = "ok"
    """Code 0: acknowledged, at the place that the reply names."""

    UNKNOWN = "unknown"
    """No reply, or code 10, 11 or 12: stored or not."""

    REFUSED = "refused"
    """Another code: not stored."""


UNKNOWN_CODES: Final = (10, 11, 12)


def outcome_of(code: int) -> Outcome:
    """What a reply's code says."""
    if code == 0:
        return Outcome.OK
    return Outcome.UNKNOWN if code in UNKNOWN_CODES else Outcome.REFUSED


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent", tag_field="event"):
    """A message goes out. Nobody sends a key twice."""

    client: str
    stream: int
    """The client's connection: what goes over one is in order."""

    key: str
    queue: Queue
    digest: str
    at: int


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag="answered", tag_field="event"):
    """The reply to a send."""

    key: str
    outcome: Outcome
    broker: str
    """The address that it was sent to."""

    at: int
    code: int = 0
    queue_offset: int = -1
    physical_offset: int = -1
    epoch: int = -1
    """Of the master that answered, where the client knows it."""


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag="shown", tag_field="event"):
    """A consumer was given a message."""

    client: str
    queue: Queue
    queue_offset: int
    physical_offset: int
    key: str | None
    """None if the body is not whole."""

    digest: str
    broker: str
    at: int


class Committed(msgspec.Struct, frozen=True, kw_only=True, tag="committed", tag_field="event"):
    """A consumer says that it is done with everything before ``offset``."""

    client: str
    queue: Queue
    offset: int
    at: int


class Reign(msgspec.Struct, frozen=True, kw_only=True, tag="reign", tag_field="event"):
    """A broker is about to be told to be the master of an epoch."""

    epoch: int
    broker: str
    at: int


Event = Sent | Answered | Shown | Committed | Reign

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Event).decode


@final
@dataclass
class History:
    """All that was written down."""

    sent: dict[str, Sent] = field(default_factory=dict)
    answered: dict[str, Answered] = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    reigns: list[Reign] = field(default_factory=list)

    def __repr__(self) -> str:
        acknowledged = sum(1 for answer in self.answered.values() if answer.outcome is Outcome.OK)
        return f"<History sent={len(self.sent)} acknowledged={acknowledged} shown={len(self.shown)}>"

    def add(self, event: Event) -> None:
        """One more line."""
        match event:
            case Sent():
                assert event.key not in self.sent, f"{event.key} was sent twice"
                self.sent[event.key] = event
            case Answered():
                assert event.key in self.sent, f"{event.key} was answered and not sent"
                self.answered[event.key] = event
            case Shown():
                self.shown.append(event)
            case Committed():
                self.committed.append(event)
            case Reign():
                self.reigns.append(event)

    def acknowledged(self) -> Iterable[tuple[Sent, Answered]]:
        """The sends that got code 0."""
        for key, answer in self.answered.items():
            if answer.outcome is Outcome.OK:
                yield self.sent[key], answer


@final
class Journal:
    """Takes events down, in memory and, line by line, in a file that is there after a failed run."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self.history: Final = History()
        self._file: Final = file

    def add(self, event: Event) -> None:
        """Take one down."""
        self.history.add(event)
        if self._file is not None:
            self._file.write(_encode(event) + b"\n")


def load_history(path: Path) -> History:
    """What an earlier run left in a file; a line that was cut short by the end of the run is left out."""
    history = History()
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            history.add(_decode(line))
    return history
