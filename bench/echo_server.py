"""The baseline of `make bench-send`: a server that returns the bytes that it reads, on the event loop of the broker.

It costs what sockets, the event loop and one Python call per read cost, and nothing else. The broker's CPU time per
message is reported as a multiple of this server's, in the same run, so that the figure describes the broker and not the
machine. It does not parse frames: one read, one write.

With `--relay PORT` it is the baseline of `make bench-ha`: for each connection it opens one to the server at that port,
and forwards its input there, and the replies back. So a message passes two processes and four sockets, like one that a
slave must have before it is answered, but without any processing.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from typing import cast

import uvloop


class Echo(asyncio.Protocol):
    """One connection; the bytes of every read are written back."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport without being a subclass.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


class UpstreamConnection(asyncio.Protocol):
    """A relay's own connection to the other server, whose replies go back to the client."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.close()


class Relay(asyncio.Protocol):
    """A client's connection. Data that arrives before the other connection is open is buffered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._early = b""
        self._upstream: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connecting = asyncio.ensure_future(self._connect(cast(asyncio.Transport, transport)))

    async def _connect(self, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            upstream, _ = await loop.create_connection(lambda: UpstreamConnection(client), "127.0.0.1", self._port)
        except OSError:
            client.close()
            return
        upstream.write(self._early)
        self._upstream = upstream

    def data_received(self, data: bytes) -> None:
        if self._upstream is None:
            self._early += data
        else:
            self._upstream.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._upstream is not None:
            self._upstream.close()


async def serve(protocol: Callable[[], asyncio.Protocol]) -> None:
    """Listen on a free loopback port, print it, and serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await stop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--relay", type=int, metavar="PORT", help="relay to the server at this port")
    port = parser.parse_args().relay
    uvloop.run(serve(Echo if port is None else lambda: Relay(port)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
