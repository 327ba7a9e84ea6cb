"""Replies to administrative requests, in their encoding on the wire."""

from collections.abc import Iterable

import msgspec

from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.clients import Document, MessageQueue, SubscriptionData
from gantry_wire.commands.fields import Int32, Int64


class QueueOffsets(Document):
    """The first offset of one queue and its end: it holds `[min_offset, max_offset)`."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0
    """The store time of the newest message in milliseconds; 0 for an empty queue."""


class TopicStats(Document):
    """The reply to request code 202."""

    offset_table: dict[MessageQueue, QueueOffsets] = msgspec.field(default_factory=dict)


def count_lag(begin: int, end: int, consumed: int) -> int:
    """Return the lag of a group in a queue `[begin, end)` whose next offset to consume is `consumed`.

    Messages that expired before they were consumed do not count, since no consumer can read them.
    """
    return max(0, end - max(begin, consumed))


def longest_wait(waits: Iterable[float | None]) -> float | None:
    """Return the lag in seconds of several queues from those of each that has lag: the longest known wait.

    It is 0 without any, and None if none is known.
    """
    found = list(waits)
    known = [wait for wait in found if wait is not None]
    return max(known) if known else None if found else 0.0


class QueueProgress(Document):
    """The progress of a group in one queue."""

    min_offset: Int64 = 0
    """The offset of the queue's first message. Only Gantry's brokers report it."""
    broker_offset: Int64 = 0
    """The end of the queue."""

    consumer_offset: Int64 = 0
    """The committed offset of the group: the next one to consume."""

    pull_offset: Int64 = 0
    """The offset up to which consumers have received messages."""

    last_timestamp: Int64 = 0
    """The store time of the last consumed message in milliseconds; 0 if it is not known."""

    @property
    def lag(self) -> int:
        """The number of messages that the group has not consumed."""
        return count_lag(self.min_offset, self.broker_offset, self.consumer_offset)


class ConsumeStats(Document):
    """The reply to request code 208."""

    offset_table: dict[MessageQueue, QueueProgress] = msgspec.field(default_factory=dict)
    consume_tps: float = 0.0
    """The messages that the group receives per second."""


class GroupTable(Document):
    """The reply to request code 201."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=dict)


class ConsumerOffsetTable(Document):
    """The reply to request code 43: `topic@group` -> queue -> next offset to consume."""

    offset_table: dict[str, dict[int, Int64]] = msgspec.field(default_factory=dict)


class GroupListing(Document):
    """The reply to request code 300."""

    group_list: list[str] = msgspec.field(default_factory=list)


class ClientConnection(Document):
    """One client that is connected to a broker."""

    client_id: str
    client_addr: str
    """The address from which the client is connected."""

    language: str | None = None
    version: Int32 = 0
    """RocketMQ's number of the client's version."""


class ConsumerConnections(Document):
    """The reply to request code 203."""

    connection_set: list[ClientConnection] = msgspec.field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)
    """The subscription to each topic, by the topic's name."""

    consume_type: str | None = None
    """RocketMQ's name of the way to consume, such as CONSUME_PASSIVELY for push consumers."""

    message_model: str | None = None
    """CLUSTERING, where consumers share the queues, or BROADCASTING."""

    consume_from_where: str | None = None
    """RocketMQ's name of the place where a group without offsets begins."""


class ConsumerIds(Document):
    """The reply to request code 38."""

    consumer_id_list: list[str] = msgspec.field(default_factory=list)


class QueueTimeSpan(Document):
    """Store times of the messages of one queue and of a group's progress, in milliseconds; -1 for none."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = -1
    """The store time of the queue's first message."""

    max_time_stamp: Int64 = -1
    """The store time of the queue's last message."""

    consume_time_stamp: Int64 = -1
    """The store time of the last message that the group has consumed."""

    delay_time: Int64 = 0
    """How long the next message has waited, in milliseconds."""


class ConsumeTimeSpans(Document):
    """The reply to request code 303."""

    consume_time_span_set: list[QueueTimeSpan] = msgspec.field(default_factory=list)
