"""One peer of a listener: bytes in, whole frames to the service, replies out, and what the peer may cost.

All the bytes of one read go to the service at once, and all its replies go out in one write. A service whose replies
grow large stops early; the rest of the bytes waits until the peer has taken them, and so does what the peer sends
next. A peer that breaks the protocol is closed with one log line. What is overdue is decided here, by `overdue`, from
a time that the listener passes in; when to ask is the listener's business.
"""

import asyncio
import logging
import ssl
from typing import Final, Protocol, cast, final

from gantry_remoting.addresses import join_address, peer_address
from gantry_remoting.errors import ConnectionClosed, RemotingTimeout
from gantry_remoting.handshakes import Handshakes
from gantry_remoting.settings import ListenerSettings, TlsMode
from gantry_remoting.tls_layer import TLS_HANDSHAKE_BYTE, TlsLayer
from gantry_wire.command import Command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, check_frame_head
from gantry_wire.limits import WireLimits

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
"""How long a connection that we closed may take to give its last replies to its peer."""

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


class Owner(Protocol):
    """What a connection needs of its listener."""

    @property
    def service(self) -> Service: ...

    @property
    def settings(self) -> ListenerSettings: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def tls_context(self) -> ssl.SSLContext | None: ...

    @property
    def handshakes(self) -> Handshakes: ...

    def admit(self, connection: "Connection") -> bool:
        """Whether there is room for one more; closes it when not."""

    def forget(self, connection: "Connection") -> bool:
        """A connection is gone; True when it had been admitted."""


@final
class Connection(asyncio.Protocol):
    """One peer. Everything here belongs to the event loop's thread."""

    def __init__(self, listener: Owner) -> None:
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
        self.peer_subject = ""
        """Who the peer proved to be by a certificate; empty for one that showed none."""
        self.account: str | None = None
        """Whose signed heartbeat came last; None without access control."""
        self.is_open = False
        self.active_at = 0.0
        self._closed_at = 0.0

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection {join_address(*self.peer)} {state} pending={len(self._pending)}>"

    # ------- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_address(transport.get_extra_info("peername"))
        self.local = peer_address(transport.get_extra_info("sockname"))
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
        log.info("connection closed", extra={"peer": join_address(*self.peer), "reason": reason})
        self._pending.clear()
        self._transport.abort() if self._write_paused_at else self._transport.close()

    def abort(self) -> None:
        """End the connection now, whatever its peer has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Ask the peer something and wait for its answer. Raises ConnectionClosed or RemotingTimeout."""
        if not self.is_open:
            raise ConnectionClosed(f"{join_address(*self.peer)} is gone")
        waiter: asyncio.Future[Command] = self._loop.create_future()
        self._waiters[command.opaque] = waiter
        self.send(command.encode())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiter
        except TimeoutError as error:
            raise RemotingTimeout(f"{join_address(*self.peer)} gave no answer in {timeout_ms} ms") from error
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
                try:
                    self._needed_bytes = _needed_bytes(self._pending, self._settings.wire)
                except RemoteProtocolError:
                    self._handle(bytes(self._pending), self)  # so that it answers what it has of this turn, and raises
                    raise
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
            self._listener.handshakes.begin(self)
        elif tls.mode is TlsMode.ENFORCING:
            raise RemoteProtocolError("plain text on a port that enforces TLS")

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None and self._transport is not None, "only called on a TLS connection"
        was_ready = self._tls.is_ready
        try:
            plain = self._tls.receive(data)
        finally:
            output = self._tls.pending_output()
            if output:
                self._transport.write(output)
        if self._tls.is_ready and not was_ready:
            self._listener.handshakes.end(self)
            self.peer_subject = self._tls.peer_subject()
        if self._tls.is_ready and not plain and not self._pending:
            self._frame_began_at = 0.0
        if self._tls.is_closed and not plain:
            self.close("ended TLS")
        return plain

    def _fail_waiters(self) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(ConnectionClosed(f"{join_address(*self.peer)} is gone"))


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
