"""Settings of listeners and of TLS. Every limit is a named setting with its reason."""

import ssl
from dataclasses import dataclass, field
from enum import Enum

from gantry_remoting.certificates import CertificateSource
from gantry_remoting.tls_contexts import client_context, server_context
from gantry_wire.limits import WireLimits


class TlsMode(Enum):
    """Whether a port accepts TLS connections."""

    DISABLED = "disabled"
    """The port accepts plain text only."""

    PERMISSIVE = "permissive"
    """Both TLS and plain text: the first byte of a connection decides."""
    ENFORCING = "enforcing"
    """The port accepts TLS only."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The certificates of a listener."""

    mode: TlsMode
    certificate_file: str
    key_file: str
    authority_file: str | None = None
    """The authority that signs client certificates; with it clients may present one."""
    requires_client_certificate: bool = False
    """Refuse clients without a certificate of `authority_file`. Requires ENFORCING, since plain text has no
    certificate."""

    def server_context(self) -> ssl.SSLContext:
        """Return a new context from the files. Raises OSError with the files and the reason."""
        return server_context(
            self.certificate_file,
            self.key_file,
            self.authority_file,
            requires_client_certificate=self.requires_client_certificate,
        )

    def source(self, purpose: str) -> CertificateSource[ssl.SSLContext]:
        """Return the files as a source that detects changes."""
        paths = [path for path in (self.certificate_file, self.key_file, self.authority_file) if path]
        names = {
            "tlsServerCertPath": self.certificate_file,
            "tlsServerKeyPath": self.key_file,
            "tlsServerTrustCertPath": self.authority_file,
        }
        return CertificateSource(
            purpose, paths, self.server_context, certificate=self.certificate_file, names=_drop_unset(names)
        )


def listener_tls(
    mode: TlsMode, certificate: str, key: str, authority: str, *, requires_client_certificate: bool
) -> TlsSettings | None:
    """Return the TLS settings for RocketMQ's keys, or None for plain text only.

    Raises ValueError naming the inconsistent keys.
    """
    if bool(certificate) != bool(key):
        raise ValueError("tlsServerCertPath and tlsServerKeyPath go together: set both or neither")
    if mode is TlsMode.ENFORCING and not certificate:
        raise ValueError("tlsMode=enforcing needs tlsServerCertPath and tlsServerKeyPath")
    if requires_client_certificate and not authority:
        raise ValueError(
            "tlsServerNeedClientAuth=true needs tlsServerTrustCertPath, the authority of client certificates"
        )
    if requires_client_certificate and mode is not TlsMode.ENFORCING:
        raise ValueError(
            f"tlsServerNeedClientAuth=true and tlsMode={mode.value}: plain text would need no certificate; "
            "set tlsMode=enforcing, or remove tlsServerNeedClientAuth"
        )
    if mode is TlsMode.DISABLED or not certificate:
        return None
    return TlsSettings(mode, certificate, key, authority or None, requires_client_certificate)


def _drop_unset(files: dict[str, str | None]) -> dict[str, str]:
    return {name: path for name, path in files.items() if path}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsSettings:
    """The TLS settings of a client. By default it accepts servers that an authority of the system has certified."""

    authority_file: str | None = None
    """The authority of the servers' certificates, PEM; None for the authorities of the system."""

    certificate_file: str | None = None
    """The client's own certificate, for servers that require one: PEM, the whole chain."""

    key_file: str | None = None
    """The key of the certificate, PEM, without a password."""

    is_server_verified: bool = True
    """Require a valid server certificate. False, as in RocketMQ's clients, protects against passive readers of the
    network only: an active attacker in between can read and change everything."""

    is_host_name_checked: bool = True
    """Require a certificate for the host that was connected to. RocketMQ's clients never check that; without the check
    every holder of a certificate of the authority can impersonate any server."""

    names: tuple[str, str, str] = field(
        default=("authority_file", "certificate_file", "key_file"), compare=False, repr=False
    )
    """The settings that contain the paths of authority, certificate and key, for error messages."""

    def __post_init__(self) -> None:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("a client's certificate and its key go together: give both or neither")

    def client_context(self) -> ssl.SSLContext:
        """Return a new context from the files. Raises OSError with the files and the reason."""
        return client_context(
            self.authority_file,
            self.certificate_file,
            self.key_file,
            is_server_verified=self.is_server_verified,
            is_host_name_checked=self.is_host_name_checked,
        )

    def source(self, purpose: str) -> CertificateSource[ssl.SSLContext]:
        """Return the files as a source that detects changes."""
        files = (self.authority_file, self.certificate_file, self.key_file)
        names = _drop_unset(dict(zip(self.names, files, strict=True)))
        return CertificateSource(
            purpose, list(names.values()), self.client_context, certificate=self.certificate_file, names=names
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One listening port and the limits of its connections."""

    host: str = "0.0.0.0"
    """The address to listen on; all IPv4 addresses by default, as RocketMQ does."""

    port: int = 0
    """The port; 0 takes a free one."""

    connections_max: int = 8000
    """All connections of this port. Each takes a file descriptor. A broker raises its limit of descriptors to the hard
    limit, and its store needs some, too."""

    connections_per_address_max: int = 4000
    """Connections of one peer address, so that a single faulty host does not lock out the others."""

    idle_timeout_ms: int = 120_000
    """Close a connection without data for this long; 120 s, as in RocketMQ. Clients send a heartbeat every 30 s."""

    frame_timeout_ms: int = 30_000
    """Close a connection whose frame or TLS handshake is incomplete for this long, such as that of a peer that sends
    one byte a second."""

    reader_timeout_ms: int = 60_000
    """Close a connection that does not read its replies for this long."""

    reply_bytes_max: int = 64 * 1024 * 1024
    """Close a connection with more unread reply bytes than this."""

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
    reads, or 10 to 25 ms of sends. Bytes read beyond it are kept, their connection is not read meanwhile, and both wait
    for a later turn, first come, first served. Without it 300 connections that send 100 KB each make turns of a second.
    Reads below 16 KiB have a second budget of this size, so that small requests do not wait for large ones."""

    turn_connections_max: int = 4
    """How many connections whose bytes wait in the kernel are read in one turn; the others wait for later turns. Before
    it is read, each counts as a fourth (1 / `turn_connections_max`) of `turn_read_bytes_max`. So a small request waits
    no longer beside a hundred flooding connections than beside four."""

    turn_reply_bytes_max: int = 16 * 1024 * 1024
    """How many bytes of replies this port writes in one turn of the event loop; further requests wait for the next
    turn. One small request may ask for 8 MiB, and the memory of closed connections is freed only when the turn ends."""

    deferred_answers_max: int = 1024
    """Requests of the port with deferred answers, of all connections together: about 2.5 MiB. Answers that wait for the
    disk share one write, so more of them at once are not answered sooner. The next one waits in its connection, which
    is not read meanwhile; waiting connections are served first come, first served."""

    deferred_answers_per_connection_max: int = 64
    """The same for one connection, so that sixteen are needed to fill the port. Administrators' tools send one request
    after another; a client can end 64 transactions at once while the broker still reads their half messages."""

    unfinished_frame_bytes_max: int = 128 * 1024 * 1024
    """Budget of the port for incomplete frames, of all connections together: 32 sends of 4 MiB that arrive side by
    side. Beyond it the connections are closed whose part costs most, by bytes times age."""

    unauthenticated_frame_bytes_max: int = 32 * 1024 * 1024
    """The same for connections that have not authenticated yet, if the service requires that: enough for eight first
    requests of 4 MiB at once, and all that unauthenticated peers may cost."""

    unread_reply_bytes_max: int = 256 * 1024 * 1024
    """Budget of the port for replies that peers have not read, of all connections together: room for a
    hundred consumers that read slowly. Beyond it connections are closed in the same order."""

    is_guarded: bool = False
    """Whether the service authenticates its peers, as with access control."""

    first_frame_bytes_max: int = 16 * 1024 * 1024
    """The largest frame of a connection that has not authenticated. A signature covers the whole body, and the first
    request may be a send, so the largest message must fit; nothing larger has to."""

    handshakes_max: int = 256
    """Concurrent TLS handshakes; at the limit the oldest is closed. An ordinary one takes milliseconds, so this allows
    thousands a second, and bounds the cost of incomplete ones."""

    backlog: int = 1024
    """Connections that the kernel may queue before they are accepted."""

    wire: WireLimits = field(default_factory=WireLimits)
    """The limits of the connections' frames."""

    tls: TlsSettings | None = None
    """The certificates; None for plain text only."""
