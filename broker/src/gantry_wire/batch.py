"""Batches: several messages of one topic in one send request.

    | total 4 | magic 4 = 0 | crc 4 = 0 | flag 4 | body length 4 | body | properties length 2 | properties |   repeated

RocketMQ 5 stores a batch for a topic with ``queue.type=BatchCQ`` as the body of one record, which readers take apart.
The lengths come from the network, so each one is checked against the remaining bytes before it is used.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.message import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP, StoredMessage

_HEAD: Final = struct.Struct(">iiiii")
"""Total size, magic, CRC, flag, and length of the body."""
_SHORT: Final = struct.Struct(">h")
ENTRY_BYTES_MIN: Final = _HEAD.size + _SHORT.size


class BatchEntry(NamedTuple):
    """One message of a batch."""

    flag: int
    """A number for use by the application."""

    body: bytes
    properties: bytes
    """The properties in RocketMQ's text form."""


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Return the body of a request that sends `entries` as a batch. Raises LocalProtocolError."""
    parts: list[bytes] = []
    for entry in entries:
        if len(entry.properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(f"properties take {len(entry.properties)} bytes, the format allows 32767")
        total = ENTRY_BYTES_MIN + len(entry.body) + len(entry.properties)
        parts += (_HEAD.pack(total, 0, 0, entry.flag, len(entry.body)), entry.body)
        parts += (_SHORT.pack(len(entry.properties)), entry.properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchEntry]:
    """Return the messages of a batch body. Raises RemoteProtocolError for an inconsistent length or an empty batch."""
    entries: list[BatchEntry] = []
    position = 0
    while position < len(data):
        if len(data) - position < ENTRY_BYTES_MIN:
            raise RemoteProtocolError(f"a batch ends inside a message at byte {position}")
        total, _, _, flag, body_bytes = _HEAD.unpack_from(data, position)
        end = position + total
        body_start = position + _HEAD.size
        body_end = body_start + body_bytes
        if total < ENTRY_BYTES_MIN or end > len(data) or body_bytes < 0 or body_end + _SHORT.size > end:
            raise RemoteProtocolError(f"a batch has a message with invalid lengths at byte {position}")
        (properties_bytes,) = _SHORT.unpack_from(data, body_end)
        if properties_bytes < 0 or body_end + _SHORT.size + properties_bytes != end:
            raise RemoteProtocolError(f"a batch has a message with invalid lengths at byte {position}")
        entries.append(BatchEntry(flag, data[body_start:body_end], data[body_end + _SHORT.size : end]))
        position = end
    if not entries:
        raise RemoteProtocolError("a batch contains no message")
    return entries


def split_record(record: StoredMessage) -> list[StoredMessage]:
    """Return the messages of a record: those of its batch if it is one, else the record itself.

    As with RocketMQ's clients, each message has the hosts and times of the record, a queue offset of its own, and only
    its own properties. Raises RemoteProtocolError for a malformed batch.
    """
    if not record.sys_flag & FLAG_INNER_BATCH or not record.sys_flag & FLAG_NEED_UNWRAP:
        return [record]
    return [
        replace(
            record,
            body=entry.body,
            properties_bytes=entry.properties,
            flag=entry.flag,
            sys_flag=record.sys_flag & ~(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP),
            queue_offset=record.queue_offset + index,
        )
        for index, entry in enumerate(decode_batch(record.body))
    ]
