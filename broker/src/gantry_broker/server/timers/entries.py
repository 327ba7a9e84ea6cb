"""Entries of the due files: what the timers keep of a record of the timer topic, in 40 bytes that sort by due time.

    due ms      kind   queue offset   origin       key hash    (zero)   CRC-32
    8 bytes     1      8              8            8           3        4

An entry follows from its record alone. The record at an entry's queue offset decides: an entry that differs from what
its record gives is left over from a part of the log that was truncated, and is ignored.

A *message* waits until it is due. A *recall* cancels the messages with the same key whose origin is before its own, and
that are due within a second after it, since RocketMQ's times are only that precise. A *replaced* entry cancels exactly
one message, at its queue offset, which was stored again before its log file expired; its origin is the queue offset of
that copy. It counts only if that copy is one of the same message (`replaces`): older versions of Gantry have stored the
properties of copies also in messages of clients. Otherwise the origin is the queue offset of the first copy, so that a
copy is cancelled by a recall from before it was made. At one due time, recalls and replaced entries sort first.

The key hash is that of topic and unique id. It is cryptographic, so that no producer can construct a message whose
recall cancels another one.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from gantry_broker.server.core.timer_properties import JAVA_PRECISION_MS
from gantry_broker.server.delay.drafts import encode_key, find_value, record_properties, store_timestamp
from gantry_wire import properties as keys
from gantry_wire.checksum import crc32
from gantry_wire.message import RECORD_HEAD

_PACK: Final = struct.Struct(">QBQQQ3x")
_CHECKED: Final = struct.Struct(">QBQQQ3xI")
ENTRY_BYTES: Final = _CHECKED.size
"""The size of an entry."""
_CRC_POSITION: Final = _PACK.size
_CRC: Final = struct.Struct(">I")
_DUE: Final = struct.Struct(">Q")

RECALL: Final = 0
REPLACED: Final = 1
MESSAGE: Final = 2

JAVA_PRECISION_MAX_MS: Final = 1000
"""The coarsest precision of RocketMQ: a message is due at most this long after its TIMER_OUT_MS."""

NO_KEY: Final = 0
"""The key hash of a message without a unique id, which cannot be recalled."""

_OUT: Final = encode_key(keys.TIMER_OUT_MS)
_DELIVER: Final = encode_key(keys.TIMER_DELIVER_MS)
_DELAY_SECONDS: Final = encode_key(keys.TIMER_DELAY_SECONDS)
_DELAY_MS: Final = encode_key(keys.TIMER_DELAY_MS)
_ROLL_TIMES: Final = encode_key(keys.TIMER_ROLL_TIMES)
_DELETE_KEY: Final = encode_key(keys.TIMER_DELETE_KEY)
_COPY_OF: Final = encode_key(keys.TIMER_COPY_OF)
_UNIQUE: Final = encode_key(keys.UNIQUE_KEY)
_TOPIC: Final = encode_key(keys.REAL_TOPIC)


class Entry(NamedTuple):
    """A decoded entry. Entries sort as their bytes do."""

    due_ms: int
    kind: int
    queue_offset: int
    origin: int
    key_hash: int

    def encode(self) -> bytes:
        """Return the bytes of the entry with its checksum."""
        data = _PACK.pack(*self)
        return data + _CRC.pack(crc32(data))


def decode_entry(data: bytes) -> Entry:
    """Return the entry of these bytes, whose checksum was verified."""
    return Entry(*_PACK.unpack_from(data))


def is_intact(data: bytes) -> bool:
    """Whether the bytes are an entry with a valid checksum."""
    return len(data) == ENTRY_BYTES and crc32(data[:_CRC_POSITION]) == _CRC.unpack_from(data, _CRC_POSITION)[0]


def real_topic(pairs: bytes) -> str:
    """Return the topic of the message with these properties."""
    return find_value(pairs, _TOPIC).decode("utf-8", "replace")


def recall_entry(record: bytes, queue_offset: int, key_hash: int) -> Entry:
    """Return the entry of the recall record at this queue offset for a timer record."""
    out_ms = _number(find_value(record_properties(record, 0, len(record)), _OUT))
    assert out_ms is not None, "the record has an entry, so it has a time"
    return Entry(out_ms + 1, RECALL, queue_offset, queue_offset, key_hash)


def cancels(recall: Entry, message: Entry) -> bool:
    """Whether a recall with the key of a message cancels it."""
    is_earlier = message.origin < recall.origin
    return is_earlier and recall.due_ms <= message.due_ms < recall.due_ms + JAVA_PRECISION_MAX_MS


def replaces(copy: Entry, message: Entry) -> bool:
    """Whether a message is one of the same message as ``copy``: both have one key, first copy and due time.

    The due time of RocketMQ's messages is less precise in copies. Messages without a key need a look at their topics.
    """
    is_same = copy.kind == message.kind == MESSAGE and copy.key_hash == message.key_hash
    is_due_then = message.due_ms <= copy.due_ms < message.due_ms + JAVA_PRECISION_MAX_MS
    return is_same and is_due_then and copy.origin == message.origin


def source_of(entry: Entry) -> int:
    """Return the queue offset of the record from which an entry was made."""
    return entry.origin if entry.kind == REPLACED else entry.queue_offset


def kind_of(data: bytes) -> int:
    """Return the kind of an entry."""
    return data[_DUE.size]


def due_of(data: bytes) -> int:
    """Return the due time of an entry."""
    return int(_DUE.unpack_from(data)[0])


def first_key(due_ms: int) -> bytes:
    """Return the bytes that sort before every entry that is due at this time or later, and after all earlier ones."""
    return _DUE.pack(max(due_ms, 0))


def hash_key(topic: bytes, unique: bytes) -> int:
    """Return the key hash of a message; ``NO_KEY`` without a unique id."""
    if not unique:
        return NO_KEY
    digest = hashlib.blake2b(topic + b"+" + unique, digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def entries_of(data: bytes, start: int, end: int) -> list[bytes]:
    """Return the entries of the intact record ``[start, end)`` of the timer topic, its own first, or none.

    A record without a time, or with an invalid one, cannot be delivered.
    """
    return entries_in(data, start, record_properties(data, start, end))


def entries_in(data: bytes, start: int, pairs: bytes) -> list[bytes]:
    """Return the entries of the record at ``start`` with these properties."""
    due_ms = _due_ms(data, start, pairs)
    if due_ms is None:
        return []
    queue_offset = int(RECORD_HEAD.unpack_from(data, start)[5])
    topic, unique = find_value(pairs, _TOPIC), find_value(pairs, _UNIQUE)
    origin, previous = _copied_offsets(pairs, queue_offset)
    delete_key = find_value(pairs, _DELETE_KEY)
    if delete_key:
        prefix = topic + b"+"
        deleted = delete_key[len(prefix) :] if delete_key.startswith(prefix) else delete_key
        first_ms = int(find_value(pairs, _OUT)) + 1
        return [Entry(first_ms, RECALL, queue_offset, origin, hash_key(topic, deleted)).encode()]
    key_hash = hash_key(topic, unique)
    found = [Entry(due_ms, MESSAGE, queue_offset, origin, key_hash).encode()]
    if previous is not None:
        found.append(Entry(due_ms, REPLACED, previous, queue_offset, NO_KEY).encode())
    elif key_hash != NO_KEY and find_value(pairs, _ROLL_TIMES):
        # RocketMQ has stored the message again, without a reference to the copy before it.
        first_ms = int(find_value(pairs, _OUT)) + 1
        found.append(Entry(first_ms, RECALL, queue_offset, queue_offset, key_hash).encode())
    return found


def _due_ms(data: bytes, start: int, pairs: bytes) -> int | None:
    """Return when a record is due; None if its properties have no valid time.

    Gantry's TIMER_OUT_MS is one millisecond before. RocketMQ's is rounded down, so the other properties are needed.
    """
    out_ms = _number(find_value(pairs, _OUT))
    if out_ms is None:
        return None
    if out_ms % JAVA_PRECISION_MS:
        return out_ms + 1
    latest_ms = out_ms + JAVA_PRECISION_MAX_MS
    delay_s, delay_ms = _number(find_value(pairs, _DELAY_SECONDS)), _number(find_value(pairs, _DELAY_MS))
    if delay_s is None and delay_ms is None:
        exact_ms = _number(find_value(pairs, _DELIVER))
    elif find_value(pairs, _ROLL_TIMES):
        exact_ms = None
    else:
        delay = delay_s * 1000 if delay_s is not None else delay_ms
        exact_ms = store_timestamp(data, start) + (delay or 0)
    return latest_ms if exact_ms is None else min(max(exact_ms, out_ms + 1), latest_ms)


def _copied_offsets(pairs: bytes, queue_offset: int) -> tuple[int, int | None]:
    """Return the queue offsets of the first copy of a record and of the copy before it, or its own and None."""
    origin, _, previous = find_value(pairs, _COPY_OF).partition(b",")
    first, last = _number(origin), _number(previous)
    if first is None or last is None or not first <= last < queue_offset:
        return queue_offset, None
    return first, last


def _number(text: bytes) -> int | None:
    """Return a time or an offset of a property; None if it is missing or invalid, or needs more than 8 bytes."""
    return int(text) if text.isdigit() and len(text) <= 18 else None
