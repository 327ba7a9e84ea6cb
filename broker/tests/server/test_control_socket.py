"""Orders over a real Unix socket: each is answered once, in order, and connections do not block each other."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from gantry_broker.control.server import BACKLOG, CONNECTIONS_MAX, ControlServer
from gantry_broker.errors import StoreFailed
from gantry_status.order_client import OrderClient, order_once
from gantry_status.orders import (
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
    PromiseRequest,
    Promote,
    StatusRequest,
)
from gantry_testing.fake_group import FakeGroup, FakeMember


@pytest.fixture
def member() -> FakeMember:
    """Return member 2 of a group of three, a slave."""
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


async def test_unaccepted_connections_are_limited(server: ControlServer) -> None:
    """While the event loop is busy the kernel queues as many as the limit allows, and refuses further ones."""
    queued = 0
    with ExitStack() as stack:
        peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        while queued < 10 * BACKLOG and peer.connect_ex(server.path) == 0:
            queued += 1
            peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))

    assert BACKLOG <= queued <= BACKLOG + 1


async def test_every_order_reaches_its_method_and_is_answered(client: OrderClient, member: FakeMember) -> None:
    """All orders are sent on one connection."""
    status = await client.call(StatusRequest())
    promised = await client.call(PromiseRequest(epoch=5, to="a supervisor"))
    promoted = await client.call(Promote(epoch=5, electable=[1, 3]))
    await client.call(Lease(renewed_ms=7, duration_ms=8))
    await client.call(Flush())
    await client.call(Flush(backup="nightly"))
    drained = await client.call(Drain(timeout_ms=100))
    fenced = await client.call(Fence(epoch=6))
    followed = await client.call(Follow(epoch=7, master="127.0.0.1:20001"))

    assert (status.role, status.wrote) == (HaRole.SLAVE, 1)
    assert (promised.epoch, promised.end) == (5, 1)
    assert promoted.role is HaRole.MASTER and promoted.electable == (1, 3)
    assert drained.is_draining
    assert fenced.role is HaRole.UNASSIGNED and followed.role is HaRole.SLAVE
    assert member.received_orders == [
        *("promise 5", "promote 5", "lease 7 8", "flush", "flush nightly", "drain", "fence 6"),
        "follow 7 127.0.0.1:20001",
    ]


async def test_refused_order_has_a_reason_and_the_connection_stays(client: OrderClient, server: ControlServer) -> None:
    """A refusal is an answer, not an error of the connection."""
    await client.call(PromiseRequest(epoch=9))

    with pytest.raises(OrderRefused, match="epoch 9 was promised"):
        await client.call(Fence(epoch=3))

    assert (await client.call(StatusRequest())).promised_epoch == 9
    assert server.connections == 1


async def test_failed_order_has_a_reason(
    client: OrderClient, member: FakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker whose disk fails answers before it exits."""

    async def fails(backup: str = "") -> HaStatus:
        raise StoreFailed("fdatasync: Input/output error")

    monkeypatch.setattr(member, "flush", fails)

    with pytest.raises(OrderFailed, match="StoreFailed: fdatasync: Input/output error"):
        await client.call(Flush())


async def test_status_does_not_wait_for_another_order(
    server: ControlServer, client: OrderClient, member: FakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a drain is in progress, other connections get the status."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow(timeout_ms: int, withdraw: bool = False, clients_only: bool = False) -> HaStatus:
        began.set()
        await may_end.wait()
        return await member.status()

    monkeypatch.setattr(member, "drain", slow)
    draining = asyncio.ensure_future(client.call(Drain(timeout_ms=60_000)))
    await began.wait()

    async with OrderClient(server.path) as other:
        assert (await other.call(StatusRequest())).broker_id == 2
    assert not draining.done()
    may_end.set()
    assert (await draining).broker_id == 2


async def test_orders_of_one_connection_are_answered_in_order(server: ControlServer) -> None:
    """The order is kept also when all of them arrive in one piece."""
    reader, writer = await asyncio.open_unix_connection(server.path)
    writer.write(b'{"order":"promise","epoch":4}\n{"order":"fence","epoch":2}\n{"order":"status"}\n')

    answers = [await reader.readline() for _ in range(3)]
    writer.close()
    await writer.wait_closed()

    assert [b"promised" in answers[0], b"refused" in answers[1], b"status" in answers[2]] == [True] * 3


async def test_order_is_finished_after_its_client_disconnects(
    server: ControlServer, member: FakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a promotion would be worse than one whose result is not delivered."""
    began, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(epoch: int) -> HaStatus:
        began.set()
        await may_end.wait()
        ended.set()
        return await member.status()

    monkeypatch.setattr(member, "fence", slow)
    client = OrderClient(server.path, answer_timeout_s=0.05)
    while not began.is_set():  # on a paused machine it may not have been sent yet
        with pytest.raises(OrderUnanswered, match=f"{server.path}: no answer within 0.05 s"):
            await client.call(Fence(epoch=4))

    async with OrderClient(server.path) as other:  # by its answer the server has seen the end of the first connection
        await other.call(StatusRequest())
    may_end.set()
    await asyncio.wait_for(ended.wait(), 60)


async def test_only_its_own_user_may_open_the_socket(server: ControlServer) -> None:
    """Every client may give every order."""
    facts = os.stat(server.path)

    assert stat.S_ISSOCK(facts.st_mode)
    assert stat.S_IMODE(facts.st_mode) == 0o600
    assert os.listdir(os.path.dirname(server.path)) == ["control.sock"]


async def test_stale_socket_is_replaced_and_removed_at_the_end(tmp_path: Path, member: FakeMember) -> None:
    """A stale socket does not prevent a start."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with pytest.raises(BrokerUnreachable, match="a stopped broker left the socket behind"):
        await OrderClient(str(path)).call(StatusRequest())

    server = ControlServer(str(path), member)
    await server.start()
    async with OrderClient(str(path)) as client:
        assert (await client.call(StatusRequest())).broker_id == 2
    await server.close()

    assert not path.exists()
    with pytest.raises(BrokerUnreachable, match="there is no control socket at"):
        await OrderClient(str(path)).call(StatusRequest())


async def test_stopped_broker_keeps_the_socket_of_its_successor(tmp_path: Path, member: FakeMember) -> None:
    """The name is removed only if it still leads to this broker's socket."""
    path = str(tmp_path / "control.sock")
    first, second = ControlServer(path, member), ControlServer(path, member)
    await first.start()
    await second.start()
    await first.close()

    async with OrderClient(path) as client:
        assert (await client.call(StatusRequest())).broker_id == 2
    await second.close()


async def test_file_that_is_not_a_socket_is_not_replaced(tmp_path: Path, member: FakeMember) -> None:
    """A mistyped path must not destroy a file."""
    path = tmp_path / "broker.conf"
    path.write_text("precious")

    with pytest.raises(FileExistsError, match="that is not a socket"):
        await ControlServer(str(path), member).start()

    assert path.read_text() == "precious"


async def test_control_socket_works_with_a_long_path(tmp_path: Path, member: FakeMember) -> None:
    """The path is longer than an address of a socket may be."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    server = ControlServer(str(deep / "control.sock"), member)
    await server.start()

    async with OrderClient(server.path) as client:
        assert (await client.call(StatusRequest())).broker_id == 2
    await server.close()
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize("depth", [1, 100], ids=["shallow", "deep"])
async def test_missing_socket_directory_is_named(depth: int, tmp_path: Path, member: FakeMember) -> None:
    """Server and client report it, whether or not the path fits into the address of a socket."""
    path = str(tmp_path / ("d" * depth) / "absent/control.sock")

    with pytest.raises(OSError, match=f"No such file or directory.*{path}"):
        await ControlServer(path, member).start()
    with pytest.raises(BrokerUnreachable, match=path):
        await OrderClient(path).call(StatusRequest())


async def test_connection_beyond_the_limit_is_refused(server: ControlServer) -> None:
    """Another connection is accepted as soon as one ends."""
    clients = [OrderClient(server.path) for _ in range(CONNECTIONS_MAX)]
    await asyncio.gather(*(client.call(StatusRequest()) for client in clients))
    assert server.connections == CONNECTIONS_MAX

    async with OrderClient(server.path) as late:
        with pytest.raises(OrderFailed, match="too many connections: 16 are open"):
            await late.call(StatusRequest())
        await clients[0].close()
        await _until_connections(server, CONNECTIONS_MAX - 1)
        assert (await late.call(StatusRequest())).broker_id == 2
    for client in clients[1:]:
        await client.close()
    await _until_connections(server, 0)


async def test_idle_connection_is_closed_and_its_client_reconnects(tmp_path: Path, member: FakeMember) -> None:
    """A forgotten connection costs nothing in the long run, and a returning client is served."""
    server = ControlServer(str(tmp_path / "control.sock"), member, idle_s=0.05)
    await server.start()
    async with OrderClient(server.path) as client:
        await client.call(StatusRequest())
        await _until_connections(server, 0)

        assert (await client.call(StatusRequest())).broker_id == 2
    await server.close()


async def test_line_that_never_ends_times_out(tmp_path: Path, member: FakeMember) -> None:
    """An incomplete order is not executed."""
    server = ControlServer(str(tmp_path / "control.sock"), member, transfer_s=0.05)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(server.path)
    writer.write(b'{"order":"fence",')

    assert await asyncio.wait_for(reader.read(), 60) == b""
    await _until_connections(server, 0)
    assert member.received_orders == []
    writer.close()
    await writer.wait_closed()
    await server.close()


async def test_client_that_reads_no_answers_is_disconnected(tmp_path: Path, member: FakeMember) -> None:
    """It cannot make the broker buffer them."""
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


async def test_order_is_logged_with_its_client(client: OrderClient, caplog: pytest.LogCaptureFixture) -> None:
    """Status requests and routine renewals of a Lease are not logged."""
    with caplog.at_level(logging.INFO, "gantry_broker.control"):
        await client.call(StatusRequest())
        await client.call(Lease(renewed_ms=1, duration_ms=1))
        await client.call(PromiseRequest(epoch=9, to="the night shift"))
        with pytest.raises(OrderRefused):
            await client.call(Fence(epoch=3))

    records = [one for one in caplog.records if one.name.startswith("gantry_broker.control")]
    assert [(vars(one)["answer"], vars(one)["reason"]) for one in records] == [
        ("promised", ""),
        ("refused", "epoch 9 was promised"),
    ]
    assert all((vars(one)["pid"], vars(one)["uid"]) == (os.getpid(), os.getuid()) for one in records)
    assert vars(records[0])["order"] == PromiseRequest(epoch=9, to="the night shift")


async def test_stopping_broker_cancels_orders_in_progress(
    server: ControlServer, client: OrderClient, member: FakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client keeps waiting, and a stop waits for no client."""
    began = asyncio.Event()

    async def forever(timeout_ms: int, withdraw: bool = False, clients_only: bool = False) -> HaStatus:
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


async def test_stop_with_an_open_connection_logs_no_error(
    tmp_path: Path, member: FakeMember, caplog: pytest.LogCaptureFixture
) -> None:
    """A supervisor keeps its connection open: the end of the broker is no error."""
    server = ControlServer(str(tmp_path / "control.sock"), member)
    await server.start()
    async with OrderClient(server.path) as client:
        await client.call(StatusRequest())
        await server.close()
        await asyncio.sleep(0)

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_blocking_client_gives_an_order(server: ControlServer) -> None:
    """It runs in a thread here, since the broker needs the loop."""
    status = await asyncio.to_thread(order_once, server.path, StatusRequest())

    assert isinstance(status, HaStatus) and status.broker_id == 2


def test_control_socket_works_on_uvloop(tmp_path: Path) -> None:
    """Brokers run on uvloop, tools on asyncio's own loop."""

    async def broker() -> None:
        server = ControlServer(str(tmp_path / "control.sock"), FakeGroup([1, 2], acks_needed=1).members[2])
        await server.start()
        async with OrderClient(server.path) as client:
            assert (await client.call(StatusRequest())).broker_id == 2
            assert (await client.call(PromiseRequest(epoch=3))).epoch == 3
            reader, writer = await asyncio.open_unix_connection(server.path)
            writer.write(b"nonsense\n")
            assert b"failed" in await reader.readline()
            assert await reader.read() == b""
            writer.close()
            await server.close()
            with pytest.raises(BrokerUnreachable):
                await client.call(StatusRequest())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(broker())
    assert list(tmp_path.iterdir()) == []


async def _until_connections(server: ControlServer, count: int) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while server.connections != count:
        assert asyncio.get_running_loop().time() < deadline, f"{server} instead of {count}"
        await asyncio.sleep(0.005)
