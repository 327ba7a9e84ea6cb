"""`gantry pipeline compact`: merge the files of closed days now. Needs the writer lock, but no Spark and no broker."""

from __future__ import annotations

import time
from typing import final

from gantry_pipelines.archive.compaction import CompactedPartition, compact
from gantry_pipelines.archive.job_errors import map_archive_errors
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.settings import ArchiveParameters, parse_archive_parameters
from gantry_pipelines.archive.tables.reported_publication import LAST_PUBLICATION_S_MAX, ReportedPublication
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_FAILED, EXIT_INTERRUPTED, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec


@final
class CompactJob(Job[ArchiveSpec, ArchiveParameters]):
    """The job that merges the files of closed days while no archive run is active."""

    name = "compact"
    spec_type = ArchiveSpec

    def parse(self, config: PipelineConfig[ArchiveSpec]) -> ArchiveParameters:
        """Return the archive's settings. Raises ConfigError."""
        return parse_archive_parameters(config)

    def run(self, settings: ArchiveParameters, reporter: Reporter) -> Outcome:
        """Compact all due days; after a stop request the run ends with the current day."""
        merged: list[CompactedPartition] = []
        with map_archive_errors(settings.destination), ArchiveWriter.open(storage_of(settings.destination)) as writer:
            tables = ReportedPublication(writer, settings.tables, reporter)
            tables.publish()
            for day in compact(writer, settings.rules, settings.packing, int(time.time() * 1000)):
                merged.append(day)
                reporter.report_step(str(day))
                tables.publish()
                reporter.report_progress(files=sum(one.files_after for one in merged))
                if reporter.stop.is_requested:
                    return Outcome(EXIT_INTERRUPTED, "Interrupted", "stopped after the current day")
            tables.publish(LAST_PUBLICATION_S_MAX)
            tables.sweep()
        before, after = sum(one.files_before for one in merged), sum(one.files_after for one in merged)
        text = (
            f"compacted {before} files to {after}, in {len(merged)} days" if merged else "no day is due for compaction"
        )
        size = sum(one.bytes_after for one in merged)
        if tables.failure:
            return Outcome(EXIT_FAILED, "TablesBehind", f"{text}; {tables.failure}", files=after, bytes=size)
        return Outcome(text=text, files=after, bytes=size)
