"""What a job is: a name, what it reads out of a configuration, and a run that ends with an outcome.

``parse`` is pure and says everything that is wrong before anything is started; ``run`` does the work, tells a
``Reporter`` how far it has come, and looks at ``reporter.stop``. Jobs are found by name when they are wanted, so one
job's packages are no other's, and a job that is not installed says so.
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
    """One of the things a pipeline can do."""

    name: ClassVar[str]
    """As it is typed."""

    spec_type: type[P]
    """The fields of its configuration: those of a resource, and perhaps more."""

    @abstractmethod
    def parse(self, config: PipelineConfig[P]) -> S:
        """What the run needs. Pure. Raises ``ConfigError`` with all that is wrong, by path of the field."""

    @abstractmethod
    def run(self, settings: S, reporter: Reporter) -> Outcome:
        """Do it. Returns soon after ``reporter.stop`` was asked; raises ``JobError`` or the source's errors."""


class Entry(NamedTuple):
    """Where a job lives, and what is said of it."""

    module: str
    name: str
    """Of the class."""

    kind: str
    """Of the resource that its configuration is."""

    summary: str


JOBS: Final[dict[str, Entry]] = {
    "archive": Entry(
        "gantry_pipelines.archive.job", "ArchiveJob", ARCHIVE.name, "Write topics to Parquet, each message once."
    ),
    "audit": Entry("gantry_pipelines.audit.job", "AuditJob", AUDIT.name, "Compare replicas, indexes and archives."),
    "analytics": Entry(
        "gantry_pipelines.analytics.job",
        "AnalyticsJob",
        ANALYTICS.name,
        "Rates, latencies, hot keys and lag by window, as Parquet.",
    ),
    "restore": Entry(
        "gantry_pipelines.archive.restore_job", "RestoreJob", ARCHIVE.name, "Send an archive back to a topic."
    ),
    "verify": Entry(
        "gantry_pipelines.archive.verify_job", "VerifyJob", ARCHIVE.name, "Prove that an archive has no gap."
    ),
    "compact": Entry(
        "gantry_pipelines.archive.compact_job", "CompactJob", ARCHIVE.name, "Join the files of closed days."
    ),
    "migrate-check": Entry(
        "gantry_pipelines.migrate_check.job",
        "MigrateCheckJob",
        AUDIT.name,
        "Compare two clusters, topic by topic.",
    ),
}
"""By what is typed."""


def job_named(name: str) -> Job[Any, Any]:
    """The job of this name. Raises ``JobError`` where it is not installed."""
    entry = JOBS[name]
    try:
        found = getattr(importlib.import_module(entry.module), entry.name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if entry.module == missing or entry.module.startswith(f"{missing}."):
            raise JobError(f"the job {name} is not part of this copy", reason="NotInstalled") from error
        raise JobError(
            f"the job {name} needs the package {missing}, which is not installed",
            remedy="pip install 'gantry-mq[spark]'",
            reason="NotInstalled",
        ) from error
    job = found()
    assert isinstance(job, Job), "the table names jobs"
    return job
