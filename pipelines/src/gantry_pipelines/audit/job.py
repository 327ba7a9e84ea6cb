"""`gantry pipeline audit`: find every copy, compare them, write the table and the report, and exit with a code.

DESTINATION/findings/audit-20261122T101500Z.parquet      findings, one row each, at most findingsMax; may be empty
DESTINATION/reports/audit-20261122T101500Z.txt           the report for people
DESTINATION/reports/audit-20261122T101500Z.json          the document for a resource's status
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import pyarrow.parquet as pq

from gantry_pipelines.audit.archive_check import audit_archive
from gantry_pipelines.audit.errors import AuditError, Interrupted
from gantry_pipelines.audit.frames import findings_table
from gantry_pipelines.audit.model import Check
from gantry_pipelines.audit.result import AuditResult
from gantry_pipelines.audit.running import RunTasks, audit
from gantry_pipelines.audit.settings import AuditSettings, SidecarAccess
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.engine import spark_conf
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.source_options import read_settings, read_tokens
from gantry_remoting.durable_files import replace_file, replacement_of
from gantry_spec.pipelines.kinds import AuditSpec
from gantry_spec.pipelines.parts import AuditCheck
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.model import ReadFrom, Replica, TransportKind
from pyspark_rocketmq.settings import ReadSettings

if TYPE_CHECKING:
    from gantry_pipelines.reporting import Reporter

CHECKS: Final = {
    AuditCheck.REPLICAS: Check.COPIES,
    AuditCheck.INDEX: Check.INDEX,
    AuditCheck.ARCHIVE: Check.ARCHIVE,
}
"""The checks of a resource, as the audit names them."""


@final
@dataclass(frozen=True, slots=True)
class AuditParameters:
    """The parameters of one run."""

    read_settings: ReadSettings
    checks: frozenset[Check]
    chunk_bytes: int
    """The bytes of the log in one task."""

    findings_max: int
    """The most findings in the table."""

    destination: str
    """The folder of the results; empty for none."""

    archive: str
    """The path or address of the archive to compare; empty for none."""

    access: SidecarAccess
    cores: int
    conf: tuple[tuple[str, str], ...]
    """The settings of Spark, by their names."""


@final
class AuditJob(Job[AuditSpec, AuditParameters]):
    """The job that audits all brokers' copies, queues and an archive; see the module's docstring."""

    name = "audit"
    spec_type = AuditSpec

    def __init__(self, run_tasks: Callable[[AuditParameters, Reporter], RunTasks] | None = None) -> None:
        self._run_tasks = run_tasks if run_tasks is not None else _spark_tasks

    def parse(self, config: PipelineConfig[AuditSpec]) -> AuditParameters:
        """Return the run's parameters; reads token and credential files. Raises ``ConfigError``."""
        if AuditCheck.ARCHIVE in config.spec.checks and not config.runtime.archive:
            raise ConfigError(["runtime.archive: missing; the check `archive` needs the archive's folder or address"])
        source_settings = replace(
            read_settings(config), transport=TransportKind.AUTO, read_from=ReadFrom.SLAVE_FIRST,
            replica_lag_bytes_max=1 << 62,
        )  # fmt: skip
        tokens = tuple(read_tokens(config.runtime.token_files).items())
        access = SidecarAccess(tokens, source_settings.sidecar_tls, source_settings.patience_ms)
        return AuditParameters(
            source_settings, frozenset(CHECKS[one] for one in config.spec.checks), max(int(config.spec.chunk), 1 << 16),
            config.spec.findings_max, config.runtime.destination, config.runtime.archive,
            access, config.spec.engine.cores, tuple(spark_conf(config).items()),
        )  # fmt: skip

    def run(self, settings: AuditParameters, reporter: Reporter) -> Outcome:
        """Run the audit. Exit codes: 0 no findings, 1 findings, 4 the audit could not be done, 130 stopped."""
        reporter.report_step("finding the copies of each broker")
        try:
            replicas = find_replicas(settings.read_settings)
            reporter.report_step("comparing", copies=len(replicas), brokers=len({one.broker for one in replicas}))
            audit_settings = AuditSettings(
                replicas, settings.checks, chunk_bytes=settings.chunk_bytes, access=settings.access
            )
            run_tasks = self._run_tasks(settings, reporter)
            result = audit(audit_settings, run_tasks) if has_log_checks(settings) else AuditResult(time.time(), 0.0, ())
            if Check.ARCHIVE in settings.checks:
                reporter.report_step("comparing the archive", archive=settings.archive)
                archive = audit_archive(settings.archive, settings.read_settings, run_tasks)
                result = replace(result, archive=archive, ended_s=time.time())
        except RocketMQSourceError as error:
            raise JobError(str(error), reason="NotDone", exit_code=EXIT_UNKNOWN) from error
        except Interrupted as error:
            return Outcome(EXIT_INTERRUPTED, "Interrupted", str(error))
        except AuditError as error:
            raise JobError(str(error), reason="NotDone", exit_code=EXIT_UNKNOWN) from error
        return build_outcome(result, settings, reporter)


def has_log_checks(parameters: AuditParameters) -> bool:
    """Return whether the checks include any of a broker's log."""
    return bool(parameters.checks & {Check.COPIES, Check.INDEX})


def find_replicas(read_settings: ReadSettings) -> tuple[Replica, ...]:
    """Return every copy that name servers, sidecars and directories list."""
    with Catalog(read_settings) as catalog:
        return tuple(replica for broker in catalog.brokers() for replica in catalog.replicas(broker))


def build_outcome(result: AuditResult, parameters: AuditParameters, reporter: Reporter) -> Outcome:
    """Write and report the result, and return the outcome."""
    files = (
        write_results(result, Path(parameters.destination), parameters.findings_max) if parameters.destination else 0
    )
    for line in result.text().splitlines():
        reporter.report_step(line)
    total = len(result.findings)
    if parameters.destination and total > parameters.findings_max:
        reporter.warn(
            "FindingsCut", f"the table has {parameters.findings_max} of {total} findings: increase findingsMax"
        )
    return Outcome(
        result.exit_code,
        "Findings" if total else "Clean",
        result.text().splitlines()[-1],
        rows=sum(one.records for one in result.brokers) + (result.archive.rows if result.archive is not None else 0),
        bytes=sum(one.bytes_compared for one in result.brokers),
        files=files,
        facts=result.document(),
    )


def write_results(result: AuditResult, folder: Path, findings_max: int) -> int:
    """Write the table, the report and the document, each atomically; return the number of files."""
    name = "audit-" + datetime.fromtimestamp(result.began_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    table = findings_table(result.findings[:findings_max])
    with replacement_of(folder / "findings" / f"{name}.parquet") as path:
        pq.write_table(table, path, compression="zstd")
    replace_file(folder / "reports" / f"{name}.txt", result.text().encode())
    replace_file(folder / "reports" / f"{name}.json", (json.dumps(result.document(), indent=2) + "\n").encode())
    return 3


def _spark_tasks(parameters: AuditParameters, reporter: Reporter) -> RunTasks:
    from gantry_pipelines.audit.spark_tasks import spark_task_runner
    from gantry_pipelines.session import spark_session

    session = spark_session("gantry-audit", cores=parameters.cores or None, conf=dict(parameters.conf))
    reporter.stop.install_handlers()
    return spark_task_runner(session, reporter)
