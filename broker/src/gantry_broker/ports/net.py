"""Sockets, as a port, kept as small as what a server and a client of ours need of them.

Both verbs speak asyncio: a protocol factory in, a transport or a listener out. The real twin asks the running loop;
the twin in ``gantry_testing`` joins the two ends in memory and can cut, delay or split what travels between.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, final

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    """A listening socket."""

    @property
    def port(self) -> int:
        """The port it got, which matters when port 0 was asked for."""
        ...

    async def close(self) -> None:
        """Stop accepting. Connections that exist are not touched."""
        ...


class Net(Protocol):
    """Listening and connecting. Owned by the event loop's thread."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> Listener:
        """Accept connections on ``host:port``, one protocol from ``factory`` for each."""
        ...

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect to ``host:port``. Raises ``OSError`` when nobody answers."""
        ...


@final
class SystemListener:
    """An asyncio server."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._port = int(server.sockets[0].getsockname()[1])

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        self._server.close()
        await asyncio.sleep(0)


@final
class SystemNet:
    """The machine's sockets, through the running event loop."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> Listener:
        server = await asyncio.get_running_loop().create_server(factory, host, port, ssl=tls, backlog=1024)
        return SystemListener(server)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        transport, protocol = await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls)
        return transport, protocol
