"""Requests that begin without a task: what their callers get from the pool of connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gantry_client.connections import ConnectionPool
from gantry_client.errors import RequestFailed, RequestTimeout, Unavailable
from gantry_client.settings import ClientSettings
from gantry_testing.local import wait_until
from gantry_wire.command import Command, decode_command
from gantry_wire.frame import FrameReader

ECHO, SILENT, HANG_UP = 1, 2, 3
"""What the server does with a request of this code."""

Outcome = Command | RequestFailed


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ConnectionPool, str]]:
    """Yield a pool that is connected to a server, and the address of that."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(1 << 16):
            for frame in frames.feed(data):
                command = decode_command(frame)
                if command.code == ECHO:
                    writer.write(command.reply(body=command.body).encode())
                elif command.code == HANG_UP:
                    writer.transport.abort()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    pool = ConnectionPool(ClientSettings(), answer=lambda command, peer: None)
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
