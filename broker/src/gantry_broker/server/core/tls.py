"""The certificates of one broker, by whom they are shown to.

    clients         main and fast port          tlsServer...
    name servers    where we register           tlsEnable, tlsClient...
    brokers         replication, both ways      haTls...

Each is one source of files that may change while we run. They are loaded before anything else is done, so that a broker
without its key never touches its store, and looked at until it stops.
"""

import ssl
from dataclasses import replace
from typing import Final, final

from gantry_broker.settings import BrokerSettings
from gantry_remoting import CertificateSource, PeerContexts, peer_contexts

_CLIENT: Final = ("tlsClientTrustCertPath", "tlsClientCertPath", "tlsClientKeyPath")
_REPLICATION: Final = ("haTlsCertPath", "haTlsKeyPath", "haTlsTrustCertPath")


@final
class BrokerTls:
    """Owned by the event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        server, client = settings.listener_tls, settings.name_server_tls
        self.clients: Final = None if server is None else server.source("clients")
        self.name_servers: Final = None if client is None else replace(client, names=_CLIENT).source("name servers")
        self.replication: Final = _replication(settings)

    @property
    def sources(self) -> tuple[CertificateSource[object], ...]:
        """Those that there are."""
        sources: tuple[CertificateSource[object] | None, ...] = (self.clients, self.name_servers, self.replication)
        return tuple(source for source in sources if source is not None)

    @property
    def expires_at(self) -> float | None:
        """When the first of our certificates ends, in seconds since 1970; None without any."""
        ends = [source.expires_at for source in self.sources if source.expires_at is not None]
        return min(ends, default=None)

    @property
    def trouble(self) -> str | None:
        """Why files that have changed are not in use."""
        return next((source.trouble for source in self.sources if source.trouble is not None), None)

    def towards_name_servers(self) -> ssl.SSLContext | None:
        """For the next connection to a name server; None is plain text."""
        return None if self.name_servers is None else self.name_servers.current

    async def start(self) -> None:
        """Load everything. Raises OSError naming the file; nothing is looked at then."""
        try:
            for source in self.sources:
                await source.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Look at no file any more."""
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
