"""`gantry pipeline migrate-check`: compare a source cluster with the target, before or after the switch.

The configuration's own name servers are those of the target. Its field `source` has those of the source cluster, which
may run any RocketMQ 4 or 5: it is read by RocketMQ's protocol. No message and no offset is written to either cluster.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from gantry_client import ClientError, SignatureKind
from gantry_client.sync import Admin
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.engine import spark_conf
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.migrate_check import comparing
from gantry_pipelines.migrate_check.comparing import CheckResult
from gantry_pipelines.migrate_check.facts import ClusterFacts, QueuePair, TopicMatch, match_queues, read_cluster_facts
from gantry_pipelines.migrate_check.fingerprints import READ_COLUMNS, compute_fingerprints, find_differences
from gantry_pipelines.outcome import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.session import spark_session
from gantry_pipelines.source_options import connection_options, read_settings, select_topics, topics_pattern
from gantry_pipelines.stop_request import StopRequest
from gantry_remoting.durable_files import replace_file
from gantry_spec.manifest.parts import Address, Part
from gantry_spec.pipelines.parts import GroupName, PipelineSpec, Transport
from gantry_wire.names import is_system_group
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.schema import ddl
from pyspark_rocketmq.settings import ReadSettings

STOP_POLL_S: Final = 0.5
"""How often a running comparison checks for a stop request."""


@final
class SourceCluster(Part, frozen=True):
    """The cluster from which topics are migrated."""

    name_servers: Annotated[list[Address], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    """The addresses (`host:port`) of the source's name servers."""
    access_file: str = ""
    """File with `accessKey` and `secretKey`, in the format of RocketMQ's `tools.yml`."""
    signature: SignatureKind | None = None
    """How this account signs requests, `v1` if unset, as RocketMQ requires."""


class MigrateCheckSpec(PipelineSpec, frozen=True):
    """The configuration of a migration check; its own name servers are those of the target cluster."""

    source: SourceCluster = SourceCluster()
    consumer_groups: Annotated[list[GroupName], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=list)
    """Consumer groups to compare; empty: all groups of the source, without RocketMQ's own."""
    is_over: Annotated[bool, msgspec.Meta(description="Whether the target has been in use since the switch.")] = False


@final
@dataclass(frozen=True, slots=True)
class MigrateCheckParameters:
    """The parameters of one run."""

    config: PipelineConfig[MigrateCheckSpec]
    source: ReadSettings
    target: ReadSettings
    source_reader_options: tuple[tuple[str, str], ...]
    """The options of the Spark source for the source cluster."""

    target_reader_options: tuple[tuple[str, str], ...]
    """The options of the Spark source for the target cluster."""

    spark_conf: tuple[tuple[str, str], ...]


@final
class MigrateCheckJob(Job[MigrateCheckSpec, MigrateCheckParameters]):
    """The job that compares two clusters. Tests pass `session`."""

    name = "migrate-check"
    spec_type = MigrateCheckSpec

    def __init__(self, session: Callable[[MigrateCheckParameters], SparkSession] | None = None) -> None:
        self._session = session if session is not None else _create_session

    def parse(self, config: PipelineConfig[MigrateCheckSpec]) -> MigrateCheckParameters:
        """Return the run's parameters. Raises ``ConfigError``."""
        if not config.spec.source.name_servers:
            raise ConfigError(["source.nameServers: missing; set it to the name servers of the source cluster"])
        topics_pattern(config.spec.topics)  # raises for an invalid pattern
        runtime = msgspec.structs.replace(
            config.runtime, name_servers=config.spec.source.name_servers, sidecars=[], directories={},
            access_file=config.spec.source.access_file, signature=config.spec.source.signature,
            ca_file="", certificate_file="", key_file="", token_files={},
        )  # fmt: skip
        source = PipelineConfig(msgspec.structs.replace(config.spec, transport=Transport.PULL), runtime)
        return MigrateCheckParameters(
            config, read_settings(source), read_settings(config), tuple(connection_options(source).items()),
            tuple(connection_options(config).items()), tuple(spark_conf(config).items()),
        )  # fmt: skip

    def run(self, settings: MigrateCheckParameters, reporter: Reporter) -> Outcome:
        """Run the check. Exit codes: 0 no differences, 1 differences, 4 a cluster is unavailable, 130 stopped."""
        config = settings.config
        with Catalog(settings.source) as source, Catalog(settings.target) as target:
            reporter.report_step("reading queues and group offsets of both clusters")
            topics = select_topics(source.topics(), config.spec.topics)
            groups = config.spec.consumer_groups or _list_groups(settings.source)
            left = read_cluster_facts(source, topics, groups)
            known = set(select_topics(target.topics(), config.spec.topics))
            right = read_cluster_facts(target, known, groups)
        both = sorted(left.topics.keys() & right.topics.keys())
        matches = [match_queues(topic, left, right) for topic in both]
        found = [*comparing.compare_topics(left, right, is_over=config.spec.is_over)]
        for one in matches:
            found += comparing.compare_queues(one, left, right, is_over=config.spec.is_over)
        found += comparing.compare_groups(matches, left, right, is_over=config.spec.is_over)
        reporter.report_step("comparing contents", topics=len(both))
        contents = self._compare_contents(settings, matches, left, right, reporter.stop)
        if contents is None:
            return Outcome(EXIT_INTERRUPTED, "Interrupted", "interrupted; no result was written")
        messages, rows = contents
        found += comparing.content_differences(rows, is_over=config.spec.is_over)
        result = CheckResult(len(left.topics), messages, len(groups), tuple(found))
        return _report_outcome(result, config, reporter)

    def _compare_contents(
        self,
        parameters: MigrateCheckParameters,
        matches: list[TopicMatch],
        left: ClusterFacts,
        right: ClusterFacts,
        stop: StopRequest,
    ) -> tuple[int, list[dict[str, Any]]] | None:
        """Compare contents; return the number of compared messages, and the slices that differ; None if stopped."""
        pairs = [pair for one in matches for pair in one.pairs if pair.begin < pair.end]
        whole = frozenset(one.topic for one in matches if one.is_topic_wide)
        source_ranges = ranges_of(((pair.source, pair) for pair in pairs), left, whole)
        target_ranges = ranges_of(((pair.target, pair) for pair in pairs), right, whole)
        if not source_ranges and not target_ranges:
            return 0, []
        if stop.is_requested:
            return None
        spark, is_over = self._session(parameters), parameters.config.spec.is_over
        stop.install_handlers()
        names = {(pair.source.topic, pair.source.broker): pair.target.broker for pair in pairs}
        left_messages = _read(spark, parameters.source_reader_options, source_ranges)
        right_messages = _read(spark, parameters.target_reader_options, target_ranges)
        source = compute_fingerprints(left_messages, names, whole, is_over=is_over)
        target = compute_fingerprints(right_messages, {}, whole, is_over=is_over)
        rows = collect_unless_stopped(find_differences(source, target, is_over=is_over), stop)
        return None if rows is None else (sum(end - begin for begin, end in source_ranges.values()), rows)


def ranges_of(
    pairs: Iterable[tuple[QueueId, QueuePair]], facts: ClusterFacts, whole: frozenset[str]
) -> dict[QueueId, tuple[int, int]]:
    """Return the ranges to read of one cluster: the common range of paired queues, all of the topics `whole`."""
    found = {queue: (pair.begin, pair.end) for queue, pair in pairs}
    found |= {
        queue: (one.begin, one.end) for queue, one in facts.bounds.items()
        if queue.topic in whole and one.begin < one.end
    }  # fmt: skip
    return found


def collect_unless_stopped(frame: DataFrame, stop: StopRequest) -> list[dict[str, Any]] | None:
    """Collect the rows of a frame; None if a stop request came first, which cancels all jobs of its Spark context."""
    is_collected = threading.Event()

    def cancel_after_stop() -> None:
        # Spark cancels only the jobs that are running, and starts one after the other.
        while not is_collected.wait(STOP_POLL_S):
            if stop.is_requested:
                frame.sparkSession.sparkContext.cancelAllJobs()

    watcher = threading.Thread(target=cancel_after_stop, name="migrate-check-stop", daemon=True)
    watcher.start()
    try:
        return [row.asDict() for row in frame.collect()]
    except Exception:
        if stop.is_requested:
            return None
        raise
    finally:
        is_collected.set()
        watcher.join()


def _read(
    spark: SparkSession, options: tuple[tuple[str, str], ...], ranges: dict[QueueId, tuple[int, int]]
) -> DataFrame:
    if not ranges:
        return spark.createDataFrame([], ddl(READ_COLUMNS))
    assigned: dict[str, dict[str, list[int]]] = {}
    starts: dict[str, dict[str, dict[str, int]]] = {}
    ends: dict[str, dict[str, dict[str, int]]] = {}
    for queue, (begin, end) in sorted(ranges.items()):
        assigned.setdefault(queue.topic, {}).setdefault(queue.broker, []).append(queue.number)
        starts.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.number)] = begin
        ends.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.number)] = end
    reader = spark.read.format("rocketmq").options(**dict(options))
    return reader.options(
        assign=json.dumps(assigned), startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends),
        columns=",".join(READ_COLUMNS),
    ).load()  # fmt: skip


def _list_groups(settings: ReadSettings) -> list[str]:
    """Return the applications' consumer groups of the source."""
    try:
        with Admin(settings.name_servers, client_settings=settings.client_settings()) as admin:
            found = admin.wait(admin.groups.all())
    except (ClientError, OSError) as error:
        raise JobError(
            f"cannot list the consumer groups of the source: {error}", reason="NotDone", exit_code=EXIT_UNKNOWN
        ) from error
    return applications_groups(found)


def applications_groups(groups: Iterable[str]) -> list[str]:
    """Return the groups that are not RocketMQ's own, sorted."""
    return sorted(name for name in groups if not is_system_group(name))


def _report_outcome(result: CheckResult, config: PipelineConfig[MigrateCheckSpec], reporter: Reporter) -> Outcome:
    text = result.text()
    for line in text.splitlines():
        reporter.report_step(line)
    files = 0
    if config.runtime.destination:
        folder = Path(config.runtime.destination)
        replace_file(folder / "migrate-check.txt", text.encode())
        replace_file(folder / "migrate-check.json", (json.dumps(result.document(), indent=2) + "\n").encode())
        files = 2
    total = len(result.findings)
    return Outcome(
        EXIT_FAILED if total else EXIT_DONE, "Differs" if total else "Same", text.splitlines()[-1],
        rows=result.messages, files=files, facts=result.document(),
    )  # fmt: skip


def _create_session(parameters: MigrateCheckParameters) -> SparkSession:
    cores = parameters.config.spec.engine.cores or None
    return spark_session("gantry-migrate-check", cores=cores, conf=dict(parameters.spark_conf))
