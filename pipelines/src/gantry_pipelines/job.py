"""The interface of a job, and the table of all jobs.

``parse`` changes nothing, and reports invalid settings before anything is started; ``run`` does the work, reports its
progress to a ``Reporter``, and checks ``reporter.stop``. A job's module is imported only when the job is run, so that
one job does not need the packages of another, and a missing package is reported by name.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import JobError
from gantry_pipelines.outcome import Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ANALYTICS, ARCHIVE, AUDIT
from gantry_spec.pipelines.parts import PipelineSpec

P = TypeVar("P", bound=PipelineSpec)
S = TypeVar("S")


class Job(ABC, Generic[P, S]):
    """One kind of work that `gantry pipeline` can run."""

    name: ClassVar[str]
    """Name of the job on the command line."""

    spec_type: type[P]
    """Type of the job's configuration: the spec of a resource, possibly with more fields."""

    @abstractmethod
    def parse(self, config: PipelineConfig[P]) -> S:
        """Return what the run needs. May read files that the configuration names. Raises ``ConfigError``."""

    @abstractmethod
    def run(self, settings: S, reporter: Reporter) -> Outcome:
        """Run the job. Returns soon after a stop was requested; raises ``JobError`` or the source's errors."""


class JobEntry(NamedTuple):
    """The entry of a job in the table: its class, the kind of its configuration, and its description."""

    module: str
    name: str
    """Name of the class in that module."""

    kind: str
    """Kind of the resource that is the job's configuration."""

    summary: str


JOBS: Final[dict[str, JobEntry]] = {
    "archive": JobEntry(
        "gantry_pipelines.archive.job", "ArchiveJob", ARCHIVE.name, "Write topics to Parquet, each message once."
    ),
    "audit": JobEntry("gantry_pipelines.audit.job", "AuditJob", AUDIT.name, "Compare replicas, indexes and archives."),
    "analytics": JobEntry(
        "gantry_pipelines.analytics.job",
        "AnalyticsJob",
        ANALYTICS.name,
        "Rates, latencies, hot keys and lag by window, as Parquet.",
    ),
    "restore": JobEntry(
        "gantry_pipelines.archive.restore_job", "RestoreJob", ARCHIVE.name, "Send archived messages to topics."
    ),
    "verify": JobEntry(
        "gantry_pipelines.archive.verify_job", "VerifyJob", ARCHIVE.name, "Prove that an archive has no gap."
    ),
    "compact": JobEntry(
        "gantry_pipelines.archive.compact_job", "CompactJob", ARCHIVE.name, "Merge the files of closed days."
    ),
    "tables": JobEntry(
        "gantry_pipelines.archive.tables.tables_job",
        "TablesJob",
        ARCHIVE.name,
        "Publish an archive as Iceberg or Delta tables.",
    ),
    "serve": JobEntry(
        "gantry_pipelines.archive.serving.serve_job",
        "ServeJob",
        ARCHIVE.name,
        "Return archived messages to brokers.",
    ),
    "migrate-check": JobEntry(
        "gantry_pipelines.migrate_check.job",
        "MigrateCheckJob",
        AUDIT.name,
        "Compare two clusters, topic by topic.",
    ),
}
"""All jobs, by their names on the command line."""


def load_job(name: str) -> Job[Any, Any]:
    """Import and create the job of this name. Raises ``JobError`` if it is not installed."""
    entry = JOBS[name]
    try:
        found = getattr(importlib.import_module(entry.module), entry.name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if entry.module == missing or entry.module.startswith(f"{missing}."):
            raise JobError(f"the job {name} is not part of this installation", reason="NotInstalled") from error
        raise JobError(
            f"the job {name} needs the package {missing}, which is not installed",
            remedy="pip install 'gantry-mq[spark]'",
            reason="NotInstalled",
        ) from error
    job = found()
    assert isinstance(job, Job), "expected the table to name jobs"
    return job
