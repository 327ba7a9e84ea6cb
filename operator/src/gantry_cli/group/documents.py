"""What commands about consumer groups say to programs. The names of fields are a promise, as in `document_types`."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantry_client import SubscriptionGroupConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueueDocument:
    """How far a group is in one queue."""

    topic: str
    broker: str
    queue_id: int
    consumed_offset: int
    fetched_offset: int
    """Up to where its members were given messages; what lies between is in their hands."""
    end_offset: int
    lag: int
    last_consumed_ms: int | None
    """When the last consumed message was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDocument:
    """`gantry group describe`: one group."""

    group: str
    settings: SubscriptionGroupConfig | None
    members: int
    lag: int
    consumed_per_s: float
    queues: list[GroupQueueDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDocument:
    """One client that consumes for a group now."""

    client_id: str
    address: str
    language: str | None
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersOfGroupDocument:
    """`gantry group members`: who consumes for a group now, and what."""

    group: str
    message_model: str | None
    consume_type: str | None
    consume_from: str | None
    subscriptions: dict[str, str]
    """What is wanted of each topic."""
    members: list[MemberDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class InHandDocument:
    """What a member has of one queue."""

    topic: str
    broker: str
    queue_id: int
    committed_offset: int
    messages: int
    is_locked: bool
    last_pull_ms: int
    last_consume_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceDocument:
    """How a member gets on with one topic, over the last minute."""

    topic: str
    fetched_per_s: float
    consumed_per_s: float
    failed_per_s: float
    fetch_ms: float
    consume_ms: float
    failed_in_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDocument:
    """`gantry group running`: what one member does."""

    client_id: str
    properties: dict[str, str]
    subscriptions: dict[str, str]
    queues: list[InHandDocument]
    topics: list[PaceDocument]
    stacks: str | None
    failure: str | None = None
    """Why nothing else is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedQueueDocument:
    """Where a group goes on in one queue."""

    topic: str
    broker: str
    queue_id: int
    before: int | None
    """What was committed; none where the group had not begun."""
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetDocument:
    """`gantry group reset`: where a group goes on."""

    group: str
    is_dry_run: bool
    members: int
    queues: list[MovedQueueDocument] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneDocument:
    """`gantry group clone`: where the second group goes on."""

    source: str
    group: str
    is_dry_run: bool
    is_made: bool
    """Whether the group did not exist before."""
    members: int
    queues: list[MovedQueueDocument] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectDocument:
    """`gantry group consume`: how one message went."""

    group: str
    client_id: str
    message_id: str
    result: str | None
    """RocketMQ's word: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, CR_COMMIT, CR_ROLLBACK or CR_RETURN_NULL."""
    remark: str | None
    took_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendDocument:
    """`gantry group resend`: where dead letters went."""

    group: str
    is_dry_run: bool
    sent: dict[str, int]
    without_origin: list[str]
    unreadable: list[str]
