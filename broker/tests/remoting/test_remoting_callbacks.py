"""Exceptions in a connection's callbacks: they close that connection with one log line, and no other."""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gantry_broker.ha.server import MasterStream
from gantry_broker.server.pull.pull_hold import HeldPull, PullHold
from gantry_remoting import Channel, CommandService, Connection, Listener, ListenerSettings
from gantry_remoting.close_log import CloseReason, LimitedLog
from gantry_testing.local import RawPeer, on_both_loops, wait_until
from gantry_wire import Command
from gantry_wire.commands.pull import PullMessage

BUG, FINE = 1, 2


class FaultyService:
    """A service with one bug in a callback that the test chooses."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.is_broken = True
        self._service = CommandService(lambda command, connection: command.reply(body=command.body))
        self.gone = 0

    def _reach(self, where: str, connection: Connection) -> None:
        if self.is_broken and where == self.where:
            raise KeyError("a bug")

    def connected(self, connection: Connection) -> None:
        self._reach("connection_made", connection)

    def handle(self, data: bytes, connection: Connection) -> tuple[int, bytes]:
        if b"bug" in data:
            self._reach("data_received", connection)
        return self._service.handle(data, connection)

    def disconnected(self, connection: Connection) -> None:
        self.gone += 1
        self._reach("connection_lost", connection)


@asynccontextmanager
async def listening(service: Any, **settings: Any) -> AsyncIterator[Listener]:
    listener = Listener(service, ListenerSettings(host="127.0.0.1", **settings))
    await listener.start()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    try:
        yield listener
    finally:
        await listener.close()
        assert failures == [], "an exception reached the event loop"


def callback_failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == "connection closed: a callback failed"]


@pytest.mark.parametrize("where", ["connection_made", "data_received"])
@on_both_loops
async def test_a_bug_in_a_callback_ends_its_own_connection(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """The connection is closed, the line names the callback and the code line, and another connection is served."""
    service = FaultyService(where)
    async with listening(service) as listener:
        peer = await RawPeer.open(listener.port)
        await peer.send(Command(code=FINE, body=b"bug").encode())
        assert await peer.is_closed_by_peer()
        service.is_broken = where != "connection_made"

        channel = await Channel.connect(f"127.0.0.1:{listener.port}")
        assert (await channel.request(Command(code=FINE, body=b"good"), 5000)).body == b"good"
        await channel.close()
        await peer.close()
        assert listener.close_log.counts[CloseReason.CALLBACK] == 1
    [line] = callback_failures(caplog)
    assert (line.__dict__["callback"], line.exc_info is not None) == (where, True)
    assert line.__dict__["at"].startswith("test_remoting_callbacks.py:")


@on_both_loops
async def test_exception_in_disconnected_still_frees_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """`disconnected` may raise: the connection is removed all the same, and its slot is free."""
    service = FaultyService("connection_lost")
    async with listening(service, connections_max=1) as listener:
        for _ in range(3):
            peer = await RawPeer.open(listener.port)
            await peer.send(Command(code=FINE, opaque=1).encode())
            await peer.frame()
            await peer.close()
            await wait_until(lambda: not listener.connections)
    assert service.gone == 3
    assert len(callback_failures(caplog)) == 3


@on_both_loops
async def test_exception_in_a_deferred_pass_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Frames that wait for a later turn are handled in a callback of the loop, which is guarded like the others."""
    service = FaultyService("data_received")
    service.is_broken = False
    async with listening(service) as listener:
        peer = await RawPeer.open(listener.port)
        await peer.send(Command(code=FINE).encode())
        await peer.frame()
        service.is_broken = True
        [connection] = listener.connections
        listener.reply_turns.add(listener.settings.turn_reply_bytes_max)
        connection.data_received(Command(code=FINE, body=b"bug").encode())
        assert await peer.is_closed_by_peer()
        await peer.close()
    assert [line.__dict__["callback"] for line in callback_failures(caplog)] == ["resume"]


@on_both_loops
async def test_repeated_exception_leaves_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """However often the same bug occurs: one traceback, a few lines a second, and the rest is counted."""
    service = FaultyService("data_received")
    async with listening(service) as listener:
        for _ in range(60):
            peer = await RawPeer.open(listener.port)
            await peer.send(Command(code=FINE, body=b"bug").encode())
            assert await peer.is_closed_by_peer()
            await peer.close()
        assert listener.close_log.counts[CloseReason.CALLBACK] == 60
    lines = callback_failures(caplog)
    assert sum(line.exc_info is not None for line in lines) == 1
    counted = len(lines) + sum(line.__dict__.get("suppressed", 0) for line in lines)
    assert counted <= 60 and len(lines) < 60


class ResetTransport(asyncio.Transport):
    """A transport whose peer reset the connection before it was accepted, so that the kernel has no address for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return None if name == "peername" else ("127.0.0.1", 1)

    def abort(self) -> None:
        self.is_aborted = True


async def test_connection_reset_in_the_backlog_is_closed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """A connection that was reset in the backlog is neither admitted nor passed to the service."""
    service = FaultyService("nowhere")
    async with listening(service) as listener:
        connection, transport = Connection(listener), ResetTransport()

        connection.connection_made(transport)
        connection.data_received(Command(code=FINE).encode())
        connection.connection_lost(None)

        assert transport.is_aborted and not listener.connections and service.gone == 0
        assert listener.close_log.counts[CloseReason.RESET] == 1
    assert callback_failures(caplog) == []


@on_both_loops
async def test_a_storm_of_resets_leaves_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Five hundred connections that are reset at once or within a frame leave no traceback and few lines."""
    caplog.set_level(logging.INFO)
    async with listening(FaultyService("nowhere")) as listener:

        def storm() -> None:
            for number in range(500):
                with socket.create_connection(("127.0.0.1", listener.port)) as peer:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if number % 2:
                        peer.sendall(Command(code=FINE).encode()[: number % 40 + 1])

        await asyncio.to_thread(storm)
        channel = await Channel.connect(f"127.0.0.1:{listener.port}")
        assert (await channel.request(Command(code=FINE, body=b"good"), 5000)).body == b"good"
        await channel.close()
        await wait_until(lambda: not listener.connections)
    assert [record for record in caplog.records if record.exc_info] == []
    assert len(caplog.records) < 60


async def test_exception_in_a_held_pull_does_not_block_others(caplog: pytest.LogCaptureFixture) -> None:
    """A held pull whose check raises closes its own connection; the pulls after it are answered."""
    loop = asyncio.get_running_loop()
    async with listening(FaultyService("nowhere")) as listener:
        peers = [await RawPeer.open(listener.port) for _ in range(2)]
        for peer in peers:
            await peer.send(Command(code=FINE).encode())
            await peer.frame()
        first, second = sorted(listener.connections, key=lambda one: one.peer[1])

        def look(held: HeldPull, must_answer: bool) -> Command | None:
            if held.connection is first:
                raise IndexError("a bug")
            return held.command.reply()

        hold = PullHold(loop, look, held_max=10, held_per_connection_max=10)
        pull = PullMessage(consumer_group="g", topic="t", queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=0,
                           commit_offset=0, suspend_timeout_millis=1000, sub_version=0)  # fmt: skip
        for connection in (first, second):
            hold.hold(HeldPull(Command(code=11, opaque=7), connection, pull, 0, loop.time() + 60))
        hold.mark_queues([("t", 0)])
        await wait_until(lambda: hold.count == 0)

        assert not first.is_open and second.is_open
        for peer in peers:
            await peer.close()
    assert [line.__dict__["callback"] for line in callback_failures(caplog)] == ["held pull"]


async def test_exception_in_a_client_handler_closes_its_channel(caplog: pytest.LogCaptureFixture) -> None:
    """An exception of a client's handler for a server's request closes that channel, with one line."""

    def bug(command: Command, channel: Channel) -> Command | None:
        raise ValueError("a bug")

    async with listening(FaultyService("nowhere")) as listener:
        channel = await Channel.connect(f"127.0.0.1:{listener.port}", on_request=bug)
        await channel.request(Command(code=FINE), 5000)
        [connection] = listener.connections
        connection.send(Command(code=99).encode())
        await wait_until(lambda: not channel.is_open)
        await channel.close()
    [line] = callback_failures(caplog)
    assert line.__dict__["callback"] == "data_received"


def test_kinds_of_lines_are_bounded() -> None:
    """Data from peers cannot make the log's memory grow: beyond 256 kinds all others share one."""
    log = LimitedLog(logging.getLogger("test.kinds"), lambda: 0.0)
    for number in range(5000):
        log.write(logging.DEBUG, "connection closed", {}, kind=f"kind {number}")

    assert len(log._suppressed) <= 257


class _FaultyServer:
    """The part of a server that a replication stream uses before its first message, with a bug in `facts`."""

    def __init__(self) -> None:
        self.log = LimitedLog(logging.getLogger("test.replication"))
        self.streams: set[MasterStream] = set()

    def facts(self) -> None:
        raise OSError("a bug")


async def test_a_bug_in_a_replication_stream_ends_that_stream(caplog: pytest.LogCaptureFixture) -> None:
    """The master's replication port is guarded as the clients' ports are."""
    server: Any = _FaultyServer()
    stream = MasterStream(server)
    transport = ResetTransport()

    stream.connection_made(transport)
    stream.data_received(b"x")
    stream.resume_writing()
    stream.connection_lost(None)

    assert transport.is_aborted
    assert {line.__dict__["callback"] for line in callback_failures(caplog)} == {"connection_made", "data_received"}
