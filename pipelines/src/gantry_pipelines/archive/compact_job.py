"""`gantry pipeline compact`: join the files of days that are over, now. Needs no Spark and no broker, but the lock."""

from __future__ import annotations

import time
from typing import final

from gantry_pipelines.archive.compaction import Merged, compact
from gantry_pipelines.archive.exits import at_work
from gantry_pipelines.archive.objects import storage_of
from gantry_pipelines.archive.settings import ArchiveParameters, place_settings
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_INTERRUPTED, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec


@final
class CompactJob(Job[ArchiveSpec, ArchiveParameters]):
    """Joins the files of closed days, between those of a run and the next."""

    name = "compact"
    spec_type = ArchiveSpec

    def parse(self, config: PipelineConfig[ArchiveSpec]) -> ArchiveParameters:
        """What the run needs."""
        return place_settings(config)

    def run(self, settings: ArchiveParameters, reporter: Reporter) -> Outcome:
        """All days that are due; asked to stop, it ends after the day that it is at."""
        merged: list[Merged] = []
        with at_work(settings.destination), ArchiveWriter.open(storage_of(settings.destination)) as writer:
            for day in compact(writer, settings.rules, settings.packing, int(time.time() * 1000)):
                merged.append(day)
                reporter.say(str(day))
                reporter.progress(files=sum(one.files_after for one in merged))
                if reporter.stop.is_asked:
                    return Outcome(EXIT_INTERRUPTED, "Interrupted", "ended after the day that it was at")
        before, after = sum(one.files_before for one in merged), sum(one.files_after for one in merged)
        text = f"{before} files became {after}, in {len(merged)} days" if merged else "no day was due"
        return Outcome(text=text, files=after, bytes=sum(one.bytes_after for one in merged))
