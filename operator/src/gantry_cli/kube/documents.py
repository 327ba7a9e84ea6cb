"""The documents of commands about groups in a cluster."""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.explain import Outlook
from gantry_spec.ledger import Ledger


@final
class GroupCondition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of the group's status."""

    type: str
    """The type in CamelCase, such as `Ready`."""
    status: str
    """The status of the condition: `True`, `False` or `Unknown`."""
    reason: str
    """The reason as one stable word in CamelCase."""
    message: str


@final
class ClusterShardStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One shard as the operator has written it into the group's status."""

    number: int
    master: str
    """The master's pod; empty if no master answers."""
    epoch: int
    """The newest epoch in the shard's Lease."""
    in_sync: int
    """How many slaves are in sync with the master."""
    lag: str
    """The band of bytes that the slave with the largest lag lacks."""
    election_loss: str
    """The statement that the election of the newest master has an unknown loss; empty if the loss was limited.
    Empty, too, if the operator does not report it."""
    fence: str | None
    """The state of the fence: `Fenced`, `Fencing` while a member may still take sends, or empty without a fence.
    Null if the operator has not reported it."""
    at_risk: str
    """The band of bytes that the loss of the master's machine would take."""
    bottleneck: str
    """What the bytes at risk wait for: `buffer`, `disk` or `slave`."""
    is_durability_met: bool
    """Whether the data at risk is within `spec.durability`."""
    action: str
    """The action in progress; empty if there is none."""
    blocked_by: list[str]
    """The conditions that the action waits for."""
    if_master_dies: list[str]
    """The member that would become the master, and what would be lost."""


@final
class ClusterMemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One broker: its pod, and the present answer of its sidecar. Values without an answer are null."""

    pod: str
    shard: int
    number: int
    """The member's own number in its shard, counted from 1."""
    phase: str
    """The phase of the pod; `Terminating` while it is being deleted, `Missing` if there is none."""
    is_ready: bool
    """Whether the pod is ready for clients."""
    restarts: int
    """How often kubelet restarted the broker's container; a crashed broker is restarted inside its container."""
    node: str
    """The name of the pod's node; empty if it has none yet."""
    label: str
    """The role in the pod's label, set by the operator: `master` or `slave`."""
    role: str | None
    """The role that the broker reports: `MASTER`, `SLAVE`, `COMPARING`, `UNASSIGNED`."""
    epoch: int | None
    wrote: int | None
    committed: int | None
    flushed: int | None
    acked: int | None
    confirmed: int | None
    behind_bytes: int | None
    """The bytes of its master's log that it does not have yet."""
    is_draining: bool | None
    """Whether the broker refuses sends while its log is flushed and replicated."""
    loop_state: str | None
    """The state of the broker's event loop: `running`, `stalled`, `crashed`, ..."""
    readiness: str | None
    """Why the broker is ready or not."""
    problem: str | None
    """Why the broker is not in its normal state; empty if it is."""
    fault: str | None
    """Why there is no usable answer of its sidecar; null if there is one, or if the sidecar was not asked."""


@final
class ClusterProxyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The gRPC proxies as the operator has written them into the group's status."""

    desired: int
    """The number of proxies that should run."""
    ready: int
    """The number of proxies that take clients."""
    updated: int
    """The number of proxies with the present image and settings."""
    endpoint: str
    """Host and port for clients inside the cluster."""
    external_endpoint: str
    """Host and port for clients outside the cluster; empty while the cluster has assigned none."""


@final
class GroupEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the group."""

    at: str
    """The time of its last occurrence, as Kubernetes writes it."""
    type: str
    """The type of the event: `Normal` or `Warning`."""
    reason: str
    message: str


@final
class ClusterGroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`gantry status bg/GROUP`: a group in a cluster."""

    at_ms: int
    context: str
    """The context of the kubeconfig."""
    namespace: str
    group: str
    phase: str
    """The group's phase; empty while no operator has written a status."""
    ready: str
    """Ready shards of all shards, such as `2/3`."""
    generation: int
    """The generation of the spec."""
    observed_generation: int
    """The generation of the spec that the operator observed last."""
    orders: dict[str, str]
    """Orders and states that people have set: the annotations `gantry.dev/...`."""
    shards: list[ClusterShardStatus]
    members: list[ClusterMemberStatus]
    name_servers: str
    """Ready name servers of all, `2/2`; empty if the group has none of its own, or the user may not list pods."""
    proxies: ClusterProxyStatus | None
    """The gRPC proxies; null if the group has none, or if the operator has not reported them."""
    ledgers: list[Ledger]
    """The bytes at risk in each shard, from the present answers of sidecars; empty if there are none."""
    conditions: list[GroupCondition]
    events: list[GroupEvent]
    """The latest events, oldest first."""
    left_out: list[str]
    """What could not be read, and why."""


@final
class KubeExplainDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`gantry explain bg/GROUP`: what would happen if a master died now."""

    at_ms: int
    context: str
    namespace: str
    group: str
    source: str
    """`sidecars`: from their present answers; `status`: from the operator's latest status."""
    decision: list[str]
    """The operator's actions in progress and the conditions that they wait for."""
    lines: list[str]
    """What would happen in each shard, as text."""
    outlook: list[Outlook]
    """The same as values; empty if `source` is `status`."""
    left_out: list[str]
    """What could not be read, and why."""
