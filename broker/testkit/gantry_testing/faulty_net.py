"""A net in memory whose connections can be cut, delayed and chopped on purpose.

``FaultyNet`` is the port's twin: ``listen`` and ``connect`` on the same object meet each other. Every connection is a
pair of transports on the running loop; bytes travel in the order they were written, at the loop's next turn, unless the
connection is told otherwise:

    connection.hold()           nothing arrives until release()
    connection.chop(n)          arrives in pieces of at most n bytes
    connection.cut()            both ends lose the connection, undelivered bytes are gone
    net.refuse(port)            connecting to the port fails

No sleeps anywhere: a test holds, does something, and releases.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import deque
from typing import Any, Final, final

from gantry_broker.ports.net import Listener, ProtocolFactory

FIRST_FREE_PORT: Final = 50_000


@final
class MemoryTransport(asyncio.Transport):
    """One end. Owned by the loop's thread, as its protocol is."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: MemoryConnection, local_port: int, peer_port: int
    ) -> None:
        names = {"sockname": ("127.0.0.1", local_port), "peername": ("127.0.0.1", peer_port)}
        super().__init__(names)
        self._loop = loop
        self._connection = connection
        self._protocol: asyncio.BaseProtocol | None = None
        self._incoming: deque[bytes] = deque()
        self._is_closing = False
        self._is_lost = False
        self._is_reading = True
        self._ends_after_incoming = False
        self.peer: MemoryTransport | None = None

    # -- the transport -------------------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_closing or self.peer is None or not data:
            return
        self.peer.receive(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.deliver_soon()

    def get_write_buffer_size(self) -> int:
        return 0 if self.peer is None else sum(map(len, self.peer._incoming))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.lose, None)
            if self.peer is not None:
                self.peer.end_after_incoming()

    def abort(self) -> None:
        self._connection.cut()

    # -- what the connection does --------------------------------------------------------------------------------------

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        self._incoming.append(data)
        self.deliver_soon()

    def end_after_incoming(self) -> None:
        self._ends_after_incoming = True
        self.deliver_soon()

    def deliver_soon(self) -> None:
        self._loop.call_soon(self.deliver)

    def deliver(self) -> None:
        """Hand over what has arrived, one piece per turn of the loop."""
        if self._is_lost or not self._is_reading or self._connection.is_held:
            return
        if self._incoming:
            data = self._incoming.popleft()
            piece, rest = data[: self._connection.piece_bytes], data[self._connection.piece_bytes :]
            if rest:
                self._incoming.appendleft(rest)
            assert isinstance(self._protocol, asyncio.Protocol)
            self._protocol.data_received(piece)
            self.deliver_soon()
        elif self._ends_after_incoming:
            self._is_closing = True
            self.lose(None)

    def lose(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._incoming.clear()
            if self._protocol is not None:
                self._protocol.connection_lost(exc)


@final
class MemoryConnection:
    """Two transports and the faults between them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client_port: int, server_port: int) -> None:
        self.is_held = False
        self.piece_bytes = 1 << 30
        self.client: Final = MemoryTransport(loop, self, client_port, server_port)
        self.server: Final = MemoryTransport(loop, self, server_port, client_port)
        self.client.peer, self.server.peer = self.server, self.client
        self._loop: Final = loop

    def hold(self) -> None:
        """Nothing arrives at either end any more."""
        self.is_held = True

    def release(self) -> None:
        """What was held arrives, in order."""
        self.is_held = False
        self.client.deliver_soon()
        self.server.deliver_soon()

    def chop(self, piece_bytes: int) -> None:
        """From now on bytes arrive in pieces of at most this size."""
        self.piece_bytes = piece_bytes

    def cut(self) -> None:
        """The cable is cut: both ends hear of a reset, and nothing that was under way arrives."""
        reset = ConnectionResetError(errno.ECONNRESET, "the connection was cut")
        for end in (self.client, self.server):
            end._is_closing = True
            end._incoming.clear()
            self._loop.call_soon(end.lose, reset)


@final
class MemoryListener:
    """A port that is listened on."""

    def __init__(self, net: FaultyNet, port: int, factory: ProtocolFactory) -> None:
        self._net = net
        self._port = port
        self.factory: Final = factory

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        self._net.listeners.pop(self._port, None)


@final
class FaultyNet:
    """The port's twin. TLS contexts are accepted and ignored: nothing leaves the process."""

    def __init__(self) -> None:
        self.listeners: dict[int, MemoryListener] = {}
        self.connections: list[MemoryConnection] = []
        """Every connection ever made, in order."""

        self._refused: set[int] = set()
        self._next_port = FIRST_FREE_PORT

    def refuse(self, port: int, *, is_refused: bool = True) -> None:
        """Let connecting to ``port`` fail, or work again."""
        (self._refused.add if is_refused else self._refused.discard)(port)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> Listener:
        port = port or self._free_port()
        if port in self.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} is in use")
        listener = self.listeners[port] = MemoryListener(self, port, factory)
        return listener

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        listener = self.listeners.get(port)
        if listener is None or port in self._refused:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        connection = MemoryConnection(asyncio.get_running_loop(), self._free_port(), port)
        self.connections.append(connection)
        protocol = factory()
        connection.server.start(listener.factory())
        connection.client.start(protocol)
        return connection.client, protocol
