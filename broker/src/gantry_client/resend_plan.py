"""Which messages to send again, what would be sent, and what became of each: values without input or output.

A plan lists exactly what an execution sends. Its digest identifies the plan: a caller that confirms a plan names its
digest, and a plan with another digest is not the one that was confirmed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, final

import msgspec

from gantry_client.errors import InvalidMessage
from gantry_client.messages import ReceivedMessage
from gantry_client.outgoing import check_topic
from gantry_client.subscriptions import FilterExpression, Sql, make_filter
from gantry_wire.filters import MessageFilter, TagFilter
from gantry_wire.names import SYSTEM_GROUP_PREFIX, dead_letter_topic, group_fault, is_retry_or_dead_letter, topic_fault

READER_PREFIX: Final = f"{SYSTEM_GROUP_PREFIX}RESEND_"
"""The prefix of the reader group of a group's dead letters; brokers create such groups even where automatic creation is
off."""

TOPIC_READER: Final = f"{SYSTEM_GROUP_PREFIX}RESEND"
"""The group that reads messages of ordinary topics to send them again; it commits no offsets."""


class Position(NamedTuple):
    """The place of one message in the topic that is read."""

    broker_name: str
    queue_id: int
    offset: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResendRequest:
    """Which messages to send again, and where to."""

    group: str | None = None
    """The group whose dead letters are sent; None for messages of `topic`."""
    topic: str | None = None
    """The ordinary topic whose messages at `positions` are sent; None for dead letters."""
    to_topic: str | None = None
    """The target topic. By default, each message is sent to the topic to which its producer sent it."""
    positions: tuple[Position, ...] = ()
    """Only these messages; empty for all."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Only messages stored in `[since, until)`; where progress is kept, it passes those before `since`."""
    filter: FilterExpression = "*"
    """Only messages that this filter by tags or by properties accepts."""
    key: str | None = None
    """Only messages with this key."""
    is_from_start: bool = False
    """Whether to include messages that were already sent again."""
    keeps_progress: bool = True
    """Whether to begin after the dead letters that an earlier run has sent, and to commit the new progress. Otherwise a
    message counts as sent again if the target has a copy with its id that was stored after it."""

    @property
    def source(self) -> str:
        """The topic that is read."""
        return dead_letter_topic(self.group) if self.group is not None else self.topic or ""

    @property
    def reader(self) -> str:
        """The group that reads it, under which brokers store the progress."""
        return TOPIC_READER if self.group is None else READER_PREFIX + self.group

    def check(self) -> None:
        """Raise InvalidMessage for a request that cannot be executed."""
        if (self.group is None) == (self.topic is None):
            raise InvalidMessage("name either a group, for its dead letters, or a topic")
        if self.topic is not None:
            check_topic(self.topic)
            if not self.positions:
                raise InvalidMessage("messages of a topic are chosen by their positions; name at least one")
        if self.group is not None and (fault := reader_fault(self.group)) is not None:
            raise InvalidMessage(f"invalid group name {fault}")
        if self.to_topic is not None:
            check_topic(self.to_topic)
            if is_retry_or_dead_letter(self.to_topic):
                raise InvalidMessage(f"{self.to_topic} is a topic of retries or dead letters; name an ordinary topic")
        if self.keeps_progress and self.is_selection:
            raise InvalidMessage("progress can only be kept where all dead letters are sent to their original topics")
        make_filter(self.filter)

    @property
    def is_selection(self) -> bool:
        """Whether only some messages are sent, or to another topic, so that no progress can be kept."""
        return bool(self.topic or self.to_topic or self.positions or self.key) or self.filter != "*"

    def accepts(self, message: ReceivedMessage) -> bool:
        """Return whether the filter and the key select a message. Broker and client evaluate filters equally."""
        if self.key is not None and self.key not in message.keys:
            return False
        wanted = make_filter(self.filter)
        return accepts_properties(wanted, message.properties, message.tags)

    def target_of(self, message: ReceivedMessage, retry_topic: str | None) -> str | None:
        """Return the topic to which a message is sent; None if it names no original topic."""
        if self.to_topic is not None or self.group is None:
            return self.to_topic or self.topic
        if not retry_topic or topic_fault(retry_topic) is not None or is_retry_or_dead_letter(retry_topic):
            return None
        return retry_topic


def accepts_properties(wanted: MessageFilter, properties: Mapping[str, str], tags: str | None) -> bool:
    """Return whether a filter accepts a message with these properties and tags."""
    if isinstance(wanted, TagFilter):
        return wanted.accepts_all or wanted.accepts_tags(tags)
    return wanted.accepts(properties)


class Verdict(Enum):
    """Whether a message of a plan is sent."""

    SEND = "send"
    RESENT = "resent before"
    """The target has a copy already, and the request does not include such messages: skipped."""
    NO_ORIGIN = "no original topic"
    """It names no topic to which it could be sent: skipped, and progress passes it."""
    UNSENDABLE = "cannot be sent"
    """The message itself is the reason, such as a damaged body: skipped, and progress passes it."""
    NO_TARGET = "target not available"
    """The target topic does not accept messages now: not sent, and progress does not pass it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMessage:
    """One message of a plan."""

    position: Position
    message_id: str
    """The id that its producer assigned, which the copy has, too."""
    target: str | None
    """The topic to which it is sent; None if unknown."""
    body_bytes: int
    """The size of the body that is sent."""
    stored_ms: int
    """When the message was stored."""
    verdict: Verdict
    reason: str = ""
    """Why it is not sent; empty if it is."""
    resent_ms: int | None = None
    """When the newest copy in the target was stored; None if there is none, or none was searched."""
    is_without_origin: bool = False


@final
class PlanDigest:
    """The running digest of a plan: of its request, and of every message with its verdict, in order."""

    def __init__(self, request: ResendRequest) -> None:
        self._hash = hashlib.sha256()
        filter_parts = (
            ["sql", request.filter.expression] if isinstance(request.filter, Sql) else ["tags", request.filter]
        )
        self._add([request.group, request.topic, request.to_topic, filter_parts, request.key, request.is_from_start,
                   request.keeps_progress])  # fmt: skip

    def add(self, message: PlannedMessage) -> None:
        """Include the next message of the plan."""
        self._add([*message.position, message.message_id, message.target, message.body_bytes, message.verdict.name])

    def text(self) -> str:
        """Return the digest so far, in hex."""
        return self._hash.hexdigest()

    def _add(self, parts: list[object]) -> None:
        self._hash.update(msgspec.json.encode(parts) + b"\n")


@final
@dataclass(slots=True, kw_only=True)
class ResendPlan:
    """What an execution would send now, in order."""

    messages: list[PlannedMessage] = field(default_factory=list)
    digest: str = ""
    remaining: int = 0
    """Messages of the source that were not examined, because of a limit."""

    @property
    def sendable(self) -> list[PlannedMessage]:
        """The messages that are sent."""
        return [one for one in self.messages if one.verdict is Verdict.SEND]


class OutcomeKind(Enum):
    """What became of one message."""

    SENT = "sent"
    """The broker has acknowledged it."""
    FAILED = "failed"
    """It was not stored."""
    UNKNOWN = "unknown"
    """It may be stored or not: no answer came in time, or it was stored, and the broker did not acknowledge it."""
    SKIPPED = "skipped"
    """No attempt was made."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResendOutcome:
    """What became of one message of a plan."""

    message: PlannedMessage
    kind: OutcomeKind
    reason: str = ""
    """Why it was not sent, or why that is unknown; empty if it was sent."""
    new_offset_message_id: str | None = None
    """The id that the broker assigned to the copy; None unless a broker has stored it."""
    queue_id: int | None = None
    queue_offset: int | None = None
    broker_name: str | None = None


def reader_fault(group: str) -> str | None:
    """Return why the reader group of `group` would be invalid, or None."""
    fault = group_fault(READER_PREFIX + group)
    return None if fault is None else f"{group[:64]!r}: {fault.value}"
