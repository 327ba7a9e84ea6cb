"""A listening port on which nothing is read or sent before a TLS handshake is over.

asyncio's own server keeps the context that it began with, for ever, and as many half-open handshakes as come. Here
every connection asks for the context of the moment, so a certificate that was replaced holds from the next connection
on, and only so many handshakes are kept: when there are more the oldest goes, for an honest one takes milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, final

from gantry_remoting.addresses import join_address, open_listening_socket, peer_address
from gantry_remoting.closings import LimitedLog

log = logging.getLogger(__name__)

BACKLOG: Final = 128
HANDSHAKE_S: Final = 10.0
HANDSHAKES_MAX: Final = 64
ACCEPT_RETRY_S: Final = 1.0
"""After an accept that failed: most often there are no descriptors left."""


@final
class TlsPort:
    """Makes a protocol for every peer that has proved what the context asks for. Owned by the loop."""

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], context: Callable[[], ssl.SSLContext]) -> None:
        self._factory: Final = factory
        self._context: Final = context
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._log: Final = LimitedLog(log)

    @property
    def port(self) -> int:
        assert self._socket is not None, "start() comes first"
        return int(self._socket.getsockname()[1])

    @property
    def handshakes(self) -> int:
        """How many are under way."""
        return len(self._handshakes)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError, and `PortTaken` for a port that is taken."""
        self._socket = await open_listening_socket(host, port, backlog=BACKLOG)
        self._accepting = asyncio.create_task(self._accept(self._socket), name="accept slaves")

    async def close(self) -> None:
        """Listen no more, and end the handshakes. Connections that exist are not touched."""
        accepting, self._accepting = self._accepting, None
        ending = [*self._handshakes, *([] if accepting is None else [accepting])]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, peer = await self._loop.sock_accept(listening)
            except Exception as error:  # noqa: BLE001 - the next connection must be accepted after any error
                reason = f"{type(error).__name__}: {error}"
                self._log.write(logging.WARNING, "accepting replication connections failed", {"reason": reason})
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._shake_hands(connection, join_address(*peer_address(peer))))
            self._handshakes[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # it begins, so that from here on it is the transport that closes the connection

    async def _shake_hands(self, connection: socket.socket, peer: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._context(), ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:
            facts = {"peer": peer, "reason": str(error)}
            self._log.write(logging.WARNING, "peer refused: TLS handshake failed", facts)
        except Exception as error:  # noqa: BLE001 - a handshake's exception costs its own connection and no more
            self._log.callback_failed(peer, "handshake", error)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
