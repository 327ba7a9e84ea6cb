"""What clients of the gRPC port may take: bytes, calls and connections have shares, also without an account."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from rpc_world import LARGE_BYTES, LIMITS, client, raw_client, serving, status_of

from gantry_proxy.http2 import frames
from gantry_proxy.http2.frames import ErrorCode, Setting, make_frame
from gantry_proxy.http2.hpack import encode
from gantry_proxy.rpc import health as health_module
from gantry_proxy.rpc.health import SERVICE, SERVING, Health
from gantry_proxy.rpc.limits import RpcTimes
from gantry_proxy.rpc.protocol import StatusCode
from gantry_proxy.rpc.server import RpcServer
from gantry_proxy.rpc.shares import PortUse
from gantry_testing.local import wait_until

EXHAUSTED = str(int(StatusCode.RESOURCE_EXHAUSTED))
OTHER = "127.0.0.2"
"""Another address of this machine."""


def port_of(bytes_max: int = 1_000, calls_max: int = 100, connections_max: int = 1_000) -> PortUse:
    return PortUse(bytes_max=bytes_max, calls_max=calls_max, connections_max=connections_max, address_factor=3)


def fill(port: PortUse, peer: str, size: int) -> int:
    """Let a connection of an address take as many bytes as it gets, and return them."""
    share = port.connect(peer)
    assert share is not None
    while share.hold(size):
        pass
    share.hold(-size)
    return share.held_bytes


# ------- the rule


def test_connection_gets_half_and_its_address_three_quarters_of_the_bytes() -> None:
    """A single client is hardly limited, and cannot take everything."""
    port = port_of()

    assert fill(port, "192.0.2.1", 1) == 500
    assert sum(fill(port, "192.0.2.1", 1) for _ in range(90)) == 250
    assert (port.held_bytes, port.refused) == (750, 91)


def test_each_further_address_can_take_three_quarters_of_the_rest() -> None:
    """What one address leaves is for others; the port is almost full when an eighth of an amount is left."""
    port = port_of(bytes_max=1_024)
    taken, tight = [], []
    for number in range(3):
        taken.append(sum(fill(port, f"192.0.2.{number}", 1) for _ in range(20)))
        tight.append(port.is_tight)

    assert (taken, tight) == ([768, 192, 48], [False, True, True])


def test_calls_and_connections_have_shares() -> None:
    """At the share of its address a client is refused; at the limit of the port everyone is."""
    port = port_of(calls_max=40, connections_max=40)
    first = [share for share in (port.connect("192.0.2.1") for _ in range(40)) if share]
    other = port.connect("192.0.2.2")
    assert other is not None
    while port.has_room_for_call(first[0]):
        port.calls += 1
        first[0].address.calls += 1

    assert (len(first), port.calls) == (30, 30)
    assert not port.has_room_for_call(first[1])
    assert port.has_room_for_call(other)


def test_networks_of_ipv6_count_as_one_address() -> None:
    """Otherwise a client with a usual network has as many addresses as it likes."""
    port = port_of()
    for peer in ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1", "fe80::1%eth0", "192.0.2.1", ""):
        assert port.connect(peer) is not None

    assert sorted(port.addresses) == ["", "192.0.2.1", "2001:db8:0:1::/64", "2001:db8::/64", "fe80::/64"]


def test_what_a_connection_held_is_free_when_it_is_gone() -> None:
    """Nothing remains of a client in the figures of the port."""
    port = port_of()
    share = port.connect("192.0.2.1")
    assert share is not None
    share.hold(100)
    port.disconnect(share)

    assert (port.held_bytes, port.connections, port.addresses) == (0, 0, {})


# ------- calls that do not begin or end


@pytest.mark.parametrize("has_shares", [True, False])
async def test_requests_that_never_end_leave_calls_for_other_addresses(has_shares: bool) -> None:
    """A call counts from its headers on. The twin, without shares, starves the other address."""
    async with (
        serving(replace(LIMITS, calls_max=40, address_factor=3 if has_shares else 10**6)) as (_, server, port),
        raw_client(port) as greedy, raw_client(port, address=OTHER) as honest,
    ):  # fmt: skip
        for number in range(1, 100, 2):
            greedy.begin(number)
        headers = await greedy.reply_headers()
        await wait_until(lambda: server.use.refused == (20 if has_shares else 10))
        honest.begin(1)
        honest.message(1, b"x")
        reply = await honest.reply_headers()
        greedy.writer.transport.abort()
        await wait_until(lambda: server.use.calls == 0)

    assert headers["grpc-status"] == EXHAUSTED
    assert ("grpc-status" not in reply) == has_shares


async def test_large_headers_count_until_their_call_ends() -> None:
    """Requests that consist of headers cannot fill the memory; usual headers are a part of a call and cost nothing."""
    async with serving(replace(LIMITS, held_bytes_max=40_000)) as (_, server, port), raw_client(port) as raw:
        raw.begin(1)
        raw.begin(3, "/t/hold")
        raw.writer.write(headers_frame(5, (b"x-large", b"x" * 4_000)))
        raw.message(5, b"x", is_last=False)
        await wait_until(lambda: server.use.calls == 3)
        held = server.use.held_bytes
        for number in range(7, 13, 2):
            raw.writer.write(headers_frame(number, (b"x-large", b"x" * 4_000)))
        headers = await raw.reply_headers()
        most = server.use.held_bytes
        for number in (1, 3, 5, 7, 9):
            raw.reset(number)
        await wait_until(lambda: server.use.calls == 0)
        assert server.use.held_bytes == 0

    assert 8_000 < held < 9_000
    assert (headers["grpc-status"], most <= 20_000) == (EXHAUSTED, True)


@pytest.mark.parametrize("flags", [0, frames.END_HEADERS])
async def test_incomplete_frames_count(flags: int) -> None:
    """Half a frame and half a header block are kept, so that many connections with them could fill the memory."""
    block = encode([(b"x-large", b"x" * 9_000)])
    frame = make_frame(frames.HEADERS, flags, 1, block)
    async with (
        serving(replace(LIMITS, held_bytes_max=20_000)) as (_, server, port),
        raw_client(port) as first,
        raw_client(port) as second,
    ):
        first.writer.write(frame[: -1 if flags else None])
        await wait_until(lambda: 9_000 < server.use.held_bytes < 9_100)
        second.writer.write(frame[: -1 if flags else None])
        [*_, goaway] = await second.frames_until(frames.GOAWAY)
        await wait_until(lambda: server.use.connections == 1)
        assert 9_000 < server.use.held_bytes < 9_100
        first.writer.transport.abort()
        await wait_until(lambda: server.use.connections == 0)

    assert (int.from_bytes(goaway.payload[4:8], "big"), server.use.held_bytes) == (ErrorCode.ENHANCE_YOUR_CALM, 0)


@pytest.mark.parametrize("calls_max", [40, 400])
async def test_incomplete_requests_have_less_time_when_the_port_is_almost_full(calls_max: int) -> None:
    """Many addresses cannot keep a port full with requests that they do not end. The twin is a port with room."""
    limits = replace(LIMITS, calls_max=calls_max, times=RpcTimes(sweep_interval_s=0.05, tight_request_s=0.2))
    async with (
        serving(limits) as (_, server, port),
        raw_client(port) as first,
        raw_client(port, address=OTHER) as second,
    ):
        for number in range(1, 99, 2):
            first.begin(number)
        await wait_until(lambda: server.use.calls >= 30)
        second.begin(1)
        for number in range(3, 31, 2):
            second.begin(number)
        if calls_max == 40:
            assert (await second.reply_headers())["grpc-status"] == EXHAUSTED
            await wait_until(lambda: server.use.calls < 35)
        else:
            await wait_until(lambda: server.use.calls == 64)
            sweep_all(server, 1.0)
            assert server.use.calls == 64


@pytest.mark.parametrize("path", ["/t/hold", "/t/chat", "/t/repeat", "/t/begin"])
async def test_call_that_is_reset_at_once_leaves_nothing(path: str) -> None:
    """Its task is cancelled before it has begun, and then never runs."""
    async with serving() as (_, server, port), raw_client(port) as raw:
        for number in range(1, 21, 2):
            raw.begin(number, path)
            raw.message(number, b"x")
            raw.reset(number)
        raw.begin(21)
        raw.message(21, b"x")
        assert ":status" in await raw.reply_headers()
        await wait_until(lambda: server.use.calls == 0)

    assert (server.calls, server.use.held_bytes) == (set(), 0)


# ------- replies that are not read


@pytest.mark.parametrize(("path", "is_limited"), [("/t/enlarge", True), ("/t/flood", True), ("/t/flood", False)])
async def test_unread_replies_share_the_bytes(path: str, is_limited: bool) -> None:
    """A client that asks and does not read loses replies, and others get theirs. The twin has no limit."""
    async with (
        serving(replace(LIMITS, held_bytes_max=400_000 if is_limited else 1 << 30)) as (_, server, port),
        client(port) as channel, raw_client(port, {Setting.INITIAL_WINDOW_SIZE: 0}) as raw,
    ):  # fmt: skip
        for number in range(1, 21, 2):
            raw.begin(number, path)
            raw.message(number, b"x")
        if is_limited:
            [*_, last] = await raw.frames_until(frames.RST_STREAM)
            assert int.from_bytes(last.payload, "big") == ErrorCode.ENHANCE_YOUR_CALM
        await wait_until(lambda: server.use.calls == (3 if is_limited else 10))
        held = server.use.held_bytes
        assert await channel.unary_unary("/t/enlarge")(b"x") == b"x" * LARGE_BYTES
        raw.writer.transport.abort()
        await wait_until(lambda: server.use.held_bytes == 0)

    assert (held <= 200_000) == is_limited


async def test_transports_that_are_full_count() -> None:
    """A client that opens its windows and reads nothing from its socket is closed for what is kept for it."""
    limits = replace(
        LIMITS, streams_per_connection_max=1_000, held_bytes_max=8 << 20, unsent_bytes_max=64 << 20,
        times=RpcTimes(sweep_interval_s=0.05),
    )  # fmt: skip
    window = (1 << 31) - 1
    async with (
        serving(limits) as (_, server, port),
        raw_client(port, {Setting.INITIAL_WINDOW_SIZE: window}) as raw,
    ):  # fmt: skip
        raw.writer.write(frames.make_window_update(0, window - frames.WINDOW_DEFAULT))
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]  # the client reads nothing
        number = 1
        while server.use.connections or number == 1:
            raw.begin(number, "/t/repeat")
            raw.message(number, bytes(200_000))
            number += 2
            await asyncio.sleep(0)
            assert number < 1_000, "the client was not closed"

    assert (server.use.held_bytes, server.use.refused) == (0, 1)


# ------- watches


def watching(_echo: Any) -> dict[str, Any]:
    health = Health(frozenset())
    health.set_state(SERVING)
    return health.methods()


@pytest.mark.parametrize("limit", ["WATCHES_MAX", "WATCHES_PER_ADDRESS_MAX"])
async def test_watches_are_limited_by_themselves(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """They need no account and never end; beyond the limit a client is refused, and a check is served."""
    monkeypatch.setattr(health_module, limit, 3)
    server = RpcServer(watching(None), LIMITS, None)
    port = await server.start("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(client(port))
        watches = [channel.unary_stream(f"/{SERVICE}/Watch")(b"") for _ in range(3)]
        states = [await anext(aiter(one)) for one in watches]
        refused = channel.unary_stream(f"/{SERVICE}/Watch")(b"")
        code, _ = await status_of(anext(aiter(refused)))
        assert await channel.unary_unary(f"/{SERVICE}/Check")(b"") == states[0]
        watches[0].cancel()
        await wait_until(lambda: server.use.calls == 2)
        assert await anext(aiter(channel.unary_stream(f"/{SERVICE}/Watch")(b""))) == states[0]
    await server.stop(0)

    assert code.value[0] == int(StatusCode.RESOURCE_EXHAUSTED)


def sweep_all(server: RpcServer, seconds: float) -> None:
    """Check the timeouts as they are this much later."""
    for connection in list(server.connections):
        connection.check_timeouts(server.loop.time() + seconds)


def headers_frame(stream_id: int, *more: tuple[bytes, bytes], path: str = "/t/echo") -> bytes:
    fields = [(b":method", b"POST"), (b":path", path.encode()), (b"content-type", b"application/grpc"), *more]
    return make_frame(frames.HEADERS, frames.END_HEADERS, stream_id, encode(fields))
