"""Both listeners and the sidecar behind them, from start to stop.

The sockets are bound before anything else, so that a port that is taken is one line. They are bound before the line is
printed that says that it is ready, so that a port that was left to the system is in it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from gantry_admin.app import make_app
from gantry_admin.certificates import open_door, recording_protocol
from gantry_admin.errors import SettingsError
from gantry_admin.log_listener import LogListener
from gantry_admin.recent_lines import RecentLines
from gantry_admin.settings import Address, SidecarSettings
from gantry_admin.sidecar import Sidecar

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 512
KEEP_ALIVE_S: Final = 30
GRACE_S: Final = 2
BACKLOG: Final = 128
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def bind(address: Address, option: str) -> socket.socket:
    """A listening socket's socket. Raises ``SettingsError`` that names the option."""
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"{option} {address}: {error.strerror}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(name)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise SettingsError(f"{option} {address}: {error.strerror}") from error
    bound.setblocking(False)
    return bound


async def serve(settings: SidecarSettings, recent: RecentLines | None = None) -> None:
    """Until SIGTERM or SIGINT. Raises ``SettingsError`` for what cannot be started."""
    sidecar = Sidecar(settings)
    main_socket = bind(settings.listen, "--listen")
    try:
        log_socket = bind(settings.log_listen, "--log-listen")
    except SettingsError:
        main_socket.close()
        raise
    sidecar.fast_port = log_socket.getsockname()[1]
    try:
        tls = await open_door(sidecar.certificates)
        await _serve(sidecar, tls, recent, main_socket, log_socket)
    finally:
        main_socket.close()
        log_socket.close()
        if sidecar.certificates is not None:
            await sidecar.certificates.close()
        log.info("stopped")


async def _serve(
    sidecar: Sidecar, tls: ssl.SSLContext | None, recent: RecentLines | None, main: socket.socket, fast: socket.socket
) -> None:
    """On these sockets, until a signal comes."""
    listener = LogListener(sidecar, tls)
    subjects: dict[tuple[str, int], str] = {}
    app = make_app(sidecar, subjects=subjects, recent=recent)
    config = uvicorn.Config(
        app, http=recording_protocol(subjects), loop="none", ws="none", lifespan="off", log_config=None,
        access_log=False, proxy_headers=False, server_header=False, date_header=True,
        limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=GRACE_S,
        ssl_context_factory=None if tls is None else lambda *_: tls, backlog=BACKLOG,
    )  # fmt: skip
    server = Announcing(config, main, fast)
    sidecar.start()
    try:
        await listener.start(fast)
        await server.serve(sockets=[main])
    finally:
        await listener.close()
        await sidecar.close()


class Announcing(uvicorn.Server):
    """Says on standard output where it listens, once it does, and ends in an orderly way when a signal comes.

    The server's own way is to raise the signal again when it has stopped, which would end the process before what lies
    around it has ended.
    """

    def __init__(self, config: uvicorn.Config, main: socket.socket, fast: socket.socket) -> None:
        super().__init__(config)
        self._names = tuple(Address(host=one.getsockname()[0], port=one.getsockname()[1]) for one in (main, fast))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"sidecar listening on {self._names[0]}, log ranges on {self._names[1]}", flush=True)  # noqa: T201
