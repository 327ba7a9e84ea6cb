"""The TLS certificates of one broker, by the peers that they are presented to.

    clients         main and fast port          tlsServer...
    name servers    registration                tlsEnable, tlsClient...
    brokers         replication, both ways      haTls...

Each is a source of files that may change while the broker runs. They are loaded before anything else, so that a broker
without its key never opens its store, and are watched for changes until it stops.
"""

import ssl
from dataclasses import replace
from typing import Final, final

from gantry_broker.settings import BrokerSettings
from gantry_remoting import CertificateSource, PeerContexts, peer_contexts

_CLIENT: Final = ("tlsClientTrustCertPath", "tlsClientCertPath", "tlsClientKeyPath")
"""The keys of the settings that name the files for name servers, for error texts."""
_REPLICATION: Final = ("haTlsCertPath", "haTlsKeyPath", "haTlsTrustCertPath")
"""The keys of the settings that name the files for other brokers."""


@final
class BrokerTls:
    """The certificate sources of one broker. Owned by the event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        server, client = settings.listener_tls, settings.name_server_tls
        self.clients: Final = None if server is None else server.source("clients")
        """For the ports of clients; None for plain text."""
        self.name_servers: Final = None if client is None else replace(client, names=_CLIENT).source("name servers")
        """For connections to name servers; None for plain text."""
        self.replication: Final = _replication(settings)
        """For replication streams, in both directions; None for plain text."""

    @property
    def sources(self) -> tuple[CertificateSource[object], ...]:
        """The certificate sources that are configured."""
        sources: tuple[CertificateSource[object] | None, ...] = (self.clients, self.name_servers, self.replication)
        return tuple(source for source in sources if source is not None)

    @property
    def expires_at(self) -> float | None:
        """When the first certificate expires, in seconds since 1970; None without certificates."""
        ends = [source.expires_at for source in self.sources if source.expires_at is not None]
        return min(ends, default=None)

    @property
    def problem(self) -> str | None:
        """Why changed files are not used; None if all are."""
        return next((source.reload_error for source in self.sources if source.reload_error is not None), None)

    def name_server_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection to a name server; None for plain text."""
        return None if self.name_servers is None else self.name_servers.current

    async def start(self) -> None:
        """Load all certificates, and watch their files. Raises OSError that names the file; none is watched then."""
        try:
            for source in self.sources:
                await source.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop watching the certificate files."""
        for source in self.sources:
            await source.close()


def _replication(settings: BrokerSettings) -> CertificateSource[PeerContexts] | None:
    ha = settings.ha
    if not ha.tls_certificate:
        return None
    certificate, key, authority = ha.tls_certificate, ha.tls_key, ha.tls_authority
    paths = [path for path in (certificate, key, authority) if path]
    return CertificateSource(
        "brokers", paths, lambda: peer_contexts(certificate, key, authority or None), certificate=certificate,
        names=dict(zip(_REPLICATION, paths, strict=False)),
    )  # fmt: skip
