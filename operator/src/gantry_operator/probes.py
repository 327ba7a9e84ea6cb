"""Whether the operator lives, as kubelet asks, and its metrics.

Live means that every group has come round lately: a watch or a loop that died quietly must not leave a process that
looks well. One that only waits to lead is live and ready, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gantry_operator.metrics import Metrics

Complaint = Callable[[], str]
"""What is wrong now; empty if nothing is."""


@asynccontextmanager
async def probes(address: tuple[str, int], metrics: Metrics, complaint: Complaint) -> AsyncIterator[int]:
    """It listens while inside; the port that it has got."""

    async def live(_request: web.Request) -> web.Response:
        reason = complaint()
        return web.json_response({"live": not reason, "reason": reason}, status=503 if reason else 200)

    async def numbers(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/livez", live), web.get("/readyz", live), web.get("/metrics", numbers)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, *address).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
