"""A client of HTTP/2 in memory: frames in, frames out, and receivers that record what they get."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantry_proxy.http2 import frames
from gantry_proxy.http2.connection import Http2Connection, Http2Limits
from gantry_proxy.http2.frames import Setting, make_frame, make_settings
from gantry_proxy.http2.hpack import Field, encode
from gantry_proxy.http2.streams import Stream

LIMITS = Http2Limits(streams_max=4, header_bytes_max=1_000, stream_window=70_000, connection_window=200_000)
POST = encode([(b":method", b"POST"), (b":path", b"/service/method")])


@dataclass
class Recorder:
    """A receiver that remembers everything."""

    stream: Stream
    fields: list[Field]
    data: bytes = b""
    is_complete: bool = False
    resets: int = 0
    sent: int = 0

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        self.data += data
        self.is_complete = self.is_complete or is_last

    def on_reset(self) -> None:
        self.resets += 1

    def on_sent(self) -> None:
        self.sent += 1


@dataclass(frozen=True)
class Frame:
    """One frame that the server sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def split(data: bytes) -> list[Frame]:
    """Return the frames of an output."""
    found = []
    while data:
        length_and_kind, flags, stream_id = frames.HEADER.unpack_from(data)
        end = frames.HEADER_BYTES + (length_and_kind >> 8)
        found.append(Frame(length_and_kind & 0xFF, flags, stream_id, data[frames.HEADER_BYTES : end]))
        data = data[end:]
    return found


@dataclass
class Wire:
    """One connection, from the side of the client."""

    limits: Http2Limits = LIMITS
    received: dict[int, Recorder] = field(default_factory=dict)
    output: bytes = b""

    def __post_init__(self) -> None:
        self.server = Http2Connection(self._accept, self._add, self.limits)
        self.server.start()

    def _accept(self, stream: Stream, fields: list[Field], _size: int) -> Recorder:
        self.received[stream.id] = Recorder(stream, fields)
        return self.received[stream.id]

    def _add(self, data: bytes) -> None:
        self.output += data

    def take(self) -> list[Frame]:
        """Return the frames that the server has sent since the last call."""
        data, self.output = self.output, b""
        return split(data)

    def begin(self, settings: dict[Setting, int] | None = None) -> None:
        """Send what a client sends first, and drop what the server answers."""
        self.server.receive(frames.PREFACE + make_settings(settings or {}))
        self.take()

    def request(self, stream_id: int, data: bytes = b"body", *, is_last: bool = True) -> Recorder:
        """Send a whole request, or its beginning."""
        self.headers(stream_id)
        self.data(stream_id, data, is_last=is_last)
        return self.received[stream_id]

    def headers(self, stream_id: int, block: bytes = POST, flags: int = frames.END_HEADERS) -> None:
        self.send(frames.HEADERS, flags, stream_id, block)

    def data(self, stream_id: int, data: bytes, *, is_last: bool = False) -> None:
        self.send(frames.DATA, frames.END_STREAM if is_last else 0, stream_id, data)

    def window(self, stream_id: int, size: int) -> None:
        self.server.receive(frames.make_window_update(stream_id, size))

    def send(self, kind: int, flags: int, stream_id: int, payload: bytes = b"") -> None:
        self.server.receive(make_frame(kind, flags, stream_id, payload))


def data_bytes(found: list[Frame], stream_id: int) -> int:
    """Return how many bytes of data a stream got."""
    return sum(len(frame.payload) for frame in found if (frame.kind, frame.stream_id) == (frames.DATA, stream_id))
