"""`gantry pipeline tables`: publish an archive to its tables now, or make them again. Needs no Spark and no broker."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

from gantry_pipelines.archive.job_errors import map_archive_errors
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.settings import TableParameters, parse_archive_parameters
from gantry_pipelines.archive.tables.model import TableError
from gantry_pipelines.archive.tables.publication import TablePublisher
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec


@final
class TablesSpec(ArchiveSpec, frozen=True):
    """The spec of a `TopicArchive`, and whether its tables are made again."""

    rebuild: bool = False
    """Whether to delete the metadata of the tables and to make it again from the manifest. Old snapshots are lost."""


@final
@dataclass(frozen=True, slots=True)
class TablesJobParameters:
    """The parameters of a publication."""

    destination: str
    tables: TableParameters
    is_rebuild: bool = False


@final
class TablesJob(Job[TablesSpec, TablesJobParameters]):
    """The job that publishes an archive to its tables while no archive run is active."""

    name = "tables"
    spec_type = TablesSpec

    def parse(self, config: PipelineConfig[TablesSpec]) -> TablesJobParameters:
        """Return the job's parameters. Raises ConfigError."""
        archive = parse_archive_parameters(config)
        if not archive.tables.formats:
            raise ConfigError(["tables.formats: missing; set it to [iceberg], [delta] or both, or use --table"])
        return TablesJobParameters(archive.destination, archive.tables, config.spec.rebuild)

    def run(self, settings: TablesJobParameters, reporter: Reporter) -> Outcome:
        """Publish the manifest to all tables, delete expired files that waited for this, and sweep the tables."""
        snapshots = 0
        with map_archive_errors(settings.destination), ArchiveWriter.open(storage_of(settings.destination)) as writer:
            publisher = TablePublisher(writer, settings.tables)
            try:
                for published in publisher.rebuild() if settings.is_rebuild else publisher.publish():
                    snapshots += 1
                    reporter.report_step(str(published))
                writer.delete_replaced(publisher.may_name)
                publisher.sweep(int(time.time() * 1000))
            except TableError as error:
                raise JobError(str(error), reason=type(error).__name__) from error
            files = len(writer.manifest.data())
        formats = " and ".join(settings.tables.formats)
        return Outcome(text=f"the {formats} tables have {files} files; made {snapshots} snapshots", files=files)
