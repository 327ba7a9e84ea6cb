"""An HTTP server of aiohttp on a port of this machine, that closes all connections at its end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gantry_remoting.addresses import stop_listening

CLOSE_S = 0.1
"""The time for requests that are being answered when the server ends."""


@asynccontextmanager
async def http_server(app: web.Application, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve on 127.0.0.1; yields the port, which the system chooses if ``port`` is 0."""
    runner = web.AppRunner(app, shutdown_timeout=CLOSE_S)
    await runner.setup()
    assert runner.server is not None, "setup() made no server"
    server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", port, ssl=tls)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        await stop_listening(server)
        await asyncio.sleep(0)  # accepted connections are now registered at the runner, which closes them
        await runner.cleanup()


def application(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    """Return an application that answers every request with one function."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app
