"""The layout of HTTP/2's frames: kinds, flags, settings, codes of errors, and the frames that a server sends.

[ length 3 | kind 1 | flags 1 | stream 4 | payload ]
"""

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first."""
HEADER_BYTES: Final = 9
HEADER: Final = Struct(">IBI")
"""The length and, in the lowest byte, the kind; the flags; the stream, whose highest bit has no meaning."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

FRAME_BYTES_DEFAULT: Final = 16_384
"""The largest payload that every peer accepts, and all that this server accepts."""
FRAME_BYTES_LIMIT: Final = (1 << 24) - 1
WINDOW_DEFAULT: Final = 65_535
"""The window of a stream and of a connection before any setting."""
WINDOW_LIMIT: Final = (1 << 31) - 1
STREAM_ID_MAX: Final = (1 << 31) - 1
PING_BYTES: Final = 8


class Setting(IntEnum):
    """The settings of a connection that this server knows."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """The peer broke the protocol or a limit: the connection ends with this code."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code: Final = code


def make_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    return HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def make_settings(values: dict[Setting, int]) -> bytes:
    """Return the frame with these settings."""
    payload = b"".join(_SETTING.pack(name, value) for name, value in values.items())
    return make_frame(SETTINGS, 0, 0, payload)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the settings of a frame. Raises Http2Error for a payload of another length."""
    if len(payload) % _SETTING.size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"settings of {len(payload)} bytes, expected a multiple of 6")
    return list(_SETTING.iter_unpack(payload))


def make_window_update(stream_id: int, size: int) -> bytes:
    """Return the frame that lets the peer send so many more bytes."""
    return make_frame(WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def make_reset(stream_id: int, code: ErrorCode) -> bytes:
    """Return the frame that ends a stream at once."""
    return make_frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def make_goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    """Return the frame after which the peer opens no stream with a higher id than this."""
    return make_frame(GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode())


def without_padding(payload: bytes) -> bytes:
    """Return the content of a frame that is padded. Raises Http2Error for a padding that is too long."""
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the padding of a frame is longer than the frame")
    return payload[1 : len(payload) - payload[0]]


_SETTING: Final = Struct(">HI")
