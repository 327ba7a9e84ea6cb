"""Requests that begin without a task: what their callers get from the pool of connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gantry_client.connections import ConnectionPool, RequestHandler
from gantry_client.errors import InvalidMessage, RequestFailed, RequestTimeout, Unavailable
from gantry_client.settings import ClientSettings
from gantry_testing.local import wait_until
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command, decode_command, oneway
from gantry_wire.frame import FrameReader
from gantry_wire.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

ECHO, SILENT, HANG_UP, HELD, ASK = 1, 2, 3, 4, 5
"""What the server does with a request of this code: HELD waits for the next ECHO, ASK for an answer."""

Outcome = Command | RequestFailed


@asynccontextmanager
async def connected(
    answer: RequestHandler = lambda command, peer: None,
) -> AsyncIterator[tuple[ConnectionPool, str]]:
    """Yield a pool that is connected to a server, and the address of that; ``answer`` answers the server."""

    held: list[Command] = []

    def handle(command: Command, writer: asyncio.StreamWriter) -> None:
        if command.is_reply:
            answered, body = held.pop(), (command.remark or "").encode()
            writer.write(answered.reply(command.code, body=body).encode())
        elif command.code == ECHO:
            for one in (*held, command):
                writer.write(one.reply(body=one.body).encode())
            held.clear()
        elif command.code == HANG_UP:
            writer.transport.abort()
        elif command.code in (HELD, ASK):
            held.append(command)
        if command.code == ASK:
            writer.write(Command(code=ASK).encode())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(1 << 16):
            for frame in frames.feed(data):
                handle(decode_command(frame), writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    pool = ConnectionPool(ClientSettings(), answer=answer)
    try:
        await pool.request(address, Command(code=ECHO), 30_000)
        yield pool, address
    finally:
        await pool.close()
        server.close()


async def outcome_of(pool: ConnectionPool, address: str, code: int, timeout_ms: int = 30_000) -> Outcome:
    found: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    assert pool.begin_request(address, Command(code=code, body=b"x"), timeout_ms, found.set_result)
    return await found


async def test_reply_reaches_the_function() -> None:
    """Replies belong to their requests, as those of tasks do."""
    async with connected() as (pool, address):
        outcomes = await asyncio.gather(*(outcome_of(pool, address, ECHO) for _ in range(20)))

    assert [one.body for one in outcomes if isinstance(one, Command)] == [b"x"] * 20


async def test_failure_is_the_error_that_a_task_would_get() -> None:
    """A timeout and a lost connection have the errors of `request`."""
    async with connected() as (pool, address):
        late = await outcome_of(pool, address, SILENT, timeout_ms=20)
        lost = await outcome_of(pool, address, HANG_UP)

    assert isinstance(late, RequestTimeout)
    assert isinstance(lost, Unavailable) and lost.is_outcome_unknown


async def test_nothing_begins_without_a_connection() -> None:
    """A connection is opened by a task; until then the caller uses `request`."""
    async with connected() as (pool, address):
        await outcome_of(pool, address, HANG_UP)
        await wait_until(lambda: not pool.open_addresses())
        assert not pool.begin_request(address, Command(code=ECHO), 1_000, lambda _: pytest.fail("an outcome"))
        await pool.request(address, Command(code=ECHO), 30_000)
        assert isinstance(await outcome_of(pool, address, ECHO), Command)

    assert not pool.begin_request(address, Command(code=ECHO), 1_000, lambda _: pytest.fail("an outcome"))


async def test_error_of_a_caller_affects_no_other_request(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the connection stays open."""

    def fail(outcome: Outcome) -> None:
        raise ZeroDivisionError

    async with connected() as (pool, address):
        with caplog.at_level(logging.ERROR):
            assert pool.begin_request(address, Command(code=ECHO), 30_000, fail)
            after = await outcome_of(pool, address, ECHO)
        assert pool.open_addresses() == {address}

    assert isinstance(after, Command)
    assert "unexpected error while handling reply of peer" in caplog.text


@pytest.mark.parametrize("oversized", [{"ext": {"key": "x" * HEADER_BYTES_MAX}}, {"body": bytes(FRAME_BYTES_MAX)}])
async def test_request_beyond_a_frame_fails_alone(oversized: dict[str, Any]) -> None:
    """A peer would close the connection, and every other request on it would fail."""
    async with connected() as (pool, address):
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        assert pool.begin_request(address, Command(code=HELD, body=b"x"), 30_000, waiting.set_result)
        with pytest.raises(InvalidMessage, match="exceeds the limit of"):
            await pool.request(address, Command(code=ECHO, **oversized), 30_000)
        assert not pool.begin_request(address, Command(code=ECHO, **oversized), 30_000, lambda outcome: None)
        with pytest.raises(InvalidMessage):
            await pool.send_oneway(address, oneway(ECHO, oversized.get("ext", {}), oversized.get("body", b"")), 30_000)

        await pool.request(address, Command(code=ECHO), 30_000)
        held = await waiting
        assert isinstance(held, Command)
        assert pool.open_addresses() == {address}


async def test_answer_beyond_a_frame_is_replaced_by_an_error() -> None:
    """A server that asks a client gets the reason, and the connection stays."""
    async with connected(lambda command, peer: command.reply(body=bytes(FRAME_BYTES_MAX))) as (pool, address):
        reply = await pool.request(address, Command(code=ASK), 30_000)

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "exceeds the limit of" in reply.body.decode()
