"""The gRPC port: its limits, its certificates, and how it stops.

gRPC's core does HTTP/2 and TLS in threads of its own; handlers run on the event loop. Its limits are options of the
server; those that concern one client or all calls together are in `service`.
"""

import logging
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gantry_proxy.service import SERVICE, MessagingService
from gantry_proxy.settings import ProxyLimits, ProxyTlsSettings
from gantry_remoting.certificates import CertificateSource
from gantry_remoting.tls_contexts import server_context

log = logging.getLogger(__name__)

STREAMS_PER_CONNECTION_MAX: Final = 1_024
"""How many calls one connection may have; the clients of one process share a connection."""
KEEPALIVE_MS: Final = 60_000
"""After this time without data a client is pinged, and `KEEPALIVE_TIMEOUT_MS` later a dead one is disconnected."""
KEEPALIVE_TIMEOUT_MS: Final = 20_000
PING_INTERVAL_MS_MIN: Final = 5_000
"""How often a client may ping; some SDKs do so every 10 s."""
PENDING_BYTES_MAX: Final = 4 * 1024 * 1024
"""How many bytes of a call the core may buffer for a client that does not read."""
DRAINED: Final = ""
"""The name of the whole server in the health protocol."""


def server_options(limits: ProxyLimits) -> list[tuple[str, int]]:
    """Return the options of the server."""
    return [
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", -1),  # a reply has at most one message, whose size brokers limit
        ("grpc.max_metadata_size", limits.metadata_bytes_max),
        ("grpc.absolute_max_metadata_size", limits.metadata_bytes_max),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        ("grpc.http2.write_buffer_size", PENDING_BYTES_MAX),
        ("grpc.so_reuseport", 0),  # a second proxy on the port must fail, not share it
    ]


@final
class GrpcServer:
    """The gRPC server of one proxy. Owned by its event loop."""

    def __init__(self, service: MessagingService, address: str, tls: ProxyTlsSettings, limits: ProxyLimits) -> None:
        self._address: Final = address
        self._tls: Final = tls
        self._certificates: Final = _certificate_source(tls)
        self._health: Final = health.aio.HealthServicer()
        self._server: Final = grpc.aio.server(
            options=server_options(limits), maximum_concurrent_rpcs=limits.calls_max + limits.clients_max
        )
        self._server.add_generic_rpc_handlers((service.rpc_handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = 0

    def __repr__(self) -> str:
        return f"<GrpcServer {self._address} port={self.port}>"

    async def start(self) -> None:
        """Listen, and report that clients are served. Raises OSError."""
        try:
            if self._certificates is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                await self._certificates.start()
                self.port = self._server.add_secure_port(self._address, self._credentials(self._certificates))
        except RuntimeError as error:  # the core's only error for an address that it cannot listen on
            raise OSError(f"cannot listen on {self._address}: {error}") from error
        await self._server.start()
        await self._report(health_pb2.HealthCheckResponse.SERVING)

    async def report_draining(self) -> None:
        """Report in the health protocol that no further clients should come."""
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Accept no further calls, and end those that still run after the grace."""
        await self._server.stop(grace_s)
        if self._certificates is not None:
            await self._certificates.close()

    async def _report(self, serving: "health_pb2.HealthCheckResponse.ServingStatus") -> None:
        for name in (DRAINED, SERVICE):
            await self._health.set(name, serving)

    def _credentials(self, source: CertificateSource[grpc.ServerCertificateConfiguration]) -> grpc.ServerCredentials:
        """Return credentials that use the present files for each new connection."""
        used = [source.current]

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """Return the files if they changed; gRPC's core keeps the present ones otherwise."""
            current = source.current
            if current is used[0]:
                return None
            used[0] = current
            return current

        return grpc.dynamic_ssl_server_credentials(
            used[0],
            changed,  # type: ignore[arg-type]  # the stubs do not know that it may return None
            require_client_authentication=bool(self._tls.client_authority),
        )


def _certificate_source(tls: ProxyTlsSettings) -> CertificateSource[grpc.ServerCertificateConfiguration] | None:
    if not tls.certificate:
        return None

    def build() -> grpc.ServerCertificateConfiguration:
        _check(tls)
        authority = Path(tls.client_authority).read_bytes() if tls.client_authority else None
        pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)

    paths: Sequence[str] = [path for path in (tls.certificate, tls.key, tls.client_authority) if path]
    names = {"tls.certificate": tls.certificate, "tls.key": tls.key, "tls.clientAuthority": tls.client_authority}
    return CertificateSource(
        "the gRPC port", paths, build, certificate=tls.certificate,
        names={name: path for name, path in names.items() if path},
    )  # fmt: skip


def _check(tls: ProxyTlsSettings) -> None:
    """Raise OSError for files that do not match: gRPC's core would accept them, and refuse every handshake."""
    try:
        server_context(
            tls.certificate, tls.key, tls.client_authority or None,
            requires_client_certificate=bool(tls.client_authority),
        )  # fmt: skip
    except ssl.SSLError as error:
        raise OSError(f"cannot use certificate {tls.certificate} with its key: {error}") from error
