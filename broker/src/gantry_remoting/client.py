"""The client side of remoting: one connection, many concurrent requests, replies matched by request id."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, cast, final

from gantry_remoting.addresses import split_address
from gantry_remoting.close_log import LimitedLog
from gantry_remoting.errors import CannotConnect, ConnectionClosed, RequestTooLarge
from gantry_remoting.pending_requests import OnOutcome, PendingRequests
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command, decode_command
from gantry_wire.errors import ProtocolError, RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, FrameReader, check_frame_head
from gantry_wire.limits import DEFAULT_LIMITS, WireLimits

log = logging.getLogger(__name__)
_failures: Final = LimitedLog(log)

OnRequest = Callable[[Command, "Channel"], Command | None]
"""Answers a request of the peer, given the request and its channel; None if there is no answer yet."""
Sign = Callable[[Command], None]
"""A function that signs a request, as the last change before it is written."""


@final
class Channel(asyncio.Protocol):
    """One connection to a broker or name server. Owned by the loop that made it."""

    def __init__(
        self,
        address: str,
        *,
        on_request: OnRequest | None = None,
        on_close: Callable[["Channel"], None] | None = None,
        limits: WireLimits = DEFAULT_LIMITS,
        sign: Sign | None = None,
    ) -> None:
        self.address = address
        self._sign = sign
        self._on_request = on_request
        self._on_close = on_close
        self._limits = limits
        self._reader = FrameReader(limits)
        self._transport: asyncio.Transport | None = None
        self._requests = PendingRequests()
        self._loop = asyncio.get_running_loop()
        self._closed = self._loop.create_future()
        self.replied_at = self._loop.time()
        """The loop time of the last reply, or of the start."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._output: list[bytes] = []
        """Frames of this turn of the loop, which are written together: a call of the kernel costs more than a frame."""

    def __repr__(self) -> str:
        return f"<Channel {self.address} {'open' if self.is_open else 'closed'} waiting={len(self._requests)}>"

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        timeout_ms: int = 3000,
        tls: ssl.SSLContext | None = None,
        on_request: OnRequest | None = None,
        on_close: Callable[["Channel"], None] | None = None,
        sign: Sign | None = None,
    ) -> "Channel":
        """Return a connection to `address`. Raises CannotConnect, or ValueError for an invalid address."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, channel = await loop.create_connection(
                    lambda: cls(address, on_request=on_request, on_close=on_close, sign=sign), host, port, ssl=tls
                )
        except TimeoutError as error:
            raise CannotConnect(f"connecting to {address} timed out after {timeout_ms} ms") from error
        except (OSError, ssl.SSLError) as error:
            reason = str(error) or "the server closed the connection"
            raise CannotConnect(f"cannot connect to {address}: {reason}") from error
        return channel

    @classmethod
    async def connect_to_socket(
        cls, path: str, *, timeout_ms: int = 3000, on_close: Callable[["Channel"], None] | None = None
    ) -> "Channel":
        """Return a connection to a Unix socket. Raises CannotConnect."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, channel = await loop.create_unix_connection(lambda: cls(path, on_close=on_close), path)
        except TimeoutError as error:
            raise CannotConnect(f"connecting to {path} timed out after {timeout_ms} ms") from error
        except OSError as error:
            raise CannotConnect(f"cannot connect to {path}: {error}") from error
        return channel

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def local(self) -> tuple[str, int]:
        """Return the local address of this connection."""
        assert self._transport is not None, "a channel is made by connect"
        return tuple(self._transport.get_extra_info("sockname")[:2])

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and wait for the reply. Raises ConnectionClosed, RemotingTimeout or RequestTooLarge."""
        self._require_open()
        return await self._requests.send(command, self._write, self.address, timeout_ms)

    def begin_request(self, command: Command, timeout_ms: int, on_outcome: OnOutcome) -> None:
        """Send a request. Later, ``on_outcome`` is called once; it must not raise.

        Raises ConnectionClosed or RequestTooLarge.
        """
        self._require_open()
        self._requests.begin(command, self._write, self.address, timeout_ms, on_outcome)

    def send_oneway(self, command: Command) -> None:
        """Send a command without waiting for a reply. Raises ConnectionClosed or RequestTooLarge."""
        assert command.is_oneway, "a peer would reply to it"
        self._require_open()
        self._write(command)

    def answer(self, reply: Command) -> None:
        """Send a deferred reply to a request of the peer. Does nothing on a closed connection."""
        if self.is_open:
            self._write(reply)

    async def wait_until_writable(self) -> None:
        """Wait until the peer has read enough of what was written, or the connection is lost."""
        await self._writable.wait()

    async def close(self) -> None:
        """Close the connection and wait until it is closed."""
        if self._transport is not None:
            self._flush()
            self._transport.close()
            await self._closed

    def abort(self) -> None:
        """Close the connection at once; what was not sent yet is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def _require_open(self) -> None:
        if not self.is_open:
            raise ConnectionClosed(f"the connection to {self.address} is closed")

    def _write(self, command: Command) -> None:
        assert self._transport is not None, "a channel is made by connect"
        if self._sign is not None and not command.is_reply:
            self._sign(command)
        data = self._encode(command)
        if not self._output:
            self._loop.call_soon(self._flush)
        self._output.append(data)

    def _encode(self, command: Command) -> bytes:
        """Return the frame of a command. Raises RequestTooLarge for a request that no peer accepts.

        A peer closes the connection at a frame beyond its limits. The connection carries the requests of many callers,
        so one of them must not be able to end it. A reply that is too large is replaced by an error.
        """
        limits = self._limits
        try:
            data = command.encode()
            if len(data) > limits.header_bytes_max:  # the header of a smaller frame is within its limit, too
                total, type_and_header = FRAME_HEAD.unpack_from(data)
                check_frame_head(total, type_and_header, limits)
        except ProtocolError as error:
            if command.is_reply:
                return command.reply(ResponseCode.SYSTEM_ERROR, str(error)).encode()
            raise RequestTooLarge(f"the request {command.code} to {self.address} was not sent: {error}") from error
        return data

    def _flush(self) -> None:
        if self._output and self.is_open:
            assert self._transport is not None, "a channel is made by connect"
            self._transport.write(b"".join(self._output))
        self._output.clear()

    # ------- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._handle_command(decode_command(frame, self._limits))
        except RemoteProtocolError as error:
            log.warning("peer broke the protocol", extra={"peer": self.address, "reason": str(error)})
            if self._transport is not None:
                self._transport.abort()
        except Exception as error:  # noqa: BLE001 - an exception of a callback closes this connection only
            self._handle_callback_failure("data_received", error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        cause = f": {exc.reason}" if isinstance(exc, ssl.SSLError) and exc.reason else ""  # as of a missing certificate
        self._requests.fail(f"the connection to {self.address} was lost{cause}")
        if not self._closed.done():
            self._closed.set_result(None)
        try:
            if self._on_close is not None:
                self._on_close(self)
        except Exception as error:  # noqa: BLE001 - see data_received
            self._handle_callback_failure("connection_lost", error)

    def _handle_callback_failure(self, callback: str, error: Exception) -> None:
        _failures.log_callback_failure(self.address, callback, error)
        if self._transport is not None:
            self._transport.abort()

    def _handle_command(self, command: Command) -> None:
        if command.is_reply:
            self.replied_at = self._loop.time()
            self._requests.resolve(command)
            return
        if self._on_request is None:
            return
        answer = self._on_request(command, self)
        if answer is not None and not command.is_oneway and self.is_open:
            self._write(answer)
