"""Frames: where one command ends and the next begins.

    | total 4 | type 1 | header length 3 | header | body |
      total counts everything after itself; the body is what the header leaves

`split_frames` finds the frames of one buffer. `FrameReader` keeps what is left for the next read, and is bounded: a
length that is too large is refused before its bytes are waited for.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.limits import DEFAULT_LIMITS, WireLimits

FRAME_HEAD: Final = struct.Struct(">II")
assert FRAME_HEAD.size == 8
HEADER_LENGTH_MASK: Final = 0xFFFFFF


class Serialization(IntEnum):
    """How a frame's header is written."""

    JSON = 0
    ROCKETMQ = 1


class Frame(NamedTuple):
    """One frame, its header still to be decoded."""

    serialization: int
    header: bytes
    body: bytes


def encode_frame(header: bytes, body: bytes = b"", serialization: int = 0) -> bytes:
    """The bytes of one frame."""
    if len(header) > HEADER_LENGTH_MASK:
        raise LocalProtocolError(f"a header of {len(header)} bytes does not fit a frame")
    return b"".join((FRAME_HEAD.pack(4 + len(header) + len(body), (serialization << 24) | len(header)), header, body))


def check_frame_head(total: int, type_and_header: int, limits: WireLimits) -> None:
    """Raise RemoteProtocolError for a frame that must not be waited for."""
    header_bytes = type_and_header & HEADER_LENGTH_MASK
    if total + 4 > limits.frame_bytes_max:
        raise RemoteProtocolError(f"a frame of {total + 4} bytes passes the limit of {limits.frame_bytes_max}")
    if total < 4 or header_bytes > total - 4:
        raise RemoteProtocolError(f"a frame of {total} bytes cannot hold a header of {header_bytes}")
    if header_bytes > limits.header_bytes_max:
        raise RemoteProtocolError(f"a header of {header_bytes} bytes passes the limit of {limits.header_bytes_max}")
    if type_and_header >> 24 > Serialization.ROCKETMQ:
        raise RemoteProtocolError(f"unknown header serialization {type_and_header >> 24}")


def split_frames(data: bytes | bytearray, limits: WireLimits) -> Iterator[tuple[Frame, int]]:
    """Every whole frame at the start of `data`, each with where it ends.

    Raises RemoteProtocolError for a bad one, also when only its length is there yet.
    """
    position, size = 0, len(data)
    while size - position >= FRAME_HEAD.size:
        total, type_and_header = FRAME_HEAD.unpack_from(data, position)
        check_frame_head(total, type_and_header, limits)
        end = position + 4 + total
        if end > size:
            return
        header_end = position + FRAME_HEAD.size + (type_and_header & HEADER_LENGTH_MASK)
        header, body = bytes(data[position + FRAME_HEAD.size : header_end]), bytes(data[header_end:end])
        yield Frame(type_and_header >> 24, header, body), end
        position = end
    if size - position >= 4:
        check_frame_head(int.from_bytes(data[position : position + 4], "big"), 0, limits)


class FrameReader:
    """Bytes in, frames out. Holds at most one incomplete frame, and never more than its limit."""

    def __init__(self, limits: WireLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._buffer = bytearray()

    def __repr__(self) -> str:
        return f"<FrameReader waiting={len(self._buffer)}>"

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the frame that has begun and not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take `data` in and yield every frame that is whole now. Raises RemoteProtocolError on a bad one."""
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            for frame, position in split_frames(buffer, self._limits):  # noqa: B007 - used at the end
                yield frame
        finally:
            del buffer[:position]
