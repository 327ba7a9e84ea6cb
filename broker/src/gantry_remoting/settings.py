"""What a listener allows. Every limit is a named setting with its reason."""

import ssl
from dataclasses import dataclass, field
from enum import Enum

from gantry_wire.limits import WireLimits


class TlsMode(Enum):
    """Whether a port speaks TLS."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    """Both: the first byte of a connection tells."""
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates of a listener."""

    mode: TlsMode
    certificate_file: str
    key_file: str
    authority_file: str | None = None
    """Who signs client certificates; with it clients may show one."""
    requires_client_certificate: bool = False
    """Refuse clients without a certificate of `authority_file`."""

    def server_context(self) -> ssl.SSLContext:
        """A fresh context from the files. Raises OSError that names the files and what is wrong with them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate_file, self.key_file)
        except OSError as error:
            files = f"certificate {self.certificate_file} with key {self.key_file}"
            raise OSError(f"cannot use {files}: {error}") from error
        if self.authority_file is not None:
            try:
                context.load_verify_locations(self.authority_file)
            except OSError as error:
                raise OSError(f"cannot use authority {self.authority_file}: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED if self.requires_client_certificate else ssl.CERT_OPTIONAL
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One listening port and what its connections may cost."""

    host: str = "0.0.0.0"
    """The address to listen on; all IPv4 addresses by default, as RocketMQ does."""

    port: int = 0
    """The port; 0 takes a free one."""

    connections_max: int = 8000
    """All connections of this port; below the usual 20,000 descriptors of a process, which the store needs, too."""

    connections_per_address_max: int = 4000
    """Connections of one peer address; one runaway host must not shut out the others."""

    idle_timeout_ms: int = 120_000
    """Close a connection from which nothing came for so long; 120 s, as RocketMQ does. Clients beat every 30 s."""

    frame_timeout_ms: int = 30_000
    """Close a connection whose frame or TLS handshake has begun and not ended for so long: a peer that feeds one byte
    a second."""

    reader_timeout_ms: int = 60_000
    """Close a connection that does not take its replies for so long."""

    reply_bytes_max: int = 64 * 1024 * 1024
    """Close a connection with more unread replies than this."""

    reply_bytes_high: int = 4 * 1024 * 1024
    """Stop reading requests of a connection while more reply bytes than this wait for it."""

    backlog: int = 1024
    """Connections that the kernel may hold for us."""

    wire: WireLimits = field(default_factory=WireLimits)
    """Limits of frames."""

    tls: TlsSettings | None = None
    """Certificates; None speaks plain text only."""
