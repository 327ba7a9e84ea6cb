"""Replication over real sockets: fed by the append, joined and left at any time, without mutual blocking."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gantry_broker.errors import StoreFull
from gantry_broker.ha import follower_runner
from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.follower import Follower
from gantry_broker.ha.frames import PREAMBLE, Hello, Ready, encode
from gantry_broker.ha.master_session import MasterFacts
from gantry_broker.ha.server import CONFIRM_DELAY_S, HEARTBEAT_INTERVAL_S, MasterStream, ReplicationServer
from gantry_broker.ha.slave_session import SlaveFacts
from gantry_broker.ha.store_log import MasterStore, SlaveStore
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import wait_until
from gantry_testing.store_world import TINY, StoreWorld


def make_world(number: int) -> StoreWorld:
    world = StoreWorld(FaultyDisk(), f"/node{number}", TINY)
    world.open()
    return world


class Master:
    """A store and its replication port."""

    def __init__(self, acks_needed: int = 1) -> None:
        self.world = make_world(0)
        self.slaves = AckSet(acks_needed=acks_needed, is_flushed_wanted=False)
        self.acks: list[int] = []
        self.is_master = True
        self.server = ReplicationServer(
            self.facts,
            MasterStore(self.world.store),
            self.slaves,
            on_acks=self._handle_acks,
        )

    def _handle_acks(self) -> None:
        self.acks.append(self.slaves.acked_offset())
        self.server.report_confirmed()

    def facts(self) -> MasterFacts | None:
        epoch = self.world.store.identity.epoch
        return MasterFacts("c", "b", TINY.mapped_file_size_commit_log, epoch) if self.is_master else None

    def send(self, count: int) -> None:
        self.world.send("orders", count)
        self.server.feed_streams()

    @property
    def wrote(self) -> int:
        return self.world.store.log.wrote


@asynccontextmanager
async def master(acks_needed: int = 1) -> AsyncIterator[Master]:
    one = Master(acks_needed)
    await one.server.start("127.0.0.1", 0)
    try:
        yield one
    finally:
        await one.server.close()


class Slave:
    """A store that follows the master."""

    def __init__(self, number: int, port: int, broker_name: str = "b") -> None:
        self.world = make_world(number)
        self.store = SlaveStore(self.world.store)
        self._facts = SlaveFacts(
            "c", broker_name, number, self.world.store.identity.uuid, TINY.mapped_file_size_commit_log, 0, True, ""
        )
        self.follower = Follower(self.store, lambda: self._facts, ("127.0.0.1", port), on_copied=self._copied)

    def _copied(self) -> None:
        self.store.dispatch(self.follower.confirmed)


@asynccontextmanager
async def following(number: int, port: int, broker_name: str = "b") -> AsyncIterator[Slave]:
    slave = Slave(number, port, broker_name)
    task = asyncio.ensure_future(slave.follower.run())
    try:
        yield slave
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_appended_message_is_replicated_and_acknowledged() -> None:
    """It is acknowledged while the slave is connected, and visible to the slave's consumers when it is confirmed."""
    async with master() as one:
        one.send(50)
        async with following(1, one.server.port) as slave:
            await wait_until(lambda: one.slaves.acked_offset() == one.wrote)
            for _ in range(20):
                one.send(10)
                await asyncio.sleep(0)
            await wait_until(lambda: one.slaves.acked_offset() == one.wrote)
            await wait_until(lambda: slave.world.bodies() == one.world.bodies())

            assert one.acks == sorted(one.acks)
            assert slave.follower.is_streaming
        await wait_until(lambda: one.slaves.acked_offset() == -1)


async def test_unchanged_position_is_not_reported_after_each_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave acknowledges each heartbeat, so a master that answers each ack with a heartbeat would never stop."""
    heartbeats: list[MasterStream] = []
    send_heartbeat = MasterStream.send_heartbeat

    def send_and_count(stream: MasterStream) -> None:
        heartbeats.append(stream)
        send_heartbeat(stream)

    monkeypatch.setattr(MasterStream, "send_heartbeat", send_and_count)
    async with master() as one, following(1, one.server.port) as slave:
        one.send(20)
        await wait_until(lambda: one.slaves.acked_offset() == one.wrote == slave.follower.confirmed)
        loop, began, before = asyncio.get_running_loop(), asyncio.get_running_loop().time(), len(heartbeats)
        one.server.report_confirmed()

        await asyncio.sleep(30 * CONFIRM_DELAY_S)

        regular = 1 + (loop.time() - began) / HEARTBEAT_INTERVAL_S
        assert len(heartbeats) - before <= 1 + regular


async def test_slave_reconnects_after_disconnect() -> None:
    """It continues where its log ends."""
    async with master() as one, following(1, one.server.port) as slave:
        one.send(20)
        await wait_until(lambda: one.slaves.acked_offset() == one.wrote)
        for _ in range(3):
            one.server.disconnect("a test")
            await wait_until(lambda: len(one.slaves) == 0)
            one.send(20)
            await wait_until(lambda: one.slaves.acked_offset() == one.wrote)

        assert slave.world.store.log.wrote == one.wrote
        assert len(one.server.streams) == 1


async def test_slave_that_reads_nothing_does_not_delay_others() -> None:
    """Its connection fills up, and is skipped; its memory is limited, and the acks of the other count."""
    async with master() as one, following(1, one.server.port) as slave:
        await wait_until(lambda: slave.follower.is_streaming)
        _, writer = await asyncio.open_connection("127.0.0.1", one.server.port, limit=1024)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        hello = Hello(
            cluster="c", broker_name="b", broker_id=2, store_uuid="f" * 32, epochs=[], begin=0, end=0,
            file_bytes=TINY.mapped_file_size_commit_log, promised_epoch=0,
        )  # fmt: skip
        writer.write(PREAMBLE + encode(hello) + encode(Ready(start=0)))
        await wait_until(lambda: len(one.slaves) == 2)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = bytes(8_000)
        while one.wrote < 12 << 20:
            one.world.append([one.world.draft("orders", 0, body=body) for _ in range(50)])
            one.server.feed_streams()
            await asyncio.sleep(0)
        await wait_until(lambda: one.slaves.acked_offset() == one.wrote)

        behind = next(stream for stream in one.server.streams if stream.session and stream.session.sent < one.wrote)
        assert behind._transport is not None and behind._transport.get_write_buffer_size() <= 6 << 20
        writer.close()


async def test_refusal_is_sent_to_the_slave_and_shown_in_its_status() -> None:
    """A slave of another broker is refused with a reason that its administrator can read."""
    async with master() as one, following(1, one.server.port, "another") as slave:
        await wait_until(lambda: slave.follower.problem is not None)

        problem = slave.follower.problem
        assert problem is not None and problem.startswith("stranger: the slave belongs to c/another")
        assert len(one.slaves) == 0


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", bytes(8), b"\xff" * 64, PREAMBLE + bytes(100)])
async def test_peer_of_another_protocol_is_disconnected(noise: bytes) -> None:
    """It is disconnected at the first bytes that show it."""
    async with master() as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", one.server.port)
        writer.write(noise)

        async with asyncio.timeout(60):
            while await reader.read(1000):
                pass

        assert not one.server.streams
        writer.close()


async def test_broker_that_is_not_master_refuses_slaves() -> None:
    """A slave that connects too early is disconnected, and retries."""
    async with master() as one:
        one.is_master = False
        async with following(1, one.server.port) as slave:
            await wait_until(lambda: slave.follower.problem is not None)
            assert not one.server.streams
            one.is_master = True
            one.send(5)
            await wait_until(lambda: one.slaves.acked_offset() == one.wrote)
            assert slave.follower.problem is None


async def test_slave_retries_after_an_unexpected_error() -> None:
    """The reason is kept for the status, and the next attempt follows."""
    attempts: list[int] = []

    def facts() -> SlaveFacts:
        attempts.append(1)
        raise RuntimeError("unexpected")

    async with master() as one:
        follower = Follower(SlaveStore(make_world(1).store), facts, ("127.0.0.1", one.server.port))
        await assert_fails_twice(follower, attempts)


async def test_stream_that_breaks_while_the_store_is_prepared_leaves_no_exception_behind() -> None:
    """The failure of the store is the reason; that of the connection is dropped, and not logged as never retrieved."""
    unretrieved: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unretrieved.append(context))
    attempts: list[int] = []
    followers: list[Follower] = []

    async def fail(change: Callable[[], None]) -> None:
        stream = followers[0]._stream
        assert stream is not None
        stream.data_received(b"\xff" * 64)
        assert stream._ended.done()
        attempts.append(1)
        raise StoreFull("no room to cut the log")

    async with master() as one:
        slave = Slave(1, one.server.port)
        address = ("127.0.0.1", one.server.port)
        followers.append(Follower(slave.store, lambda: slave._facts, address, run_exclusively=fail))
        task = asyncio.ensure_future(followers[0].run())
        await wait_until(lambda: len(attempts) >= 2)
        assert followers[0].problem == "no room to cut the log"
        task.cancel()
        await asyncio.wait([task])
        gc.collect()

    assert unretrieved == []


class RecordedPauses(tuple[float, ...]):
    """Replaces the pauses between attempts by none, and records which were used."""

    taken: list[int]
    """The places of the pauses in ``RETRY_S``, in the order of their use."""

    def __getitem__(self, place: object) -> float:  # type: ignore[override]
        assert isinstance(place, int)
        self.taken.append(place)
        return 0.0


async def test_pauses_grow_while_a_master_refuses_a_ready_slave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake is no stream: the pauses grow until the master has sent something after it."""
    async with master() as one, following(1, one.server.port) as slave:
        await wait_until(lambda: slave.follower.is_streaming)
        pauses = RecordedPauses((1.0, 1.0, 1.0))
        pauses.taken = []
        monkeypatch.setattr(follower_runner, "RETRY_S", pauses)
        facts = slave._facts._replace(store_uuid="f" * 32)
        duplicate = Follower(SlaveStore(make_world(2).store), lambda: facts, ("127.0.0.1", one.server.port))
        task = asyncio.ensure_future(duplicate.run())
        await wait_until(lambda: len(pauses.taken) >= 4)
        assert pauses.taken[:4] == [0, 1, 2, 2]
        assert (duplicate.problem or "").startswith("duplicate")
        task.cancel()
        await asyncio.wait([task])


async def assert_fails_twice(follower: Follower, attempts: list[int]) -> None:
    """Run the follower until it has failed twice, and has the reason."""
    task = asyncio.ensure_future(follower.run())
    try:
        await wait_until(lambda: len(attempts) >= 2)
        assert follower.problem == "RuntimeError: unexpected"
    finally:
        task.cancel()
