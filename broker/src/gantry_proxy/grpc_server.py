"""The gRPC port of a proxy: its service, the health protocol, its limits and its certificates.

HTTP/2 and gRPC are in `http2` and `rpc`. The limits that concern one client or all calls together are in `service`.
"""

import logging
import socket
import ssl
from typing import Final, final

from gantry_proxy.rpc.health import NOT_SERVING, SERVING, Health
from gantry_proxy.rpc.limits import RpcLimits
from gantry_proxy.rpc.server import RpcServer
from gantry_proxy.rpc.shares import PortUse
from gantry_proxy.service import SERVICE, MessagingService
from gantry_proxy.settings import ProxyLimits, ProxyTlsSettings
from gantry_remoting.addresses import split_address
from gantry_remoting.certificates import CertificateSource
from gantry_remoting.tls_contexts import server_context

log = logging.getLogger(__name__)

STREAMS_PER_CONNECTION_MAX: Final = 1_024
"""How many calls one connection may have; the clients of one process share a connection."""
HTTP2: Final = "h2"
"""The protocol that clients ask for in their TLS handshake."""


def rpc_limits(limits: ProxyLimits, processes: int) -> RpcLimits:
    """Return the limits of one of the processes that serve the port."""
    return RpcLimits(
        message_bytes_max=limits.request_bytes_max,
        header_bytes_max=limits.metadata_bytes_max,
        streams_per_connection_max=STREAMS_PER_CONNECTION_MAX,
        connections_max=limits.connections_max,
        calls_max=limits.calls_max + limits.clients_max,
        processes=processes,
    )


@final
class GrpcServer:
    """The gRPC server of one process. Owned by its event loop."""

    def __init__(
        self, service: MessagingService, address: str, tls: ProxyTlsSettings, limits: ProxyLimits, processes: int = 1
    ) -> None:
        """Without an ``address`` the server has no port, and serves the connections that `adopt` gets."""
        self._address: Final = address
        self._certificates: Final = _certificate_source(tls)
        self._health: Final = Health(frozenset({SERVICE}))
        methods = {**service.methods(), **self._health.methods()}
        self._server: Final = RpcServer(methods, rpc_limits(limits, processes), self._certificates)
        self.port = 0

    def __repr__(self) -> str:
        return f"<GrpcServer {self._address} port={self.port} {self._server!r}>"

    @property
    def use(self) -> PortUse:
        """What the clients of the port have now."""
        return self._server.use

    async def start(self) -> None:
        """Listen, and report that clients are served. Raises OSError."""
        if self._certificates is not None:
            await self._certificates.start()
        if self._address:
            self.port = await self._server.start(*split_address(self._address, port_min=0))
        else:
            self._server.start_without_port()
        self._health.set_state(SERVING)

    async def adopt(self, accepted: socket.socket) -> None:
        """Serve a connection that another process has accepted."""
        await self._server.adopt(accepted)

    async def report_draining(self) -> None:
        """Report in the health protocol that no further clients should come."""
        self._health.set_state(NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Accept no further calls, and end those that still run after the grace."""
        await self._server.stop(grace_s)
        if self._certificates is not None:
            await self._certificates.close()


def _certificate_source(tls: ProxyTlsSettings) -> CertificateSource[ssl.SSLContext] | None:
    if not tls.certificate:
        return None

    def build() -> ssl.SSLContext:
        context = server_context(
            tls.certificate, tls.key, tls.client_authority or None,
            requires_client_certificate=bool(tls.client_authority),
        )  # fmt: skip
        context.set_alpn_protocols([HTTP2])
        return context

    paths = [path for path in (tls.certificate, tls.key, tls.client_authority) if path]
    names = {"tls.certificate": tls.certificate, "tls.key": tls.key, "tls.clientAuthority": tls.client_authority}
    return CertificateSource(
        "the gRPC port", paths, build, certificate=tls.certificate,
        names={name: path for name, path in names.items() if path},
    )  # fmt: skip
