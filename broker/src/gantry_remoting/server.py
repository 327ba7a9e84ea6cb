"""The listening end of RocketMQ's remoting: sockets to bytes, bytes to sockets, and what a peer may cost us.

A `Service` gets all the bytes of one read at once and answers with all its replies at once: one pass in, one write
out. A service whose replies grow large stops early; the rest of the bytes waits until the peer has taken them.
`CommandService` is the readable adapter for services that are not hot. Late answers go through `Connection.send`. A
peer that breaks the protocol, is too slow, or is one too many is closed with one log line, and nobody else notices.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, cast, final

from gantry_remoting.errors import ConnectionClosed, RemotingTimeout
from gantry_remoting.settings import ListenerSettings, TlsMode
from gantry_remoting.tls_layer import TLS_HANDSHAKE_BYTE, TlsLayer
from gantry_wire.command import Command, decode_command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, Frame, check_frame_head
from gantry_wire.limits import WireLimits

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 1.0
CLOSE_TIMEOUT_S: Final = 5.0
"""How long a connection that we closed may take to give its last replies to its peer."""

STOP_TIMEOUT_S: Final = 1.0
"""The same when the whole listener closes."""

PASS_REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Replies of one pass after which a service should stop: small requests can ask for large answers."""


class Service(Protocol):
    """What stands behind a listener."""

    def handle(self, data: bytes, connection: "Connection") -> tuple[int, bytes]:
        """Handle whole frames at the start of `data`: (how many bytes they took, the replies to write).

        It may leave whole frames when its replies pass PASS_REPLY_BYTES_MAX; they come again once the replies are
        on their way. Raises RemoteProtocolError to have the connection closed.
        """

    def connected(self, connection: "Connection") -> None:
        """A peer has come."""

    def disconnected(self, connection: "Connection") -> None:
        """A peer has gone; its connection is closed already."""


@final
class Connection(asyncio.Protocol):
    """One peer. Everything here belongs to the event loop's thread."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._settings = listener.settings
        self._handle = listener.service.handle
        self._loop = listener.loop
        self._transport: asyncio.Transport | None = None
        self._pending = bytearray()
        self._needed_bytes = 0
        self._frame_began_at = 0.0
        self._write_paused_at = 0.0
        self._tls: TlsLayer | None = None
        self._is_sniffing = listener.settings.tls is not None
        self._waiters: dict[int, asyncio.Future[Command]] = {}
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.is_open = False
        self.active_at = 0.0
        self._closed_at = 0.0

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection {self.peer[0]}:{self.peer[1]} {state} pending={len(self._pending)}>"

    # ------- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = tuple((transport.get_extra_info("peername") or ("", 0))[:2])
        self.local = tuple((transport.get_extra_info("sockname") or ("", 0))[:2])
        self.active_at = self._loop.time()
        self._transport.set_write_buffer_limits(high=self._settings.reply_bytes_high)
        self.is_open = True
        if self._listener.admit(self):
            self._listener.service.connected(self)

    def data_received(self, data: bytes) -> None:
        self.active_at = self._loop.time()
        try:
            if self._is_sniffing:
                self._sniff(data)
            if self._tls is not None:
                data = self._decrypt(data)
            if data and self.is_open:
                self._feed(data)
        except RemoteProtocolError as error:
            self.close(f"broke the protocol: {error}")
        except ssl.SSLError as error:
            self.close(f"TLS failed: {error.reason or error}")

    def connection_lost(self, exc: Exception | None) -> None:
        was_known = self.is_open
        self.is_open = False
        self._fail_waiters()
        if self._listener.forget(self) or was_known:
            self._listener.service.disconnected(self)

    def pause_writing(self) -> None:
        self._write_paused_at = self._loop.time()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused_at = 0.0
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()
            self._resume()

    # ------- what services call

    def send(self, data: bytes) -> None:
        """Write `data`. A peer that reads too slowly is closed rather than kept in memory."""
        transport = self._transport
        if transport is None or not self.is_open:
            return
        try:
            transport.write(data if self._tls is None else self._tls.encrypt(data))
        except ssl.SSLError as error:
            self.close(f"TLS failed: {error.reason or error}")
            return
        if self._write_paused_at and transport.get_write_buffer_size() > self._settings.reply_bytes_max:
            self.close("does not read its replies")

    def close(self, reason: str) -> None:
        """End the connection, saying why in one log line."""
        if not self.is_open or self._transport is None:
            return
        self.is_open = False
        self._closed_at = self._loop.time()
        log.info("connection closed", extra={"peer": f"{self.peer[0]}:{self.peer[1]}", "reason": reason})
        self._pending.clear()
        self._transport.abort() if self._write_paused_at else self._transport.close()

    def abort(self) -> None:
        """End the connection now, whatever its peer has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Ask the peer something and wait for its answer. Raises ConnectionClosed or RemotingTimeout."""
        if not self.is_open:
            raise ConnectionClosed(f"{self.peer[0]}:{self.peer[1]} is gone")
        waiter: asyncio.Future[Command] = self._loop.create_future()
        self._waiters[command.opaque] = waiter
        self.send(command.encode())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiter
        except TimeoutError as error:
            raise RemotingTimeout(f"{self.peer[0]}:{self.peer[1]} gave no answer in {timeout_ms} ms") from error
        finally:
            self._waiters.pop(command.opaque, None)

    def resolve(self, reply: Command) -> None:
        """A reply came in; hand it to whoever waits for it. Unknown ones are dropped."""
        waiter = self._waiters.get(reply.opaque)
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    # ------- the listener's sweep

    def overdue(self, now: float) -> str | None:
        """Why this connection should be closed at `now`, or None."""
        settings = self._settings
        if self._write_paused_at and now - self._write_paused_at > settings.reader_timeout_ms / 1000:
            return "does not read its replies"
        if self._frame_began_at and now - self._frame_began_at > settings.frame_timeout_ms / 1000:
            return "did not finish a frame in time"
        if now - self.active_at > settings.idle_timeout_ms / 1000:
            return "was idle too long"
        return None

    def is_stuck(self, now: float) -> bool:
        """Whether it was closed long ago and its peer does not even take what was left for it."""
        return not self.is_open and now - self._closed_at > CLOSE_TIMEOUT_S

    # ------- inside

    def _feed(self, data: bytes) -> None:
        if self._pending:
            self._pending += data
            if self._needed_bytes <= 8:
                self._needed_bytes = _needed_bytes(self._pending, self._settings.wire)
            if len(self._pending) < self._needed_bytes:
                return
            data = bytes(self._pending)
            self._pending.clear()
        consumed, replies = self._handle(data, self)
        if replies and self.is_open:
            self.send(replies)
        if consumed < len(data) and self.is_open:
            rest = data[consumed:]
            self._needed_bytes = _needed_bytes(rest, self._settings.wire)
            self._pending += rest
            self._frame_began_at = 0.0 if self._has_whole_frame else self.active_at
            if self._has_whole_frame:
                self._loop.call_soon(self._resume)
        else:
            self._frame_began_at = 0.0

    @property
    def _has_whole_frame(self) -> bool:
        return bool(self._pending) and len(self._pending) >= self._needed_bytes

    def _resume(self) -> None:
        """Go on with frames that a pass left, unless their replies would only lie here."""
        if self.is_open and not self._write_paused_at and self._has_whole_frame:
            data = bytes(self._pending)
            self._pending.clear()
            self.active_at = self._loop.time()
            try:
                self._feed(data)
            except RemoteProtocolError as error:
                self.close(f"broke the protocol: {error}")

    def _sniff(self, data: bytes) -> None:
        self._is_sniffing = False
        tls = self._settings.tls
        context = self._listener.tls_context
        if tls is None or context is None or tls.mode is TlsMode.DISABLED:
            return
        if data[0] == TLS_HANDSHAKE_BYTE:
            self._tls = TlsLayer(context)
            self._frame_began_at = self.active_at
        elif tls.mode is TlsMode.ENFORCING:
            raise RemoteProtocolError("plain text on a port that enforces TLS")

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None and self._transport is not None, "only called on a TLS connection"
        try:
            plain = self._tls.receive(data)
        finally:
            output = self._tls.pending_output()
            if output:
                self._transport.write(output)
        if self._tls.is_ready and not plain and not self._pending:
            self._frame_began_at = 0.0
        if self._tls.is_closed and not plain:
            self.close("ended TLS")
        return plain

    def _fail_waiters(self) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(ConnectionClosed(f"{self.peer[0]}:{self.peer[1]} is gone"))


def _needed_bytes(data: bytes | bytearray, limits: WireLimits) -> int:
    """How many bytes the frame at the start of `data` takes, or how many we need to know. Raises for bad lengths."""
    if len(data) >= FRAME_HEAD.size:
        total, type_and_header = FRAME_HEAD.unpack_from(data)
        check_frame_head(total, type_and_header, limits)
        return int(total) + 4
    if len(data) >= 4:
        check_frame_head(int.from_bytes(data[:4], "big"), 0, limits)
        return FRAME_HEAD.size
    return 4


@final
class Listener:
    """A port with its connections. Owned by one event loop."""

    def __init__(self, service: Service, settings: ListenerSettings) -> None:
        self.service = service
        self.settings = settings
        self.tls_context: ssl.SSLContext | None = None
        self.connections: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._emptied = asyncio.Event()
        self._sweeper: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Listener {self.settings.host}:{self.settings.port} connections={len(self.connections)}>"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "asked for the port before start"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Begin to listen. Raises OSError when the port is taken, and what TlsSettings raises."""
        self._loop = asyncio.get_running_loop()
        tls = self.settings.tls
        if tls is not None and tls.mode is not TlsMode.DISABLED:
            self.tls_context = await asyncio.to_thread(tls.server_context)
        self._server = await self._loop.create_server(
            lambda: Connection(self), self.settings.host, self.settings.port, backlog=self.settings.backlog
        )
        self._sweep()

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close("the server stops")
        await self._empty()
        if self._server is not None:
            await self._server.wait_closed()

    async def _empty(self) -> None:
        """Wait until the connections have given their last replies, but not long."""
        self._emptied.clear()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while self.connections:
                    await self._emptied.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more; closes it when not."""
        address = connection.peer[0]
        if len(self.connections) >= self.settings.connections_max:
            connection.close("is one connection too many for this port")
            return False
        if self._per_address[address] >= self.settings.connections_per_address_max:
            connection.close("is one connection too many for its address")
            return False
        self.connections.add(connection)
        self._per_address[address] += 1
        return True

    def forget(self, connection: Connection) -> bool:
        """A connection is gone; True when it had been admitted."""
        if connection not in self.connections:
            return False
        self.connections.discard(connection)
        address = connection.peer[0]
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        if not self.connections:
            self._emptied.set()
        return True

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self.connections):
            reason = connection.overdue(now)
            if reason is not None:
                connection.close(reason)
            if connection.is_stuck(now):
                connection.abort()
        self._sweeper = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)


Dispatch = Callable[[Command, Connection], Command | Awaitable[Command | None] | None]


@final
class CommandService:
    """Frames to commands to a function and its answers back; answers of slow ones follow when they are ready."""

    def __init__(
        self,
        dispatch: Dispatch,
        limits: WireLimits | None = None,
        *,
        connected: Callable[[Connection], None] | None = None,
        disconnected: Callable[[Connection], None] | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._limits = limits or WireLimits()
        self._connected = connected
        self._disconnected = disconnected
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        position, end = 0, len(data)
        replies: list[bytes] = []
        reply_bytes = 0
        try:
            while end - position >= FRAME_HEAD.size and reply_bytes <= PASS_REPLY_BYTES_MAX:
                total, type_and_header = FRAME_HEAD.unpack_from(data, position)
                check_frame_head(total, type_and_header, self._limits)
                frame_end = position + 4 + total
                if frame_end > end:
                    break
                header_end = position + 8 + (type_and_header & 0xFFFFFF)
                frame = Frame(type_and_header >> 24, data[position + 8 : header_end], data[header_end:frame_end])
                position = frame_end
                reply = self._one(decode_command(frame, self._limits), connection)
                if reply is not None:
                    replies.append(reply.encode())
                    reply_bytes += len(replies[-1])
        except RemoteProtocolError:
            connection.send(b"".join(replies))  # what came before the bad frame was done, and its sender is told so
            raise
        return position, b"".join(replies)

    def connected(self, connection: Connection) -> None:
        if self._connected is not None:
            self._connected(connection)

    def disconnected(self, connection: Connection) -> None:
        if self._disconnected is not None:
            self._disconnected(connection)

    async def drain(self) -> None:
        """Wait until every slow answer under way is given."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _one(self, command: Command, connection: Connection) -> Command | None:
        if command.is_reply:
            connection.resolve(command)
            return None
        answer = self._dispatch(command, connection)
        if answer is None or isinstance(answer, Command):
            return None if command.is_oneway else answer
        task = asyncio.ensure_future(self._later(command, answer, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _later(self, command: Command, answer: Awaitable[Command | None], connection: Connection) -> None:
        reply = await answer
        if reply is not None and not command.is_oneway:
            connection.send(reply.encode())
