"""Orders over a real Unix socket: each is answered once, in order, and nobody's order waits for another's."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from gantry_broker.control.server import CONNECTIONS_MAX, ControlServer
from gantry_broker.errors import StoreFailed
from gantry_status.order_client import OrderClient, order_once
from gantry_status.orders import (
    AskPromise,
    AskStatus,
    BrokerUnreachable,
    Drain,
    Fence,
    Flush,
    Follow,
    HaRole,
    HaStatus,
    Lease,
    OrderFailed,
    OrderRefused,
    OrderUnanswered,
    Promote,
)
from gantry_testing.fake_group import FakeGroup, FakeMember


@pytest.fixture
def member() -> FakeMember:
    """Number 2 of a group of three, a slave."""
    group = FakeGroup([1, 2, 3], acks_needed=1)
    group.begin(1)
    return group.members[2]


@pytest.fixture
async def server(tmp_path: Path, member: FakeMember) -> AsyncIterator[ControlServer]:
    server = ControlServer(str(tmp_path / "control.sock"), member)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def client(server: ControlServer) -> AsyncIterator[OrderClient]:
    async with OrderClient(server.path, answer_timeout_s=60) as client:
        yield client


async def test_every_order_reaches_its_method_and_is_answered(client: OrderClient, member: FakeMember) -> None:
    """All eight, on one connection."""
    status = await client.call(AskStatus())
    promised = await client.call(AskPromise(epoch=5, to="somebody"))
    promoted = await client.call(Promote(epoch=5, electable=[1, 3]))
    await client.call(Lease(renewed_ms=7, duration_ms=8))
    await client.call(Flush())
    drained = await client.call(Drain(timeout_ms=100))
    fenced = await client.call(Fence(epoch=6))
    followed = await client.call(Follow(epoch=7, master="127.0.0.1:20001"))

    assert (status.role, status.wrote) == (HaRole.SLAVE, 1)
    assert (promised.epoch, promised.end) == (5, 1)
    assert promoted.role is HaRole.MASTER and promoted.electable == (1, 3)
    assert drained.is_draining
    assert fenced.role is HaRole.UNASSIGNED and followed.role is HaRole.SLAVE
    assert member.ordered == [
        *("promise 5", "promote 5", "lease 7 8", "flush", "drain", "fence 6", "follow 7 127.0.0.1:20001"),
    ]


async def test_an_order_that_is_refused_says_why_and_the_connection_stays(
    client: OrderClient, server: ControlServer
) -> None:
    """A refusal is an answer, not a fault."""
    await client.call(AskPromise(epoch=9))

    with pytest.raises(OrderRefused, match="epoch 9 was promised"):
        await client.call(Fence(epoch=3))

    assert (await client.call(AskStatus())).promised_epoch == 9
    assert server.connections == 1


async def test_an_order_that_fails_says_what_happened(
    client: OrderClient, member: FakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker whose disk fails answers, before it ends."""

    async def fails() -> HaStatus:
        raise StoreFailed("fdatasync: Input/output error")

    monkeypatch.setattr(member, "flush", fails)

    with pytest.raises(OrderFailed, match="StoreFailed: fdatasync: Input/output error"):
        await client.call(Flush())


async def test_a_status_does_not_wait_for_an_order_of_somebody_else(
    server: ControlServer, client: OrderClient, member: FakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a drain takes its time, everybody else can look."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow(timeout_ms: int, withdraw: bool = False, goes_on: bool = False) -> HaStatus:
        began.set()
        await may_end.wait()
        return await member.status()

    monkeypatch.setattr(member, "drain", slow)
    draining = asyncio.ensure_future(client.call(Drain(timeout_ms=60_000)))
    await began.wait()

    async with OrderClient(server.path) as other:
        assert (await other.call(AskStatus())).broker_id == 2
    assert not draining.done()
    may_end.set()
    assert (await draining).broker_id == 2


async def test_orders_of_one_connection_are_answered_in_order(server: ControlServer) -> None:
    """Also when all of them came in one piece."""
    reader, writer = await asyncio.open_unix_connection(server.path)
    writer.write(b'{"order":"promise","epoch":4}\n{"order":"fence","epoch":2}\n{"order":"status"}\n')

    answers = [await reader.readline() for _ in range(3)]
    writer.close()
    await writer.wait_closed()

    assert [b"promised" in answers[0], b"refused" in answers[1], b"status" in answers[2]] == [True] * 3


async def test_an_order_is_finished_though_its_sender_has_gone(
    server: ControlServer, member: FakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a promotion would be worse than one that nobody has heard of."""
    began, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(epoch: int) -> HaStatus:
        began.set()
        await may_end.wait()
        ended.set()
        return await member.status()

    monkeypatch.setattr(member, "fence", slow)
    client = OrderClient(server.path, answer_timeout_s=0.05)
    while not began.is_set():  # a machine that stands still for so long has not sent it
        with pytest.raises(OrderUnanswered, match=f"{server.path}: no answer within 0.05 s"):
            await client.call(Fence(epoch=4))

    may_end.set()
    await asyncio.wait_for(ended.wait(), 60)


async def test_only_its_own_user_may_open_the_socket(server: ControlServer) -> None:
    """Whoever gets in may do everything."""
    facts = os.stat(server.path)

    assert stat.S_ISSOCK(facts.st_mode)
    assert stat.S_IMODE(facts.st_mode) == 0o600
    assert os.listdir(os.path.dirname(server.path)) == ["control.sock"]


async def test_what_a_dead_broker_left_is_replaced_and_taken_away_at_the_end(
    tmp_path: Path, member: FakeMember
) -> None:
    """A stale socket stops no start."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with pytest.raises(BrokerUnreachable, match="left by one that is gone"):
        await OrderClient(str(path)).call(AskStatus())

    server = ControlServer(str(path), member)
    await server.start()
    async with OrderClient(str(path)) as client:
        assert (await client.call(AskStatus())).broker_id == 2
    await server.close()

    assert not path.exists()
    with pytest.raises(BrokerUnreachable, match="there is no control socket at"):
        await OrderClient(str(path)).call(AskStatus())


async def test_the_end_of_a_broker_does_not_take_away_its_successors_socket(tmp_path: Path, member: FakeMember) -> None:
    """The name goes only if it still leads to us."""
    path = str(tmp_path / "control.sock")
    first, second = ControlServer(path, member), ControlServer(path, member)
    await first.start()
    await second.start()
    await first.close()

    async with OrderClient(path) as client:
        assert (await client.call(AskStatus())).broker_id == 2
    await second.close()


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path, member: FakeMember) -> None:
    """A mistyped path must not cost anybody a file."""
    path = tmp_path / "broker.conf"
    path.write_text("precious")

    with pytest.raises(FileExistsError, match="it is no socket"):
        await ControlServer(str(path), member).start()

    assert path.read_text() == "precious"


async def test_a_deep_directory_has_a_control_socket_too(tmp_path: Path, member: FakeMember) -> None:
    """Though its path is longer than an address of a socket may be."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    server = ControlServer(str(deep / "control.sock"), member)
    await server.start()

    async with OrderClient(server.path) as client:
        assert (await client.call(AskStatus())).broker_id == 2
    await server.close()
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize("depth", [1, 100], ids=["shallow", "deep"])
async def test_a_missing_directory_is_named(depth: int, tmp_path: Path, member: FakeMember) -> None:
    """Of the server as of the client, and whether or not its path fits into the address of a socket."""
    path = str(tmp_path / ("d" * depth) / "absent/control.sock")

    with pytest.raises(OSError, match=f"No such file or directory.*{path}"):
        await ControlServer(path, member).start()
    with pytest.raises(BrokerUnreachable, match=path):
        await OrderClient(path).call(AskStatus())


async def test_one_more_than_the_limit_is_told_so(server: ControlServer) -> None:
    """And a place is free again as soon as somebody goes."""
    clients = [OrderClient(server.path) for _ in range(CONNECTIONS_MAX)]
    await asyncio.gather(*(client.call(AskStatus()) for client in clients))
    assert server.connections == CONNECTIONS_MAX

    async with OrderClient(server.path) as late:
        with pytest.raises(OrderFailed, match="16 connections already"):
            await late.call(AskStatus())
        await clients[0].close()
        await _until_connections(server, CONNECTIONS_MAX - 1)
        assert (await late.call(AskStatus())).broker_id == 2
    for client in clients[1:]:
        await client.close()
    await _until_connections(server, 0)


async def test_an_idle_connection_is_closed_and_its_client_does_not_notice(tmp_path: Path, member: FakeMember) -> None:
    """Whoever forgets to close costs nothing in the long run; whoever comes back is served."""
    server = ControlServer(str(tmp_path / "control.sock"), member, idle_s=0.05)
    await server.start()
    async with OrderClient(server.path) as client:
        await client.call(AskStatus())
        await _until_connections(server, 0)

        assert (await client.call(AskStatus())).broker_id == 2
    await server.close()


async def test_a_line_that_never_ends_costs_a_bounded_time(tmp_path: Path, member: FakeMember) -> None:
    """Half an order is no order."""
    server = ControlServer(str(tmp_path / "control.sock"), member, transfer_s=0.05)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(server.path)
    writer.write(b'{"order":"fence",')

    assert await asyncio.wait_for(reader.read(), 60) == b""
    await _until_connections(server, 0)
    assert member.ordered == []
    writer.close()
    await writer.wait_closed()
    await server.close()


async def test_a_peer_that_reads_no_answers_is_cut_off(tmp_path: Path, member: FakeMember) -> None:
    """It cannot make the broker keep them for it."""
    server = ControlServer(str(tmp_path / "control.sock"), member, transfer_s=0.2)
    await server.start()
    with socket.socket(socket.AF_UNIX) as greedy:
        greedy.setblocking(False)
        greedy.connect(server.path)
        await asyncio.get_running_loop().sock_sendall(greedy, b'{"order":"status"}\n')
        await _until_connections(server, 1)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                await asyncio.get_running_loop().sock_sendall(greedy, b'{"order":"status"}\n' * 100)
    await _until_connections(server, 0)
    await server.close()


async def test_every_order_is_put_down_with_who_gave_it(client: OrderClient, caplog: pytest.LogCaptureFixture) -> None:
    """But not every look, and a Lease that is renewed as always says nothing new."""
    with caplog.at_level(logging.INFO, "gantry_broker.control"):
        await client.call(AskStatus())
        await client.call(Lease(renewed_ms=1, duration_ms=1))
        await client.call(AskPromise(epoch=9, to="the night shift"))
        with pytest.raises(OrderRefused):
            await client.call(Fence(epoch=3))

    told = [one for one in caplog.records if one.name.startswith("gantry_broker.control")]
    assert [(vars(one)["answer"], vars(one)["reason"]) for one in told] == [
        ("promised", ""),
        ("refused", "epoch 9 was promised"),
    ]
    assert all((vars(one)["pid"], vars(one)["uid"]) == (os.getpid(), os.getuid()) for one in told)
    assert vars(told[0])["order"] == AskPromise(epoch=9, to="the night shift")


async def test_a_broker_that_stops_ends_what_it_was_asked(
    server: ControlServer, client: OrderClient, member: FakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody keeps waiting, and a stop waits for nobody."""
    began = asyncio.Event()

    async def forever(timeout_ms: int, withdraw: bool = False, goes_on: bool = False) -> HaStatus:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    monkeypatch.setattr(member, "drain", forever)
    draining = asyncio.ensure_future(client.call(Drain(timeout_ms=60_000)))
    await began.wait()
    await asyncio.wait_for(server.close(), 60)

    with pytest.raises(OrderUnanswered, match="closed the connection without an answer"):
        await draining
    assert server.connections == 0


async def test_a_broker_that_stops_beside_an_open_connection_has_nothing_to_complain_of(
    tmp_path: Path, member: FakeMember, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever watches over the socket keeps it open: the end of the broker is no error of anybody's."""
    server = ControlServer(str(tmp_path / "control.sock"), member)
    await server.start()
    async with OrderClient(server.path) as client:
        await client.call(AskStatus())
        await server.close()
        await asyncio.sleep(0)

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_program_without_a_loop_gives_one_order(server: ControlServer) -> None:
    """In a thread here, since the broker needs the loop."""
    status = await asyncio.to_thread(order_once, server.path, AskStatus())

    assert isinstance(status, HaStatus) and status.broker_id == 2


def test_a_broker_on_uvloop_answers_and_stops_alike(tmp_path: Path) -> None:
    """Brokers run on uvloop, tools on asyncio's own loop."""

    async def broker() -> None:
        server = ControlServer(str(tmp_path / "control.sock"), FakeGroup([1, 2], acks_needed=1).members[2])
        await server.start()
        async with OrderClient(server.path) as client:
            assert (await client.call(AskStatus())).broker_id == 2
            assert (await client.call(AskPromise(epoch=3))).epoch == 3
            reader, writer = await asyncio.open_unix_connection(server.path)
            writer.write(b"nonsense\n")
            assert b"failed" in await reader.readline()
            assert await reader.read() == b""
            writer.close()
            await server.close()
            with pytest.raises(BrokerUnreachable):
                await client.call(AskStatus())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(broker())
    assert list(tmp_path.iterdir()) == []


async def _until_connections(server: ControlServer, count: int) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while server.connections != count:
        assert asyncio.get_running_loop().time() < deadline, f"{server} instead of {count}"
        await asyncio.sleep(0.005)
