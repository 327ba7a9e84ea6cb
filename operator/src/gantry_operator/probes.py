"""The HTTP server of the operator's probes and metrics.

The process is live if every resource was reconciled recently: a loop that hangs must not leave a process that appears
healthy. Resources that wait for their first round do not count. A process that waits for leadership is live and ready,
too. Watches are not checked: all resources are listed anew regularly (``watched_resources``).

Every response closes its connection. Every connection has a deadline, and may be replaced by a newer one
(`gantry_remoting.http_admission`), so incomplete requests do not keep a probe out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, final

from aiohttp import web

from gantry_operator.metrics import Metrics
from gantry_remoting.addresses import listening_socket
from gantry_remoting.close_log import LimitedLog
from gantry_remoting.http_admission import ConnectionSlot, HttpAdmission, HttpLimitSettings, HttpListener

HealthCheck = Callable[[], str]
"""Returns the present problem as a text, which is empty if there is none."""

LIMITS: Final = HttpLimitSettings(
    connections_max=64, connections_per_address_max=32, probe_connections=0, head_timeout_ms=10_000
)
"""kubelet and Prometheus use one connection each at a time; the deadline is for request and response together."""


BACKLOG: Final = 1024
"""The length of the listen queue: a flood of connections must not make the kernel drop a probe."""

_failures: Final = LimitedLog(logging.getLogger(__name__))


@final
class _Handler(web.RequestHandler):
    """aiohttp's protocol in an admitted connection. An exception in a callback closes this connection and no other."""

    __slots__ = ("_slot",)

    def __init__(self, slot: ConnectionSlot, server: web.Server) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._slot: Final = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            super().connection_made(transport)
            self._slot.bind(transport.abort)  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001 - a callback's exception costs its own connection and no more
            _failures.log_callback_failure(self._slot.address, "connection_made", error)
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - see connection_made
            _failures.log_callback_failure(self._slot.address, "data_received", error)
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._slot.release()
        try:
            super().connection_lost(exc)
        except Exception as error:  # noqa: BLE001 - see connection_made
            _failures.log_callback_failure(self._slot.address, "connection_lost", error)


@asynccontextmanager
async def probes(address: tuple[str, int], metrics: Metrics, health_check: HealthCheck) -> AsyncIterator[int]:
    """Serve probes and metrics while the context is entered; it yields the bound port."""

    async def live(_request: web.Request) -> web.Response:
        reason = health_check()
        return web.json_response({"live": not reason, "reason": reason}, status=503 if reason else 200)

    async def metrics_text(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def close_after(_request: web.Request, answer: web.StreamResponse) -> None:
        answer.force_close()

    app = web.Application()
    app.add_routes([web.get("/livez", live), web.get("/readyz", live), web.get("/metrics", metrics_text)])
    app.on_response_prepare.append(close_after)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert server is not None, "a runner that is set up has a server"
    admission = HttpAdmission("operator", LIMITS, clock=time.monotonic)
    metrics.export_closed_connections(admission)
    try:
        with listening_socket(*address, backlog=BACKLOG) as bound:
            listener = HttpListener(bound, admission, lambda slot: _Handler(slot, server), None)
            listener.start()
            try:
                yield bound.getsockname()[1]
            finally:
                await listener.close()
    finally:
        await runner.cleanup()
