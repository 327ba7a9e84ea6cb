"""What a driver and its workers need to connect, as one value that travels by pickle.

Secrets are in it, because workers have no files of the driver's; no `repr` shows them. Files of certificates are paths,
and must be at the same place for every worker.
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
"""The consumer group in whose name brokers are pulled; nothing is committed for it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """How we speak TLS. As it is: with whom an authority of the system vouches for."""

    ca: str | None = None
    """Who signs the servers' certificates, PEM."""
    certificate: str | None = None
    """Our own certificate, where a server asks for one."""
    key: str | None = None
    """Its key, without a password."""
    is_verified: bool = True
    """Talk to nobody without a good certificate."""
    is_host_checked: bool = True
    """The certificate must name the host; off for servers that are reached by an address that it does not name."""

    def client_tls(self) -> ClientTlsSettings:
        """The same for our client. Raises InvalidOption."""
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
    """How topics are read, and from whom."""

    name_servers: str
    """host:port, several joined by `;`. Empty where only directories are read, of brokers that need not run."""

    transport: TransportKind = TransportKind.AUTO
    """By which way; `auto` takes the first of file, http and pull that a replica offers."""

    read_from: ReadFrom = ReadFrom.SLAVE_FIRST
    """Which replicas; slaves first leaves masters to producers."""

    sidecars: tuple[str, ...] = ()
    """Base URLs; one of each group is enough, since it knows its peers."""

    directories: Mapping[str, str] = field(default_factory=dict)
    """Store directories that are seen here, by `broker` (whichever replica's) or `broker:number`."""

    group: str = DEFAULT_GROUP
    """In whose name brokers are pulled; they want one, and rights are given to one. Nothing is committed for it."""

    access_key: str | None = None
    """The account by which requests to name servers and brokers are signed; None signs nothing."""

    secret_key: str | None = field(default=None, repr=False)
    """Its secret."""

    signature: SignatureKind = SignatureKind.V1
    """V1 signs as RocketMQ's clients do; STRICT is for servers of ours that want it."""

    tls: TlsFiles | None = None
    """For name servers and brokers; None speaks plain text."""

    token: str | None = field(default=None, repr=False)
    """For sidecars: a read token is enough."""

    sidecar_tls: TlsFiles = TlsFiles()
    """For sidecars whose URL begins with https."""

    request_timeout_ms: int = 10_000
    """For one answer; of a range of the log: for its next bytes."""

    patience_ms: int = 120_000
    """How long a task, or the driver, goes on looking for a replica while none gets it any further. A failover takes
    10 to 30 s, a broker that is rolled comes back after a minute."""

    replica_lag_bytes_max: int = 256 * 1024 * 1024
    """A slave that is further behind its master than this is not read from."""

    read_ahead: int = 2
    """Ranges that are under way while one is unpacked."""

    range_bytes: int = 8 * 1024 * 1024
    """Of one range; less costs round trips, more only memory."""

    gap_bytes_max: int = 64 * 1024
    """What lies between two wanted records is read and dropped if it is not more than this."""

    batch_rows: int = 10_000
    """Rows of one Arrow batch, at most."""

    is_body_verified: bool = False
    """Check the CRC of every body. Places, sizes and topics are checked always."""

    def __post_init__(self) -> None:
        """Raises InvalidOption for what cannot be meant."""
        if bool(self.access_key) != bool(self.secret_key):
            raise InvalidOption("accessKey and secretKey go together: give both or neither")
        for name in ("request_timeout_ms", "read_ahead", "range_bytes", "batch_rows"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} begins at 1")
        for name in ("patience_ms", "replica_lag_bytes_max", "gap_bytes_max"):
            if getattr(self, name) < 0:
                raise InvalidOption(f"{name} begins at 0")
        for url in self.sidecars:
            if not url.startswith(("http://", "https://")):
                raise InvalidOption(f"sidecars: {url!r} is no base URL such as http://127.0.0.1:8080")
        if not self.has_name_servers and not self.directories:
            raise InvalidOption("nameServers is missing: write host:port, for example 127.0.0.1:9876")
        for name in self.directories:
            parse_member_name(name)
        if self.transport is TransportKind.FILE and not self.directories:
            raise InvalidOption("transport=file needs directories: which broker's store lies where")
        if self.transport is TransportKind.HTTP and not self.sidecars:
            raise InvalidOption("transport=http needs sidecars: the base URL of one of each group")

    @property
    def has_name_servers(self) -> bool:
        """Whether any is named; without, only directories are read."""
        return bool(self.name_servers.strip("; "))

    def client_settings(self) -> ClientSettings:
        """The same for our client."""
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
        raise InvalidOption(f"directories: {name!r} ends in no member's number: write broker or broker:number")
    return broker, number
