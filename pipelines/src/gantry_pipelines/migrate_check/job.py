"""`gantry pipeline migrate-check`: an Apache cluster and ours, before or after the switch; 1 if something differs.

The configuration's own name servers are ours. Theirs are in `source`, which may be any RocketMQ 4 or 5: it is read by
RocketMQ's protocol, and nothing is written anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from gantry_client import ClientError
from gantry_client.sync import Admin
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.engine import spark_conf
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.migrate_check import comparing
from gantry_pipelines.migrate_check.comparing import CheckResult
from gantry_pipelines.migrate_check.facts import ClusterFacts, Match, Pair, ask, match
from gantry_pipelines.migrate_check.fingerprints import READ_COLUMNS, differences, fingerprints
from gantry_pipelines.outcome import EXIT_DONE, EXIT_FAILED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.session import spark_session
from gantry_pipelines.source_options import connection_options, read_settings, selected
from gantry_remoting.durable_files import replace_file
from gantry_spec.manifest.parts import Address, Part
from gantry_spec.pipelines.parts import GroupName, PipelineSpec, Transport
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.schema import ddl
from pyspark_rocketmq.settings import ReadSettings


@final
class Source(Part, frozen=True):
    """The cluster that is left."""

    name_servers: Annotated[list[Address], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    access_file: str = ""
    """With `accessKey` and `secretKey`, as RocketMQ's `tools.yml`."""


class MigrateCheckSpec(PipelineSpec, frozen=True):
    """What the check is told."""

    source: Source = Source()
    consumer_groups: Annotated[list[GroupName], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=list)
    """Empty: all that the source knows."""
    is_over: Annotated[bool, msgspec.Meta(description="Ours has gone on since the switch.")] = False


@final
@dataclass(frozen=True, slots=True)
class CheckOrder:
    """What one run is told."""

    config: PipelineConfig[MigrateCheckSpec]
    theirs: ReadSettings
    ours: ReadSettings
    their_options: tuple[tuple[str, str], ...]
    our_options: tuple[tuple[str, str], ...]


@final
class MigrateCheckJob(Job[MigrateCheckSpec, CheckOrder]):
    """See the module. `session` is for tests."""

    name = "migrate-check"
    spec_type = MigrateCheckSpec

    def __init__(self, session: Callable[[PipelineConfig[MigrateCheckSpec]], SparkSession] | None = None) -> None:
        self._session = session if session is not None else _session

    def parse(self, config: PipelineConfig[MigrateCheckSpec]) -> CheckOrder:
        """Raises ``ConfigError``."""
        if not config.spec.source.name_servers:
            raise ConfigError(["source.nameServers: name those of the cluster that is left"])
        here = msgspec.structs.replace(
            config.here, name_servers=config.spec.source.name_servers, sidecars=[], directories={},
            access_file=config.spec.source.access_file, ca_file="", certificate_file="", key_file="", token_files={},
        )  # fmt: skip
        theirs = PipelineConfig(msgspec.structs.replace(config.spec, transport=Transport.PULL), here)
        return CheckOrder(
            config, read_settings(theirs), read_settings(config), tuple(connection_options(theirs).items()),
            tuple(connection_options(config).items()),
        )  # fmt: skip

    def run(self, settings: CheckOrder, reporter: Reporter) -> Outcome:
        """0: the same. 1: something differs. 4: somebody does not answer."""
        config = settings.config
        with Catalog(settings.theirs) as theirs, Catalog(settings.ours) as ours:
            reporter.say("asking both clusters")
            topics = selected(theirs.topics(), config.spec.topics)
            groups = config.spec.consumer_groups or _groups(settings.theirs)
            left = ask(theirs, topics, groups)
            known = set(selected(ours.topics(), config.spec.topics))
            right = ask(ours, known, groups)
        both = sorted(left.topics.keys() & right.topics.keys())
        matches = [match(topic, left, right) for topic in both]
        found = [*comparing.of_topics(left, right, is_over=config.spec.is_over)]
        for one in matches:
            found += comparing.of_match(one, left, right, is_over=config.spec.is_over)
        found += comparing.of_groups(matches, left, right, is_over=config.spec.is_over)
        reporter.say("comparing contents", topics=len(both))
        messages, rows = self._contents(settings, matches, left, right)
        found += comparing.of_content(rows)
        result = CheckResult(len(left.topics), messages, len(groups), tuple(found))
        return _outcome(result, config, reporter)

    def _contents(
        self, order: CheckOrder, matches: list[Match], left: ClusterFacts, right: ClusterFacts
    ) -> tuple[int, list[dict[str, Any]]]:
        """How many messages were compared, and where they differ."""
        pairs = [pair for one in matches for pair in one.pairs if pair.begin < pair.end]
        whole = frozenset(one.topic for one in matches if one.is_whole)
        their_ranges = ranges_of(((pair.theirs, pair) for pair in pairs), left, whole)
        our_ranges = ranges_of(((pair.ours, pair) for pair in pairs), right, whole)
        if not their_ranges and not our_ranges:
            return 0, []
        spark = self._session(order.config)
        names = {pair.theirs.broker: pair.ours.broker for pair in pairs}
        theirs = fingerprints(_read(spark, order.their_options, their_ranges), names, whole)
        ours = fingerprints(_read(spark, order.our_options, our_ranges), {}, whole)
        rows = [row.asDict() for row in differences(theirs, ours).collect()]
        return sum(end - begin for begin, end in their_ranges.values()), rows


def ranges_of(
    pairs: Iterable[tuple[QueueId, Pair]], facts: ClusterFacts, whole: frozenset[str]
) -> dict[QueueId, tuple[int, int]]:
    """What is read of one cluster: of queues that correspond what both have, of the others everything."""
    found = {queue: (pair.begin, pair.end) for queue, pair in pairs}
    found |= {
        queue: (one.begin, one.end) for queue, one in facts.bounds.items()
        if queue.topic in whole and one.begin < one.end
    }  # fmt: skip
    return found


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


def _groups(settings: ReadSettings) -> list[str]:
    """Consumer groups of applications that the source knows."""
    try:
        with Admin(settings.name_servers, client_settings=settings.client_settings()) as admin:
            found = admin.wait(admin.groups.all())
    except (ClientError, OSError) as error:
        raise JobError(
            f"the source's groups cannot be asked: {error}", reason="NotDone", exit_code=EXIT_UNKNOWN
        ) from error
    return sorted(name for name in found if not name.startswith(("CID_", "TOOLS_", "FILTERSRV_", "SELF_TEST_")))


def _outcome(result: CheckResult, config: PipelineConfig[MigrateCheckSpec], reporter: Reporter) -> Outcome:
    text = result.text()
    for line in text.splitlines():
        reporter.say(line)
    files = 0
    if config.here.destination:
        folder = Path(config.here.destination)
        replace_file(folder / "migrate-check.txt", text.encode())
        replace_file(folder / "migrate-check.json", (json.dumps(result.document(), indent=2) + "\n").encode())
        files = 2
    total = len(result.findings)
    return Outcome(
        EXIT_FAILED if total else EXIT_DONE, "Differs" if total else "Same", text.splitlines()[-1],
        rows=result.messages, files=files, facts=result.document(),
    )  # fmt: skip


def _session(config: PipelineConfig[MigrateCheckSpec]) -> SparkSession:
    return spark_session("gantry-migrate-check", cores=config.spec.engine.cores or None, conf=spark_conf(config))
