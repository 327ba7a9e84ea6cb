"""Requests by which an administrator inspects consumer groups and resets offsets, and the requests to consumers."""

import msgspec

from gantry_wire.commands.clients import Document, MessageQueue, SubscriptionData
from gantry_wire.commands.fields import Fields, Int32, Int64

# ------- changing offsets


class ResetOffsets(Fields):
    """Code 222, and code 220 from the broker to the group's consumers: set the group's offset in a topic.

    With a queue and an offset the group continues at that offset. Otherwise, in one queue or in all of them, it
    continues at the first message stored at ``timestamp`` or later, or at the end if ``timestamp`` is negative.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    """Whether offsets may also move forward, where consumers reset themselves; otherwise only back."""

    queue_id: Int32 | None = None
    offset: Int64 | None = None


class ResetOffsetsResult(Document):
    """The body of the reply to code 222 and of request 220: the new offset of each queue."""

    offset_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)


class CloneOffsets(Fields):
    """Code 314: copy the offsets of one group to another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False
    """Whether to copy all topics although the source group has consumers."""


# ------- inspecting


class ConsumeStatsRequest(Fields):
    """Code 208: a group's progress in one topic, in a list of them (``a;b``), or in all."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None

    @property
    def topics(self) -> list[str]:
        """Return the topics of the list."""
        return [topic for topic in (self.topic_list or "").split(";") if topic]


class BrokerConsumeStatsRequest(Fields):
    """Code 317: the progress of all groups, in ordered topics only if ``is_order``."""

    is_order: bool


class TopicOfGroup(Fields):
    """Codes 303 and 345: a topic and a group that consumes it."""

    group: str
    topic: str | None = None


class QueryConsumeQueue(Fields):
    """Code 321: units of a consume queue as they are stored."""

    topic: str
    queue_id: Int32 = 0
    index: Int64 = 0
    """The queue offset of the first unit."""

    count: Int32 = 0
    consumer_group: str | None = None


# ------- requests to a consumer


class ConsumerStatusRequest(Fields):
    """Codes 221 and 223: the offsets of a group's consumers in a topic, as the consumers report them."""

    topic: str
    group: str
    client_addr: str | None = None
    """The client id of one consumer, despite RocketMQ's name for it; None for all consumers."""


class ConsumerStatus(Document):
    """The body of the reply to codes 221 and 223."""

    message_queue_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = msgspec.field(default_factory=dict)


class RunningInfoRequest(Fields):
    """Code 307: the state that a consumer reports about itself."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None
    """Whether the reply should contain stacks."""


class ConsumeDirectly(Fields):
    """Code 309: let one consumer of a group consume a message now, and report the result."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class ProcessQueueInfo(Document):
    """A consumer's state of one queue that is assigned to it."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Int32 = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


class ConsumeStatus(Document):
    """A consumer's statistics of one topic: times in milliseconds, rates per second, over the last minute."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0
    """The number of failed messages in the last hour."""


class ConsumerRunningInfo(Document):
    """The body of the reply to code 307."""

    properties: dict[str, str] = msgspec.field(default_factory=dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    """The state of each assigned queue."""

    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    user_consumer_info: dict[str, str] = msgspec.field(default_factory=dict)
    jstack: str | None = None


class ConsumeResult(Document):
    """The body of the reply to code 309."""

    consume_result: str | None = None
    """``CR_SUCCESS``, ``CR_LATER``, ``CR_ROLLBACK``, ``CR_COMMIT``, ``CR_THROW_EXCEPTION`` or ``CR_RETURN_NULL``."""

    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Int64 = 0
