"""One peer of a listener: bytes in, whole frames to the service, replies out, and what the peer may cost.

All the bytes of one read go to the service at once, and all its replies go out in one write. A service whose replies
grow large stops early; the rest of the bytes waits until the peer has taken them, and so does what the peer sends
next. A connection that has delivered `turn_bytes_max` in one turn of the loop is not read again before the next turn,
so that timers run and other connections are served inside a long burst. A peer that breaks the protocol is closed with
one log line. What is overdue is decided here, by `overdue`, from a time that the listener passes in; when to ask is the
listener's business.

What a connection holds counts towards its port's budgets (`budgets`), and no exception leaves a callback: it costs the
connection that it was raised for, with a line that is rate-limited, and no other.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import ssl
import struct
import termios
from enum import IntFlag
from typing import Final, Protocol, cast, final

from gantry_remoting.addresses import join_address, peer_address
from gantry_remoting.budgets import ByteBudget, ReplyTurns
from gantry_remoting.closings import CloseReason, Closings
from gantry_remoting.errors import ConnectionClosed, RemotingTimeout
from gantry_remoting.frame_parts import FrameParts
from gantry_remoting.handshakes import Handshakes
from gantry_remoting.settings import ListenerSettings, TlsMode
from gantry_remoting.tls_layer import TLS_HANDSHAKE_BYTE, TlsLayer
from gantry_remoting.turns import COUNTED_READ_BYTES, SHORT_READS_STEP, ReadTurns
from gantry_wire.command import Command
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, check_frame_head
from gantry_wire.limits import WireLimits

OVERDUE: Final = {
    CloseReason.READER_TIMEOUT: "does not read its replies",
    CloseReason.FRAME_TIMEOUT: "did not finish a frame in time",
    CloseReason.IDLE: "was idle too long",
}
_OVER_BUDGET: Final = {
    CloseReason.FRAME_BUDGET: "the port's unfinished frames are over budget, and its costs most",
    CloseReason.UNAUTHENTICATED_BUDGET: "frames of unauthenticated peers are over budget, and its costs most",
    CloseReason.REPLY_BUDGET: "the port's unread replies are over budget, and its cost most",
}

CLOSE_TIMEOUT_S: Final = 5.0
"""How long a connection that we closed may take to give its last replies to its peer."""

PASS_REPLY_BYTES_MAX: Final = 1024 * 1024
"""Replies of one pass after which a service should stop: small requests can ask for large answers. A connection holds
`reply_bytes_high`, one pass and one reply at most before it is not read any more."""

RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no seconds."""
QUEUED: Final = struct.Struct("i")
QUEUED_ROOM: Final = bytes(QUEUED.size)
"""The number that FIONREAD fills in."""


class ReadPause(IntFlag):
    """Why a connection is not read. It is read again when no reason is left."""

    NONE = 0
    TURN_SPENT = 1
    """It waits for a later turn of the loop: it has delivered `turn_bytes_max` in this one, or the port has taken
    `turn_read_bytes_max`."""
    REPLIES_UNREAD = 2
    """More reply bytes than `reply_bytes_high` wait for the peer."""
    PORT_BUSY = 4
    """Its requests wait for a turn in which less is written to others."""
    ANSWERS_DEFERRED = 8
    """Its next request waits until some of the deferred answers before it are given (`deferred_answers`)."""


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

    @property
    def closings(self) -> Closings: ...

    @property
    def frame_budget(self) -> ByteBudget: ...

    @property
    def unauthenticated_budget(self) -> ByteBudget: ...

    @property
    def reply_budget(self) -> ByteBudget: ...

    @property
    def reply_turns(self) -> ReplyTurns: ...

    @property
    def first_frame_bytes_max(self) -> int: ...

    @property
    def read_turns(self) -> ReadTurns: ...

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
        self._pending = FrameParts()
        self._needed_bytes = 0
        self._frame_began_at = 0.0
        self._write_paused_at = 0.0
        self._read_pause = ReadPause.NONE
        self.is_backlogged = False
        """Whether its last read had to wait for a turn, or its turn ended before the socket was empty: the peer sends
        faster than it is served."""
        self._turns = listener.read_turns
        self._turn = 0
        self._turn_bytes = 0
        self._granted_turn = -1
        self._is_waiting = False
        self._tls: TlsLayer | None = None
        self._is_sniffing = listener.settings.tls is not None
        self._waiters: dict[int, asyncio.Future[Command]] = {}
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.peer_subject = ""
        """Who the peer proved to be by a certificate; empty for one that showed none."""
        self.account: str | None = None
        """Whose signed heartbeat came last; None without access control."""
        self.is_authenticated = not listener.settings.is_guarded
        """Whether a request of it was signed well. Set by the service, and never taken back."""
        self._written_bytes = 0
        self._largest_write_bytes = 0
        self._taken_bytes = 0
        self._mark_bytes = 0
        self._mark_at = 0.0
        self.is_open = False
        self.active_at = 0.0
        self._closed_at = 0.0

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection {join_address(*self.peer)} {state} pending={len(self._pending)}>"

    # ------- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._begin(self._transport)
        except Exception as error:  # noqa: BLE001 - a callback's exception costs its own connection and no more
            self._callback_failed("connection_made", error)

    def _begin(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        if not peer:  # reset while it waited in the backlog: the kernel does not know any more who it was
            self._listener.closings.record("unknown", CloseReason.RESET, "was reset before it was accepted")
            transport.abort()
            return
        self.peer = peer_address(peer)
        self.local = peer_address(transport.get_extra_info("sockname"))
        self.active_at = self._mark_at = self._loop.time()
        transport.set_write_buffer_limits(high=self._settings.reply_bytes_high)
        self.is_open = True
        if self._listener.admit(self):
            self._listener.service.connected(self)

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
                is_in_turn = self._take_short(size) if is_short else self._take_large(size)
            if self._is_sniffing:
                self._sniff(data)
            if self._tls is not None:
                data = self._decrypt(data)
            if not is_in_turn:
                self._keep_for_turn(data, is_short=is_short)
            elif data and self.is_open:
                self._feed(data)
        except RemoteProtocolError as error:
            self.close(f"broke the protocol: {error}", CloseReason.PROTOCOL)
        except ssl.SSLError as error:
            self.close(f"TLS failed: {error.reason or error}", CloseReason.TLS)
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("data_received", error)

    def connection_lost(self, exc: Exception | None) -> None:
        was_known = self.is_open
        self.is_open = False
        self._pending.clear()
        self._tls = None  # 100 KiB and more of OpenSSL's, which must not wait for the garbage collector
        is_known = self._listener.forget(self) or was_known
        try:
            self._fail_waiters()
            if is_known:
                self._listener.service.disconnected(self)
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("connection_lost", error)

    def pause_writing(self) -> None:
        try:
            self._write_paused_at = self._loop.time()
            self._pause_reading(ReadPause.REPLIES_UNREAD)
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("pause_writing", error)

    def resume_writing(self) -> None:
        try:
            self._write_paused_at = 0.0
            self._resume_reading(ReadPause.REPLIES_UNREAD)
            self._resume()
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("resume_writing", error)

    # ------- what services call

    def send(self, data: bytes) -> None:
        """Write `data`. A peer that reads too slowly is closed rather than kept in memory."""
        transport = self._transport
        if transport is None or not self.is_open:
            return
        try:
            self._write(transport, data if self._tls is None else self._tls.encrypt(data))
        except ssl.SSLError as error:
            self.close(f"TLS failed: {error.reason or error}", CloseReason.TLS)
            return
        except Exception as error:  # noqa: BLE001 - a pass answers many connections: no write may cost the others
            self._callback_failed("send", error)
            return
        if self._write_paused_at and transport.get_write_buffer_size() > self._settings.reply_bytes_max:
            self.close("does not read its replies", CloseReason.REPLY_LIMIT)

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        size = len(data)
        self._written_bytes += size
        if size > self._largest_write_bytes:
            self._largest_write_bytes = size
        transport.write(data)
        self._listener.reply_turns.add(size)
        self._listener.reply_budget.add(size)

    def close(self, text: str, reason: CloseReason = CloseReason.SERVICE) -> None:
        """End the connection; `text` stands in the log, and `reason` is counted."""
        if not self.is_open or self._transport is None:
            return
        self.is_open = False
        self._closed_at = self._loop.time()
        self._listener.closings.record(join_address(*self.peer), reason, text)
        self._pending.clear()
        self._transport.abort() if self._write_paused_at else self._transport.close()

    def queued_bytes(self) -> int:
        """What the kernel has received from the peer and nobody has read."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        try:
            return (
                0
                if found is None
                else int(QUEUED.unpack(fcntl.ioctl(found.fileno(), termios.FIONREAD, QUEUED_ROOM))[0])
            )
        except (OSError, ValueError):  # it is closed
            return 0

    def evict(self, reason: CloseReason) -> None:
        """Close now because the port is over its budget, and free what is held."""
        self._drop_unsent()
        self.close(_OVER_BUDGET[reason], reason)
        self.abort()

    def _drop_unsent(self) -> None:
        """Have the kernel reset the connection instead of keeping what its peer does not read, 4 MiB and more."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        if found is not None:
            with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(found.fileno())) as copy:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)

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

    def overdue(self, now: float) -> CloseReason | None:
        """Why this connection should be closed at `now`, or None."""
        settings = self._settings
        reader_timeout_s = settings.reader_timeout_ms / 1000
        if self._write_paused_at and now - self._write_paused_at > reader_timeout_s:
            return CloseReason.READER_TIMEOUT
        if self._mark_bytes > self._taken_bytes and now - self._mark_at > reader_timeout_s:
            return CloseReason.READER_TIMEOUT  # too little waits to pause it, and even that is not read
        if self._frame_began_at and now - self._frame_began_at > settings.frame_timeout_ms / 1000:
            return CloseReason.FRAME_TIMEOUT
        is_deferred = self._read_pause & ReadPause.ANSWERS_DEFERRED  # by us: what it sends meanwhile is not read
        if not is_deferred and now - self.active_at > settings.idle_timeout_ms / 1000:
            return CloseReason.IDLE
        return None

    @property
    def frame_bytes(self) -> int:
        """Memory of what has come and is not handled yet: most often the part of a frame."""
        return self._pending.memory_bytes

    @property
    def frame_since(self) -> float:
        """Since when this part is here."""
        return self._frame_began_at or self._write_paused_at or self.active_at

    @property
    def reply_bytes(self) -> int:
        """Memory of replies that the peer has not taken, at most.

        A write that the kernel took a part of is kept as a whole until the rest is gone, so the largest one counts
        beside what waits.
        """
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if not waiting:
            self._largest_write_bytes = 0
        return waiting and waiting + self._largest_write_bytes

    @property
    def reply_since(self) -> float:
        """Since when the oldest of these replies waits, to the second."""
        return self._mark_at

    def note_reading(self, now: float) -> None:
        """Called every second: remembers where its replies ended, if those of the last time are taken."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self._taken_bytes = self._written_bytes - waiting
        if self._taken_bytes >= self._mark_bytes:
            self._mark_bytes, self._mark_at = self._written_bytes, now

    def is_stuck(self, now: float) -> bool:
        """Whether it was closed long ago and its peer does not even take what was left for it."""
        return not self.is_open and now - self._closed_at > CLOSE_TIMEOUT_S

    # ------- when it is read

    def _pause_reading(self, reason: ReadPause) -> None:
        if not self._read_pause and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._read_pause |= reason

    def _resume_reading(self, reason: ReadPause) -> None:
        """Drop `reason`, and read again if no other is left. A connection that is closed is not read any more."""
        was_paused = bool(self._read_pause)
        self._read_pause &= ~reason
        if not was_paused or self._read_pause or not self.is_open:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_short(self, size: int) -> bool:
        """Whether a short read may be served in this turn."""
        turns = self._turns
        turns.short_bytes += size
        if turns.short_bytes >= SHORT_READS_STEP and not turns.take_short():
            turns.short_bytes -= size  # it is counted when it is served
            self.is_backlogged = True
            return False
        self.is_backlogged = False
        return True

    def _take_large(self, size: int) -> bool:
        """Whether a large read may be served in this turn. Pauses a connection whose next read belongs to a later."""
        turns = self._turns
        if self._turn != turns.number:
            self._turn, self._turn_bytes = turns.number, 0
        self._turn_bytes += size
        if self._granted_turn != turns.number and not turns.take_large(size):
            self.is_backlogged = True
            return False
        self.is_backlogged = self._turn_bytes >= self._settings.turn_bytes_max or turns.has_waiting
        if self.is_backlogged:
            self._wait_to_be_read()
        return True

    def _keep_for_turn(self, data: bytes, *, is_short: bool) -> None:
        """Keep what was read beyond the port's budget of this turn, and read no more until it has been served."""
        whole = self._gather(data) if data and self.is_open else b""
        if whole:
            self._needed_bytes = 0
            self._frame_began_at = 0.0
            self._hold(whole)
        if (whole or not is_short) and self.is_open:
            self._wait_to_be_read(len(data) if whole else 0, is_short=is_short)

    def _wait_to_be_read(self, kept_bytes: int = 0, *, is_short: bool = False) -> None:
        if not self._read_pause & ReadPause.TURN_SPENT:
            self._pause_reading(ReadPause.TURN_SPENT)
            self._turns.wait(self, kept_bytes, is_short=is_short)

    def take_turn(self, kept_bytes: int) -> None:
        """Serve what was kept for this turn, or else read the connection again. Never raises."""
        try:
            is_kept = self._has_whole_frame
            if is_kept:
                self._go_on()
                is_large = kept_bytes >= COUNTED_READ_BYTES
                if is_large and self._turns.has_waiting and self.is_open and not self._has_whole_frame:
                    self._turns.wait(self)  # what it sends next stays in the kernel until then
                    return
            else:
                self._granted_turn = self._turns.number
            self._resume_reading(ReadPause.TURN_SPENT)
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("take_turn", error)

    def wait_for_answers(self) -> None:
        """Handle and read no more requests until `answers_given`."""
        self._pause_reading(ReadPause.ANSWERS_DEFERRED)

    def answers_given(self) -> None:
        """Go on with the requests that wait for answers. Never raises."""
        self.active_at = self._loop.time()
        try:
            self._resume_reading(ReadPause.ANSWERS_DEFERRED)
            self._resume()
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("answers_given", error)

    # ------- inside

    def _feed(self, data: bytes) -> None:
        if self._pending:
            data = self._gather(data)
            if not data:
                return
        if self._listener.reply_turns.is_full:
            self._defer(data)
            return
        consumed, replies = self._handle(data, self)
        if replies and self.is_open:
            self.send(replies)
        if consumed < len(data) and self.is_open:
            rest = data[consumed:]
            self._needed_bytes = self._needed(rest)
            self._hold(rest)
            self._frame_began_at = 0.0 if self._has_whole_frame else self.active_at
            if self._has_whole_frame and not self._read_pause & ReadPause.ANSWERS_DEFERRED:
                self._wait_for_turn()
        else:
            self._frame_began_at = 0.0

    def _gather(self, data: bytes) -> bytes:
        """`data` with what is kept before it; nothing while that is only a part of a frame, or was too much."""
        if not self._pending:
            return data
        self._hold(data)
        if not self.is_open:
            return b""
        if self._needed_bytes <= 8:
            try:
                self._needed_bytes = self._needed(self._pending.head(FRAME_HEAD.size))
            except RemoteProtocolError:
                self._handle(self._pending.take(), self)  # so that it answers what it has of this turn, and raises
                raise
        return b"" if len(self._pending) < self._needed_bytes else self._pending.take()

    def _hold(self, data: bytes) -> None:
        """Keep what is not handled yet. The connection may be closed after it, if that was too much for the port."""
        self._pending.add(data)
        self._listener.frame_budget.add(len(data))
        if not self.is_authenticated and self.is_open:
            self._listener.unauthenticated_budget.add(len(data))

    def _defer(self, data: bytes) -> None:
        """Keep requests for a later turn, and read no more of them meanwhile."""
        self._needed_bytes = 0
        self._frame_began_at = 0.0
        self._hold(data)
        if self.is_open:
            self._pause_reading(ReadPause.PORT_BUSY)
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._listener.reply_turns.wait(self)

    def resume(self) -> None:
        """Its turn has come. Never raises."""
        self._is_waiting = False
        try:
            self._resume_reading(ReadPause.PORT_BUSY)
            self._resume()
        except Exception as error:  # noqa: BLE001 - see connection_made
            self._callback_failed("resume", error)

    def _needed(self, data: bytes) -> int:
        """How many bytes the frame at the start of `data` takes. Raises for one that must not be waited for."""
        needed = _needed_bytes(data, self._settings.wire)
        if not self.is_authenticated and needed > self._listener.first_frame_bytes_max:
            raise RemoteProtocolError(
                f"a frame of {needed} bytes passes the limit of {self._listener.first_frame_bytes_max} before "
                "a request was authenticated"
            )
        return needed

    @property
    def _has_whole_frame(self) -> bool:
        return bool(self._pending) and len(self._pending) >= self._needed_bytes

    def _resume(self) -> None:
        """Go on with frames that a pass left, unless they wait for a turn in which they are read."""
        if not self._read_pause & ReadPause.TURN_SPENT:
            self._go_on()

    def _go_on(self) -> None:
        """Serve the frames that are kept, unless their replies would only lie here."""
        is_deferred = self._read_pause & ReadPause.ANSWERS_DEFERRED
        if self.is_open and not self._write_paused_at and not is_deferred and self._has_whole_frame:
            data = self._pending.take()
            self.active_at = self._loop.time()
            try:
                self._feed(data)
            except RemoteProtocolError as error:
                self.close(f"broke the protocol: {error}", CloseReason.PROTOCOL)

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
            if output and self.is_open:
                self._write(self._transport, output)
        if self._tls.is_ready and not was_ready:
            self._listener.handshakes.end(self)
            self.peer_subject = self._tls.peer_subject()
        if self._tls.is_ready and not plain and not self._pending:
            self._frame_began_at = 0.0
        if self._tls.is_closed and not plain:
            self.close("ended TLS", CloseReason.TLS)
        return plain

    def _callback_failed(self, callback: str, error: Exception) -> None:
        """An exception that should not be. It ends this connection; others are not affected."""
        self._listener.closings.callback_failed(join_address(*self.peer), callback, error)
        self.is_open = False
        self._closed_at = self._loop.time()
        self._pending.clear()
        self.abort()

    def _fail_waiters(self) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(ConnectionClosed(f"{join_address(*self.peer)} is gone"))


def _needed_bytes(data: bytes, limits: WireLimits) -> int:
    """How many bytes the frame at the start of `data` takes, or how many we need to know. Raises for bad lengths."""
    if len(data) >= FRAME_HEAD.size:
        total, type_and_header = FRAME_HEAD.unpack_from(data)
        check_frame_head(total, type_and_header, limits)
        return int(total) + 4
    if len(data) >= 4:
        check_frame_head(int.from_bytes(data[:4], "big"), 0, limits)
        return FRAME_HEAD.size
    return 4
