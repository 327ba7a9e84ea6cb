"""Run an audit. The caller provides the way to run tasks: Spark, or a loop in this process.

open copies -> read their states -> plan -> [ tasks, anywhere ] -> conclude, in this process -> result
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol, final

from gantry_pipelines.audit.chunk import ChunkAudit
from gantry_pipelines.audit.concluding import Conclusion
from gantry_pipelines.audit.copies import CopyState, LogCopy
from gantry_pipelines.audit.directory import DirectoryCopy
from gantry_pipelines.audit.errors import CopyUnreachable, Expired, NothingToCompare
from gantry_pipelines.audit.model import Check, Chunk, Coverage, Finding, QueueRun, Row, Span
from gantry_pipelines.audit.planning import BrokerPlan, plan_broker
from gantry_pipelines.audit.result import AuditResult, BrokerResult
from gantry_pipelines.audit.settings import AuditSettings, SidecarAccess
from gantry_pipelines.audit.sidecar import SidecarCopy
from pyspark_rocketmq.model import Replica

FINDINGS_PER_CHUNK_MAX: Final = 5_000
"""Findings listed for one chunk, because a forked log differs in each record; further ones are only counted."""


@final
@dataclass(frozen=True, slots=True)
class AuditTask:
    """The task of auditing one chunk, with all that a worker needs."""

    chunk: Chunk
    replicas: tuple[Replica, ...]
    states: tuple[tuple[int, CopyState], ...]
    """The state of each copy, by the number of its replica."""

    settings: AuditSettings

    @property
    def size_bytes(self) -> int:
        """The bytes of the log in the chunk."""
        return self.chunk.span.length

    def rows(self) -> Iterator[Row]:
        """Audit the chunk, and yield the results."""
        return run_task(self)


class AnyTask(Protocol):
    """The interface of tasks, which can be pickled and run in any process."""

    @property
    def size_bytes(self) -> int:
        """The amount of data to check in bytes."""
        ...

    def rows(self) -> Iterator[Row]:
        """Run the task, and yield its results."""
        ...


RunTasks = Callable[[Sequence[AnyTask]], Iterable[Row]]
"""Runs tasks in any order, and yields the results of all."""


def open_copy(replica: Replica, access: SidecarAccess) -> LogCopy:
    """Open a replica's copy: its directory if it is mounted here, else its sidecar.

    Raises ``CopyUnreachable`` for a replica that only supports pulls, which return messages and not the log.
    """
    if replica.directory is not None:
        return DirectoryCopy(replica.directory)
    if replica.sidecar is not None:
        return SidecarCopy(replica.sidecar, access)
    remedy = "set runtime.sidecars or runtime.directories"
    raise CopyUnreachable(f"{replica.broker}:{replica.number} has no sidecar and no directory: {remedy}")


def run_task(task: AuditTask) -> Iterator[Row]:
    """Audit one chunk. Opens its copies and closes them."""
    with ExitStack() as stack:
        copies: dict[int, LogCopy] = {}
        for replica in task.replicas:
            copies[replica.number] = open_copy(replica, task.settings.access)
            stack.callback(copies[replica.number].close)
        audit = ChunkAudit(task.chunk, copies, dict(task.states), task.settings.checks, task.settings.algorithm)
        found = 0
        try:
            for row in audit.run():
                found += isinstance(row, Finding)
                if not isinstance(row, Finding) or found <= FINDINGS_PER_CHUNK_MAX:
                    yield row
        except Expired as exc:
            yield Coverage(task.chunk.broker, task.chunk.span, 0, 0, 0, 0, f"expired during the audit: {exc}")
        if found > FINDINGS_PER_CHUNK_MAX:
            text = (
                f"{task.chunk.broker}: {found - FINDINGS_PER_CHUNK_MAX} more findings between {task.chunk.span.begin}"
            )
            yield Coverage(
                task.chunk.broker, Span(0, 0), 0, 0, 0, 0, f"{text} and {task.chunk.span.end} are not listed"
            )


def run_in_process(tasks: Sequence[AnyTask]) -> Iterator[Row]:
    """Run one task after the other in this process."""
    for task in tasks:
        yield from task.rows()


def audit(settings: AuditSettings, run_tasks: RunTasks = run_in_process) -> AuditResult:
    """Audit all brokers. Raises ``AuditError`` if the audit cannot be done."""
    began = time.time()
    if not settings.replicas:
        raise NothingToCompare("no replica found: check runtime.nameServers, runtime.sidecars and runtime.directories")
    with ExitStack() as stack:
        brokers: dict[str, dict[int, LogCopy]] = {}
        for replica in settings.replicas:
            copy = open_copy(replica, settings.access)
            stack.callback(copy.close)
            brokers.setdefault(replica.broker, {})[replica.number] = copy
        states = {
            broker: {number: copy.state() for number, copy in copies.items()} for broker, copies in brokers.items()
        }
        plans = [
            plan_broker(broker, states[broker], _trust_order(brokers[broker]), settings.chunk_bytes, settings.begin)
            for broker in brokers
        ]
        rows = list(run_tasks([task for plan in plans for task in _make_tasks(plan, states[plan.broker], settings)]))
        results = [_conclude(plan, brokers[plan.broker], states[plan.broker], rows, settings) for plan in plans]
    return AuditResult(began, time.time(), tuple(results))


def _trust_order(copies: dict[int, LogCopy]) -> tuple[int, ...]:
    """Return the copies in the order in which they are trusted in doubt: the master (0) first."""
    return tuple(sorted(copies))


def _make_tasks(plan: BrokerPlan, states: dict[int, CopyState], settings: AuditSettings) -> Iterator[AuditTask]:
    replicas = {one.number: one for one in settings.replicas if one.broker == plan.broker}
    for chunk in plan.chunks:
        chunk_states = tuple((number, states[number]) for number in chunk.copies)
        yield AuditTask(chunk, tuple(replicas[number] for number in chunk.copies), chunk_states, settings)


def _conclude(
    plan: BrokerPlan, copies: dict[int, LogCopy], states: dict[int, CopyState], rows: list[Row], settings: AuditSettings
) -> BrokerResult:
    """Return the result of one broker from the results of its tasks."""
    broker_rows = [row for row in rows if row.broker == plan.broker]
    coverage = [row for row in broker_rows if isinstance(row, Coverage)]
    findings = [row for row in broker_rows if isinstance(row, Finding)]
    notes = [*plan.notes, *(f"{plan.broker}: {row.note}" for row in coverage if row.note)]
    if Check.INDEX in settings.checks:
        runs = [row for row in broker_rows if isinstance(row, QueueRun)]
        begin = min((chunk.span.begin for chunk in plan.chunks), default=0)
        conclusion = Conclusion(plan.broker, copies, states, begin, findings, runs)
        findings = conclusion.findings()
        notes += conclusion.notes
    bytes_compared = sum(one.bytes_compared for one in coverage)
    compared = plan.compared if bytes_compared else Span(plan.compared.begin, plan.compared.begin)
    return BrokerResult(
        plan.broker, compared, tuple(sorted(copies)), sum(one.records for one in coverage),
        sum(one.units for one in coverage), bytes_compared,
        sum(one.bytes_decoded for one in coverage), tuple(dict.fromkeys(findings)), tuple(notes),
    )  # fmt: skip
