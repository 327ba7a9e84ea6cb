"""Derivation of queue, unit and keys from the bytes of a record: the slow counterpart of the append loop.

It is used when a message is only in the log: on a slave, after a crash, for a store that RocketMQ wrote, and to rebuild
a queue. Its results must equal those of the append loop to the byte; a test compares them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gantry_store_files.queue_units import Unit, is_filler
from gantry_wire.hashing import tags_code
from gantry_wire.message import (
    FLAG_BORN_HOST_V6,
    FLAG_INNER_BATCH,
    FLAG_STORE_HOST_V6,
    INT,
    LONG,
    MESSAGE_MAGIC_V2,
    SHORT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    RecordCheck,
)
from gantry_wire.names import SCHEDULE_TOPIC
from gantry_wire.plain_records import PlainRecord
from gantry_wire.properties import DELAY_LEVEL, INNER_BASE, INNER_NUM, TAGS, message_keys, parse_properties

_HEAD: Final = struct.Struct(">4xi4xi4xq8xi")
"""The first fields of a record: magic, queue id, queue offset, system flag."""
assert _HEAD.size == 40

BATCH_MESSAGES_MAX: Final = 0x7FFF
"""The most messages in one record: RocketMQ stores their number as a short."""

_NUMBER: Final = re.compile(r"-?\d{1,9}")


class RecordFields(NamedTuple):
    """The fields of a record from which its queue unit and its index entries follow."""

    topic: str
    queue_id: int
    queue_offset: int
    is_queued: bool
    """Whether the message has a unit in its queue; prepared and rolled back ones have none."""

    tags_code: int
    """The tags code of the unit: the hash of the tag, or the delivery time."""

    keys: tuple[str, ...]
    """The keys to index: the unique key, then the user's keys."""

    store_timestamp_ms: int
    offsets: int = 1
    """How many queue offsets the record takes: more than one if RocketMQ stored a batch as one record."""


def parse_record_fields(view: memoryview, position: int, size: int, delay_levels_ms: tuple[int, ...]) -> RecordFields:
    """Parse a record that ``check_record`` has found good."""
    magic, queue_id, queue_offset, sys_flag = _HEAD.unpack_from(view, position)
    born_host_end = position + (68 if sys_flag & FLAG_BORN_HOST_V6 else 56)
    body_start = born_host_end + (44 if sys_flag & FLAG_STORE_HOST_V6 else 32)
    timestamp_ms = LONG.unpack_from(view, born_host_end)[0]
    topic_start = body_start + INT.unpack_from(view, body_start - 4)[0]
    if magic == MESSAGE_MAGIC_V2:
        topic_bytes, topic_start = SHORT.unpack_from(view, topic_start)[0], topic_start + 2
    else:
        topic_bytes, topic_start = view[topic_start], topic_start + 1
    topic_end = topic_start + topic_bytes
    topic = str(view[topic_start:topic_end], "utf-8", "replace")
    properties = parse_properties(str(view[topic_end + 2 : position + size], "utf-8", "replace"))
    return RecordFields(
        topic,
        queue_id,
        queue_offset,
        not sys_flag & 0x4,
        _unit_tags_code(topic, properties, timestamp_ms, delay_levels_ms),
        () if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK else message_keys(properties),
        timestamp_ms,
        count_queue_offsets(sys_flag, queue_offset, properties),
    )


def count_queue_offsets(sys_flag: int, queue_offset: int, properties: Mapping[str, str]) -> int:
    """Return how many queue offsets a record takes: the number of messages of a batch in one record, else 1.

    RocketMQ 5 writes such records in topics with ``queue.type=BatchCQ``. The properties must confirm the flag, because
    an earlier Gantry stored the flags of clients unchanged.
    """
    if not sys_flag & FLAG_INNER_BATCH or properties.get(INNER_BASE) != str(queue_offset):
        return 1
    count = properties.get(INNER_NUM, "")
    return int(count) if _NUMBER.fullmatch(count) and 1 <= int(count) <= BATCH_MESSAGES_MAX else 1


def parse_plain_record_fields(record: PlainRecord, delay_levels_ms: tuple[int, ...]) -> RecordFields:
    """Complete the fields of a record that ``plain_records`` has yielded."""
    _, _, topic_bytes, queue_id, queue_offset, timestamp_ms, properties_bytes = record
    topic = topic_bytes.decode("utf-8", "replace")
    properties = parse_properties(properties_bytes.decode("utf-8", "replace"))
    code = _unit_tags_code(topic, properties, timestamp_ms, delay_levels_ms)
    return RecordFields(topic, queue_id, queue_offset, True, code, message_keys(properties), timestamp_ms)


def is_plausible_unit(
    unit: Unit, name: tuple[str, int, int], file_end: int, check: RecordCheck, fields: Callable[[], RecordFields]
) -> bool:
    """Return whether a unit may point to the message with this topic, queue id and queue offset. Used by a start.

    ``file_end`` is the end of the log file to which the unit points. ``check`` is the result of checking the record
    there, and ``fields`` parses it.
    """
    physical, size, _ = unit
    if is_filler(unit):
        return True  # it replaces the unit of a lost message
    if physical + size > file_end:
        return False
    if not check.is_good:
        return True  # the log itself is damaged there, not the queue; reading will report it
    # A unit of zeros points to the first message of the log, which has another size.
    return check.size == size and fields()[:3] == name


def _unit_tags_code(topic: str, properties: dict[str, str], timestamp_ms: int, delay_levels_ms: tuple[int, ...]) -> int:
    level_text = properties.get(DELAY_LEVEL) if topic == SCHEDULE_TOPIC else None
    if level_text is not None and _NUMBER.fullmatch(level_text):
        level = min(int(level_text), len(delay_levels_ms))
        if level > 0:
            return timestamp_ms + delay_levels_ms[level - 1]
    return tags_code(properties.get(TAGS))
