"""The stored message record: what lies in a commit log and travels in a pull reply.

    0        4        8        12       16       20            28               36       40
    | total  | magic  | crc    | queue  | flag   | queue offset | physical offset | sysflag| born time ...
    ... | born host 8/20 | store time 8 | store host 8/20 | reconsumed 4 | prepared offset 8
    | body length 4 | body | topic length 1 (v1) or 2 (v2) | topic | properties length 2 | properties |

All integers are big-endian. A record is 91 bytes plus body, topic and properties with IPv4 hosts and a v1 magic.
`check_record` is the gate that recovery, replication and readers share: it believes nothing about the bytes it is
given, terminates for any input, and allocates nothing that a length field asks for.
"""

import ipaddress
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from zlib import crc32

from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.properties import parse_properties

Buffer = bytes | bytearray | memoryview

MESSAGE_MAGIC_V1: Final = -626843481
MESSAGE_MAGIC_V2: Final = -626843477
BLANK_MAGIC: Final = -875286124

FLAG_COMPRESSED: Final = 0x1
FLAG_MULTI_TAGS: Final = 0x2
TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
FLAG_BORN_HOST_V6: Final = 0x10
FLAG_STORE_HOST_V6: Final = 0x20
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

CRC_MASK: Final = 0x7FFFFFFF

RECORD_HEAD: Final = struct.Struct(">iiiiiqqiq")
"""total, magic, body crc, queue id, flag, queue offset, physical offset, sys flag, born timestamp."""
assert RECORD_HEAD.size == 48

RECORD_PREFIX_V4: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
"""RECORD_HEAD, born host, store timestamp, store host, reconsume times, prepared offset, body length; IPv4 hosts."""
assert RECORD_PREFIX_V4.size == 88

RECORD_MIDDLE: Final = struct.Struct(">iqi")
"""reconsume times, prepared offset, body length."""
assert RECORD_MIDDLE.size == 16

BLANK_RECORD: Final = struct.Struct(">ii")
BLANK_BYTES: Final = BLANK_RECORD.size
LONG: Final = struct.Struct(">q")
SHORT: Final = struct.Struct(">h")
INT: Final = struct.Struct(">i")

QUEUE_OFFSET_POSITION: Final = 20
PHYSICAL_OFFSET_POSITION: Final = 28
RECORD_BYTES_MIN: Final = 91


def encode_host(address: str, port: int) -> bytes:
    """A host as records hold it: 4 or 16 address bytes and the port as an int."""
    return ipaddress.ip_address(address).packed + INT.pack(port)


def decode_host(data: Buffer) -> tuple[str, int]:
    """(address, port) of 8 or 20 bytes."""
    raw = bytes(data)
    return str(ipaddress.ip_address(raw[:-4])), int(INT.unpack_from(raw, len(raw) - 4)[0])


def record_size(body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int) -> int:
    """How many bytes a record takes; the topic length decides between v1 and v2."""
    size = RECORD_BYTES_MIN + body_bytes + topic_bytes + properties_bytes
    if topic_bytes > 127:
        size += 1
    if sys_flag & FLAG_BORN_HOST_V6:
        size += 12
    if sys_flag & FLAG_STORE_HOST_V6:
        size += 12
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One message as the log holds it."""

    topic: str
    queue_id: int
    body: bytes
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    store_timestamp_ms: int = 0
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    reconsume_times: int = 0
    prepared_offset: int = 0
    properties_bytes: bytes = b""
    body_crc: int = 0
    """Filled by decoding; encoding computes it."""
    size: int = 0
    """Filled by decoding: the record's length in bytes."""
    _properties: list[dict[str, str]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, str]:
        """The parsed properties (parsed once)."""
        if not self._properties:
            self._properties.append(parse_properties(self.properties_bytes.decode("utf-8", "replace")))
        return self._properties[0]

    @property
    def offset_message_id(self) -> str:
        """The broker's id of this message: where it is stored."""
        return offset_message_id(self.store_host, self.physical_offset)


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Host and physical offset as 32 or 56 upper-case hex digits."""
    return (store_host + LONG.pack(physical_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """(address, port, physical offset) of an offset message id. Raises RemoteProtocolError for anything else."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise RemoteProtocolError(f"{message_id[:64]!r} is not an offset message id")
    address, port = decode_host(raw[:-8])
    return address, port, int(LONG.unpack_from(raw, len(raw) - 8)[0])


def encode_record(message: StoredMessage) -> bytes:
    """The record of `message`, with its CRC. The log's own append packs batches on primitives; both must agree."""
    topic = message.topic.encode()
    body, properties = message.body, message.properties_bytes
    if len(properties) > PROPERTIES_BYTES_MAX or not 0 < len(topic) <= 32767:
        raise LocalProtocolError(f"topic of {len(topic)} or properties of {len(properties)} bytes do not fit a record")
    sys_flag = message.sys_flag & ~(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6)
    sys_flag |= FLAG_BORN_HOST_V6 if len(message.born_host) == 20 else 0
    sys_flag |= FLAG_STORE_HOST_V6 if len(message.store_host) == 20 else 0
    size = record_size(len(body), len(topic), len(properties), sys_flag)
    is_v2 = len(topic) > 127
    return b"".join(
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
            SHORT.pack(len(properties)),
            properties,
        )
    )


class RecordFault(Enum):
    """What `check_record` found in a place where a record should be."""

    END = "zeroes, or fewer bytes than a length field: the log ends here"
    BLANK = "a blank record: go on in the next file"
    MAGIC = "an unknown magic"
    LENGTH = "a length that cannot be"
    OFFSET = "a record of another place"
    CRC = "a body that does not match its CRC"


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """What lies at a position: a good record of `size` bytes (`fault` is None), or why not."""

    fault: RecordFault | None
    size: int = 0
    """Bytes to step over: of the record, or of the blank to the end of its file. 0 where the log ends."""

    @property
    def is_good(self) -> bool:
        return self.fault is None


_END: Final = RecordCheck(RecordFault.END)


def check_record(
    data: Buffer, position: int, *, physical_offset: int | None = None, verify_crc: bool = True
) -> RecordCheck:
    """What lies at `position` of `data`, which holds nothing beyond its end.

    With `physical_offset` the record must claim exactly that place in the log.
    """
    remaining = len(data) - position
    if remaining < BLANK_BYTES:
        return _END
    size, magic = BLANK_RECORD.unpack_from(data, position)
    if size == 0 and magic == 0:
        return _END
    if magic == BLANK_MAGIC:
        return (
            RecordCheck(RecordFault.BLANK, size)
            if BLANK_BYTES <= size <= remaining
            else RecordCheck(RecordFault.LENGTH)
        )
    if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2):
        return RecordCheck(RecordFault.MAGIC)
    if not RECORD_BYTES_MIN <= size <= remaining:
        return RecordCheck(RecordFault.LENGTH)
    if (
        physical_offset is not None
        and LONG.unpack_from(data, position + PHYSICAL_OFFSET_POSITION)[0] != physical_offset
    ):
        return RecordCheck(RecordFault.OFFSET)
    layout = _layout(data, position, size)
    if layout is None:
        return RecordCheck(RecordFault.LENGTH)
    body_start, body_end = layout[0], layout[1]
    if verify_crc and crc32(memoryview(data)[body_start:body_end]) & CRC_MASK != INT.unpack_from(data, position + 8)[0]:
        return RecordCheck(RecordFault.CRC)
    return RecordCheck(None, size)


def _layout(data: Buffer, position: int, size: int) -> tuple[int, int, int, int, int, int] | None:
    """Half-open places of body, topic and properties inside `data`, or None where the inner lengths lie."""
    end = position + size
    magic = INT.unpack_from(data, position + 4)[0]
    sys_flag = INT.unpack_from(data, position + 36)[0]
    body_start = position + 88
    if sys_flag & FLAG_BORN_HOST_V6:
        body_start += 12
    if sys_flag & FLAG_STORE_HOST_V6:
        body_start += 12
    topic_length_bytes = 2 if magic == MESSAGE_MAGIC_V2 else 1
    if body_start + topic_length_bytes + 2 > end:
        return None
    body_end = body_start + INT.unpack_from(data, body_start - 4)[0]
    if not body_start <= body_end <= end - topic_length_bytes - 2:
        return None
    topic_start = body_end + topic_length_bytes
    topic_bytes = SHORT.unpack_from(data, body_end)[0] if topic_length_bytes == 2 else data[body_end]
    topic_end = topic_start + topic_bytes
    if topic_bytes < 0 or topic_end + 2 > end:
        return None
    properties_end = topic_end + 2 + SHORT.unpack_from(data, topic_end)[0]
    if properties_end != end:
        return None
    return body_start, body_end, topic_start, topic_end, topic_end + 2, properties_end


def decode_record(data: Buffer, position: int = 0, *, verify_crc: bool = True) -> StoredMessage:
    """The message at `position`. Raises RemoteProtocolError for anything that is not a whole, good record."""
    check = check_record(data, position, verify_crc=verify_crc)
    if check.fault is not None:
        raise RemoteProtocolError(f"no message at position {position}: {check.fault.value}")
    layout = _layout(data, position, check.size)
    assert layout is not None, "check_record has just walked the same lengths"
    body_start, body_end, topic_start, topic_end, properties_start, properties_end = layout
    head = RECORD_HEAD.unpack_from(data, position)
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
        properties_bytes=bytes(data[properties_start:properties_end]),
        body_crc=head[2],
        size=check.size,
    )


def decode_records(data: Buffer) -> list[StoredMessage]:
    """All messages of a pull reply's body."""
    messages: list[StoredMessage] = []
    position = 0
    while position < len(data):
        message = decode_record(data, position)
        messages.append(message)
        position += message.size
    return messages


def record_store_timestamp(data: Buffer, position: int = 0) -> int:
    """The store timestamp of the record at `position`, without decoding the rest."""
    born_host_v6 = INT.unpack_from(data, position + 36)[0] & FLAG_BORN_HOST_V6
    return int(LONG.unpack_from(data, position + (68 if born_host_v6 else 56))[0])
