"""What a pipeline is told: the body of its resource, and the same file on a laptop.

A configuration is a `TopicArchive`, `LogAudit` or `TopicAnalytics` as it is handed to Kubernetes, whole or only its
`spec`. What differs from machine to machine is not in it: where name servers and sidecars answer, and where a volume
is mounted, stand in the one part `here`, which the operator writes for its pods and a person writes, or sets with
`--set here.…=`, on a machine of their own.

Fields, bounds and defaults are those of `gantry_spec.pipelines`, of which the custom resources are made; a test holds
both together, since neither package may import the other. Each field is described there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, final

import msgspec

from gantry_pipelines.amounts import Duration, Size
from pyspark_rocketmq.model import ReadFrom, TransportKind

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
ObjectName = Annotated[str, msgspec.Meta(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
GroupName = Annotated[str, msgspec.Meta(max_length=120, pattern=r"^[%|a-zA-Z0-9_-]*$")]
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=300, pattern=r"^.+:[0-9]{1,5}$")]
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


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Root of all parts. Never written itself."""


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
    """Which topics."""

    include: Annotated[list[Pattern], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=lambda: [".*"])
    exclude: Annotated[list[Pattern], msgspec.Meta(max_length=100)] = msgspec.field(
        default_factory=lambda: ["%RETRY%.*", "%DLQ%.*"]
    )


@final
class Access(Part, frozen=True):
    """As whom, and by which authority."""

    credentials_secret: ObjectName = ""
    tls_secret: ObjectName = ""


@final
class Volume(Part, frozen=True):
    """A folder on a claim."""

    claim_name: ObjectName = ""
    path: Path = ""


@final
class Destination(Part, frozen=True):
    """Where results go."""

    pvc: Volume = Volume()


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
    resources: dict[str, Any] = msgspec.field(default_factory=dict)


@final
class Executors(Part, frozen=True):
    """The pods that do the work in mode `kubernetes`."""

    instances: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    cores: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    heap: Size = Size(1 << 30)
    memory_overhead: Size = Size(1 << 30)


@final
class PodTemplate(Part, frozen=True):
    """What is put into pods as it is."""

    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    priority_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""


@final
class Engine(Part, frozen=True):
    """Spark, and the pods it runs in."""

    mode: EngineMode = EngineMode.LOCAL
    image: Annotated[str, msgspec.Meta(max_length=500)] = ""
    cores: Annotated[int, msgspec.Meta(ge=0, le=512)] = 0
    driver: Driver = Driver()
    executor: Executors = Executors()
    spark_conf: Annotated[dict[str, str], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=dict)
    pod_template: PodTemplate = PodTemplate()


@final
class Here(Part, frozen=True):
    """What is so on this machine only: written by the operator into what its pods read, or by a person."""

    name_servers: list[Address] = []
    sidecars: list[str] = []
    """Base URLs."""

    directories: dict[str, str] = {}
    """Broker, or broker:number, to the directory of its store."""

    access_file: str = ""
    """With `accessKey` and `secretKey`, as RocketMQ's `tools.yml`."""

    token_files: dict[str, str] = {}
    """Base URL of a sidecar, or its beginning, or `*`, to the file with its token for reading."""

    ca_file: str = ""
    """Of the authority of brokers, name servers and sidecars; empty: no TLS, or the system's authorities."""

    host_names_checked: bool = True
    """Whether a certificate has to name its host. A group's pods are vouched for by their authority alone."""

    certificate_file: str = ""
    key_file: str = ""
    destination: str = ""
    """Folder of the results; in a pod, where the claim is mounted, with `path` behind it."""

    checkpoint: str = ""
    """Folder of the checkpoint; empty: the job puts it beside its results."""

    spark_conf: dict[str, str] = {}
    """Where Spark's executors run, as whoever made this pod says it; goes before `engine.sparkConf`."""

    archive: str = ""
    """Folder of the archive that an audit compares with the log."""

    once: bool = False
    """Do what is there and end, whatever `schedule` says: what a CronJob's pods are told, and `--once`."""


class PipelineConfig(Part, frozen=True):
    """What every pipeline is told."""

    broker_groups: Annotated[list[Name], msgspec.Meta(max_length=1)] = []
    name_servers: Annotated[list[Address], msgspec.Meta(max_length=16)] = []
    topics: Topics = Topics()
    read_from: ReadFrom = ReadFrom.SLAVE_FIRST
    transport: TransportKind = TransportKind.AUTO
    access: Access = Access()
    schedule: Schedule = ""
    suspend: bool = False
    engine: Engine = Engine()
    here: Here = Here()

    @property
    def is_continuous(self) -> bool:
        """Whether it goes on until it is stopped, where its kind can do that at all."""
        return not self.schedule and not self.here.once

    @property
    def reached_by(self) -> tuple[str, ...]:
        """The name servers to ask: those seen from here, else those of the resource."""
        return tuple(self.here.name_servers or self.name_servers)


@final
class Layout(Part, frozen=True):
    """How an archive lies there."""

    time_zone: TimeZone = "UTC"
    compression: Compression = Compression.ZSTD
    rows_per_file: Annotated[int, msgspec.Meta(ge=1000, le=100_000_000)] = 100_000
    target_file_size: Size = Size(256 << 20)
    compact_after: Duration = Duration(24 * 3_600_000)


@final
class Retention(Part, frozen=True):
    """How long an archive is kept."""

    days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 0


class ArchiveConfig(PipelineConfig, frozen=True):
    """A `TopicArchive`."""

    start: Start = "earliest"
    trigger: Duration = Duration(60_000)
    limits: Limits = Limits()
    columns: list[Column] = msgspec.field(default_factory=lambda: list(Column))
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    commit_group: GroupName = ""
    destination: Destination = Destination()
    checkpoint: Destination = Destination()
    layout: Layout = Layout()
    retention: Retention = Retention()


@final
class AuditConfig(PipelineConfig, frozen=True):
    """A `LogAudit`."""

    checks: Annotated[list[AuditCheck], msgspec.Meta(min_length=1, max_length=3)] = msgspec.field(
        default_factory=lambda: [AuditCheck.REPLICAS, AuditCheck.INDEX]
    )
    chunk: Size = Size(64 << 20)
    findings_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 100_000
    archive: Name | None = None
    destination: Destination = Destination()


@final
class AnalyticsConfig(PipelineConfig, frozen=True):
    """A `TopicAnalytics`."""

    start: Start = "earliest"
    trigger: Duration = Duration(60_000)
    limits: Limits = Limits()
    window: Duration = Duration(60_000)
    watermark: Duration = Duration(60_000)
    hot_keys: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    consumer_groups: Annotated[list[GroupName], msgspec.Meta(max_length=100)] = []
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    destination: Destination = Destination()
    checkpoint: Destination = Destination()


KINDS: dict[str, type[PipelineConfig]] = {
    "TopicArchive": ArchiveConfig,
    "LogAudit": AuditConfig,
    "TopicAnalytics": AnalyticsConfig,
}
"""By the kind of the resource."""
