"""Both listeners and the sidecar behind them, from start to stop.

The sockets are bound before anything else, so that a port that is taken is one line. They are bound before the line is
printed that says that it is ready, so that a port that was left to the system is in it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from gantry_admin.app import make_app
from gantry_admin.bundle import RecentLines
from gantry_admin.certificates import open_door
from gantry_admin.errors import SettingsError
from gantry_admin.http_protocol import LimitedHttp
from gantry_admin.log_listener import LogListener
from gantry_admin.settings import Address, SidecarSettings
from gantry_admin.sidecar import Sidecar
from gantry_remoting.http_admission import HttpListener, Place

log = logging.getLogger(__name__)

GRACE_S: Final = 2
BACKLOG: Final = 1024
"""Connections that the kernel may hold for us: a flood of them must not have the packets of a probe dropped."""
OTHER_DESCRIPTORS: Final = 384
"""Of files, peers, watches and connections that were accepted and are being closed, beside those that are served."""
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
    with bind(settings.listen, "--listen") as main, bind(settings.log_listen, "--log-listen") as fast:
        sidecar = Sidecar(settings, fast_port=fast.getsockname()[1])
        try:
            tls = await open_door(sidecar.certificates)
            await _serve(sidecar, tls, recent, main, fast)
        finally:
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
        app, http=LimitedHttp, loop="none", ws="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False, server_header=False, date_header=True, timeout_graceful_shutdown=GRACE_S, backlog=BACKLOG,
        timeout_keep_alive=-(-sidecar.settings.http.idle_timeout_ms // 1000),
    )  # fmt: skip

    def protocol(place: Place) -> LimitedHttp:
        return LimitedHttp(place, subjects, config, server.server_state)

    server = Announcing(config, HttpListener(main, sidecar.admission, protocol, tls), main, fast)
    ensure_descriptors(sidecar)
    sidecar.start()
    try:
        await listener.start(fast)
        await server.serve()
    finally:
        await listener.close()
        await sidecar.close()


def ensure_descriptors(sidecar: Sidecar) -> None:
    """Raise the soft limit of descriptors to what all connections together need, and warn where that is not allowed."""
    limits = (sidecar.admission.settings, sidecar.log_admission.settings)
    needed = OTHER_DESCRIPTORS + sum(one.connections_max + one.probe_connections for one in limits)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < needed:
            log.warning("descriptors may run out: RLIMIT_NOFILE is %d, %d are needed for all connections", most, needed)


class Announcing(uvicorn.Server):
    """Says on standard output where it listens, once it does, and ends in an orderly way when a signal comes.

    The server's own way is to raise the signal again when it has stopped, which would end the process before what lies
    around it has ended.
    """

    def __init__(
        self, config: uvicorn.Config, listener: HttpListener, main: socket.socket, fast: socket.socket
    ) -> None:
        """``listener`` makes the connections: the server's own way knows no limits."""
        super().__init__(config)
        self._listener: Final = listener
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
        await super().startup([])
        if self.started:
            self._listener.start()
            print(f"sidecar listening on {self._names[0]}, log ranges on {self._names[1]}", flush=True)  # noqa: T201

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._listener.close()
        await super().shutdown(sockets)
