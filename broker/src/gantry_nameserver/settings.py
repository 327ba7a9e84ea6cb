"""The name server's settings, under the names that RocketMQ's `namesrv.conf` uses.

Precedence: defaults < `--config` file < what mqadmin changed at run time (kept in the data directory) < command line.
An unknown key refuses to start and is named, or is left out and named with `ignoreUnknownSettings`; keys that tune
Java's threads are known and have no effect here.
"""

import dataclasses
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gantry_access import AccessMode, AccessSettings
from gantry_nameserver.routes import RouteLimits
from gantry_remoting.settings import ListenerSettings, TlsMode, TlsSettings, listener_tls
from gantry_wire.limits import FRAME_BYTES_MAX
from gantry_wire.properties_text import read_properties

log = logging.getLogger(__name__)


class SettingsError(Exception):
    """A setting is unknown or wrong. The operator should mend it; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerSettings:
    """Everything that can be set."""

    bind_address: str = "0.0.0.0"
    """Where to listen; all IPv4 addresses, as RocketMQ does. `::` is all addresses of both families."""

    listen_port: int = 9876
    """The port; 0 takes a free one."""

    external_listen_port: int = 0
    """A port for clients outside of the network, who are told brokers' outer addresses; 0 for none."""

    order_message_enable: bool = False
    """Put `orderTopicConf` from the key-value table into routes."""

    return_order_topic_config_to_broker: bool = True
    """Answer registrations with the table of ordered topics."""

    support_acting_master: bool = False
    """Show the smallest slave of a masterless, read-only broker as its master, for brokers that ask for it."""

    enable_all_topic_list: bool = True
    """Answer code 206."""

    enable_topic_list: bool = True
    """Answer codes 224, 311, 312 and 313."""

    delete_topic_with_broker_registration: bool = False
    """Forget topics that a broker's registration no longer carries."""

    need_wait_for_service: bool = False
    """Answer no routes for the first `waitSecondsForService`, so that clients keep the ones they have."""

    wait_seconds_for_service: int = 45
    """How long that is; longer than a broker's registration period of 30 s."""

    scan_not_active_broker_interval: int = 5000
    """Milliseconds between searches for silent brokers."""

    acl_enable: bool = False
    """Every request needs an account that may do what it asks for. Brokers need administrators' accounts."""

    acl_file: str = ""
    """The accounts, in the form of RocketMQ's `plain_acl.yml`. Read again when it changes."""

    acl_mode: str = AccessMode.V1.value
    """V1 takes what RocketMQ's clients sign; STRICT only signatures that cover request, time and repetition."""

    acl_time_window: int = 60_000
    """Milliseconds that a strict signature's time may be from ours."""

    max_unfinished_frame_bytes: int = 128 * 1024 * 1024
    """Of one port, what has come of requests that have not come as a whole, of all connections together. Beyond it the
    connections are closed whose part costs most memory for the longest time."""

    max_unauthenticated_frame_bytes: int = 32 * 1024 * 1024
    """The same with aclEnable=true, for connections of which no request was signed well yet. A broker's registration
    carries all its topics, and may be the first request: one frame may take the half."""

    max_unread_reply_bytes: int = 128 * 1024 * 1024
    """Of one port, replies that clients have not read, of all connections together. Routes are small."""

    max_read_bytes_per_turn: int = 1024 * 1024
    """Of one port, how many bytes of requests one turn of the event loop serves. What arrives beyond waits for the next
    turns, in order."""

    max_deferred_answers: int = 1024
    """Of one port, requests whose answers wait for the disk, of all connections together. The next one waits, and its
    connection is not read meanwhile."""

    max_deferred_answers_per_connection: int = 64
    """The same of one connection."""

    ignore_unknown_settings: bool = False
    """Leave out keys that this version does not know, and say so: whoever wrote a pod's settings may be newer."""

    limits: RouteLimits = field(default_factory=RouteLimits)
    """How much the route table takes in."""

    tls: TlsSettings | None = None
    """Certificates, from the `tls...` keys that a broker has, too; None speaks plain text only."""

    def listener(self, port: int) -> ListenerSettings:
        """The limits of one listening port."""
        return ListenerSettings(
            host=self.bind_address,
            port=port,
            unfinished_frame_bytes_max=self.max_unfinished_frame_bytes,
            unauthenticated_frame_bytes_max=self.max_unauthenticated_frame_bytes,
            unread_reply_bytes_max=self.max_unread_reply_bytes,
            turn_read_bytes_max=self.max_read_bytes_per_turn,
            deferred_answers_max=self.max_deferred_answers,
            deferred_answers_per_connection_max=self.max_deferred_answers_per_connection,
            is_guarded=self.acl_enable,
            tls=self.tls,
        )

    def access(self) -> AccessSettings:
        """Access control in one piece. Raises SettingsError for what contradicts itself."""
        try:
            mode = AccessMode(self.acl_mode.upper())
        except ValueError:
            raise SettingsError(f"aclMode must be one of {', '.join(AccessMode)}, not {self.acl_mode!r}") from None
        access = AccessSettings(
            is_enabled=self.acl_enable, file=self.acl_file, mode=mode, window_ms=self.acl_time_window
        )
        fault = access.fault()
        if fault is not None:
            raise SettingsError(fault)
        return access


UPDATABLE: Final = frozenset(
    {
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "supportActingMaster",
        "enableAllTopicList",
        "enableTopicList",
        "deleteTopicWithBrokerRegistration",
        "needWaitForService",
        "waitSecondsForService",
        "scanNotActiveBrokerInterval",
    }
)
"""What code 318 may change. Paths and addresses are not among them."""

WITHOUT_EFFECT: Final = frozenset(
    {
        "rocketmqHome", "kvConfigPath", "configStorePath", "configBlackList", "productEnvName", "clusterTest",
        "clientRequestThreadPoolNums", "defaultThreadPoolNums", "clientRequestThreadPoolQueueCapacity",
        "defaultThreadPoolQueueCapacity", "unRegisterBrokerQueueCapacity", "notifyMinBrokerIdChanged",
        "enableControllerInNamesrv", "serverWorkerThreads", "serverCallbackExecutorThreads", "serverSelectorThreads",
        "serverOnewaySemaphoreValue", "serverAsyncSemaphoreValue", "serverChannelMaxIdleTimeSeconds",
        "serverSocketSndBufSize", "serverSocketRcvBufSize", "serverPooledByteBufAllocatorEnable",
        "useEpollNativeSelector", "writeBufferHighWaterMark", "writeBufferLowWaterMark", "serverSocketBacklog",
        "serverNettyWorkerGroupEnable", "enableShutdownGracefully", "shutdownWaitTimeSeconds",
    }
)  # fmt: skip
"""Keys of Java's name server that have no meaning here. A file with them works."""

_BUDGETS: Final = frozenset({"maxUnfinishedFrameBytes", "maxUnauthenticatedFrameBytes", "maxUnreadReplyBytes"})
"""In bytes; each must hold what one honest connection needs, and a second one beside it."""

TLS_KEYS: Final = frozenset(
    {"tlsMode", "tlsServerCertPath", "tlsServerKeyPath", "tlsServerTrustCertPath", "tlsServerNeedClientAuth"}
)
"""Read together, into `tls`."""

_NESTED: Final = frozenset({"limits", "tls"})


def java_name(name: str) -> str:
    """`listen_port` -> `listenPort`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_FIELDS: Final = {java_name(f.name): f for f in dataclasses.fields(NameServerSettings) if f.name not in _NESTED}


def with_entries(settings: NameServerSettings, entries: dict[str, str]) -> NameServerSettings:
    """`settings` changed by entries under Java's names. Raises SettingsError that names the wrong one."""
    changes: dict[str, Any] = {}
    is_tolerant = settings.ignore_unknown_settings or entries.get("ignoreUnknownSettings", "").lower() == "true"
    if TLS_KEYS & entries.keys():
        changes["tls"] = _tls(entries)
    for key, text in entries.items():
        if key in WITHOUT_EFFECT or key in TLS_KEYS:
            continue
        if key not in _FIELDS and is_tolerant:
            log.warning("a setting is left out that this version does not know", extra={"key": key})
            continue
        if key not in _FIELDS:
            raise SettingsError(f"unknown setting {key!r}")
        changes[_FIELDS[key].name] = _value(key, text, type(_FIELDS[key].default))
    return dataclasses.replace(settings, **changes)


def entries_of(settings: NameServerSettings) -> dict[str, str]:
    """All plain settings under Java's names, as code 319 shows them."""
    shown: dict[str, str] = {}
    for key, definition in _FIELDS.items():
        value = getattr(settings, definition.name)
        shown[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return shown


def read_settings_file(path: Path) -> dict[str, str]:
    """The entries of a `.conf` file. Raises SettingsError."""
    try:
        return read_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


def _tls(entries: dict[str, str]) -> TlsSettings | None:
    """As a broker reads them: permissive by default, plain text without a certificate."""
    mode = entries.get("tlsMode", TlsMode.PERMISSIVE.value).lower()
    if mode not in [known.value for known in TlsMode]:
        raise SettingsError(f"tlsMode must be one of {', '.join(known.value for known in TlsMode)}, not {mode!r}")
    try:
        return listener_tls(
            TlsMode(mode),
            entries.get("tlsServerCertPath", ""),
            entries.get("tlsServerKeyPath", ""),
            entries.get("tlsServerTrustCertPath", ""),
            requires_client_certificate=bool(
                _value("tlsServerNeedClientAuth", entries.get("tlsServerNeedClientAuth", "false"), bool)
            ),
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _value(key: str, text: str, kind: type) -> object:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SettingsError(f"{key} must be true or false, not {text!r}")
        return text.lower() == "true"
    if kind is int:
        try:
            number = int(text)
        except ValueError:
            raise SettingsError(f"{key} must be a whole number, not {text!r}") from None
        low, high = _bounds(key)
        if not low <= number <= high:
            raise SettingsError(f"{key} must be between {low} and {high}, not {number}")
        return number
    return text


def _bounds(key: str) -> tuple[int, int]:
    if key in ("listenPort", "externalListenPort"):
        return 0, 65535
    if key == "aclTimeWindow":
        return 1_000, 3_600_000
    if key in _BUDGETS:
        return 2 * FRAME_BYTES_MAX, 1 << 40
    if key == "maxReadBytesPerTurn":
        return 64 * 1024, 1 << 40
    if key in ("maxDeferredAnswers", "maxDeferredAnswersPerConnection"):
        return 1, 1 << 40
    return (100, 3_600_000) if key == "scanNotActiveBrokerInterval" else (0, 86_400)
