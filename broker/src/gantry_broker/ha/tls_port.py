"""A listening port on which nothing is read or sent before a TLS handshake is complete.

asyncio's own server keeps its first context for its lifetime, and any number of half-open handshakes. Here every
connection uses the current context, so a replaced certificate is used from the next connection on, and the number of
handshakes is limited: beyond the limit the oldest one is cancelled, because an honest handshake takes milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, final

from gantry_remoting.addresses import join_address, open_listening_socket, peer_address
from gantry_remoting.close_log import LimitedLog

log = logging.getLogger(__name__)

BACKLOG: Final = 128
"""Length of the kernel's queue of connections that are not accepted yet."""

HANDSHAKE_S: Final = 10.0
"""Longest time of a TLS handshake, in seconds."""

HANDSHAKES_MAX: Final = 64
"""Largest number of handshakes in progress."""

ACCEPT_RETRY_S: Final = 1.0
"""Pause after a failed accept, in seconds: most often no descriptors are left."""


@final
class TlsPort:
    """Creates a protocol for every peer that the TLS context accepts. Owned by the loop."""

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
        """Number of handshakes in progress."""
        return len(self._handshakes)

    async def start(self, host: str, port: int) -> None:
        """Listen on the port. Raises OSError, and ``PortInUse`` for a port that is taken."""
        self._socket = await open_listening_socket(host, port, backlog=BACKLOG)
        self._accepting = asyncio.create_task(self._accept(self._socket), name="accept slaves")

    async def close(self) -> None:
        """Stop listening and cancel the handshakes. Existing connections continue."""
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
            task = asyncio.create_task(self._do_handshake(connection, join_address(*peer_address(peer))))
            self._handshakes[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # The handshake starts here; from now on the transport closes the connection.

    async def _do_handshake(self, connection: socket.socket, peer: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._context(), ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:
            extra = {"peer": peer, "reason": str(error)}
            self._log.write(logging.WARNING, "peer refused: TLS handshake failed", extra)
        except Exception as error:  # noqa: BLE001 - a handshake's exception costs its own connection and no more
            self._log.log_callback_failure(peer, "handshake", error)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
