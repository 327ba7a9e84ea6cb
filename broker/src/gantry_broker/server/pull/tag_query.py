"""Finds the newest messages of a topic that have a tag: a query by key with the index type `T` of RocketMQ 5.4.

RocketMQ answers it from entries of its key index. Here the units of the consume queues are searched, which hold the
hash of each message's tag. So nothing is written for it, messages are found whichever broker has stored them, and the
files of the index keep their size. A query searches from the newest unit back, one part at a time between other
requests, and up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.queue_table import iterate_queue_ids, serve_others
from gantry_broker.server.core.refusals import Refused
from gantry_broker.store.consume_queue import UNIT, ConsumeQueue
from gantry_broker.store.settings import CONSUME_UNIT_BYTES
from gantry_wire import ResponseCode
from gantry_wire.commands.pull import QueryMessage
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage
from gantry_wire.properties import TAGS

PART_UNITS: Final = 8_192
"""Units that are searched while other requests wait: 160 KiB, about a tenth of a millisecond."""

UNITS_MAX: Final = 10_000_000
"""Limit of the units that one query searches: 190 MiB, of which the disk may have to read all."""

_TAGS_CODE_AT: Final = CONSUME_UNIT_BYTES - 8
"""Where the hash of the tag begins in a unit."""

TOO_MANY: Final = (
    f"no message with this tag is among the newest {UNITS_MAX} of the topic: ask for a time range that begins and ends "
    "earlier"
)
"""The text for a search that has ended at the limit."""


def has_tag(message: StoredMessage, query: QueryMessage) -> bool:
    """Whether a message has the tag itself, not only its hash, and is within the time range."""
    return (
        message.topic == query.topic
        and query.begin_timestamp <= message.store_timestamp_ms <= query.end_timestamp
        and message.properties.get(TAGS) == query.key
    )


async def find_tagged(core: BrokerCore, query: QueryMessage, count_max: int) -> list[int]:
    """Return the physical offsets of messages that may have the tag of a query, the newest first.

    At most ``count_max`` of each queue are found. Raises Refused, also if the limit is reached.
    """
    config = core.topics.find(query.topic)
    count = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
    found: list[int] = []
    searched = 0
    async for queue_ids in iterate_queue_ids(core, count if query.key and count_max else 0):
        for queue_id in queue_ids:
            queue = core.store.queues.get(query.topic, queue_id)
            if queue is not None and searched <= UNITS_MAX:
                offsets, units = await _search(core, queue, query, count_max)
                found += offsets
                searched += units
    if not found and searched > UNITS_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, TOO_MANY)
    return sorted(found, reverse=True)


def _range_of(core: BrokerCore, queue: ConsumeQueue, query: QueryMessage) -> tuple[int, int]:
    """Return the offsets of a queue that can be in the time range; the times of its messages are compared later."""
    first, end = queue.min_offset, queue.readable_end
    times = core.store.times
    if query.begin_timestamp > 0:
        first = max(first, times.offset_by_time(queue.topic, queue.queue_id, query.begin_timestamp))
    if query.end_timestamp < core.clock.wall_ms():
        end = min(end, times.offset_by_time(queue.topic, queue.queue_id, query.end_timestamp, upper=True) + 1)
    return first, end


async def _search(core: BrokerCore, queue: ConsumeQueue, query: QueryMessage, count_max: int) -> tuple[list[int], int]:
    """Return the physical offsets of a queue's units with the hash of the tag, and the number of searched units."""
    first, start = _range_of(core, queue, query)
    found: list[int] = []
    position, pattern = start, tags_code(query.key).to_bytes(8, "big", signed=True)
    file_units = queue.files.file_size // CONSUME_UNIT_BYTES
    while position > first and len(found) < count_max and start - position <= UNITS_MAX:
        begin = max(first, position - PART_UNITS, (position - 1) // file_units * file_units)
        found += islice(_matches(queue.raw(begin, position), pattern), count_max - len(found))
        position = begin
        await serve_others(core)
    return found, start - position


def _matches(raw: bytes, pattern: bytes) -> Iterator[int]:
    """Yield the physical offsets of the units with this hash, the last one first."""
    at = raw.rfind(pattern)
    while at >= 0:
        if at % CONSUME_UNIT_BYTES == _TAGS_CODE_AT:
            yield UNIT.unpack_from(raw, at - _TAGS_CODE_AT)[0]
        at = raw.rfind(pattern, 0, at + len(pattern) - 1)
