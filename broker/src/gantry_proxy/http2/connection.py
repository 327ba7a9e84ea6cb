"""The server side of one HTTP/2 connection, without a socket.

    preface and settings -> frames -> streams, each with a receiver from `accept`
    begin_drain -> new streams are announced as refused -> finish_drain -> they are refused -> the last stream ends

A frame that breaks the protocol ends the connection: `receive` raises Http2Error, and the owner sends its code. What a
client can make the server do without a request of its own, such as answers to pings and the start of calls that are
cancelled at once, is paid from credits; replies earn some, and time does.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from gantry_proxy.http2 import frames
from gantry_proxy.http2.frames import ErrorCode, Http2Error, Setting
from gantry_proxy.http2.hpack import HpackDecoder
from gantry_proxy.http2.streams import Accept, Stream

log = logging.getLogger(__name__)

CREDITS_MAX: Final = 4_000
"""How many frames without a request a client may send at once; a client that stops cancels some hundred calls."""
CREDITS_PER_SECOND: Final = 100
CREDITS_PER_STREAM: Final = 4
"""What a reply earns: some clients send a ping after each of them to measure the line."""
RESET_COST: Final = 2
SETTINGS_COST: Final = 20
"""A change of the window concerns every stream; clients change it a few times in the life of a connection."""
HEADER_BLOCK_FACTOR: Final = 4
"""Headers beyond the limit refuse the call; beyond so many times the limit they end the connection."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """What one connection may cost."""

    streams_max: int
    """How many streams may be open at once."""

    header_bytes_max: int
    """The size of a header block beyond which its call is refused."""

    stream_window: int = 1 << 20
    """How many bytes of a stream a client may send before they are processed."""

    connection_window: int = 16 << 20
    """The same for all streams together."""


@final
class Http2Connection:
    """One connection. Owned by the event loop; `output` is called with what is to be sent."""

    __slots__ = (
        "_accept", "_block", "_block_bytes", "_block_flags", "_block_stream", "_blocked", "_buffer", "_credits",
        "_decoder", "_limits", "_receive_window", "_unreturned", "frame_bytes_max",
        "has_preface", "is_paused", "last_stream_id", "last_stream_max", "pings_pending", "stream_window",
        "streams", "window", "write",
    )  # fmt: skip

    def __init__(self, accept: Accept, output: Callable[[bytes], None], limits: Http2Limits) -> None:
        self._accept: Final = accept
        self.write: Final = output
        """Sends the bytes of whole frames."""
        self._limits: Final = limits
        self._decoder: Final = HpackDecoder()
        self.streams: Final[dict[int, Stream]] = {}
        self.last_stream_id = 0
        self.last_stream_max = frames.STREAM_ID_MAX
        """Streams beyond it are refused: the connection is draining."""

        self.pings_pending = 0
        """How many of our pings were not answered."""

        self._buffer = b""
        """The beginning of a frame that is incomplete."""
        self.has_preface = False
        """Whether the client has begun to speak HTTP/2."""
        self._block: list[bytes] = []
        """The parts of a header block whose end has not arrived."""
        self._block_bytes = 0
        self._block_stream = 0
        self._block_flags = 0
        self._receive_window = limits.connection_window
        self._unreturned = 0
        self._credits = CREDITS_MAX
        # the side of `Outlet`
        self.window = frames.WINDOW_DEFAULT
        self.frame_bytes_max = frames.FRAME_BYTES_DEFAULT
        self.stream_window = frames.WINDOW_DEFAULT
        self.is_paused = False
        self._blocked: Final[dict[int, Stream]] = {}
        """Streams that wait for room on the connection."""

    def __repr__(self) -> str:
        return f"<Http2Connection streams={len(self.streams)} last={self.last_stream_id}>"

    def start(self) -> None:
        """Send the settings of this server."""
        limits = self._limits
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: limits.streams_max,
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
            Setting.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
        }
        update = frames.make_window_update(0, limits.connection_window - frames.WINDOW_DEFAULT)
        self.write(frames.make_settings(settings) + update)

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an incomplete frame and an incomplete header block are kept."""
        return len(self._buffer) + self._block_bytes

    # ------- Outlet

    def wait(self, stream: Stream) -> None:
        self._blocked[stream.id] = stream

    def forget(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._credits = min(self._credits + CREDITS_PER_STREAM, CREDITS_MAX)

    # ------- what the owner calls

    def receive(self, data: bytes) -> None:
        """Process bytes of the client. Raises Http2Error, after which the connection must end."""
        if self._buffer:
            data = self._buffer + data
        position = 0
        if not self.has_preface:
            position = self._read_preface(data)
            if not self.has_preface:
                self._buffer = data
                return
        end = len(data)
        unpack = frames.HEADER.unpack_from
        while end - position >= frames.HEADER_BYTES:
            length_and_kind, flags, stream_id = unpack(data, position)
            length = length_and_kind >> 8
            if length > frames.FRAME_BYTES_DEFAULT:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = position + frames.HEADER_BYTES
            if end - start < length:
                break
            position = start + length
            self._on_frame(length_and_kind & 0xFF, flags, stream_id & frames.STREAM_ID_MAX, data[start:position])
        self._buffer = data[position:] if position < end else b""

    def lose(self) -> None:
        """The connection is lost: every stream ends."""
        for stream in list(self.streams.values()):
            receiver = stream.receiver
            stream.drop()
            receiver.on_reset()

    def pause(self) -> None:
        """The transport has enough to send: data waits."""
        self.is_paused = True

    def resume(self) -> None:
        """The transport has room again."""
        self.is_paused = False
        self._pump_blocked()

    def add_credits(self, seconds: float) -> None:
        """Let the client send more frames without a request, since time has passed."""
        self._credits = min(self._credits + int(seconds * CREDITS_PER_SECOND), CREDITS_MAX)

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        self.pings_pending += 1
        self.write(frames.make_frame(frames.PING, 0, 0, bytes(frames.PING_BYTES)))

    def begin_drain(self) -> None:
        """Ask the client to open new streams elsewhere; those that it opens before it reads this are served."""
        self.write(frames.make_goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR))

    def finish_drain(self) -> None:
        """Refuse further streams, so that the client repeats them elsewhere."""
        self.last_stream_max = self.last_stream_id
        self.write(frames.make_goaway(self.last_stream_id, ErrorCode.NO_ERROR))

    def end(self, code: ErrorCode, text: str) -> None:
        """Send why the connection ends."""
        self.write(frames.make_goaway(self.last_stream_id, code, text))

    # ------- frames

    def _read_preface(self, data: bytes) -> int:
        """Return the position after the preface, if it is complete. Raises Http2Error for another protocol."""
        preface = frames.PREFACE
        if len(data) >= len(preface):
            if data.startswith(preface):
                self.has_preface = True
                return len(preface)
        elif preface.startswith(data):
            return 0
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the client does not speak HTTP/2, which gRPC needs")

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block_stream and (kind != frames.CONTINUATION or stream_id != self._block_stream):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "another frame within a header block")
        if kind == frames.DATA:
            self._on_data(flags, stream_id, payload)
        elif kind == frames.HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == frames.PING:
            self._on_ping(flags, stream_id, payload)
        elif kind == frames.RST_STREAM:
            self._on_reset(stream_id, payload)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, stream_id, payload)
        elif kind == frames.CONTINUATION:
            self._on_continuation(flags, stream_id, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        else:
            self._pay(1)  # PRIORITY, GOAWAY, and kinds that this server does not know, have no effect

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)  # padding counts
        self._receive_window -= size
        if self._receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the client sends more than the connection's window")
        self._unreturned += size
        if self._unreturned * 4 >= self._limits.connection_window:
            self.write(frames.make_window_update(0, self._unreturned))
            self._receive_window += self._unreturned
            self._unreturned = 0
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_remote_closed:
            self._require_known(stream_id)
            self._pay(1)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"the client sends more than the window of {stream_id}")
        data = frames.without_padding(payload) if flags & frames.PADDED else payload
        is_last = bool(flags & frames.END_STREAM)
        if not data and not is_last:
            self._pay(1)
        if size > len(data):
            stream.consume(size - len(data), self._limits.stream_window)
        if is_last:
            stream.end_of_request()
        stream.receiver.on_data(data, is_last=is_last)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id % 2 == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"headers for stream {stream_id}")
        block = frames.without_padding(payload) if flags & frames.PADDED else payload
        if flags & frames.HAS_PRIORITY:
            if len(block) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "headers end within their priority")
            block = block[5:]
        if flags & frames.END_HEADERS:
            self._on_block(flags, stream_id, block)
            return
        self._block, self._block_flags, self._block_stream = [block], flags, stream_id
        self._block_bytes = len(block)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a continuation without headers")
        self._pay(1)
        self._block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > HEADER_BLOCK_FACTOR * self._limits.header_bytes_max:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the headers are too large")
        if flags & frames.END_HEADERS:
            block, begun = b"".join(self._block), self._block_flags
            self._block, self._block_stream, self._block_flags, self._block_bytes = [], 0, 0, 0
            self._on_block(begun, stream_id, block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        fields = self._decoder.decode(block)
        is_last = bool(flags & frames.END_STREAM)
        if stream_id <= self.last_stream_id:
            self._on_trailers(stream_id, is_last=is_last)
            return
        self.last_stream_id = stream_id
        if stream_id > self.last_stream_max or len(self.streams) >= self._limits.streams_max:
            self._pay(RESET_COST)
            self.write(frames.make_reset(stream_id, ErrorCode.REFUSED_STREAM))
            return
        if len(block) > self._limits.header_bytes_max:
            self._pay(RESET_COST)
            self.write(frames.make_reset(stream_id, ErrorCode.ENHANCE_YOUR_CALM))
            return
        stream = Stream(stream_id, self, self._limits.stream_window)
        receiver = self._accept(stream, fields, len(block))
        if stream.is_local_closed:
            return  # it was refused with its headers
        stream.receiver = receiver
        self.streams[stream_id] = stream
        if is_last:
            stream.end_of_request()
            stream.receiver.on_data(b"", is_last=True)

    def _on_trailers(self, stream_id: int, *, is_last: bool) -> None:
        """Handle a second block of headers, which ends a request; gRPC's clients send none."""
        stream = self.streams.get(stream_id)
        self._pay(1)
        if stream is None or stream.is_remote_closed:
            return  # headers of a stream that this server has reset
        if not is_last:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"the trailers of stream {stream_id} do not end it")
        stream.end_of_request()
        stream.receiver.on_data(b"", is_last=True)

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a reset of {len(payload)} bytes")
        self._require_known(stream_id)
        self._pay(RESET_COST)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._pay(CREDITS_PER_STREAM)  # `forget` returns them: a reset earns nothing
            receiver = stream.receiver
            stream.drop()
            receiver.on_reset()

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or (flags & frames.ACK and payload):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "settings for a stream, or with an acknowledgement")
        if flags & frames.ACK:
            return
        self._pay(SETTINGS_COST)
        for name, value in dict(frames.read_settings(payload)).items():  # the last value of each counts
            self._on_setting(name, value)
        self.write(frames.make_frame(frames.SETTINGS, frames.ACK, 0))
        self._pump_blocked()

    def _on_setting(self, name: int, value: int) -> None:
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.WINDOW_LIMIT:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
            difference, self.stream_window = value - self.stream_window, value
            for stream in list(self.streams.values()):
                self._enlarge(stream, difference)
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.FRAME_BYTES_DEFAULT <= value <= frames.FRAME_BYTES_LIMIT:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
            self.frame_bytes_max = value
        elif name == Setting.ENABLE_PUSH and value > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"push is {value}, expected 0 or 1")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) != frames.PING_BYTES:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a ping of {len(payload)} bytes for stream {stream_id}")
        if flags & frames.ACK:
            self.pings_pending = max(0, self.pings_pending - 1)
            return
        self._pay(1)
        self.write(frames.make_frame(frames.PING, frames.ACK, 0, payload))

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"an update of a window of {len(payload)} bytes")
        size = int.from_bytes(payload, "big") & frames.WINDOW_LIMIT
        if size == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a window is enlarged by 0 bytes")
        if stream_id:
            self._require_known(stream_id)
            stream = self.streams.get(stream_id)
            if stream is not None:
                self._enlarge(stream, size)
            return
        self.window += size
        if self.window > frames.WINDOW_LIMIT:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection is too large")
        self._pump_blocked()

    # ------- common

    def _enlarge(self, stream: Stream, size: int) -> None:
        stream.send_window += size
        if stream.send_window > frames.WINDOW_LIMIT:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"the window of stream {stream.id} is too large")
        if stream.queued_bytes:
            self._pump(stream)

    def _pump_blocked(self) -> None:
        """Let every stream that waits for the connection send; what has no room waits behind the others."""
        for stream in list(self._blocked.values()):
            if self.window <= 0 or self.is_paused:
                return
            del self._blocked[stream.id]
            self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        receiver = stream.receiver
        stream.pump()
        if not stream.queued_bytes:
            receiver.on_sent()

    def _require_known(self, stream_id: int) -> None:
        """Raise Http2Error for a frame of a stream that was never opened."""
        if stream_id > self.last_stream_id or stream_id % 2 == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame of stream {stream_id}, which is not open")

    def _pay(self, cost: int) -> None:
        self._credits -= cost
        if self._credits < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the client sends too many frames without a request")
