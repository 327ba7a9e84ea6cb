"""The server side of RocketMQ's remoting: a port, its connections, and the limits on their number.

A `Service` behind a listener handles bytes; `CommandService` is an adapter for services that handle one command at a
time and need no particular speed. The listener limits the number of connections; `connection` limits the time and the
bytes of each. A connection over a limit is closed with one log line, and other connections are not affected.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, final

from gantry_remoting.addresses import join_address, listen, listening_port, stop_listening
from gantry_remoting.budgets import ByteBudget, Holding, ReplyTurns
from gantry_remoting.certificates import CertificateSource
from gantry_remoting.close_log import CLOSE_TEXTS, CloseLog, CloseReason
from gantry_remoting.connection import PASS_REPLY_BYTES_MAX, Connection, Service
from gantry_remoting.deferred_answers import DeferredAnswers
from gantry_remoting.settings import ListenerSettings, TlsMode
from gantry_remoting.tls_layer import Handshakes
from gantry_remoting.turns import ReadTurns
from gantry_wire.command import Command, decode_command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import split_frames
from gantry_wire.limits import WireLimits

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 1.0
"""How often the timeouts of connections are checked."""
STOP_TIMEOUT_S: Final = 1.0
"""How long last replies may take to reach their peers when the listener closes."""


@final
class Listener:
    """A port with its connections. Owned by one event loop."""

    def __init__(
        self,
        service: Service,
        settings: ListenerSettings,
        *,
        certificates: CertificateSource[ssl.SSLContext] | None = None,
    ) -> None:
        """Create a listener. `certificates` are already started by their owner; by default the settings define them."""
        self.service = service
        self.settings = settings
        self.certificates = certificates
        self.handshakes = Handshakes(settings.handshakes_max)
        """The TLS handshakes in progress; beyond their limit the oldest one is closed."""
        self.close_log = CloseLog(log)
        """Logs and counts the reasons for which connections are closed."""
        self.first_frame_bytes_max = settings.first_frame_bytes_max
        """The limit of a frame before its connection has authenticated."""
        self.frame_budget = ByteBudget(
            settings.unfinished_frame_bytes_max,
            CloseReason.FRAME_BUDGET,
            lambda: _held_frames(self.connections),
            lambda: self._loop.time(),
        )
        """The budget of bytes of incomplete frames, over all connections."""
        self.unauthenticated_budget = ByteBudget(
            settings.unauthenticated_frame_bytes_max,
            CloseReason.UNAUTHENTICATED_BUDGET,
            lambda: _held_frames(connection for connection in self.connections if not connection.is_authenticated),
            lambda: self._loop.time(),
        )
        """The same for connections that have not authenticated."""
        self.reply_budget = ByteBudget(
            settings.unread_reply_bytes_max,
            CloseReason.REPLY_BUDGET,
            lambda: _held_replies(self.connections),
            lambda: self._loop.time(),
        )
        """The budget of bytes of replies that peers have not read."""
        self.reply_turns = ReplyTurns(settings.turn_reply_bytes_max, lambda callback: self._loop.call_soon(callback))
        """The bytes of replies that are written in this turn of the loop."""
        self._own_certificates: CertificateSource[ssl.SSLContext] | None = None
        self.connections: set[Connection] = set()
        self.read_turns = ReadTurns(
            settings.turn_connections_max, settings.turn_read_bytes_max, lambda callback: self.loop.call_soon(callback)
        )
        """Which connections are read in this turn of the loop."""
        self._per_address: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._empty_event = asyncio.Event()
        self._is_closing = False
        self._sweeper: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Listener {join_address(self.settings.host, self.settings.port)} connections={len(self.connections)}>"

    def set_limits(self, *, first_frame_bytes_max: int) -> None:
        """Set the limit of a frame before its connection has authenticated. The port may be open."""
        self.first_frame_bytes_max = first_frame_bytes_max

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for the next TLS connection."""
        return None if self.certificates is None else self.certificates.current

    @property
    def port(self) -> int:
        """Return the port on which the server listens."""
        assert self._server is not None, "the port is read before start"
        return listening_port(self._server)

    async def start(self) -> None:
        """Start to listen. Raises OSError when the port is in use, and the errors of TlsSettings."""
        self._loop = asyncio.get_running_loop()
        tls = self.settings.tls
        if tls is not None and tls.mode is not TlsMode.DISABLED and self.certificates is None:
            own = tls.source("clients")
            await own.start()
            self.certificates = self._own_certificates = own
        try:
            host, port = self.settings.host, self.settings.port
            self._server = await listen(lambda: Connection(self), host, port, backlog=self.settings.backlog)
        except BaseException:
            await self._close_certificates()
            raise
        self._sweep()

    async def close(self) -> None:
        """Stop listening and close every connection, including accepted ones that are not set up yet."""
        self._is_closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            await stop_listening(self._server)
        for connection in list(self.connections):
            connection.close("the server is stopping")
        await self._wait_until_empty()
        if self._server is not None:
            await self._server.wait_closed()
        await self._close_certificates()

    async def _close_certificates(self) -> None:
        if self._own_certificates is not None:
            await self._own_certificates.close()

    async def _wait_until_empty(self) -> None:
        """Wait until the connections have sent their last replies, with a short timeout."""
        self._empty_event.clear()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while self.connections:
                    await self._empty_event.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()

    def admit(self, connection: Connection) -> bool:
        """Return whether there is room for the connection; otherwise close it."""
        if self._is_closing:
            connection.abort()
            return False
        address = connection.peer[0]
        if len(self.connections) >= self.settings.connections_max:
            connection.close("exceeds the connection limit of this port", CloseReason.CONNECTIONS)
            return False
        if self._per_address[address] >= self.settings.connections_per_address_max:
            connection.close("exceeds the connection limit of its address", CloseReason.ADDRESS)
            return False
        self.connections.add(connection)
        self._per_address[address] += 1
        return True

    def forget(self, connection: Connection) -> bool:
        """Remove a closed connection. Return whether it had been admitted."""
        self.handshakes.end(connection)
        if connection not in self.connections:
            return False
        self.connections.discard(connection)
        address = connection.peer[0]
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        if not self.connections:
            self._empty_event.set()
        return True

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        now = self._loop.time()
        for connection in list(self.connections):
            connection.replies.move_mark(now)
            reason = connection.timeout_reason(now)
            if reason is not None:
                connection.close(CLOSE_TEXTS[reason], reason)
            if connection.is_stuck(now):
                connection.abort()


def _held_frames(connections: Iterable[Connection]) -> Iterator[Holding]:
    for connection in connections:
        if connection.frames.size:
            yield Holding(connection, connection.frames.memory_bytes, connection.frame_since)


def _held_replies(connections: Iterable[Connection]) -> Iterator[Holding]:
    for connection in connections:
        reply_bytes = connection.replies.memory_bytes
        if reply_bytes:
            yield Holding(connection, reply_bytes, connection.replies.since)


__all__ = ["PASS_REPLY_BYTES_MAX", "CommandService", "Connection", "Listener", "Service"]

Answer = Command | Awaitable[Command | None] | None
Dispatch = Callable[[Command, Connection], Answer]
"""Answers a command of a connection: at once, later, or not at all."""


@final
class CommandService:
    """Decodes frames, passes commands to a function, and sends its replies; deferred replies follow when ready."""

    def __init__(
        self,
        dispatch: Dispatch,
        limits: WireLimits | None = None,
        *,
        answers: DeferredAnswers | None = None,  # None for the default limits
        connected: Callable[[Connection], None] | None = None,
        disconnected: Callable[[Connection], None] | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._limits = limits or WireLimits()
        self._connected = connected
        self._disconnected = disconnected
        self.answers: Final = answers or DeferredAnswers()

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        position = 0
        replies: list[bytes] = []
        reply_bytes = 0
        try:
            for frame, end in split_frames(data, self._limits):
                command = decode_command(frame, self._limits)
                if not command.is_reply and self.answers.pause_if_full(command.code, connection):
                    break
                position = end
                reply = self._handle_command(command, connection)
                if reply is not None:
                    replies.append(reply.encode_reply(self._limits))
                    reply_bytes += len(replies[-1])
                if reply_bytes > PASS_REPLY_BYTES_MAX:
                    break
        except RemoteProtocolError:
            connection.send(b"".join(replies))  # the commands before the bad frame were executed, and get their replies
            raise
        return position, b"".join(replies)

    def connected(self, connection: Connection) -> None:
        if self._connected is not None:
            self._connected(connection)

    def disconnected(self, connection: Connection) -> None:
        if self._disconnected is not None:
            self._disconnected(connection)

    async def drain(self) -> None:
        """Wait until every deferred answer is given."""
        await self.answers.drain()

    def _handle_command(self, command: Command, connection: Connection) -> Command | None:
        if command.is_reply:
            connection.requests.resolve(command)
            return None
        answer = self._dispatch(command, connection)
        if answer is None or isinstance(answer, Command):
            return None if command.is_oneway else answer
        self.answers.add(command.code, self._send_later(command, answer, connection), connection)
        return None

    async def _send_later(self, command: Command, answer: Awaitable[Command | None], connection: Connection) -> None:
        reply = await answer
        if reply is not None and not command.is_oneway:
            connection.send(reply.encode_reply(self._limits))
