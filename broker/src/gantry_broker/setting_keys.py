"""The keys of a `broker.conf`: RocketMQ's and a few of ours, with their types and formats.

    text -> pairs -> `BrokerSettings` -> pairs

A key that asks for something this broker does not support stops the start with a remedy: a broker must never run with
weaker guarantees than its file asks for. So does an unknown key, unless `ignoreUnknownSettings` is true. Keys that
contradict each other are refused by `settings_consistency`.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from gantry_access import AccessMode, AccessSettings
from gantry_access.redaction import REDACTED, is_secret_name
from gantry_access.settings import parse_initial_user
from gantry_broker import setting_kinds as broker_kinds
from gantry_broker.archive_settings import ArchiveSettings
from gantry_broker.ha.settings import AckLevel, BrokerRole, Degrade, ReplicationSettings, RoleAtStart
from gantry_broker.pop_settings import PopSettings
from gantry_broker.settings import BrokerSettings
from gantry_broker.settings_consistency import check_consistency
from gantry_broker.store.settings import (
    FlushSettings,
    PoolSettings,
    RetentionSettings,
    StoreSettings,
    parse_delay_levels,
)
from gantry_remoting import bare_host
from gantry_remoting import setting_kinds as kinds
from gantry_remoting.file_access import FileAccess
from gantry_remoting.setting_kinds import SettingsError
from gantry_wire.properties_text import read_properties

_KEYS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "brokerClusterName": ("cluster_name", broker_kinds.name),
    "brokerName": ("broker_name", broker_kinds.name),
    "brokerId": ("broker_id", kinds.whole_number(0)),
    "brokerIP1": ("broker_ip", broker_kinds.ip_address),
    "brokerMasterIP": ("master_ip", broker_kinds.ip_address),
    "externalAddressPath": ("external_address_path", str),
    "memoryScope": ("memory_scope", str),
    "bindAddress": ("listen_host", bare_host),
    "listenPort": ("listen_port", kinds.PORT),
    "fastListenPort": ("fast_port", kinds.whole_number(-1, 65535)),
    "haListenPort": ("ha_port", kinds.whole_number(-1, 65535)),
    "brokerIP2": ("ha_ip", broker_kinds.ip_address),
    "namesrvAddr": ("name_servers", broker_kinds.addresses),
    "storePathRootDir": ("store_path", str),
    "fileAccess": ("file_access", kinds.one_of(FileAccess)),
    "statusPagePath": ("status_page_path", str),
    "liveSettingsPath": ("live_settings_path", str),
    "ignoreUnknownSettings": ("ignores_unknown_settings", kinds.boolean),
    "shutdownTimeout": ("shutdown_timeout_ms", kinds.whole_number(100)),
    "registerNameServerPeriod": ("register_period_ms", kinds.whole_number(10_000, 60_000)),
    "autoCreateTopicEnable": ("auto_create_topics", kinds.boolean),
    "autoCreateSubscriptionGroup": ("auto_create_groups", kinds.boolean),
    "defaultTopicQueueNums": ("default_topic_queues", kinds.whole_number(1, 1024)),
    "maxMessageSize": ("message_bytes_max", kinds.whole_number(1, 15 * 1024 * 1024)),
    "maxBatchMessages": ("batch_messages_max", kinds.POSITIVE),
    "sendThreadPoolQueueCapacity": ("send_queue_capacity", kinds.POSITIVE),
    "waitTimeMillsInSendQueue": ("wait_in_send_queue_ms", kinds.POSITIVE),
    "osPageCacheBusyTimeOutMills": ("page_cache_busy_ms", kinds.POSITIVE),
    "pullThreadPoolQueueCapacity": ("held_pulls_max", kinds.POSITIVE),
    "maxHeldPullsPerConnection": ("held_pulls_per_connection_max", kinds.POSITIVE),
    "maxPullBatchSize": ("pull_messages_max", kinds.whole_number(1, 10_000)),
    "maxTransferBytesOnMessageInMemory": ("pull_bytes_max", kinds.whole_number(1, 15 * 1024 * 1024)),
    "maxTransferBytesOnRequest": ("pull_bytes_limit", kinds.whole_number(1, 15 * 1024 * 1024)),
    "coldDataFlowControlEnable": ("is_cold_read_limited", kinds.boolean),
    "cgColdReadThreshold": ("group_cold_bytes_max", kinds.POSITIVE),
    "globalColdReadThreshold": ("cold_bytes_max", kinds.POSITIVE),
    "enablePropertyFilter": ("is_property_filter_enabled", kinds.boolean),
    "useServerSideResetOffset": ("is_reset_kept", kinds.boolean),
    "storeReplyMessageEnable": ("is_reply_stored", kinds.boolean),
    "traceTopicEnable": ("is_trace_topic_made", kinds.boolean),
    "msgTraceTopicName": ("trace_topic", broker_kinds.topic),
    "flushConsumerOffsetInterval": ("offsets_interval_ms", kinds.whole_number(100)),
    "regionId": ("region", broker_kinds.name),
    "serverMaxConnections": ("connections_max", kinds.POSITIVE),
    "serverMaxConnectionsPerAddress": ("connections_per_address_max", kinds.POSITIVE),
    "serverChannelMaxIdleTimeMills": ("idle_timeout_ms", kinds.whole_number(1000)),
    "frameMaxLength": ("frame_bytes_max", kinds.whole_number(1024, 16 * 1024 * 1024)),
    "maxUnfinishedFrameBytes": ("unfinished_frame_bytes_max", kinds.POSITIVE),
    "maxUnauthenticatedFrameBytes": ("unauthenticated_frame_bytes_max", kinds.POSITIVE),
    "maxUnreadReplyBytes": ("unread_reply_bytes_max", kinds.POSITIVE),
    "maxReadBytesPerTurn": ("turn_read_bytes_max", kinds.TURN_READ_BYTES),
    "maxDeferredAnswers": ("deferred_answers_max", kinds.POSITIVE),
    "maxDeferredAnswersPerConnection": ("deferred_answers_per_connection_max", kinds.POSITIVE),
    "tlsMode": ("tls_mode", kinds.tls_mode),
    "tlsServerCertPath": ("tls_certificate", str),
    "tlsServerKeyPath": ("tls_key", str),
    "tlsServerTrustCertPath": ("tls_authority", str),
    "tlsServerNeedClientAuth": ("tls_needs_client_certificate", kinds.boolean),
    "tlsEnable": ("is_tls_enabled", kinds.boolean),
    "tlsClientCertPath": ("tls_client_certificate", str),
    "tlsClientKeyPath": ("tls_client_key", str),
    "tlsClientTrustCertPath": ("tls_client_authority", str),
    "tlsClientAuthServer": ("is_tls_server_verified", kinds.boolean),
    "tlsClientCheckHostName": ("is_tls_host_name_checked", kinds.boolean),
    "mappedFileSizeCommitLog": ("store.mapped_file_size_commit_log", kinds.whole_number(4096)),
    "mappedFileSizeConsumeQueue": ("store.mapped_file_size_consume_queue", kinds.whole_number(20)),
    "messageIndexEnable": ("store.is_index_enabled", kinds.boolean),
    "maxHashSlotNum": ("store.max_hash_slot_num", kinds.POSITIVE),
    "maxIndexNum": ("store.max_index_num", kinds.whole_number(2)),
    "enableRetryTopicV2": ("pop.is_retry_topic_v2", kinds.boolean),
    "popInflightMessageThreshold": ("pop.inflight_max", kinds.POSITIVE),
    "maxPopInflightMessages": ("pop.inflight_total_max", kinds.POSITIVE),
    "popFromRetryProbability": ("pop.retry_first_percent", kinds.whole_number(0, 100)),
    "popFromRetryProbabilityForPriority": ("pop.priority_retry_first_percent", kinds.whole_number(0, 100)),
    "priorityOrderAsc": ("pop.is_high_number_first", kinds.boolean),
    "archiveSocketPath": ("archive.socket_path", str),
    "archiveAddress": ("archive.address", broker_kinds.address),
    "archiveSecretPath": ("archive.secret_path", str),
    "archiveTlsTrustCertPath": ("archive.tls_authority", str),
    "archiveReadsMax": ("archive.reads_max", kinds.POSITIVE),
    "archiveWaitingReadsMax": ("archive.waiting_max", kinds.POSITIVE),
    "archiveBytesPerSecond": ("archive.bytes_per_second", kinds.whole_number(0)),
    "archiveReadTimeout": ("archive.timeout_ms", kinds.whole_number(100, 60_000)),
    "archiveReadsOnSlave": ("archive.is_slave_preferred", kinds.boolean),
    "rejectTransactionMessage": ("rejects_transactions", kinds.boolean),
    "transactionTimeOut": ("transaction_timeout_ms", kinds.POSITIVE),
    "transactionCheckMax": ("transaction_check_max", kinds.POSITIVE),
    "transactionCheckInterval": ("transaction_check_interval_ms", kinds.POSITIVE),
    "timerWheelEnable": ("is_timer_enabled", kinds.boolean),
    "timerPrecisionMs": ("timer_precision_ms", kinds.whole_number(1, 1000)),
    "timerMaxDelaySec": ("timer_delay_max_s", kinds.whole_number(1, 366 * 24 * 3600)),
    "recallMessageEnable": ("is_recall_enabled", kinds.boolean),
    "messageDelayLevel": ("store.delay_levels_ms", parse_delay_levels),
    "scrubBytesPerSecond": ("store.scrub_bytes_per_second", kinds.whole_number(0)),
    "healWait": ("store.heal_wait_ms", kinds.whole_number(0)),
    "flushDiskType": ("store.flush.is_sync", broker_kinds.flush_type),
    "flushCommitLogTimed": ("store.flush.is_timed", kinds.boolean),
    "syncFlushTimeout": ("sync_flush_timeout_ms", kinds.POSITIVE),
    "transientStorePoolEnable": ("store.pool.is_enabled", kinds.boolean),
    "transientStorePoolSize": ("store.pool.buffers_count", kinds.whole_number(1, 1024)),
    "transientStorePoolPath": ("store.pool.path", str),
    "commitIntervalCommitLog": ("store.pool.commit_interval_ms", kinds.POSITIVE),
    "commitCommitLogLeastPages": ("store.pool.commit_pages_min", kinds.whole_number(0)),
    "commitCommitLogThoroughInterval": ("store.pool.commit_thorough_interval_ms", kinds.POSITIVE),
    "fileReservedTime": ("store.retention.reserved_hours", kinds.whole_number(1, 24 * 3660)),
    "deleteWhen": ("store.retention.delete_hours", broker_kinds.hours),
    "diskMaxUsedSpaceRatio": ("store.retention.used_percent_max", kinds.whole_number(10, 95)),
    "diskSpaceCleanForciblyRatio": ("store.retention.forced_percent", kinds.whole_number(10, 99)),
    "diskSpaceWarningLevelRatio": ("store.retention.full_percent", kinds.whole_number(10, 99)),
    "deleteUnconsumed": ("store.retention.is_unconsumed_deleted", kinds.boolean),
    "cleanResourceInterval": ("store.retention.interval_ms", kinds.whole_number(100)),
    "flushIntervalCommitLog": ("store.flush.flush_interval_ms", kinds.POSITIVE),
    "flushCommitLogLeastPages": ("store.flush.flush_pages_min", kinds.whole_number(0)),
    "flushCommitLogThoroughInterval": ("store.flush.flush_thorough_interval_ms", kinds.POSITIVE),
    "brokerRole": ("ha.role", kinds.one_of(BrokerRole)),
    "roleAtStart": ("ha.role_at_start", kinds.one_of(RoleAtStart)),
    "inSyncReplicas": ("ha.in_sync_replicas", kinds.whole_number(1, 32)),
    "slaveTimeout": ("ha.slave_timeout_ms", kinds.POSITIVE),
    "haMaxGapNotInSync": ("ha.gap_bytes_max", kinds.POSITIVE),
    "haAckLevel": ("ha.ack_level", kinds.one_of(AckLevel)),
    "haDegrade": ("ha.degrade", kinds.one_of(Degrade)),
    "haMasterAddress": ("ha.master_address", broker_kinds.address),
    "haClassicPeers": ("ha.is_classic_allowed", kinds.boolean),
    "haMasterIsClassic": ("ha.is_master_classic", kinds.boolean),
    "haMasterBrokerAddress": ("ha.classic_broker_address", broker_kinds.address),
    "haElectable": ("ha.electable", broker_kinds.slave_ids),
    "haGrant": ("ha.grant_ms", kinds.whole_number(1_000, 60_000)),
    "haSecretPath": ("ha.secret_path", str),
    "haTlsCertPath": ("ha.tls_certificate", str),
    "haTlsKeyPath": ("ha.tls_key", str),
    "haTlsTrustCertPath": ("ha.tls_authority", str),
    "slaveReadEnable": ("ha.is_slave_read_suggested", kinds.boolean),
    "accessMessageInMemoryMaxRatio": ("ha.memory_percent_max", kinds.whole_number(1, 95)),
    "controlSocketPath": ("ha.control_path", str),
    "aclEnable": ("access.is_enabled", kinds.boolean),
    "aclFile": ("access.file", str),
    "aclMode": ("access.mode", kinds.one_of(AccessMode)),
    "aclTimeWindow": ("access.window_ms", kinds.ACL_TIME_WINDOW_MS),
    "aclCredentialsPath": ("access.credentials", str),
    "authenticationEnabled": ("access.is_stored", kinds.boolean),
    "authorizationEnabled": ("access.is_authorizing", kinds.boolean),
    "initAuthenticationUser": ("access.initial_user", parse_initial_user),
}

_SECRETS: Final = frozenset({"initAuthenticationUser"})
"""Keys whose values contain a secret, and are never shown."""

_FORMATTERS: Final[dict[str, Callable[[Any], str]]] = {
    "flushDiskType": broker_kinds.FLUSH_TYPES.__getitem__,
    "messageDelayLevel": lambda levels: " ".join(f"{ms // 1000}s" for ms in levels),
}
"""How values are formatted whose format does not follow from their type."""

_AUTH: Final = ("authentication", "authorization")
_ONE_CLASS: Final = "this broker has one implementation"

_FIXED: Final[dict[str, tuple[str, str]]] = {
    "longPollingEnable": ("true", "pulls are always held"),
    "brokerFastFailureEnable": ("true", "flow control is always on"),
    **{
        f"{part}Provider": (f"org.apache.rocketmq.auth.{part}.provider.Default{part.capitalize()}Provider", _ONE_CLASS)
        for part in _AUTH
    },
    **{
        f"{part}MetadataProvider": (
            f"org.apache.rocketmq.auth.{part}.provider.Local{part.capitalize()}MetadataProvider",
            _ONE_CLASS,
        )
        for part in _AUTH
    },
    **{
        f"{part}Strategy": (
            f"org.apache.rocketmq.auth.{part}.strategy.Stateless{part.capitalize()}Strategy",
            "every request is checked, so that a change of users and policies takes effect at once",
        )
        for part in _AUTH
    },
    "authenticationWhitelist": ("", "every request needs a user"),
    "authorizationWhitelist": ("", "every request needs a permission"),
    "migrateAuthFromV1Enabled": ("false", "set aclEnable=true and aclFile to use plain_acl.yml"),
}
"""RocketMQ's switches that have one position here, with the reason."""

_WITHOUT_EFFECT: Final[dict[str, str]] = {
    "storePathCommitLog": "the log lies in storePathRootDir/commitlog",
    "innerClientAuthenticationCredentials": "write accessKey and secretKey into a file, and set aclCredentialsPath",
}
"""Keys of RocketMQ that have no effect here, with the reason. Their error differs from that of unknown keys."""


def parse_properties_file(text: str) -> dict[str, str]:
    """Parse Java's properties text, in which no key may occur twice.

    Errors never quote an invalid line, which may contain a secret.
    """
    try:
        return read_properties(text, is_duplicate_allowed=False)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def broker_settings(pairs: Mapping[str, str]) -> BrokerSettings:
    """Return the settings that these keys define. Raises SettingsError that names the problem."""
    values: dict[str, Any] = {}
    for key, text in pairs.items():
        if key in _FIXED:
            _check_fixed(key, text)
            continue
        if key in _WITHOUT_EFFECT:
            shown = key if is_secret_name(key) else f"{key}={text}"
            raise SettingsError(f"{shown} has no effect in this broker ({_WITHOUT_EFFECT[key]}); remove it")
        if key not in _KEYS:
            if kinds.ignores_unknown(pairs):
                continue
            raise SettingsError(f"{key} is not a setting of this broker; `gantry broker --settings` lists them")
        name, read = _KEYS[key]
        values[name] = _parse_secret(key, text) if key in _SECRETS else kinds.parse_setting(key, text, read)
    settings = _assemble(values, dict(pairs))
    check_consistency(settings)
    return settings


def without_secrets(pairs: Mapping[str, str]) -> dict[str, str]:
    """Return the entries for a log, without the values of those that contain a secret."""
    return {key: REDACTED if key in _SECRETS or is_secret_name(key) else text for key, text in pairs.items()}


def unknown_keys(pairs: Mapping[str, str]) -> list[str]:
    """Return the keys that this version does not know, in order."""
    return sorted(pairs.keys() - _KEYS.keys() - _FIXED.keys() - _WITHOUT_EFFECT.keys())


def _parse_secret(key: str, text: str) -> object:
    """Return the value of a key in `_SECRETS`. Raises SettingsError without its text."""
    try:
        return _KEYS[key][1](text)
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from error


def _check_fixed(key: str, text: str) -> None:
    only, reason = _FIXED[key]
    if text.strip().lower() != only.lower():
        raise SettingsError(f"{key}={text} is not supported ({reason}); remove it or set {key}={only}")


def _assemble(values: dict[str, Any], given: dict[str, str]) -> BrokerSettings:
    def part(prefix: str) -> dict[str, Any]:
        """Return the values of one dataclass, by its own field names."""
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
        pop, archive = PopSettings(**part("pop.")), ArchiveSettings(**part("archive."))
        return BrokerSettings(**top, store=store, pop=pop, archive=archive, ha=ha, access=access, given=given)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def effective_settings(settings: BrokerSettings) -> dict[str, str]:
    """Return every setting by its key in `broker.conf`. Contains no secret."""
    return {key: _FORMATTERS.get(key, kinds.format_value)(_lookup(settings, name)) for key, (name, _) in _KEYS.items()}


def _lookup(settings: BrokerSettings, path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def describe_settings() -> list[tuple[str, str, str]]:
    """Return (key, default, explanation) of every setting, for `--settings` and the documentation."""
    texts = {
        **_field_texts(BrokerSettings),
        **_field_texts(StoreSettings, "store."),
        **_field_texts(FlushSettings, "store.flush."),
        **_field_texts(PoolSettings, "store.pool."),
        **_field_texts(RetentionSettings, "store.retention."),
        **_field_texts(PopSettings, "pop."),
        **_field_texts(ArchiveSettings, "archive."),
        **_field_texts(ReplicationSettings, "ha."),
        **_field_texts(AccessSettings, "access."),
    }
    defaults = BrokerSettings(broker_name="the host's name")
    return [
        (
            key,
            _FORMATTERS.get(key, kinds.format_value)(_lookup(defaults, name)),
            re.sub(rf"^{key}\W*", "", texts.get(name, "")),
        )
        for key, (name, _) in _KEYS.items()
    ]


def _field_texts(kind: type, prefix: str = "") -> dict[str, str]:
    """Return the docstrings under the fields of a settings class, read from its source."""

    source = inspect.getsource(kind)
    texts: dict[str, str] = {}
    for item in fields(kind):
        match = re.search(
            rf'^    {item.name}: [^\n]*(?:\n[^\n"]*)??\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL
        )
        if match is not None:
            texts[prefix + item.name] = " ".join(match[1].split())
    return texts
