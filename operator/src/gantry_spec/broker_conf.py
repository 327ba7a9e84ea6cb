"""From a group's spec to the ``broker.conf`` of one member: pure, and the same for processes and for pods.

    the spec        what every broker of the group has in common
    the place       what only this one has: its number, its addresses, its folders

A member is started without a role: which one it gets, and who may be elected after it, are orders. So nothing of that
is written here, and a member whose role moves needs no other file. ``template_of`` names what all have in common, so
that whoever runs them sees which of them were started with something older.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, final

import msgspec

from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import AckLevel, FlushMode, Medium

HOUR_MS: Final = 3_600_000
WAITED_FLUSH_MS: Final = 10
MESSAGE_BYTES_MAX: Final = 4 << 20
RECORD_ROOM: Final = 65_536
"""What a broker wants to be free in a file of its log beside the largest body."""


@final
class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one member is, and what only it has."""

    group: str
    """The group's name."""

    shard: int
    number: int
    """Its own, from 1."""

    address: str
    """The IP address that clients and slaves are told."""

    listen: str = "0.0.0.0"
    port: int = 10911
    ha_port: int = 10912
    """-1 for none."""

    name_servers: tuple[str, ...] = ()
    store: str
    """The folder of its store."""

    control: str = ""
    """The path of its control socket, if that is not in the store."""

    status_page: str = ""
    """The same of its status page."""

    buffers: str = ""
    """The folder of its write buffers, on hugetlbfs or tmpfs; asked only with a buffer."""

    access: tuple[tuple[str, str], ...] = ()
    """Keys and values that say where accounts, secrets and certificates lie."""


def cluster_name(group: str) -> str:
    """What name servers call the group. Not its own name: a cluster's is a topic, and groups are called like topics."""
    return f"{group}-cluster"


def broker_name(group: str, shard: int) -> str:
    """What clients know a shard by, whoever is its master."""
    return f"{group}-{shard}"


def broker_conf(spec: Spec, place: Place, *, is_single: bool = False) -> dict[str, str]:
    """The keys and values of a member's ``broker.conf``, by RocketMQ's names.

    With ``is_single`` only ``spec.broker`` and the place are written, and the broker has its own defaults beyond that:
    it takes the sizes of files from its store, and serves while another program has its replication port.
    """
    own = {
        "brokerClusterName": cluster_name(place.group),
        "brokerName": broker_name(place.group, place.shard),
        "brokerId": str(place.number),
        "brokerIP1": place.address,
        "bindAddress": place.listen,
        "listenPort": str(place.port),
        "haListenPort": str(place.ha_port),
        "storePathRootDir": place.store,
    }
    if place.control:
        own["controlSocketPath"] = place.control
    if place.status_page:
        own["statusPagePath"] = place.status_page
    if spec.write_buffer.medium is not Medium.OFF:
        own["transientStorePoolPath"] = place.buffers
    own |= dict(place.access)
    if not is_single:
        return own | _common(spec, place.name_servers)
    if place.ha_port > 0:
        del own["haListenPort"]
    return own | _supervised(place.name_servers) | spec.broker


def conf_text(conf: dict[str, str]) -> str:
    """A ``broker.conf`` as it lies on a disk."""
    return "".join(f"{key}={value}\n" for key, value in conf.items())


def template_of(spec: Spec, name_servers: Sequence[str]) -> str:
    """A name of what members are started with. Another one means that they have to be started again."""
    text = conf_text(dict(sorted(_common(spec, name_servers).items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _flush_interval_ms(spec: Spec) -> int:
    """As the spec says; shorter where acknowledgements wait for it, on disks of slaves that nobody asks to flush."""
    interval_ms = max(1, int(spec.flush.interval))
    is_waited_for = spec.replication.acks_needed > 0 and spec.replication.ack is AckLevel.FLUSHED
    return min(interval_ms, WAITED_FLUSH_MS) if is_waited_for else interval_ms


def _supervised(name_servers: Sequence[str]) -> dict[str, str]:
    """What whoever supervises a member needs."""
    return {"namesrvAddr": ";".join(name_servers), "roleAtStart": "UNASSIGNED"}


def _common(spec: Spec, name_servers: Sequence[str]) -> dict[str, str]:
    """What all members have alike. The spec's own lines come last, and may not name what its fields decide."""
    replication, flush, buffer = spec.replication, spec.flush, spec.write_buffer
    conf = _supervised(name_servers) | {
        "brokerRole": "SYNC_MASTER" if replication.acks_needed else "ASYNC_MASTER",
        "inSyncReplicas": str(replication.acks_needed + 1),
        "slaveTimeout": str(max(1, int(replication.ack_timeout))),
        "haAckLevel": "FLUSHED" if replication.ack is AckLevel.FLUSHED else "RECEIVED",
        "haMaxGapNotInSync": str(max(1, int(replication.max_lag))),
        "flushDiskType": "SYNC_FLUSH" if flush.mode is FlushMode.SYNC else "ASYNC_FLUSH",
        "flushIntervalCommitLog": str(_flush_interval_ms(spec)),
        "flushCommitLogLeastPages": "0",  # the interval is a promise, also for a trickle of messages
        "mappedFileSizeCommitLog": str(int(buffer.segment_size)),
        "fileReservedTime": str(max(1, -(-int(spec.storage.reserved_time) // HOUR_MS))),
    }
    if buffer.medium is not Medium.OFF:
        conf |= {"transientStorePoolEnable": "true", "transientStorePoolSize": str(buffer.buffers)}
    if buffer.segment_size < MESSAGE_BYTES_MAX + RECORD_ROOM:
        conf["maxMessageSize"] = str(buffer.segment_size // 2)
    return conf | spec.broker
