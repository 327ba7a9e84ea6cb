"""An audit of stores that a real pair has written: every planted fault is named, and nothing on clean ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from run_audit_faults import Plan, found, plans, run_plan
from spark_kit.broker_pair import (
    copied,
    delete_topic,
    directories,
    running_pair,
    send_all,
    sidecars,
    topic_of_two_lives,
    until_at_rest,
    write_pair,
)
from spark_kit.processes import Group
from spark_kit.store_faults import LOG_FAULTS, UNIT_FAULTS, Log, plant, wrongs

from gantry_pipelines.audit.frames import rows_batch
from gantry_pipelines.audit.job import AuditJob, found_replicas
from gantry_pipelines.audit.model import Check, Kind
from gantry_pipelines.audit.planning import planned
from gantry_pipelines.audit.result import AuditResult
from gantry_pipelines.audit.running import AuditTask, audit, run_here
from gantry_pipelines.audit.settings import AuditSettings
from gantry_pipelines.config import Here, PipelineConfig
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import AuditSpec

pytestmark = pytest.mark.verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Stores = tuple[Path, Path]
SEED = 8
QUICK = (
    "flip-body",
    "flip-header",
    "cut-tail",
    "zero-middle",
    "swap-chunks",
    "lose-unit",
    "lead-elsewhere",
    "stray-unit",
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """A master's store and a slave's, written together."""
    return write_pair(tmp_path_factory.mktemp("pair") / "group", seed=SEED, count=1_500)


def result_of(stores: Stores, **more: object) -> AuditResult:
    return audit(AuditSettings(directories(*stores), chunk_bytes=1 << 17, **more))  # type: ignore[arg-type]


def test_a_clean_pair_has_no_finding_and_everything_was_looked_at(stores: Stores) -> None:
    """Nothing is found where nothing is wrong, and the whole log and every unit were looked at."""
    result = result_of(stores)

    assert result.findings == []
    assert result.exit_code == 0
    [broker] = result.brokers
    log = Log.of(stores[0])
    assert (broker.compared.begin, broker.compared.end) == (0, log.end)
    assert broker.records == len(log.records)
    assert broker.units == 2 * len([one for one in log.records if one.offset >= 0])
    assert result.text().splitlines()[-1].startswith("clean")


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_named_and_nothing_else_is(stores: Stores, tmp_path: Path, name: str) -> None:
    """Every record and every unit that a fault has spoilt is named, on the copy that has it, and no other."""
    text, wrong = run_plan(Plan(name, (1,), SEED), stores, tmp_path)

    assert not wrong, text


@pytest.mark.slow
@pytest.mark.parametrize("copies", [(0,), (1,)], ids=["master", "slave"])
@pytest.mark.parametrize("name", sorted({*LOG_FAULTS, *UNIT_FAULTS}))
def test_each_kind_of_fault_is_named_on_either_copy(
    stores: Stores, tmp_path: Path, name: str, copies: tuple[int, ...]
) -> None:
    """The same for every kind, on the master and on the slave."""
    text, wrong = run_plan(Plan(name, copies, SEED + 1), stores, tmp_path)

    assert not wrong, text


def test_what_is_spoilt_on_every_copy_alike_is_found_too(stores: Stores, tmp_path: Path) -> None:
    """Checksums agree where both copies are wrong in the same way; the record's own does not."""
    text, wrong = run_plan(Plan("flip-properties", (0, 1), SEED), stores, tmp_path)

    assert not wrong, text


def test_the_planter_and_the_judge_would_see_an_audit_that_finds_nothing(stores: Stores, tmp_path: Path) -> None:
    """A judge that is content with no findings would prove nothing."""
    spoilt = copied(stores[1], tmp_path / "spoilt")
    log = Log.of(stores[0])
    plant("flip-body", log, [spoilt], SEED)

    assert wrongs([], log, stores[1], {1: spoilt})
    assert len(list(plans(100, SEED))) == 100
    assert {one.name for one in plans(100, SEED)} == {*LOG_FAULTS, *UNIT_FAULTS}


def test_a_copy_that_ends_earlier_and_begins_later_is_no_finding(stores: Stores, tmp_path: Path) -> None:
    """What retention has deleted on one copy, and what another has not yet, is said and is no fault."""
    slave = copied(stores[1], tmp_path / "slave")
    first, *_ = sorted((slave / "commitlog").iterdir())
    first.unlink()

    result = result_of((stores[0], slave))

    assert result.findings == []
    [broker] = result.brokers
    assert broker.compared.begin == first.stat().st_size if first.exists() else broker.compared.begin > 0
    assert any("deleted on another copy" in note for note in broker.notes)


def test_one_copy_alone_is_held_against_itself(stores: Stores, tmp_path: Path) -> None:
    """Without a second copy checksums and queues still tell damage, and the report says that nothing was compared."""
    spoilt = copied(stores[0], tmp_path / "spoilt")
    log = Log.of(stores[0])
    plant("flip-body", log, [spoilt], SEED)

    result = audit(AuditSettings(directories(spoilt, spoilt)[:1], chunk_bytes=1 << 17))

    assert wrongs(result.findings, log, stores[0], {0: spoilt}) == []
    assert any("there is one copy" in note for note in result.brokers[0].notes)


def test_only_what_differs_is_read_as_records(stores: Stores, tmp_path: Path) -> None:
    """Copies are compared by checksums; without the check of queues a clean pair costs no byte of the log."""
    spoilt = copied(stores[1], tmp_path / "spoilt")
    log = Log.of(stores[0])
    plant("flip-body", log, [spoilt], SEED)
    checks = frozenset({Check.COPIES})

    clean, found_one = result_of(stores, checks=checks), result_of((stores[0], spoilt), checks=checks)

    assert clean.brokers[0].bytes_decoded == 0
    assert [one.kind for one in found_one.findings] == [Kind.CORRUPT]


# -- by sidecars, and as a job -----------------------------------------------------------------------------------------


def test_a_running_group_is_audited_by_its_sidecars(brokers: Group, tmp_path: Path) -> None:
    """The job finds the copies by itself, ends with 0, and leaves a table, a report and a document."""
    brokers.send(200, topic="audited")
    here = Here(name_servers=[brokers.name_server], sidecars=list(brokers.urls), destination=str(tmp_path))
    job = AuditJob(lambda order, reporter: run_here)
    order = job.parse(PipelineConfig(AuditSpec(), here))

    outcome = job.run(order, Reporter("audit"))

    assert outcome.exit_code == 0, outcome.text
    assert {one.number for one in found_replicas(order.reading)} == {0, 1}
    assert outcome.rows >= 200
    [table] = (tmp_path / "findings").iterdir()
    assert pq.read_table(table).num_rows == 0
    assert len(list((tmp_path / "reports").iterdir())) == 2
    assert order.access.tokens == ()


@pytest.mark.slow
def test_faults_of_running_brokers_are_found_by_sidecars(tmp_path: Path) -> None:
    """A byte that changes below a running slave, a hole in its log and one in its queue are found over HTTP; topics
    that were deleted, or made again, are no fault."""
    import asyncio

    with running_pair(tmp_path / "group") as group:
        asyncio.run(send_all(group.name_server, SEED, 1_500))
        asyncio.run(topic_of_two_lives(group.name_server, 20))
        until_at_rest(group)  # a delayed message that is delivered after the deletion would make the topic again
        asyncio.run(delete_topic(group.name_server, "audit_trail"))
        group.until(group.is_well)
        settings = AuditSettings(sidecars(group), chunk_bytes=1 << 17)
        clean = audit(settings)
        slave = group.state.store(0, 2)
        log = Log.of(slave)
        before = copied(slave, tmp_path / "before")
        texts = [plant(name, log, [slave], SEED) for name in ("flip-body", "zero-middle", "lose-unit")]
        spoilt = audit(settings)
        wrong = wrongs(spoilt.findings, log, before, {1: slave})

    assert clean.findings == []
    assert any("audit_trail does not exist" in note for note in clean.brokers[0].notes)
    assert wrong == [], texts


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.needs_spark
def test_tasks_on_spark_find_what_a_loop_finds(spark: SparkSession, stores: Stores, tmp_path: Path) -> None:
    """The transform is the same function, row by row, wherever it runs."""
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.audit.frames import ROWS_DDL
    from gantry_pipelines.audit.running import open_copy
    from gantry_pipelines.audit.spark_tasks import looked, on_spark, tasks_frame

    spoilt = copied(stores[1], tmp_path / "spoilt")
    plant("swap-chunks", Log.of(stores[0]), [spoilt], SEED)
    settings = AuditSettings(directories(stores[0], spoilt), chunk_bytes=1 << 19)
    states = {one.number: open_copy(one, settings.access).state() for one in settings.replicas}
    plan = planned("broker-a", states, (0, 1), settings.chunk_bytes)
    tasks = [AuditTask(chunk, settings.replicas, tuple(states.items()), settings) for chunk in plan.chunks]

    expected = spark.createDataFrame(rows_batch(run_here(tasks)).to_pandas(), ROWS_DDL)

    assertDataFrameEqual(looked(tasks_frame(spark, tasks)), expected)
    assert audit(settings, on_spark(spark)).findings == found((stores[0], spoilt))
