"""The parts of a pipeline's spec, with the fields, their bounds, defaults and descriptions.

The source, the transport, the destination and the Spark engine are the same for all three kinds of pipeline. The names
of modes are those of Spark and the jobs (`slaveFirst`, `http`, `zstd`), since the same text is the configuration of
`gantry pipeline` on a laptop, which `gantry_pipelines.config` parses with these types.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, final

import msgspec

from gantry_spec.manifest.parts import Address, Name, Part, SecretName
from gantry_spec.manifest.quantities import Duration, Size

ObjectName = SecretName
GroupName = Annotated[str, msgspec.Meta(max_length=120, pattern=r"^[%|a-zA-Z0-9_-]*$")]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
_FOLDER: Final = r"(\.{0,2}[A-Za-z0-9_-]|\.{3})[A-Za-z0-9_.-]*"
"""A folder's name that is neither ``.`` nor ``..``: two pipelines must not write to one folder under two paths."""

Path = Annotated[str, msgspec.Meta(max_length=500, pattern=rf"^({_FOLDER}(/{_FOLDER})*)?$")]
Schedule = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^(@[a-z]+|[^ @]+( [^ ]+){4})?$")]
Start = Annotated[
    str,
    msgspec.Meta(
        max_length=200,
        pattern=r"^(earliest|latest|group:[%|a-zA-Z0-9_-]+|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2}))$",
    ),
]
TimeZone = Annotated[str, msgspec.Meta(min_length=1, max_length=60, pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$")]
ColumnName = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class ReadFrom(StrEnum):
    """Which replicas of a broker are read."""

    SLAVE = "slave"
    SLAVE_FIRST = "slaveFirst"
    MASTER = "master"


class Transport(StrEnum):
    """How records are read from brokers."""

    AUTO = "auto"
    FILE = "file"
    HTTP = "http"
    PULL = "pull"


class EngineMode(StrEnum):
    """The mode in which Spark's executors run."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


class OnDataLoss(StrEnum):
    """What happens if messages were deleted before they were read."""

    FAIL = "fail"
    RECORD = "record"


class Compression(StrEnum):
    """The compression of Parquet files."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    NONE = "none"


class PartitionUnit(StrEnum):
    """The time that the files of one folder of an archive have."""

    DAY = "day"
    HOUR = "hour"


class AuditCheck(StrEnum):
    """A comparison that an audit makes."""

    REPLICAS = "replicas"
    INDEX = "index"
    ARCHIVE = "archive"


class TableFormat(StrEnum):
    """A format of tables to which an archive is published."""

    ICEBERG = "iceberg"
    DELTA = "delta"


class CatalogKind(StrEnum):
    """The kind of an Iceberg catalog."""

    FOLDER = "folder"
    SQL = "sql"
    REST = "rest"


class BodyFormat(StrEnum):
    """The format of the bodies of a topic."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Column(StrEnum):
    """A column that an archive keeps of a message in addition to its id, queue, offset and times."""

    TAGS = "tags"
    KEYS = "keys"
    PROPERTIES = "properties"
    BODY = "body"


@final
class Topics(Part, frozen=True):
    """The topics to read, as regular expressions that must match a whole name."""

    include: Annotated[list[Pattern], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=lambda: [".*"])
    """Topics that match one of these are read. RocketMQ's system topics never are."""

    exclude: Annotated[list[Pattern], msgspec.Meta(max_length=100)] = msgspec.field(
        default_factory=lambda: ["%RETRY%.*", "%DLQ%.*"]
    )
    """Topics that match one of these are not read, even if they are included."""


@final
class Access(Part, frozen=True):
    """Credentials and TLS of the clients. Empty fields are taken from the group that is read."""

    credentials_secret: SecretName = ""
    """The name of a Secret whose key `credentials` has `accessKey` and `secretKey`, as in RocketMQ's `tools.yml`.
    Empty: the credentials in the group's `access.aclSecret`."""

    tls_secret: SecretName = ""
    """The name of a Secret with the `ca.crt` by which servers are verified. Empty: the group's `access.tlsSecret`."""


@final
class Volume(Part, frozen=True):
    """A folder on an existing PersistentVolumeClaim."""

    claim_name: ObjectName = ""
    """The name of the PersistentVolumeClaim in the same namespace. The claim is never created or deleted."""

    path: Path = ""
    """The folder on the volume. Empty: its root."""


@final
class Destination(Part, frozen=True):
    """A place where files are written."""

    pvc: Volume = Volume()
    """A folder on a PersistentVolumeClaim."""


@final
class Limits(Part, frozen=True):
    """The limits of one batch."""

    max_rows_per_trigger: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = 5_000_000
    """The greatest number of messages in one batch."""

    max_bytes_per_trigger: Size = Size(4 << 30)
    """The greatest number of bytes of the log in one batch."""


@final
class Driver(Part, frozen=True):
    """The driver pod, which plans the work and in mode `local` also executes it."""

    heap: Size = Size(1 << 30)
    """The heap of the JVM. Python needs memory in addition, and both must fit into `resources.limits`."""

    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    """The resources of the container, as in a pod. Empty: half a core, and heap plus 1 GiB as memory request and
    limit."""


@final
class Executors(Part, frozen=True):
    """The executor pods, which execute the work in mode `kubernetes`."""

    instances: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    """The number of executor pods."""

    cores: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    """The number of concurrent tasks in each executor, and its CPU request."""

    heap: Size = Size(1 << 30)
    """The heap of each JVM."""

    memory_overhead: Size = Size(1 << 30)
    """Memory for Python workers and Arrow buffers. The memory request and limit are the heap plus this."""


@final
class PodTemplate(Part, frozen=True):
    """Settings that are copied into the pods of driver and executors unchanged."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """The annotations of the pods."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """The labels of the pods. Reserved labels and annotations are ignored: names that start with `spark-`,
    `gantry.dev/`, `reads.gantry.dev/`, `app.kubernetes.io/`, `apps.kubernetes.io/` or `statefulset.kubernetes.io/`."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    """The node selector of the pods, as in a pod's spec."""

    tolerations: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """The tolerations of the pods, as in a pod's spec."""

    affinity: dict[str, Any] = msgspec.field(default_factory=dict)
    """The affinity of the pods, as in a pod's spec."""

    priority_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """The priority class of the pods, as in a pod's spec."""

    runtime_class_name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """The runtime class of the pods, as in a pod's spec. It must exist: the API server refuses pods of one that is
    missing."""


@final
class Engine(Part, frozen=True):
    """The settings of Spark and its pods."""

    mode: EngineMode = EngineMode.LOCAL
    """`local`: one pod plans and executes. `kubernetes`: the driver pod plans, and executors run in pods of their
    own."""

    image: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """The image of driver and executors. Empty: the operator's default (`pipelineImage` of its chart)."""

    cores: Annotated[int, msgspec.Meta(ge=0, le=512)] = 0
    """The number of concurrent tasks in mode `local`. 0: the number of the machine's cores."""

    driver: Driver = Driver()
    """The settings of the driver pod."""

    executor: Executors = Executors()
    """The settings of the executor pods in mode `kubernetes`."""

    spark_conf: Annotated[dict[str, str], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=dict)
    """Additional settings of Spark. Settings that other fields or Gantry itself control are refused."""

    pod_template: PodTemplate = PodTemplate()
    """Settings that are copied into the pods unchanged."""


class PipelineSpec(Part, frozen=True):
    """The fields that all pipelines have."""

    broker_groups: Annotated[list[Name], msgspec.Meta(max_length=1)] = msgspec.field(default_factory=list)
    """The name of the BrokerGroup to read, in the same namespace. Name servers, sidecars, credentials and the
    certificate authority are taken from it. At most one."""

    name_servers: Annotated[list[Address], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    """The addresses (`host:port`) of name servers, if no group is named."""

    topics: Topics = Topics()
    """The topics that the pipeline reads."""

    read_from: ReadFrom = ReadFrom.SLAVE_FIRST
    """The replicas to read. `slaveFirst` reads the master if no slave answers."""

    transport: Transport = Transport.AUTO
    """How records are read. `auto` uses the first of `file`, `http` and `pull` that a replica offers, and the next if
    that fails. `http` reads ranges of the log from sidecars. `pull` uses RocketMQ's protocol. `file` reads stores on
    the same machine, so it is refused in a cluster."""

    access: Access = Access()
    """Credentials and TLS of the clients."""

    schedule: Schedule = ""
    """When runs start, as in a CronJob (`*/10 * * * *`, UTC). A run processes the available messages. Runs never
    overlap."""

    suspend: bool = False
    """Whether no run may start. A continuous run is stopped, and so is an audit without a `schedule`; a scheduled run
    that has started may finish."""

    engine: Engine = Engine()
    """The settings of Spark and its pods."""


@final
class Layout(Part, frozen=True):
    """The layout of an archive's files."""

    time_zone: TimeZone = "UTC"
    """The time zone of the partitions. It cannot be changed."""

    partition_by: PartitionUnit = PartitionUnit.DAY
    """The partitions of files and tables: `day`, or `hour` for an hour within each day. It cannot be changed."""

    compression: Compression = Compression.ZSTD
    """The compression of new files."""

    rows_per_file: Annotated[int, msgspec.Meta(ge=1000, le=100_000_000)] = 100_000
    """Files end at queue offsets that are multiples of this, so a repeated run creates the same files. It cannot be
    changed."""

    target_file_size: Size = Size(256 << 20)
    """The target size of the files that compaction creates."""

    compact_after: Duration = Duration(24 * 3_600_000)
    """How long after the end of a partition its files are compacted."""


@final
class SchemaColumn(Part, frozen=True):
    """A typed column of a topic."""

    name: ColumnName
    """The name of the column in files and tables."""

    type: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    """The type of the column: `boolean`, `int`, `bigint`, `float`, `double`, `decimal(P,S)`, `string`, `binary` (Base64
    in JSON), `date`, `timestamp`, `array<T>`, `map<K,V>` or `struct<NAME:T>`. Required for `json`. The other formats
    take it from the schema; set it to leave out fields of a `struct`."""

    field: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """The field of the body that the column has. Empty: the field with the column's name."""


@final
class TopicSchema(Part, frozen=True):
    """The schema of the bodies of some topics, whose fields become typed columns."""

    topics: Annotated[list[Pattern], msgspec.Meta(min_length=1, max_length=100)]
    """Topics that match one of these have this schema. Regular expressions that must match a whole name; the first
    schema that matches counts."""

    format: BodyFormat = BodyFormat.JSON
    """The format of the bodies. `raw`: these topics have no typed columns, even if a later schema matches."""

    columns: Annotated[list[SchemaColumn], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=list)
    """The typed columns. Required for `json`. Empty for `avro` and `protobuf`: one column for each field."""

    schema: Annotated[str, msgspec.Meta(max_length=300_000)] = ""
    """The schema. `avro`: a record as JSON (the content of an `.avsc` file). `protobuf`: a descriptor set in Base64
    (`protoc --include_imports --descriptor_set_out=FILE`)."""

    older_schemas: Annotated[list[Annotated[str, msgspec.Meta(max_length=300_000)]], msgspec.Meta(max_length=20)] = (
        msgspec.field(default_factory=list)
    )
    """Earlier schemas of the bodies for `avro`, the newest first: a body that does not have `schema` is decoded by the
    first of these that it has. Columns that this one lacks are null."""

    schema_file: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """A file with the schema instead of `schema`, for `gantry pipeline` only: an `.avsc` file, or a descriptor set. A
    pod has no such file."""

    message: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """The full name of the message for `protobuf`, such as `shop.Order`."""

    skip_bytes: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """The bytes before the encoded value: 5 if the bodies have the header of a schema registry with a magic byte and a
    32-bit id."""


@final
class Retention(Part, frozen=True):
    """How long archived messages are kept."""

    days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 0
    """The number of days that are kept; older ones are deleted. 0: nothing is deleted."""


@final
class Catalog(Part, frozen=True):
    """The catalog of the Iceberg tables."""

    kind: CatalogKind = CatalogKind.FOLDER
    """`folder`: the metadata is beside the files, and needs no server. `sql`: a database. `rest`: a server of Iceberg's
    REST protocol."""

    namespace: Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=r"^[a-zA-Z0-9_]+$")] = "gantry"
    """The namespace of the tables."""

    properties: Annotated[dict[str, str], msgspec.Meta(max_length=50)] = msgspec.field(default_factory=dict)
    """The properties of the catalog, as PyIceberg names them, such as `uri`. Without secrets."""


@final
class Tables(Part, frozen=True):
    """The tables to which an archive is published."""

    formats: Annotated[list[TableFormat], msgspec.Meta(max_length=2)] = msgspec.field(default_factory=list)
    """The formats of the tables; each topic has one table in each. Empty: no tables."""

    catalog: Catalog = Catalog()
    """The catalog of the Iceberg tables."""

    snapshot_age: Duration = Duration(24 * 3_600_000)
    """How long old snapshots, and files that only they have, stay readable."""
