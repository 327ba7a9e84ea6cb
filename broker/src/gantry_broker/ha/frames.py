"""The frames of the replication stream between two brokers: encoding and decoding, without a socket.

    slave                                           master
      | PREAMBLE ------------------------------------>  |   differs from RocketMQ's stream, which begins with an offset
      |  <------------------------------------ CHALLENGE |
      | HELLO -----------------------------------------> |   identity, epochs of the log, proof of the shared secret
      |  <--------------------------------- SUMS_REQUEST |   optional: find where the logs diverge
      | SUMS ------------------------------------------> |
      |  <------------- RANGE_REQUEST, answered by RANGE |   optional: the logs differ: damage, or another history?
      |  <--------------------------------- TAIL_REQUEST |   optional: the master is starting, and has lost its end
      | DATA ------------------------------------------> |
      |  <------------------------- WELCOME, or REFUSAL  |   follow from this offset, perhaps after truncating the log
      | READY -----------------------------------------> |   a REFUSAL is still possible: duplicate, or expired
      |  <----------- DATA, HEARTBEAT, TABLE, in any mix |
      | ACK -------------------------------------------> |   received, flushed, a grant
      |  <- RANGE_REQUEST, answered by RANGE, both ways -> |   to repair a damaged record

A frame consists of a head of 12 bytes (the size of the body, its kind, a CRC-32 over both and the body) and the body.
Frequent frames have fixed binary layouts; those of the handshake are JSON with a schema. A peer is not trusted: sizes
are limited by kind before a byte is buffered, and invalid input raises ``StreamBroken``, which closes the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from enum import IntEnum
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.store.identity import Epoch
from gantry_wire.checksum import crc32
from gantry_wire.message import RECORD_BYTES_MAX

PREAMBLE: Final = b"\xffGANTRY\x01"
"""First bytes of a slave. To RocketMQ's master they would be a negative offset, which its slaves never send."""
assert len(PREAMBLE) == 8

HEAD: Final = struct.Struct(">IB3xI")
"""The head of a frame: size of the body, kind, CRC-32."""
HEAD_BYTES: Final = HEAD.size
_SIZE_AND_KIND: Final = struct.Struct(">IB3x")
"""The part of the head that the CRC-32 covers."""
_HASHED_HEAD_BYTES: Final = _SIZE_AND_KIND.size
_unpack_head: Final = HEAD.unpack_from
_DATA: Final = struct.Struct(">qqq")  # offset, epoch, confirmed
_HEARTBEAT: Final = struct.Struct(">qqqqq")  # the fields of Heartbeat
_ACK: Final = struct.Struct(">qqqqi")  # the fields of Ack
_TABLE: Final = struct.Struct(">qB")  # version, length of the name
_RANGE: Final = struct.Struct(">q")  # start

DATA_BYTES_MAX: Final = RECORD_BYTES_MAX
"""Bytes of the log in one frame. A record is never split, so that the largest one must fit.

A frame exceeds 8 MiB only for one record that is larger. Brokers of earlier versions refuse such a frame.
"""

CONTROL_BYTES_MAX: Final = 1 << 20
"""Limit of a JSON frame, in bytes: far more than a HELLO with all its epochs."""

TABLE_BYTES_MAX: Final = 64 << 20
"""Limit of a table, in bytes: enough for offsets of many thousand groups."""

TABLE_NAME_BYTES_MAX: Final = 64
"""Limit of a table's name, in bytes."""

SILENCE_S: Final = 20.0
"""A peer that sends nothing for this time is considered gone: each side sends at least every few seconds."""


class StreamBroken(Exception):
    """The stream cannot continue: a protocol violation, a timeout, or data that is not available.

    The text gives the reason.
    """


class FrameKind(IntEnum):
    """The kind of a frame, as its head has it."""

    CHALLENGE = 1
    """Master: a nonce, which the slave's proof must contain."""
    HELLO = 2
    """Slave: its identity, and the history of its log."""
    WELCOME = 3
    """Master: the slave may follow, from this offset."""
    REFUSAL = 4
    """Master: the slave may not follow, and why."""
    READY = 5
    """Slave: it has done what the welcome demands."""
    SUMS_REQUEST = 6
    """Master: it wants checksums of pieces of the log."""
    SUMS = 7
    TAIL_REQUEST = 8
    """Master: it wants the end of the log, which it has lost."""
    RANGE_REQUEST = 9
    """Either side: it wants records of a range of the log."""
    DATA = 16
    """Records of the log, from the master; in the handshake the lost end, from the slave."""
    HEARTBEAT = 17
    """Master: the positions of its log, and its clock."""
    TABLE = 18
    """Master: a table that a slave needs when it is promoted."""
    ACK = 19
    """Slave: how far it has received and flushed the log, and a grant."""
    RANGE = 20


_ALL_KINDS: Final = frozenset(int(kind) for kind in FrameKind)
_SIZES_MAX: Final[dict[int, int]] = {
    **dict.fromkeys(FrameKind, CONTROL_BYTES_MAX),
    FrameKind.DATA: _DATA.size + DATA_BYTES_MAX,
    FrameKind.HEARTBEAT: _HEARTBEAT.size,
    FrameKind.ACK: _ACK.size,
    FrameKind.RANGE: _RANGE.size + DATA_BYTES_MAX,
    FrameKind.TABLE: _TABLE.size + TABLE_NAME_BYTES_MAX + TABLE_BYTES_MAX,
}
"""The largest body of each kind of frame."""


# -- frames of the handshake -------------------------------------------------------------------------------------------


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """The master's first frame, with a nonce for the slave's proof."""

    nonce: str


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a slave, and the history of its log."""

    cluster: str
    broker_name: str
    broker_id: int
    store_uuid: str
    epochs: list[Epoch]
    """The epoch records of the slave's log."""
    begin: int
    """The first offset of the slave's log."""
    end: int
    """The end of the slave's log."""
    file_bytes: int
    """Size of a log file; it must be the same on both sides."""

    promised_epoch: int
    """Epoch below which the slave has promised to follow no master."""

    is_crash_safe: bool = True
    """Whether what the slave has received survives a crash of its process."""
    address: str = ""
    """Address where clients reach the slave."""

    nonce: str = ""
    """Random text of the slave, which the master's proof must contain."""
    proof: str = ""
    """Proves that the slave knows the shared secret; empty without one."""
    gives_ranges: bool = False
    """Whether the slave answers ``RangeRequest``; older versions do not."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to follow, from ``start`` on."""

    epoch: int
    epochs: list[Epoch]
    """The epoch records of the master's log, which the slave adopts."""
    begin: int
    """The first offset of the master's log."""
    start: int
    """The offset from which the master sends."""
    is_restart: bool = False
    """Whether the slave discards its log and copies the master's from ``start``.

    Its log is empty or has a hole, or all that it has in common with the master's log has expired there.
    """

    cut_to: int | None = None
    """Offset at which the slave truncates its log first; None if it need not (but see ``is_restart``)."""

    grant_ms: int = 0
    """Duration of the grant that each ack should contain, in milliseconds; 0 for none."""

    electable: list[int] = []
    """Broker ids of the slaves that may be promoted after this master."""

    master_id: int = -1
    """Broker id of the master: an election needs it when the master is gone."""

    acks_needed: int = 0
    """Number of slaves the master waits for. A slave's own setting may differ, and counts after its promotion."""

    proof: str = ""
    """Proves that the master knows the shared secret; empty without one."""
    gives_ranges: bool = False
    """Whether the master answers ``RangeRequest``; older versions do not."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a slave may not follow. ``is_final``: a retry does not help; slaves retry nevertheless."""

    reason: str
    """One word for programs, such as ``identity``."""
    text: str
    """The reason as a sentence, for the slave's log and status."""
    is_final: bool = False


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The slave has truncated its log if that was demanded, and has the master's epochs, both durably."""

    start: int


class SumsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the CRC-32 of each piece of ``[start, end)``; the last piece may be shorter."""

    start: int
    end: int
    piece_bytes: int
    """The size of each piece."""


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``SumsRequest``; fewer sums if the log has no such bytes."""

    sums: list[int]


class TailRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the records from ``start`` on, which the master has lost; answered with one DATA frame."""

    start: int
    bytes_max: int


class RangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the records of ``[start, end)``, answered with one ``Range``.

    In a stream they are damaged at the sender. Before WELCOME the master compares them with its own.
    """

    start: int
    end: int


Control = Challenge | Hello | Welcome | Refusal | Ready | SumsRequest | Sums | TailRequest | RangeRequest

_CONTROL: Final[dict[FrameKind, type[Control]]] = {
    FrameKind.CHALLENGE: Challenge,
    FrameKind.HELLO: Hello,
    FrameKind.WELCOME: Welcome,
    FrameKind.REFUSAL: Refusal,
    FrameKind.READY: Ready,
    FrameKind.SUMS_REQUEST: SumsRequest,
    FrameKind.SUMS: Sums,
    FrameKind.TAIL_REQUEST: TailRequest,
    FrameKind.RANGE_REQUEST: RangeRequest,
}
_KINDS: Final = {message: kind for kind, message in _CONTROL.items()}
_encode_json: Final = msgspec.json.Encoder().encode


# -- frames of the stream ----------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """Whole records of the log from ``offset`` on, or the blank record that closes a file."""

    offset: int
    epoch: int
    """The epoch of the master that sends it."""
    confirmed: int
    """Position up to which consumers may read."""

    records: bytes


class Heartbeat(NamedTuple):
    """The master's positions, and its clock, which the slave echoes."""

    epoch: int
    confirmed: int
    wrote: int
    flushed: int
    sent_ms: int
    """The master's boot-time clock when it sent the heartbeat."""


class Ack(NamedTuple):
    """The positions of a slave's log, and its grant."""

    epoch: int
    received: int
    """End of what the slave has received."""
    flushed: int
    """End of what the slave has flushed to its disk."""
    echo_ms: int
    """``sent_ms`` of the last heartbeat."""

    grant_ms: int
    """For this time after the slave sends the ack, no other member is promoted; 0 if it grants nothing.

    The slave may promise a higher epoch at once, but reports the rest of this time, and a promotion waits for it. The
    master counts the time from ``echo_ms``, which is earlier.
    """


class Table(NamedTuple):
    """A document that a slave needs when it is promoted, such as the table of topics.

    ``version`` is the end of the master's log when it sent the document.
    """

    version: int
    name: str
    document: bytes


class Range(NamedTuple):
    """The reply to ``RangeRequest``: records of the requested range."""

    start: int
    records: bytes
    """Whole, verified records of the range from ``start`` on; empty where the replica's are damaged, too.

    Before WELCOME the last one may end after the range.
    """


Message = Control | Data | Heartbeat | Ack | Table | Range


def encode(message: Message) -> bytes:
    """Return one frame. For large ``Data`` use ``data_head``, which does not copy the records."""
    if isinstance(message, Data):
        return data_head(message.offset, message.epoch, message.confirmed, message.records) + message.records
    if isinstance(message, Heartbeat):
        return _frame(FrameKind.HEARTBEAT, _HEARTBEAT.pack(*message))
    if isinstance(message, Ack):
        return _frame(FrameKind.ACK, _ACK.pack(*message))
    if isinstance(message, Range):
        return _frame(FrameKind.RANGE, _RANGE.pack(message.start) + message.records)
    if isinstance(message, Table):
        name = message.name.encode()
        assert len(name) <= TABLE_NAME_BYTES_MAX and len(message.document) <= TABLE_BYTES_MAX, message.name
        return _frame(FrameKind.TABLE, _TABLE.pack(message.version, len(name)) + name + message.document)
    body = _encode_json(message)
    assert len(body) <= CONTROL_BYTES_MAX, type(message)
    return _frame(_KINDS[type(message)], body)


def _frame(kind: FrameKind, body: bytes) -> bytes:
    return HEAD.pack(len(body), kind, crc32(body, crc32(_SIZE_AND_KIND.pack(len(body), kind)))) + body


def data_head(offset: int, epoch: int, confirmed: int, records: bytes) -> bytes:
    """Return the head of a data frame for these records."""
    assert 0 < len(records) <= DATA_BYTES_MAX, len(records)
    size, fields = _DATA.size + len(records), _DATA.pack(offset, epoch, confirmed)
    crc = crc32(records, crc32(fields, crc32(_SIZE_AND_KIND.pack(size, FrameKind.DATA))))
    return HEAD.pack(size, FrameKind.DATA, crc) + fields


@final
class FrameReader:
    """Assembles the bytes of a connection into messages.

    Most reads are whole frames, which are not buffered; only the rest of a read is.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = 0
        """Number of bytes that the next frame needs."""

    @property
    def buffered(self) -> int:
        """Number of bytes that wait for the rest of their frame."""
        return len(self._rest)

    def feed(self, data: bytes, awaited: Container[int] = _ALL_KINDS) -> list[Message]:
        """Return every complete message. Raises ``StreamBroken`` at the first invalid one.

        The rest of a frame is buffered only if its kind is one of ``awaited``: a peer that has not sent its HELLO must
        not make this process buffer 64 MiB of a table.
        """
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._wanted:
                return []
            data = bytes(rest)
            rest.clear()
        messages: list[Message] = []
        start, end = 0, len(data)
        while end - start >= HEAD_BYTES:
            size, number, crc = _unpack_head(data, start)
            size_max = _SIZES_MAX.get(number)
            if size_max is None:
                raise StreamBroken(f"unknown frame kind {number}")
            if size > size_max:
                raise StreamBroken(f"{FrameKind(number).name} of {size} bytes is too large: {size_max} is the limit")
            if number not in awaited and start + HEAD_BYTES + size > end:
                raise StreamBroken(f"unexpected {FrameKind(number).name} of {size} bytes")
            body_start = start + HEAD_BYTES
            body_end = body_start + size
            if body_end > end:
                self._wanted = body_end - start
                break
            body = data[body_start:body_end]
            if crc32(body, crc32(data[start : start + _HASHED_HEAD_BYTES])) != crc:
                raise StreamBroken(f"{FrameKind(number).name} with a wrong checksum")
            messages.append(_decode(number, body))
            start = body_end
        else:
            self._wanted = HEAD_BYTES
        if start < end:
            rest += data[start:]
        return messages


def _decode(number: int, body: bytes) -> Message:
    try:
        if number == FrameKind.DATA:
            offset, epoch, confirmed = _DATA.unpack_from(body)
            return Data(offset, epoch, confirmed, body[_DATA.size :])
        if number == FrameKind.ACK:
            return Ack(*_ACK.unpack(body))
        if number == FrameKind.HEARTBEAT:
            return Heartbeat(*_HEARTBEAT.unpack(body))
        if number == FrameKind.TABLE:
            version, name_bytes = _TABLE.unpack_from(body)
            name_end = _TABLE.size + name_bytes
            if name_end > len(body) or name_bytes > TABLE_NAME_BYTES_MAX:
                raise StreamBroken("a table's name is longer than its frame")
            return Table(version, body[_TABLE.size : name_end].decode(), body[name_end:])
        if number == FrameKind.RANGE:
            (start,) = _RANGE.unpack_from(body)
            return Range(start, body[_RANGE.size :])
        return msgspec.json.decode(body, type=_CONTROL[FrameKind(number)])
    except (struct.error, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as exc:
        raise StreamBroken(f"invalid {FrameKind(number).name}: {exc}") from exc
