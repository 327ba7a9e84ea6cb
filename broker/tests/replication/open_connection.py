"""Open a connection that is closed even if the task that opens it is cancelled."""

from __future__ import annotations

import asyncio

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(host: str, port: int) -> Streams:
    """Return the reader and writer of a new connection."""
    connecting = asyncio.ensure_future(asyncio.open_connection(host, port))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        made = await asyncio.gather(connecting, return_exceptions=True)
        for one in made:
            if not isinstance(one, BaseException):
                one[1].transport.abort()
        raise
