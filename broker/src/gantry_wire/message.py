"""The stored message record, the form of a message in a commit log and in a pull reply.

    0        4        8        12       16       20            28               36       40
    | total  | magic  | crc    | queue  | flag   | queue offset | physical offset | sysflag| born time ...
    ... | born host 8/20 | store time 8 | store host 8/20 | reconsumed 4 | prepared offset 8
    | body length 4 | body | topic length 1 (v1) or 2 (v2) | topic | properties length 2 | properties |

All integers are big-endian. A record is 91 bytes plus body, topic and properties with IPv4 hosts and a v1 magic.
Recovery, replication and readers validate records with `check_record`, or with `plain_records`, which accepts only what
`check_record` would. Both trust none of the bytes that they are given, terminate for any input, and allocate no memory
by a length field.

The CRC in the head covers the body only; see `seal` for the one that covers the whole record.
"""

import ipaddress
import struct
from enum import Enum
from typing import Any, Final

import msgspec

from gantry_wire.checksum import crc32
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.properties import parse_properties
from gantry_wire.seal import CRC_MASK as CRC_MASK
from gantry_wire.seal import SEAL, SEAL_BYTES, SEAL_REVERSED, SEALED_PROPERTIES_MAX, has_seal, seal, sealable_properties

Buffer = bytes | bytearray | memoryview

MESSAGE_MAGIC_V1: Final = -626843481
"""Marks a record whose topic has a length of one byte."""
MESSAGE_MAGIC_V2: Final = -626843477
"""Marks a record whose topic has a length of two bytes."""
MESSAGE_MAGICS: Final = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)
BLANK_MAGIC: Final = -875286124
"""Marks a blank record, which closes a file or replaces lost data."""

FLAG_COMPRESSED: Final = 0x1
FLAG_MULTI_TAGS: Final = 0x2
TRANSACTION_MASK: Final = 0xC
"""The bits of the system flag with the kind of a transactional message."""
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
FLAG_BORN_HOST_V6: Final = 0x10
FLAG_STORE_HOST_V6: Final = 0x20
FLAG_NEED_UNWRAP: Final = 0x40
"""Set with ``FLAG_INNER_BATCH`` if the reader must take the batch apart."""
FLAG_INNER_BATCH: Final = 0x80
"""Set in a record whose body is a batch, in RocketMQ's format of batch requests. Only RocketMQ writes such records."""
CLEARED_FLAGS: Final = TRANSACTION_MASK | FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6 | FLAG_NEED_UNWRAP | FLAG_INNER_BATCH
"""Flags that a broker does not take from a producer: it sets those of hosts and transactions itself."""
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

RECORD_HEAD: Final = struct.Struct(">iiiiiqqiq")
"""The head: total, magic, body crc, queue id, flag, queue offset, physical offset, sys flag, born timestamp."""
assert RECORD_HEAD.size == 48

RECORD_PREFIX_V4: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
"""All before the body, with IPv4 hosts: RECORD_HEAD, born host, store timestamp, store host, reconsume times, prepared
offset, body length."""
assert RECORD_PREFIX_V4.size == 88

RECORD_MIDDLE: Final = struct.Struct(">iqi")
"""Before the body: reconsume times, prepared offset, body length."""
assert RECORD_MIDDLE.size == 16

_CHECKED_FIELDS: Final = struct.Struct(">iii16xqi")
"""The fields of the head that `check_record` reads: total, magic, body crc, physical offset, sys flag."""

Layout = tuple[int, int, int, int, int]
"""The start and end of the body, the start and end of the topic, and the start of the properties."""

BLANK_RECORD: Final = struct.Struct(">ii")
"""The whole of a blank record that is not zero: its size and its magic."""
BLANK_BYTES: Final = BLANK_RECORD.size
LONG: Final = struct.Struct(">q")
SHORT: Final = struct.Struct(">h")
INT: Final = struct.Struct(">i")

MAGIC_POSITION: Final = 4
PHYSICAL_OFFSET_POSITION: Final = 28
PHYSICAL_OFFSET: Final = struct.Struct(f">{PHYSICAL_OFFSET_POSITION}xq")
"""The physical offset of a record, read from its start."""
RECORD_BYTES_MIN: Final = 91
"""The smallest record: hosts of IPv4, and nothing of variable length, not even a topic."""
RECORD_BYTES_MAX: Final = 64 << 20
"""The maximum size of a record, far above that of any message: RocketMQ accepts 4 MiB by default, and the blank record
at the end of a file is at most seven bytes longer than the record for which there was no space. Readers of RocketMQ's
replication stream, and tools that inspect a store, reject a greater length, so that their memory is bounded.
`check_record` does not: its bytes are in memory already."""


def encode_host(address: str, port: int) -> bytes:
    """Return a host as records hold it: 4 or 16 address bytes and the port as an int."""
    return ipaddress.ip_address(address).packed + INT.pack(port)


def decode_host(data: Buffer) -> tuple[str, int]:
    """Return (address, port) from a host of 8 or 20 bytes."""
    raw = bytes(data)
    return str(ipaddress.ip_address(raw[:-4])), int(INT.unpack_from(raw, len(raw) - 4)[0])


def record_size(body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int) -> int:
    """Return the size of a record in bytes; the topic length decides between v1 and v2."""
    size = RECORD_BYTES_MIN + body_bytes + topic_bytes + properties_bytes
    if topic_bytes > 127:
        size += 1
    if sys_flag & FLAG_BORN_HOST_V6:
        size += 12
    if sys_flag & FLAG_STORE_HOST_V6:
        size += 12
    return size


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One message as the log stores it. A frozen dataclass takes ten times as long to make."""

    topic: str
    queue_id: int
    body: bytes
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    """A number for use by the application."""

    sys_flag: int = 0
    """RocketMQ's flags: compression, transaction, kinds of hosts."""

    born_timestamp_ms: int = 0
    born_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    """The producer's address: 8 bytes (IPv4 and port) or 20 (IPv6 and port)."""

    store_timestamp_ms: int = 0
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    reconsume_times: int = 0
    """How often consumers have sent the message back."""

    prepared_offset: int = 0
    """In the message that ends a transaction, the offset of its half message; else 0."""

    properties_bytes: bytes = b""
    """The properties as the record holds them."""

    body_crc: int = 0
    """The CRC of the body. Decoding sets it, encoding computes it."""
    size: int = 0
    """The record's length in bytes. Decoding sets it."""

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties, which are parsed at the first call."""
        kept: dict[str, Any] = self.__dict__  # a copy of a message has it, too
        found: dict[str, str]
        source, found = kept.get("parsed", (None, {}))
        if source is not self.properties_bytes:
            found = parse_properties(self.properties_bytes.decode("utf-8", "replace"))
            kept["parsed"] = self.properties_bytes, found
        return found

    @property
    def offset_message_id(self) -> str:
        """Return the broker's id of this message, made of its store host and physical offset."""
        return offset_message_id(self.store_host, self.physical_offset)


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the store host and the physical offset as 32 or 56 upper-case hex digits."""
    return (store_host + LONG.pack(physical_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """Return (address, port, physical offset) of an offset message id. Raises RemoteProtocolError."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise RemoteProtocolError(f"{message_id[:64]!r} is not an offset message id")
    address, port = decode_host(raw[:-8])
    return address, port, int(LONG.unpack_from(raw, len(raw) - 8)[0])


def encode_record(message: StoredMessage, *, is_sealed: bool = False) -> bytes:
    """Return the record of `message` with its CRC, and with a seal if `is_sealed` and there is space for one.

    The log's own append encodes batches without objects; both must produce the same bytes.
    """
    topic = message.topic.encode()
    body, properties = message.body, message.properties_bytes
    seal_bytes = 0
    if is_sealed:
        properties, seal_bytes = sealable_properties(properties)
    if len(properties) > PROPERTIES_BYTES_MAX or not 0 < len(topic) <= 32767:
        raise LocalProtocolError(f"topic of {len(topic)} or properties of {len(properties)} bytes do not fit a record")
    sys_flag = message.sys_flag & ~(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6)
    sys_flag |= FLAG_BORN_HOST_V6 if len(message.born_host) == 20 else 0
    sys_flag |= FLAG_STORE_HOST_V6 if len(message.store_host) == 20 else 0
    size = record_size(len(body), len(topic), len(properties) + seal_bytes, sys_flag)
    is_v2 = len(topic) > 127
    record = b"".join(
        (
            RECORD_HEAD.pack(
                size,
                MESSAGE_MAGIC_V2 if is_v2 else MESSAGE_MAGIC_V1,
                crc32(body) & CRC_MASK,
                message.queue_id,
                message.flag,
                message.queue_offset,
                message.physical_offset,
                sys_flag,
                message.born_timestamp_ms,
            ),
            message.born_host,
            LONG.pack(message.store_timestamp_ms),
            message.store_host,
            RECORD_MIDDLE.pack(message.reconsume_times, message.prepared_offset, len(body)),
            body,
            SHORT.pack(len(topic)) if is_v2 else bytes((len(topic),)),
            topic,
            SHORT.pack(len(properties) + seal_bytes),
            properties,
        )
    )
    return record + seal(record) if seal_bytes else record


class RecordFault(Enum):
    """The reason why `check_record` found no good record at a position."""

    END = "zeroes, or fewer than eight bytes: the log ends here"
    BLANK = "a blank record: continue in the next file"
    MAGIC = "an unknown magic"
    LENGTH = "an invalid length"
    OFFSET = "a record with another physical offset"
    CRC = "a body that does not match its CRC"
    SEAL = "a record that does not match its seal, or lacks a required seal"


class RecordCheck(msgspec.Struct, frozen=True, gc=False):
    """The result of `check_record`: a good record of `size` bytes (`fault` is None), or the fault."""

    fault: RecordFault | None
    size: int = 0
    """The number of bytes to skip: the record, or the blank record to the end of its file; 0 for every other fault."""

    @property
    def is_good(self) -> bool:
        return self.fault is None


_END: Final = RecordCheck(RecordFault.END)
_MAGIC: Final = RecordCheck(RecordFault.MAGIC)
_LENGTH: Final = RecordCheck(RecordFault.LENGTH)
_OFFSET: Final = RecordCheck(RecordFault.OFFSET)
_CRC: Final = RecordCheck(RecordFault.CRC)
_UNSEALED: Final = RecordCheck(RecordFault.SEAL)


def check_record(
    data: Buffer, position: int, *, physical_offset: int | None = None, verify_crc: bool = True, is_sealed: bool = False
) -> RecordCheck:
    """Check the bytes at `position` of `data` and return whether they are a good record, or which fault they have.

    With `physical_offset` the record must have exactly that offset in the log. With `is_sealed` it must have a seal
    that matches, unless its properties left no space for one; a seal that is not required is not checked. Without
    `verify_crc` only offsets and lengths are checked.
    """
    remaining = len(data) - position
    if remaining < RECORD_BYTES_MIN:
        return _END if remaining < BLANK_BYTES else _classify_other_bytes(data, position, remaining)
    size, magic, body_crc, own_offset, sys_flag = _CHECKED_FIELDS.unpack_from(data, position)
    if magic != MESSAGE_MAGIC_V1 and magic != MESSAGE_MAGIC_V2:
        return _classify_other_bytes(data, position, remaining)
    if not RECORD_BYTES_MIN <= size <= remaining:
        return _LENGTH
    if physical_offset is not None and own_offset != physical_offset:
        return _OFFSET
    end = position + size
    layout = _layout(data, end, magic, sys_flag, position + 88)
    if layout is None:
        return _LENGTH
    if verify_crc:
        view = data if isinstance(data, memoryview) else memoryview(data)
        properties_start, seal_start = layout[4], end - SEAL_BYTES
        if is_sealed and (end - properties_start <= SEALED_PROPERTIES_MAX or has_seal(view, end)):
            # This is `seal`, inlined to save the call.
            expected = (SEAL_REVERSED % (crc32(view[position:seal_start]) & CRC_MASK))[::-1]
            if seal_start < properties_start or SEAL.unpack_from(data, seal_start)[0] != expected:
                return _UNSEALED
        elif crc32(view[layout[0] : layout[1]]) & CRC_MASK != body_crc:
            return _CRC
    return RecordCheck(None, size)


def _classify_other_bytes(data: Buffer, position: int, remaining: int) -> RecordCheck:
    """Return the result of `check_record` for bytes that are too few for a record, or have another magic."""
    size, magic = BLANK_RECORD.unpack_from(data, position)
    if size == 0 and magic == 0:
        return _END
    if magic == BLANK_MAGIC:
        return RecordCheck(RecordFault.BLANK, size) if BLANK_BYTES <= size <= remaining else _LENGTH
    return _LENGTH if magic in MESSAGE_MAGICS else _MAGIC


def _layout(data: Buffer, end: int, magic: int, sys_flag: int, body_start: int) -> Layout | None:
    """Return the layout of a record that ends at `end`, or None if its inner lengths are inconsistent.

    `body_start` is the start of the body if both hosts are IPv4.
    """
    if sys_flag & FLAG_BORN_HOST_V6:
        body_start += 12
    if sys_flag & FLAG_STORE_HOST_V6:
        body_start += 12
    topic_length_bytes = 2 if magic == MESSAGE_MAGIC_V2 else 1
    body_end_max = end - topic_length_bytes - 2
    if body_start > body_end_max:
        return None
    body_end = body_start + INT.unpack_from(data, body_start - 4)[0]
    if not body_start <= body_end <= body_end_max:
        return None
    topic_bytes = SHORT.unpack_from(data, body_end)[0] if topic_length_bytes == 2 else data[body_end]
    topic_start = body_end + topic_length_bytes
    topic_end = topic_start + topic_bytes
    if topic_bytes < 0 or topic_end + 2 > end or topic_end + 2 + SHORT.unpack_from(data, topic_end)[0] != end:
        return None
    return body_start, body_end, topic_start, topic_end, topic_end + 2


def stored_properties(data: Buffer, position: int) -> str | None:
    """Return the stored properties of the record at `position`, or None if its lengths are inconsistent.

    The caller has checked that the record's total size is within `data`. Nothing else is trusted, and no checksum is
    verified.
    """
    size, magic, _, _, sys_flag = _CHECKED_FIELDS.unpack_from(data, position)
    layout = _layout(data, position + size, magic, sys_flag, position + 88)
    return None if layout is None else str(data[layout[4] : position + size], "utf-8", "replace")


def decode_record(data: Buffer, position: int = 0, *, verify_crc: bool = True) -> StoredMessage:
    """Return the message at `position`. Raises RemoteProtocolError unless a whole, good record is there."""
    check = check_record(data, position, verify_crc=verify_crc)
    if check.fault is not None:
        raise RemoteProtocolError(f"no message at position {position}: {check.fault.value}")
    head = RECORD_HEAD.unpack_from(data, position)
    end = position + check.size
    layout = _layout(data, end, head[1], head[7], position + 88)
    assert layout is not None, "check_record has already verified the same lengths"
    body_start, body_end, topic_start, topic_end, properties_start = layout
    born_host_bytes = 20 if head[7] & FLAG_BORN_HOST_V6 else 8
    store_host_bytes = 20 if head[7] & FLAG_STORE_HOST_V6 else 8
    store_time_start = position + RECORD_HEAD.size + born_host_bytes
    store_host_start = store_time_start + 8
    reconsume_times, prepared_offset, _ = RECORD_MIDDLE.unpack_from(data, store_host_start + store_host_bytes)
    return StoredMessage(
        topic=bytes(data[topic_start:topic_end]).decode("utf-8", "replace"),
        queue_id=head[3],
        body=bytes(data[body_start:body_end]),
        queue_offset=head[5],
        physical_offset=head[6],
        flag=head[4],
        sys_flag=head[7],
        born_timestamp_ms=head[8],
        born_host=bytes(data[position + RECORD_HEAD.size : store_time_start]),
        store_timestamp_ms=LONG.unpack_from(data, store_time_start)[0],
        store_host=bytes(data[store_host_start : store_host_start + store_host_bytes]),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        properties_bytes=bytes(data[properties_start:end]),
        body_crc=head[2],
        size=check.size,
    )


def decode_records(data: Buffer) -> list[StoredMessage]:
    """Return all messages in the body of a pull reply."""
    messages: list[StoredMessage] = []
    position = 0
    while position < len(data):
        message = decode_record(data, position)
        messages.append(message)
        position += message.size
    return messages


def record_store_timestamp(data: Buffer, position: int = 0) -> int:
    """Return the store timestamp of the record at `position`, without decoding the rest."""
    born_host_v6 = INT.unpack_from(data, position + 36)[0] & FLAG_BORN_HOST_V6
    return int(LONG.unpack_from(data, position + (68 if born_host_v6 else 56))[0])
