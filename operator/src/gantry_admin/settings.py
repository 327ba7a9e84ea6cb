"""The settings of the sidecar, by concern: parsed once and validated together; each field explains its default."""

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
"""The most connections of the port for ranges."""


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
        """Whether the address is reachable only from this machine."""
        if self.host in LOOPBACK_NAMES:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str, option: str) -> Address:
    """Parse ``host:port`` or ``[v6]:port``. Raises ``SettingsError`` that names the option."""
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
    """TLS to the broker's main port. Each of the files turns it on."""

    is_requested: bool = False
    """--broker-tls: use TLS, with the system's authorities unless another is given; plain text by default."""

    authority: Path | None = None
    """--broker-tls-ca: the authority of the broker's certificate; by default the system's authorities."""

    certificate: Path | None = None
    """--broker-tls-cert: the client certificate, if the broker requires one."""

    key: Path | None = field(default=None, repr=False)
    """--broker-tls-key: the key of the client certificate."""

    verify: str = "full"
    """--broker-tls-verify: `full` by default; `authority` does not compare names, for a broker that is reached by an
    address that is not in its certificate; `none` accepts any certificate."""

    @property
    def is_on(self) -> bool:
        """Whether connections to the broker use TLS."""
        return self.is_requested or any((self.authority, self.certificate, self.key))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPaths:
    """The paths and the address of the sidecar's broker."""

    page: Path
    """--page: the broker's status page (`statusPagePath`)."""

    control: Path
    """--control: the broker's control socket (`controlSocketPath`), which only the broker's own user may open."""

    store: Path
    """--store: the broker's `storePathRootDir`, for log ranges and tables; it is read, never written."""

    log_file: Path | None = None
    """--broker-log: the broker's log file, whose end goes into diagnostics bundles; by default they contain none."""

    address: str | None = None
    """--broker: host:port of the broker's main port; by default the address that it reports over the control socket."""

    credentials: Path | None = field(default=None, repr=False)
    """--broker-credentials: file with accessKey and secretKey, for a broker with access control."""

    tls: BrokerTls = BrokerTls()
    """TLS to the broker's main port; plain text by default."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Access control. Without any of these, local clients may view the status, and nothing may be changed."""

    token_file: Path | None = field(default=None, repr=False)
    """--token-file: tokens with every permission: view the status, read messages, give orders; `name:token` lines."""

    read_token_file: Path | None = field(default=None, repr=False)
    """--read-token-file: tokens that may view the status and read messages, and change nothing."""

    tls_cert: Path | None = None
    """--tls-cert: the sidecar's certificate; with it the ports accept TLS only."""

    tls_key: Path | None = field(default=None, repr=False)
    """--tls-key: the key of the sidecar's certificate."""

    tls_client_ca: Path | None = None
    """--tls-client-ca: authority of client certificates, which grant all permissions (mTLS)."""

    open_reads: bool = False
    """--open-reads: on loopback, clients without a token may view the status and read messages."""

    @property
    def has_credentials(self) -> bool:
        """Whether any credentials are configured."""
        return any((self.token_file, self.read_token_file, self.tls_client_ca))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The limits of reading the log, so that bulk readers do not slow the broker down."""

    listen: Address | None = None
    """--log-listen: the port that serves ranges by `sendfile`; by default the sidecar's host and the next port."""

    bytes_per_second: int = 256 * MEBIBYTE
    """--log-rate: limit for all readers together; 256 MiB/s leaves memory bandwidth for the broker. 0: no limit."""

    burst_bytes: int = 32 * MEBIBYTE
    """--log-burst: the bytes that may be sent at once after a pause: a few ranges."""

    readers_max: int = 4
    """--log-readers: ranges that are read at a time; one more is answered 429 with the time to wait."""

    niceness: int = 19
    """--log-nice: the niceness of the thread that sends files and of searches; 19, so that any other thread gets the
    core first."""

    range_bytes_max: int = 64 * MEBIBYTE
    """--log-range-max: the longest range of one answer; a longer one is answered with its beginning."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """The conditions and the delays of readiness."""

    stale_ms: int = 2_000
    """--stale-after: the broker is stalled if it publishes nothing for longer; it publishes every 100 ms."""

    down_after_ms: int = 3_000
    """--down-after: how long a ready broker must fail the checks before it is not ready; it may fail them for a second
    under load. A broker whose process has ended, or whose phase is not serving, counts as not ready at once."""

    up_after_ms: int = 1_000
    """--up-after: how long an unready broker must pass the checks before it is ready."""

    lag_bytes_max: int = 64 * MEBIBYTE
    """--max-lag: a slave further behind its master is not ready. The lag is known only if the master's sidecar is a
    --peer."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """The other sidecars of the group: for its view, its other shards' data, a slave's lag, and role recovery."""

    urls: tuple[str, ...] = ()
    """--peer: base URL of another sidecar of this group, repeatable. Callers of the API cannot name other ones."""

    token_file: Path | None = field(default=None, repr=False)
    """--peer-token-file: token for peers; by default the first token of --read-token-file or --token-file."""

    ca: Path | None = None
    """--peer-ca: authority of the peers' certificates; by default the system's."""

    verify: str = "full"
    """--peer-verify: `full` by default; `authority` does not compare names, for peers whose addresses are not in their
    certificates."""


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The shard's Lease in Kubernetes, which is renewed for the sidecar's broker."""

    name: str
    """--lease: NAMESPACE/NAME. Without it no Lease is renewed, and the broker depends on its slaves' grants."""

    server: str = "https://kubernetes.default.svc"
    """--lease-server: base URL of the API server; plain http only on loopback, because a token is sent to it."""

    token_file: Path = field(default=SERVICE_ACCOUNT / "token", repr=False)
    """--lease-token-file: token for the API server; read for every request, because kubelet replaces it."""

    ca: Path = SERVICE_ACCOUNT / "ca.crt"
    """--lease-ca: authority of the API server's certificate."""

    regains: bool = False
    """--regain: a broker that lost its role when its process ended regains it in the same epoch if the Lease or its
    peers show that no other broker has it; off, because a supervisor without a Lease assigns roles itself."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """All settings of a sidecar, validated together."""

    broker: BrokerPaths
    """The paths and the address of the broker; required."""

    listen: Address = Address(host="127.0.0.1", port=8080)
    """--listen: the address of the main port. Beyond loopback the sidecar refuses to start without credentials."""

    access: AccessSettings = AccessSettings()
    """Access control; by default local clients may view the status."""

    log: LogSettings = LogSettings()
    """The limits of reading the log; by default the broker keeps most of the machine."""

    http: HttpLimitSettings = field(default_factory=HttpLimitSettings)
    """The limits of the main port's connections: --http-connections and the other --http options."""

    health: HealthSettings = HealthSettings()
    """The conditions and the delays of readiness."""

    peers: PeerSettings = PeerSettings()
    """The other sidecars of the group; by default none, and the view of the group is this broker."""

    proxies: tuple[str, ...] = ()
    """--proxy: base URL of the HTTP port of gRPC proxies, which the view of the group shows, repeatable. A host name
    stands for each of its addresses, so one URL is enough for all pods of a headless Service."""

    lease: LeaseSettings | None = None
    """The shard's Lease; by default none is renewed."""

    topics_file: Path | None = None
    """--topics-file: topics and consumer groups that the broker is to have while it is the master, as JSON; by default
    none are created. The file may change."""

    state: Path | None = None
    """--state: a directory of the sidecar's own, for the history of consumer lag; never one of the broker's. By default
    the history is kept in memory, and a restart loses it."""

    openapi: bool = False
    """--openapi: serve `/openapi.json` and a page of it at `/docs`; off, because production needs neither."""

    @property
    def log_listen(self) -> Address:
        """The address of the port that serves ranges by sendfile."""
        if self.log.listen is not None:
            return self.log.listen
        return Address(host=self.listen.host, port=self.listen.port + 1 if self.listen.port else 0)

    @property
    def log_http(self) -> HttpLimitSettings:
        """The limits of the port for ranges: fewer connections, because few may read at a time, and none for probes."""
        return replace(
            self.http,
            connections_max=LOG_CONNECTIONS_MAX,
            connections_per_address_max=min(LOG_CONNECTIONS_MAX // 2, self.http.connections_per_address_max),
            probe_connections=0,
        )


def validate_settings(settings: SidecarSettings) -> SidecarSettings:
    """Return valid settings unchanged. Raises ``SettingsError`` for invalid or contradictory ones."""
    access = settings.access
    for option, address in (("--listen", settings.listen), ("--log-listen", settings.log_listen)):
        if not address.is_loopback and not access.has_credentials:
            raise SettingsError(
                f"{option} {address} is reachable from other machines, but no credentials are configured: "
                "set --token-file, --read-token-file or --tls-client-ca, or listen on 127.0.0.1"
            )
        if not address.is_loopback and access.open_reads:
            raise SettingsError(f"--open-reads is for loopback, and {option} is {address}")
    if (access.tls_cert is None) != (access.tls_key is None):
        raise SettingsError("--tls-cert and --tls-key belong together")
    if (settings.broker.tls.certificate is None) != (settings.broker.tls.key is None):
        raise SettingsError("--broker-tls-cert and --broker-tls-key belong together")
    if access.tls_client_ca is not None and access.tls_cert is None:
        raise SettingsError("--tls-client-ca needs --tls-cert and --tls-key: clients send certificates only over TLS")
    if not 0 <= settings.log.niceness <= 19:
        raise SettingsError(f"--log-nice {settings.log.niceness}: expected 0 to 19")
    for option, value in (
        ("--log-readers", settings.log.readers_max),
        ("--log-range-max", settings.log.range_bytes_max),
    ):
        if value < 1:
            raise SettingsError(f"{option} {value}: expected at least 1")
    _check_http(settings.http)
    if settings.lease is not None:
        _check_lease(settings.lease)
    for url in settings.peers.urls:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"--peer {url[:200]}: write a base URL, http://host:port or https://host:port")
    for url in settings.proxies:
        _check_proxy(url)
    return settings


def _check_proxy(url: str) -> None:
    """Check the URL of proxies. Raises ``SettingsError``."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme == "http" and bool(parts.hostname and parts.port) and parts.path in ("", "/")
    except ValueError:
        is_valid = False
    if not is_valid:
        raise SettingsError(f"--proxy {url[:200]}: write http://host:port, the port for probes and metrics")


def _check_http(http: HttpLimitSettings) -> None:
    """Check the limits of connections. Raises ``SettingsError``."""
    for name in fields(http):
        value, least = getattr(http, name.name), 0 if name.name == "probe_connections" else 1
        if value < least:
            raise SettingsError(f"--http-{option_of(name.name)} {value}: expected at least {least}")
    if http.connections_per_address_max > http.connections_max:
        raise SettingsError(
            f"--http-connections-per-address {http.connections_per_address_max} is more than --http-connections"
            f" {http.connections_max}: lower the first or raise the second"
        )


def option_of(field_name: str) -> str:
    """Return the option of a limit, without its prefix; units and bounds are in its help text."""
    return field_name.removesuffix("_max").removesuffix("_ms").replace("_", "-")


def _check_lease(lease: LeaseSettings) -> None:
    """Check the settings of the Lease. Raises ``SettingsError``."""
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
        raise SettingsError(
            f"--lease-server {lease.server[:200]}: use https, because a token is sent beyond this machine"
        )
