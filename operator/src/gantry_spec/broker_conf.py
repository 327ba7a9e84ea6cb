"""The ``broker.conf`` of one member, made from the group's spec: pure, and the same for processes and for pods.

    the spec        the settings that all brokers of the group share
    the placement   the settings of one broker: its number, addresses and folders

A member is started without a role (``roleAtStart``). Its role and the electable slaves are given by orders and are not
written here, so a change of the role needs no other file; ``brokerRole`` is the same for all members, and has only the
replication mode. ``template_of`` returns a hash of the shared settings, by which a member that was started with older
settings is recognized."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, final

import msgspec

from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import FlushMode, Medium
from gantry_status.broker_ports import BROKER_PORT, replication_port_of

HOUR_MS: Final = 3_600_000
MESSAGE_BYTES_MAX: Final = 4 << 20
"""The largest body of a message that a broker accepts by default."""

RECORD_ROOM: Final = 65_536
"""The free space that a broker requires in a file of its log in addition to the largest body."""


@final
class BrokerPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one member that are not in the spec, although all members share some of them."""

    group: str
    """The name of the group."""

    shard: int
    """The number of the shard, counted from 0."""

    number: int
    """The member's own number, counted from 1."""

    address: str
    """The IP address that is advertised to clients and slaves."""

    listen: str = "0.0.0.0"
    """The IP address on which the broker listens."""

    port: int = BROKER_PORT
    """The port on which the broker serves its clients."""

    ha_port: int = replication_port_of(BROKER_PORT)
    """The replication port; -1 for none."""

    name_servers: tuple[str, ...] = ()
    """The addresses (``host:port``) of the name servers where the broker registers."""

    store: str
    """The folder of the member's store."""

    control: str = ""
    """The path of the control socket; empty for the default inside the store."""

    status_page: str = ""
    """The path of the status page; empty for the default inside the store."""

    buffers: str = ""
    """The folder of the write buffers, on hugetlbfs or tmpfs. It is used only if the spec has a write buffer."""

    access: tuple[tuple[str, str], ...] = ()
    """The keys and values of ``broker.conf`` with the paths of accounts, secrets and certificates."""


def cluster_name(group: str) -> str:
    """Return the group's RocketMQ cluster name. It is also a topic, so the plain group name might collide."""
    return f"{group}-cluster"


def broker_name(group: str, shard: int) -> str:
    """Return a shard's broker name, by which clients know it. All members of the shard have the same."""
    return f"{group}-{shard}"


def broker_conf(spec: Spec, placement: BrokerPlacement, *, is_single: bool = False) -> dict[str, str]:
    """Return the keys and values of a member's ``broker.conf``, by RocketMQ's names.

    With ``is_single`` only ``spec.broker``, the placement and ``roleAtStart`` are written, and the broker uses its own
    defaults for the rest: it takes the file sizes from its store, and serves although another program uses its
    replication port.
    """
    member_conf = {
        "brokerClusterName": cluster_name(placement.group),
        "brokerName": broker_name(placement.group, placement.shard),
        "brokerId": str(placement.number),
        "brokerIP1": placement.address,
        "bindAddress": placement.listen,
        "listenPort": str(placement.port),
        "haListenPort": str(placement.ha_port),
        "storePathRootDir": placement.store,
    }
    if placement.control:
        member_conf["controlSocketPath"] = placement.control
    if placement.status_page:
        member_conf["statusPagePath"] = placement.status_page
    if spec.write_buffer.medium is not Medium.OFF:
        member_conf["transientStorePoolPath"] = placement.buffers
    member_conf |= dict(placement.access)
    if not is_single:
        return member_conf | _shared_settings(spec, placement.name_servers)
    if placement.ha_port > 0:
        del member_conf["haListenPort"]
    return member_conf | _supervisor_settings(placement.name_servers) | spec.broker


def conf_text(conf: dict[str, str]) -> str:
    """Return the text of a ``broker.conf`` file."""
    return "".join(f"{key}={value}\n" for key, value in conf.items())


def template_of(spec: Spec, name_servers: Sequence[str]) -> str:
    """Return a hash of the members' shared settings. If it changes, members have to be restarted."""
    text = conf_text(dict(sorted(_shared_settings(spec, name_servers).items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _supervisor_settings(name_servers: Sequence[str]) -> dict[str, str]:
    """Return the settings that a supervised member needs."""
    return {"namesrvAddr": ";".join(name_servers), "roleAtStart": "UNASSIGNED"}


def _shared_settings(spec: Spec, name_servers: Sequence[str]) -> dict[str, str]:
    """Return the settings that all members share. ``spec.broker`` comes last and may not set reserved keys."""
    replication, flush, buffer = spec.replication, spec.flush, spec.write_buffer
    conf = _supervisor_settings(name_servers) | {
        "brokerRole": "SYNC_MASTER" if replication.acks_needed else "ASYNC_MASTER",
        "inSyncReplicas": str(replication.acks_needed + 1),
        "slaveTimeout": str(max(1, int(replication.ack_timeout))),
        "haAckLevel": "FLUSHED" if replication.waits_for_disks else "RECEIVED",
        "haMaxGapNotInSync": str(max(1, int(replication.max_lag))),
        "flushDiskType": "SYNC_FLUSH" if flush.mode is FlushMode.SYNC else "ASYNC_FLUSH",
        "flushIntervalCommitLog": str(max(1, int(spec.flush.interval))),
        "flushCommitLogLeastPages": "0",  # the interval must hold for a trickle of messages, too
        "mappedFileSizeCommitLog": str(int(buffer.segment_size)),
        "fileReservedTime": str(max(1, -(-int(spec.reserved_time) // HOUR_MS))),
    }
    if buffer.medium is not Medium.OFF:
        conf |= {"transientStorePoolEnable": "true", "transientStorePoolSize": str(buffer.buffers)}
    if buffer.segment_size < MESSAGE_BYTES_MAX + RECORD_ROOM:
        conf["maxMessageSize"] = str(buffer.segment_size // 2)
    return conf | spec.broker
