"""Checks that settings are consistent: each may be valid by itself, and two of them may contradict each other.

A contradiction stops the start and names both keys, since the author of either relies on it.
"""

from __future__ import annotations

from typing import Final

from gantry_broker.ha.settings import BrokerRole, RoleAtStart
from gantry_broker.settings import BrokerSettings
from gantry_remoting.setting_kinds import SettingsError, check_budget

REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest answer to a pull in bytes: maxTransferBytesOnRequest is at most 15 MiB."""

HEADER_BYTES_MAX: Final = 65_536
"""Bytes beside the body of a message: its properties and the rest of a record, or the usual header of a frame.

`gantry_wire.limits` has a greater limit of the same name: the longest header that is accepted.
"""


def check_consistency(settings: BrokerSettings) -> None:
    """Raise SettingsError for the first two settings that contradict each other."""
    _check_roles(settings)
    _check_access(settings)
    if settings.fast_listen_port == settings.listen_port:
        raise SettingsError(f"listenPort and fastListenPort are both {settings.listen_port}; they must differ")
    needed = settings.message_bytes_max + HEADER_BYTES_MAX
    if needed > settings.store.mapped_file_size_commit_log:
        raise SettingsError(
            f"maxMessageSize={settings.message_bytes_max} does not fit mappedFileSizeCommitLog="
            f"{settings.store.mapped_file_size_commit_log}: a message is never split over files; lower maxMessageSize, "
            f"or set files of at least {needed} bytes"
        )
    if needed > settings.frame_bytes_max:
        raise SettingsError(
            f"maxMessageSize={settings.message_bytes_max} does not fit frameMaxLength={settings.frame_bytes_max}: "
            f"such a message could not be sent; lower maxMessageSize, or set frameMaxLength to at least {needed}"
        )
    _check_budgets(settings)
    pool = settings.store.pool
    if pool.path and not pool.is_enabled:
        raise SettingsError("transientStorePoolPath is set, but transientStorePoolEnable is false: set both or neither")
    retention = settings.store.retention
    if not retention.used_percent_max <= retention.forced_percent <= retention.full_percent:
        raise SettingsError(
            f"diskMaxUsedSpaceRatio={retention.used_percent_max}, diskSpaceCleanForciblyRatio="
            f"{retention.forced_percent} and diskSpaceWarningLevelRatio={retention.full_percent} must not decrease "
            "in this order: sends are refused only when deleting does not help"
        )
    _check_tls(settings)
    fault = settings.archive.fault()
    if fault is not None:
        raise SettingsError(fault)


def _check_budgets(settings: BrokerSettings) -> None:
    """Check that each budget suffices for two honest connections, which could never be served otherwise."""
    for key, budget, name, needed in (
        ("maxUnfinishedFrameBytes", settings.unfinished_frame_bytes_max, "frameMaxLength", settings.frame_bytes_max),
        (
            "maxUnauthenticatedFrameBytes",
            settings.unauthenticated_frame_bytes_max,
            "maxMessageSize and a header",
            settings.first_frame_bytes_max,
        ),
        ("maxUnreadReplyBytes", settings.unread_reply_bytes_max, "the largest reply", REPLY_BYTES_MAX),
    ):
        check_budget(key, budget, name, needed)


def _check_tls(settings: BrokerSettings) -> None:
    if bool(settings.tls_client_certificate) != bool(settings.tls_client_key):
        raise SettingsError("tlsClientCertPath and tlsClientKeyPath go together: set both or neither")
    if settings.tls_client_authority and not (settings.is_tls_enabled and settings.is_tls_server_verified):
        raise SettingsError(
            "tlsClientTrustCertPath needs tlsEnable=true and tlsClientAuthServer=true: otherwise it has no effect"
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
            raise SettingsError(
                f"{role} and brokerId=0: 0 is reserved for the master; set a brokerId of 1 or more, unique in the group"
            )
        if ha.role is not BrokerRole.SLAVE and number != 0:
            raise SettingsError(f"{role} and brokerId={number}: a fixed master must have brokerId=0")
    else:
        if number == 0:
            raise SettingsError(f"{start} and brokerId=0: the broker may become a slave; set a brokerId of 1 or more")
        if ha.role is BrokerRole.SLAVE:
            raise SettingsError(
                f"{start} and {role}: set the kind of master that it can become, ASYNC_MASTER or SYNC_MASTER"
            )
    if ha.role is BrokerRole.SYNC_MASTER and ha.replicas < 2:
        raise SettingsError(f"{role} and inSyncReplicas=1 contradict each other: set 2 or more, or ASYNC_MASTER")
    if ha.role is BrokerRole.ASYNC_MASTER and ha.replicas > 1:
        raise SettingsError(
            f"{role} and inSyncReplicas={ha.replicas} contradict each other: set brokerRole=SYNC_MASTER"
        )
    if ha.electable and len(ha.electable) < ha.acks_needed:
        raise SettingsError(
            f"haElectable names {len(ha.electable)} slaves, but inSyncReplicas={ha.replicas} needs {ha.acks_needed}: "
            "name more slaves, or lower inSyncReplicas"
        )
    if ha.role is not BrokerRole.ASYNC_MASTER and settings.ha_listen_port is None and ha.acks_needed:
        raise SettingsError(f"{role} and haListenPort=-1: no slave could follow; set a port")
    if ha.is_classic_allowed and (ha.secret_path or ha.tls_certificate):
        key = "haSecretPath" if ha.secret_path else "haTlsCertPath"
        raise SettingsError(
            f"haClassicPeers=true and {key} contradict each other: RocketMQ's slaves prove no identity; "
            "set only one of the two"
        )
    if ha.is_master_classic and ha.role is not BrokerRole.SLAVE and ha.role_at_start is RoleAtStart.CONFIGURED:
        raise SettingsError(
            f"haMasterIsClassic=true and {role}: only a slave follows a RocketMQ master; set brokerRole=SLAVE"
        )
    if ha.classic_broker_address and not ha.is_master_classic:
        raise SettingsError("haMasterBrokerAddress is used only with haMasterIsClassic=true: set both or neither")
    if bool(ha.tls_certificate) != bool(ha.tls_key):
        raise SettingsError("haTlsCertPath and haTlsKeyPath go together: set both or neither")


def _check_access(settings: BrokerSettings) -> None:
    """Check with access control that the replication port is protected: it gives access to the whole log.

    With haClassicPeers=true it is open on purpose.
    """
    fault = settings.access.fault()
    if fault is not None:
        raise SettingsError(fault)
    ha = settings.ha
    proves_identity = bool(ha.secret_path or (ha.tls_certificate and ha.tls_authority))
    is_open = not proves_identity and not ha.is_classic_allowed
    if settings.access.is_guarded and settings.ha_listen_port is not None and is_open:
        key = "authenticationEnabled" if settings.access.is_stored else "aclEnable"
        raise SettingsError(
            f"{key}=true and haListenPort={settings.ha_listen_port} without haSecretPath: any host that reaches it "
            "could copy the log; set haSecretPath, or haListenPort=-1"
        )
