"""The parts of a group's spec, each with its fields, their bounds and defaults, and what they are for.

The text under a field is its documentation everywhere: in ``docs/groups.md``, in the custom resource and so in
``kubectl explain``. Bounds that one field has are in its type; what fields may say together is in ``rules``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, final

import msgspec

from gantry_spec.manifest.quantities import Duration, Size

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
"""A name that becomes part of pods' and services' names."""
SecretName = Annotated[str, msgspec.Meta(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
ResourceName = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=r"^[%|a-zA-Z0-9_-]+$")]
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=300, pattern=r"^.+:[0-9]{1,5}$")]
Replicas = Annotated[int, msgspec.Meta(ge=0, le=9)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Root of all parts. Never written itself."""


class ReplicationMode(StrEnum):
    """What an acknowledgement waits for."""

    ASYNC = "Async"
    SYNC = "Sync"


class AckLevel(StrEnum):
    """Which acknowledgement of a slave counts."""

    RECEIVED = "Received"
    FLUSHED = "Flushed"


class FlushMode(StrEnum):
    """Whether an acknowledgement waits for the disk."""

    ASYNC = "Async"
    SYNC = "Sync"


class Medium(StrEnum):
    """Where the write buffer lies."""

    OFF = "Off"
    MEMORY = "Memory"
    HUGE_PAGES = "HugePages-2Mi"


class FailoverMode(StrEnum):
    """Who moves the master's role when a master is gone."""

    DISABLED = "Disabled"
    MANUAL = "Manual"
    AUTOMATIC = "Automatic"


class Retain(StrEnum):
    """What becomes of volumes."""

    ALWAYS = "Always"
    NEVER = "Never"


class ExternalType(StrEnum):
    """How clients outside of the cluster come in."""

    NONE = "None"
    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"


@final
class NameServers(Part, frozen=True):
    """Where brokers register and clients ask."""

    replicas: Annotated[int, msgspec.Meta(ge=1, le=9)] | None = None
    """How many name servers run with this group; 2 if no `addresses` are given."""

    addresses: Annotated[list[Address], msgspec.Meta(max_length=16)] = []
    """`host:port` of name servers that exist already. Then none are made."""

    @property
    def count(self) -> int:
        """How many are made here."""
        if self.addresses:
            return 0
        return 2 if self.replicas is None else self.replicas


@final
class Replication(Part, frozen=True):
    """What slaves are waited for."""

    mode: ReplicationMode = ReplicationMode.SYNC
    """`Sync` answers 0 when `inSyncReplicas - 1` slaves have a message; `Async` waits for nobody."""

    in_sync_replicas: Annotated[int, msgspec.Meta(ge=1, le=9)] | None = None
    """How many brokers have a message, the master among them, before it is acknowledged; 2 with `Sync`."""

    ack_timeout: Duration = Duration(3_000)
    """With `Sync`, a send that too few slaves have by then is answered 12: stored, not promised."""

    ack: AckLevel = AckLevel.RECEIVED
    """A slave counts when it has `Received` a message where its process cannot lose it, or `Flushed` it to its disk."""

    max_lag: Size = Size(256 << 20)
    """A slave that is farther behind is not waited for, not read from, and not ready."""

    @property
    def acks_needed(self) -> int:
        """How many slaves must have a message before it is acknowledged."""
        if self.mode is ReplicationMode.ASYNC:
            return 0
        return (2 if self.in_sync_replicas is None else self.in_sync_replicas) - 1


@final
class Flush(Part, frozen=True):
    """When bytes go to the disk."""

    mode: FlushMode = FlushMode.ASYNC
    """`Sync` answers 0 when a message is on the master's disk; `Async` flushes by `interval`."""

    interval: Duration = Duration(500)
    """How often is flushed with `Async`: what a power cut of the master's machine may take, if no slave has it."""


@final
class WriteBuffer(Part, frozen=True):
    """Memory that takes messages before the page cache does. It outlives its process, though not its pod."""

    medium: Medium = Medium.OFF
    """`HugePages-2Mi` and `Memory` survive a crash of the broker. `Off` writes into the page cache."""

    buffers: Annotated[int, msgspec.Meta(ge=2, le=64)] = 3
    """How many buffers of `segmentSize` there are. Their memory is requested for the pod by itself."""

    segment_size: Size = Size(1 << 30)
    """Of a file of the log, and so of a buffer. Fixed once a store exists."""


@final
class Storage(Part, frozen=True):
    """The volume of each broker."""

    size: Size = Size(20 << 30)
    """Of each volume. It may grow."""

    storage_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """Of the volumes; empty: the cluster's default class. Fixed."""

    retain: Retain = Retain.ALWAYS
    """Whether volumes stay when the group is deleted. Those of slaves that were scaled away stay with `Always`, too."""

    reserved_time: Duration = Duration(72 * 3_600_000)
    """For how long messages are kept."""

    replace_after: Duration = Duration(0)
    """How long a lost volume is waited for before its broker starts with an empty one; `0s`: until somebody says so."""


@final
class Durability(Part, frozen=True):
    """How much may be at risk. Restarts, rolls and moves wait while more is."""

    max_at_risk_bytes: Size = Size(64 << 20)
    """What the loss of a master's machine may take at any moment, in bytes."""

    max_at_risk: Duration = Duration(1_000)
    """The same as a time: how old the oldest message at risk may be."""


@final
class Failover(Part, frozen=True):
    """Who moves the master's role when a master is gone."""

    mode: FailoverMode = FailoverMode.AUTOMATIC
    """`Automatic` moves it within `maxDataLossBytes`, `Manual` on order only, `Disabled` never; a master that comes
    back with all it had goes on in every mode."""

    max_data_loss_bytes: Size = Size(0)
    """What an automatic move may lose. 0: only what is proven to lose nothing is done, which an `Async` group
    seldom can; the decision says how much it would be."""

    after: Duration = Duration(5_000)
    """For how long a master must have been silent, for us and for its slaves."""

    switchback: bool = False
    """Whether the role goes back to the broker that had it first, once that is in sync again."""


@final
class External(Part, frozen=True):
    """The way in from outside of the cluster."""

    type: ExternalType = ExternalType.NONE
    """Of the Service of each broker."""

    annotations: dict[str, str] = {}
    """Of these Services."""


@final
class Access(Part, frozen=True):
    """Who may come in, and how."""

    acl_secret: SecretName = ""
    """A Secret with accounts; empty: everybody may do everything. It may be replaced at any time."""

    tls_secret: SecretName = ""
    """A Secret with `tls.crt`, `tls.key` and `ca.crt`; empty: no TLS. It may be renewed at any time, or be another
    one of the same authority; whether there is one is fixed."""

    external: External = External()
    """The way in from outside of the cluster."""


@final
class Topic(Part, frozen=True):
    """A topic that shall exist. It is created and updated, and never deleted."""

    name: ResourceName
    """Its name."""

    queues: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    """How many queues it has on each shard."""


@final
class ConsumerGroup(Part, frozen=True):
    """A group of consumers that shall exist. It is created and updated, and never deleted; its other settings are left
    as an administrator has set them."""

    name: ResourceName
    """Its name."""

    retry_max: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 16
    """How often a message is delivered again before it is a dead letter."""


@final
class Template(Part, frozen=True):
    """What is put into the pods of brokers as it is."""

    annotations: dict[str, str] = {}
    """Of pods."""

    labels: dict[str, str] = {}
    """Of pods; names with `gantry.dev/` are ours."""

    node_selector: dict[str, str] = {}
    """As in a pod."""

    tolerations: list[dict[str, Any]] = []
    """As in a pod."""

    affinity: dict[str, Any] = {}
    """As in a pod. Brokers of one shard never share a machine, whatever is said here."""

    topology_spread_constraints: list[dict[str, Any]] = []
    """As in a pod."""

    priority_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """As in a pod."""

    termination_grace_period: Duration = Duration(120_000)
    """How long a broker may take to hand over what it has when its pod is deleted."""
