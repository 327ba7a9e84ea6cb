"""`gantry pipeline verify`: is the archive what its manifest says? Needs no Spark, no broker and no lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from gantry_pipelines.archive.exits import at_work
from gantry_pipelines.archive.objects import storage_of
from gantry_pipelines.archive.settings import place_settings
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_DONE, EXIT_FAILED, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec

FINDINGS_SHOWN_MAX: Final = 50


@final
class VerifySpec(ArchiveSpec, frozen=True):
    """A `TopicArchive`, and how closely to look."""

    deep: bool = False
    """Read every byte: checksums, offsets and days of all rows."""


@final
@dataclass(frozen=True, slots=True)
class VerifyParameters:
    """What is looked at."""

    destination: str
    is_deep: bool = False


@final
class VerifyJob(Job[VerifySpec, VerifyParameters]):
    """Proves that an archive has no gap. `--set deep=true` reads all of it."""

    name = "verify"
    spec_type = VerifySpec

    def parse(self, config: PipelineConfig[VerifySpec]) -> VerifyParameters:
        """What the run needs."""
        return VerifyParameters(place_settings(config).destination, config.spec.deep)

    def run(self, settings: VerifyParameters, reporter: Reporter) -> Outcome:
        """Look, and say what was found."""
        with at_work(settings.destination):
            verdict = verify(
                storage_of(settings.destination),
                is_deep=settings.is_deep,
                told=lambda done, _all: reporter.progress(files=done),
            )
        findings = [str(finding) for finding in verdict.findings]
        for finding in findings[:FINDINGS_SHOWN_MAX]:
            reporter.say(finding)
        return Outcome(
            EXIT_FAILED if findings else EXIT_DONE,
            "Damaged" if findings else "Verified",
            verdict.text().partition("\n")[0],
            rows=verdict.rows,
            bytes=verdict.size_bytes,
            files=verdict.files,
            facts={"findings": len(findings), "deep": settings.is_deep},
        )
