"""The name server's settings, under the names that RocketMQ's `namesrv.conf` uses.

Precedence: defaults < `--config` file < what mqadmin changed at run time (kept in the data directory) < command line.
An unknown key is an error that prevents the start, or is ignored with a warning with `ignoreUnknownSettings`; keys that
only Java's name server uses, such as those of its threads and paths, are accepted and have no effect.
"""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gantry_access import AccessMode, AccessSettings
from gantry_nameserver.routes import RouteLimits
from gantry_remoting import setting_kinds as kinds
from gantry_remoting.setting_kinds import SettingsError
from gantry_remoting.settings import ListenerSettings, TlsMode, TlsSettings, listener_tls
from gantry_wire.limits import FRAME_BYTES_MAX
from gantry_wire.properties_text import read_properties

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerSettings:
    """The settings of a name server."""

    bind_address: str = "0.0.0.0"
    """The address to listen on; all IPv4 addresses, as in RocketMQ. `::` means all addresses of both families."""

    listen_port: int = 9876
    """The port to listen on; 0 selects a free one."""

    external_listen_port: int = 0
    """A port for clients outside the network, which receive the external addresses of brokers; 0 for none."""

    order_message_enable: bool = False
    """Put `orderTopicConf` from the key-value table into routes."""

    return_order_topic_config_to_broker: bool = True
    """Answer registrations with the table of ordered topics."""

    support_acting_master: bool = False
    """If a read-only broker has no master, show its slave with the smallest id as its master, provided that the broker
    enables it."""

    enable_all_topic_list: bool = True
    """Answer request code 206 (list of all topics)."""

    enable_topic_list: bool = True
    """Answer request codes 224, 311, 312 and 313 (other topic lists)."""

    delete_topic_with_broker_registration: bool = False
    """Remove topics that the registration of a broker no longer contains."""

    need_wait_for_service: bool = False
    """Answer no routes during the first `waitSecondsForService`, so that clients keep their routes."""

    wait_seconds_for_service: int = 45
    """How long no routes are answered, in seconds; longer than the registration interval of brokers, 30 s."""

    scan_not_active_broker_interval: int = 5000
    """The interval between scans for silent brokers, in milliseconds."""

    acl_enable: bool = False
    """Require an account with the needed permission for every request. Brokers need administrator accounts."""

    acl_file: str = ""
    """The file of accounts, in the format of RocketMQ's `plain_acl.yml`. It is reloaded when it changes."""

    acl_mode: AccessMode = AccessMode.V1
    """V1 accepts the signatures of RocketMQ's clients; STRICT accepts only signatures that also cover the request code
    and the time, and rejects replays."""

    acl_time_window: int = 60_000
    """The maximum difference between the time of a strict signature and the server's, in milliseconds."""

    max_unfinished_frame_bytes: int = 128 * 1024 * 1024
    """The maximum bytes of incomplete requests on one port, over all connections. Beyond it, the connections that use
    the most memory for the longest time are closed."""

    max_unauthenticated_frame_bytes: int = 32 * 1024 * 1024
    """The maximum bytes of incomplete requests with aclEnable=true, for connections without a validly signed request.
    The first request may be the registration of a broker with all its topics, so one frame may use half of it."""

    max_unread_reply_bytes: int = 128 * 1024 * 1024
    """The maximum bytes of replies on one port that clients have not read, over all connections. Routes are small."""

    max_read_bytes_per_turn: int = 1024 * 1024
    """The maximum bytes of requests on one port that one iteration of the event loop serves. Further requests wait for
    the next iterations, in order."""

    max_deferred_answers: int = 1024
    """The maximum number of requests on one port whose replies wait for the disk, over all connections. Further
    requests wait, and their connections are not read meanwhile."""

    max_deferred_answers_per_connection: int = 64
    """The maximum number of requests of one connection whose replies wait for the disk."""

    ignore_unknown_settings: bool = False
    """Ignore unknown keys with a warning: the operator that wrote the settings of a pod may have a newer version."""

    limits: RouteLimits = field(default_factory=RouteLimits)
    """The limits on the size of the route table."""

    tls: TlsSettings | None = None
    """The certificates, from the same `tls...` keys as in a broker; None allows plain text only."""

    def listener(self, port: int) -> ListenerSettings:
        """Return the address and limits of one listening port."""
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
        """Return the access control settings. Raises SettingsError if they contradict each other."""
        access = AccessSettings(
            is_enabled=self.acl_enable, file=self.acl_file, mode=self.acl_mode, window_ms=self.acl_time_window
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
"""The keys that request code 318 may change. Paths and addresses are not among them."""

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
"""Keys of Java's name server that are accepted and have no effect."""

TLS_KEYS: Final = frozenset(
    {"tlsMode", "tlsServerCertPath", "tlsServerKeyPath", "tlsServerTrustCertPath", "tlsServerNeedClientAuth"}
)
"""The keys that together form `tls`."""

_NESTED: Final = frozenset({"limits", "tls"})
"""Fields that are not single keys."""


def java_name(name: str) -> str:
    """Convert a Python name to Java's: `listen_port` -> `listenPort`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_FIELDS: Final = {java_name(f.name): f for f in dataclasses.fields(NameServerSettings) if f.name not in _NESTED}

_KINDS: Final[dict[str, Callable[[str], Any]]] = {
    "listenPort": kinds.whole_number(0, 65535),
    "externalListenPort": kinds.whole_number(0, 65535),
    "waitSecondsForService": kinds.whole_number(0, 86_400),
    "scanNotActiveBrokerInterval": kinds.whole_number(100, 3_600_000),
    "aclMode": kinds.one_of(AccessMode),
    "aclTimeWindow": kinds.ACL_TIME_WINDOW_MS,
    "maxUnfinishedFrameBytes": kinds.POSITIVE,
    "maxUnauthenticatedFrameBytes": kinds.POSITIVE,
    "maxUnreadReplyBytes": kinds.POSITIVE,
    "maxReadBytesPerTurn": kinds.TURN_READ_BYTES,
    "maxDeferredAnswers": kinds.POSITIVE,
    "maxDeferredAnswersPerConnection": kinds.POSITIVE,
}
"""The kinds of the keys that are neither booleans nor texts."""


def with_entries(settings: NameServerSettings, entries: dict[str, str]) -> NameServerSettings:
    """Return `settings` with entries under Java's names applied. Raises SettingsError that names the invalid one."""
    changes: dict[str, Any] = {}
    is_tolerant = settings.ignore_unknown_settings or kinds.ignores_unknown(entries)
    if TLS_KEYS & entries.keys():
        changes["tls"] = _tls(entries)
    for key, text in entries.items():
        if key in WITHOUT_EFFECT or key in TLS_KEYS:
            continue
        if key not in _FIELDS and is_tolerant:
            log.warning("ignored unknown setting", extra={"key": key})
            continue
        if key not in _FIELDS:
            raise SettingsError(f"unknown setting {key!r}")
        is_boolean = isinstance(_FIELDS[key].default, bool)
        changes[_FIELDS[key].name] = kinds.parse_setting(
            key, text, kinds.boolean if is_boolean else _KINDS.get(key, str)
        )
    changed = dataclasses.replace(settings, **changes)
    for name in ("max_unfinished_frame_bytes", "max_unauthenticated_frame_bytes", "max_unread_reply_bytes"):
        kinds.check_budget(java_name(name), getattr(changed, name), "the largest frame", FRAME_BYTES_MAX)
    return changed


def entries_of(settings: NameServerSettings) -> dict[str, str]:
    """Return all plain settings under Java's names, as request code 319 does."""
    return {key: kinds.format_value(getattr(settings, definition.name)) for key, definition in _FIELDS.items()}


def read_settings_file(path: Path) -> dict[str, str]:
    """Read the entries of a `.conf` file. Raises SettingsError."""
    try:
        return read_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


def _tls(entries: dict[str, str]) -> TlsSettings | None:
    """Build the TLS settings like a broker: permissive by default, plain text without a certificate."""
    mode: TlsMode = kinds.parse_setting("tlsMode", entries.get("tlsMode", TlsMode.PERMISSIVE.value), kinds.tls_mode)
    needs_certificate = kinds.parse_setting(
        "tlsServerNeedClientAuth", entries.get("tlsServerNeedClientAuth", "false"), kinds.boolean
    )
    try:
        return listener_tls(
            mode,
            entries.get("tlsServerCertPath", ""),
            entries.get("tlsServerKeyPath", ""),
            entries.get("tlsServerTrustCertPath", ""),
            requires_client_certificate=needs_certificate,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
