"""What two brokers say to each other on the replication port: bytes to meaning and back, without a socket.

    slave                                           master
      | PREAMBLE ------------------------------------>  |   differs from RocketMQ's stream, which begins with an offset
      |  <------------------------------------ CHALLENGE |
      | HELLO -----------------------------------------> |   who I am, what my log is, proof of the shared secret
      |  <------------------------------------- ASK_SUMS |   perhaps: where do our logs part?
      | SUMS ------------------------------------------> |
      |  <------------------------------------- ASK_TAIL |   perhaps: the master starts, and has lost its end
      | DATA ------------------------------------------> |
      |  <------------------------- WELCOME, or REFUSAL  |   follow from here, perhaps after cutting
      | READY -----------------------------------------> |
      |  <---------------- DATA, BEAT, TABLE, in any mix |
      | ACK -------------------------------------------> |   received, flushed, a grant
      |  <---- ASK_RANGE, answered by RANGE, either way --> |   a record is damaged: give me yours

A frame is a head of 12 bytes (the size of the rest, its kind, a CRC-32 over both and the rest) and the rest. What is
sent a thousand times a second is packed by hand; what is sent once is JSON with a schema. A peer is believed nothing:
sizes are bounded by kind before a byte of them is buffered, and anything that cannot be raises ``StreamBroken``, upon
which the connection is closed.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from enum import IntEnum
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.store.identity import Epoch
from gantry_wire.checksum import crc32

PREAMBLE: Final = b"\xffGANTRY\x01"
"""As RocketMQ's first message it would be an offset below zero, which no slave of it sends."""
assert len(PREAMBLE) == 8

HEAD: Final = struct.Struct(">IB3xI")
HEAD_BYTES: Final = HEAD.size
_SIZE_AND_KIND: Final = struct.Struct(">IB3x")
_HASHED_HEAD_BYTES: Final = _SIZE_AND_KIND.size
_unpack_head: Final = HEAD.unpack_from
_DATA: Final = struct.Struct(">qqq")
_BEAT: Final = struct.Struct(">qqqqq")
_ACK: Final = struct.Struct(">qqqqi")
_TABLE: Final = struct.Struct(">qB")
_RANGE: Final = struct.Struct(">q")

DATA_BYTES_MAX: Final = 8 << 20
"""Of the log in one frame. A record may be as large as its body's limit, 4 MiB, and is never split."""
CONTROL_BYTES_MAX: Final = 1 << 20
TABLE_BYTES_MAX: Final = 64 << 20
TABLE_NAME_BYTES_MAX: Final = 64

SILENCE_S: Final = 20.0
"""A peer that sends nothing for so long is gone: each side sends at least every few seconds."""


class StreamBroken(Exception):
    """The peer does not speak this protocol, or not well. Says what was wrong."""


class FrameKind(IntEnum):
    """What a frame is."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSAL = 4
    READY = 5
    ASK_SUMS = 6
    SUMS = 7
    ASK_TAIL = 8
    ASK_RANGE = 9
    DATA = 16
    BEAT = 17
    TABLE = 18
    ACK = 19
    RANGE = 20


_ALL_KINDS: Final = frozenset(int(kind) for kind in FrameKind)
_SIZES_MAX: Final[dict[int, int]] = {
    **dict.fromkeys(FrameKind, CONTROL_BYTES_MAX),
    FrameKind.DATA: _DATA.size + DATA_BYTES_MAX,
    FrameKind.BEAT: _BEAT.size,
    FrameKind.ACK: _ACK.size,
    FrameKind.RANGE: _RANGE.size + DATA_BYTES_MAX,
    FrameKind.TABLE: _TABLE.size + TABLE_NAME_BYTES_MAX + TABLE_BYTES_MAX,
}


# -- once in a connection ----------------------------------------------------------------------------------------------


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """The master's first word."""

    nonce: str


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who the slave is, and what its log is."""

    cluster: str
    broker_name: str
    broker_id: int
    store_uuid: str
    epochs: list[Epoch]
    begin: int
    end: int
    file_bytes: int
    """Size of a file of the log; both must have the same."""

    promised_epoch: int
    """It has promised to follow no master below it."""

    is_crash_safe: bool = True
    address: str = ""
    """Where its clients find it."""

    nonce: str = ""
    proof: str = ""
    gives_ranges: bool = False
    """Whether it answers ``AskRange``; older ones do not know it."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """Follow, from ``start`` on."""

    epoch: int
    epochs: list[Epoch]
    begin: int
    start: int
    is_restart: bool = False
    """Whether all of the slave's log goes first: it ends where the master's has not even begun any more."""

    cut_to: int | None = None
    """To where the slave cuts its log first."""

    grant_ms: int = 0
    """For how long a grant is wanted with each ack; 0 for none."""

    electable: list[int] = []
    """The slaves that may be promoted after this master, by their numbers, ..."""

    master_id: int = -1
    """... and its own: an election asks the slaves for both when the master is gone."""

    acks_needed: int = 0
    """How many slaves it waits for. A slave may be told otherwise for the day on which it is a master itself."""

    proof: str = ""
    gives_ranges: bool = False
    """Whether it answers ``AskRange``; older ones do not know it."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why not, and whether trying again may help."""

    reason: str
    text: str
    is_final: bool = False


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The slave has cut what it had to, durably, and has the master's epochs on its disk."""

    start: int


class AskSums(msgspec.Struct, frozen=True, kw_only=True):
    """The CRC-32 of each piece of so many bytes in ``[start, end)``; the last may be shorter."""

    start: int
    end: int
    piece_bytes: int


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; fewer than asked for if the log has no such bytes."""

    sums: list[int]


class AskTail(msgspec.Struct, frozen=True, kw_only=True):
    """Whole records from ``start`` on, in one frame of data: the master has lost them."""

    start: int
    bytes_max: int


class AskRange(msgspec.Struct, frozen=True, kw_only=True):
    """Records of ``[start, end)``, which are damaged where this comes from. Answered with one ``Range``."""

    start: int
    end: int


Control = Challenge | Hello | Welcome | Refusal | Ready | AskSums | Sums | AskTail | AskRange

_CONTROL: Final[dict[FrameKind, type[Control]]] = {
    FrameKind.CHALLENGE: Challenge,
    FrameKind.HELLO: Hello,
    FrameKind.WELCOME: Welcome,
    FrameKind.REFUSAL: Refusal,
    FrameKind.READY: Ready,
    FrameKind.ASK_SUMS: AskSums,
    FrameKind.SUMS: Sums,
    FrameKind.ASK_TAIL: AskTail,
    FrameKind.ASK_RANGE: AskRange,
}
_KINDS: Final = {message: kind for kind, message in _CONTROL.items()}
_encode_json: Final = msgspec.json.Encoder().encode


# -- all the time ------------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """Whole records, or the blank that closes a file, of the log from ``offset`` on."""

    offset: int
    epoch: int
    confirmed: int
    """How far consumers may see."""

    records: bytes


class Beat(NamedTuple):
    """The master lives: where it is, and its clock, to be sent back."""

    epoch: int
    confirmed: int
    wrote: int
    flushed: int
    sent_ms: int


class Ack(NamedTuple):
    """How far the slave is."""

    epoch: int
    received: int
    flushed: int
    echo_ms: int
    """``sent_ms`` of the last beat."""

    grant_ms: int
    """From its receipt on the slave promises no higher epoch for so long; 0 if it grants nothing."""


class Table(NamedTuple):
    """A document that a slave needs when it is promoted."""

    version: int
    name: str
    document: bytes


class Range(NamedTuple):
    """The answer to ``AskRange``."""

    start: int
    records: bytes
    """Whole, verified records from ``start`` on, not beyond what was asked for; empty where they are damaged, too."""


Message = Control | Data | Beat | Ack | Table | Range


def encode(message: Message) -> bytes:
    """One frame. Of ``Data`` use ``data_head`` where the records are large."""
    if isinstance(message, Data):
        return data_head(message.offset, message.epoch, message.confirmed, message.records) + message.records
    if isinstance(message, Beat):
        return _frame(FrameKind.BEAT, _BEAT.pack(*message))
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
    """What goes before these bytes of the log."""
    assert 0 < len(records) <= DATA_BYTES_MAX, len(records)
    size, place = _DATA.size + len(records), _DATA.pack(offset, epoch, confirmed)
    crc = crc32(records, crc32(place, crc32(_SIZE_AND_KIND.pack(size, FrameKind.DATA))))
    return HEAD.pack(size, FrameKind.DATA, crc) + place


@final
class FrameReader:
    """Puts the bytes of a connection together to messages.

    Most reads are whole frames, and those are taken where they lie; only what a read leaves over is kept.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = 0
        """How many bytes it takes to go on."""

    @property
    def buffered(self) -> int:
        """How many bytes wait for the rest of their frame."""
        return len(self._rest)

    def feed(self, data: bytes, awaited: Container[int] = _ALL_KINDS) -> list[Message]:
        """Every message that is whole now. Raises ``StreamBroken`` at the first that cannot be.

        The rest of a frame is waited for only if its kind is one of ``awaited``: a peer that has not sent its HELLO
        must not have 64 MiB of a table kept for it.
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
                raise StreamBroken(f"there is no frame of kind {number}")
            if size > size_max:
                raise StreamBroken(f"a {FrameKind(number).name} of {size} bytes")
            if number not in awaited and start + HEAD_BYTES + size > end:
                raise StreamBroken(f"a {FrameKind(number).name} of {size} bytes, which is not its turn now")
            body_start = start + HEAD_BYTES
            body_end = body_start + size
            if body_end > end:
                self._wanted = body_end - start
                break
            body = data[body_start:body_end]
            if crc32(body, crc32(data[start : start + _HASHED_HEAD_BYTES])) != crc:
                raise StreamBroken(f"a {FrameKind(number).name} that was changed on its way")
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
        if number == FrameKind.BEAT:
            return Beat(*_BEAT.unpack(body))
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
        raise StreamBroken(f"a {FrameKind(number).name} that is none: {exc}") from exc
