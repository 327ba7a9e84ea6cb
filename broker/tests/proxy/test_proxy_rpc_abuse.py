"""gRPC with clients that misbehave: what they cost is bounded, and others are served."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from http2_wire import split
from rpc_world import LIMITS, client, raw_client, serving

from gantry_proxy.http2 import frames
from gantry_proxy.http2.frames import Setting, make_frame
from gantry_proxy.http2.hpack import encode
from gantry_proxy.rpc.limits import RpcTimes
from gantry_proxy.rpc.protocol import StatusCode, with_prefix
from gantry_proxy.rpc.server import RpcServer
from gantry_remoting.certificates import CertificateSource
from gantry_remoting.tls_contexts import server_context
from gantry_testing.certificates import Party
from gantry_testing.local import wait_until


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [({"method": "GET"}, ":status", "405"), ({"kind": "text/html"}, ":status", "415"),
     ({"path": "/"}, "grpc-status", "12")],
)  # fmt: skip
async def test_request_that_is_not_of_grpc_is_refused(options: dict[str, str], name: str, value: str) -> None:
    """With the status that its protocol has for it."""
    async with serving() as (_, _, port), raw_client(port) as raw:
        raw.begin(1, **options)
        assert (await raw.reply_headers())[name] == value


@pytest.mark.parametrize("data", [b"", b"\0\0", with_prefix(b"x") + b"y", with_prefix(b"abc")[:-1]])
async def test_request_without_exactly_one_message_fails(data: bytes) -> None:
    """Nothing of it reaches a handler."""
    async with serving() as (echo, server, port), raw_client(port) as raw:
        raw.begin(1)
        raw.data(1, data, is_last=True)
        assert (await raw.reply_headers())["grpc-status"] == str(int(StatusCode.INTERNAL))

    assert (echo.headers, server.use.held_bytes) == ({}, 0)


async def test_streams_that_are_cut_within_a_message_leave_nothing() -> None:
    """Half a message, half a conversation, half a frame: the bytes are given back when the connection is lost."""
    async with serving() as (_, server, port), raw_client(port) as raw:
        raw.begin(1)
        raw.data(1, with_prefix(bytes(10_000))[:6_000])
        raw.begin(3, "/t/chat")
        raw.data(3, with_prefix(bytes(10_000))[:7_000])
        await wait_until(lambda: server.use.held_bytes == 13_000)
        raw.writer.write(b"\0\0\x09")
        raw.writer.transport.abort()
        await wait_until(lambda: not server.connections)

    assert (server.use.held_bytes, server.calls) == (0, set())


async def test_incomplete_requests_share_a_limit() -> None:
    """Clients that begin many messages and end none cannot fill the memory; later calls are served."""
    async with serving(replace(LIMITS, held_bytes_max=50_000)) as (_, server, port), raw_client(port) as raw:
        for number in (1, 3, 5):
            raw.begin(number)
            raw.data(number, with_prefix(bytes(100_000))[:16_000])
        assert server.use.held_bytes <= 50_000
        raw.begin(7)
        raw.data(7, with_prefix(bytes(100_000))[:16_000])
        assert (await raw.reply_headers())["grpc-status"] == str(int(StatusCode.RESOURCE_EXHAUSTED))
        async with client(port) as channel:
            assert await channel.unary_unary("/t/echo")(b"x") == b"x"
        raw.writer.transport.abort()
        await wait_until(lambda: server.use.held_bytes == 0)


async def test_reply_that_is_not_read_is_dropped_after_a_time() -> None:
    """A client without a window cannot collect replies in the memory of the proxy."""
    async with (
        serving(replace(LIMITS, times=RpcTimes(reply_s=0.2))) as (_, server, port),
        raw_client(port, {Setting.INITIAL_WINDOW_SIZE: 0}) as raw,
    ):
        raw.begin(1)
        raw.data(1, with_prefix(b"hello"), is_last=True)
        found = await raw.frames_until(frames.RST_STREAM)
        await wait_until(lambda: not server.calls)

    assert [frame.kind for frame in found if frame.stream_id == 1] == [frames.HEADERS, frames.RST_STREAM]


async def test_client_that_never_reads_is_disconnected() -> None:
    """It gets what the socket takes, and no more is held for it than the limit of a transport."""
    window = (1 << 31) - 1
    async with (
        serving(replace(LIMITS, message_bytes_max=4 << 20, times=RpcTimes(transport_s=0.3, sweep_interval_s=0.05))) as (
            _,
            server,
            port,
        ),
        raw_client(port, {Setting.INITIAL_WINDOW_SIZE: window}) as raw,
    ):
        raw.writer.write(frames.make_window_update(0, window - frames.WINDOW_DEFAULT))
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]  # the client reads nothing more
        for number in range(1, 30, 2):
            raw.begin(number, "/t/repeat")
            raw.data(number, with_prefix(bytes(1 << 19))[: 1 << 14])
            for start in range(1 << 14, (1 << 19) + 5, 1 << 14):
                raw.data(number, with_prefix(bytes(1 << 19))[start : start + (1 << 14)])
            raw.data(number, b"", is_last=True)
        await wait_until(lambda: not server.connections)

    assert server.calls == set()


async def test_silent_clients_are_disconnected() -> None:
    """One that does not begin, and one that does not answer a ping; an honest idle client stays."""
    times = RpcTimes(sweep_interval_s=0.05, preface_s=0.3, keepalive_s=0.4, keepalive_answer_s=0.4)
    async with (
        serving(replace(LIMITS, times=times)) as (_, server, port), client(port) as channel,
        raw_client(port, begins=False) as mute, raw_client(port) as dead,
    ):  # fmt: skip
        assert await channel.unary_unary("/t/echo")(b"x") == b"x"
        await wait_until(lambda: len(server.connections) == 3)
        await mute.wait_for_end()
        found = await dead.frames_until(frames.PING)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await dead.reader.readexactly(1_000)
        assert len(server.connections) == 1
        assert await channel.unary_unary("/t/echo")(b"y") == b"y"

    assert found[-1].flags == 0


async def test_client_of_another_protocol_gets_an_end() -> None:
    """A browser at the port gets a frame with the reason, and the connection closes."""
    async with serving() as (_, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
        await wait_until(lambda: not server.connections)

    assert split(answer)[-1].kind == frames.GOAWAY
    assert b"HTTP/2" in answer


async def test_expired_call_ends_without_the_help_of_its_client() -> None:
    """A client that vanished with its deadline leaves no handler behind."""
    async with (
        serving(replace(LIMITS, times=RpcTimes(sweep_interval_s=0.05))) as (echo, server, port),
        raw_client(port) as raw,
    ):
        block = encode([(b":method", b"POST"), (b":path", b"/t/hold"), (b"content-type", b"application/grpc"),
                        (b"grpc-timeout", b"100m")])  # fmt: skip
        raw.writer.write(make_frame(frames.HEADERS, frames.END_HEADERS, 1, block))
        raw.data(1, with_prefix(b"x"), is_last=True)
        headers = await raw.reply_headers()
        await wait_until(lambda: not server.calls)

    assert headers["grpc-status"] == str(int(StatusCode.DEADLINE_EXCEEDED))
    assert echo.cancelled == 1


async def test_request_that_takes_too_long_is_dropped() -> None:
    """A client that sends a part and waits cannot hold the bytes that all clients share; a conversation may wait."""
    async with (
        serving(replace(LIMITS, times=RpcTimes(sweep_interval_s=0.05, request_s=0.3))) as (_, server, port),
        raw_client(port) as raw,
    ):
        raw.begin(1, "/t/chat")
        raw.begin(3)
        raw.data(3, with_prefix(bytes(10_000))[:6_000])
        headers = await raw.reply_headers()
        await wait_until(lambda: server.use.held_bytes == 0)
        assert len(server.calls) == 1

    assert headers["grpc-status"] == str(int(StatusCode.DEADLINE_EXCEEDED))


async def test_flood_of_handshakes_displaces_itself(tmp_path: Path) -> None:
    """Clients that begin TLS and stop are closed for newer ones."""
    party = Party(tmp_path, trustme.CA())
    context = server_context(str(party.chain), str(party.key))
    source = CertificateSource("test", [], lambda: context, certificate=None)
    source.load()
    server = RpcServer({}, replace(LIMITS, handshakes_max=2), source)
    port = await server.start("127.0.0.1", 0)
    async with raw_client(port, begins=False) as first, raw_client(port, begins=False):
        await wait_until(lambda: len(server.handshakes) == 2)
        async with raw_client(port, begins=False):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await first.reader.readexactly(1)
            await wait_until(lambda: len(server.connections) == 2)
    await server.stop(0)

    assert server.handshakes == {}
