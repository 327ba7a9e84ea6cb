"""What the commands about groups in a cluster say to programs."""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.explain import Outlook
from gantry_spec.ledger import Ledger


@final
class ConditionLook(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of the group's status."""

    type: str
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str
    message: str


@final
class ShardLook(msgspec.Struct, frozen=True, kw_only=True):
    """One shard as the operator has written it into the group's status."""

    number: int
    master: str
    """The pod; empty if there is none that answers."""
    epoch: int
    in_sync: int
    """How many slaves have what the master has."""
    lag: str
    """The band of bytes that the slave farthest behind lacks."""
    at_risk: str
    """The band of bytes that the loss of the master's machine would take."""
    bound: str
    """What these wait for: `buffer`, `disk` or `slave`."""
    is_durability_met: bool
    action: str
    """What is being done."""
    blocked_by: list[str]
    """What is waited for."""
    if_master_dies: list[str]
    """Who would be the master, and what would be lost."""


@final
class MemberLook(msgspec.Struct, frozen=True, kw_only=True):
    """One broker: its pod, and what its sidecar says now. What nobody could ask is null."""

    pod: str
    shard: int
    number: int
    phase: str
    """Of the pod; `Missing` if there is none."""
    is_ready: bool
    """Whether clients should be there."""
    restarts: int
    """Of the broker's container by kubelet; one that only crashed is started again inside of it."""
    node: str
    label: str
    """The role that the operator has put on the pod: `master` or `slave`."""
    role: str | None
    """The role that the broker says it has: `MASTER`, `SLAVE`, `COMPARING`, `UNASSIGNED`."""
    epoch: int | None
    wrote: int | None
    committed: int | None
    flushed: int | None
    acked: int | None
    confirmed: int | None
    behind_bytes: int | None
    """What its shard's master has more."""
    is_draining: bool | None
    motion: str | None
    """Whether its process moves: `moving`, `standing still`, `gone`, ..."""
    readiness: str | None
    """Why it is ready or not."""
    trouble: str | None
    fault: str | None
    """Why its sidecar has not answered; null if it has, or was not to be asked."""


@final
class EventLook(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the group."""

    at: str
    """When it happened last, as Kubernetes writes it."""
    type: str
    """`Normal` or `Warning`."""
    reason: str
    message: str


@final
class GroupLook(msgspec.Struct, frozen=True, kw_only=True):
    """`gantry status bg/GROUP`: a group in a cluster."""

    at_ms: int
    context: str
    """Of the kubeconfig."""
    namespace: str
    group: str
    phase: str
    """In one word; empty while no operator has written a status."""
    ready: str
    """Ready shards of all."""
    generation: int
    """Of the spec."""
    observed_generation: int
    """Of the spec that the operator has looked at last."""
    orders: dict[str, str]
    """What people have asked of it, and what stands: its annotations `gantry.dev/...`."""
    shards: list[ShardLook]
    members: list[MemberLook]
    name_servers: str
    """Ready name servers of all, `2/2`; empty if the group has none of its own, or pods may not be seen."""
    ledgers: list[Ledger]
    """What is at risk in each shard, in bytes, from what the sidecars say now; empty if they are not asked."""
    conditions: list[ConditionLook]
    events: list[EventLook]
    """The latest, oldest first."""
    left_out: list[str]
    """What could not be seen, and why."""


@final
class KubeExplainDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`gantry explain bg/GROUP`: what would happen if a master died now."""

    at_ms: int
    context: str
    namespace: str
    group: str
    source: str
    """`sidecars`: counted now; `status`: what the operator has written last."""
    decision: list[str]
    """What the operator does and waits for."""
    lines: list[str]
    """For people: what would happen in each shard."""
    outlook: list[Outlook]
    """The same for programs; empty if `source` is `status`."""
    left_out: list[str]
    """What could not be seen, and why."""
