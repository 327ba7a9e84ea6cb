"""The three kinds of pipeline: archive, audit and analytics, each a resource of its own with the same engine."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, final

import msgspec

from gantry_spec.manifest.group import Metadata
from gantry_spec.manifest.parts import Name
from gantry_spec.manifest.quantities import Duration, Size
from gantry_spec.pipelines.parts import (
    AuditCheck,
    Column,
    Destination,
    GroupName,
    Layout,
    Limits,
    OnDataLoss,
    PipelineSpec,
    Retention,
    Start,
    Tables,
    TopicSchema,
)


class ArchiveSpec(PipelineSpec, frozen=True):
    """The topics that are written to Parquet, each message once, and the destination."""

    start: Start = "earliest"
    """Where the first run starts: `earliest`, `latest`, a time such as 2026-01-31T00:00:00Z, or `group:NAME`."""

    trigger: Duration = Duration(60_000)
    """The interval at which batches start, without a `schedule`."""

    limits: Limits = Limits()
    """The limits of one batch."""

    columns: list[Column] = msgspec.field(default_factory=lambda: list(Column))
    """The columns that are kept of a message in addition to its id, queue, offset and times."""

    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    """`fail` stops if messages were deleted before they were archived. `record` counts them and continues."""

    commit_group: GroupName = ""
    """A consumer group to which progress is committed, so that RocketMQ tools show the lag. Empty: none."""

    destination: Destination = Destination()
    """The place of the archive. It cannot be changed, and no other pipeline may use it."""

    checkpoint: Destination = Destination()
    """The place of Spark's checkpoint. Empty: next to the archive. It cannot be changed or shared."""

    layout: Layout = Layout()
    """The layout of the archive's files."""

    retention: Retention = Retention()
    """How long archived messages are kept."""

    tables: Tables = Tables()
    """The Iceberg and Delta tables over the files of the archive."""

    schemas: Annotated[list[TopicSchema], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=list)
    """The schemas of topics, whose fields become typed columns beside the raw body. Columns can be added later, but not
    removed or changed."""


@final
class AuditSpec(PipelineSpec, frozen=True):
    """The comparisons of the audit: replicas with each other, indexes with the log, an archive with the log."""

    checks: Annotated[list[AuditCheck], msgspec.Meta(min_length=1, max_length=3)] = msgspec.field(
        default_factory=lambda: [AuditCheck.REPLICAS, AuditCheck.INDEX]
    )
    """`replicas`: all replicas have the same bytes. `index`: every entry of a queue leads to its message. `archive`:
    the archive has every message that the log has."""

    chunk: Size = Size(64 << 20)
    """How many bytes of the log are compared at a time. `replicas` alone reads only chunks whose checksums differ;
    `index` reads every chunk of one replica."""

    findings_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 100_000
    """The greatest number of findings in the table at the `destination`. The audit continues and counts all."""

    archive: Name | None = None
    """The name of the TopicArchive for the check `archive`, in the same namespace."""

    destination: Destination = Destination()
    """The place of the report and its table. Empty: the result is only in the status."""


@final
class AnalyticsSpec(PipelineSpec, frozen=True):
    """The topics whose rates, latencies, hot keys and consumer lag are calculated by window."""

    start: Start = "earliest"
    """Where the first run starts: `earliest`, `latest`, a time such as 2026-01-31T00:00:00Z, or `group:NAME`."""

    trigger: Duration = Duration(60_000)
    """The interval at which batches start, without a `schedule`."""

    limits: Limits = Limits()
    """The limits of one batch."""

    window: Duration = Duration(60_000)
    """The length of a window."""

    watermark: Duration = Duration(60_000)
    """How long a window waits for late messages."""

    hot_keys: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    """The number of hot keys that are listed for each window and topic. 0: none."""

    consumer_groups: Annotated[list[GroupName], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=list)
    """The consumer groups whose lag is recorded."""

    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    """`fail` stops if messages were deleted before they were counted. `record` counts them and continues."""

    destination: Destination = Destination()
    """The place of the results. It cannot be changed, and no other pipeline may use it."""

    checkpoint: Destination = Destination()
    """The place of Spark's checkpoint. Empty: next to the results. It cannot be changed or shared."""


class PipelineKind(NamedTuple):
    """A kind of pipeline with its resource names and its spec."""

    name: str
    """The kind in a manifest, such as ``TopicArchive``."""

    plural: str
    short: str
    """The short name of the resource for ``kubectl``."""

    job: str
    """The name of its `gantry pipeline` command, which is also the end of ``Pipeline.base``."""

    spec: type[PipelineSpec]
    purpose: str
    """The description of the kind in its CustomResourceDefinition."""


ARCHIVE: Final = PipelineKind(
    "TopicArchive", "topicarchives", "tar", "archive", ArchiveSpec, "An archive of topics, as Parquet."
)
AUDIT: Final = PipelineKind(
    "LogAudit", "logaudits", "lau", "audit", AuditSpec, "A comparison of replicas, indexes and archives."
)
ANALYTICS: Final = PipelineKind(
    "TopicAnalytics",
    "topicanalytics",
    "tan",
    "analytics",
    AnalyticsSpec,
    "Rates, latencies and lag of topics, by window.",
)
PIPELINE_KINDS: Final = (ARCHIVE, AUDIT, ANALYTICS)


@final
class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as its resource describes it."""

    kind: PipelineKind
    metadata: Metadata
    spec: PipelineSpec
    created: str = ""
    """metadata.creationTimestamp. If two pipelines have the same destination, the older one keeps it."""

    @property
    def base(self) -> str:
        """The name of the pipeline's objects, and the prefix of longer names."""
        return f"{self.metadata.name}-{self.kind.job}"

    @property
    def is_continuous(self) -> bool:
        """Whether the pipeline runs until it is stopped. An audit never does."""
        return not self.spec.schedule and self.kind is not AUDIT

    @property
    def destination(self) -> Destination:
        """The place of the pipeline's results."""
        found: Destination = getattr(self.spec, "destination", Destination())
        return found

    @property
    def checkpoint(self) -> Destination:
        """The place of the checkpoint; empty if it is next to the results."""
        found: Destination = getattr(self.spec, "checkpoint", Destination())
        return found
