"""The three kinds of pipeline, each a resource of its own with the same engine."""

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
)


class ArchiveSpec(PipelineSpec, frozen=True):
    """Which topics are written to Parquet, each message once, and where."""

    start: Start = "earliest"
    """Where the first run begins: `earliest`, `latest`, a time as 2026-01-31T00:00:00Z, or `group:NAME`."""

    trigger: Duration = Duration(60_000)
    """Without a `schedule`: how often a batch is begun."""

    limits: Limits = Limits()
    """How much at once."""

    columns: list[Column] = msgspec.field(default_factory=lambda: list(Column))
    """What is kept of a message besides where and when it was."""

    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    """`fail` stops where messages are gone before they were archived; `record` counts them and goes on."""

    commit_group: GroupName = ""
    """A group of consumers to which progress is committed, so that ordinary tools show the lag; empty: none."""

    destination: Destination = Destination()
    """Where the archive is. Fixed, and nobody else's."""

    checkpoint: Destination = Destination()
    """Where Spark keeps how far it is; empty: beside the archive. Fixed, and nobody else's."""

    layout: Layout = Layout()
    """How the archive lies there."""

    retention: Retention = Retention()
    """How long it is kept."""


@final
class AuditSpec(PipelineSpec, frozen=True):
    """What is compared: replicas with each other, indexes with the log, an archive with the log."""

    checks: Annotated[list[AuditCheck], msgspec.Meta(min_length=1, max_length=3)] = msgspec.field(
        default_factory=lambda: [AuditCheck.REPLICAS, AuditCheck.INDEX]
    )
    """`replicas`: the same bytes everywhere. `index`: every queue's units lead to their messages. `archive`: it has
    every message that the log has."""

    chunk: Size = Size(64 << 20)
    """Bytes of the log that are compared by one checksum; only chunks that differ are read."""

    findings_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 100_000
    """An audit that finds so many stops looking."""

    archive: Name | None = None
    """The TopicArchive that `archive` compares, in this namespace."""

    destination: Destination = Destination()
    """Where the report and its table go; empty: only into the status."""


@final
class AnalyticsSpec(PipelineSpec, frozen=True):
    """Rates, latencies, hot keys and consumers' lag, by window."""

    start: Start = "earliest"
    """Where the first run begins: `earliest`, `latest`, a time as 2026-01-31T00:00:00Z, or `group:NAME`."""

    trigger: Duration = Duration(60_000)
    """Without a `schedule`: how often a batch is begun."""

    limits: Limits = Limits()
    """How much at once."""

    window: Duration = Duration(60_000)
    """How long a window is."""

    watermark: Duration = Duration(60_000)
    """For how long a window waits for messages that come late."""

    hot_keys: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    """How many keys are named for each window and topic; 0: none."""

    consumer_groups: Annotated[list[GroupName], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=list)
    """Groups of consumers whose lag is noted."""

    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    """`fail` stops where messages are gone before they were counted; `record` counts them and goes on."""

    destination: Destination = Destination()
    """Where the results go. Fixed, and nobody else's."""

    checkpoint: Destination = Destination()
    """Where Spark keeps how far it is; empty: beside the results. Fixed, and nobody else's."""


class PipelineKind(NamedTuple):
    """One of them."""

    name: str
    plural: str
    short: str
    job: str
    """What `gantry pipeline` calls it, and what its objects' names end with."""

    spec: type[PipelineSpec]
    purpose: str


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
    """One pipeline as it is written."""

    kind: PipelineKind
    metadata: Metadata
    spec: PipelineSpec
    created: str = ""
    """metadata.creationTimestamp: of two with one destination the older has it."""

    @property
    def base(self) -> str:
        """What its objects are called, and where names begin."""
        return f"{self.metadata.name}-{self.kind.job}"

    @property
    def is_continuous(self) -> bool:
        """Whether it goes on until it is stopped. An audit never does."""
        return not self.spec.schedule and self.kind is not AUDIT

    @property
    def destination(self) -> Destination:
        """Where its results go."""
        found: Destination = getattr(self.spec, "destination", Destination())
        return found

    @property
    def checkpoint(self) -> Destination:
        """Where its checkpoint is, if not beside its results."""
        found: Destination = getattr(self.spec, "checkpoint", Destination())
        return found
