"""Turns the records of delayed messages into drafts for their own topics.

A record of a delay level has everything that its copy needs, in the format of the copy: the body, and the properties
including the real topic and queue. So the properties are not parsed: without their seal (the checksum `__CRC32#` at the
end of a record) they are the same bytes, and the five that are needed are searched for in them. Properties that this
broker would not write (a seal in the middle, which RocketMQ leaves there) are parsed.

A damaged record is never copied: its copy would have a valid seal. Pure except for log messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_store_files.queue_units import parse_queue_id
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.hashing import tags_code
from gantry_wire.message import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    LONG,
    MESSAGE_MAGIC_V2,
    RECORD_HEAD,
    RECORD_MIDDLE,
    check_record,
)
from gantry_wire.seal import SEAL_BYTES, has_seal

log = logging.getLogger(__name__)

FindQueue = Callable[[str, int], ConsumeQueue]
"""Returns the destination queue, by topic and queue id."""

_PAIR_END: Final = keys.VALUE_END.encode()


def encode_key(name: str) -> bytes:
    """Return the bytes before the value of a property: the end of the previous pair, the name, the separator."""
    return f"{keys.VALUE_END}{name}{keys.KEY_END}".encode()


_REAL_TOPIC: Final = encode_key(keys.REAL_TOPIC)
_REAL_QUEUE: Final = encode_key(keys.REAL_QUEUE_ID)
_TAGS: Final = encode_key(keys.TAGS)
_UNIQUE: Final = encode_key(keys.UNIQUE_KEY)
_KEYS: Final = encode_key(keys.KEYS)
_STALE_SEAL: Final = encode_key(keys.RECORD_CRC)


class DueMessages(NamedTuple):
    """The due messages in a part of a level's queue."""

    drafts: list[Draft]
    """The copies for their own topics."""

    end: int | None
    """The queue offset after the last processed message, delivered or skipped; None if none is processed."""

    next_ms: int | None
    """When the next message is due; None if it was not read, or is damaged."""


def due_drafts(
    data: bytes, *, delay_ms: int, now_ms: int, find_queue: FindQueue, waited_before: int = 0
) -> DueMessages:
    """Return drafts of the due messages at the start of ``data``.

    Messages at queue offsets before ``waited_before`` have waited long enough by another clock: they are due in any
    case.

    ``data`` holds complete records in order. A damaged record ends the run; at the start of ``data`` it is logged and
    skipped: the message is lost.
    """
    drafts: list[Draft] = []
    known: dict[tuple[bytes, bytes], ConsumeQueue | None] = {}
    position = 0
    end: int | None = None
    while position < len(data):
        check = check_record(data, position)
        if check.fault is not None:
            if end is None:
                lost = _queue_offset(data, position)
                facts = {"queue_offset": lost, "reason": check.fault.value}
                log.error("damaged delayed message; skipping it", extra=facts)
                end = lost + 1
            return DueMessages(drafts, end, None)
        due_ms = store_timestamp(data, position) + delay_ms
        if due_ms > now_ms and _queue_offset(data, position) >= waited_before:
            return DueMessages(drafts, end, due_ms)
        draft = _make_draft(data, position, position + check.size, known, find_queue)
        if draft is not None:
            drafts.append(draft)
        end = _queue_offset(data, position) + 1
        position += check.size
    return DueMessages(drafts, end, None)


def _queue_offset(data: bytes, position: int) -> int:
    """Return the queue offset of the record at ``position``; the reader has compared it with the queue."""
    return int(RECORD_HEAD.unpack_from(data, position)[5])


def store_timestamp(data: bytes, position: int) -> int:
    """Return the store timestamp of the record at ``position``."""
    sys_flag = RECORD_HEAD.unpack_from(data, position)[7]
    start = position + RECORD_HEAD.size + (20 if sys_flag & FLAG_BORN_HOST_V6 else 8)
    return int(LONG.unpack_from(data, start)[0])


def _make_draft(
    data: bytes,
    start: int,
    end: int,
    known: dict[tuple[bytes, bytes], ConsumeQueue | None],
    find_queue: FindQueue,
) -> Draft | None:
    """Return a draft of the intact record ``[start, end)``; None if it has no valid destination."""
    pairs = record_properties(data, start, end)
    queue = find_destination(pairs, known, find_queue)
    if queue is None:
        physical = RECORD_HEAD.unpack_from(data, start)[6]
        log.error("delayed message without valid real topic; skipping it", extra={"offset": physical})
        return None
    return copy_draft(data, start, queue, pairs[1:])


def record_properties(data: bytes, start: int, end: int) -> bytes:
    """Return the properties of the intact record ``[start, end)`` without a seal, after the end of a pair."""
    _, body_end = _body_range(data, start)
    if RECORD_HEAD.unpack_from(data, start)[1] == MESSAGE_MAGIC_V2:
        topic_end = body_end + 2 + int.from_bytes(data[body_end : body_end + 2], "big")
    else:
        topic_end = body_end + 1 + data[body_end]
    return _PAIR_END + remove_seal(data, topic_end + 2, end)


def _body_range(data: bytes, start: int) -> tuple[int, int]:
    """Return where the body of the record at ``start`` begins and ends."""
    middle_start = _middle_start(data, start)
    body_start = middle_start + RECORD_MIDDLE.size
    return body_start, body_start + int(RECORD_MIDDLE.unpack_from(data, middle_start)[2])


def _middle_start(data: bytes, start: int) -> int:
    """Return the position after the hosts of the record at ``start``."""
    sys_flag = RECORD_HEAD.unpack_from(data, start)[7]
    hosts = (20 if sys_flag & FLAG_BORN_HOST_V6 else 8) + (20 if sys_flag & FLAG_STORE_HOST_V6 else 8)
    return start + RECORD_HEAD.size + hosts + 8


def find_destination(
    pairs: bytes, known: dict[tuple[bytes, bytes], ConsumeQueue | None], find_queue: FindQueue
) -> ConsumeQueue | None:
    """Return the real queue that the properties name, and remember it in ``known``; None if they name none."""
    destination = find_value(pairs, _REAL_TOPIC), find_value(pairs, _REAL_QUEUE)
    if destination not in known:
        known[destination] = _find_queue(destination, find_queue)
    return known[destination]


def copy_draft(data: bytes, start: int, queue: ConsumeQueue, properties: bytes) -> Draft:
    """Return a draft of the record at ``start`` for another queue, with these properties."""
    _, _, _, _, flag, _, _, sys_flag, born_ms = RECORD_HEAD.unpack_from(data, start)
    host_start = start + RECORD_HEAD.size
    host_end = host_start + (20 if sys_flag & FLAG_BORN_HOST_V6 else 8)
    reconsume_times, prepared_offset, _ = RECORD_MIDDLE.unpack_from(data, _middle_start(data, start))
    body_start, body_end = _body_range(data, start)
    pairs = _PAIR_END + properties
    tags = find_value(pairs, _TAGS)
    return Draft(
        queue=queue,
        body=data[body_start:body_end],
        properties=properties,
        sys_flag=sys_flag & ~FLAG_STORE_HOST_V6,
        flag=flag,
        born_timestamp_ms=born_ms,
        born_host=data[host_start:host_end],
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        tags_code=tags_code(tags.decode("utf-8", "replace")) if tags else 0,
        delay_ms=0,
        keys=_find_keys(pairs),
    )


def remove_seal(data: bytes, start: int, end: int) -> bytes:
    """Return the properties ``[start, end)`` at the end of a record without any seal."""
    is_sealed = end - start >= SEAL_BYTES and has_seal(data, end)
    properties = data[start : end - SEAL_BYTES if is_sealed else end]
    if _STALE_SEAL not in _PAIR_END + properties:
        return properties
    pairs = keys.parse_properties(properties.decode("utf-8", "replace"))
    pairs.pop(keys.RECORD_CRC, None)
    return keys.encode_properties(pairs)


def find_value(pairs: bytes, mark: bytes) -> bytes:
    """Return the value of a property, of the last one if it is repeated; empty if it is missing."""
    start = pairs.rfind(mark)
    if start < 0:
        return b""
    start += len(mark)
    end = pairs.find(_PAIR_END, start)
    return pairs[start:] if end < 0 else pairs[start:end]


def _find_queue(destination: tuple[bytes, bytes], find_queue: FindQueue) -> ConsumeQueue | None:
    topic, queue_id = (
        destination[0].decode("utf-8", "replace"),
        parse_queue_id(destination[1].decode("utf-8", "replace")),
    )
    if names.topic_fault(topic) is not None or queue_id is None:
        return None
    return find_queue(topic, queue_id)


def _find_keys(pairs: bytes) -> tuple[str, ...]:
    """Return the keys of the copy for the index: the unique id, then the keys."""
    return keys.index_keys(*(find_value(pairs, name).decode("utf-8", "replace") for name in (_UNIQUE, _KEYS)))
