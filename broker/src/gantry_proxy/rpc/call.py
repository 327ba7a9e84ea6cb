"""One call: its request is collected, its handler runs as a task, and its reply is sent.

    UNARY, STREAMING   bytes -> the whole request -> the handler runs -> reply or failure
    UNARY              bytes -> the whole request -> `Method.begin` -> `finish`, without a task
    compressed         bytes -> the whole request -> decompressed -> the handler runs -> reply or failure
    BIDIRECTIONAL      headers -> the handler runs -> `read` and `write` -> reply or failure
    reset              the handler is cancelled

Bytes of requests in several frames, of large headers, of messages that a handler has not read yet, of decompressed ones
and of replies that the client has not read count in the share of the connection. An open call counts from its headers
on, so that a client cannot begin any number of requests that it never ends.
"""

import asyncio
import logging
from typing import Any, Final, Protocol, final

from gantry_proxy.http2.frames import ErrorCode
from gantry_proxy.http2.streams import Stream
from gantry_proxy.rpc.compression import Decompressor
from gantry_proxy.rpc.incoming import IncomingMessages, check_prefix
from gantry_proxy.rpc.limits import RpcTimes
from gantry_proxy.rpc.protocol import (
    ENCODING,
    HEADERS,
    OK_TRAILERS,
    PREFIX_BYTES,
    CallFailed,
    Method,
    MethodKind,
    StatusCode,
    failure_headers,
    failure_trailers,
    parse_timeout_s,
    with_prefix,
)
from gantry_proxy.rpc.shares import ConnectionShare

log = logging.getLogger(__name__)


TOO_MANY_BYTES: Final = "the proxy holds too many bytes of incomplete requests and unread replies: send again"
UNCOUNTED_HEADER_BYTES: Final = 2_048
"""The headers of a call, as they are sent, that its own memory includes; SDKs send less than 1 KiB."""
UNCOUNTED_FIELDS: Final = 48
"""The same for the number of headers; SDKs send about 20."""
FIELD_BYTES: Final = 64
"""What a header costs besides its texts."""


class CallOwner(Protocol):
    """The port of a call."""

    @property
    def message_bytes_max(self) -> int:
        """The largest message of a client."""

    @property
    def times(self) -> RpcTimes:
        """How long clients may take."""

    @property
    def decompressor(self) -> Decompressor:
        """Decompresses the messages of all calls."""

    @property
    def stream_window(self) -> int:
        """How many bytes of a stream a client may send before they are processed."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the port. To ask for the running one is a call of the kernel in Python 3.11."""

    def begin(self, call: "Call") -> None:
        """A call is open: its headers have arrived."""

    def end(self, call: "Call") -> None:
        """A call has ended, and its handler, too."""


@final
class Call:
    """One call, from its headers to its end. Owned by the event loop; `task` runs its handler."""

    __slots__ = (
        "_begun_at", "_buffer", "_deadline", "_has_headers", "_held", "_is_complete", "_is_reset", "_is_running",
        "_messages", "_owner", "_reader", "_stream", "_unsent", "_writer", "headers", "method", "peer", "share", "task",
    )  # fmt: skip

    def __init__(
        self, owner: CallOwner, stream: Stream, method: Method, headers: dict[str, str], share: ConnectionShare
    ) -> None:
        """Begin a call. ``share`` is that of its connection."""
        self._owner: Final = owner
        self._stream: Final = stream
        self.method: Final = method
        self.headers: Final = headers
        self.share: Final = share
        self.peer: Final = share.peer
        """The IP address of the client."""

        timeout = headers.get("grpc-timeout")
        timeout_s = None if timeout is None else parse_timeout_s(timeout)
        self._begun_at = owner.loop.time()
        self._deadline = None if timeout_s is None else self._begun_at + timeout_s
        self.task: asyncio.Task[None] | None = None
        self._buffer: bytearray | None = None
        """The beginning of a request that is not complete; most requests are complete at once."""
        self._held = 0
        """How many bytes of the client's side of this call are counted."""
        self._unsent = 0
        """How many bytes of replies that wait for the client's window are counted."""
        self._is_running = False
        """Whether the task of the call has begun; a task that is cancelled before never does."""
        self._messages: Final = (
            IncomingMessages(stream, owner.stream_window) if method.kind is MethodKind.BIDIRECTIONAL else None
        )
        self._is_complete = False
        """Whether the client sends nothing more."""
        self._is_reset = False
        self._has_headers = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        owner.begin(self)
        if self._messages is not None:
            self._start(None)

    def __repr__(self) -> str:
        return f"<Call {self._stream!r} peer={self.peer}>"

    # ------- what handlers use

    @property
    def remaining_s(self) -> float | None:
        """How long the client waits; None without a deadline."""
        return None if self._deadline is None else self._deadline - self._owner.loop.time()

    def expire(self, now_s: float, *, is_tight: bool) -> None:
        """End the call if its client does not wait any more, or takes too long to send the request.

        ``is_tight`` is whether the port is almost full.
        """
        times = self._owner.times
        timeout_s = times.tight_request_s if is_tight else times.request_s
        if self._deadline is not None and self._deadline < now_s:
            self.fail(StatusCode.DEADLINE_EXCEEDED, "the deadline of the call is over")
        elif self.task is None and not self._is_complete and now_s - self._begun_at > timeout_s:
            self._refuse(StatusCode.DEADLINE_EXCEEDED, "the request was not complete in time")
        elif self._messages is not None and self._messages.is_overdue(now_s, timeout_s):
            self._refuse(StatusCode.DEADLINE_EXCEEDED, "a message was not complete in time")

    async def read(self) -> Any | None:
        """Return the next message of the client; None if no more comes. Raises CallFailed if it is malformed."""
        messages = self._messages
        assert messages is not None, "only a handler of a stream reads messages"
        while not messages:
            if self._is_complete:
                return None
            self._reader = self._owner.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = messages.take(self._owner.loop.time())
        self._release(len(message))
        return await self._parse(message)

    async def write(self, reply: Any, timeout_s: float | None = None) -> None:
        """Send one message, and wait until the client's window has taken it. Raises as `send` and `wait_until_sent`."""
        if not self.send(reply):
            await self.wait_until_sent(timeout_s)

    def send(self, reply: Any) -> bool:
        """Send one message; return whether the client's window has taken it.

        Raises CallFailed if the call is over.
        """
        self._require_open()
        if not self._has_headers:
            self._send_headers()
        if self._stream.send(with_prefix(self.method.write(reply))):
            return True
        if not self._hold_reply():
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_BYTES)
        return False

    async def wait_until_sent(self, timeout_s: float | None) -> None:
        """Wait until the client's window has taken what was sent.

        Raises CallFailed if the call is over, or if the client takes longer than ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._sent()
        except TimeoutError as error:
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, "the client does not read its messages") from error
        self._require_open()

    def fail(self, code: StatusCode, text: str) -> None:
        """End the call with a status; its handler is cancelled."""
        self._send_failure(code, text)
        self._cancel()

    def finish(self, reply: Any) -> None:
        """Send the reply of a call that `Method.begin` has begun."""
        if self._is_reset:
            return
        if self._send_reply(reply):
            if self._held:
                self._drop()
            self._owner.end(self)
        else:
            self.task = self._owner.loop.create_task(self._wait_for_reader(), name="gantry-proxy-call")

    def hold_headers(self, block_bytes: int) -> None:
        """Count unusually large headers of the call, and end a call for which there is no room."""
        self._has_room(2 * block_bytes + FIELD_BYTES * len(self.headers))  # a text is longer than its Huffman code

    # ------- Receiver

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        if self._is_complete or self._is_reset:
            return
        if self._messages is not None:
            self._add_to_stream(self._messages, data, is_last=is_last)
            return
        if not is_last:
            if self._has_room(len(data)) and self._is_acceptable(self._collect(data)):
                self._stream.consume(len(data), self._owner.stream_window)
            return
        buffer = data if self._buffer is None else bytes(self._collect(data))
        self._is_complete = True
        self._buffer = None
        if len(buffer) < PREFIX_BYTES or len(buffer) != PREFIX_BYTES + int.from_bytes(buffer[1:PREFIX_BYTES], "big"):
            self._refuse(StatusCode.INTERNAL, "the call does not have exactly one message")
        elif self._is_acceptable(buffer):
            self._start(buffer)

    def on_reset(self) -> None:
        self._cancel()

    def on_sent(self) -> None:
        if self._unsent:
            self.share.hold(-self._unsent)
            self._unsent = 0
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
        self._writer = None

    def _add_to_stream(self, messages: IncomingMessages, data: bytes, *, is_last: bool) -> None:
        if not self._has_room(len(data)) or not messages.add(data, self._owner.loop.time(), self._is_acceptable):
            return
        self._is_complete = is_last
        if self._reader is not None and (messages or is_last) and not self._reader.done():
            self._reader.set_result(None)

    def _collect(self, data: bytes) -> bytearray:
        """Add bytes to those of an incomplete message, and return all of them."""
        if self._buffer is None:
            self._buffer = bytearray()
        self._buffer += data
        return self._buffer

    def _has_room(self, size: int) -> bool:
        """Count bytes of the client, and return whether the call may continue; otherwise refuse it."""
        self._held += size
        if self.share.hold(size):
            return True
        self._refuse(StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_BYTES)
        return False

    def _is_acceptable(self, buffer: bytes | bytearray) -> bool:
        """Return whether the message that begins in ``buffer`` may continue; otherwise refuse the call."""
        limit = self._owner.message_bytes_max
        if len(buffer) >= PREFIX_BYTES and (buffer[0] or int.from_bytes(buffer[1:PREFIX_BYTES], "big") > limit):
            try:
                check_prefix(buffer, self.headers.get(ENCODING, ""), limit)
            except CallFailed as error:
                self._refuse(error.code, str(error))
                return False
        return True

    # ------- the handler

    def _start(self, buffer: bytes | None) -> None:
        """Begin the call with the bytes of its request; those of a stream come later."""
        request, compressed, method = None, b"", self.method
        if buffer is not None and buffer[0]:
            compressed = buffer
        elif buffer is not None:
            try:
                request = self._read_message(buffer[PREFIX_BYTES:])
            except CallFailed as error:
                self._refuse(error.code, str(error))
                return
        if compressed or method.begin is None or not method.begin(request, self):
            self.task = self._owner.loop.create_task(self._run(request, compressed), name="gantry-proxy-call")

    async def _run(self, request: Any, compressed: bytes) -> None:
        method = self.method
        self._is_running = True
        try:
            if compressed:
                request = await self._parse(compressed)
            reply = await method.handle(request, self)
            if method.kind is MethodKind.UNARY:
                await self._reply(reply)
            else:
                self._end_stream()
        except CallFailed as error:
            self._send_failure(error.code, str(error))
        except asyncio.CancelledError:
            if not self._is_reset:
                self._send_failure(StatusCode.CANCELLED, "the call was cancelled")
        except Exception as bug:  # one call fails, and no other
            log.error("unexpected error in call", extra={"peer": self.peer}, exc_info=bug)
            self._send_failure(StatusCode.INTERNAL, f"unexpected error in the proxy: {type(bug).__name__}")
        finally:
            self._drop()
            self._owner.end(self)

    def _read_message(self, data: bytes) -> Any:
        """Return a message without its prefix."""
        try:
            return self.method.read(data)
        except Exception as error:
            raise CallFailed(StatusCode.INTERNAL, "the message is malformed") from error

    async def _parse(self, message: bytes) -> Any:
        """Return a message that has its prefix. The content of a compressed one is held to the end of the call, or to
        the end of this method if the call has several."""
        data = message[PREFIX_BYTES:]
        if not message[0]:
            return self._read_message(data)
        data = await self._owner.decompressor.decompress(data, self._hold)
        try:
            return self._read_message(data)
        finally:
            if self._messages is not None:
                self._release(len(data))

    def _hold(self, size: int) -> None:
        self._held += size
        if not self.share.hold(size):
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_BYTES)

    async def _reply(self, reply: Any) -> None:
        if not self._send_reply(reply):
            await self._wait_until_read()

    def _send_reply(self, reply: Any) -> bool:
        """Send the reply of a unary call; return whether nothing of it waits for the client's window."""
        return self._stream.reply(HEADERS, with_prefix(self.method.write(reply)), OK_TRAILERS) or not (
            self._hold_reply()
        )

    def _hold_reply(self) -> bool:
        """Count what waits for the client's window. If that is too much, reset the stream and return False."""
        size = self._stream.queued_bytes - self._unsent
        self._unsent += size
        if self.share.hold(size):
            return True
        self._stream.reset(ErrorCode.ENHANCE_YOUR_CALM)
        self.on_sent()
        return False

    async def _wait_for_reader(self) -> None:
        """The task of a call that was begun without one, and whose client does not read its reply at once."""
        self._is_running = True
        try:
            await self._wait_until_read()
        finally:
            self._drop()
            self._owner.end(self)

    async def _wait_until_read(self) -> None:
        """Wait until the client's window has taken the reply, or reset the stream of a client that does not read."""
        self._release(self._held)  # the request is not needed any more
        try:
            async with asyncio.timeout(self._owner.times.reply_s):
                await self._sent()
        except TimeoutError:
            self._stream.reset(ErrorCode.ENHANCE_YOUR_CALM)

    async def _sent(self) -> None:
        """Wait until the client's window has taken everything."""
        if self._writer is None:
            self._writer = self._owner.loop.create_future()
        await asyncio.shield(self._writer)

    def _end_stream(self) -> None:
        self._send_headers()
        self._stream.end(OK_TRAILERS)

    def _send_headers(self) -> None:
        if not self._has_headers:
            self._has_headers = True
            self._stream.send_headers(HEADERS)

    def _require_open(self) -> None:
        if self._is_reset:
            raise CallFailed(StatusCode.CANCELLED, "the call has ended")

    def _cancel(self) -> None:
        """End the handler. A call without a task ends at once, and what it waits for is dropped when it comes."""
        self._is_reset = True
        self._drop()
        if self.task is not None:
            self.task.cancel()
        if not self._is_running:
            self._owner.end(self)

    def _refuse(self, code: StatusCode, text: str) -> None:
        """End a call whose request cannot be accepted."""
        self.fail(code, text)

    def _send_failure(self, code: StatusCode, text: str) -> None:
        if self._stream.is_local_closed:
            return
        if self._stream.queued_bytes:  # the client does not read, so the status would wait, too
            self._stream.reset(ErrorCode.ENHANCE_YOUR_CALM)
            return
        block = failure_trailers(code, text) if self._has_headers else failure_headers(code, text)
        self._stream.end(block)

    def _drop(self) -> None:
        """Forget what the client has sent."""
        self._buffer = None
        if self._messages is not None:
            self._messages.clear()
        self._release(self._held)
        self.on_sent()

    def _release(self, size: int) -> None:
        if size and self._held:
            size = min(size, self._held)
            self._held -= size
            self.share.hold(-size)
