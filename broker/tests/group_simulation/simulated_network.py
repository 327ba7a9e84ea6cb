"""The network between simulated processes: connections as the kernel's TCP gives them to asyncio, and single messages.

A *place* is the address of a machine. Bytes between two places are delivered in order, in pieces, after the delay of
the link. While packets from one place to another are dropped, bytes wait as in TCP: they arrive after the link has
healed, unless the connection has ended before. A lost packet delays what follows by a retransmission.

| what ends | what the peer sees |
|---|---|
| a process, while its machine runs | a reset, after what was delivered before |
| a machine that loses its power | nothing; a reset when it sends something and the machine runs again |
| the connection, by its owner | the rest of what was written, then the end |
"""

from __future__ import annotations

import asyncio
import errno
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, final

from group_simulation.simulated_world import SimulatedProcess, World

DELAY_MIN_S: Final = 1e-4
DELAY_MAX_S: Final = 1e-3
"""The delay of a link without a fault."""
RETRANSMISSION_S: Final = 0.2
"""The first pause before a lost packet is sent again; it doubles up to ``RETRANSMISSION_MAX_S``."""
RETRANSMISSION_MAX_S: Final = 3.0
SPLIT_SHARE: Final = 0.1
"""The share of writes that arrive in two pieces."""
SOCKET_BYTES: Final = 256 << 10
"""The unread bytes that the buffers of both kernels hold."""
REFUSED: Final = OSError(errno.ECONNREFUSED, "connection refused")


@final
class SimulatedServer:
    """A listening port of a process."""

    def __init__(
        self, network: SimulatedNetwork, process: SimulatedProcess, factory: Any, host: str, port: int
    ) -> None:
        self.process: Final = process
        self.factory: Final = factory
        self._network: Final = network
        self._address: Final = (host, port)
        self.sockets: Final = [SimpleNamespace(getsockname=lambda: (host, port))]

    def close(self) -> None:
        self._network.stop_listening(self._address, self)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class Link:
    """One direction between two places."""

    def __init__(self, network: SimulatedNetwork, source: str, target: str) -> None:
        self.chance: Final = network.world.random(f"link {source} {target}")
        self.is_cut = False
        self.loss = 0.0
        """The probability that a packet is lost."""
        self.extra_delay_s = 0.0
        """The largest additional delay of a packet."""

    def delay_s(self) -> float:
        """Return the delay of the next packet, with its retransmissions."""
        delay_s, pause_s = self.chance.uniform(DELAY_MIN_S, DELAY_MAX_S), RETRANSMISSION_S
        if self.extra_delay_s:
            delay_s += self.chance.uniform(0, self.extra_delay_s)
        while self.loss and self.chance.random() < self.loss:
            delay_s += pause_s
            pause_s = min(2 * pause_s, RETRANSMISSION_MAX_S)
        return delay_s


@final
class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: SimulatedNetwork, process: SimulatedProcess, local: Any, remote: Any) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.process: Final = process
        self.peer: SimulatedTransport
        self.protocol: Any = None
        self.is_lost = False
        """Whether the end of the connection has reached its protocol, or is about to."""
        self._network: Final = network
        self._link: Final = network.link(local[0], remote[0])
        self._arrives_at = 0.0
        self._outstanding: Final[deque[bytes | None]] = deque()
        """What was written and has not arrived yet; None is the end."""
        self._outstanding_bytes = 0
        self._received: Final[deque[bytes | None]] = deque()
        """What has arrived while reading was paused."""
        self._is_closing = False
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._high, self._low = 64 << 10, 16 << 10

    def __repr__(self) -> str:
        local, remote = self.get_extra_info("sockname"), self.get_extra_info("peername")
        return f"<SimulatedTransport {local} -> {remote} closing={self._is_closing} lost={self.is_lost}>"

    # -- asyncio's methods ---------------------------------------------------------------------------------------------

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_reading_paused

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        if self._received:
            self.process.loop.call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._outstanding_bytes - SOCKET_BYTES)

    def write(self, data: Any) -> None:
        if self._is_closing or self.is_lost or not self.process.is_alive or not data:
            return
        whole = bytes(data)
        chance = self._link.chance
        at = chance.randrange(1, len(whole)) if len(whole) > 1 and chance.random() < SPLIT_SHARE else len(whole)
        for piece in (whole[:at], whole[at:]):
            if piece:
                self._send(piece)
        if self.get_write_buffer_size() > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(bytes(part) for part in list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._send(None)
            self._lose(None)

    def abort(self) -> None:
        if not self._is_closing or not self.is_lost:
            self._is_closing = True
            self._outstanding.clear()
            self._network.reset(self, self.peer)
            self._lose(None)

    # -- the network ---------------------------------------------------------------------------------------------------

    def _send(self, piece: bytes | None) -> None:
        world = self._network.world
        self._outstanding.append(piece)
        self._outstanding_bytes += len(piece or b"")
        self._arrives_at = max(self._arrives_at, world.now + self._link.delay_s())
        world.at(self._arrives_at, self._arrive)

    def _arrive(self) -> None:
        """Deliver the oldest piece, unless it is lost or must wait."""
        if not self._outstanding:
            return
        if not self._network.is_running(self.process.host):
            self._outstanding.clear()
            return
        if self._link.is_cut or not self._network.is_running(self.peer.process.host):
            self._network.world.after(RETRANSMISSION_S + self._link.delay_s(), self._arrive)
            return
        if self.peer.is_lost:
            self._outstanding.clear()
            self._network.reset(self.peer, self)
            return
        piece = self._outstanding.popleft()
        self.peer.process.call_soon(self.peer._receive, piece, self)

    def _receive(self, piece: bytes | None, sender: SimulatedTransport) -> None:
        if self.is_lost:
            return
        self._received.append(piece)
        if piece is not None:
            sender.process.call_soon(sender._taken, len(piece))
        if not self._is_reading_paused:
            self._read()

    def _taken(self, count: int) -> None:
        """Note that the kernel of the peer has taken bytes."""
        self._outstanding_bytes -= count
        if self._is_writing_paused and self.get_write_buffer_size() <= self._low and not self.is_lost:
            self._is_writing_paused = False
            self.protocol.resume_writing()

    def _read(self) -> None:
        while self._received and not self._is_reading_paused and not self.is_lost:
            piece = self._received.popleft()
            if piece is None:
                self._is_closing = True
                self._lose(None)
            else:
                self.protocol.data_received(piece)

    def _lose(self, error: Exception | None) -> None:
        """Tell the protocol that the connection has ended, in the next turn."""
        if not self.is_lost:
            self.is_lost = True
            if self.protocol is not None:
                self.process.call_soon(self.protocol.connection_lost, error)

    def reset_arrived(self) -> None:
        """End the connection, because the peer's kernel does not know it any more."""
        if not self.is_lost:
            self._is_closing = True
            self._lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))


@final
class SimulatedNetwork:
    """All links, ports and connections of one world."""

    def __init__(self, world: World) -> None:
        self.world: Final = world
        self.chance: Final = world.random("network")
        self.is_running: Callable[[str], bool] = lambda host: True
        """Whether the machine at a place has power. Set by the owner of the machines."""
        self._links: Final[dict[tuple[str, str], Link]] = {}
        self._servers: Final[dict[tuple[str, int], SimulatedServer]] = {}
        self._transports: Final[defaultdict[int, list[SimulatedTransport]]] = defaultdict(list)
        self._ports = 40_000

    def link(self, source: str, target: str) -> Link:
        """Return the link from one place to another."""
        key = source, target
        if key not in self._links:
            self._links[key] = Link(self, source, target)
        return self._links[key]

    # -- faults --------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from ``source`` to ``target`` from now on."""
        self.link(source, target).is_cut = True

    def heal(self, source: str, target: str) -> None:
        """Drop no more packets from ``source`` to ``target``."""
        self.link(source, target).is_cut = False

    # -- connections ---------------------------------------------------------------------------------------------------

    def listen(self, process: SimulatedProcess, factory: Any, host: str, port: int) -> SimulatedServer:
        if (host, port) in self._servers:
            raise OSError(errno.EADDRINUSE, "address already in use")
        server = self._servers[host, port] = SimulatedServer(self, process, factory, host, port)
        return server

    def stop_listening(self, address: tuple[str, int], server: SimulatedServer) -> None:
        if self._servers.get(address) is server:
            del self._servers[address]

    async def connect(self, process: SimulatedProcess, factory: Any, host: str, port: int) -> Any:
        """Return a transport and its protocol. Raises OSError; hangs while no packet passes."""
        done: asyncio.Future[SimulatedTransport] = process.loop.create_future()
        self._ports += 1
        local, remote = (process.host, self._ports), (host, port)

        def finish(end: SimulatedTransport | None) -> None:
            if done.done():
                if end is not None:
                    end.abort()  # the caller has given up
            elif end is None:
                done.set_exception(OSError(REFUSED.errno, REFUSED.strerror))
            else:
                done.set_result(end)

        def request() -> None:
            if done.done() or not process.is_alive:
                return
            is_cut = self.link(process.host, host).is_cut or self.link(host, process.host).is_cut
            if is_cut or not self.is_running(host):
                self.world.after(1.0, request)  # the kernel sends it again
                return
            server = self._servers.get(remote)
            end = None
            if server is not None and server.process.is_alive:
                end = self._join(process, local, server, remote)
            self.world.after(self.link(host, process.host).delay_s(), lambda: process.call_soon(finish, end))

        self.world.after(self.link(process.host, host).delay_s(), request)
        transport = await done
        if transport.is_lost:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        transport.protocol = protocol = factory()
        protocol.connection_made(transport)
        transport.resume_reading()
        return transport, protocol

    def _join(self, process: SimulatedProcess, local: Any, server: SimulatedServer, remote: Any) -> SimulatedTransport:
        """Make both ends of a connection, and give the server its end."""
        ours = SimulatedTransport(self, process, local, remote)
        theirs = SimulatedTransport(self, server.process, remote, local)
        ours.peer, theirs.peer = theirs, ours
        for end in (ours, theirs):
            self._transports[id(end.process)].append(end)
        ours.pause_reading()  # until it has its protocol

        def accept() -> None:
            theirs.protocol = server.factory()
            theirs.protocol.connection_made(theirs)

        server.process.call_soon(accept)
        return ours

    def reset(self, source: SimulatedTransport, target: SimulatedTransport) -> None:
        """Send a reset from one end of a connection to the other."""
        link = self.link(source.process.host, target.process.host)
        if not link.is_cut:
            when = max(self.world.now + link.delay_s(), source._arrives_at)
            self.world.at(when, lambda: target.process.call_soon(target.reset_arrived))

    def reset_connections(self, one: str, other: str) -> int:
        """Reset all connections between two places, as a middlebox does. Return their number."""
        count = 0
        for ends in tuple(self._transports.values()):
            for end in ends:
                if not end.is_lost and (end.process.host, end.peer.process.host) == (one, other):
                    count += 1
                    end.process.call_soon(end.reset_arrived)
                    end.peer.process.call_soon(end.peer.reset_arrived)
        return count

    def process_ended(self, process: SimulatedProcess, *, is_silent: bool) -> None:
        """Close the ports of a process. Unless its machine has lost power, the peers of its connections get a reset."""
        for address, server in tuple(self._servers.items()):
            if server.process is process:
                del self._servers[address]
        for end in self._transports.pop(id(process), []):
            if not end.is_lost:
                end.is_lost = True
                if not is_silent:
                    self.reset(end, end.peer)

    # -- single messages -----------------------------------------------------------------------------------------------

    def post(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Deliver one message, or not: a message on a cut link is lost."""
        link = self.link(source, target)
        if not link.is_cut and self.is_running(target):
            self.world.after(link.delay_s(), partial(_deliver, link, deliver))


def _deliver(link: Link, deliver: Callable[[], None]) -> None:
    if not link.is_cut:
        deliver()
