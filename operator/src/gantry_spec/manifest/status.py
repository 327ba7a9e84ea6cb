"""The status that the operator writes into a group. Fields with bytes are bands, since counts would change constantly.

Texts for people, such as the forecast of a failover, may contain counts.
"""

from __future__ import annotations

from typing import final

import msgspec


class StatusPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base class of all parts of the status. It is never used itself."""


@final
class Condition(StatusPart, frozen=True):
    """A condition of the resource."""

    type: str
    """The type of the condition."""

    status: str
    """The status of the condition: `True`, `False` or `Unknown`."""

    reason: str
    """The reason for the status, as one stable word in CamelCase."""

    message: str = ""
    """The reason for the status, for people."""

    observed_generation: int = 0
    """The generation of the spec for which the condition was determined."""

    last_transition_time: str = ""
    """The time at which `status` last changed."""


@final
class DurabilityStatus(StatusPart, frozen=True):
    """How much acknowledged data is at risk."""

    at_risk: str = "unknown"
    """The band of bytes that a power loss of the master's machine, whose disk survives, would lose."""

    bottleneck: str = ""
    """What the bytes at risk wait for: `buffer`, `disk` or `slave`; empty if nothing, or if it is unknown."""

    is_met: bool = False
    """Whether the data at risk is within `spec.durability`."""

    observed_at: str = ""
    """The time at which this was observed."""


@final
class DecisionStatus(StatusPart, frozen=True):
    """The operator's present action, what blocks it, and a forecast of a failover."""

    action: str = ""
    """The action that the operator executes."""

    blocked_by: list[str] = []
    """The conditions for which the operator waits."""

    if_master_dies: list[str] = []
    """Which member would become master if the master failed now, and how much would be lost."""


@final
class ShardStatus(StatusPart, frozen=True):
    """The status of one shard."""

    number: int
    """The number of the shard, counted from 0."""

    master: str = ""
    """The name of the master's pod; empty if no master has reported recently."""

    epoch: int = 0
    """The newest epoch in the shard's Lease. During an election it has no master yet."""

    in_sync: int = 0
    """The number of slaves that are in sync with the master."""

    lag: str = "unknown"
    """The band of bytes by which the slowest slave lags behind."""

    election_loss: str = ""
    """The statement that the election of the newest master has an unknown loss; empty if the loss was limited."""

    fence: str = ""
    """Whether the shard takes no sends by order: `Fenced`, or `Fencing` while a member may take some; else empty."""

    durability: DurabilityStatus = DurabilityStatus()
    """How much acknowledged data is at risk."""

    decision: DecisionStatus = DecisionStatus()
    """The operator's present action, what blocks it, and a forecast of a failover."""


@final
class ProxyStatus(StatusPart, frozen=True):
    """The status of the gRPC proxies."""

    desired: int = 0
    """The number of proxies that should run."""

    ready: int = 0
    """The number of proxies that take clients."""

    updated: int = 0
    """The number of proxies with the present image and settings."""

    endpoint: str = ""
    """Host and port for clients inside the cluster; empty without proxies."""

    external_endpoint: str = ""
    """Host and port for clients outside the cluster; empty while the cluster has assigned none."""


@final
class ShardPoint(StatusPart, frozen=True):
    """What the backup of a shard has for certain."""

    number: int
    """The number of the shard."""

    snapshot: str = ""
    """The name of the VolumeSnapshot."""

    member: int = 0
    """The member whose volume it is a copy of."""

    epoch: int = 0
    """The epoch of the last record before the point."""

    flushed: int = 0
    """The offset in the log up to which it has everything."""

    marked_at: str = ""
    """The time at which the broker marked the point."""


@final
class BackupStatus(StatusPart, frozen=True):
    """The status of the backups."""

    last: str = ""
    """The name of the last complete backup; empty without one."""

    last_at: str = ""
    """The time at which it was begun."""

    points: list[ShardPoint] = []
    """What it has of each shard."""

    count: int = 0
    """The number of complete backups that are kept."""

    running: str = ""
    """The name of the backup that is being made; empty without one."""

    next_at: str = ""
    """The time of the next backup of the schedule."""


@final
class Status(StatusPart, frozen=True):
    """The observed state of the group."""

    observed_generation: int = 0
    """The generation of the spec that was observed."""

    phase: str = ""
    """A summary of the state in one word, for people."""

    ready: str = ""
    """The number of ready shards out of all shards, for a column of `kubectl get`."""

    shards: int = 0
    """The number of shards, for `kubectl scale`."""

    selector: str = ""
    """The label selector of the group's pods, for `kubectl scale`."""

    master: str = ""
    """The masters of the shards, for a column of `kubectl get`."""

    epoch: int = 0
    """The newest epoch of the shards, for a column of `kubectl get`."""

    lag: str = ""
    """The largest replication lag, for a column of `kubectl get`."""

    at_risk: str = ""
    """The largest amount of data at risk, for a column of `kubectl get`."""

    each_shard: list[ShardStatus] = []
    """The status of each shard."""

    proxy: ProxyStatus = ProxyStatus()
    """The status of the gRPC proxies."""

    backup: BackupStatus = BackupStatus()
    """The status of the backups."""

    conditions: list[Condition] = []
    """The conditions of the group."""
