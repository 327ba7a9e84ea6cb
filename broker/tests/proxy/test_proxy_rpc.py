"""gRPC over real connections, with clients of gRPC's own library: methods, statuses, limits, and the stop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rpc_world import LIMITS, client, raw_client, serving, status_of

from gantry_proxy.http2 import frames
from gantry_proxy.http2.frames import Setting
from gantry_proxy.rpc.health import NOT_SERVING, SERVING, Health
from gantry_proxy.rpc.protocol import parse_timeout_s
from gantry_proxy.rpc.server import RpcServer
from gantry_testing.local import wait_until

# ------- ordinary clients


async def test_every_kind_of_method_is_served() -> None:
    """One reply, several replies, and a conversation, with messages of any size."""
    large = bytes(range(256)) * 3_000
    async with serving() as (_, _, port), client(port) as channel:
        replies = [await channel.unary_unary("/t/echo")(message) for message in (b"", b"x", large)]
        repeated = [message async for message in channel.unary_stream("/t/repeat")(large)]
        chat = channel.stream_stream("/t/chat")()
        answers = []
        for message in (b"one", large, b""):
            await chat.write(message)
            answers.append(await chat.read())
        await chat.done_writing()
        answers.append(await chat.read())
        assert await chat.read() is grpc.aio.EOF

    assert replies == [b"", b"x", large]
    assert repeated == [large] * 5
    assert answers == [b"one", large, b"", b"bye"]


async def test_many_calls_share_a_connection() -> None:
    """Each reply belongs to its call."""
    async with serving() as (_, _, port), client(port) as channel:
        echo = channel.unary_unary("/t/echo")
        sent = [str(number).encode() * 50 for number in range(1_000)]
        assert await asyncio.gather(*(echo(message) for message in sent)) == sent


async def test_failure_is_a_status_with_its_text() -> None:
    """Any text survives; the text of a bug is not revealed, and the unknown method is named."""
    async with serving() as (_, _, port), client(port) as channel:
        fail = channel.unary_unary("/t/fail")
        failed, bug = await status_of(fail(b"")), await status_of(fail(b"bug"))
        unknown = await status_of(channel.unary_unary("/t/missing")(b""))

    assert failed == (grpc.StatusCode.NOT_FOUND, "no caf\u00e9 100%")
    assert bug[0] is grpc.StatusCode.INTERNAL and "secret" not in str(bug[1])
    assert unknown == (grpc.StatusCode.UNIMPLEMENTED, "unknown method '/t/missing'")


async def test_cancelled_call_ends_its_handler() -> None:
    """A client that goes away, by a cancellation, a deadline or the loss of its connection, leaves no handler."""
    async with serving() as (echo, server, port):
        async with client(port) as channel:
            hold = channel.unary_unary("/t/hold")
            cancelled, lost = hold(b""), hold(b"")
            sending = [asyncio.ensure_future(one.wait_for_connection()) for one in (cancelled, lost)]
            await wait_until(lambda: len(server.calls) == 2)
            cancelled.cancel()
            code, _ = await status_of(hold(b"", timeout=0.2))
            await wait_until(lambda: len(server.calls) == 1)
        await wait_until(lambda: not server.calls)
        await asyncio.gather(*sending, return_exceptions=True)

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert echo.cancelled == 3


async def test_headers_reach_the_handler() -> None:
    """Also a deadline, which is a header."""
    async with serving() as (echo, _, port), client(port) as channel:
        await channel.unary_unary("/t/echo")(b"", metadata=(("x-mq-client-id", "one"),), timeout=5)

    assert echo.headers["x-mq-client-id"] == "one"
    assert parse_timeout_s(echo.headers["grpc-timeout"]) == pytest.approx(5, abs=1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("250m", 0.25), ("1000u", 0.001), ("7n", 7e-9), ("", None), ("S", None),
     ("1x", None), ("-1S", None), ("123456789S", None), ("\u0661S", None)],
)  # fmt: skip
def test_deadline_is_parsed(text: str, seconds: float | None) -> None:
    """Each unit; a malformed deadline is none, as in gRPC's core."""
    found = parse_timeout_s(text)
    assert found == (None if seconds is None else pytest.approx(seconds))


async def test_message_beyond_the_limit_is_refused_before_it_is_received() -> None:
    """The connection can be used for later calls."""
    async with serving() as (_, _, port), client(port) as channel:
        echo = channel.unary_unary("/t/echo")
        code, text = await status_of(echo(bytes((1 << 20) + 1)))
        assert await echo(bytes(1 << 20)) == bytes(1 << 20)

    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "1048577 bytes, at most 1048576" in str(text)


# ------- calls without a task


async def test_call_that_was_begun_without_a_task_is_finished_later() -> None:
    """Its reply belongs to it; a call that is not begun has a handler as every other."""
    async with serving() as (echo, server, port), client(port) as channel:
        begin = channel.unary_unary("/t/begin")
        assert await begin(b"") == b""
        calls = [asyncio.ensure_future(_reply_of(begin(text))) for text in (b"one", b"two")]
        await wait_until(lambda: len(echo.begun) == 2)
        assert server.calls == set(echo.begun)
        assert [one.task for one in echo.begun] == [None, None]
        replies = {b"one": b"1" * 100_000, b"two": b"2"}
        for call, text in zip(reversed(echo.begun), (b"two", b"one"), strict=True):
            call.finish(replies[text])
        assert await asyncio.gather(*calls) == [replies[b"one"], replies[b"two"]]
        await wait_until(lambda: not server.calls)


async def _reply_of(call: Any) -> bytes:
    reply: bytes = await call
    return reply


async def test_call_without_a_task_may_end_before_it_is_finished() -> None:
    """A client that goes away and a stop end it; what comes later is dropped."""
    async with serving() as (echo, server, port), client(port) as channel:
        begin = channel.unary_unary("/t/begin")
        code, _ = await status_of(begin(b"late", timeout=0.2))
        await wait_until(lambda: not server.calls)
        stopped = asyncio.ensure_future(status_of(begin(b"stopped")))
        await wait_until(lambda: len(server.calls) == 1)
        await server.stop(0)
        assert server.calls == set()
        for call in echo.begun:
            call.finish(b"too late")
        assert (await stopped)[0] is grpc.StatusCode.UNAVAILABLE

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_reply_without_a_task_waits_for_its_reader() -> None:
    """A client with a small window gets the whole reply as it reads, and the call runs until then."""
    async with serving() as (echo, server, port), raw_client(port, {Setting.INITIAL_WINDOW_SIZE: 10}) as one:
        one.begin(1, "/t/begin")
        one.data(1, b"\0\0\0\0\4text", is_last=True)
        await wait_until(lambda: len(echo.begun) == 1)
        echo.begun[0].finish(b"x" * 20)
        [*_, first] = await one.frames_until(frames.DATA)
        assert (len(first.payload), server.calls) == (10, set(echo.begun))
        one.writer.write(frames.make_window_update(1, 100))
        [*_, second] = await one.frames_until(frames.DATA)
        assert first.payload + second.payload == b"\0\0\0\0\x14" + b"x" * 20
        await wait_until(lambda: not server.calls)


# ------- limits and the end


async def test_calls_beyond_the_limit_are_refused() -> None:
    """The limit is over all connections."""
    async with serving(replace(LIMITS, calls_max=2)) as (echo, server, port), client(port) as channel:
        hold = channel.unary_unary("/t/hold")
        running = [asyncio.ensure_future(_wait(hold(b"x"))) for _ in range(2)]
        await wait_until(lambda: len(server.calls) == 2)
        code, _ = await status_of(hold(b"y"))
        echo.go_on.set()
        assert await asyncio.gather(*running) == [b"x", b"x"]

    assert (code, server.use.refused) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1)


async def _wait(call: Any) -> Any:
    return await call


async def test_connections_beyond_the_limit_are_refused() -> None:
    """The others are served, and the end of one makes room."""
    async with serving(replace(LIMITS, connections_max=1)) as (_, server, port):
        async with raw_client(port):
            await wait_until(lambda: len(server.connections) == 1)
            async with raw_client(port, begins=False) as refused:
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await refused.reader.readexactly(1_000)
        await wait_until(lambda: not server.connections)
        async with client(port) as channel:
            assert await channel.unary_unary("/t/echo")(b"x") == b"x"


async def test_stop_lets_running_calls_end() -> None:
    """A call that runs gets its reply, and then the connection closes."""
    async with serving() as (echo, server, port), client(port) as channel:
        running = asyncio.ensure_future(_wait(channel.unary_unary("/t/hold")(b"x")))
        await wait_until(lambda: len(server.calls) == 1)
        stopping = asyncio.ensure_future(server.stop(20))
        await asyncio.sleep(0)
        echo.go_on.set()
        assert await running == b"x"
        await stopping

    assert not server.connections


async def test_stop_ends_calls_after_the_grace() -> None:
    """No client can keep a proxy from ending."""
    async with serving() as (echo, server, port), client(port) as channel:
        running = asyncio.ensure_future(status_of(channel.unary_unary("/t/hold")(b"x")))
        await wait_until(lambda: len(server.calls) == 1)
        await server.stop(0.05)
        code, _ = await running

    assert code is grpc.StatusCode.UNAVAILABLE
    assert echo.cancelled == 1


async def test_health_is_reported_and_watched() -> None:
    """Check and Watch of gRPC's own client; unknown services are unknown."""
    health = Health(frozenset({"svc"}))
    server = RpcServer(health.methods(), LIMITS, None)
    port = await server.start("127.0.0.1", 0)
    async with client(port) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(service="svc"))
        states = [(await watched.read()).status]
        health.set_state(SERVING)
        states.append((await watched.read()).status)
        checked = (await stub.Check(health_pb2.HealthCheckRequest())).status
        health.set_state(NOT_SERVING)
        states.append((await watched.read()).status)
        code, _ = await status_of(stub.Check(health_pb2.HealthCheckRequest(service="other")))
        unknown = (await stub.Watch(health_pb2.HealthCheckRequest(service="other")).read()).status
        watched.cancel()
    await server.stop(0)

    assert (states, checked) == ([2, 1, 2], 1)
    assert (code, unknown) == (grpc.StatusCode.NOT_FOUND, 3)
