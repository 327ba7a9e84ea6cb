"""What the sidecar can be told, by concern. Parsed once, validated together; every field says its default's reason."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

from gantry_admin.errors import SettingsError
from gantry_remoting import join_address, split_address
from gantry_remoting.http_admission import HttpLimitSettings

MEBIBYTE = 1 << 20
LOOPBACK_NAMES = ("localhost",)
LOG_CONNECTIONS_MAX = 64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and a port to listen on, or of a peer."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host in LOOPBACK_NAMES:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str, option: str) -> Address:
    """``host:port`` or ``[v6]:port``. Raises ``SettingsError`` naming the option."""
    try:
        host, port = split_address(text, port_min=0)
    except ValueError:
        host, port = "", 0
    if not host:
        raise SettingsError(f"{option} {text[:200]}: write host:port")
    return Address(host=host, port=port)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTls:
    """How the broker's main port is spoken to. Any of the files asks for TLS."""

    is_asked_for: bool = False
    """--broker-tls: speak TLS, with the system's authorities unless another is given; plain text by default."""

    authority: Path | None = None
    """--broker-tls-ca: who signs the broker's certificate; by default the system's authorities."""

    certificate: Path | None = None
    """--broker-tls-cert: our certificate, where the broker asks for one."""

    key: Path | None = field(default=None, repr=False)
    """--broker-tls-key: its key."""

    verify: str = "full"
    """--broker-tls-verify: `full` by default; `authority` does not compare names, for a broker that is reached by an
    address that is not in its certificate; `none` believes everybody."""

    @property
    def is_on(self) -> bool:
        """Whether TLS is spoken."""
        return self.is_asked_for or any((self.authority, self.certificate, self.key))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPaths:
    """Where the broker beside us is found."""

    page: Path
    """--page: its status page (`statusPagePath`)."""

    control: Path
    """--control: its control socket (`controlSocketPath`), which only its own user may open."""

    store: Path
    """--store: its `storePathRootDir`, for log ranges and tables; read, never written."""

    log_file: Path | None = None
    """--broker-log: where the broker's log lines go, for the diagnostics bundle; by default they are not in it."""

    address: str | None = None
    """--broker: host:port of its main port; by default what it says itself over the control socket."""

    credentials: Path | None = field(default=None, repr=False)
    """--broker-credentials: file with accessKey and secretKey, for a broker with access control."""

    tls: BrokerTls = BrokerTls()
    """How that port is spoken to; by default in plain text."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may ask what. Whoever has none of these may look from this machine, and change nothing."""

    token_file: Path | None = field(default=None, repr=False)
    """--token-file: whoever shows one of its tokens may look, read messages and move roles; `name:token` lines."""

    read_token_file: Path | None = field(default=None, repr=False)
    """--read-token-file: whoever shows one of its tokens may look and read messages, and change nothing."""

    tls_cert: Path | None = None
    """--tls-cert: our certificate; with it the ports speak TLS and nothing else."""

    tls_key: Path | None = field(default=None, repr=False)
    """--tls-key: its key."""

    tls_client_ca: Path | None = None
    """--tls-client-ca: whoever shows a certificate of this authority may do everything (mTLS)."""

    open_reads: bool = False
    """--open-reads: on loopback, whoever is on this machine may look and read messages without a token."""

    @property
    def has_credentials(self) -> bool:
        """Whether anybody can prove who they are."""
        return any((self.token_file, self.read_token_file, self.tls_client_ca))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How the log is handed out: fast, and never at the cost of the broker."""

    listen: Address | None = None
    """--log-listen: where ranges of the log leave by `sendfile`; by default the sidecar's host and the next port."""

    bytes_per_second: int = 256 * MEBIBYTE
    """--log-rate: for all readers together; 256 MiB/s leaves memory bandwidth for the broker. 0: no limit."""

    burst_bytes: int = 32 * MEBIBYTE
    """--log-burst: what may leave at once after a pause: a few ranges."""

    readers_max: int = 4
    """--log-readers: ranges at a time; one more is answered 429 with the time to wait."""

    niceness: int = 19
    """--log-nice: of the thread that sends files; 19, so that whoever else wants the core has it at once."""

    range_bytes_max: int = 64 * MEBIBYTE
    """--log-range-max: the longest range of one answer; a longer one is answered with its beginning."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """When a broker is called ready, and how long it must be so to be believed."""

    stale_ms: int = 2_000
    """--stale-after: so long without a publication means that the broker stands still; it publishes every 100 ms."""

    down_after_ms: int = 3_000
    """--down-after: a ready broker must be unwell for so long before it is called so; a full second of load is none."""

    up_after_ms: int = 1_000
    """--up-after: an unready one must be well for so long."""

    lag_bytes_max: int = 64 * MEBIBYTE
    """--max-lag: a slave further behind its master is not ready. Its master's sidecar must be a --peer to know."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """The other sidecars of the group, for the merged view."""

    urls: tuple[str, ...] = ()
    """--peer: base URL of another sidecar of this group, repeatable. Nobody who asks can name another."""

    token_file: Path | None = field(default=None, repr=False)
    """--peer-token-file: shown to peers; by default the first token of --read-token-file or --token-file."""

    ca: Path | None = None
    """--peer-ca: authority of the peers' certificates; by default the system's."""

    verify: str = "full"
    """--peer-verify: `full` by default; `authority` does not compare names, for peers whose addresses are not in their
    certificates."""


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The shard's Lease in Kubernetes, which is renewed for the broker beside us."""

    name: str
    """--lease: NAMESPACE/NAME. Without it no Lease is renewed, and a broker that needs one has its slaves' grants."""

    server: str = "https://kubernetes.default.svc"
    """--lease-server: base URL of the API server; plain http only on loopback, since a token is shown to it."""

    token_file: Path = field(default=SERVICE_ACCOUNT / "token", repr=False)
    """--lease-token-file: what is shown to it; read for every request, since kubelet replaces it."""

    ca: Path = SERVICE_ACCOUNT / "ca.crt"
    """--lease-ca: who signs the API server's certificate."""

    regains: bool = False
    """--regain: a broker that has lost its role with its process gets it back in its own epoch where the Lease or its
    peers say that nobody else has it; off, since a supervisor that decides without a Lease needs no help."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """Everything, validated together."""

    broker: BrokerPaths
    """Where the broker is found; without it there is nothing to tell of."""

    listen: Address = Address(host="127.0.0.1", port=8080)
    """--listen: where it answers. Beyond loopback it refuses to start without credentials."""

    access: AccessSettings = AccessSettings()
    """Who may ask what; by default this machine may look."""

    log: LogSettings = LogSettings()
    """How the log is handed out; by default so that the broker keeps most of the machine."""

    http: HttpLimitSettings = field(default_factory=HttpLimitSettings)
    """What the connections of the main port may cost: --http-connections and its like."""

    health: HealthSettings = HealthSettings()
    """When a broker is called ready."""

    peers: PeerSettings = PeerSettings()
    """The rest of the group; by default nobody, and the view of the group is this broker."""

    lease: LeaseSettings | None = None
    """The shard's Lease; by default none is renewed."""

    wanted: Path | None = None
    """--wanted: topics and groups of consumers that the broker has while it is the master, as JSON; by default it is
    left alone. The file may change."""

    openapi: bool = False
    """--openapi: serve `/openapi.json` and a page of it at `/docs`; off, since production needs neither."""

    @property
    def log_listen(self) -> Address:
        """Where ranges leave by sendfile."""
        if self.log.listen is not None:
            return self.log.listen
        return Address(host=self.listen.host, port=self.listen.port + 1 if self.listen.port else 0)

    @property
    def log_http(self) -> HttpLimitSettings:
        """The connections of the port for ranges: fewer, since few may read at a time, and none for probes."""
        return replace(
            self.http,
            connections_max=LOG_CONNECTIONS_MAX,
            connections_per_address_max=min(LOG_CONNECTIONS_MAX // 2, self.http.connections_per_address_max),
            probe_connections=0,
        )


def validated(settings: SidecarSettings) -> SidecarSettings:
    """The same. Raises ``SettingsError`` for what contradicts itself, or would promise more than it keeps."""
    access = settings.access
    for option, address in (("--listen", settings.listen), ("--log-listen", settings.log_listen)):
        if not address.is_loopback and not access.has_credentials:
            raise SettingsError(
                f"{option} {address} can be reached from other machines, and nobody could prove who they are: "
                "give --token-file, --read-token-file or --tls-client-ca, or listen on 127.0.0.1"
            )
        if not address.is_loopback and access.open_reads:
            raise SettingsError(f"--open-reads is for loopback, and {option} is {address}")
    if (access.tls_cert is None) != (access.tls_key is None):
        raise SettingsError("--tls-cert and --tls-key belong together")
    if (settings.broker.tls.certificate is None) != (settings.broker.tls.key is None):
        raise SettingsError("--broker-tls-cert and --broker-tls-key belong together")
    if access.tls_client_ca is not None and access.tls_cert is None:
        raise SettingsError("--tls-client-ca needs --tls-cert and --tls-key: certificates are shown in TLS only")
    if not 0 <= settings.log.niceness <= 19:
        raise SettingsError("--log-nice is 0 to 19")
    if settings.log.readers_max < 1 or settings.log.range_bytes_max < 1:
        raise SettingsError("--log-readers and --log-range-max are at least 1")
    _check_http(settings.http)
    if settings.lease is not None:
        _check_lease(settings.lease)
    for url in settings.peers.urls:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"--peer {url[:200]}: write a base URL, http://host:port or https://host:port")
    return settings


def _check_http(http: HttpLimitSettings) -> None:
    """Raises ``SettingsError``."""
    for name in fields(http):
        value, least = getattr(http, name.name), 0 if name.name == "probe_connections" else 1
        if value < least:
            raise SettingsError(f"--http-{option_of(name.name)} {value}: it is at least {least}")
    if http.connections_per_address_max > http.connections_max:
        raise SettingsError(
            f"--http-connections-per-address {http.connections_per_address_max} is more than --http-connections"
            f" {http.connections_max}: lower the first or raise the second"
        )


def option_of(field_name: str) -> str:
    """A limit's option, without its beginning: units and bounds are in its help."""
    return field_name.removesuffix("_max").removesuffix("_ms").replace("_", "-")


def _check_lease(lease: LeaseSettings) -> None:
    """Raises ``SettingsError``."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", lease.name):
        raise SettingsError(f"--lease {lease.name[:200]}: write NAMESPACE/NAME")
    try:
        url = urlsplit(lease.server)
        host, port = url.hostname or "", url.port or 0
    except ValueError as error:
        raise SettingsError(f"--lease-server {lease.server[:200]}: {error}") from error
    if url.scheme not in ("http", "https") or not host or url.path.strip("/") or url.query or url.username:
        raise SettingsError(f"--lease-server {lease.server[:200]}: write https://host:port")
    if url.scheme == "http" and not Address(host=host, port=port).is_loopback:
        raise SettingsError("--lease-server: a token is shown to it, so use https beyond this machine")
