"""The connection settings of a driver and its workers, as one value that travels by pickle.

It contains secrets, because workers have none of the driver's files; no `repr` shows them. Certificates are paths, and
must be at the same path on every worker.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from gantry_client import ClientSettings, ClientTlsSettings, Credentials, SignatureKind
from gantry_store_files.queue_units import parse_queue_id
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import ReadFrom, TransportKind

DEFAULT_GROUP: Final = "pyspark_rocketmq"
"""The consumer group under which brokers are pulled; nothing is committed for it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """TLS settings. The default accepts servers whose certificates a certificate authority of the system has signed."""

    ca: str | None = None
    """PEM file of the certificate authority that signs the servers' certificates."""
    certificate: str | None = None
    """PEM file of the client certificate, for servers that require one."""
    key: str | None = None
    """PEM file of the client certificate's key, without a password."""
    is_verified: bool = True
    """Whether servers need a valid certificate."""
    is_host_checked: bool = True
    """Whether the certificate must name the host; off for servers whose address it does not name."""

    def client_tls(self) -> ClientTlsSettings:
        """Return these settings for the client. Raises InvalidOption."""
        try:
            return ClientTlsSettings(
                authority_file=self.ca,
                certificate_file=self.certificate,
                key_file=self.key,
                is_server_verified=self.is_verified,
                is_host_name_checked=self.is_host_checked,
            )
        except ValueError as error:
            raise InvalidOption(str(error)) from error

    def client_context(self) -> ssl.SSLContext:
        """Return a context for requests to sidecars. Raises InvalidOption."""
        try:
            return self.client_tls().client_context()
        except OSError as error:
            raise InvalidOption(f"the files for TLS with sidecars cannot be used: {error}") from error


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How topics are read, and from which replicas."""

    name_servers: str
    """host:port, several joined by `;`. Empty if topics are found in `directories`, whose brokers need not run."""

    transport: TransportKind = TransportKind.AUTO
    """The transport; `auto` uses the first of file, http and pull that a replica offers, and the next if that fails."""

    read_from: ReadFrom = ReadFrom.SLAVE_FIRST
    """Which replicas are read; slaves first leaves masters to producers."""

    sidecars: tuple[str, ...] = ()
    """Base URLs of sidecars; one of each group is enough, since it lists its peers."""

    directories: Mapping[str, str] = field(default_factory=dict)
    """Store directories on this machine, by `broker` (any replica's) or `broker:number`."""

    group: str = DEFAULT_GROUP
    """The consumer group of pulls, which brokers require and grant permissions to. Nothing is committed for it."""

    access_key: str | None = None
    """The account that signs requests to name servers and brokers; None for unsigned requests."""

    secret_key: str | None = field(default=None, repr=False)
    """The secret of the account."""

    signature: SignatureKind = SignatureKind.V1
    """V1 signs as RocketMQ's clients do; STRICT is for Gantry servers that require it."""

    tls: TlsFiles | None = None
    """TLS to name servers and brokers; None for plain text."""

    token: str | None = field(default=None, repr=False)
    """The token for sidecars; a read token is enough."""

    sidecar_tls: TlsFiles = TlsFiles()
    """TLS to sidecars whose URL begins with https."""

    request_timeout_ms: int = 10_000
    """Timeout of one response; for a range of the log, of its next bytes."""

    patience_ms: int = 120_000
    """How long a task, or the driver, retries while no replica makes progress. A failover takes 10 to 30 s; a broker
    that is restarted by a rolling update comes back after a minute."""

    replica_lag_bytes_max: int = 256 * 1024 * 1024
    """A slave that lags further behind its master than this is not read."""

    read_ahead: int = 2
    """The number of ranges that are requested while one is decoded."""

    range_bytes: int = 8 * 1024 * 1024
    """Bytes of one range; fewer cost more round trips, more only cost memory."""

    gap_bytes_max: int = 64 * 1024
    """At most this many bytes between two wanted records are read and discarded; more begin a new range."""

    batch_rows: int = 10_000
    """Rows of one Arrow batch, at most."""

    is_body_verified: bool = False
    """Whether the CRC of every body is checked. Positions, sizes and topics are always checked."""

    def __post_init__(self) -> None:
        """Raises InvalidOption for invalid values and contradictions."""
        if bool(self.access_key) != bool(self.secret_key):
            raise InvalidOption("accessKey and secretKey go together: give both or neither")
        for name in ("request_timeout_ms", "read_ahead", "range_bytes", "batch_rows"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("patience_ms", "replica_lag_bytes_max", "gap_bytes_max"):
            if getattr(self, name) < 0:
                raise InvalidOption(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for url in self.sidecars:
            if not url.startswith(("http://", "https://")):
                raise InvalidOption(f"sidecars: {url!r} is not a base URL such as http://127.0.0.1:8080")
        if not self.has_name_servers and not self.directories:
            raise InvalidOption("nameServers is missing: write host:port, for example 127.0.0.1:9876")
        for name in self.directories:
            parse_member_name(name)
        if self.transport is TransportKind.FILE and not self.directories:
            raise InvalidOption("transport=file needs the option directories, with the store directory of each broker")
        if self.transport is TransportKind.HTTP and not self.sidecars:
            raise InvalidOption(
                "transport=http needs the option sidecars, with the base URL of one sidecar of each group"
            )

    @property
    def has_name_servers(self) -> bool:
        """Whether any name server is given; without one, topics are found in the directories only."""
        return bool(self.name_servers.strip("; "))

    def client_settings(self) -> ClientSettings:
        """Return these settings for the client."""
        credentials = None
        if self.access_key and self.secret_key:
            credentials = Credentials(self.access_key, self.secret_key)
        return ClientSettings(
            request_timeout_ms=self.request_timeout_ms,
            tls=self.tls.client_tls() if self.tls is not None else None,
            credentials=credentials,
            signature=self.signature,
        )


def parse_member_name(name: str) -> tuple[str, int | None]:
    """Return the broker and the member's number of a key of `directories`; the number is None for `broker` alone.

    A number is written as queue ids are: in ASCII digits without leading zeros. Raises InvalidOption for any other.
    """
    broker, colon, text = name.rpartition(":")
    if not colon:
        return name, None
    number = parse_queue_id(text)
    if number is None:
        raise InvalidOption(f"directories: {name!r} does not end in a broker id: write broker or broker:number")
    return broker, number
