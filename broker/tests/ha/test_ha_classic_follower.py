"""Following a Java master over real sockets: after any failure the log continues, or the status has the reason."""

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
    """The two ports of a Java master."""

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
        self.disconnect()
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
        self.java.accept_connection()
        while data := await reader.read(1 << 16):
            self.java.receive(data)
            self.push()
        writer.close()

    def push(self) -> None:
        """Send the rest of the log."""
        if self._writer is not None:
            self._writer.write(self.java.pump())

    def send(self, data: bytes) -> None:
        """Send these bytes to the slave, after the data of the stream so far."""
        assert self._writer is not None
        self._writer.write(data)

    def disconnect(self) -> None:
        """End the connection to the slave."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


class Slave:
    """A store that follows the master."""

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
async def test_stream_resumes_after_every_disconnect() -> None:
    """It continues at the end of the log, and consumers see what was copied."""
    java = JavaMaster()
    java.fill(2 * FILE_BYTES)
    async with following(java) as (broker, slave):
        await wait_until(lambda: slave.log() == java.log)
        for breaks in range(3):
            java.send(50)
            broker.push()
            broker.disconnect()
            java.send(50)
            await wait_until(lambda: slave.log() == java.log)
            assert broker.connections >= breaks + 2

        await wait_until(lambda: java.acks[-1] == java.end)
        assert slave.world.bodies() == java.bodies()
        assert slave.follower.is_streaming and slave.follower.problem is None
        assert slave.follower.confirmed == java.end


async def test_invalid_data_ends_the_stream() -> None:
    """The next connection compares the log and copies the rest; the status has the reason meanwhile."""
    java = JavaMaster()
    java.send(20)
    async with following(java) as (broker, slave):
        await wait_until(lambda: slave.log() == java.log)
        broker.send(b"\x00" * 12)
        await wait_until(lambda: slave.follower.problem is not None)
        assert slave.follower.problem == f"the master sent offset 0, but offset {java.end} was expected"

        java.send(20)
        await wait_until(lambda: slave.log() == java.log)
        assert slave.follower.problem is None


async def test_slave_behind_expired_log_copies_again() -> None:
    """RocketMQ's master sends such a slave nothing but heartbeats."""
    java = JavaMaster()
    java.send(20)
    async with following(java) as (broker, slave):
        await wait_until(lambda: slave.log() == java.log)
        java.fill(5 * FILE_BYTES)
        java.expire(3 * FILE_BYTES)
        broker.push()
        broker.send(java.heartbeat())
        assert slave.world.store.log.wrote < java.begin

        await slave.follower.tables.fetch()
        await asyncio.sleep(0)
        assert slave.follower.is_streaming, "expected no disconnect after one round: the slave may only be slow"
        await slave.follower.tables.fetch()
        await wait_until(lambda: "has expired" in (slave.follower.problem or ""))

        await wait_until(lambda: slave.log() == java.log)
        assert slave.world.store.log.min_physical == 3 * FILE_BYTES


async def test_diverged_log_is_not_followed() -> None:
    """Nothing of it becomes visible; a master with the right log is followed again."""
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
        broker.disconnect()
        await wait_until(lambda: "differs from the master" in (slave.follower.problem or ""))
        assert slave.follower.confirmed == -1 and not slave.follower.is_streaming
        assert slave.log() == java.log and java.end not in other.acks

        broker.java = java
        await wait_until(lambda: slave.follower.is_streaming)


async def test_unreachable_master_is_reported() -> None:
    """The status reports that the master is unreachable."""
    main, ha = free_ports(2)
    slave = Slave(ClassicMaster(("127.0.0.1", ha), f"127.0.0.1:{main}"))
    task = asyncio.ensure_future(slave.follower.run())
    await wait_until(lambda: f"127.0.0.1:{main}: cannot connect" in (slave.follower.problem or ""))
    task.cancel()
    await asyncio.wait([task])


async def test_sync_flush_slave_shows_only_flushed_messages() -> None:
    """A Java master reports no confirmed position, so the slave's own flushed position decides."""
    java = JavaMaster()
    java.send(20)
    async with following(java, is_flushed_wanted=True) as (_, slave):
        await wait_until(lambda: slave.log() == java.log)
        assert slave.follower.confirmed == 0 and slave.world.bodies() == []

        slave.world.store.flush()
        slave.follower.report_progress()

        assert slave.follower.confirmed == java.end and slave.world.bodies() == java.bodies()


async def test_idle_slave_sends_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's master closes a connection on which nothing came for 20 seconds."""
    monkeypatch.setattr(follower_module, "REPORT_INTERVAL_S", 0.0)
    java = JavaMaster()
    java.send(5)
    async with following(java) as (broker, _):
        await wait_until(lambda: java.acks[-1:] == [java.end])
        acks_before = len(java.acks)
        await wait_until(lambda: len(java.acks) > acks_before)

        assert java.acks[-1] == java.end and broker.connections == 1


async def test_silent_master_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may hang, with the connection open."""
    monkeypatch.setattr(follower_runner, "SILENCE_S", 0.5)
    java = JavaMaster()
    async with following(java) as (broker, slave):
        await wait_until(lambda: "no data from the master" in (slave.follower.problem or ""))
        await wait_until(lambda: broker.connections > 1)
