"""Exceptions in the callbacks of a sidecar's connections: each ends only its own connection, with one log line.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast, final

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gantry_admin import http_protocol, log_listener
from gantry_admin.http_protocol import LimitedHttp
from gantry_remoting.close_log import LimitedLog
from gantry_remoting.http_admission import ConnectionSlot, HttpAdmission, HttpLimitSettings, HttpListener
from gantry_testing.local import on_both_loops, wait_until

PATIENCE_S = 60.0
GOOD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
BUG = b"GET /bug HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was logged in another test limits nothing here."""
    monkeypatch.setattr(http_protocol, "_failures", LimitedLog(logging.getLogger(http_protocol.__name__)))


@final
class Unguarded(LimitedHttp):
    """The same connection without the guard around its callbacks."""

    def _callback_failed(self, callback: str, error: Exception) -> None:
        raise error


class Port:
    """One listener as the sidecar has it, with an application that answers everything."""

    def __init__(self, address: tuple[str, int], admission: HttpAdmission) -> None:
        self.address = address
        self.admission = admission
        self.uncaught: list[dict[str, Any]] = []
        """What reached the event loop."""

    async def ask(self, request: bytes) -> bytes:
        """All that is answered until the connection ends; empty where nothing is."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(request)
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def listening(protocol: type[LimitedHttp] = LimitedHttp) -> AsyncIterator[Port]:
    """Run an HTTP server with this protocol, and yield its port."""
    state, subjects = ServerState(), dict[tuple[str, int], str]()
    config = uvicorn.Config(PlainTextResponse("fine"), ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()

    def make(slot: ConnectionSlot) -> LimitedHttp:
        return protocol(slot, subjects, config, state)

    admission = HttpAdmission("test", HttpLimitSettings(), clock=time.monotonic)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        port = Port(bound.getsockname(), admission)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: port.uncaught.append(context))
        listener = HttpListener(bound, admission, make, None)
        listener.start()
        try:
            yield port
            await wait_until(lambda: not len(admission))
        finally:
            await listener.close()


def records_of_failed_callbacks(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log records about callbacks that failed."""
    return [record for record in caplog.records if record.getMessage() == "connection closed: a callback failed"]


def break_callback(monkeypatch: pytest.MonkeyPatch, callback: str) -> None:
    """Give the server a bug that the first connection that reaches it, or the request for /bug, runs into."""
    real, left = getattr(H11Protocol, callback), [1]

    def broken(self: H11Protocol, argument: Any) -> None:
        if argument == BUG or (callback != "data_received" and left and left.pop()):
            raise KeyError("a bug")
        real(self, argument)

    monkeypatch.setattr(H11Protocol, callback, broken)


@pytest.mark.parametrize("callback", ["connection_made", "data_received", "connection_lost"])
@on_both_loops
async def test_exception_in_a_callback_closes_only_its_connection(
    callback: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is freed, one line has callback and traceback, other connections are served, the loop sees nothing."""
    break_callback(monkeypatch, callback)
    async with listening() as port:
        await port.ask(BUG)
        await wait_until(lambda: not len(port.admission))
        assert (await port.ask(GOOD)).startswith(b"HTTP/1.1 200")
    assert port.uncaught == []
    [line] = records_of_failed_callbacks(caplog)
    assert (line.__dict__["callback"], line.exc_info is not None) == (callback, True)
    assert line.__dict__["peer"].startswith("127.0.0.1")


@on_both_loops
async def test_many_exceptions_cause_one_traceback_and_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that triggers the same bug repeatedly causes one traceback, and a few lines per second."""
    break_callback(monkeypatch, "data_received")
    async with listening() as port:
        for _ in range(60):
            await port.ask(BUG)
    lines = records_of_failed_callbacks(caplog)
    assert sum(line.exc_info is not None for line in lines) == 1
    assert 0 < len(lines) < 60


@on_both_loops
async def test_without_the_guard_exceptions_reach_the_event_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: without the guard every exception reaches the event loop, which logs a traceback for each."""
    break_callback(monkeypatch, "data_received")
    async with listening(Unguarded) as port:
        for _ in range(10):
            await port.ask(BUG)
    assert len(port.uncaught) == 10
    assert records_of_failed_callbacks(caplog) == []


async def test_exception_while_serving_a_range_closes_only_its_connection(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port for ranges has the same guard: few lines, one traceback, nothing reaches the loop."""

    async def broken(self: log_listener.Connection) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(log_listener.Connection, "serve", broken)
    listener = log_listener.LogListener(cast(Any, None), None)
    admission = HttpAdmission("test", HttpLimitSettings(), clock=time.monotonic)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        port = Port(bound.getsockname(), admission)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: port.uncaught.append(context))
        accepting = HttpListener(bound, admission, listener._protocol, None)
        accepting.start()
        for _ in range(60):
            await port.ask(GOOD)
        await wait_until(lambda: not len(admission))
        await accepting.close()
    lines = records_of_failed_callbacks(caplog)
    assert port.uncaught == []
    assert sum(line.exc_info is not None for line in lines) == 1
    assert 0 < len(lines) < 60
