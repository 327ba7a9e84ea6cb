"""The parts of a pipeline's spec, each with its fields, their bounds and defaults, and what they are for.

Three kinds of resource share them: what is read, how, where results go, and which Spark does it. Names of modes are
Spark's and the jobs' own (`slaveFirst`, `http`, `zstd`), since the same text is the configuration of
`gantry pipeline` on a laptop, which `gantry_pipelines.config` reads by these types.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, final

import msgspec

from gantry_spec.manifest.parts import Address, Name, Part, SecretName
from gantry_spec.manifest.quantities import Duration, Size

ObjectName = SecretName
GroupName = Annotated[str, msgspec.Meta(max_length=120, pattern=r"^[%|a-zA-Z0-9_-]*$")]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Path = Annotated[str, msgspec.Meta(max_length=500, pattern=r"^([A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*)?$")]
Schedule = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^(@[a-z]+|[^ @]+( [^ ]+){4})?$")]
Start = Annotated[
    str,
    msgspec.Meta(
        max_length=200,
        pattern=r"^(earliest|latest|group:[%|a-zA-Z0-9_-]+|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2}))$",
    ),
]
TimeZone = Annotated[str, msgspec.Meta(min_length=1, max_length=60, pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$")]


class ReadFrom(StrEnum):
    """Which replicas of a broker are read."""

    SLAVE = "slave"
    SLAVE_FIRST = "slaveFirst"
    MASTER = "master"


class Transport(StrEnum):
    """By which way records come."""

    AUTO = "auto"
    FILE = "file"
    HTTP = "http"
    PULL = "pull"


class EngineMode(StrEnum):
    """Where Spark's executors run."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


class OnDataLoss(StrEnum):
    """What becomes of messages that are gone before they were read."""

    FAIL = "fail"
    RECORD = "record"


class Compression(StrEnum):
    """Of Parquet files."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    NONE = "none"


class AuditCheck(StrEnum):
    """What an audit compares."""

    REPLICAS = "replicas"
    INDEX = "index"
    ARCHIVE = "archive"


class Column(StrEnum):
    """What an archive keeps of a message besides where and when it was."""

    TAGS = "tags"
    KEYS = "keys"
    PROPERTIES = "properties"
    BODY = "body"


@final
class Topics(Part, frozen=True):
    """Which topics, by regular expressions that a whole name has to fit."""

    include: Annotated[list[Pattern], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=lambda: [".*"])
    """Topics that are read: those that fit one of these. RocketMQ's own never are."""

    exclude: Annotated[list[Pattern], msgspec.Meta(max_length=100)] = msgspec.field(
        default_factory=lambda: ["%RETRY%.*", "%DLQ%.*"]
    )
    """Topics that are not, though they do."""


@final
class Access(Part, frozen=True):
    """As whom, and by which authority. What is left out is taken from the group that is read."""

    credentials_secret: SecretName = ""
    """A Secret whose `credentials` has `accessKey` and `secretKey`, as RocketMQ's `tools.yml`; empty: that of the
    group's `access.aclSecret`."""

    tls_secret: SecretName = ""
    """A Secret with `ca.crt`, and `tls.crt` and `tls.key` where clients show certificates; empty: the `ca.crt` of the
    group's `access.tlsSecret`."""


@final
class Volume(Part, frozen=True):
    """A folder on a claim that exists."""

    claim_name: ObjectName = ""
    """Of the PersistentVolumeClaim, in the namespace of the resource. It is never made and never deleted."""

    path: Path = ""
    """Folder on it; empty: its root."""


@final
class Destination(Part, frozen=True):
    """A place for files."""

    pvc: Volume = Volume()
    """A folder on a claim."""


@final
class Limits(Part, frozen=True):
    """How much at once."""

    max_rows_per_trigger: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = 5_000_000
    """Messages in one batch at most."""

    max_bytes_per_trigger: Size = Size(4 << 30)
    """Bytes of the log in one batch at most."""


@final
class Driver(Part, frozen=True):
    """The pod that plans, and in mode `local` does everything."""

    heap: Size = Size(1 << 30)
    """Of the JVM. Python's own memory comes on top, and both have to fit into `resources.limits`."""

    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of the container, as in a pod; empty: half a core, and heap and 1 GiB as request and limit of memory."""


@final
class Executors(Part, frozen=True):
    """The pods that do the work in mode `kubernetes`."""

    instances: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    """How many there are."""

    cores: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    """Tasks at a time in each, and the CPU that is requested."""

    heap: Size = Size(1 << 30)
    """Of each JVM."""

    memory_overhead: Size = Size(1 << 30)
    """For everything else in the pod: Python's workers, and Arrow's buffers. Heap and this are request and limit."""


@final
class PodTemplate(Part, frozen=True):
    """What is put into the pods of driver and executors as it is."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """Of pods."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Of pods; names with `gantry.dev/` are ours, and names with `spark-` Spark's."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    """As in a pod."""

    tolerations: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """As in a pod."""

    affinity: dict[str, Any] = msgspec.field(default_factory=dict)
    """As in a pod."""

    priority_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """As in a pod."""


@final
class Engine(Part, frozen=True):
    """Spark, and the pods it runs in."""

    mode: EngineMode = EngineMode.LOCAL
    """`local`: one pod does everything. `kubernetes`: that pod plans, and executors are pods of their own."""

    image: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Of driver and executors; empty: the operator's own."""

    cores: Annotated[int, msgspec.Meta(ge=0, le=512)] = 0
    """Tasks at a time in mode `local`; 0: as many as the machine has cores."""

    driver: Driver = Driver()
    """The pod that plans."""

    executor: Executors = Executors()
    """The pods that work in mode `kubernetes`."""

    spark_conf: Annotated[dict[str, str], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=dict)
    """More of Spark's own settings. What the fields here decide is refused."""

    pod_template: PodTemplate = PodTemplate()
    """What is put into pods as it is."""


class PipelineSpec(Part, frozen=True):
    """What every pipeline is told."""

    broker_groups: Annotated[list[Name], msgspec.Meta(max_length=1)] = msgspec.field(default_factory=list)
    """The BrokerGroup that is read, in the namespace of the resource: name servers, sidecars, credentials and
    authority are taken from it. One, for now."""

    name_servers: Annotated[list[Address], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    """`host:port` of name servers, where no group is named."""

    topics: Topics = Topics()
    """Which topics."""

    read_from: ReadFrom = ReadFrom.SLAVE_FIRST
    """Which replicas are read: `slaveFirst` takes the master where no slave answers."""

    transport: Transport = Transport.AUTO
    """`http` reads ranges of the log from sidecars, `pull` is RocketMQ's protocol; `file` needs stores on this
    machine, so it is refused in a cluster."""

    access: Access = Access()
    """As whom, and by which authority."""

    schedule: Schedule = ""
    """When, as in a CronJob (`*/10 * * * *`, UTC): each run does what is there and ends. Never two at a time."""

    suspend: bool = False
    """Whether nothing is begun. What goes on without a schedule is ended, a run of a schedule is let end."""

    engine: Engine = Engine()
    """Spark, and the pods it runs in."""


@final
class Layout(Part, frozen=True):
    """How an archive lies there."""

    time_zone: TimeZone = "UTC"
    """Whose days they are. Fixed."""

    compression: Compression = Compression.ZSTD
    """Of files that are written from now on."""

    rows_per_file: Annotated[int, msgspec.Meta(ge=1000, le=100_000_000)] = 100_000
    """Files are cut where a queue's offsets are multiples of this, so a run that is done again makes the same files.
    Fixed."""

    target_file_size: Size = Size(256 << 20)
    """Of the files that compaction makes."""

    compact_after: Duration = Duration(24 * 3_600_000)
    """How long after its end a day is compacted."""


@final
class Retention(Part, frozen=True):
    """How long an archive is kept."""

    days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 0
    """Older days are deleted; 0: none ever is."""
