"""The documents of commands about consumer groups. The names of fields are stable, as in `document_types`."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantry_client import SubscriptionGroupConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueueDocument:
    """The progress of a group in one queue."""

    topic: str
    broker: str
    queue_id: int
    consumed_offset: int
    fetched_offset: int
    """The offset up to which its members fetched messages; those since `consumed_offset` are in flight."""
    end_offset: int
    lag: int
    last_consumed_ms: int | None
    """The store time of the last consumed message; null if none was consumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDocument:
    """`gantry group describe`: the progress of one group."""

    group: str
    settings: SubscriptionGroupConfig | None
    members: int
    lag: int
    consumed_per_s: float
    queues: list[GroupQueueDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDocument:
    """One client that is a member of a group now."""

    client_id: str
    address: str
    language: str | None
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersOfGroupDocument:
    """`gantry group members`: the present members of a group, and their subscriptions."""

    group: str
    message_model: str | None
    consume_type: str | None
    consume_from: str | None
    subscriptions: dict[str, str]
    """The filter expression of each topic."""
    members: list[MemberDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueDocument:
    """The state of a member's process queue: one queue that it consumes."""

    topic: str
    broker: str
    queue_id: int
    committed_offset: int
    messages: int
    is_locked: bool
    last_pull_ms: int
    last_consume_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeRateDocument:
    """The consume rates of a member in one topic over the last minute, and its failures in the last hour."""

    topic: str
    fetched_per_s: float
    consumed_per_s: float
    failed_per_s: float
    fetch_ms: float
    consume_ms: float
    failed_in_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDocument:
    """`gantry group running`: the state of one member."""

    client_id: str
    properties: dict[str, str]
    subscriptions: dict[str, str]
    queues: list[ProcessQueueDocument]
    topics: list[ConsumeRateDocument]
    stacks: str | None
    failure: str | None = None
    """Why the member's state is unknown; null if it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChangeDocument:
    """The new offset of a group in one queue."""

    topic: str
    broker: str
    queue_id: int
    before: int | None
    """The committed offset before; null if there was none."""
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetDocument:
    """`gantry group reset`: the new offsets of a group."""

    group: str
    is_dry_run: bool
    members: int
    queues: list[OffsetChangeDocument] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneDocument:
    """`gantry group clone`: the new offsets of the second group."""

    source: str
    group: str
    is_dry_run: bool
    is_new_group: bool
    """Whether the target group did not exist before; it is then created with the settings of the source."""
    members: int
    queues: list[OffsetChangeDocument] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectConsumeDocument:
    """`gantry group consume`: the result of consuming one message."""

    group: str
    client_id: str
    message_id: str
    result: str | None
    """RocketMQ's result: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, CR_COMMIT, CR_ROLLBACK or CR_RETURN_NULL."""
    remark: str | None
    took_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendDocument:
    """`gantry group resend`: the number of resent dead letters by topic, and the skipped ones."""

    group: str
    is_dry_run: bool
    sent: dict[str, int]
    without_origin: list[str]
    unreadable: list[str]
