"""One connection of a listener: it passes whole frames to the service and writes the replies, within limits.

All the bytes of one read go to the service at once, and all its replies go out in one write. A service whose replies
grow large stops early; the rest of the bytes waits for a later turn, and while more than `reply_bytes_high` waits for
the peer, which is not read then. A connection that has delivered `turn_bytes_max` in one turn of the loop is not read
again before the next turn, so that timers run and other connections are served during a long burst. A peer that breaks
the protocol is closed with one log line. `timeout_reason` decides which timeouts have passed, for a time that the
listener passes in; the listener calls it periodically.

    read -> TLS (`tls_layer`) -> is it served in this turn (`turns.ReadControl`) -> the part of a frame before it
    (`frame_parts`) -> service -> replies (`reply_writer`)

The bytes that a connection holds count towards its port's budgets (`budgets`). No exception leaves a callback: it
closes the connection that raised it, with a rate-limited log line, and no other connection.
"""

import asyncio
import fcntl
import ssl
import struct
import termios
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, cast, final

from gantry_remoting.addresses import join_address, peer_address
from gantry_remoting.budgets import ByteBudget, ReplyTurns
from gantry_remoting.close_log import CLOSE_TEXTS, CloseLog, CloseReason
from gantry_remoting.errors import ConnectionClosed
from gantry_remoting.frame_parts import FrameParts, frame_bytes_needed
from gantry_remoting.pending_requests import PendingRequests
from gantry_remoting.reply_writer import ReplyWriter
from gantry_remoting.settings import ListenerSettings, TlsMode
from gantry_remoting.tls_layer import TLS_HANDSHAKE_BYTE, Handshakes, TlsLayer
from gantry_remoting.turns import COUNTED_READ_BYTES, SHORT_READS_STEP, ReadControl, ReadPause, ReadTurns
from gantry_wire.command import Command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD

CLOSE_TIMEOUT_S: Final = 5.0
"""How long a connection that this side closed may take to send its last replies to the peer."""

PASS_REPLY_BYTES_MAX: Final = 1024 * 1024
"""The bytes of replies after which a service should return from a call of `Service.handle`: small requests can ask for
large replies. A connection is not read any more when it holds `reply_bytes_high`, so its calls never add more than this
and one reply to that. Deferred and held answers come on top; `reply_bytes_max` bounds the sum."""

_UNREAD_BYTES: Final = struct.Struct("i")  # the number that FIONREAD returns


class Service(Protocol):
    """The service behind a listener."""

    def handle(self, data: bytes, connection: "Connection") -> tuple[int, bytes]:
        """Handle whole frames at the start of `data` and return (number of bytes handled, replies to write).

        It may leave whole frames when its replies exceed PASS_REPLY_BYTES_MAX, or after `pause_for_answers`; they are
        passed again in a later turn, when the peer has read enough, or the connection is resumed. Raises
        RemoteProtocolError to have the connection closed.
        """

    def connected(self, connection: "Connection") -> None:
        """Called when a peer has connected."""

    def disconnected(self, connection: "Connection") -> None:
        """Called when an admitted connection has ended, whichever side closed it."""


class ConnectionOwner(Protocol):
    """The part of a listener that a connection uses. A connection assigns none of these attributes."""

    service: Service
    settings: ListenerSettings
    handshakes: Handshakes
    close_log: CloseLog
    frame_budget: ByteBudget
    unauthenticated_budget: ByteBudget
    reply_budget: ByteBudget
    reply_turns: ReplyTurns
    read_turns: ReadTurns
    first_frame_bytes_max: int

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def tls_context(self) -> ssl.SSLContext | None: ...

    def admit(self, connection: "Connection") -> bool:
        """Return whether there is room for the connection; otherwise close it."""

    def forget(self, connection: "Connection") -> bool:
        """Remove a closed connection. Return whether it had been admitted."""


P = ParamSpec("P")


def _isolated(
    callback: Callable[Concatenate["Connection", P], None],
) -> Callable[Concatenate["Connection", P], None]:
    """Wrap `callback` so that an exception closes its own connection only."""

    @wraps(callback)
    def run(connection: "Connection", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(connection, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - see above
            connection._handle_callback_failure(callback.__name__, error)

    return run


@final
class Connection(asyncio.Protocol):
    """One connection to a peer. Everything here belongs to the event loop's thread."""

    def __init__(self, listener: ConnectionOwner) -> None:
        self._listener = listener
        self._settings = listener.settings
        self._handle = listener.service.handle
        self._loop = listener.loop
        self._turns = listener.read_turns
        self._transport: asyncio.Transport  # this and the next two are set in connection_made
        self._reading: ReadControl
        self.replies: ReplyWriter
        self.frames = FrameParts()
        """Bytes that have arrived and are not handled yet: most often the part of a frame."""
        self.is_backlogged = False
        """Whether its last read had to wait for a turn, or its turn ended before the socket was empty: the peer sends
        faster than it is served."""
        self._tls: TlsLayer | None = None
        self._is_first_byte_pending = listener.settings.tls is not None
        self._handshake_began_at = 0.0
        self.requests = PendingRequests()
        """The requests that the peer has not answered yet."""
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.peer_subject = ""
        """The subject of the peer's certificate; empty without one."""
        self.account: str | None = None
        """The account of the last heartbeat; None without access control, or for an address trusted without account."""
        self.is_authenticated = not listener.settings.is_guarded
        """Whether a request of it was authenticated, or none has to be. The service sets it and never resets it."""
        self.is_open = False
        self.active_at = 0.0
        self._closed_at = 0.0

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection {join_address(*self.peer)} {state} pending={self.frames.size}>"

    # ------- callbacks of asyncio

    @_isolated
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        listener, settings = self._listener, self._settings
        self.active_at = now = self._loop.time()
        self._reading = ReadControl(transport, self._turns, settings.turn_bytes_max)
        self.replies = ReplyWriter(transport, listener.reply_turns, listener.reply_budget, now)
        peer = transport.get_extra_info("peername")
        if not peer:  # reset while it waited in the backlog: the kernel no longer knows its address
            listener.close_log.record("unknown", CloseReason.RESET, "was reset before it was accepted")
            transport.abort()
            return
        self.peer = peer_address(peer)
        self.local = peer_address(transport.get_extra_info("sockname"))
        transport.set_write_buffer_limits(high=settings.reply_bytes_high)
        self.is_open = True
        if listener.admit(self):
            listener.service.connected(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        self.active_at = self._loop.time()
        try:
            size, turns = len(data), self._turns
            is_short = is_in_turn = size < COUNTED_READ_BYTES
            if is_short and turns.short_bytes + size < SHORT_READS_STEP:  # the usual case, without a call
                turns.short_bytes += size
                self.is_backlogged = False
            else:
                is_in_turn = self._reading.take(self, size)
                self.is_backlogged = not is_in_turn or self._reading.is_waiting_for_turn
            if self._is_first_byte_pending:
                self._detect_tls(data)
            if self._tls is not None:
                data = self._decrypt(self._tls, data)
            if not is_in_turn:
                self._keep_for_turn(data, is_short=is_short)
            elif data and self.is_open:
                self._handle_bytes(data)
        except RemoteProtocolError as error:
            self.close(f"broke the protocol: {error}", CloseReason.PROTOCOL)
        except ssl.SSLError as error:
            self.close(f"TLS failed: {error.reason or error}", CloseReason.TLS)
        except Exception as error:  # noqa: BLE001 - see _isolated
            self._handle_callback_failure("data_received", error)

    @_isolated
    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.frames.clear()
        self._tls = None  # frees 100 KiB and more of OpenSSL's memory without waiting for the garbage collector
        was_admitted = self._listener.forget(self)
        self.requests.fail(f"the connection to {join_address(*self.peer)} was closed")
        if was_admitted:
            self._listener.service.disconnected(self)

    @_isolated
    def pause_writing(self) -> None:
        self.replies.pause(self._loop.time())
        self._reading.pause(ReadPause.REPLIES_UNREAD)

    @_isolated
    def resume_writing(self) -> None:
        self.replies.resume()
        self._resume(ReadPause.REPLIES_UNREAD)

    # ------- called by services

    def send(self, *parts: bytes) -> None:
        """Write `parts`, one after the other. A peer that reads too slowly is closed, to bound the memory."""
        if not self.is_open:
            return
        replies = self.replies
        try:
            replies.write(*parts) if self._tls is None else replies.write(self._tls.encrypt(b"".join(parts)))
        except ssl.SSLError as error:
            self.close(f"TLS failed: {error.reason or error}", CloseReason.TLS)
            return
        except Exception as error:  # noqa: BLE001 - one append answers many connections: a failed write must not affect the others
            self._handle_callback_failure("send", error)
            return
        if replies.paused_at and replies.waiting_bytes > self._settings.reply_bytes_max:
            self.close("does not read its replies", CloseReason.REPLY_LIMIT)

    def close(self, text: str, reason: CloseReason = CloseReason.SERVICE) -> None:
        """Close the connection. `text` goes into the log, and `reason` is counted."""
        if not self.is_open:
            return
        self._mark_closed()
        self._listener.close_log.record(join_address(*self.peer), reason, text)
        self._transport.abort() if self.replies.paused_at else self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately, without sending what its peer has not read yet."""
        self._transport.abort()

    def evict(self, reason: CloseReason) -> None:
        """Close the connection because the port is over its budget, and free its memory."""
        self.replies.reset_on_close()
        self.close(CLOSE_TEXTS[reason], reason)
        self.abort()

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send a request to the peer and wait for its reply. Raises ConnectionClosed or RemotingTimeout."""
        peer = join_address(*self.peer)
        if not self.is_open:
            raise ConnectionClosed(f"the connection to {peer} is closed")
        return await self.requests.send(command, lambda request: self.send(request.encode()), peer, timeout_ms)

    def pause_for_answers(self) -> None:
        """Stop handling and reading requests until `resume_after_answers`."""
        self._reading.pause(ReadPause.ANSWERS_DEFERRED)

    @_isolated
    def resume_after_answers(self) -> None:
        """Continue with the requests that wait for deferred answers. Never raises."""
        self.active_at = self._loop.time()
        self._resume(ReadPause.ANSWERS_DEFERRED)

    def queued_bytes(self) -> int:
        """Return how many bytes from the peer are in the kernel and not read by this process."""
        zero, peer_socket = bytes(_UNREAD_BYTES.size), self._transport.get_extra_info("socket")
        try:
            unread = fcntl.ioctl(peer_socket.fileno(), termios.FIONREAD, zero) if peer_socket else zero
            return int(_UNREAD_BYTES.unpack(unread)[0])
        except (OSError, ValueError):  # it is closed
            return 0

    # ------- called by the listener's sweep

    def timeout_reason(self, now: float) -> CloseReason | None:
        """Return why this connection should be closed at `now`, or None."""
        settings = self._settings
        if self.replies.is_overdue(now, settings.reader_timeout_ms / 1000):
            return CloseReason.READER_TIMEOUT
        began_at = self._handshake_began_at or self.frames.began_at
        if began_at and now - began_at > settings.frame_timeout_ms / 1000:
            return CloseReason.FRAME_TIMEOUT
        is_deferred = self._reading.pauses & ReadPause.ANSWERS_DEFERRED  # not read meanwhile, so it is not idle
        if not is_deferred and now - self.active_at > settings.idle_timeout_ms / 1000:
            return CloseReason.IDLE
        return None

    @property
    def frame_since(self) -> float:
        """Return since when unhandled bytes are held."""
        return self.frames.began_at or self.replies.paused_at or self.active_at

    def is_stuck(self, now: float) -> bool:
        """Return whether it was closed a while ago and its peer still has not read the last replies."""
        return not self.is_open and now - self._closed_at > CLOSE_TIMEOUT_S

    # ------- turns of the loop

    @_isolated
    def take_turn(self, kept_bytes: int) -> None:
        """Serve the bytes kept for this turn, or read the connection again. Never raises."""
        is_kept = self.frames.has_whole_frame
        if is_kept:
            self._serve_kept()
            is_large = kept_bytes >= COUNTED_READ_BYTES
            if is_large and self._turns.has_waiting and self.is_open and not self.frames.has_whole_frame:
                self._turns.enqueue(self)  # its next bytes stay in the kernel until then
                return
        else:
            self._reading.grant_turn()
        self._reading.resume(ReadPause.TURN_SPENT)

    @_isolated
    def resume(self) -> None:
        """Serve what was kept, since the port wrote too much in a turn or the service returned early. Never raises."""
        self._resume(ReadPause.PORT_BUSY)

    # ------- internals

    def _handle_bytes(self, data: bytes) -> None:
        if self.frames.size:
            data = self._gather(data)
            if not data:
                return
        if self._listener.reply_turns.is_full:
            self._buffer(data)
            if self.is_open:
                self._reading.pause(ReadPause.PORT_BUSY)
                self._listener.reply_turns.enqueue(self)
            return
        consumed, replies = self._handle(data, self)
        if replies and self.is_open:
            self.send(replies)
        if consumed < len(data) and self.is_open:
            self._keep_rest(data[consumed:])

    def _keep_rest(self, rest: bytes) -> None:
        """Keep the bytes that the service has left: the part of a frame, or frames for a later call."""
        needed = self._count_frame_bytes(rest)
        self.frames.expect(needed, 0.0 if len(rest) >= needed else self.active_at)
        self._buffer(rest)
        if self.frames.has_whole_frame and not self._reading.pauses & ReadPause.ANSWERS_DEFERRED:
            self._listener.reply_turns.enqueue(self)

    def _gather(self, data: bytes) -> bytes:
        """Return `data` preceded by the kept bytes, if they make a whole frame.

        Return empty bytes while they are only a part of one, or if the connection was closed for them.
        """
        frames = self.frames
        if not frames.size:
            return data
        self._buffer(data)
        if not self.is_open:
            return b""
        if frames.needed_bytes <= FRAME_HEAD.size:
            try:
                frames.expect(self._count_frame_bytes(frames.head(FRAME_HEAD.size)), frames.began_at)
            except RemoteProtocolError:
                self._handle(frames.take(), self)  # so that it answers the earlier requests of this turn, and raises
                raise
        return frames.take() if frames.has_whole_frame else b""

    def _buffer(self, data: bytes) -> None:
        """Keep unhandled bytes. The connection may be closed after it, if that was too much for the port."""
        self.frames.add(data)
        self._listener.frame_budget.add(len(data))
        if not self.is_authenticated and self.is_open:
            self._listener.unauthenticated_budget.add(len(data))

    def _keep_for_turn(self, data: bytes, *, is_short: bool) -> None:
        """Keep bytes beyond the budget of this turn. Pause, except after a short read that completes no frame."""
        whole = self._gather(data) if data and self.is_open else b""
        if whole:
            self._buffer(whole)
        if (whole or not is_short) and self.is_open:
            self._reading.wait_for_turn(self, len(data) if whole else 0, is_short=is_short)

    def _count_frame_bytes(self, data: bytes) -> int:
        """Return the size of the frame at the start of `data`. Raises for one that must not be awaited."""
        first_frame_bytes_max = None if self.is_authenticated else self._listener.first_frame_bytes_max
        return frame_bytes_needed(data, self._settings.wire, first_frame_bytes_max)

    def _resume(self, reason: ReadPause) -> None:
        """Remove `reason` for not reading. Frames that are kept are served, unless they wait for their turn."""
        self._reading.resume(reason)
        if not self._reading.is_waiting_for_turn:
            self._serve_kept()

    def _serve_kept(self) -> None:
        """Serve the frames that are kept, unless their replies would have to wait for the peer."""
        is_deferred = self._reading.pauses & ReadPause.ANSWERS_DEFERRED
        if self.is_open and not self.replies.paused_at and not is_deferred and self.frames.has_whole_frame:
            data = self.frames.take()
            self.active_at = self._loop.time()
            try:
                self._handle_bytes(data)
            except RemoteProtocolError as error:
                self.close(f"broke the protocol: {error}", CloseReason.PROTOCOL)

    def _detect_tls(self, data: bytes) -> None:
        self._is_first_byte_pending = False
        tls = self._settings.tls
        context = self._listener.tls_context
        if tls is None or context is None or tls.mode is TlsMode.DISABLED:
            return
        if data[0] == TLS_HANDSHAKE_BYTE:
            self._tls = TlsLayer(context)
            self._handshake_began_at = self.active_at
            self._listener.handshakes.begin(self)
        elif tls.mode is TlsMode.ENFORCING:
            raise RemoteProtocolError("plain text on a port that enforces TLS")

    def _decrypt(self, tls: TlsLayer, data: bytes) -> bytes:
        was_ready = tls.is_ready
        try:
            plain = tls.receive(data)
        finally:
            output = tls.pending_output()
            if output and self.is_open:
                self.replies.write(output)
        if tls.is_ready and not was_ready:
            self._handshake_began_at = 0.0
            self._listener.handshakes.end(self)
            self.peer_subject = tls.peer_subject()
        if tls.is_closed and not plain:
            self.close("ended TLS", CloseReason.TLS)
        return plain

    def _handle_callback_failure(self, callback: str, error: Exception) -> None:
        """Close this connection after an unexpected exception; others are not affected."""
        self._listener.close_log.log_callback_failure(join_address(*self.peer), callback, error)
        self._mark_closed()
        self.abort()

    def _mark_closed(self) -> None:
        self.is_open = False
        self._closed_at = self._loop.time()
        self.frames.clear()
