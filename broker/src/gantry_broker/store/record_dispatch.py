"""Dispatch from the bytes of a record: which queue, which unit, which keys. The slow twin of the append loop.

Used when only the log knows a message: after a crash, for a store that RocketMQ wrote, for a queue that is built again.
Both twins must agree to the byte; a test holds them together.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gantry_wire.hashing import tags_code
from gantry_wire.message import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MESSAGE_MAGIC_V2,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    record_store_timestamp,
)
from gantry_wire.names import SCHEDULE_TOPIC
from gantry_wire.properties import DELAY_LEVEL, KEY_SEPARATOR, KEYS, TAGS, UNIQUE_KEY, parse_properties

_NUMBER: Final = re.compile(r"-?\d{1,9}")


class RecordFacts(NamedTuple):
    """What dispatch needs of a record."""

    topic: str
    queue_id: int
    queue_offset: int
    is_queued: bool
    tags_code: int
    keys: tuple[str, ...]
    store_timestamp_ms: int


def record_facts(view: memoryview, position: int, size: int, delay_levels_ms: tuple[int, ...]) -> RecordFacts:
    """The facts of a record that ``check_record`` has found good."""
    head = view[position : position + size]
    sys_flag = int.from_bytes(head[36:40], "big")
    body_start = 88 + (12 if sys_flag & FLAG_BORN_HOST_V6 else 0) + (12 if sys_flag & FLAG_STORE_HOST_V6 else 0)
    topic_start = body_start + int.from_bytes(head[body_start - 4 : body_start], "big")
    length_bytes = 2 if int.from_bytes(head[4:8], "big", signed=True) == MESSAGE_MAGIC_V2 else 1
    topic_end = topic_start + length_bytes + int.from_bytes(head[topic_start : topic_start + length_bytes], "big")
    topic = bytes(head[topic_start + length_bytes : topic_end]).decode("utf-8", "replace")
    properties = parse_properties(bytes(head[topic_end + 2 :]).decode("utf-8", "replace"))
    timestamp_ms = record_store_timestamp(view, position)
    is_rollback = sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
    return RecordFacts(
        topic,
        int.from_bytes(head[12:16], "big", signed=True),
        int.from_bytes(head[20:28], "big", signed=True),
        not sys_flag & 0x4,
        _unit_tags_code(topic, properties, timestamp_ms, delay_levels_ms),
        () if is_rollback else message_keys(properties),
        timestamp_ms,
    )


def message_keys(properties: dict[str, str]) -> tuple[str, ...]:
    """What a message is found by: its unique key, then every key of its user."""
    unique = properties.get(UNIQUE_KEY)
    keys = [key for key in properties.get(KEYS, "").split(KEY_SEPARATOR) if key]
    return (unique, *keys) if unique else tuple(keys)


def _unit_tags_code(topic: str, properties: dict[str, str], timestamp_ms: int, delay_levels_ms: tuple[int, ...]) -> int:
    level_text = properties.get(DELAY_LEVEL) if topic == SCHEDULE_TOPIC else None
    if level_text is not None and _NUMBER.fullmatch(level_text):
        level = min(int(level_text), len(delay_levels_ms))
        if level > 0:
            return timestamp_ms + delay_levels_ms[level - 1]
    return tags_code(properties.get(TAGS))
