"""Both listeners and the sidecar behind them, from start to stop.

The sockets are bound first, so that a port in use is reported as one line, and so that the line that announces
readiness has the ports that the system chose.
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
from gantry_admin.certificates import start_context
from gantry_admin.errors import SettingsError
from gantry_admin.http_protocol import LimitedHttp
from gantry_admin.log_listener import LogListener
from gantry_admin.settings import Address, SidecarSettings
from gantry_admin.sidecar import Sidecar
from gantry_remoting.addresses import listening_socket
from gantry_remoting.http_admission import ConnectionSlot, HttpListener

log = logging.getLogger(__name__)

GRACE_S: Final = 2
"""How long a stop waits for answers that are being sent."""
BACKLOG: Final = 1024
"""The kernel's queue of connections: a flood of connections must not let the packets of a probe be dropped."""
OTHER_DESCRIPTORS: Final = 384
"""File descriptors beside the served connections: files, peers, watches, and connections that are being closed."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def bind(address: Address, option: str) -> socket.socket:
    """Return a bound and listening socket. Raises ``SettingsError`` that names the option."""
    try:
        return listening_socket(address.host, address.port, backlog=BACKLOG)
    except OSError as error:
        raise SettingsError(f"{option} {address}: {error.strerror}") from error


async def serve(settings: SidecarSettings, recent: RecentLines | None = None) -> None:
    """Run the sidecar until SIGTERM or SIGINT. Raises ``SettingsError`` if it cannot be started."""
    with bind(settings.listen, "--listen") as main, bind(settings.log_listen, "--log-listen") as fast:
        sidecar = Sidecar(settings, fast_port=fast.getsockname()[1])
        try:
            tls = await start_context(sidecar.certificates)
            await _serve(sidecar, tls, recent, main, fast)
        finally:
            if sidecar.certificates is not None:
                await sidecar.certificates.close()
            log.info("sidecar stopped")


async def _serve(
    sidecar: Sidecar, tls: ssl.SSLContext | None, recent: RecentLines | None, main: socket.socket, fast: socket.socket
) -> None:
    """Serve on these sockets until a signal is received."""
    listener = LogListener(sidecar, tls)
    subjects: dict[tuple[str, int], str] = {}
    app = make_app(sidecar, subjects=subjects, recent=recent)
    config = uvicorn.Config(
        app, http=LimitedHttp, loop="none", ws="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False, server_header=False, date_header=True, timeout_graceful_shutdown=GRACE_S, backlog=BACKLOG,
        timeout_keep_alive=-(-sidecar.settings.http.idle_timeout_ms // 1000),
    )  # fmt: skip

    def protocol(slot: ConnectionSlot) -> LimitedHttp:
        return LimitedHttp(slot, subjects, config, server.server_state)

    server = AnnouncingServer(config, HttpListener(main, sidecar.admission, protocol, tls), main, fast)
    ensure_descriptors(sidecar)
    sidecar.start()
    try:
        await listener.start(fast)
        await server.serve()
    finally:
        await listener.close()
        await sidecar.close()


def ensure_descriptors(sidecar: Sidecar) -> None:
    """Raise the soft limit of file descriptors to the need of all connections, and warn if that is not allowed."""
    limits = (sidecar.admission.settings, sidecar.log_admission.settings)
    needed = OTHER_DESCRIPTORS + sum(one.connections_max + one.probe_connections for one in limits)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < needed:
            log.warning("RLIMIT_NOFILE is %d, too low for all connections, which need %d; some may fail", most, needed)


class AnnouncingServer(uvicorn.Server):
    """A server that prints its addresses to standard output once it listens, and shuts down cleanly on a signal.

    uvicorn raises the signal again after it has stopped, which would end the process before the rest of the sidecar
    has been closed.
    """

    def __init__(
        self, config: uvicorn.Config, listener: HttpListener, main: socket.socket, fast: socket.socket
    ) -> None:
        """``listener`` accepts the connections, because uvicorn's own listener has no limits."""
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
