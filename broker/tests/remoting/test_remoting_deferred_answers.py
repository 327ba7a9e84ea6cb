"""Deferred answers: the limits on pending answers of a connection and of a port."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.send import reply as reply_module
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings, with_entries
from gantry_remoting import Connection, Listener, ListenerSettings
from gantry_remoting.close_log import CloseReason
from gantry_remoting.deferred_answers import DeferredAnswers
from gantry_remoting.server import CommandService
from gantry_remoting.turns import ReadPause
from gantry_testing.local import RawPeer, dialogue, on_both_loops, running_broker, send_ext, wait_until
from gantry_wire import Command, RequestCode, decode_command

DEFERRED, AT_ONCE = 901, 902
UNBOUNDED = 1 << 40


class Host:
    """A listener whose answers to DEFERRED are given when the test opens the gate."""

    def __init__(self, **settings: Any) -> None:
        self.settings = ListenerSettings(host="127.0.0.1", **settings)
        self.answers = DeferredAnswers(self.settings)
        self.listener = Listener(CommandService(self._dispatch, answers=self.answers), self.settings)
        self.gate = asyncio.Event()
        self.handled = 0
        self.most = 0

    def _dispatch(self, command: Command, connection: Connection) -> Command | Awaitable[Command]:
        self.handled += 1
        return self._later(command) if command.code == DEFERRED else command.reply()

    async def _later(self, command: Command) -> Command:
        self.most = max(self.most, self.answers.pending)
        await self.gate.wait()
        return command.reply()

    async def has_taken_a_request(self) -> None:
        """Wait until one more request is handled than before, or has to wait."""
        before = self.handled
        await wait_until(lambda: self.handled > before or self.waiting() > 0)

    def waiting(self) -> int:
        """Return how many connections are not read until answers are given."""
        return sum(bool(one._reading.pauses & ReadPause.ANSWERS_DEFERRED) for one in self.listener.connections)


@asynccontextmanager
async def running_host(**settings: Any) -> AsyncIterator[Host]:
    host = Host(**settings)
    await host.listener.start()
    try:
        yield host
    finally:
        host.gate.set()
        await host.listener.close()
        await host.answers.drain()


def requests(code: int, count: int, start: int = 0) -> bytes:
    return b"".join(Command(code=code, opaque=start + number).encode() for number in range(count))


async def opaques(peer: RawPeer, count: int) -> list[int]:
    return [decode_command(await peer.frame()).opaque for _ in range(count)]


@on_both_loops
async def test_deferred_answers_of_a_connection_are_limited() -> None:
    """Requests beyond the limit wait, and each is answered once and in order when earlier ones are."""
    async with running_host(deferred_answers_per_connection_max=8) as host:
        peer = await RawPeer.open(host.listener.port)
        await peer.send(requests(DEFERRED, 1000))
        await wait_until(lambda: host.waiting() == 1)
        assert (host.answers.pending, host.handled) == (8, 8)

        host.gate.set()
        assert await opaques(peer, 1000) == list(range(1000))
        assert host.most <= 8
        assert (host.answers.pending, host.waiting()) == (0, 0)
        await peer.close()


@on_both_loops
async def test_without_the_limit_every_request_has_a_pending_answer() -> None:
    """The twin: with the limits off one connection has as many tasks as it has sent requests."""
    async with running_host(deferred_answers_max=UNBOUNDED, deferred_answers_per_connection_max=UNBOUNDED) as host:
        peer = await RawPeer.open(host.listener.port)
        await peer.send(requests(DEFERRED, 2000))
        await wait_until(lambda: host.answers.pending == 2000)
        await peer.close()


@on_both_loops
async def test_all_connections_of_a_port_share_a_limit_of_deferred_answers() -> None:
    """A port limits the pending answers of all its connections; waiting ones are served in order."""
    async with running_host(deferred_answers_max=20) as host:
        peers = [await RawPeer.open(host.listener.port) for _ in range(10)]
        for peer in peers:
            await peer.send(requests(DEFERRED, 30))
        await wait_until(lambda: host.waiting() == 10)
        assert (host.answers.pending, host.handled) == (20, 20)

        host.gate.set()
        for peer in peers:
            assert await opaques(peer, 30) == list(range(30))
        assert host.most <= 20
        for peer in peers:
            await peer.close()


@on_both_loops
async def test_reconnecting_does_not_exceed_the_limit_of_the_port() -> None:
    """An answer counts until it is given, even if its connection has closed."""
    async with running_host(deferred_answers_max=5) as host:
        for _ in range(30):
            peer = await RawPeer.open(host.listener.port)
            taking = asyncio.ensure_future(host.has_taken_a_request())
            await asyncio.sleep(0)
            await peer.send(requests(DEFERRED, 1))
            await taking
            await peer.close()
        assert (host.answers.pending, host.handled) == (5, 5)


@on_both_loops
async def test_immediate_answers_are_served_beside_deferred_ones() -> None:
    """A full port and a full connection still answer requests at once until a deferred one arrives."""
    async with running_host(deferred_answers_max=4, deferred_answers_per_connection_max=2) as host:
        busy, other = await RawPeer.open(host.listener.port), await RawPeer.open(host.listener.port)
        await busy.send(requests(DEFERRED, 2))
        await other.send(requests(DEFERRED, 2))
        await wait_until(lambda: host.answers.pending == 4)

        for peer in (busy, other):
            await peer.send(requests(AT_ONCE, 100, start=2))
            assert await opaques(peer, 100) == list(range(2, 102))
        await busy.send(requests(DEFERRED, 1, start=200) + requests(AT_ONCE, 1, start=201))
        await wait_until(lambda: host.waiting() == 1)
        host.gate.set()
        assert sorted(await opaques(busy, 4)) == [0, 1, 200, 201]
        for peer in (busy, other):
            await peer.close()


@on_both_loops
async def test_answers_that_wait_for_a_client_are_not_bounded() -> None:
    """An answer that needs a client's reply never keeps a connection from being read."""
    async with running_host(deferred_answers_max=2, deferred_answers_per_connection_max=2) as host:
        peer = await RawPeer.open(host.listener.port)
        await wait_until(lambda: len(host.listener.connections) == 1)
        [connection] = host.listener.connections

        async def answer() -> None:
            await host.gate.wait()

        for _ in range(10):
            host.answers.add(DEFERRED, answer(), connection, is_bounded=False)

        assert host.answers.pending == 10
        assert not host.answers.pause_if_full(DEFERRED, connection)
        await peer.close()


@on_both_loops
async def test_a_connection_that_waits_for_answers_is_not_idle() -> None:
    """Silence that is caused by not reading does not close a connection."""
    async with running_host(deferred_answers_per_connection_max=1) as host:
        peer = await RawPeer.open(host.listener.port)
        await peer.send(requests(DEFERRED, 2))
        await wait_until(lambda: host.waiting() == 1)
        [connection] = host.listener.connections
        later = asyncio.get_running_loop().time() + 3600

        assert connection.timeout_reason(later) is None
        host.gate.set()
        await opaques(peer, 2)
        assert connection.timeout_reason(later) is CloseReason.IDLE
        await peer.close()


async def test_a_connection_that_ends_while_it_waits_leaves_nothing_behind() -> None:
    """Requests that waited in a closed connection are not handled, and others are served."""
    async with running_host(deferred_answers_max=2) as host:
        gone, peer = await RawPeer.open(host.listener.port), await RawPeer.open(host.listener.port)
        await gone.send(requests(DEFERRED, 50))
        await wait_until(lambda: host.waiting() == 1)
        gone.writer.transport.abort()
        await peer.send(requests(DEFERRED, 3))
        await wait_until(lambda: host.waiting() == 2)
        for connection in host.listener.connections:
            if connection.peer != peer.writer.get_extra_info("sockname"):
                connection.abort()
        await wait_until(lambda: len(host.listener.connections) == 1)

        host.gate.set()
        assert await opaques(peer, 3) == [0, 1, 2]
        assert host.handled == 5
        await peer.close()


# ------- a broker and a name server


def broker_with_one_deferred_answer(path: Path) -> AbstractAsyncContextManager[Broker]:
    """A broker whose ports allow one pending deferred answer."""
    return running_broker(path, maxDeferredAnswers="1", maxDeferredAnswersPerConnection="1")


async def test_broker_limits_deferred_answers_of_a_connection(tmp_path: Path) -> None:
    """Pipelined requests to clean consume queues (306) are all answered, with at most 64 tasks at once."""
    async with running_broker(tmp_path) as broker:
        peer = await RawPeer.open(broker.port)
        answers, most = broker.listeners.services[0].answers, 0
        await peer.send(requests(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, 2000))
        for number in range(2000):
            assert decode_command(await peer.frame()).opaque == number
            most = max(most, answers.pending)
        assert 1 < most <= 64
        await peer.close()


async def test_without_the_limit_a_broker_has_a_task_for_each_request(tmp_path: Path) -> None:
    """The twin: with the limits off all of them are tasks at once."""
    off = str(UNBOUNDED)
    async with running_broker(tmp_path, maxDeferredAnswers=off, maxDeferredAnswersPerConnection=off) as broker:
        peer = await RawPeer.open(broker.port)
        await peer.send(requests(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, 2000))
        await wait_until(lambda: broker.listeners.services[0].answers.pending > 500)
        for _ in range(2000):
            await peer.frame()
        await peer.close()


async def test_held_pulls_and_sends_of_a_connection_are_no_deferred_answers(tmp_path: Path) -> None:
    """A client multiplexes more held pulls than the limit and its sends on one connection, and none of them waits."""
    async with broker_with_one_deferred_answer(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        pulls = [client.start_pull(1, wait_ms=60_000) for _ in range(100)]
        await wait_until(lambda: broker.pulls.hold.count == 100)
        await client.ask_json(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert (await client.send_ok())["queueOffset"] == "1"
        assert [reply.code for reply in await asyncio.gather(*pulls)] == [0] * 100


async def test_replies_between_clients_are_not_bounded_by_deferred_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that answers its own requests on one connection gets every reply: the broker keeps reading it."""
    monkeypatch.setattr(reply_module, "PUSH_TIMEOUT_MS", 600_000)
    async with broker_with_one_deferred_answer(tmp_path) as broker, dialogue(broker) as client:
        client.channel._on_request = lambda command, channel: command.reply()
        await client.heartbeat("asker")
        properties = f"REPLY_TO_CLIENT\x01asker\x02UNIQ_KEY\x01{'0' * 32}\x02CORRELATION_ID\x01c\x02"
        ext = send_ext(RequestCode.SEND_MESSAGE_V2, topic="TestCluster_REPLY_TOPIC", properties=properties)
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        replies = await asyncio.gather(*(client.ask(code, ext, b"answer") for _ in range(50)))
        assert [reply.code for reply in replies] == [0] * 50


async def test_name_server_limits_deferred_answers_of_a_connection(tmp_path: Path) -> None:
    """Pipelined changes of its key-value table are all made and answered, with at most 8 tasks at once."""
    entries = {"bindAddress": "127.0.0.1", "listenPort": "0", "maxDeferredAnswersPerConnection": "8"}
    server = NameServer(with_entries(NameServerSettings(), entries), tmp_path / "ns")
    await server.start()
    peer, most = await RawPeer.open(server.port), 0
    puts = [
        Command(
            code=RequestCode.PUT_KV_CONFIG, opaque=number, ext={"namespace": "n", "key": f"k{number}", "value": "v"}
        )
        for number in range(100)
    ]
    await peer.send(b"".join(put.encode() for put in puts))
    for number in range(100):
        reply = decode_command(await peer.frame())
        assert (reply.opaque, reply.code) == (number, 0)
        most = max(most, server._ports[0][1].answers.pending)
    assert 1 < most <= 8
    await peer.close()
    await server.close()
