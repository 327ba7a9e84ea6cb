"""The proxy's settings: one YAML file with four concerns, and the options of the command that override it.

    nameServers: [ns.example:9876]           or "host:port;host:port"
    listen: {address, httpAddress, ...}       `ListenSettings`
    tls: {certificate, key, clientAuthority}  `ProxyTlsSettings`
    access: {accountsFile, ...}               `ProxyAccessSettings`
    limits: {...}                             `ProxyLimits`

Precedence: defaults < file < options. An unknown or contradictory key is an error that names it and prevents the start.
"""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, final

import yaml

from gantry_client.settings import parse_name_servers
from gantry_remoting.addresses import split_address
from gantry_remoting.setting_kinds import SettingsError

FILE: Final = "file"
BROKERS: Final = "brokers"
"""The two sources of the accounts of clients."""
PROCESSES_MAX: Final = 64
FILE_BYTES_MAX: Final = 1024 * 1024
"""The size above which a settings file is refused."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings:
    """Where the proxy listens, and how it stops."""

    address: str = "0.0.0.0:8081"
    """The address of the gRPC service; RocketMQ's port. Port 0 selects a free one."""

    http_address: str = "127.0.0.1:9081"
    """The address of probes and metrics, without TLS and accounts; empty for none. In a pod: `0.0.0.0:9081`."""

    processes: int = 1
    """How many processes serve the port, at most one for each core. Each takes an equal part of the connections, and of
    the limits for all clients and for one account. One process uses one core."""

    drain_delay_ms: int = 2_000
    """How long the proxy serves as before after SIGTERM, while it reports that it is not ready: load balancers need
    this time to stop sending new clients."""

    grace_ms: int = 30_000
    """How long running calls may take after that. Long polls end by then, since they last at most 20 s."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTlsSettings:
    """The certificates of the gRPC port, PEM; reloaded when they change. Without a certificate it has plain text."""

    certificate: str = ""
    """The chain of the server's certificate."""

    key: str = ""
    """The key of the certificate, without a password."""

    client_authority: str = ""
    """The authority of client certificates; with it, clients need one."""

    broker_authority: str = ""
    """The authority of the certificates of brokers and name servers; with it, the proxy connects to them by TLS."""

    checks_broker_host_name: bool = True
    """Whether the certificate of a server must be for the host that the proxy connected to. False for clusters in which
    one certificate is for all brokers."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAccessSettings:
    """The accounts of clients, and the proxy's own account at the brokers."""

    accounts_file: str = ""
    """The accounts of clients, in the format of RocketMQ's `plain_acl.yml`; the file that the brokers have, too. It is
    reloaded when it changes. Without it every client may call everything that the proxy's account may."""

    accounts_source: str = FILE
    """Where the accounts of clients are: `file` for `accountsFile`, `brokers` for the users and policies that brokers
    store and `mqadmin createUser` changes. A change there takes effect after 10 s to 60 s. The proxy reads passwords,
    so its own account must be of type `Super` at Gantry's brokers, and have the action `Get` on the cluster at
    RocketMQ's."""

    accounts_cluster: str = ""
    """The cluster whose brokers are asked for accounts. Needed if the name servers know several: each has its own
    users."""

    checks_policies: bool = True
    """Whether a call needs a policy of its user. False for brokers with `authorizationEnabled=false`, where every user
    may do everything: with `accountsSource: brokers`."""

    credentials_file: str = ""
    """A file with `accessKey` and `secretKey`, with which the proxy signs its requests to brokers and name servers. It
    is reloaded when it changes. The account needs the permissions of all clients together; it need not be an
    administrator, unless it reads the accounts of clients from brokers."""

    signature: str = "v1"
    """How the proxy signs: `v1` for every server, `strict` for Gantry's with `aclMode=STRICT`."""

    signature_window_ms: int = 15 * 60_000
    """The largest difference between the time that a client has signed and the proxy's. RocketMQ's proxy has no limit,
    so that a signature that was recorded once is valid for ever. 0 for no limit."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """What clients may cost, and what they may ask for."""

    message_bytes_max: int = 4 * 1024 * 1024
    """The largest body of a message; the limit of brokers."""

    request_bytes_max: int = 5 * 1024 * 1024
    """The largest request: a message of the largest body with its properties, or a batch."""

    metadata_bytes_max: int = 16 * 1024
    """The largest headers of a call; those of SDKs take less than 1 KiB."""

    clients_max: int = 20_000
    """How many clients may be connected. Plan for 40 KiB for an idle one: it costs about 12 KiB, and 20 KiB more with a
    TLS connection of its own."""

    calls_max: int = 60_000
    """How many calls may run at once, long polls included; a long poll costs about 20 KiB. The Telemetry stream of each
    client does not count: it belongs to `clientsMax`."""

    calls_per_client_max: int = 512
    """How many calls of one client may run at once. An SDK polls each queue of a topic at each broker once."""

    clients_per_account_max: int = 0
    """How many clients of one account may be connected; 0 for no limit beside `clientsMax`. The caller chooses a client
    id, and so the number of its clients."""

    calls_per_account_max: int = 0
    """How many calls of one account may run at once; 0 for no limit beside `callsMax`."""

    connections_max: int = 30_000
    """How many connections may be open; clients of one process share one."""

    visible_consumers_max: int = 1_000
    """How many consumers are registered at brokers, so that administrators see them and can ask for a thread dump or
    for the consumption of a message. Each costs a heartbeat every 30 s at each broker of its topics. 0 for none."""

    in_flight_messages_per_client_max: int = 20_000
    """For how many messages of one client the proxy renews the invisible time; further ones are not renewed."""

    user_properties_max: int = 128
    """How many properties a message may have; RocketMQ's limit."""

    user_properties_bytes_max: int = 16 * 1024
    """The largest size of a message's properties, tag and keys together; RocketMQ's limit."""

    message_group_bytes_max: int = 64
    """The size from which a message group is refused; RocketMQ's limit."""

    poll_ms_min: int = 5_000
    """The shortest time of a long poll; a shorter one is prolonged to this, as in RocketMQ."""

    poll_ms_max: int = 20_000
    """The longest time of a long poll."""

    invisible_ms_min: int = 10_000
    """The shortest invisible time of a receive, as in RocketMQ. A change of the invisible time may be shorter."""

    invisible_ms_max: int = 12 * 3_600_000
    """The longest invisible time, as in RocketMQ."""

    delay_ms_max: int = 40 * 24 * 3_600_000
    """The longest delay of a message. A broker may allow less, and refuses it then."""

    transaction_recovery_s_max: int = 3_600
    """The longest time before the first check of a transaction, as in RocketMQ."""

    checks_message_types: bool = True
    """Refuse messages whose kind is not that of their topic (`message.type`), as RocketMQ's proxy does."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """All settings of a proxy."""

    name_servers: tuple[str, ...] = ("127.0.0.1:9876",)
    """The name servers of the cluster. The names of brokers and topics come from them."""

    listen: ListenSettings = field(default_factory=ListenSettings)
    """The addresses, and how the proxy stops."""

    tls: ProxyTlsSettings = field(default_factory=ProxyTlsSettings)
    """The certificates of the gRPC port, and the authority of those of brokers."""

    access: ProxyAccessSettings = field(default_factory=ProxyAccessSettings)
    """The accounts of clients, and the proxy's own account."""

    limits: ProxyLimits = field(default_factory=ProxyLimits)
    """What clients may cost, and what they may ask for."""


_CONCERNS: Final[dict[str, type[Any]]] = {
    "listen": ListenSettings, "tls": ProxyTlsSettings, "access": ProxyAccessSettings, "limits": ProxyLimits,
}  # fmt: skip
NAME_SERVERS_KEY: Final = "nameServers"


def key_of(name: str) -> str:
    """Return the key of a field in the file: `drain_delay_ms` is `drainDelayMs`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def read_settings(path: Path) -> ProxySettings:
    """Read a settings file. Raises SettingsError that names the file, the key and the remedy."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(f"{path}: is larger than {FILE_BYTES_MAX} bytes")
    try:
        document = yaml.safe_load(data)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: is not YAML: {error}") from error
    try:
        return parse_settings(document)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def parse_settings(document: object) -> ProxySettings:
    """Return the settings of a document. Raises SettingsError."""
    if document is None:
        return ProxySettings()
    if not isinstance(document, dict):
        raise SettingsError(f"expected keys such as {NAME_SERVERS_KEY} and listen, not {type(document).__name__}")
    unknown = sorted(str(key) for key in document.keys() - {NAME_SERVERS_KEY, *_CONCERNS})
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r}; expected {', '.join((NAME_SERVERS_KEY, *_CONCERNS))}")
    settings = ProxySettings()
    if NAME_SERVERS_KEY in document:
        settings = replace(settings, name_servers=_name_servers(document[NAME_SERVERS_KEY]))
    for name, kind in _CONCERNS.items():
        if document.get(name) is not None:
            settings = replace(settings, **{name: _concern(name, kind, document[name])})
    check_settings(settings)
    return settings


def check_settings(settings: ProxySettings) -> None:
    """Raise SettingsError, which names the keys, for settings that contradict each other."""
    listen, tls, access, limits = settings.listen, settings.tls, settings.access, settings.limits
    for key, address in (("listen.address", listen.address), ("listen.httpAddress", listen.http_address)):
        if address or key == "listen.address":
            _check_address(key, address)
    if not 1 <= listen.processes <= PROCESSES_MAX:
        raise SettingsError(f"listen.processes: {listen.processes}, expected 1 to {PROCESSES_MAX}")
    if bool(tls.certificate) != bool(tls.key):
        raise SettingsError("tls.certificate and tls.key go together: set both or neither")
    if tls.client_authority and not tls.certificate:
        raise SettingsError("tls.clientAuthority has no effect without tls.certificate: set both, or remove it")
    if not tls.checks_broker_host_name and not tls.broker_authority:
        raise SettingsError("tls.checksBrokerHostName=false has no effect without tls.brokerAuthority: set both")
    _check_access(access)
    if limits.poll_ms_min > limits.poll_ms_max:
        raise SettingsError(
            f"limits.pollMsMin={limits.poll_ms_min} is greater than limits.pollMsMax={limits.poll_ms_max}"
        )
    if limits.invisible_ms_min > limits.invisible_ms_max:
        raise SettingsError("limits.invisibleMsMin is greater than limits.invisibleMsMax")
    if limits.request_bytes_max < limits.message_bytes_max:
        raise SettingsError(
            f"limits.requestBytesMax={limits.request_bytes_max} is smaller than "
            f"limits.messageBytesMax={limits.message_bytes_max}: no such message could be sent"
        )


def settings_of_process(settings: ProxySettings) -> ProxySettings:
    """Return the settings of one of several processes: it has no address, and its part of what all clients may take."""
    listen, limits = settings.listen, settings.limits
    parts = {name: -(-getattr(limits, name) // listen.processes) for name in _DIVIDED}
    return replace(
        settings, listen=replace(listen, address="", http_address=""), limits=replace(limits, **parts)
    )  # fmt: skip


_DIVIDED: Final = (
    "clients_max", "calls_max", "connections_max", "clients_per_account_max", "calls_per_account_max",
    "visible_consumers_max",
)  # fmt: skip


def _check_access(access: ProxyAccessSettings) -> None:
    if access.signature not in ("v1", "strict"):
        raise SettingsError(f"access.signature: {access.signature!r}, expected v1 or strict")
    if access.signature == "strict" and not access.credentials_file:
        raise SettingsError("access.signature=strict has no effect without access.credentialsFile: set both or neither")
    if access.accounts_source not in (FILE, BROKERS):
        raise SettingsError(f"access.accountsSource: {access.accounts_source!r}, expected {FILE} or {BROKERS}")
    if access.accounts_source == BROKERS:
        if access.accounts_file:
            raise SettingsError(
                f"access.accountsSource={BROKERS} and access.accountsFile={access.accounts_file} contradict each "
                "other: set only one of the two"
            )
        if not access.credentials_file:
            raise SettingsError(
                f"access.accountsSource={BROKERS} needs access.credentialsFile, the account that may read users"
            )
        return
    if access.accounts_cluster:
        raise SettingsError(f"access.accountsCluster has no effect without access.accountsSource={BROKERS}: set both")
    if not access.checks_policies:
        raise SettingsError(
            f"access.checksPolicies=false has no effect without access.accountsSource={BROKERS}: set both or neither"
        )


def _name_servers(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SettingsError(f"{NAME_SERVERS_KEY}: expected a list of host:port, or one text joined by ';'")
    try:
        addresses = parse_name_servers(";".join(texts))
    except ValueError as error:
        raise SettingsError(f"{NAME_SERVERS_KEY}: {error}") from error
    for address in addresses:
        _check_address(NAME_SERVERS_KEY, address)
    return addresses


def _check_address(key: str, address: str) -> None:
    try:
        split_address(address, port_min=0)
    except ValueError as error:
        raise SettingsError(f"{key}: {address!r}, expected host:port, for example 0.0.0.0:8081 or [::]:8081") from error


def _concern(name: str, kind: type[Any], value: object) -> Any:
    if not isinstance(value, dict):
        raise SettingsError(f"{name}: expected keys, not {type(value).__name__}")
    known = {key_of(one.name): one for one in fields(kind)}
    changes: dict[str, Any] = {}
    for key, item in value.items():
        if key not in known:
            raise SettingsError(f"{name}: unknown key {key!r}; expected one of {', '.join(sorted(known))}")
        expected = type(known[key].default)
        if type(item) is not expected:
            raise SettingsError(f"{name}.{key}: {item!r}, expected {_KINDS[expected]}")
        if isinstance(item, int) and item < 0:
            raise SettingsError(f"{name}.{key}: {item}, expected 0 or more")
        changes[known[key].name] = item
    return kind(**changes)


_KINDS: Final = {str: "a text", int: "a whole number", bool: "true or false"}
