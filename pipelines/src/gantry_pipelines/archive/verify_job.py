"""`gantry pipeline verify`: verify an archive against its manifest. Needs no Spark, no broker and no lock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, final

from gantry_pipelines.archive.job_errors import map_archive_errors
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.settings import TableParameters, parse_archive_parameters
from gantry_pipelines.archive.tables.table_verification import verify_tables
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec

FINDINGS_SHOWN_MAX: Final = 50
"""How many findings are printed; the rest are counted."""


@final
class VerifySpec(ArchiveSpec, frozen=True):
    """The spec of a `TopicArchive`, and the depth of the verification."""

    deep: bool = False
    """Whether to read all bytes and verify checksums, and offsets and days of all rows."""


@final
@dataclass(frozen=True, slots=True)
class VerifyParameters:
    """The parameters of a verification."""

    destination: str
    is_deep: bool = False
    tables: TableParameters = field(default_factory=TableParameters)


@final
class VerifyJob(Job[VerifySpec, VerifyParameters]):
    """The job that proves that an archive has no gap, except for ranges that it records as lost or expired, and that
    its tables have its files.

    `--set deep=true` reads all of it.
    """

    name = "verify"
    spec_type = VerifySpec

    def parse(self, config: PipelineConfig[VerifySpec]) -> VerifyParameters:
        """Return the run's parameters. Raises ConfigError."""
        archive = parse_archive_parameters(config)
        return VerifyParameters(archive.destination, config.spec.deep, archive.tables)

    def run(self, settings: VerifyParameters, reporter: Reporter) -> Outcome:
        """Verify the archive and report the findings.

        Exit codes: 0 no findings, 1 findings, 130 stopped after a file, without findings so far.
        """
        with map_archive_errors(settings.destination):
            storage = storage_of(settings.destination)
            result = verify(
                storage,
                is_deep=settings.is_deep,
                on_progress=lambda done, _all: reporter.report_progress(files=done),
                is_stopped=lambda: reporter.stop.is_requested,
            )
            if result.is_complete:
                tables = verify_tables(storage, settings.tables)
                result = replace(result, findings=result.findings + tables.findings, tables=tables.tables)
                for table_format in tables.skipped:
                    text = f"tables of the format {table_format} were not verified: pip install 'gantry-mq[tables]'"
                    reporter.warn("TablesNotVerified", text)
        findings = [str(finding) for finding in result.findings]
        for finding in findings[:FINDINGS_SHOWN_MAX]:
            reporter.report_step(finding)
        exit_code, reason = (EXIT_DONE, "Verified") if result.is_complete else (EXIT_INTERRUPTED, "Interrupted")
        if findings:
            exit_code, reason = EXIT_FAILED, "Damaged"
        summary = result.text().partition("\n")[0]
        return Outcome(
            exit_code,
            reason,
            summary if result.is_complete else f"stopped before the last file; {summary}",
            rows=result.rows,
            bytes=result.size_bytes,
            files=result.files,
            facts={"findings": len(findings), "deep": settings.is_deep, "tables": result.tables},
        )
