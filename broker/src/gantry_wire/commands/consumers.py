"""Requests by which an administrator looks at consumer groups and moves them, and what is asked of consumers for it."""

import msgspec

from gantry_wire.commands.clients import Document, MessageQueue, SubscriptionData
from gantry_wire.commands.fields import Fields, Int32, Int64

# ------- moving


class ResetOffsets(Fields):
    """Code 222, and what a broker makes of it for members, 220: where a group goes on in a topic.

    With a queue and an offset it goes on there; with a queue alone, or with none, at the first message stored at
    ``timestamp`` or later, at the end if that is negative.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class ResetOffsetsResult(Document):
    """The reply to code 222, and the body of 220: where the group goes on."""

    offset_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)


class CloneOffsets(Fields):
    """Code 314: one group goes on where another one is."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


# ------- looking


class ConsumeStatsRequest(Fields):
    """Code 208: how far a group is, in one topic, in a list of them (``a;b``), or in all."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None

    @property
    def topics(self) -> list[str]:
        """Those of the list."""
        return [topic for topic in (self.topic_list or "").split(";") if topic]


class BrokerConsumeStatsRequest(Fields):
    """Code 317: how far all groups are; of ordered topics only, if so."""

    is_order: bool


class TopicOfGroup(Fields):
    """Codes 303 and 345: a topic and a group that consumes it."""

    group: str
    topic: str | None = None


class QueryConsumeQueue(Fields):
    """Code 321: units of a consume queue as they lie there."""

    topic: str
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


# ------- asking a member


class ConsumerStatusRequest(Fields):
    """Codes 221 and 223: how far members of a group are in a topic, in their own view; of one member if it is named."""

    topic: str
    group: str
    client_addr: str | None = None
    """A client id, whatever RocketMQ calls it."""


class ConsumerStatus(Document):
    """The reply to codes 221 and 223."""

    message_queue_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = msgspec.field(default_factory=dict)


class RunningInfoRequest(Fields):
    """Code 307: what a member says of itself."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeDirectly(Fields):
    """Code 309: a member shall consume one message now, and say how that went."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class ProcessQueueInfo(Document):
    """What a member has in hand of one queue."""

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
    """How a member gets on with one topic; times in milliseconds, rates a second, over the last minute."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0
    """Within the last hour."""


class ConsumerRunningInfo(Document):
    """The reply to code 307."""

    properties: dict[str, str] = msgspec.field(default_factory=dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    user_consumer_info: dict[str, str] = msgspec.field(default_factory=dict)
    jstack: str | None = None


class ConsumeResult(Document):
    """The reply to code 309."""

    consume_result: str | None = None
    """``CR_SUCCESS``, ``CR_LATER``, ``CR_ROLLBACK``, ``CR_COMMIT``, ``CR_THROW_EXCEPTION`` or ``CR_RETURN_NULL``."""

    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Int64 = 0
