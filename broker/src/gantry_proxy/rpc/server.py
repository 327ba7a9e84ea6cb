"""A port that serves gRPC: its connections, the limits over all of them, TLS, and the orderly end.

    accept -> handshake, preface -> calls -> the client leaves, is silent, breaks the protocol, or does not read
    drain  -> clients open new calls elsewhere; endless calls end at once, others by themselves, at most for the grace

Output of a connection is collected for one turn of the event loop, so that the replies of a turn are one write.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final, cast, final

from gantry_proxy.http2.connection import Http2Connection, Http2Limits
from gantry_proxy.http2.frames import ErrorCode, Http2Error
from gantry_proxy.http2.hpack import Field
from gantry_proxy.http2.streams import IGNORED, Receiver, Stream
from gantry_proxy.rpc.call import TOO_MANY_BYTES, UNCOUNTED_FIELDS, UNCOUNTED_HEADER_BYTES, Call
from gantry_proxy.rpc.compression import Decompressor
from gantry_proxy.rpc.limits import RpcLimits
from gantry_proxy.rpc.protocol import CONTENT_TYPE, Method, StatusCode, failure_headers, http_failure
from gantry_proxy.rpc.shares import ConnectionShare, PortUse
from gantry_remoting.addresses import listen, listening_port, peer_address, stop_listening
from gantry_remoting.certificates import CertificateSource
from gantry_remoting.tls_layer import TlsLayer

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 1.0
"""How long the last bytes may take to reach a client at the end."""
STOPPING: Final = "the proxy stops: connect to another one"
BACKLOG: Final = 1_024
UNCOUNTED_BUFFER_BYTES: Final = 4_096
"""How many bytes of an incomplete frame the memory of a connection includes."""


@final
class RpcServer:
    """The port. Owned by the event loop."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: RpcLimits,
        certificates: CertificateSource[ssl.SSLContext] | None,
    ) -> None:
        """``methods`` are by path; ``certificates`` are started by their owner, and without them there is no TLS."""
        self.loop: Final = asyncio.get_running_loop()
        self.methods: Final = methods
        self.limits: Final = limits
        self.times: Final = limits.times
        self.connection_limits: Final = Http2Limits(
            streams_max=limits.streams_per_connection_max, header_bytes_max=limits.header_bytes_max
        )
        self.message_bytes_max: Final = limits.message_bytes_max
        self.decompressor: Final = Decompressor(limits.message_bytes_max)
        self.stream_window: Final = self.connection_limits.stream_window
        self.calls: Final[set[Call]] = set()
        """The open calls, also those whose request is not complete."""
        self.connections: Final[set[RpcConnection]] = set()
        self.handshakes: Final[dict[RpcConnection, None]] = {}
        """Connections whose TLS handshake is not complete, oldest first."""
        self.use: Final = PortUse(
            bytes_max=limits.held_bytes_max // limits.processes,
            calls_max=limits.calls_max,
            connections_max=limits.connections_max,
            address_factor=limits.address_factor,
        )
        self._certificates: Final = certificates
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_idle = asyncio.Event()
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<RpcServer {self.use!r}>"

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for the next connection."""
        return None if self._certificates is None else self._certificates.current

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError."""
        self._server = await listen(lambda: RpcConnection(self), host, port, backlog=BACKLOG)
        self._sweep()
        return listening_port(self._server)

    def start_without_port(self) -> None:
        """Serve the connections that `adopt` gets."""
        self._sweep()

    async def adopt(self, accepted: socket.socket) -> None:
        """Serve a connection that another process has accepted. A client that is gone already is ignored."""
        try:
            await self.loop.connect_accepted_socket(lambda: RpcConnection(self), accepted)
        except OSError as error:
            log.info("connection lost before it was served", extra={"reason": str(error)})
            accepted.close()

    async def stop(self, grace_s: float) -> None:
        """Let clients move their calls to other servers, end the calls that run after the grace, and close."""
        self._is_closing = True
        if self._server is not None:
            await stop_listening(self._server)
        if grace_s > 0:
            await self._drain(grace_s)
        for call in list(self.calls):
            call.fail(StatusCode.UNAVAILABLE, STOPPING)
        await self._wait_until(lambda: not self.calls, CLOSE_TIMEOUT_S)
        for connection in list(self.connections):
            connection.close(ErrorCode.NO_ERROR, "the proxy stops")
        await self._wait_until(lambda: not self.connections, CLOSE_TIMEOUT_S)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            await self._server.wait_closed()

    # ------- CallOwner

    def begin(self, call: Call) -> None:
        self.calls.add(call)
        self.use.calls += 1
        call.share.address.calls += 1

    def end(self, call: Call) -> None:
        if call in self.calls:
            self.calls.remove(call)
            self.use.calls -= 1
            call.share.address.calls -= 1
            self._notify()

    # ------- what connections call

    def admit(self, connection: "RpcConnection", peer: str) -> ConnectionShare | None:
        """Return the share of a new connection; None if there is no room for it, or if the port stops."""
        share = None if self._is_closing else self.use.connect(peer)
        if share is not None:
            self.connections.add(connection)
        return share

    def begin_handshake(self, connection: "RpcConnection") -> None:
        """Add a handshake. At the limit the oldest one ends, so that a flood displaces itself."""
        if len(self.handshakes) >= self.limits.handshakes_max:
            next(iter(self.handshakes)).abort()
        self.handshakes[connection] = None

    def forget(self, connection: "RpcConnection", share: ConnectionShare) -> None:
        self.connections.discard(connection)
        self.handshakes.pop(connection, None)
        self.use.disconnect(share)
        self._notify()

    # ------- the end

    async def _drain(self, grace_s: float) -> None:
        """Wait until no call is open. New ones are refused in a way that makes clients repeat them elsewhere.

        A connection without a complete handshake has no call, and nothing can be sent on it.
        """
        ends_at = self.loop.time() + grace_s
        for connection in list(self.handshakes):
            connection.abort()
        for connection in self.connections:
            connection.http2.begin_drain()
        await self._wait_until(lambda: not self.connections, min(self.times.drain_notice_s, grace_s))
        for connection in self.connections:
            connection.http2.finish_drain()
        for call in [one for one in self.calls if one.method.is_endless]:
            call.fail(StatusCode.UNAVAILABLE, STOPPING)
        await self._wait_until(lambda: not self.calls, ends_at - self.loop.time())

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition that a call or a connection changes when it ends, at most for this time."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                while not condition():
                    self._is_idle.clear()
                    await self._is_idle.wait()
        except TimeoutError:
            pass

    def _notify(self) -> None:
        if self._is_closing:
            self._is_idle.set()

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(self.times.sweep_interval_s, self._sweep)
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check_timeouts(now)


@final
class RpcConnection(asyncio.Protocol):
    """The connection of one client. Owned by the event loop."""

    __slots__ = (
        "_buffered",
        "_is_flushing",
        "_is_pinged",
        "_loop",
        "_output",
        "_paused_at",
        "_peer",
        "_received_at",
        "_server",
        "_share",
        "_tls",
        "_transport",
        "_unsent",
        "http2",
    )  # fmt: skip

    def __init__(self, server: RpcServer) -> None:
        self._server: Final = server
        self._loop: Final = server.loop
        self.http2: Final = Http2Connection(self._accept, self._send, server.connection_limits)
        self._tls: TlsLayer | None = None
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._share: ConnectionShare | None = None
        """None until the connection is admitted."""
        self._buffered = 0
        """How many bytes of an incomplete frame are counted."""
        self._unsent = 0
        """How many bytes that the transport holds are counted."""
        self._output: list[bytes] = []
        self._is_flushing = False
        self._received_at = self._loop.time()
        self._is_pinged = False
        self._paused_at: float | None = None
        """Since when the transport has too much that the client has not read."""

    def __repr__(self) -> str:
        return f"<RpcConnection {self._peer} {self.http2!r}>"

    def close(self, code: ErrorCode, text: str) -> None:
        """Send the reason and close, once what was sent before has left."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._tls is not None and not self._tls.is_ready:
            self.abort()
            return
        self.http2.end(code, text)
        self._flush()
        transport.close()

    def abort(self) -> None:
        """Close the connection at once; what was not sent is lost."""
        self._server.handshakes.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def check_timeouts(self, now: float) -> None:
        """Close the connection of a client that is dead, does not begin, or does not read. Called periodically."""
        http2, silent_s, is_tight = self.http2, now - self._received_at, self._server.use.is_tight
        times = self._server.times
        http2.add_credits(times.sweep_interval_s)
        self._count_unsent()
        for stream in list(http2.streams.values()):
            if isinstance(stream.receiver, Call):
                stream.receiver.expire(now, is_tight=is_tight)
        if not http2.has_preface:
            if silent_s > times.preface_s:
                self._give_up("the client did not begin in time")
        elif self._paused_at is not None and now - self._paused_at > times.transport_s:
            self._give_up("the client does not read")
        elif silent_s > times.keepalive_s + times.keepalive_answer_s:
            self._give_up("the client does not answer")
        elif silent_s > times.keepalive_s and not self._is_pinged:
            self._is_pinged = True
            http2.ping()

    def _give_up(self, reason: str) -> None:
        log.info("closing connection", extra={"peer": self._peer, "reason": reason})
        self.abort()

    # ------- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = peer_address(transport.get_extra_info("peername"))[0]
        self._share = self._server.admit(self, self._peer)
        if self._share is None:
            log.info("connection refused", extra={"peer": self._peer, "reason": "too many connections, or stopping"})
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._server.limits.unsent_bytes_max)
        context = self._server.tls_context
        if context is not None:
            self._tls = TlsLayer(context)
            self._server.begin_handshake(self)
        else:
            self.http2.start()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        self._is_pinged = False
        try:
            if self._tls is not None:
                data = self._decrypt(self._tls, data)
            if data:
                self.http2.receive(data)
                self._count_buffered()
        except Http2Error as error:
            log.info("client broke the protocol", extra={"peer": self._peer, "reason": str(error)})
            self.close(error.code, str(error))
        except ssl.SSLError as refusal:
            log.info("TLS handshake failed", extra={"peer": self._peer, "reason": str(refusal)})
            self._send_alert()
            self.abort()

    def pause_writing(self) -> None:
        self._paused_at = self._loop.time()
        self.http2.pause()

    def resume_writing(self) -> None:
        self._paused_at = None
        self.http2.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.clear()
        self.http2.lose()
        self._output.clear()
        if self._share is not None:
            self._server.forget(self, self._share)

    # ------- output

    def _send(self, data: bytes) -> None:
        self._output.append(data)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what was sent in this turn of the loop."""
        self._is_flushing = False
        transport = self._transport
        if not self._output or transport is None or transport.is_closing():
            self._output.clear()
            return
        data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
        self._output.clear()
        waiting = transport.get_write_buffer_size()
        transport.write(data if self._tls is None else self._tls.encrypt(data))
        if waiting or self._unsent:
            self._count_unsent()

    def _count_unsent(self) -> None:
        """Count what the transport holds, which the client has not read; if that is too much, close the connection."""
        share, transport = self._share, self._transport
        if share is None or transport is None or transport.is_closing():
            return
        size = transport.get_write_buffer_size() - self._unsent
        self._unsent += size
        if not share.hold(size):
            self._give_up("the client does not read, and all clients together hold too many bytes")

    def _count_buffered(self) -> None:
        """Count an incomplete frame; if there is no room for it, close the connection."""
        size, share = self.http2.buffered_bytes, self._share
        if size <= UNCOUNTED_BUFFER_BYTES:
            size = 0
        if size == self._buffered or share is None:
            return
        difference, self._buffered = size - self._buffered, size
        if not share.hold(difference):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, TOO_MANY_BYTES)

    def _decrypt(self, tls: TlsLayer, data: bytes) -> bytes:
        was_ready = tls.is_ready
        plain = tls.receive(data)
        if self._transport is not None and (output := tls.pending_output()):
            self._transport.write(output)
        if tls.is_ready and not was_ready:
            self._server.handshakes.pop(self, None)
            self.http2.start()
        if tls.is_closed and self._transport is not None:
            self._transport.close()
        return plain

    def _send_alert(self) -> None:
        if self._tls is not None and self._transport is not None and (output := self._tls.pending_output()):
            self._transport.write(output)

    # ------- calls

    def _accept(self, stream: Stream, fields: list[Field], size: int) -> Receiver:
        """Begin the call of a stream with headers of this size, or refuse it."""
        headers, server, share = dict(fields), self._server, self._share
        assert share is not None, "a connection that was refused reads nothing"
        if headers.get(":method") != "POST":
            return _refused(stream, http_failure(405))
        if not headers.get("content-type", "").startswith(CONTENT_TYPE):
            return _refused(stream, http_failure(415))
        path = headers.get(":path", "")
        method = server.methods.get(path)
        if method is None:
            return _refused(stream, failure_headers(StatusCode.UNIMPLEMENTED, f"unknown method {path[:128]!r}"))
        if not server.use.has_room_for_call(share):
            server.use.refuse(self._peer, "calls")
            return _refused(stream, failure_headers(StatusCode.RESOURCE_EXHAUSTED, "too many calls are running"))
        call = Call(server, stream, method, headers, share)
        if size > UNCOUNTED_HEADER_BYTES or len(headers) > UNCOUNTED_FIELDS:
            call.hold_headers(size)
        return call


def _refused(stream: Stream, block: bytes) -> Receiver:
    stream.end(block)
    return IGNORED
