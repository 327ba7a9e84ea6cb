"""What a listener allows. Every limit is a named setting with its reason."""

import ssl
from dataclasses import dataclass, field
from enum import Enum

from gantry_remoting.certificates import CertificateSource
from gantry_remoting.tls_contexts import client_context, server_context
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
    """Refuse clients without a certificate of `authority_file`. Plain text shows none: this is for ENFORCING."""

    def server_context(self) -> ssl.SSLContext:
        """A fresh context from the files. Raises OSError that names the files and what is wrong with them."""
        return server_context(
            self.certificate_file,
            self.key_file,
            self.authority_file,
            requires_client_certificate=self.requires_client_certificate,
        )

    def source(self, purpose: str) -> CertificateSource[ssl.SSLContext]:
        """The files as something that notices when they change."""
        paths = [path for path in (self.certificate_file, self.key_file, self.authority_file) if path]
        names = {
            "tlsServerCertPath": self.certificate_file,
            "tlsServerKeyPath": self.key_file,
            "tlsServerTrustCertPath": self.authority_file,
        }
        return CertificateSource(
            purpose, paths, self.server_context, certificate=self.certificate_file, names=_given(names)
        )


def listener_tls(
    mode: TlsMode, certificate: str, key: str, authority: str, *, requires_client_certificate: bool
) -> TlsSettings | None:
    """What RocketMQ's keys ask for; None is plain text only. Raises ValueError naming the keys that do not fit."""
    if bool(certificate) != bool(key):
        raise ValueError("tlsServerCertPath and tlsServerKeyPath go together: set both or neither")
    if mode is TlsMode.ENFORCING and not certificate:
        raise ValueError("tlsMode=enforcing needs tlsServerCertPath and tlsServerKeyPath")
    if requires_client_certificate and not authority:
        raise ValueError("tlsServerNeedClientAuth=true needs tlsServerTrustCertPath, who signs client certificates")
    if requires_client_certificate and mode is not TlsMode.ENFORCING:
        raise ValueError(
            f"tlsServerNeedClientAuth=true and tlsMode={mode.value}: plain text would need no certificate; "
            "write tlsMode=enforcing, or leave it to clients to show one"
        )
    if mode is TlsMode.DISABLED or not certificate:
        return None
    return TlsSettings(mode, certificate, key, authority or None, requires_client_certificate)


def _given(files: dict[str, str | None]) -> dict[str, str]:
    return {name: path for name, path in files.items() if path}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsSettings:
    """How a client speaks TLS. As it is: with servers that an authority of the system vouches for."""

    authority_file: str | None = None
    """Who signs the servers' certificates, PEM; None asks the authorities of the system."""

    certificate_file: str | None = None
    """Our own certificate, for servers that ask for one: PEM, the whole chain."""

    key_file: str | None = None
    """Its key, PEM, without a password."""

    is_server_verified: bool = True
    """Talk to nobody without a good certificate. False, as RocketMQ's clients do it, hides what is said from those
    who only listen; whoever stands in between reads and changes everything."""

    is_host_name_checked: bool = True
    """The certificate must be for the host that was connected to. RocketMQ's clients never look; without it every
    holder of a certificate of the authority can play any server."""

    names: tuple[str, str, str] = field(
        default=("authority_file", "certificate_file", "key_file"), compare=False, repr=False
    )
    """What authority, certificate and key are called by whoever wrote their paths down, for errors."""

    def __post_init__(self) -> None:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("a client's certificate and its key go together: give both or neither")

    def client_context(self) -> ssl.SSLContext:
        """A fresh context from the files. Raises OSError that names the files and what is wrong with them."""
        return client_context(
            self.authority_file,
            self.certificate_file,
            self.key_file,
            is_server_verified=self.is_server_verified,
            is_host_name_checked=self.is_host_name_checked,
        )

    def source(self, purpose: str) -> CertificateSource[ssl.SSLContext]:
        """The files as something that notices when they change."""
        files = (self.authority_file, self.certificate_file, self.key_file)
        names = _given(dict(zip(self.names, files, strict=True)))
        return CertificateSource(
            purpose, list(names.values()), self.client_context, certificate=self.certificate_file, names=names
        )


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

    reply_bytes_high: int = 1024 * 1024
    """Stop reading requests of a connection while more reply bytes than this wait for it. The kernel holds some more,
    so a reader at full speed never waits, and a hundred slow ones fit `unread_reply_bytes_max`."""

    turn_bytes_max: int = 128 * 1024
    """Stop reading a connection for the rest of a turn of the event loop when it has delivered this much in it. libuv
    reads a busy socket up to 32 times in one turn, 8 MB or half a second of sends; no timer runs and no other
    connection is served meanwhile. One full read of uvloop (256,000 bytes) reaches this bound, so a burst is handled
    in slices of 2 to 20 ms."""

    turn_read_bytes_max: int = 1024 * 1024
    """Serve this much of the port in a turn of the event loop, however many connections have sent something: four full
    reads, or 10 to 25 ms of sends. What is read beyond it is kept, its connection is not read meanwhile, and both wait
    for a later turn, first come, first served. Without it 300 connections that send 100 KB each make turns of a second.
    Reads below 16 KiB have a second budget of this size, so that small requests do not wait for large ones."""

    turn_connections_max: int = 4
    """Of the connections that wait for a turn with their bytes in the kernel, read so many in the next one, and the
    others after them: each counts as this share of `turn_read_bytes_max` before it is read. Beside a hundred flooders a
    small request so waits no longer than beside four."""

    turn_reply_bytes_max: int = 16 * 1024 * 1024
    """Handle no more requests of this port in a turn of the event loop in which this much was written: one small
    request may ask for 8 MiB, and connections that are closed for it are freed only when the turn ends."""

    deferred_answers_max: int = 1024
    """Requests of the port whose answers are under way in tasks, of all connections together: about 2.5 MiB. Answers
    that wait for the disk share one write, so more of them at once are not answered sooner. The next one waits in its
    connection, which is not read meanwhile, and connections that wait are served first come, first served."""

    deferred_answers_per_connection_max: int = 64
    """The same of one connection, so that sixteen are needed to fill the port. Administrators' tools ask one after
    another; a client that ends 64 transactions while the journal is still being read waits for half of them."""

    unfinished_frame_bytes_max: int = 128 * 1024 * 1024
    """Budget of the port for frames that have begun and not ended, of all connections together: 32 sends of 4 MiB that
    arrive side by side. Beyond it the connections are closed whose part costs most, by bytes times age."""

    unauthenticated_frame_bytes_max: int = 32 * 1024 * 1024
    """The same for connections that have not authenticated yet, where the service asks for that: enough for eight first
    requests of 4 MiB at once, and all that strangers may cost."""

    unread_reply_bytes_max: int = 256 * 1024 * 1024
    """Budget of the port for replies that peers have not read, of all connections together: a hundred consumers that
    read slowly, with all that one may have waiting. Beyond it connections are closed in the same order."""

    is_guarded: bool = False
    """Whether the service authenticates its peers, as with access control; until then a connection is a stranger's."""

    first_frame_bytes_max: int = 16 * 1024 * 1024
    """The largest frame of a connection that has not authenticated. A signature covers the whole body, and the first
    request may be a send: the limit must leave room for the largest message, and need not for more."""

    handshakes_max: int = 256
    """TLS handshakes under way at once; one more, and the oldest is closed. An honest one takes milliseconds, so this
    is thousands a second, and what half-open ones may cost is bounded."""

    backlog: int = 1024
    """Connections that the kernel may hold for us."""

    wire: WireLimits = field(default_factory=WireLimits)
    """Limits of frames."""

    tls: TlsSettings | None = None
    """Certificates; None speaks plain text only."""
