"""Requests of a broker to an archive server, which returns messages that the broker's log does not have any more.

They are not RocketMQ's, so their codes are far above its own. The server (`gantry pipeline serve`) listens on a Unix
socket beside the broker.
"""

from enum import IntEnum

import msgspec

from gantry_wire.commands.fields import Fields, Int32, Int64


class ArchiveCode(IntEnum):
    """The operation that a broker asks an archive server for."""

    PULL = 30_001
    """Messages of a queue from an offset on."""

    SEARCH_OFFSET = 30_002
    """The offset at a store time."""

    LIST_RANGES = 30_003
    """The archived range of each queue of a broker."""


class ArchivePull(Fields):
    """Messages of one queue from an offset on, as records.

    The reply has code 0 with messages, and code 20 without: then the next offset is where to continue. Code 19 means
    that the archive has none at or after the offset.
    """

    broker: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    count_max: Int32
    bytes_max: Int32
    """About how many bytes of records the reply may have; it has at least one record."""

    subscription: str | None = None
    """The expression of the filter."""

    expression_type: str | None = None


class ArchivePulled(Fields):
    """The header of the reply to a pull."""

    next_offset: Int64
    count: Int32 = 0
    """The number of records in the body."""


class ArchiveSearch(Fields):
    """The first message of a queue that was stored at or after a time; with UPPER the last one at or before it."""

    broker: str
    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class ArchiveRangesQuery(Fields):
    """The archived range of each queue of a broker.

    The reply is an `ArchivedRanges`; it has no body if the archive is still at ``version``.
    """

    broker: str
    version: str = ""


class ArchivedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The archived offsets ``[begin, end)`` of one queue."""

    queue_id: int
    begin: int
    """The first message that can be read; older ones have expired in the archive."""

    end: int
    """The end of what was archived. The messages before it may be deleted elsewhere."""

    first_time_ms: int
    """The store time of the first message that can be read, or an earlier time of the same file."""

    last_time_ms: int
    """The store time of the last message; 0 if it is not in a file."""


class ArchivedRanges(msgspec.Struct, frozen=True, rename="camel"):
    """What an archive has of one broker."""

    version: str
    """Differs when the archive has changed."""

    topics_pattern: str
    """A regular expression: topics whose whole name matches are to be archived, except for system topics."""

    ranges: dict[str, list[ArchivedRange]] = msgspec.field(default_factory=dict)
    """The ranges by topic."""
