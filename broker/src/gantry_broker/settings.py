"""Settings of a broker: the names that RocketMQ users know, in a `broker.conf`, plus a few of our own.

    file < command line

Everything is read once, checked together, and passed on in small pieces. A setting we do not know, or one that asks
for something this broker does not do, refuses to start and says which key it is and what to do: silently running with
weaker promises than the file asks for is the one thing a broker must not do.
"""

import inspect
import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from gantry_access import AccessMode, AccessSettings
from gantry_broker.ha.settings import AckLevel, BrokerRole, Degrade, ReplicationSettings, RoleAtStart
from gantry_broker.store.settings import (
    FlushSettings,
    PoolSettings,
    RetentionSettings,
    StoreSettings,
    parse_delay_levels,
)
from gantry_remoting import (
    ClientTlsSettings,
    ListenerSettings,
    TlsMode,
    TlsSettings,
    bare_host,
    join_address,
    listener_tls,
    split_address,
)
from gantry_wire import WireLimits
from gantry_wire.names import NOT_SENDABLE_TOPICS, topic_fault

log = logging.getLogger(__name__)


class SettingsError(ValueError):
    """The settings cannot be used. The text names the keys and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Everything one broker can be told. The RocketMQ name is the key in `broker.conf`."""

    cluster_name: str = "DefaultCluster"
    """brokerClusterName: the cluster that name servers list this broker under; also a topic's name."""

    broker_name: str = field(default_factory=socket.gethostname)
    """brokerName; the host's name by default."""

    broker_id: int = 0
    """brokerId; 0 is a master that stays one. Others are a member's own number, registered while it is a slave."""

    broker_ip: str = "127.0.0.1"
    """brokerIP1, the address that clients are told and that message ids carry; IPv6 with or without brackets."""

    master_ip: str = ""
    """brokerMasterIP: an address that follows the master's role, such as a Service's; empty: brokerIP1.

    The master is registered under it, and message ids carry it, whoever wrote the message: so both stay right when the
    role moves. Slaves are registered under brokerIP1.
    """

    outside_path: str = ""
    """externalAddressPath: a file with the addresses by which clients outside of the network reach the group's brokers.

    Lines like `master=203.0.113.7:10911` and, by brokerId, `2=203.0.113.8:10911`. Looked at every few seconds; name
    servers of Gantry's tell them to whoever asks on their `externalListenPort`. Empty: nobody comes from there.
    """

    memory_scope: str = ""
    """memoryScope: whose memory holds what is not on the disk yet, beside this run of the machine; in a pod its uid.

    After a crash, a start in another scope takes that for lost: buffers are the old pod's, and the volume may have been
    torn off and mounted anew, with the page cache gone. Empty: the machine's alone.
    """

    listen_host: str = "0.0.0.0"
    """bindAddress: the address to listen on. `::` is all addresses of both families, `0.0.0.0` those of IPv4."""

    listen_port: int = 10911
    """listenPort: the main port, which serves everything."""

    fast_port: int | None = None
    """fastListenPort; two below listenPort by default, as clients and slaves expect. -1 switches it off."""

    ha_port: int | None = None
    """haListenPort: where slaves follow, and told to name servers; one above listenPort by default, -1 for none."""

    ha_ip: str = ""
    """brokerIP2: the address that slaves are told to come to; empty: brokerIP1."""

    name_servers: tuple[str, ...] = ()
    """namesrvAddr: host:port, several separated by semicolons."""

    store_path: str = "store"
    """storePathRootDir: where the log, the queues and the tables lie."""

    register_period_ms: int = 30_000
    """registerNameServerPeriod: how often name servers are told of us when nothing changes; 10 to 60 s."""

    auto_create_topics: bool = True
    """autoCreateTopicEnable: the first message to an unknown topic makes it."""

    auto_create_groups: bool = True
    """autoCreateSubscriptionGroup: the first contact of an unknown group makes it."""

    default_topic_queues: int = 8
    """defaultTopicQueueNums: the most queues that an auto-created topic gets."""

    message_bytes_max: int = 4 * 1024 * 1024
    """maxMessageSize: the largest body, stored bytes."""

    batch_messages_max: int = 10_000
    """maxBatchMessages: messages of one batch send. A batch is one append, and everybody else waits for it."""

    send_queue_capacity: int = 10_000
    """sendThreadPoolQueueCapacity: sends that may wait for the disk at once; more are answered "busy"."""

    wait_in_send_queue_ms: int = 200
    """waitTimeMillsInSendQueue: a send that waited longer for us is answered "busy"."""

    page_cache_busy_ms: int = 1000
    """osPageCacheBusyTimeOutMills: an append that takes longer is named as the reason for "busy"."""

    held_pulls_max: int = 100_000
    """pullThreadPoolQueueCapacity: long polls that may wait at once; each costs about a kilobyte."""

    held_pulls_per_connection_max: int = 10_000
    """maxHeldPullsPerConnection: long polls of one connection; a client holds one per queue that it consumes."""

    pull_messages_max: int = 1024
    """maxPullBatchSize: messages in one pull's answer, whatever the client asks for."""

    pull_bytes_max: int = 256 * 1024
    """maxTransferBytesOnMessageInMemory: bytes in one pull's answer; one message is always given."""

    pull_bytes_limit: int = 8 * 1024 * 1024
    """maxTransferBytesOnRequest: the most that a client's own maxMsgBytes may raise it to."""

    is_property_filter_enabled: bool = False
    """enablePropertyFilter: consumers may filter by properties, in SQL92; false, as in RocketMQ, refuses them."""

    is_reset_kept: bool = True
    """useServerSideResetOffset: this broker sends the readers of a group that was reset to their place (answer 21), and
    passes over what they commit until they are there; false, as RocketMQ before 5: members are told (220), if there
    are any."""

    is_reply_stored: bool = True
    """storeReplyMessageEnable: replies are kept in the cluster's reply topic besides being pushed to who asked."""

    is_trace_topic_made: bool = False
    """traceTopicEnable: this broker has the topic that clients send their traces to; RocketMQ's default is false."""

    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    """msgTraceTopicName: what that topic is called; clients with another name say so to theirs."""

    offsets_interval_ms: int = 5_000
    """flushConsumerOffsetInterval: how often consumer and delay offsets go to disk."""

    rejects_transactions: bool = False
    """rejectTransactionMessage: answer the first half of a transaction with code 16."""

    transaction_timeout_ms: int = 6_000
    """transactionTimeOut: how long a producer has to end a transaction before it is asked."""

    transaction_check_max: int = 15
    """transactionCheckMax: after so many questions a transaction is given up, to TRANS_CHECK_MAX_TIME_TOPIC."""

    transaction_check_interval_ms: int = 30_000
    """transactionCheckInterval: between two questions about one transaction."""

    region: str = "DefaultRegion"
    """regionId, told to clients in every reply to a send."""

    connections_max: int = 8_000
    """serverMaxConnections: of one port; below the file limit, since queues need descriptors, too."""

    connections_per_address_max: int = 4_000
    """serverMaxConnectionsPerAddress: so that one runaway host does not shut out the others."""

    idle_timeout_ms: int = 120_000
    """serverChannelMaxIdleTimeMills: a connection silent for so long is closed; clients beat every 30 s."""

    frame_bytes_max: int = 16 * 1024 * 1024
    """frameMaxLength: the largest request; RocketMQ sets it by a system property."""

    tls_mode: TlsMode = TlsMode.PERMISSIVE
    """tlsMode: disabled, permissive or enforcing. Permissive without a certificate speaks plain text only."""

    tls_certificate: str = ""
    """tlsServerCertPath: PEM, the whole chain."""

    tls_key: str = ""
    """tlsServerKeyPath: PEM, without a password."""

    tls_authority: str = ""
    """tlsServerTrustCertPath: who signs client certificates."""

    tls_needs_client_certificate: bool = False
    """tlsServerNeedClientAuth: refuse clients without a certificate; needs tlsMode=enforcing."""

    is_tls_enabled: bool = False
    """tlsEnable: speak TLS with name servers, as RocketMQ's system property tls.enable asks for."""

    tls_client_certificate: str = ""
    """tlsClientCertPath: PEM, the whole chain; shown to name servers that ask for one."""

    tls_client_key: str = ""
    """tlsClientKeyPath: PEM, without a password."""

    tls_client_authority: str = ""
    """tlsClientTrustCertPath: who signs the name servers' certificates; empty: whom the system trusts."""

    is_tls_server_verified: bool = True
    """tlsClientAuthServer: refuse name servers without a good certificate. RocketMQ's default is false."""

    is_tls_host_name_checked: bool = True
    """tlsClientCheckHostName: the certificate must be for the host in namesrvAddr; RocketMQ never looks."""

    sync_flush_timeout_ms: int = 5_000
    """syncFlushTimeout: with SYNC_FLUSH, a send that is not on the disk by then is answered 10: not promised."""

    status_page_path: str = ""
    """statusPagePath: the file that the broker publishes its state in; empty: `status` in storePathRootDir.

    Best on a tmpfs that whoever watches the broker mounts, too.
    """

    live_settings_path: str = ""
    """liveSettingsPath: a file of settings that may change while the broker runs, in the form of a broker.conf.

    Looked at every few seconds. It wins over broker.conf and over what an administrator has changed; a key that it
    names is changed there only. Empty: no such file.
    """

    is_tolerant: bool = False
    """ignoreUnknownSettings: leave out keys that this version does not know, and say so, instead of refusing to start.

    For pods: the operator that writes their settings may be newer than their image. A value that is wrong is refused.
    """

    shutdown_timeout_ms: int = 60_000
    """shutdownTimeout: a stop that has not flushed everything by then ends with code 1, and the next start recovers.

    Less than the time that whoever stops the broker gives it before a `kill -9`.
    """

    store: StoreSettings = field(default_factory=StoreSettings)
    """Sizes and intervals of the store."""

    ha: ReplicationSettings = field(default_factory=ReplicationSettings)
    """Who follows whom, and what an answer waits for."""

    access: AccessSettings = field(default_factory=AccessSettings)
    """Whose requests are answered."""

    given: Mapping[str, str] = field(default_factory=dict)
    """The keys that were set, as they were written."""

    @property
    def address(self) -> str:
        """What clients connect to."""
        return join_address(self.broker_ip, self.listen_port)

    @property
    def master_address(self) -> str:
        """What clients connect to while this broker is the master."""
        return join_address(self.master_ip or self.broker_ip, self.listen_port)

    @property
    def status_page(self) -> str:
        """The path of the status page."""
        return self.status_page_path or f"{self.store_path}/status"

    @property
    def control_path(self) -> str:
        """The path of the control socket."""
        return self.ha.control_path or f"{self.store_path}/control.sock"

    @property
    def ha_listen_port(self) -> int | None:
        if self.ha_port is None:
            return self.listen_port + 1 if self.listen_port else 0
        return self.ha_port if self.ha_port >= 0 else None

    @property
    def ha_address(self) -> str:
        """Where slaves are told to come."""
        return join_address(self.ha_ip or self.broker_ip, self.ha_listen_port or self.listen_port + 1)

    @property
    def fast_listen_port(self) -> int | None:
        if self.fast_port is None:
            return self.listen_port - 2 if self.listen_port > 2 else None
        return self.fast_port if self.fast_port >= 0 else None

    def listener(self, port: int) -> ListenerSettings:
        """The limits of one listening port."""
        return ListenerSettings(
            host=self.listen_host,
            port=port,
            connections_max=self.connections_max,
            connections_per_address_max=self.connections_per_address_max,
            idle_timeout_ms=self.idle_timeout_ms,
            wire=WireLimits(frame_bytes_max=self.frame_bytes_max),
            tls=self.listener_tls,
        )

    @property
    def listener_tls(self) -> TlsSettings | None:
        """What clients are shown. Raises ValueError when the keys contradict each other."""
        return listener_tls(
            self.tls_mode, self.tls_certificate, self.tls_key, self.tls_authority,
            requires_client_certificate=self.tls_needs_client_certificate,
        )  # fmt: skip

    @property
    def name_server_tls(self) -> ClientTlsSettings | None:
        """How name servers are spoken to; None is plain text. Raises ValueError as above."""
        if not self.is_tls_enabled:
            return None
        return ClientTlsSettings(
            authority_file=self.tls_client_authority or None,
            certificate_file=self.tls_client_certificate or None,
            key_file=self.tls_client_key or None,
            is_server_verified=self.is_tls_server_verified,
            is_host_name_checked=self.is_tls_host_name_checked,
        )

    def effective(self) -> dict[str, str]:
        """Every setting by the name that `broker.conf` has for it. Holds no secret."""
        values: dict[str, str] = {}
        for key, (name, _) in _KEYS.items():
            values[key] = _WRITTEN.get(key, _written)(_lookup(self, name))
        return values


def _lookup(settings: BrokerSettings, path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (TlsMode, StrEnum)):
        return value.value
    if isinstance(value, tuple):
        return ";".join(str(part) for part in value)
    return str("" if value is None else value)


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("write true or false")


def _whole(minimum: int, maximum: int = 1 << 62) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not minimum <= value <= maximum:
            raise ValueError(f"{minimum} to {maximum} is allowed")
        return value

    return read


def _flush_type(text: str) -> bool:
    if text.upper() in _FLUSH_TYPES:
        return text.upper() == _FLUSH_TYPES[True]
    raise ValueError(f"write {_FLUSH_TYPES[False]} or {_FLUSH_TYPES[True]}")


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def read(text: str) -> StrEnum:
        try:
            return kind(text.upper())
        except ValueError as error:
            raise ValueError(f"write one of {', '.join(kind)}") from error

    return read


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(sorted({int(part) for part in text.split(";") if part.strip()}))
    if any(number < 1 for number in numbers):
        raise ValueError("write brokerIds of slaves, 1 and above, separated by semicolons")
    return numbers


def _address(text: str) -> str:
    if text:
        split_address(text)
    return text


def _hours(text: str) -> tuple[int, ...]:
    hours = tuple(int(part) for part in text.split(";"))
    if not all(0 <= hour <= 23 for hour in hours):
        raise ValueError("write hours of the day, 0 to 23, separated by semicolons")
    return hours


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,127}", text):
        raise ValueError("a name has 1 to 127 of the characters A-Z a-z 0-9 _ . -")
    return text


def _topic(text: str) -> str:
    fault = topic_fault(text)
    if fault is not None:
        raise ValueError(fault.value)
    if text in NOT_SENDABLE_TOPICS:
        raise ValueError("only the broker itself writes to this topic")
    return text


def _addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in re.split(r"[;,]", text) if part.strip())
    for address in addresses:
        split_address(address)
    return addresses


def _ip_address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(bare_host(text)))
    except ValueError as error:
        raise ValueError("write an IP address: it goes into message ids, and clients connect to it") from error


def _tls_mode(text: str) -> TlsMode:
    try:
        return TlsMode(text.lower())
    except ValueError as error:
        raise ValueError(f"write one of {', '.join(mode.value for mode in TlsMode)}") from error


TOLERANT_KEY: Final = "ignoreUnknownSettings"
_FLUSH_TYPES: Final = ("ASYNC_FLUSH", "SYNC_FLUSH")
_PORT: Final = _whole(1, 65535)
_POSITIVE: Final = _whole(1)

_KEYS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "brokerClusterName": ("cluster_name", _name),
    "brokerName": ("broker_name", _name),
    "brokerId": ("broker_id", _whole(0)),
    "brokerIP1": ("broker_ip", _ip_address),
    "brokerMasterIP": ("master_ip", _ip_address),
    "externalAddressPath": ("outside_path", str),
    "memoryScope": ("memory_scope", str),
    "bindAddress": ("listen_host", bare_host),
    "listenPort": ("listen_port", _PORT),
    "fastListenPort": ("fast_port", _whole(-1, 65535)),
    "haListenPort": ("ha_port", _whole(-1, 65535)),
    "brokerIP2": ("ha_ip", _ip_address),
    "namesrvAddr": ("name_servers", _addresses),
    "storePathRootDir": ("store_path", str),
    "statusPagePath": ("status_page_path", str),
    "liveSettingsPath": ("live_settings_path", str),
    "ignoreUnknownSettings": ("is_tolerant", _boolean),
    "shutdownTimeout": ("shutdown_timeout_ms", _whole(100)),
    "registerNameServerPeriod": ("register_period_ms", _whole(10_000, 60_000)),
    "autoCreateTopicEnable": ("auto_create_topics", _boolean),
    "autoCreateSubscriptionGroup": ("auto_create_groups", _boolean),
    "defaultTopicQueueNums": ("default_topic_queues", _whole(1, 1024)),
    "maxMessageSize": ("message_bytes_max", _whole(1, 15 * 1024 * 1024)),
    "maxBatchMessages": ("batch_messages_max", _POSITIVE),
    "sendThreadPoolQueueCapacity": ("send_queue_capacity", _POSITIVE),
    "waitTimeMillsInSendQueue": ("wait_in_send_queue_ms", _POSITIVE),
    "osPageCacheBusyTimeOutMills": ("page_cache_busy_ms", _POSITIVE),
    "pullThreadPoolQueueCapacity": ("held_pulls_max", _POSITIVE),
    "maxHeldPullsPerConnection": ("held_pulls_per_connection_max", _POSITIVE),
    "maxPullBatchSize": ("pull_messages_max", _whole(1, 10_000)),
    "maxTransferBytesOnMessageInMemory": ("pull_bytes_max", _whole(1, 15 * 1024 * 1024)),
    "maxTransferBytesOnRequest": ("pull_bytes_limit", _whole(1, 15 * 1024 * 1024)),
    "enablePropertyFilter": ("is_property_filter_enabled", _boolean),
    "useServerSideResetOffset": ("is_reset_kept", _boolean),
    "storeReplyMessageEnable": ("is_reply_stored", _boolean),
    "traceTopicEnable": ("is_trace_topic_made", _boolean),
    "msgTraceTopicName": ("trace_topic", _topic),
    "flushConsumerOffsetInterval": ("offsets_interval_ms", _whole(100)),
    "regionId": ("region", _name),
    "serverMaxConnections": ("connections_max", _POSITIVE),
    "serverMaxConnectionsPerAddress": ("connections_per_address_max", _POSITIVE),
    "serverChannelMaxIdleTimeMills": ("idle_timeout_ms", _whole(1000)),
    "frameMaxLength": ("frame_bytes_max", _whole(1024, 16 * 1024 * 1024)),
    "tlsMode": ("tls_mode", _tls_mode),
    "tlsServerCertPath": ("tls_certificate", str),
    "tlsServerKeyPath": ("tls_key", str),
    "tlsServerTrustCertPath": ("tls_authority", str),
    "tlsServerNeedClientAuth": ("tls_needs_client_certificate", _boolean),
    "tlsEnable": ("is_tls_enabled", _boolean),
    "tlsClientCertPath": ("tls_client_certificate", str),
    "tlsClientKeyPath": ("tls_client_key", str),
    "tlsClientTrustCertPath": ("tls_client_authority", str),
    "tlsClientAuthServer": ("is_tls_server_verified", _boolean),
    "tlsClientCheckHostName": ("is_tls_host_name_checked", _boolean),
    "mappedFileSizeCommitLog": ("store.mapped_file_size_commit_log", _whole(4096)),
    "mappedFileSizeConsumeQueue": ("store.mapped_file_size_consume_queue", _whole(20)),
    "messageIndexEnable": ("store.is_index_enabled", _boolean),
    "maxHashSlotNum": ("store.max_hash_slot_num", _POSITIVE),
    "maxIndexNum": ("store.max_index_num", _whole(2)),
    "rejectTransactionMessage": ("rejects_transactions", _boolean),
    "transactionTimeOut": ("transaction_timeout_ms", _POSITIVE),
    "transactionCheckMax": ("transaction_check_max", _POSITIVE),
    "transactionCheckInterval": ("transaction_check_interval_ms", _POSITIVE),
    "messageDelayLevel": ("store.delay_levels_ms", parse_delay_levels),
    "flushDiskType": ("store.flush.is_sync", _flush_type),
    "flushCommitLogTimed": ("store.flush.is_timed", _boolean),
    "syncFlushTimeout": ("sync_flush_timeout_ms", _POSITIVE),
    "transientStorePoolEnable": ("store.pool.is_enabled", _boolean),
    "transientStorePoolSize": ("store.pool.buffers_count", _whole(1, 1024)),
    "transientStorePoolPath": ("store.pool.path", str),
    "commitIntervalCommitLog": ("store.pool.commit_interval_ms", _POSITIVE),
    "commitCommitLogLeastPages": ("store.pool.commit_pages_min", _whole(0)),
    "commitCommitLogThoroughInterval": ("store.pool.commit_thorough_interval_ms", _POSITIVE),
    "fileReservedTime": ("store.retention.reserved_hours", _whole(1, 24 * 3660)),
    "deleteWhen": ("store.retention.delete_hours", _hours),
    "diskMaxUsedSpaceRatio": ("store.retention.used_percent_max", _whole(10, 95)),
    "diskSpaceCleanForciblyRatio": ("store.retention.forced_percent", _whole(10, 99)),
    "diskSpaceWarningLevelRatio": ("store.retention.full_percent", _whole(10, 99)),
    "deleteUnconsumed": ("store.retention.is_unconsumed_deleted", _boolean),
    "cleanResourceInterval": ("store.retention.interval_ms", _whole(100)),
    "flushIntervalCommitLog": ("store.flush.flush_interval_ms", _POSITIVE),
    "flushCommitLogLeastPages": ("store.flush.flush_pages_min", _whole(0)),
    "flushCommitLogThoroughInterval": ("store.flush.flush_thorough_interval_ms", _POSITIVE),
    "brokerRole": ("ha.role", _one_of(BrokerRole)),
    "roleAtStart": ("ha.role_at_start", _one_of(RoleAtStart)),
    "inSyncReplicas": ("ha.in_sync_replicas", _whole(1, 32)),
    "slaveTimeout": ("ha.slave_timeout_ms", _POSITIVE),
    "haMaxGapNotInSync": ("ha.gap_bytes_max", _POSITIVE),
    "haAckLevel": ("ha.ack_level", _one_of(AckLevel)),
    "haDegrade": ("ha.degrade", _one_of(Degrade)),
    "haMasterAddress": ("ha.master_address", _address),
    "haClassicPeers": ("ha.is_classic_allowed", _boolean),
    "haMasterIsClassic": ("ha.is_master_classic", _boolean),
    "haMasterBrokerAddress": ("ha.classic_broker_address", _address),
    "haElectable": ("ha.electable", _numbers),
    "haGrant": ("ha.grant_ms", _whole(1_000, 60_000)),
    "haSecretPath": ("ha.secret_path", str),
    "haTlsCertPath": ("ha.tls_certificate", str),
    "haTlsKeyPath": ("ha.tls_key", str),
    "haTlsTrustCertPath": ("ha.tls_authority", str),
    "slaveReadEnable": ("ha.is_slave_read_suggested", _boolean),
    "accessMessageInMemoryMaxRatio": ("ha.memory_percent_max", _whole(1, 95)),
    "controlSocketPath": ("ha.control_path", str),
    "aclEnable": ("access.is_enabled", _boolean),
    "aclFile": ("access.file", str),
    "aclMode": ("access.mode", _one_of(AccessMode)),
    "aclTimeWindow": ("access.window_ms", _whole(1_000, 3_600_000)),
    "aclCredentialsPath": ("access.credentials", str),
}

_WRITTEN: Final[dict[str, Callable[[Any], str]]] = {
    "flushDiskType": _FLUSH_TYPES.__getitem__,
    "messageDelayLevel": lambda levels: " ".join(f"{ms // 1000}s" for ms in levels),
}
"""How the value of a key is written where it is not obvious from its type."""

_FIXED: Final[dict[str, tuple[str, str]]] = {
    "timerWheelEnable": ("false", "arbitrary delays would not be kept; delay levels work"),
    "longPollingEnable": ("true", "pulls are always held"),
    "brokerFastFailureEnable": ("true", "flow control is always on"),
}
"""RocketMQ's switches that have one position here, and the promise at stake in the other."""

_LATER: Final[dict[str, str]] = {
    "storePathCommitLog": "the log lies in storePathRootDir/commitlog",
}
"""Keys of RocketMQ that would be believed and not obeyed; said apart from those that nobody knows."""


def parse_properties_file(text: str) -> dict[str, str]:
    """`key=value` lines; `#` and `!` begin comments."""
    pairs: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise SettingsError(f"line {number}: {line[:80]!r} is not key=value")
        if key.strip() in pairs:
            raise SettingsError(f"line {number}: {key.strip()} is set twice")
        pairs[key.strip()] = value.strip()
    return pairs


def broker_settings(pairs: Mapping[str, str]) -> BrokerSettings:
    """The settings that these keys ask for. Raises SettingsError naming what is wrong."""
    values: dict[str, Any] = {}
    for key, text in pairs.items():
        if key in _FIXED:
            _check_fixed(key, text)
            continue
        if key in _LATER:
            raise SettingsError(f"{key}={text} has no effect in this broker ({_LATER[key]}); remove it")
        if key not in _KEYS:
            if tolerates(pairs):
                continue
            raise SettingsError(f"{key} is not a setting of this broker; `gantry broker --settings` lists them")
        name, read = _KEYS[key]
        try:
            values[name] = read(text)
        except ValueError as error:
            reason = "write a whole number" if str(error).startswith("invalid literal") else error
            raise SettingsError(f"{key}={text}: {reason}") from error
    settings = _assemble(values, dict(pairs))
    _check_together(settings)
    return settings


def tolerates(pairs: Mapping[str, str]) -> bool:
    """Whether keys are left out that this version does not know."""
    return pairs.get(TOLERANT_KEY, "").lower() == "true"


def unknown_keys(pairs: Mapping[str, str]) -> list[str]:
    """Keys that this version does not know."""
    return sorted(pairs.keys() - _KEYS.keys() - _FIXED.keys() - _LATER.keys())


def _check_fixed(key: str, text: str) -> None:
    only, stake = _FIXED[key]
    if text.strip().lower() != only.lower():
        raise SettingsError(f"{key}={text} is not supported yet ({stake}); remove it or write {key}={only}")


def _assemble(values: dict[str, Any], given: dict[str, str]) -> BrokerSettings:
    def part(prefix: str) -> dict[str, Any]:
        """The values of one dataclass, by its own field names."""
        return {
            name.removeprefix(prefix): value
            for name, value in values.items()
            if name.startswith(prefix) and "." not in name.removeprefix(prefix)
        }

    top = {name: value for name, value in values.items() if "." not in name}
    try:
        store = StoreSettings(
            **part("store."),
            flush=FlushSettings(**part("store.flush.")),
            pool=PoolSettings(**part("store.pool.")),
            retention=RetentionSettings(**part("store.retention.")),
        )
        ha, access = ReplicationSettings(**part("ha.")), AccessSettings(**part("access."))
        return BrokerSettings(**top, store=store, ha=ha, access=access, given=given)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _check_together(settings: BrokerSettings) -> None:
    _check_roles(settings)
    _check_access(settings)
    if settings.fast_listen_port == settings.listen_port:
        raise SettingsError(f"listenPort and fastListenPort are both {settings.listen_port}; they must differ")
    if settings.message_bytes_max + 65536 > settings.store.mapped_file_size_commit_log:
        raise SettingsError(
            f"maxMessageSize={settings.message_bytes_max} does not fit mappedFileSizeCommitLog="
            f"{settings.store.mapped_file_size_commit_log}: a message is never split over files"
        )
    if settings.message_bytes_max + 65536 > settings.frame_bytes_max:
        raise SettingsError(
            f"maxMessageSize={settings.message_bytes_max} does not fit frameMaxLength={settings.frame_bytes_max}: "
            "such a message could not be sent"
        )
    pool = settings.store.pool
    if pool.path and not pool.is_enabled:
        raise SettingsError("transientStorePoolPath names buffers, but transientStorePoolEnable is false: set it, too")
    retention = settings.store.retention
    if not retention.used_percent_max <= retention.forced_percent <= retention.full_percent:
        raise SettingsError(
            f"diskMaxUsedSpaceRatio={retention.used_percent_max}, diskSpaceCleanForciblyRatio="
            f"{retention.forced_percent} and diskSpaceWarningLevelRatio={retention.full_percent} must not fall: "
            "sends are refused only after deleting did not help"
        )
    _check_tls(settings)


def _check_tls(settings: BrokerSettings) -> None:
    if bool(settings.tls_client_certificate) != bool(settings.tls_client_key):
        raise SettingsError("tlsClientCertPath and tlsClientKeyPath go together: set both or neither")
    if settings.tls_client_authority and not (settings.is_tls_enabled and settings.is_tls_server_verified):
        raise SettingsError(
            "tlsClientTrustCertPath needs tlsEnable=true and tlsClientAuthServer=true: otherwise nobody is checked"
        )
    try:
        settings.listener(settings.listen_port)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _check_roles(settings: BrokerSettings) -> None:
    ha, number = settings.ha, settings.broker_id
    role, start = f"brokerRole={ha.role}", f"roleAtStart={ha.role_at_start}"
    if ha.role_at_start is RoleAtStart.CONFIGURED:
        if ha.role is BrokerRole.SLAVE and number == 0:
            raise SettingsError(f"{role} and brokerId=0: 0 is the master's; give each slave a number of its own")
        if ha.role is not BrokerRole.SLAVE and number != 0:
            raise SettingsError(f"{role} and brokerId={number}: a master that stays one has brokerId=0")
    else:
        if number == 0:
            raise SettingsError(f"{start} and brokerId=0: it may be a slave, and needs a number for that")
        if ha.role is BrokerRole.SLAVE:
            raise SettingsError(
                f"{start} and {role}: write the kind of master that it becomes, ASYNC_MASTER or SYNC_MASTER"
            )
    if ha.role is BrokerRole.SYNC_MASTER and ha.replicas < 2:
        raise SettingsError(f"{role} and inSyncReplicas=1 contradict each other: write 2 or more, or ASYNC_MASTER")
    if ha.role is BrokerRole.ASYNC_MASTER and ha.replicas > 1:
        raise SettingsError(f"{role} and inSyncReplicas={ha.replicas} contradict each other: write SYNC_MASTER")
    if ha.electable and len(ha.electable) < ha.acks_needed:
        raise SettingsError(
            f"haElectable names {len(ha.electable)} slaves, and inSyncReplicas={ha.replicas} needs {ha.acks_needed}"
        )
    if ha.role is not BrokerRole.ASYNC_MASTER and settings.ha_listen_port is None and ha.acks_needed:
        raise SettingsError(f"{role} and haListenPort=-1: nobody could follow")
    if ha.is_classic_allowed and (ha.secret_path or ha.tls_certificate):
        key = "haSecretPath" if ha.secret_path else "haTlsCertPath"
        raise SettingsError(f"haClassicPeers=true and {key}: slaves of RocketMQ's show nothing, and so nobody need")
    if ha.is_master_classic and ha.role is not BrokerRole.SLAVE and ha.role_at_start is RoleAtStart.CONFIGURED:
        raise SettingsError(f"haMasterIsClassic=true and {role}: it says whom a slave follows")
    if ha.classic_broker_address and not ha.is_master_classic:
        raise SettingsError("haMasterBrokerAddress is asked only with haMasterIsClassic=true: set both or neither")
    if bool(ha.tls_certificate) != bool(ha.tls_key):
        raise SettingsError("haTlsCertPath and haTlsKeyPath go together: set both or neither")


def _check_access(settings: BrokerSettings) -> None:
    """The replication port gives away the whole log: with access control on it must ask who comes, too."""
    fault = settings.access.fault()
    if fault is not None:
        raise SettingsError(fault)
    ha = settings.ha
    is_asking = bool(ha.secret_path or (ha.tls_certificate and ha.tls_authority))
    is_open = not is_asking and not ha.is_classic_allowed
    if settings.access.is_enabled and settings.ha_listen_port is not None and is_open:
        raise SettingsError(
            f"aclEnable=true and haListenPort={settings.ha_listen_port} without haSecretPath: whoever reaches it "
            "could copy the log; set haSecretPath, or haListenPort=-1"
        )


def describe_settings() -> list[tuple[str, str, str]]:
    """(key, default, explanation) of every setting, for `--settings` and the documentation."""
    texts = {
        **_field_texts(BrokerSettings),
        **_field_texts(StoreSettings, "store."),
        **_field_texts(FlushSettings, "store.flush."),
        **_field_texts(PoolSettings, "store.pool."),
        **_field_texts(RetentionSettings, "store.retention."),
        **_field_texts(ReplicationSettings, "ha."),
        **_field_texts(AccessSettings, "access."),
    }
    defaults = BrokerSettings(broker_name="the host's name")
    return [
        (key, _WRITTEN.get(key, _written)(_lookup(defaults, name)), re.sub(rf"^{key}\W*", "", texts.get(name, "")))
        for key, (name, _) in _KEYS.items()
    ]


def _field_texts(kind: type, prefix: str = "") -> dict[str, str]:
    """The docstrings under the fields of a settings class, read from its source."""

    source = inspect.getsource(kind)
    texts: dict[str, str] = {}
    for item in fields(kind):
        match = re.search(
            rf'^    {item.name}: [^\n]*(?:\n[^\n"]*)??\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL
        )
        if match is not None:
            texts[prefix + item.name] = " ".join(match[1].split())
    return texts
