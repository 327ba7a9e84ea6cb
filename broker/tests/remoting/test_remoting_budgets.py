"""Byte budgets of a port: the sum over all connections, the order of eviction, and no effect on ordinary clients."""

import asyncio
import logging
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import MagicMock

import pytest

from gantry_access import SignatureKind, signer
from gantry_broker.setting_keys import broker_settings
from gantry_nameserver.settings import NameServerSettings, with_entries
from gantry_remoting import Channel, CommandService, Connection, Listener, ListenerSettings
from gantry_remoting.budgets import ByteBudget, Holding, ReplyTurns
from gantry_remoting.close_log import CloseLog, CloseReason
from gantry_remoting.frame_parts import FrameParts
from gantry_remoting.reply_writer import ReplyWriter
from gantry_remoting.setting_kinds import SettingsError
from gantry_remoting.tls_layer import TlsLayer
from gantry_testing.accounts import ADMIN, BILLING, guarded_broker
from gantry_testing.local import RawPeer, frame_head, on_both_loops, running_broker, send_ext, wait_until
from gantry_wire import Command, RequestCode, decode_command
from gantry_wire.fastjson import loads
from gantry_wire.limits import WireLimits

KIB = 1024
MIB = 1024 * KIB
NO_LIMIT = 1 << 40
LARGE_REPLY = 1


class FakeConnection:
    """A connection as a budget uses it."""

    def __init__(self, held_bytes: int, since: float) -> None:
        self.held_bytes, self.since = held_bytes, since
        self.evicted: CloseReason | None = None

    def evict(self, reason: CloseReason) -> None:
        self.evicted = reason


class BudgetPort:
    """A budget over connections that a test makes; the clock is fixed at 100."""

    def __init__(self, bytes_max: int) -> None:
        self.held: list[FakeConnection] = []
        self.measured = 0
        self.budget = ByteBudget(bytes_max, CloseReason.FRAME_BUDGET, self.measure, lambda: 100.0)

    def measure(self) -> list[Holding]:
        self.measured += 1
        return [Holding(one, one.held_bytes, one.since) for one in self.held if one.evicted is None]

    def take(self, held_bytes: int, *, age_s: float = 0.0) -> FakeConnection:
        one = FakeConnection(held_bytes, 100.0 - age_s)
        self.held.append(one)
        self.budget.add(held_bytes)
        return one


def test_no_connection_is_closed_within_the_budget() -> None:
    """Below the budget nothing is closed, and nothing is measured."""
    port = BudgetPort(1000)

    held = [port.take(100) for _ in range(10)]

    assert all(one.evicted is None for one in held)
    assert port.measured == 0


def test_largest_of_equal_age_is_evicted_first() -> None:
    """Over the budget the largest is closed for the budget's reason, and only as many as needed."""
    port = BudgetPort(1000)
    small, large, middle = port.take(200), port.take(500), port.take(250)

    last = port.take(100)

    assert large.evicted is CloseReason.FRAME_BUDGET
    assert [one.evicted for one in (small, middle, last)] == [None, None, None]


def test_oldest_of_equal_size_is_evicted_first() -> None:
    """Bytes that have been held for long cost more than as many new ones."""
    port = BudgetPort(1000)
    young, old = port.take(400, age_s=1), port.take(400, age_s=20)

    port.take(400)

    assert (young.evicted, old.evicted) == (None, CloseReason.FRAME_BUDGET)


def test_large_active_frame_outlives_small_stalled_ones() -> None:
    """Cost is bytes times age: 4 MiB of half a second stay, 100 KiB of half a minute go."""
    port = BudgetPort(6 * MIB)
    stalled = [port.take(100 * KIB, age_s=30) for _ in range(20)]

    honest = port.take(4 * MIB, age_s=0.5)
    port.take(100 * KIB, age_s=30)

    assert honest.evicted is None
    assert any(one.evicted for one in stalled)


def test_released_bytes_do_not_count() -> None:
    """The sum of taken bytes may exceed the budget many times, as long as they are not held at once."""
    port = BudgetPort(1000)
    steady = port.take(300)

    for _ in range(100):
        port.take(90).held_bytes = 0

    assert steady.evicted is None
    assert port.measured < 20


def test_eviction_frees_an_eighth_of_the_budget() -> None:
    """A flood is closed down to seven eighths at once, so that not each of its reads has to measure all connections."""
    port = BudgetPort(8000)
    for _ in range(80):
        port.take(100)

    port.take(1)

    kept = sum(one.held_bytes for one in port.held if one.evicted is None)
    assert 6800 < kept <= 7000
    assert port.measured == 1


def test_the_budget_holds_within_an_eighth() -> None:
    """However connections grow, they never hold more than nine eighths of the budget and the last read."""
    port = BudgetPort(8000)
    most = 0
    for number in range(2000):
        port.take(37 + number % 53)
        most = max(most, sum(one.held_bytes for one in port.held if one.evicted is None))

    assert most <= 8000 * 9 // 8 + 100
    unguarded = BudgetPort(NO_LIMIT)
    assert sum(unguarded.take(37 + number % 53).held_bytes for number in range(2000)) > 100_000


# ------- replies in one turn


class RequestingPeer:
    """A connection with waiting requests, each with a reply of a given size."""

    def __init__(self, name: str, turns: ReplyTurns, served: list[str], requests: int) -> None:
        self.name, self.turns, self.served, self.requests = name, turns, served, requests

    def resume(self) -> None:
        self.served.append(self.name)
        self.requests -= 1
        self.turns.add(400 * KIB)
        if self.requests:
            self.turns.enqueue(self)


def test_requests_wait_for_a_turn_first_come_first_served() -> None:
    """A connection that always has more requests goes to the end of the queue each time."""
    callbacks: list[Any] = []
    turns = ReplyTurns(MIB, callbacks.append)
    served: list[str] = []
    for name in "ABCD":
        turns.enqueue(RequestingPeer(name, turns, served, 3))

    rounds: list[str] = []
    while callbacks:
        before = len(served)
        callbacks.pop(0)()
        rounds.append("".join(served[before:]))

    rounds = [round for round in rounds if round]
    assert rounds == ["ABC", "DAB", "CDA", "BCD"]


def test_small_replies_are_not_counted_against_a_turn() -> None:
    """A thousand small replies in a turn cost no callback and delay no connection."""
    callbacks: list[Any] = []
    turns = ReplyTurns(MIB, callbacks.append)
    budget = ByteBudget(NO_LIMIT, CloseReason.REPLY_LIMIT, list, lambda: 0.0)
    writer = ReplyWriter(MagicMock(), turns, budget, 0.0)
    for _ in range(1000):
        writer.write(bytes(2 * KIB))
    found = [(turns.is_full, len(callbacks))]
    for _ in range(16):
        writer.write(bytes(64 * KIB))
    found.append((turns.is_full, len(callbacks)))
    callbacks.pop()()
    found.append((turns.is_full, len(callbacks)))

    assert found == [(False, 0), (True, 1), (False, 0)]


# ------- parts of a frame


def test_parts_are_joined_in_order() -> None:
    """Reads of any size are joined in order, and nothing is left afterwards."""
    random = Random(7)
    parts = FrameParts()
    for _ in range(200):
        whole = random.randbytes(random.choice((1, 9, 40_000, 300_000)))
        position = 0
        while position < len(whole):
            size = random.choice((1, 3, 1000, 20_000, 100_000))
            parts.add(whole[position : position + size])
            position += size
            assert parts.head(8) == whole[: min(8, position)]
            assert parts.size == min(position, len(whole)) <= parts.memory_bytes
        assert parts.take() == whole
        assert (parts.size, parts.memory_bytes, parts.take()) == (0, 0, b"")


@pytest.mark.parametrize("size", [100, 1_400, 15_000, 40_000])
def test_parts_count_the_memory_that_they_take(size: int) -> None:
    """Ten thousand clients with a small frame each that waits for its turn are not over a budget of 128 MiB."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = [FrameParts() for _ in range(100)]
    for parts in kept:
        parts.add(bytes(size // 2))
        parts.add(bytes(size - size // 2))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    counted = sum(parts.memory_bytes for parts in kept)
    assert 100 * size <= counted <= 1.2 * 100 * size + 100 * 100
    assert counted == pytest.approx(taken - before, rel=0.1, abs=100 * 400)


def test_single_bytes_cost_no_object_each() -> None:
    """A peer that sends one byte at a time costs its bytes and no object for each."""
    parts = FrameParts()
    for _ in range(200_000):
        parts.add(b"x")

    assert len(parts._parts) <= 200_000 // (16 * KIB)


def test_a_tls_handshake_has_a_bound_in_bytes() -> None:
    """An endless first message ends the connection at 64 KiB, before OpenSSL has buffered all of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    layer = TlsLayer(context)
    hello = b"\x01" + (100_000).to_bytes(3, "big") + bytes(12_000)
    layer.receive(b"\x16\x03\x01" + len(hello).to_bytes(2, "big") + hello)
    with pytest.raises(ssl.SSLError, match="more than 65536"):
        for _ in range(10):
            layer.receive(b"\x16\x03\x01" + (12_000).to_bytes(2, "big") + bytes(12_000))


# ------- on sockets


@asynccontextmanager
async def running_listener(**settings: Any) -> AsyncIterator[Listener]:
    """Run a listener whose service replies with the requested number of bytes."""

    def answer(command: Command, connection: Connection) -> Command:
        return command.reply(body=bytes(int(command.ext.get("size", "0"))))

    listener = Listener(CommandService(answer), ListenerSettings(host="127.0.0.1", **settings))
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()


async def is_served(listener: Listener, size: int = 10) -> bool:
    channel = await Channel.connect(f"127.0.0.1:{listener.port}")
    reply = await channel.request(Command(code=LARGE_REPLY, ext={"size": str(size)}), 60_000)
    await channel.close()
    return len(reply.body) == size


def held_bytes(listener: Listener) -> int:
    return sum(connection.frames.memory_bytes for connection in listener.connections)


@on_both_loops
async def test_unfinished_frames_of_all_connections_have_one_budget(caplog: pytest.LogCaptureFixture) -> None:
    """Forty connections with half a megabyte each of an incomplete frame exceed the port's budget by little."""
    caplog.set_level(logging.INFO)
    async with running_listener(unfinished_frame_bytes_max=8 * MIB) as listener:
        peers = [await RawPeer.open(listener.port) for _ in range(40)]
        most = 0
        for peer in peers:
            await peer.send(frame_head(16 * MIB - 4, 100) + bytes(512 * KIB))
            most = max(most, held_bytes(listener))
        await wait_until(lambda: listener.close_log.counts[CloseReason.FRAME_BUDGET] > 20)

        assert most <= 8 * MIB * 9 // 8 + 512 * KIB
        assert await is_served(listener)
        for peer in peers:
            await peer.close()
    closed = [record for record in caplog.records if record.getMessage() == "connection closed"]
    over = [record for record in closed if "over budget" in record.__dict__["reason"]]
    assert 1 <= len(over) < listener.close_log.counts[CloseReason.FRAME_BUDGET], (
        "expected fewer log lines than closed connections"
    )
    assert over[0].levelno == logging.WARNING


@on_both_loops
async def test_without_the_budget_unfinished_frames_are_kept() -> None:
    """The twin: with the budget off all of it is held, and no connection is closed."""
    async with running_listener(unfinished_frame_bytes_max=NO_LIMIT) as listener:
        peers = [await RawPeer.open(listener.port) for _ in range(40)]
        for peer in peers:
            await peer.send(frame_head(16 * MIB - 4, 100) + bytes(512 * KIB))
        await wait_until(lambda: held_bytes(listener) > 19 * MIB)
        assert not listener.close_log.counts
        for peer in peers:
            await peer.close()


async def peers_that_never_read(listener: Listener, count: int, requests: int) -> list[socket.socket]:
    """Open connections that request a megabyte repeatedly and never read."""
    peers = []
    request = Command(code=LARGE_REPLY, ext={"size": str(MIB)}).encode() * requests
    for _ in range(count):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(peer.connect, ("127.0.0.1", listener.port))
        await asyncio.to_thread(peer.sendall, request)
        peers.append(peer)
    return peers


def unread_bytes(listener: Listener) -> int:
    return sum(connection.replies.memory_bytes for connection in listener.connections)


@on_both_loops
async def test_unread_replies_of_all_connections_have_one_budget() -> None:
    """Clients that do not read are closed when their replies exceed the port's budget; others are served."""
    async with running_listener(unread_reply_bytes_max=16 * MIB, turn_reply_bytes_max=4 * MIB) as listener:
        peers = await peers_that_never_read(listener, 40, 8)
        await wait_until(lambda: listener.close_log.counts[CloseReason.REPLY_BUDGET] > 4)

        assert unread_bytes(listener) <= 16 * MIB * 9 // 8 + 8 * MIB
        assert await is_served(listener, 2 * MIB)
        for peer in peers:
            peer.close()


@on_both_loops
async def test_without_the_budget_unread_replies_are_kept() -> None:
    """The twin: with the budget off the replies exceed it."""
    async with running_listener(unread_reply_bytes_max=NO_LIMIT) as listener:
        peers = await peers_that_never_read(listener, 40, 8)
        await wait_until(lambda: unread_bytes(listener) > 40 * MIB)
        assert not listener.close_log.counts
        for peer in peers:
            peer.close()


@on_both_loops
async def test_a_peer_that_reads_keeps_its_replies() -> None:
    """Large replies to clients that read exceed the budget many times over in sum, and none of them is closed."""
    async with running_listener(unread_reply_bytes_max=32 * MIB, turn_reply_bytes_max=2 * MIB) as listener:

        async def client() -> None:
            peer = await RawPeer.open(listener.port)
            await peer.send(
                b"".join(Command(code=LARGE_REPLY, opaque=n, ext={"size": str(MIB)}).encode() for n in range(20))
            )
            for number in range(20):
                assert decode_command(await peer.frame()).opaque == number
            await peer.close()

        await asyncio.gather(*(client() for _ in range(6)))
        assert not listener.close_log.counts


@on_both_loops
async def test_a_reader_that_stops_below_the_pause_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies too small to pause a connection still end it if they are not read in time."""
    monkeypatch.setattr("gantry_remoting.server.SWEEP_INTERVAL_S", 0.02)
    async with running_listener(
        reader_timeout_ms=200, reply_bytes_high=64 * MIB, reply_bytes_max=128 * MIB
    ) as listener:
        peers = await peers_that_never_read(listener, 1, 12)

        await wait_until(lambda: listener.close_log.counts[CloseReason.READER_TIMEOUT] == 1)

        for peer in peers:
            peer.close()


# ------- before a request was authenticated


def signed(command: Command, credentials: Any = ADMIN) -> bytes:
    sign = signer(credentials, SignatureKind.V1)
    assert sign is not None
    sign(command)
    return command.encode()


async def test_unauthenticated_frame_is_limited_to_one_message(tmp_path: Path) -> None:
    """With access control a frame beyond the largest message is refused by its length before a valid signature.

    After that the connection may send frames of the usual size.
    """
    async with guarded_broker(
        tmp_path, maxMessageSize=str(64 * KIB), maxUnauthenticatedFrameBytes=str(8 * MIB)
    ) as broker:
        stranger = await RawPeer.open(broker.port)
        await stranger.send(frame_head(4 * MIB, 100))
        assert await stranger.is_closed_by_peer()

        known = await RawPeer.open(broker.port)
        await known.send(signed(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, opaque=1)))
        assert decode_command(await known.frame()).code == 0
        await known.send(frame_head(4 * MIB, 100))
        await known.send(bytes(100))
        await wait_until(lambda: any(one.frames.memory_bytes for one in broker.listeners.opened[0].connections))
        for peer in (stranger, known):
            await peer.close()


async def test_a_first_request_may_be_the_largest_message(tmp_path: Path) -> None:
    """A producer's first request may be a signed send of 4 MiB: it is stored, and its connection is authenticated."""
    async with guarded_broker(tmp_path, mappedFileSizeCommitLog=str(32 * MIB)) as broker:
        peer = await RawPeer.open(broker.port)
        code = RequestCode.SEND_MESSAGE_V2
        send = Command(code=code, ext=send_ext(code), body=bytes(4 * MIB))

        await peer.send(signed(send))

        assert decode_command(await peer.frame()).code == 0
        assert [one.is_authenticated for one in broker.listeners.opened[0].connections] == [True]
        await peer.close()


async def test_denied_account_is_authenticated_and_wrong_signature_is_not(tmp_path: Path) -> None:
    """Authentication is independent of authorization: a denied request is authenticated, a bad signature is not."""
    async with guarded_broker(tmp_path) as broker:
        denied, wrong = await RawPeer.open(broker.port), await RawPeer.open(broker.port)
        ask = Command(code=RequestCode.GET_BROKER_CONFIG)

        await denied.send(signed(ask, BILLING))
        assert decode_command(await denied.frame()).code == 16
        assert [one.is_authenticated for one in broker.listeners.opened[0].connections].count(True) == 1
        await wrong.send(Command(code=RequestCode.GET_BROKER_CONFIG, ext={"AccessKey": "x", "Signature": "y"}).encode())
        assert decode_command(await wrong.frame()).code == 16

        assert [one.is_authenticated for one in broker.listeners.opened[0].connections].count(True) == 1
        for peer in (denied, wrong):
            await peer.close()


async def test_unauthenticated_connections_have_their_own_budget(tmp_path: Path) -> None:
    """Incomplete frames of unauthenticated peers have their own budget; an authenticated client keeps its part."""
    async with guarded_broker(
        tmp_path, maxUnauthenticatedFrameBytes=str(10 * MIB), maxMessageSize=str(3 * MIB)
    ) as broker:
        listener = broker.listeners.opened[0]
        known = await RawPeer.open(broker.port)
        await known.send(signed(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)))
        await known.frame()
        await known.send(frame_head(12 * MIB, 100) + bytes(6 * MIB))

        strangers = [await RawPeer.open(broker.port) for _ in range(12)]
        for peer in strangers:
            await peer.send(frame_head(3 * MIB, 100) + bytes(2 * MIB))
        await wait_until(lambda: listener.close_log.counts[CloseReason.UNAUTHENTICATED_BUDGET] >= 6)

        assert listener.close_log.counts[CloseReason.FRAME_BUDGET] == 0
        assert [one.frames.memory_bytes > 5 * MIB for one in listener.connections if one.is_authenticated] == [True]
        for peer in (known, *strangers):
            await peer.close()


async def test_without_access_control_the_first_frame_is_not_limited(tmp_path: Path) -> None:
    """The smaller limit applies to guarded ports only: without accounts the first frame may have any size."""
    async with running_broker(tmp_path / "store", maxMessageSize=str(64 * KIB)) as broker:
        peer = await RawPeer.open(broker.port)
        await peer.send(frame_head(8 * MIB, 100) + bytes(KIB))
        await wait_until(lambda: any(one.frames.memory_bytes for one in broker.listeners.opened[0].connections))
        await peer.close()


# ------- settings and reports


@pytest.mark.parametrize(
    ("key", "too_small"),
    [
        ("maxUnfinishedFrameBytes", 32 * MIB - 1),
        ("maxUnauthenticatedFrameBytes", 10 * MIB - 1),
        ("maxUnreadReplyBytes", 32 * MIB - 1),
    ],
)
def test_budget_too_small_for_a_client_refuses_the_start(key: str, too_small: int) -> None:
    """A budget holds at least two of what one connection may need; the refusal names the key and the minimum."""
    with pytest.raises(SettingsError, match=f"{key}={too_small} is too small: it must be at least twice"):
        broker_settings({key: str(too_small)})
    assert broker_settings({key: str(too_small + 1)}).given[key] == str(too_small + 1)


def test_a_name_server_has_the_same_budgets() -> None:
    """`namesrv.conf` has keys for them, too; a value below two frames or replies is refused and named."""
    settings = with_entries(NameServerSettings(), {"maxUnfinishedFrameBytes": str(64 * MIB), "aclEnable": "true"})
    listener = settings.listener(9876)
    assert (listener.unfinished_frame_bytes_max, listener.is_guarded) == (64 * MIB, True)
    with pytest.raises(SettingsError, match="maxUnreadReplyBytes=1000 is too small: it must be at least twice"):
        with_entries(NameServerSettings(), {"maxUnreadReplyBytes": "1000"})


async def test_a_live_change_of_the_largest_message_moves_the_first_frame(tmp_path: Path) -> None:
    """When maxMessageSize grows while the broker runs, so does the limit of an unauthenticated peer's first request."""
    async with guarded_broker(tmp_path, maxMessageSize=str(64 * KIB)) as broker:
        channel = await Channel.connect(f"127.0.0.1:{broker.port}", sign=signer(ADMIN, SignatureKind.V1))
        body = f"maxMessageSize={2 * MIB}".encode()
        assert (await channel.request(Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=body), 60_000)).code == 0
        assert broker.listeners.opened[0].first_frame_bytes_max == 3 * MIB
        await channel.close()


async def test_runtime_table_counts_closed_connections(tmp_path: Path) -> None:
    """`brokerStatus` has the bytes of unfinished frames and unread replies, and closed connections by reason."""
    async with running_broker(tmp_path / "store") as broker:
        bad, half = await RawPeer.open(broker.port), await RawPeer.open(broker.port)
        await bad.send(b"\xff" * 8)
        assert await bad.is_closed_by_peer()
        await half.send(frame_head(MIB, 100) + bytes(100 * KIB))
        await wait_until(lambda: broker.listeners.opened[0].frame_budget.held_bytes > 100 * KIB)
        channel = await Channel.connect(f"127.0.0.1:{broker.port}")
        reply = await channel.request(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO), 60_000)
        table = loads(reply.body)["table"]

        assert int(table["unfinishedFrameBytes"]) > 100 * KIB
        assert table["unreadReplyBytes"] == "0"
        assert dict(word.split("=") for word in table["connectionsClosed"].split())["protocol"] == "1"
        assert len(table["connectionsClosed"].split()) == len(CloseReason)
        for peer in (bad, half):
            await peer.close()
        await channel.close()


def test_reasons_are_counted_even_without_a_log_line() -> None:
    """Counters are exact; lines are a few a second, and the next one has the number of suppressed ones."""
    now = [0.0]
    log = logging.getLogger("test.closings")
    lines: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record)

    handler = Keep()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    close_log = CloseLog(log, lambda: now[0])
    for _ in range(100):
        close_log.record("10.0.0.1:1", CloseReason.PROTOCOL, "broke the protocol")
    assert (len(lines), close_log.counts[CloseReason.PROTOCOL]) == (5, 100)

    now[0] += 1
    close_log.record("10.0.0.1:1", CloseReason.PROTOCOL, "broke the protocol")
    close_log.record("10.0.0.1:1", CloseReason.IDLE, "was idle too long")

    assert lines[-2].__dict__["suppressed"] == 95
    assert "suppressed" not in lines[-1].__dict__
    log.removeHandler(handler)


def test_first_frame_has_the_usual_limit_by_default() -> None:
    """A port without access control has no smaller limit for the first frame of a connection."""
    assert WireLimits().frame_bytes_max == ListenerSettings().first_frame_bytes_max
