"""Requests by which clients register and divide queues among themselves.

Their bodies are JSON documents; the structs here have their shapes, with Java's key names.
"""

import msgspec

from gantry_wire.commands.fields import Fields, Int32, Int64
from gantry_wire.filters import EXPRESSION_TAG


class Document(msgspec.Struct, kw_only=True, rename="camel"):
    """The base of JSON bodies. Unknown keys are ignored, as Java ignores them."""


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: Int32


class SubscriptionData(Document):
    """A group's subscription to a topic."""

    topic: str
    sub_string: str | None = None
    """The expression as the application wrote it."""

    tags_set: list[str] = msgspec.field(default_factory=list)
    code_set: list[Int32] = msgspec.field(default_factory=list)
    """The hashes of the tags."""

    sub_version: Int64 = 0
    """When the subscription was made, in milliseconds since 1970; the newest one counts."""

    expression_type: str | None = EXPRESSION_TAG
    class_filter_mode: bool = False


class ProducerData(Document):
    """One producer group of a client."""

    group_name: str


class ConsumerData(Document):
    """One consumer group of a client."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    """CONSUME_PASSIVELY for push consumers, CONSUME_ACTIVELY for others."""

    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    unit_mode: bool = False


class HeartbeatData(Document):
    """The body of code 34, a client's heartbeat."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = msgspec.field(default_factory=list)
    consumer_data_set: list[ConsumerData] = msgspec.field(default_factory=list)
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = msgspec.field(default=False, name="withoutSub")
    """Whether subscriptions are left out, since they are those of the last heartbeat."""


class UnregisterClient(Fields):
    """The request header of code 35, by which a client leaves its groups."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class CheckClientConfig(Document):
    """The body of code 46, which validates a subscription."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumerGroup(Fields):
    """The request header of codes 38, 40 and 203: one group."""

    consumer_group: str
    topic: str | None = None


class LockBatch(Document):
    """The body of codes 41 and 42, which lock and unlock queues."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = msgspec.field(default_factory=list)
    only_this_broker: bool = False
    """Set by a broker of RocketMQ that asks its peers; without effect here."""


class LockBatchResult(Document):
    """The body of the reply to code 41."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")
