"""The parts of a group's spec, with the fields, their bounds, defaults and descriptions.

The text below a field is its documentation everywhere: in ``docs/groups.md``, in the custom resource, and so in
``kubectl explain``. The bounds of a single field are in its type; rules over several fields are in ``rules``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, final

import msgspec

from gantry_spec.manifest.quantities import Duration, Size

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
"""A name that becomes part of the names of pods and Services."""
SecretName = Annotated[str, msgspec.Meta(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
ResourceName = Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=r"^[%|a-zA-Z0-9_-]+$")]
HostName = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=253, pattern=r"^([*][.])?[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?$|^[0-9a-fA-F:.]+$"
    ),
]
"""A host name, which may begin with `*.`, or an IP address."""
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=300, pattern=r"^.+:[0-9]{1,5}$")]
Replicas = Annotated[int, msgspec.Meta(ge=0, le=9)]

SHARDS_MAX: Final = 64
SLAVES_MAX: Final = 8
PORT_MAX: Final = 65_535
PORTS_PER_SHARD: Final = SLAVES_MAX + 2
"""The ports of a shard at a Gateway: one for its master, and one for each member of a shard with the most slaves."""

FIRST_PORT_MAX: Final = PORT_MAX - PORTS_PER_SHARD * SHARDS_MAX - SLAVES_MAX - 1
"""The greatest first port at a Gateway. It leaves room for the most shards and slaves, so that any scale-out fits."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The base class of all parts. It is never used itself."""


class ReplicationMode(StrEnum):
    """Whether an acknowledgement waits for slaves."""

    ASYNC = "Async"
    SYNC = "Sync"


class AckLevel(StrEnum):
    """Which acknowledgement of a slave counts for a send."""

    RECEIVED = "Received"
    FLUSHED = "Flushed"


class FlushMode(StrEnum):
    """Whether an acknowledgement waits for the disk."""

    ASYNC = "Async"
    SYNC = "Sync"


class Medium(StrEnum):
    """The memory in which the write buffer is placed."""

    OFF = "Off"
    MEMORY = "Memory"
    HUGE_PAGES = "HugePages-2Mi"


class FailoverMode(StrEnum):
    """Whether another member replaces a failed master automatically, on request, or never.

    Switchovers without loss, such as those of a rolling update, do not need ``Automatic``.
    """

    DISABLED = "Disabled"
    MANUAL = "Manual"
    AUTOMATIC = "Automatic"


class Retain(StrEnum):
    """Whether volumes are kept when the group is deleted."""

    ALWAYS = "Always"
    NEVER = "Never"


class ExternalType(StrEnum):
    """How clients outside the cluster reach the brokers."""

    NONE = "None"
    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"
    GATEWAY = "Gateway"


class CertificateIssuer(StrEnum):
    """Who issues the certificates of a group's pods."""

    NONE = "None"
    OPERATOR = "Operator"
    CERT_MANAGER = "CertManager"


@final
class NameServers(Part, frozen=True):
    """The name servers where brokers register and clients get routes."""

    replicas: Annotated[int, msgspec.Meta(ge=1, le=9)] | None = None
    """The number of name servers that run with this group. The default is 2 if no `addresses` are given."""

    addresses: Annotated[list[Address], msgspec.Meta(max_length=16)] = []
    """The addresses (`host:port`) of existing name servers. If they are given, none are created."""

    @property
    def count(self) -> int:
        """How many name servers are created for the group."""
        if self.addresses:
            return 0
        return 2 if self.replicas is None else self.replicas


@final
class Replication(Part, frozen=True):
    """How messages are replicated, and which acknowledgements a send waits for."""

    mode: ReplicationMode = ReplicationMode.SYNC
    """`Sync` acknowledges a send when `inSyncReplicas - 1` slaves have the message. `Async` does not wait for
    slaves."""

    in_sync_replicas: Annotated[int, msgspec.Meta(ge=1, le=9)] | None = None
    """How many brokers, including the master, must have a message before it is acknowledged. The default with `Sync` is
    2."""

    ack_timeout: Duration = Duration(3_000)
    """With `Sync`, how long a send waits for slaves. After that it is answered with code 12: stored, but not
    replicated."""

    ack: AckLevel | None = None
    """`Received`: a slave counts when a crash of its process cannot lose the message. `Flushed`: when it is on its
    disk, so that a power failure of all machines loses nothing. The default with `Sync` is `Flushed`."""

    max_lag: Size = Size(256 << 20)
    """A slave that lags farther behind is not waited for, and is not ready. Consumers may still read old messages from
    it."""

    @property
    def acks_needed(self) -> int:
        """How many slaves must have a message before it is acknowledged."""
        if self.mode is ReplicationMode.ASYNC:
            return 0
        return (2 if self.in_sync_replicas is None else self.in_sync_replicas) - 1

    @property
    def waits_for_disks(self) -> bool:
        """Whether a slave counts for a send only when the message is on its disk."""
        return self.acks_needed > 0 and self.ack is not AckLevel.RECEIVED


@final
class Flush(Part, frozen=True):
    """When messages are flushed to disk."""

    mode: FlushMode = FlushMode.ASYNC
    """`Sync` acknowledges a send when the message is on the master's disk. `Async` flushes every `interval`."""

    interval: Duration = Duration(500)
    """The flush interval with `Async`. A power loss of the master's machine may lose this much, if no slave has it. A
    slave whose disk is waited for (`replication.ack`) flushes at once."""


@final
class WriteBuffer(Part, frozen=True):
    """The write buffer, which takes messages before the page cache. It survives a broker crash, but not its pod."""

    medium: Medium = Medium.OFF
    """The memory of the write buffer. `HugePages-2Mi` and `Memory` survive a broker crash. `Off` uses the page
    cache."""

    buffers: Annotated[int, msgspec.Meta(ge=2, le=64)] = 3
    """The number of buffers of `segmentSize`. Their memory is added to the pod's requests automatically."""

    segment_size: Size = Size(1 << 30)
    """The size of a log file, and so of a buffer. It cannot be changed once a store exists."""


@final
class Storage(Part, frozen=True):
    """The volume of each broker, and how long messages are kept."""

    size: Size = Size(20 << 30)
    """The size of each volume. It may only grow."""

    storage_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """The storage class of the volumes. Empty: the cluster's default class. It cannot be changed."""

    retain: Retain = Retain.ALWAYS
    """Whether volumes are kept when the group is deleted. `Always` also keeps those of slaves that were scaled in."""

    reserved_time: Duration = Duration(72 * 3_600_000)
    """How long messages are kept."""

    replace_after: Duration = Duration(0)
    """How long to wait for a lost volume before its broker starts with an empty one. `0s`: until a person requests
    it, or declares the machine to be out of service."""


@final
class Durability(Part, frozen=True):
    """How much acknowledged data may be at risk. While more is at risk, no slave that is in sync is restarted or
    removed."""

    max_at_risk_bytes: Size = Size(64 << 20)
    """How many bytes a power loss of a master's machine, whose disk survives, may lose at any moment."""

    max_at_risk: Duration = Duration(1_000)
    """How old the oldest message at risk may be."""


@final
class Failover(Part, frozen=True):
    """What happens when a master fails."""

    mode: FailoverMode = FailoverMode.AUTOMATIC
    """`Automatic` replaces a failed master within `maxDataLossBytes`, `Manual` only on request, `Disabled` never. A
    master that returns with all its data continues in every mode. Planned changes move the role without loss: with
    `Automatic` and `Manual` for any reason, with `Disabled` only if the master itself is scaled in."""

    max_data_loss_bytes: Size = Size(0)
    """How much an automatic failover may lose. With 0 it happens only if it provably loses nothing, which is rarely the
    case in an `Async` group; the status shows the possible loss."""

    after: Duration = Duration(5_000)
    """How long a master must be unreachable for the operator and for its slaves before it counts as failed."""

    switchback: bool = False
    """Whether the master role returns to member 1 once that is in sync again. It stays away while a member has to be
    restarted, or the machine of member 1 is being drained."""


@final
class Backup(Part, frozen=True):
    """Backups: VolumeSnapshots of one volume of each shard, which the cluster's CSI driver makes while brokers run."""

    schedule: Annotated[str, msgspec.Meta(max_length=100, pattern=r"^(\S+( \S+){4})?$")] = ""
    """When backups are made, as in a CronJob (`0 3 * * *`, UTC). Empty: only on request (`gantry backup`)."""

    keep: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 7
    """How many complete backups are kept. Older ones are deleted, never the last."""

    snapshot_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """The VolumeSnapshotClass. Empty: the driver's default class."""


@final
class GatewayReference(Part, frozen=True):
    """An existing Gateway of the Gateway API. It is used only with type `Gateway`, which needs its name."""

    name: SecretName = ""
    """The name of the Gateway."""

    namespace: Annotated[str, msgspec.Meta(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")] = ""
    """The namespace of the Gateway. Empty: that of the group. Its listeners must allow routes of the group's
    namespace."""

    first_port: Annotated[int, msgspec.Meta(ge=1, le=FIRST_PORT_MAX)] = 9876
    """The port of the name servers at the Gateway. The ports of brokers follow from it: `firstPort + 10 * (S + 1)` for
    the master of shard S, and the following ones for its members. Groups at one Gateway need different ranges."""


@final
class External(Part, frozen=True):
    """Access from outside the cluster."""

    type: ExternalType = ExternalType.NONE
    """The type of each broker's external Service, or `Gateway`: one port of a Gateway for each broker. `None`: brokers
    are reachable only inside the cluster."""

    annotations: dict[str, str] = {}
    """The annotations of these Services, and with type `Gateway` also of the TCPRoutes."""

    gateway: GatewayReference = GatewayReference()
    """The Gateway through which external clients connect, with type `Gateway`. Other types ignore it."""


@final
class IssuerRef(Part, frozen=True):
    """The issuer of cert-manager that issues the certificate."""

    name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """The name of the issuer."""

    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=63)] = "Issuer"
    """The kind of the issuer: `Issuer`, `ClusterIssuer`, or a kind of another `group`."""

    group: Annotated[str, msgspec.Meta(min_length=1, max_length=253)] = "cert-manager.io"
    """The API group of the kind."""


@final
class Certificates(Part, frozen=True):
    """Certificates that are issued for the group, and renewed while its pods run."""

    issuer: CertificateIssuer = CertificateIssuer.NONE
    """`Operator`: the group gets an authority of its own, and each pod a certificate with its names and addresses.
    `CertManager`: cert-manager issues one certificate for all pods. `None`: the Secret in `tlsSecret`, or no TLS.
    TLS cannot be switched on or off later, and `Operator` cannot become another issuer, or another one `Operator`."""

    issuer_ref: IssuerRef = IssuerRef()
    """The issuer of cert-manager. It must put its authority into `ca.crt`, which issuers of type ACME do not."""

    names: Annotated[list[HostName], msgspec.Meta(max_length=50)] = []
    """Additional host names and IP addresses in the certificates, for example those of a load balancer."""


@final
class Access(Part, frozen=True):
    """Authentication, TLS and external access."""

    acl_secret: SecretName = ""
    """The name of a Secret with accounts. Empty: no authentication, every client may do everything. It may be
    replaced."""

    tls_secret: SecretName = ""
    """The name of a Secret with `tls.crt`, `tls.key` and `ca.crt`. Empty: no TLS. The certificate may be renewed, or
    replaced by another Secret of the same authority, at any time. TLS cannot be switched on or off later."""

    certificates: Certificates = Certificates()
    """Certificates that are issued for the group, instead of those in `tlsSecret`."""

    external: External = External()
    """Access from outside the cluster."""

    @property
    def has_tls(self) -> bool:
        """Whether the ports of all pods accept only TLS connections."""
        return bool(self.tls_secret) or self.certificates.issuer is not CertificateIssuer.NONE

    @property
    def has_own_authority(self) -> bool:
        """Whether the group has an authority of its own, with which pods issue their certificates."""
        return self.certificates.issuer is CertificateIssuer.OPERATOR


@final
class Topic(Part, frozen=True):
    """A topic that the operator creates and updates. It is never deleted."""

    name: ResourceName
    """The name of the topic."""

    queues: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    """The number of queues on each shard."""


@final
class ConsumerGroup(Part, frozen=True):
    """A consumer group that the operator creates and updates. It is never deleted. Settings that are not listed here
    keep the values that an administrator has set."""

    name: ResourceName
    """The name of the consumer group."""

    retry_max: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 16
    """How often a message is redelivered before it goes to the dead letter queue."""


class PodSettings(Part, frozen=True):
    """Settings that are copied into pods unchanged. It is the base of the templates of brokers and of proxies."""

    annotations: dict[str, str] = {}
    """The annotations of the pods."""

    labels: dict[str, str] = {}
    """The labels of the pods. Reserved labels and annotations are ignored: names that start with `gantry.dev/`,
    `reads.gantry.dev/`, `app.kubernetes.io/`, `apps.kubernetes.io/` or `statefulset.kubernetes.io/`."""

    node_selector: dict[str, str] = {}
    """The node selector of the pods, as in a pod's spec."""

    tolerations: list[dict[str, Any]] = []
    """The tolerations of the pods, as in a pod's spec."""

    affinity: dict[str, Any] = {}
    """The affinity of the pods, as in a pod's spec. The operator adds that brokers of one shard never share a machine,
    and that proxies prefer different ones."""

    topology_spread_constraints: list[dict[str, Any]] = []
    """The topology spread constraints of the pods, as in a pod's spec."""

    priority_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """The priority class of the pods, as in a pod's spec."""

    runtime_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """The runtime class of the pods, as in a pod's spec. It must exist: the API server refuses pods of one that is
    missing."""


@final
class Template(PodSettings, frozen=True):
    """Settings that are copied into the pods of brokers unchanged."""

    termination_grace_period: Duration = Duration(120_000)
    """How long a pod may take to stop when it is deleted. Its broker gets 10 s less, and at most 60 s."""
