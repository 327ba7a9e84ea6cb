"""Following a Java master over real sockets: whatever becomes of connections, the log goes on or says why it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gantry_broker.ha import follower_runner
from gantry_broker.ha.classic import follower as follower_module
from gantry_broker.ha.classic.follower import ClassicFollower, ClassicMaster
from gantry_broker.ha.store_log import SlaveStore
from gantry_remoting import CommandService, Listener, ListenerSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.java_master import FILE_BYTES, JavaMaster
from gantry_testing.local import on_both_loops, wait_until
from gantry_testing.ports import free_ports
from gantry_testing.store_world import TINY, StoreWorld
from gantry_wire import Command, RequestCode, fastjson


class JavaBroker:
    """A Java master's two ports."""

    def __init__(self, java: JavaMaster) -> None:
        self.java = java
        self.connections = 0
        self._writer: asyncio.StreamWriter | None = None
        service = CommandService(lambda command, connection: self._answer(command))
        self._listener = Listener(service, ListenerSettings(host="127.0.0.1"))
        self._server: asyncio.Server | None = None

    def _answer(self, command: Command) -> Command:
        if command.code != RequestCode.GET_BROKER_RUNTIME_INFO:
            return command.reply(1, "not in this test")
        table = {"commitLogMinOffset": str(self.java.begin), "commitLogMaxOffset": str(self.java.end)}
        return command.reply(body=fastjson.dumps({"table": table}))

    async def start(self) -> None:
        await self._listener.start()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        await self._listener.close()

    @property
    def master(self) -> ClassicMaster:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return ClassicMaster(("127.0.0.1", port), f"127.0.0.1:{self._listener.port}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.connections += 1
        self.java.connected()
        while data := await reader.read(1 << 16):
            self.java.receive(data)
            self.push()
        writer.close()

    def push(self) -> None:
        """Send what there is."""
        if self._writer is not None:
            self._writer.write(self.java.pump())

    def say(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def cut(self) -> None:
        """End the connection."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


class Slave:
    """A store that follows it."""

    def __init__(self, master: ClassicMaster, *, is_flushed_wanted: bool = False) -> None:
        self.world = StoreWorld(FaultyDisk(), "/slave", TINY)
        self.world.open()
        self.store = SlaveStore(self.world.store)
        self.follower = ClassicFollower(
            self.store, master, file_bytes=FILE_BYTES, is_flushed_wanted=is_flushed_wanted, on_copied=self._copied
        )

    def _copied(self) -> None:
        self.store.dispatch(self.follower.confirmed)

    def log(self) -> bytes:
        data, offset = b"", self.world.store.log.min_physical
        while more := self.store.read(offset + len(data), 1 << 20):
            data += more
        return data


@asynccontextmanager
async def following(java: JavaMaster, *, is_flushed_wanted: bool = False) -> AsyncIterator[tuple[JavaBroker, Slave]]:
    broker = JavaBroker(java)
    await broker.start()
    slave = Slave(broker.master, is_flushed_wanted=is_flushed_wanted)
    task = asyncio.ensure_future(slave.follower.run())
    try:
        yield broker, slave
    finally:
        task.cancel()
        await asyncio.wait([task])
        await broker.close()


@on_both_loops
async def test_the_stream_goes_on_after_every_break() -> None:
    """Where the log ended; and consumers see what has come."""
    java = JavaMaster()
    java.fill(2 * FILE_BYTES)
    async with following(java) as (broker, slave):
        await wait_until(lambda: slave.log() == java.log)
        for breaks in range(3):
            java.send(50)
            broker.push()
            broker.cut()
            java.send(50)
            await wait_until(lambda: slave.log() == java.log)
            assert broker.connections >= breaks + 2

        await wait_until(lambda: java.acks[-1] == java.end)
        assert slave.world.bodies() == java.bodies()
        assert slave.follower.is_streaming and slave.follower.trouble is None
        assert slave.follower.confirmed == java.end


async def test_what_is_garbage_ends_the_stream_and_is_named() -> None:
    """The next connection begins where the log ends."""
    java = JavaMaster()
    java.send(20)
    async with following(java) as (broker, slave):
        await wait_until(lambda: slave.log() == java.log)
        broker.say(b"\x00" * 12)
        await wait_until(lambda: slave.follower.trouble is not None)
        assert slave.follower.trouble == f"it sends what lies at 0, and {java.end} comes next"

        java.send(20)
        await wait_until(lambda: slave.log() == java.log)
        assert slave.follower.trouble is None


async def test_a_slave_whose_place_has_expired_begins_anew() -> None:
    """RocketMQ's master sends it nothing any more, but heartbeats for ever."""
    java = JavaMaster()
    java.send(20)
    async with following(java) as (broker, slave):
        await wait_until(lambda: slave.log() == java.log)
        java.fill(5 * FILE_BYTES)
        java.expire(3 * FILE_BYTES)
        broker.push()
        broker.say(java.beat())
        assert slave.world.store.log.wrote < java.begin

        await slave.follower.tables.fetch()
        await asyncio.sleep(0)
        assert slave.follower.is_streaming, "it may only be slow"
        await slave.follower.tables.fetch()
        await wait_until(lambda: "has expired" in (slave.follower.trouble or ""))

        await wait_until(lambda: slave.log() == java.log)
        assert slave.world.store.log.min_physical == 3 * FILE_BYTES


async def test_another_log_is_not_followed_and_nothing_of_it_is_shown() -> None:
    """Until somebody decides; a master that has the right one again is followed."""
    java, other = JavaMaster(), JavaMaster()
    java.send(20)
    other.send(5)
    other.begin = 0
    other.log = other.log + other.log
    async with following(java) as (broker, slave):
        await wait_until(lambda: slave.log() == java.log)
        broker.java = other
        while other.end < java.end:
            other.log += other.log
        broker.cut()
        await wait_until(lambda: "another one" in (slave.follower.trouble or ""))
        assert slave.follower.confirmed == -1 and not slave.follower.is_streaming
        assert slave.log() == java.log and java.end not in other.acks

        broker.java = java
        await wait_until(lambda: slave.follower.is_streaming)


async def test_a_master_that_is_not_there_is_waited_for() -> None:
    """And said to be not there."""
    main, ha = free_ports(2)
    slave = Slave(ClassicMaster(("127.0.0.1", ha), f"127.0.0.1:{main}"))
    task = asyncio.ensure_future(slave.follower.run())
    await wait_until(lambda: f"127.0.0.1:{main}: cannot connect" in (slave.follower.trouble or ""))
    task.cancel()
    await asyncio.wait([task])


async def test_consumers_of_a_sync_flush_slave_see_what_is_flushed() -> None:
    """The master says nothing of it, so this slave's own disk decides."""
    java = JavaMaster()
    java.send(20)
    async with following(java, is_flushed_wanted=True) as (_, slave):
        await wait_until(lambda: slave.log() == java.log)
        assert slave.follower.confirmed == 0 and slave.world.bodies() == []

        slave.world.store.flush()
        slave.follower.progressed()

        assert slave.follower.confirmed == java.end and slave.world.bodies() == java.bodies()


async def test_a_quiet_slave_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's master closes a connection on which nothing came for 20 seconds."""
    monkeypatch.setattr(follower_module, "REPORT_INTERVAL_S", 0.0)
    java = JavaMaster()
    java.send(5)
    async with following(java) as (broker, _):
        await wait_until(lambda: java.acks[-1:] == [java.end])
        said = len(java.acks)
        await wait_until(lambda: len(java.acks) > said)

        assert java.acks[-1] == java.end and broker.connections == 1


async def test_a_master_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may hang, with the connection open."""
    monkeypatch.setattr(follower_runner, "SILENCE_S", 0.5)
    java = JavaMaster()
    async with following(java) as (broker, slave):
        await wait_until(lambda: "no data from the master" in (slave.follower.trouble or ""))
        await wait_until(lambda: broker.connections > 1)
