"""Limits of connections: the cost of one peer is bounded, and other peers are not affected.

S2 and S3 are rows of the fault catalogue (`faults/rows.py`).
"""

import asyncio
import gc
import logging
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gantry_remoting import (
    CannotConnect,
    Channel,
    CommandService,
    Connection,
    ConnectionClosed,
    Listener,
    ListenerSettings,
    RemotingTimeout,
    split_address,
)
from gantry_remoting.close_log import CloseReason
from gantry_remoting.connection import CLOSE_TIMEOUT_S, PASS_REPLY_BYTES_MAX
from gantry_testing.local import RawPeer, frame_head, on_both_loops, wait_until
from gantry_testing.slowness import patience
from gantry_wire import Command, decode_command, oneway
from gantry_wire.limits import WireLimits

LARGE_REPLY = 1
SLOW_REPLY = 2
MIB = 1024 * 1024


class Host:
    """A listener with a service that gives small and large replies, and counts connections."""

    def __init__(self, settings: ListenerSettings) -> None:
        self.connected: list[Connection] = []
        self.disconnected: list[Connection] = []
        self.handled = 0
        self.gate = asyncio.Event()
        service = CommandService(
            self.dispatch, settings.wire, connected=self.connected.append, disconnected=self.disconnected.append
        )
        self.listener = Listener(service, settings)

    def dispatch(self, command: Command, connection: Connection) -> Any:
        self.handled += 1
        if command.code == LARGE_REPLY:
            return command.reply(body=bytes(int(command.ext["size"])))
        if command.code == SLOW_REPLY:
            return self.later(command)
        return command.reply(body=command.body)

    async def later(self, command: Command) -> Command:
        await self.gate.wait()
        return command.reply()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"


@asynccontextmanager
async def running_host(**settings: Any) -> AsyncIterator[Host]:
    host = Host(ListenerSettings(host="127.0.0.1", **settings))
    await host.listener.start()
    try:
        yield host
    finally:
        await host.listener.close()


async def is_served(host: Host) -> bool:
    """Return whether a new client is served."""
    channel = await Channel.connect(host.address)
    reply = await channel.request(Command(code=99, body=b"echo"), 5000)
    await channel.close()
    return reply.body == b"echo"


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["reason"] for record in caplog.records if record.getMessage() == "connection closed"]


# ------- how many


@on_both_loops
async def test_connection_above_the_port_limit_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """S3: above the limit a new connection is closed at once; a free slot is used again."""
    caplog.set_level(logging.INFO)
    async with running_host(connections_max=3) as host:
        channels = [await Channel.connect(host.address) for _ in range(3)]
        await asyncio.gather(*(channel.request(Command(code=99), 5000) for channel in channels))

        extra = await RawPeer.open(host.listener.port)
        assert await extra.is_closed_by_peer()
        await extra.close()
        assert len(host.connected) == 3

        await channels.pop().close()
        await wait_until(lambda: len(host.disconnected) == 1)
        assert await is_served(host)
        for channel in channels:
            assert (await channel.request(Command(code=99), 5000)).code == 0
            await channel.close()
    assert reasons(caplog)[0] == "exceeds the connection limit of this port"


@on_both_loops
async def test_one_address_cannot_take_every_connection(caplog: pytest.LogCaptureFixture) -> None:
    """S3: connections of one address are limited separately; another address is served."""
    caplog.set_level(logging.INFO)
    async with running_host(connections_per_address_max=2) as host:
        mine = [await Channel.connect(host.address) for _ in range(2)]
        await asyncio.gather(*(channel.request(Command(code=99), 5000) for channel in mine))
        extra = await RawPeer.open(host.listener.port)
        assert await extra.is_closed_by_peer()

        other = await RawPeer.open(host.listener.port, source="127.0.0.2")
        await other.send(Command(code=99, opaque=5).encode())

        assert decode_command(await other.frame()).opaque == 5
        for channel in mine:
            await channel.close()
        await wait_until(lambda: len(host.disconnected) == 2)
        assert await is_served(host)
        await other.close()
        await extra.close()
    assert reasons(caplog)[0] == "exceeds the connection limit of its address"


# ------- how long


class ConnectionRig:
    """A connection of a listener with its transport replaced, and a clock of the test."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.answered = 0
        self.answer_bytes = 0
        self.is_slow = False
        self.listener = Listener(CommandService(self.answer), ListenerSettings(**settings))
        self.listener._loop = self  # type: ignore[assignment]
        self.connection = Connection(self.listener)
        self.written = bytearray()
        self.waiting_bytes = 0
        self.ended: list[str] = []
        self.reading: list[bool] = [True]
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def answer(self, command: Command, connection: Connection) -> Command:
        self.answered += 1
        return command.reply(body=bytes(self.answer_bytes))

    # what the connection asks of a loop

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    # what it asks of a transport

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.1", 1234)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: bytes) -> None:
        self.written += data
        if self.is_slow:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def pause_reading(self) -> None:
        self.reading.append(False)

    def resume_reading(self) -> None:
        self.reading.append(True)

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended.append("close")

    def abort(self) -> None:
        self.ended.append("abort")


def test_an_idle_connection_is_overdue() -> None:
    """S3: a connection without data for the idle timeout is overdue; one byte restarts the timeout."""
    rig = ConnectionRig(idle_timeout_ms=120_000)
    rig.now += 120
    assert rig.connection.timeout_reason(rig.now) is None

    rig.connection.data_received(b"\x00")
    rig.now += 30
    assert rig.connection.timeout_reason(rig.now) is None
    rig.now += 91

    assert rig.connection.timeout_reason(rig.now) is not None


def test_incomplete_frame_is_overdue() -> None:
    """S3: a frame that does not end in time is overdue however busily its peer sends; a whole one is not."""
    rig = ConnectionRig(frame_timeout_ms=30_000)
    frame = Command(code=99, body=bytes(100)).encode()
    rig.connection.data_received(frame)
    rig.now += 60
    assert rig.connection.timeout_reason(rig.now) is None

    for position in range(31):
        assert rig.connection.timeout_reason(rig.now) is None
        rig.connection.data_received(frame[position : position + 1])
        rig.now += 1
    assert rig.connection.timeout_reason(rig.now) is CloseReason.FRAME_TIMEOUT

    rig.connection.data_received(frame[31:])
    assert rig.connection.timeout_reason(rig.now) is None


def test_each_frame_has_its_own_timeout() -> None:
    """A connection that completes frames in time is never overdue, though there is always an incomplete one."""
    rig = ConnectionRig(frame_timeout_ms=30_000)
    frame = Command(code=99, body=bytes(100)).encode()

    rig.connection.data_received(frame[:50])
    for _ in range(10):
        rig.now += 25
        rig.connection.data_received(frame[50:] + frame[:50])
        assert rig.connection.timeout_reason(rig.now) is None


def test_peer_that_does_not_read_is_overdue() -> None:
    """A peer that reads no replies for its timeout is overdue; meanwhile nothing more is read from it."""
    rig = ConnectionRig(reader_timeout_ms=60_000)
    rig.connection.pause_writing()
    assert rig.reading == [True, False]
    rig.now += 60
    assert rig.connection.timeout_reason(rig.now) is None
    rig.now += 1
    assert rig.connection.timeout_reason(rig.now) is CloseReason.READER_TIMEOUT

    rig.connection.resume_writing()
    assert rig.reading == [True, False, True]
    assert rig.connection.timeout_reason(rig.now) is None


def test_a_slow_reader_is_not_taken_for_a_slow_writer() -> None:
    """Whole frames that wait for their peer to read are not incomplete frames, however long it takes."""
    rig = ConnectionRig(frame_timeout_ms=30_000, idle_timeout_ms=120_000)
    rig.answer_bytes = PASS_REPLY_BYTES_MAX + 1
    rig.is_slow = True
    rig.connection.data_received(Command(code=99).encode() * 10)

    for _ in range(9):
        rig.now += 50
        assert rig.connection.timeout_reason(rig.now) is None
        rig.connection.resume_writing()

    assert rig.answered == 10


def test_unread_replies_have_a_limit() -> None:
    """A connection whose peer does not read is closed at once when its unread replies exceed the limit."""
    rig = ConnectionRig(reply_bytes_max=1000)
    rig.waiting_bytes = 1001
    rig.connection.send(b"fine, since it is read")
    assert rig.ended == []

    rig.connection.pause_writing()
    rig.waiting_bytes = 1000
    rig.connection.send(b"one more")
    assert rig.ended == []
    rig.waiting_bytes = 1001
    rig.connection.send(b"one too many")

    assert rig.ended == ["abort"]
    assert not rig.connection.is_open
    rig.connection.send(b"nothing after the end")
    assert rig.written.endswith(b"one too many")


def test_a_closed_connection_does_not_linger() -> None:
    """A peer that does not even read its last replies is cut off after a while."""
    rig = ConnectionRig()
    rig.connection.close("the test closes it")
    assert rig.ended == ["close"]
    assert not rig.connection.is_stuck(rig.now + CLOSE_TIMEOUT_S)
    assert rig.connection.is_stuck(rig.now + CLOSE_TIMEOUT_S + 0.1)

    rig.connection.close("again")
    assert rig.ended == ["close"]


@on_both_loops
async def test_sweep_closes_overdue_connections(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: the listener itself closes overdue connections, with one line each that gives the reason."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("gantry_remoting.server.SWEEP_INTERVAL_S", 0.02)
    async with running_host(idle_timeout_ms=int(patience(500)), frame_timeout_ms=100) as host:
        slow = await RawPeer.open(host.listener.port)
        await slow.send(frame_head(100, 50))
        idle = await RawPeer.open(host.listener.port)

        assert await slow.is_closed_by_peer()
        assert await idle.is_closed_by_peer()
        await idle.close()
        await slow.close()
    assert sorted(reasons(caplog)) == ["did not finish a frame or its TLS handshake in time", "was idle too long"]


# ------- how much


@on_both_loops
async def test_a_slow_reader_costs_bounded_memory() -> None:
    """Requests for large replies are handled only as fast as their replies are read; all arrive, in order."""
    count = 200
    async with running_host() as host:
        peer = await RawPeer.open(host.listener.port)
        requests = [
            Command(code=LARGE_REPLY, opaque=number, ext={"size": str(MIB)}).encode() for number in range(count)
        ]

        await peer.send(b"".join(requests))
        await wait_until(lambda: host.handled > 0)
        assert await is_served(host)
        transport = host.connected[0]._transport
        assert transport is not None
        unread = transport.get_write_buffer_size()

        assert unread < 3 * PASS_REPLY_BYTES_MAX
        assert host.handled < 50
        for number in range(count):
            frame = await peer.frame()
            assert len(frame.body) == MIB
            assert decode_command(frame).opaque == number
        assert host.handled == count + 1
        await peer.close()


@on_both_loops
async def test_peer_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: a peer that sends requests and never reads is closed after its timeout, and its replies are freed."""
    monkeypatch.setattr("gantry_remoting.server.SWEEP_INTERVAL_S", 0.02)
    async with running_host(reader_timeout_ms=200) as host:
        deaf = socket.create_connection(("127.0.0.1", host.listener.port))
        request = Command(code=LARGE_REPLY, ext={"size": str(8 * MIB)}).encode()
        await asyncio.to_thread(deaf.sendall, request * 4)

        await wait_until(lambda: len(host.disconnected) == 1)

        assert not host.listener.connections
        assert await is_served(host)
        deaf.close()


@on_both_loops
async def test_peer_that_does_not_read_delays_the_stop_only_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that closes waits `STOP_TIMEOUT_S` at most for last replies to be read."""
    monkeypatch.setattr("gantry_remoting.server.STOP_TIMEOUT_S", 0.1)
    async with running_host() as host:
        deaf = socket.create_connection(("127.0.0.1", host.listener.port))
        await asyncio.to_thread(deaf.sendall, Command(code=LARGE_REPLY, ext={"size": str(2 * MIB)}).encode())
        await wait_until(lambda: host.handled == 1)
    deaf.close()
    await wait_until(lambda: len(host.disconnected) == 1)


TURNS = range(8)
"""Turns of the loop between a connection in the backlog and the close; in some it is accepted and not made yet."""


async def open_after_close(turns: int) -> bool:
    """Return whether a peer is connected after its listener has closed ``turns`` turns after the connection."""
    async with running_host() as host:
        peer = socket.create_connection(("127.0.0.1", host.listener.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    for _ in TURNS:
        await asyncio.sleep(0)
    peer.setblocking(False)
    with peer:
        try:
            return bool(peer.recv(1))
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        finally:
            for connection in tuple(host.listener.connections):
                connection.abort()
            await asyncio.sleep(0)
            assert set(host.disconnected) <= set(host.connected), "the service got an end without a beginning"


@on_both_loops
async def test_a_connection_that_is_accepted_while_the_listener_closes_ends() -> None:
    """A closed listener has no connection, even if its backlog had some."""
    assert [turns for turns in TURNS if await open_after_close(turns)] == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the connections that it loses
@pytest.mark.parametrize("guard", ["stop_listening", "is_closing"])
async def test_without_a_guard_such_a_connection_stays_open(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a listener that accepts, or admits, while it closes leaves a connection open."""

    async def close(server: asyncio.Server) -> None:
        server.close()

    if guard == "stop_listening":
        monkeypatch.setattr("gantry_remoting.server.stop_listening", close)
    else:
        never = property(lambda self: False, lambda self, value: None)
        monkeypatch.setattr(Listener, "_is_closing", never, raising=False)
    try:
        assert [turns for turns in TURNS if await open_after_close(turns)] != []
    finally:
        gc.collect()  # here and not in another test


@on_both_loops
async def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector() -> None:
    """No reference cycle keeps a connection: thousands that open and close take no memory until a collection."""
    async with running_host() as host:
        gc.disable()
        try:
            assert await is_served(host)
            await wait_until(lambda: len(host.disconnected) == 1)
            ended = weakref.ref(host.connected[0])
            host.connected.clear()
            host.disconnected.clear()
            await wait_until(lambda: ended() is None)
        finally:
            gc.enable()


@on_both_loops
async def test_last_replies_are_sent_before_the_close() -> None:
    """A listener that closes sends its peers the pending replies."""
    async with running_host() as host:
        peer = await RawPeer.open(host.listener.port)
        await peer.send(Command(code=LARGE_REPLY, ext={"size": str(3 * MIB)}).encode())
        await wait_until(lambda: host.handled == 1)
        reading = asyncio.ensure_future(peer.frame())
    assert len((await reading).body) == 3 * MIB
    await peer.close()


@on_both_loops
async def test_a_frame_over_the_limit_is_refused_by_its_length() -> None:
    """S2: the length field alone decides; the bytes are not awaited."""
    async with running_host(wire=WireLimits(frame_bytes_max=1000)) as host:
        fits = await RawPeer.open(host.listener.port)
        body = bytes(1000 - len(Command(code=99, opaque=1).encode()))
        await fits.send(Command(code=99, opaque=1, body=body).encode())
        assert (await fits.frame()).body == body

        await fits.send(frame_head(1000 - 4 + 1, 10))
        assert await fits.is_closed_by_peer()
        await fits.close()


# ------- the calling end


@on_both_loops
async def test_deferred_answer_reaches_its_request() -> None:
    """Slow answers are sent when they are ready, each to its request; quick ones overtake them."""
    async with running_host() as host:
        channel = await Channel.connect(host.address)
        slow = asyncio.ensure_future(channel.request(Command(code=SLOW_REPLY), 5000))
        quick = await channel.request(Command(code=99, body=b"quick"), 5000)
        assert (quick.body, slow.done()) == (b"quick", False)

        host.gate.set()

        assert (await slow).code == 0
        await channel.close()


@on_both_loops
async def test_requests_end_with_their_connection() -> None:
    """A request whose connection breaks raises ConnectionClosed; one without a reply in time RemotingTimeout."""
    async with running_host() as host:
        channel = await Channel.connect(host.address)
        with pytest.raises(RemotingTimeout, match="20 ms"):
            await channel.request(Command(code=SLOW_REPLY), 20)
        waiting = asyncio.ensure_future(channel.request(Command(code=SLOW_REPLY), 5000))
        await wait_until(lambda: host.handled == 2)

        for connection in list(host.listener.connections):
            connection.close("the test closes it")

        with pytest.raises(ConnectionClosed):
            await waiting
        with pytest.raises(ConnectionClosed):
            await channel.request(Command(code=99), 5000)
        with pytest.raises(ConnectionClosed):
            channel.send_oneway(oneway(99, {}))
        assert not channel.is_open
        host.gate.set()


@on_both_loops
async def test_server_can_send_requests() -> None:
    """A broker's own request over a client's connection is answered there; without a reply it ends with the peer."""
    asked: list[int] = []

    def answer(command: Command, channel: Channel) -> Command | None:
        asked.append(command.code)
        return command.reply(body=b"from the client") if command.code == 221 else None

    async with running_host() as host:
        channel = await Channel.connect(host.address, on_request=answer)
        await channel.request(Command(code=99), 5000)
        [connection] = host.connected

        assert (await connection.request(Command(code=221), 5000)).body == b"from the client"
        with pytest.raises(RemotingTimeout):
            await connection.request(Command(code=307), 20)
        waiting = asyncio.ensure_future(connection.request(Command(code=307), 5000))
        await wait_until(lambda: len(asked) == 3)
        await channel.close()
        with pytest.raises(ConnectionClosed):
            await waiting


@on_both_loops
async def test_connecting_without_a_listener_names_the_address() -> None:
    """An address without a listener raises CannotConnect with the address; an invalid address raises ValueError."""
    async with running_host() as host:
        address = host.address
    with pytest.raises(CannotConnect, match=address):
        await Channel.connect(address)
    for text in ("", "host", "host:", ":x", "host:0", "host:65536", "host:-1"):
        with pytest.raises(ValueError, match="write host:port"):
            split_address(text)
    assert split_address(" [::1]:9876 ") == ("::1", 9876)


@on_both_loops
async def test_client_closes_a_server_that_breaks_the_protocol(caplog: pytest.LogCaptureFixture) -> None:
    """A client drops a server that breaks the protocol, and its requests with it."""

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    channel = await Channel.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    with pytest.raises(ConnectionClosed):
        await channel.request(Command(code=99), 5000)

    assert "peer broke the protocol" in caplog.text
    server.close()
    await server.wait_closed()
