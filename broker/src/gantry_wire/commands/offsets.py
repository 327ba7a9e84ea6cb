"""Requests about offsets: of queues, of consumers, and at a point in time."""

from gantry_wire.commands.fields import Fields, Int32, Int64


class QueueAddress(Fields):
    """Codes 30, 31 and 32: one queue."""

    topic: str
    queue_id: Int32


class OffsetResult(Fields):
    """The header of a reply that is one offset."""

    offset: Int64


class TimestampResult(Fields):
    """The header of the reply to code 32."""

    timestamp: Int64


class QueryConsumerOffset(Fields):
    """Code 14: the offset up to which a group has consumed a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    """Whether to answer 0 without a committed offset, if the queue still has its first message."""


class UpdateConsumerOffset(Fields):
    """Code 15: commit the offset up to which a group has consumed a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffset(Fields):
    """Code 29: the offset at a store time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    """LOWER for the first message at or after the time, UPPER for the last at or before it."""
