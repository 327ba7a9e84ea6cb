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
    """The committed offset: the next message to consume."""
    fetched_offset: int
    """The offset up to which its members fetched messages; those since `consumed_offset` are in flight."""
    end_offset: int
    """The offset after the last message of the queue."""
    lag: int
    """The number of messages that are not consumed yet."""
    lag_s: float | None
    """The age of the oldest of them in seconds; null if it is unknown. It is an upper limit, the time since the last
    consumed message was stored, if the broker does not report for how long the message at the offset waits."""
    last_consumed_ms: int | None
    """The store time of the last consumed message; null if none was consumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLagDocument:
    """`gantry group list --lag`: the members and the lag of one group."""

    group: str
    members: int | None
    """The number of members that are online; null if no broker has offsets of the group."""
    topics: int
    """The number of topics in which it has committed offsets."""
    lag: int | None
    """The sum over all queues; null if no broker has offsets of the group."""
    lag_s: float | None
    """The age of its oldest message that is not consumed, in seconds; null if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDocument:
    """`gantry group describe`: the progress of one group."""

    group: str
    settings: SubscriptionGroupConfig | None
    """The settings of the group on a broker; null if no broker has any."""

    members: int
    """The number of present members."""

    lag: int
    """The sum over all queues."""

    lag_s: float | None
    """The longest of all queues; null if there is lag and none is known."""

    consumed_per_s: float
    """The number of messages that all members consume in a second."""

    queues: list[GroupQueueDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDocument:
    """One client that is a member of a group now."""

    client_id: str
    address: str
    language: str | None
    version: int
    """The number of the client's RocketMQ version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersOfGroupDocument:
    """`gantry group members`: the present members of a group, and their subscriptions."""

    group: str
    message_model: str | None
    """`CLUSTERING` or `BROADCASTING`; null if no member has reported it."""
    consume_type: str | None
    """RocketMQ's type of the consumer: `CONSUME_PASSIVELY` for push, `CONSUME_ACTIVELY` for pull."""
    consume_from: str | None
    """Where members start in a queue without a committed offset."""
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
    """The number of messages that the member has fetched and not consumed yet."""

    is_locked: bool
    """Whether the member has the broker's lock of the queue, for consumption in order."""

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
    """The average duration of a pull."""

    consume_ms: float
    """The average duration of the handler for one message."""

    failed_in_hour: int
    """The number of messages whose consumption failed in the last hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDocument:
    """`gantry group running`: the state of one member."""

    client_id: str
    properties: dict[str, str]
    """The settings and facts that the client reports about itself."""

    subscriptions: dict[str, str]
    """The filter expression of each topic."""

    queues: list[ProcessQueueDocument]
    topics: list[ConsumeRateDocument]
    stacks: str | None
    """The stacks of its threads; null unless they were requested."""

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
    """The committed offset afterwards, or the planned one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetDocument:
    """`gantry group reset`: the new offsets of a group."""

    group: str
    is_dry_run: bool
    members: int
    """The number of members at the time of the plan."""

    queues: list[OffsetChangeDocument] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneDocument:
    """`gantry group clone`: the new offsets of the second group."""

    source: str
    """The group from which the offsets are taken."""
    group: str
    is_dry_run: bool
    is_new_group: bool
    """Whether the target group did not exist before; it is then created with the settings of the source."""
    members: int
    """The number of members of the target group at the time of the plan."""
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
    """The text that the client gives with the result, such as its exception."""
    took_ms: int
    """The duration of the handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedPartDocument:
    """A part of a group on one broker."""

    broker: str
    what: str
    """`offsets` or `waiting retries`."""
    count: str
    """How many there were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeletedDocument:
    """`gantry group delete`: what was deleted, or would be."""

    group: str
    is_dry_run: bool
    members: int
    """The consumers that are connected; a group is deleted only without any."""
    parts: list[DeletedPartDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendDocument:
    """`gantry group resend` and `gantry message resend`: what became of the messages, or what would be sent."""

    group: str | None
    """The group whose dead letters were sent; null for messages of a topic."""
    topic: str | None
    """The topic whose messages were sent; null for dead letters."""
    is_dry_run: bool
    digest: str | None
    """The digest of a dry run, for --digest; null for an execution."""
    sent: dict[str, int]
    """The number of acknowledged messages by target topic; in a dry run, of those that would be sent."""
    sent_bytes: int
    """The sum of the sizes of their bodies."""
    without_origin: list[str]
    """The ids of skipped messages that name no original topic."""
    unreadable: list[str]
    """The ids of skipped messages that cannot be decompressed or sent unchanged."""
    resent_before: list[str]
    """The ids of skipped messages of which the target topic has a copy."""
    failed: list[str]
    """The ids of messages that were not stored; in a dry run, of those whose target topic accepts no messages."""
    unknown: list[str]
    """The ids of messages that may be stored: the broker did not acknowledge them."""
    not_attempted: list[str]
    """The ids of messages after the failure at which the command stopped."""
    remaining: int
    """Messages that a dry run has not examined, because it lists a limited number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendOutcomeDocument:
    """A line of the file of --outcomes: what became of one message, or in a dry run what would be sent."""

    broker: str
    """The broker of the source, on which the message was read."""
    queue_id: int
    offset: int
    message_id: str
    target: str | None
    """The topic to which it is sent; null if unknown."""
    bytes: int
    """The size of the body that is sent."""
    outcome: str
    """`sent`, `failed`, `unknown` or `skipped`; in a dry run `send`, or why it would not be sent."""
    reason: str
    resent_ms: int | None
    """When the newest copy in the target was stored; null if there is none, or none was searched."""
    new_offset_message_id: str | None = None
    """The id that the broker has assigned to the copy."""
    new_broker: str | None = None
    new_queue_id: int | None = None
    new_offset: int | None = None
