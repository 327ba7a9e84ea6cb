"""Whether the operator lives, as kubelet asks, and its metrics, each on a port of its own.

Live means that every group has come round lately: a watch or a loop that died quietly must not leave a process that
looks well (``fresh``). One that only waits to lead is live and ready, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gantry_operator.metrics import Metrics

Complaint = Callable[[], str]
"""What is wrong now; empty if nothing is."""


@asynccontextmanager
async def probes(
    address: tuple[str, int], metrics_address: tuple[str, int], metrics: Metrics, complaint: Complaint
) -> AsyncIterator[tuple[int, int]]:
    """Both listen while inside; the ports that they have got."""

    async def live(_request: web.Request) -> web.Response:
        reason = complaint()
        return web.json_response({"live": not reason, "reason": reason}, status=503 if reason else 200)

    async def numbers(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    runners = []
    try:
        for (host, port), routes in (
            (address, [web.get("/livez", live), web.get("/readyz", live)]),
            (metrics_address, [web.get("/metrics", numbers)]),
        ):
            app = web.Application()
            app.add_routes(routes)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, host, port).start()
        yield runners[0].addresses[0][1], runners[1].addresses[0][1]
    finally:
        for runner in runners:
            await runner.cleanup()
