"""One stream of a connection: a request of the client and its reply, with the windows of both directions.

receiving   headers -> data ... -> end, or a reset            the window limits what the client may send ahead
sending     headers -> messages ... -> end, or a reset        what the client's window does not allow waits here

both ends -> the stream is forgotten
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from gantry_proxy.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADERS,
    ErrorCode,
    make_reset,
    make_window_update,
)
from gantry_proxy.http2.hpack import Field


class Receiver(Protocol):
    """Gets what arrives on one stream. Its methods must not raise."""

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Accept bytes of the request; with ``is_last`` the request is complete."""

    def on_reset(self) -> None:
        """The stream is over: the client has reset it, or the connection is lost."""

    def on_sent(self) -> None:
        """All bytes that waited for the client were passed to the transport."""


@final
class _Ignored:
    """Does nothing with what arrives."""

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        pass

    def on_reset(self) -> None:
        pass

    def on_sent(self) -> None:
        pass


IGNORED: Final = _Ignored()
"""The receiver of a stream that is over, or that was refused with its headers."""


class Outlet(Protocol):
    """The sending side of a connection, which all of its streams share."""

    window: int
    """How many bytes the client accepts on the connection."""

    frame_bytes_max: int
    """The largest payload of a frame that the client accepts."""

    stream_window: int
    """The window of a new stream, by the client's settings."""

    is_paused: bool
    """Whether the transport has enough to send."""

    def write(self, data: bytes) -> None:
        """Send the bytes of whole frames."""

    def wait(self, stream: "Stream") -> None:
        """Call `pump` of a stream when the connection has room again."""

    def forget(self, stream: "Stream") -> None:
        """Remove a stream that is over from the connection."""


Accept = Callable[["Stream", list[Field], int], Receiver]
"""Returns what gets the request that a stream begins with these headers, of so many bytes; it may already reply."""


@final
class Stream:
    """One stream. Owned by its connection."""

    __slots__ = (
        "_outlet", "_queue", "_trailers", "_unreturned", "id", "is_local_closed", "is_remote_closed", "queued_bytes",
        "receive_window", "receiver", "send_window",
    )  # fmt: skip

    def __init__(self, stream_id: int, outlet: Outlet, receive_window: int) -> None:
        self.id: Final = stream_id
        self._outlet: Final = outlet
        self.receive_window = receive_window
        """How many bytes the client may still send."""

        self._unreturned = 0
        """How many bytes were consumed since the window was last enlarged."""

        self.send_window = outlet.stream_window
        """How many bytes the client accepts on this stream; negative after it has reduced its setting."""

        self._queue: deque[memoryview] | None = None
        """Data that waits for a window; most streams never have any."""
        self.queued_bytes = 0
        self._trailers: bytes | None = None
        """The block after the queued data, if the reply is complete."""

        self.is_local_closed = False
        self.is_remote_closed = False
        self.receiver: Receiver = IGNORED
        """Gets the request, until the stream is over."""

    def __repr__(self) -> str:
        return (
            f"<Stream {self.id} queued={self.queued_bytes} local={self.is_local_closed} remote={self.is_remote_closed}>"
        )

    # ------- receiving

    def consume(self, size: int, full_window: int) -> None:
        """Let the client send as many bytes again as were processed."""
        self._unreturned += size
        if self._unreturned * 2 >= full_window and not self.is_remote_closed:
            self._outlet.write(make_window_update(self.id, self._unreturned))
            self.receive_window += self._unreturned
            self._unreturned = 0

    def end_of_request(self) -> None:
        """Record that the client sends nothing more."""
        self.is_remote_closed = True
        if self.is_local_closed:
            self._forget()

    # ------- sending

    def reply(self, headers: bytes, message: bytes, trailers: bytes) -> bool:
        """Send a whole reply: headers, one message, trailers. Return as `send`."""
        size, outlet = len(message), self._outlet
        if self.is_local_closed:
            return True
        if size > self.send_window or size > outlet.window or size > outlet.frame_bytes_max or outlet.is_paused:
            self.send_headers(headers)
            is_sent = self.send(message)
            self.end(trailers)
            return is_sent
        outlet.window -= size
        stream_id, pack = self.id, HEADER.pack
        outlet.write(
            b"".join(
                (
                    pack(len(headers) << 8 | HEADERS, END_HEADERS, stream_id), headers,
                    pack(size << 8 | DATA, 0, stream_id), message,
                    pack(len(trailers) << 8 | HEADERS, END_HEADERS | END_STREAM, stream_id), trailers,
                )
            )
        )  # fmt: skip
        self._close()
        return True

    def send_headers(self, block: bytes) -> None:
        """Send the headers of the reply."""
        if not self.is_local_closed:
            self._outlet.write(HEADER.pack(len(block) << 8 | HEADERS, END_HEADERS, self.id) + block)

    def send(self, data: bytes) -> bool:
        """Send data, and return whether it was passed to the transport; otherwise `Receiver.on_sent` is called."""
        size, outlet = len(data), self._outlet
        if self.is_local_closed:
            return True
        if (
            not self._queue and size <= self.send_window and size <= outlet.window and size <= outlet.frame_bytes_max
            and not outlet.is_paused
        ):  # fmt: skip
            self.send_window -= size
            outlet.window -= size
            outlet.write(HEADER.pack(size << 8 | DATA, 0, self.id) + data)
            return True
        if self._queue is None:
            self._queue = deque()
        self._queue.append(memoryview(data))
        self.queued_bytes += size
        self.pump()
        return not self._queue

    def end(self, trailers: bytes) -> None:
        """Send the end of the reply, after the data that waits."""
        if self.is_local_closed or self._trailers is not None:
            return
        if self._queue:
            self._trailers = trailers
            return
        self._outlet.write(HEADER.pack(len(trailers) << 8 | HEADERS, END_HEADERS | END_STREAM, self.id) + trailers)
        self._close()

    def reset(self, code: ErrorCode) -> None:
        """End both directions at once; what waits is dropped."""
        if self.is_local_closed and self.is_remote_closed:
            return
        self._outlet.write(make_reset(self.id, code))
        self.drop()

    def drop(self) -> None:
        """Forget the stream without a frame."""
        self._queue = None
        self.queued_bytes = 0
        self._trailers = None
        self.is_local_closed = self.is_remote_closed = True
        self._forget()

    def pump(self) -> None:
        """Send of what waits as much as the windows allow, then the end if it is due."""
        while self._queue:
            if not self._send_frame(self._queue):
                return
        if self._trailers is not None:
            trailers, self._trailers = self._trailers, None
            self.end(trailers)

    def _send_frame(self, queue: deque[memoryview]) -> bool:
        """Send one frame of the queue, and return whether there was room for it."""
        outlet = self._outlet
        if outlet.is_paused or outlet.window <= 0:
            outlet.wait(self)
            return False
        room = min(self.send_window, outlet.window, outlet.frame_bytes_max)
        if room <= 0:
            return False  # an update of the window of this stream continues
        piece = queue[0]
        part = piece[:room]
        size = len(part)
        if size == len(piece):
            queue.popleft()
        else:
            queue[0] = piece[room:]
        self.queued_bytes -= size
        self.send_window -= size
        outlet.window -= size
        outlet.write(HEADER.pack(size << 8 | DATA, 0, self.id) + part)
        return True

    def _close(self) -> None:
        """The reply is sent. A client that is still sending its request is stopped."""
        self.is_local_closed = True
        if not self.is_remote_closed:
            self._outlet.write(make_reset(self.id, ErrorCode.NO_ERROR))
            self.is_remote_closed = True
        self._forget()

    def _forget(self) -> None:
        """End the stream. It drops its receiver, which refers to it: otherwise both would wait for the collector."""
        self.receiver = IGNORED
        self._outlet.forget(self)
