"""The yardstick of `make bench-send`: a server that returns what it reads, on the event loop the broker uses.

It costs what sockets, the event loop and one Python call per read cost, and nothing else. The broker's CPU time per
message is reported as a multiple of this one's, in the same run, so that the figure says something about the broker and
not about the machine. It knows nothing of frames: one read, one write, whatever is in them.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import cast

import uvloop


class Echo(asyncio.Protocol):
    """One connection; every read is written back as it came."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


async def serve() -> None:
    """Listen on a free loopback port, print it, and stay until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await stop.wait()


def main() -> int:
    uvloop.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
