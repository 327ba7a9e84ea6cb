"""An HTTP server of aiohttp on a port of this machine, that leaves no connection open when it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gantry_remoting.addresses import stop_listening

CLOSE_S = 0.1
"""For requests that are being answered when the server ends."""


@asynccontextmanager
async def http_server(app: web.Application, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve on 127.0.0.1; gives the port, which the system chooses if ``port`` is 0."""
    runner = web.AppRunner(app, shutdown_timeout=CLOSE_S)
    await runner.setup()
    assert runner.server is not None, "it is set up"
    server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", port, ssl=tls)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        await stop_listening(server)
        await asyncio.sleep(0)  # a connection that was accepted belongs to the runner now, which closes it
        await runner.cleanup()


def application(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    """One that answers every request by one function."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app
