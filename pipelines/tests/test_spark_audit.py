"""Audits of stores of a real master and slave: every injected fault is found, and nothing in clean stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from run_audit_faults import Plan, plans, run_audit, run_plan
from spark_kit.broker_pair import (
    copy_store,
    delete_topic,
    directories,
    running_pair,
    send_all,
    send_to_recreated_topic,
    sidecars,
    wait_until_quiescent,
    write_pair,
)
from spark_kit.processes import Group
from spark_kit.store_faults import LOG_FAULTS, UNIT_FAULTS, Log, audit_errors, inject

from gantry_pipelines.audit.frames import rows_batch
from gantry_pipelines.audit.job import AuditJob, find_replicas
from gantry_pipelines.audit.model import Check, FindingKind
from gantry_pipelines.audit.planning import plan_broker
from gantry_pipelines.audit.result import AuditResult
from gantry_pipelines.audit.running import AuditTask, audit, run_in_process
from gantry_pipelines.audit.settings import AuditSettings
from gantry_pipelines.config import PipelineConfig, RuntimeConfig
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
    "misdirect-unit",
    "stray-unit",
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """The stores of a master and its slave."""
    return write_pair(tmp_path_factory.mktemp("pair") / "group", seed=SEED, count=1_500)


def result_of(stores: Stores, **more: object) -> AuditResult:
    return audit(AuditSettings(directories(*stores), chunk_bytes=1 << 17, **more))  # type: ignore[arg-type]


def test_clean_pair_has_no_finding_and_is_checked_completely(stores: Stores) -> None:
    """A clean pair has no findings, and the whole log and every unit were checked."""
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
def test_injected_fault_is_found_and_nothing_else(stores: Stores, tmp_path: Path, name: str) -> None:
    """Every record and every unit that a fault has damaged is found, on the copy that has it, and no other."""
    text, wrong = run_plan(Plan(name, (1,), SEED), stores, tmp_path)

    assert not wrong, text


@pytest.mark.slow
@pytest.mark.parametrize("copies", [(0,), (1,)], ids=["master", "slave"])
@pytest.mark.parametrize("name", sorted({*LOG_FAULTS, *UNIT_FAULTS}))
def test_each_kind_of_fault_is_found_on_either_copy(
    stores: Stores, tmp_path: Path, name: str, copies: tuple[int, ...]
) -> None:
    """Every kind of fault is found on the master and on the slave."""
    text, wrong = run_plan(Plan(name, copies, SEED + 1), stores, tmp_path)

    assert not wrong, text


def test_equal_damage_on_all_copies_is_found(stores: Stores, tmp_path: Path) -> None:
    """Checksums of copies with the same damage are equal; the checksum of the record itself reveals it."""
    text, wrong = run_plan(Plan("flip-properties", (0, 1), SEED), stores, tmp_path)

    assert not wrong, text


def test_missing_findings_would_fail_the_fault_tests(stores: Stores, tmp_path: Path) -> None:
    """The twin: an audit without findings for an injected fault is reported as wrong."""
    damaged = copy_store(stores[1], tmp_path / "damaged")
    log = Log.of(stores[0])
    inject("flip-body", log, [damaged], SEED)

    assert audit_errors([], log, stores[1], {1: damaged})
    assert len(list(plans(100, SEED))) == 100
    assert {one.name for one in plans(100, SEED)} == {*LOG_FAULTS, *UNIT_FAULTS}


def test_copy_that_begins_later_is_no_finding(stores: Stores, tmp_path: Path) -> None:
    """A range that retention has deleted on one copy is mentioned in a note, and is no finding."""
    slave = copy_store(stores[1], tmp_path / "slave")
    first, *_ = sorted((slave / "commitlog").iterdir())
    size = first.stat().st_size
    first.unlink()

    result = result_of((stores[0], slave))

    assert result.findings == []
    [broker] = result.brokers
    assert broker.compared.begin == size
    assert any("deleted on another copy" in note for note in broker.notes)


def test_single_copy_is_checked_by_its_own_checksums(stores: Stores, tmp_path: Path) -> None:
    """Without a second copy checksums and queues still reveal damage, and a note states that there is only one copy."""
    damaged = copy_store(stores[0], tmp_path / "damaged")
    log = Log.of(stores[0])
    inject("flip-body", log, [damaged], SEED)

    result = audit(AuditSettings(directories(damaged, damaged)[:1], chunk_bytes=1 << 17))

    assert audit_errors(result.findings, log, stores[0], {0: damaged}) == []
    assert any("only one copy" in note for note in result.brokers[0].notes)


def test_only_differing_ranges_are_read_as_records(stores: Stores, tmp_path: Path) -> None:
    """Copies are compared by checksums; without the check of queues no byte of a clean pair is decoded."""
    damaged = copy_store(stores[1], tmp_path / "damaged")
    log = Log.of(stores[0])
    inject("flip-body", log, [damaged], SEED)
    checks = frozenset({Check.COPIES})

    clean, found_one = result_of(stores, checks=checks), result_of((stores[0], damaged), checks=checks)

    assert clean.brokers[0].bytes_decoded == 0
    assert [one.kind for one in found_one.findings] == [FindingKind.CORRUPT]


# -- by sidecars, and as a job -----------------------------------------------------------------------------------------


def test_running_group_is_audited_through_its_sidecars(brokers: Group, tmp_path: Path) -> None:
    """The job finds the copies itself, exits with 0, and writes a table, a report and a document."""
    brokers.send(200, topic="audited")
    runtime = RuntimeConfig(
        name_servers=[brokers.name_server], sidecars=list(brokers.sidecar_urls), destination=str(tmp_path)
    )
    job = AuditJob(lambda order, reporter: run_in_process)
    order = job.parse(PipelineConfig(AuditSpec(), runtime))

    outcome = job.run(order, Reporter("audit"))

    assert outcome.exit_code == 0, outcome.text
    assert {one.number for one in find_replicas(order.read_settings)} == {0, 1}
    assert outcome.rows >= 200
    [table] = (tmp_path / "findings").iterdir()
    assert pq.read_table(table).num_rows == 0
    assert len(list((tmp_path / "reports").iterdir())) == 2
    assert order.access.tokens == ()


@pytest.mark.slow
def test_faults_of_running_brokers_are_found_through_sidecars(tmp_path: Path) -> None:
    """A changed byte, a hole in the log and one in a queue of a running slave are found over HTTP.

    Topics that were deleted, or created again, are no fault.
    """
    import asyncio

    with running_pair(tmp_path / "group") as group:
        asyncio.run(send_all(group.name_server, SEED, 1_500))
        asyncio.run(send_to_recreated_topic(group.name_server, 20))
        wait_until_quiescent(group)  # a delayed message that is delivered after the deletion would make the topic again
        asyncio.run(delete_topic(group.name_server, "audit_trail"))
        group.wait_until(group.is_healthy)
        settings = AuditSettings(sidecars(group), chunk_bytes=1 << 17)
        clean = audit(settings)
        slave = group.state.store(0, 2)
        log = Log.of(slave)
        before = copy_store(slave, tmp_path / "before")
        texts = [inject(name, log, [slave], SEED) for name in ("flip-body", "zero-middle", "lose-unit")]
        damaged = audit(settings)
        wrong = audit_errors(damaged.findings, log, before, {1: slave})

    assert clean.findings == []
    assert any("audit_trail no longer exists" in note for note in clean.brokers[0].notes)
    assert wrong == [], texts


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.needs_spark
def test_tasks_on_spark_find_the_same_as_in_a_loop(spark: SparkSession, stores: Stores, tmp_path: Path) -> None:
    """The transform yields the same rows as the tasks in this process."""
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.audit.frames import ROWS_DDL
    from gantry_pipelines.audit.running import open_copy
    from gantry_pipelines.audit.spark_tasks import run_audit_tasks, spark_task_runner, tasks_frame

    damaged = copy_store(stores[1], tmp_path / "damaged")
    inject("swap-chunks", Log.of(stores[0]), [damaged], SEED)
    settings = AuditSettings(directories(stores[0], damaged), chunk_bytes=1 << 19)
    states = {one.number: open_copy(one, settings.access).state() for one in settings.replicas}
    plan = plan_broker("broker-a", states, (0, 1), settings.chunk_bytes)
    tasks = [AuditTask(chunk, settings.replicas, tuple(states.items()), settings) for chunk in plan.chunks]

    expected = spark.createDataFrame(rows_batch(run_in_process(tasks)).to_pandas(), ROWS_DDL)

    assertDataFrameEqual(run_audit_tasks(tasks_frame(spark, tasks)), expected)
    assert audit(settings, spark_task_runner(spark)).findings == run_audit((stores[0], damaged))
