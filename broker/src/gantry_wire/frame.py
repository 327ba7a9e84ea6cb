"""Frames: the boundaries between commands on a connection.

    | total 4 | type 1 | header length 3 | header | body |
      total counts everything after itself; the body is the rest after the header

`split_frames` finds the frames of one buffer. `FrameReader` keeps the incomplete rest for the next read, and is
bounded: a length that is too large is refused before its bytes are awaited.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.limits import DEFAULT_LIMITS, WireLimits

FRAME_HEAD: Final = struct.Struct(">II")
"""The total length, then type and header length in one number."""
assert FRAME_HEAD.size == 8
HEADER_LENGTH_MASK: Final = 0xFFFFFF
"""The three bytes of the second number that are the header's length."""


class Serialization(IntEnum):
    """The encoding of a frame's header."""

    JSON = 0
    ROCKETMQ = 1
    """RocketMQ's compact binary form of headers."""


class Frame(NamedTuple):
    """One frame with its header still encoded."""

    serialization: int
    header: bytes
    body: bytes


def encode_frame(header: bytes, body: bytes = b"", serialization: int = 0) -> bytes:
    """Return the bytes of one frame."""
    if len(header) > HEADER_LENGTH_MASK:
        raise LocalProtocolError(f"a header of {len(header)} bytes does not fit a frame")
    return b"".join((FRAME_HEAD.pack(4 + len(header) + len(body), (serialization << 24) | len(header)), header, body))


def check_frame_head(total: int, type_and_header: int, limits: WireLimits) -> None:
    """Raise RemoteProtocolError if the lengths of a frame are invalid or over a limit, before it is awaited."""
    header_bytes = type_and_header & HEADER_LENGTH_MASK
    if total + 4 > limits.frame_bytes_max:
        raise RemoteProtocolError(f"a frame of {total + 4} bytes exceeds the limit of {limits.frame_bytes_max}")
    if total < 4 or header_bytes > total - 4:
        raise RemoteProtocolError(f"a frame of {total} bytes cannot hold a header of {header_bytes}")
    if header_bytes > limits.header_bytes_max:
        raise RemoteProtocolError(f"a header of {header_bytes} bytes exceeds the limit of {limits.header_bytes_max}")
    if type_and_header >> 24 > Serialization.ROCKETMQ:
        raise RemoteProtocolError(f"unknown header serialization {type_and_header >> 24}")


def split_frames(data: bytes | bytearray, limits: WireLimits) -> Iterator[tuple[Frame, int]]:
    """Yield every whole frame at the start of `data`, each with its end position.

    Raises RemoteProtocolError for an invalid frame, even if only its length has arrived.
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
    """Splits a stream of bytes into frames. Between reads it holds at most one incomplete frame, within the limit."""

    def __init__(self, limits: WireLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._buffer = bytearray()

    def __repr__(self) -> str:
        return f"<FrameReader buffered_bytes={len(self._buffer)}>"

    @property
    def buffered_bytes(self) -> int:
        """Return how many bytes of the incomplete frame have arrived."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add `data` and yield every frame that is now complete. Raises RemoteProtocolError for an invalid frame."""
        buffer = self._buffer
        source: bytes | bytearray = data
        if buffer:
            buffer += data
            source = buffer
        position = 0
        try:
            for frame, position in split_frames(source, self._limits):  # noqa: B007 - used at the end
                yield frame
        finally:
            if source is buffer:
                del buffer[:position]
            else:  # whole frames, the usual case, are not copied into the buffer
                buffer += data[position:]
