"""Whether the operator lives, as kubelet asks, and its metrics.

Live means that every group has come round lately: a watch or a loop that died quietly must not leave a process that
looks well. One that only waits to lead is live and ready, too.

Every answer ends its connection, and every connection has a deadline and a place that a younger one may take
(`gantry_remoting.http_admission`), so half requests take no probe away.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, final

from aiohttp import web

from gantry_operator.metrics import Metrics
from gantry_remoting.closings import LimitedLog
from gantry_remoting.http_admission import HttpAdmission, HttpLimitSettings, HttpListener, Place

Complaint = Callable[[], str]
"""What is wrong now; empty if nothing is."""

LIMITS: Final = HttpLimitSettings(
    connections_max=64, connections_per_address_max=32, probe_connections=0, head_timeout_ms=10_000
)
"""kubelet and Prometheus have one connection each at a time; the deadline is for request and answer together."""


BACKLOG: Final = 1024
"""A flood of connections must not have the packets of a probe dropped."""

_failures: Final = LimitedLog(logging.getLogger(__name__))


@final
class _Handler(web.RequestHandler):
    """aiohttp's protocol in an admitted connection. An exception in a callback closes this connection and no other."""

    __slots__ = ("_place",)

    def __init__(self, place: Place, server: web.Server) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._place: Final = place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            super().connection_made(transport)
            self._place.bind(transport.abort)  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001 - a callback's exception costs its own connection and no more
            _failures.callback_failed(self._place.address, "connection_made", error)
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - see connection_made
            _failures.callback_failed(self._place.address, "data_received", error)
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._place.release()
        try:
            super().connection_lost(exc)
        except Exception as error:  # noqa: BLE001 - see connection_made
            _failures.callback_failed(self._place.address, "connection_lost", error)


@asynccontextmanager
async def probes(address: tuple[str, int], metrics: Metrics, complaint: Complaint) -> AsyncIterator[int]:
    """It listens while inside; the port that it has got."""

    async def live(_request: web.Request) -> web.Response:
        reason = complaint()
        return web.json_response({"live": not reason, "reason": reason}, status=503 if reason else 200)

    async def numbers(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def close_after(_request: web.Request, answer: web.StreamResponse) -> None:
        answer.force_close()

    app = web.Application()
    app.add_routes([web.get("/livez", live), web.get("/readyz", live), web.get("/metrics", numbers)])
    app.on_response_prepare.append(close_after)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert server is not None, "set up"
    admission = HttpAdmission("operator", LIMITS, clock=time.monotonic)
    metrics.count_connections(admission)
    try:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with socket.create_server(address, family=family, backlog=BACKLOG) as bound:
            bound.setblocking(False)
            listener = HttpListener(bound, admission, lambda place: _Handler(place, server), None)
            listener.start()
            try:
                yield bound.getsockname()[1]
            finally:
                await listener.close()
    finally:
        await runner.cleanup()
