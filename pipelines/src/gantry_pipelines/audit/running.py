"""An audit from its settings to its result. Who runs the tasks is the caller's: Spark, or a loop.

open copies -> ask what they have -> plan -> [ tasks, anywhere ] -> conclude, here -> result
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
from gantry_pipelines.audit.model import Check, Chunk, Finding, Looked, QueueRun, Row, Span
from gantry_pipelines.audit.planning import Plan, planned
from gantry_pipelines.audit.result import AuditResult, BrokerResult
from gantry_pipelines.audit.settings import AuditSettings, SidecarAccess
from gantry_pipelines.audit.sidecar import SidecarCopy
from pyspark_rocketmq.model import Replica

FINDINGS_PER_CHUNK_MAX: Final = 5_000
"""A history that has forked differs in each of a million records; what is over this is said as a number."""


@final
@dataclass(frozen=True, slots=True)
class AuditTask:
    """All that a worker needs for one chunk."""

    chunk: Chunk
    replicas: tuple[Replica, ...]
    states: tuple[tuple[int, CopyState], ...]
    settings: AuditSettings

    @property
    def size_bytes(self) -> int:
        """Of the log."""
        return self.chunk.span.length

    def rows(self) -> Iterator[Row]:
        """Look at the chunk."""
        return run_task(self)


class AnyTask(Protocol):
    """What can be run anywhere: of chunks, or of an archive's files."""

    @property
    def size_bytes(self) -> int:
        """How much there is to do."""
        ...

    def rows(self) -> Iterator[Row]:
        """Do it."""
        ...


RunTasks = Callable[[Sequence[AnyTask]], Iterable[Row]]
"""Does each task, in any order; the rows of all."""


def open_copy(replica: Replica, access: SidecarAccess) -> LogCopy:
    """Return a replica's copy: by its directory if it is seen here, else by its sidecar.

    Raises ``CopyUnreachable`` for a replica that can only be pulled from: a pull shows messages, and no log.
    """
    if replica.directory is not None:
        return DirectoryCopy(replica.directory)
    if replica.sidecar is not None:
        return SidecarCopy(replica.sidecar, access)
    raise CopyUnreachable(
        f"{replica.broker}:{replica.number} has no sidecar and no directory seen here; name one, or leave it out"
    )


def run_task(task: AuditTask) -> Iterator[Row]:
    """Look at one chunk. Opens its copies and closes them."""
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
            yield Looked(task.chunk.broker, task.chunk.span, 0, 0, 0, 0, f"expired while it was looked at: {exc}")
        if found > FINDINGS_PER_CHUNK_MAX:
            text = (
                f"{task.chunk.broker}: {found - FINDINGS_PER_CHUNK_MAX} more findings between {task.chunk.span.begin}"
            )
            yield Looked(task.chunk.broker, Span(0, 0), 0, 0, 0, 0, f"{text} and {task.chunk.span.end} are not listed")


def run_here(tasks: Sequence[AnyTask]) -> Iterator[Row]:
    """One task after the other, in this process."""
    for task in tasks:
        yield from task.rows()


def audit(settings: AuditSettings, run_tasks: RunTasks = run_here) -> AuditResult:
    """Look at everything. Raises ``AuditError`` when it could not be done."""
    began = time.time()
    if not settings.replicas:
        raise NothingToCompare("no replica is named, and none was found")
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
            planned(broker, states[broker], _order(brokers[broker]), settings.chunk_bytes, settings.begin)
            for broker in brokers
        ]
        rows = list(run_tasks([task for plan in plans for task in _tasks(plan, states[plan.broker], settings)]))
        results = [_concluded(plan, brokers[plan.broker], states[plan.broker], rows, settings) for plan in plans]
    return AuditResult(began, time.time(), tuple(results))


def _order(copies: dict[int, LogCopy]) -> tuple[int, ...]:
    """The master first: it is believed where nothing else decides. What is read is read from one that is furthest."""
    return tuple(sorted(copies))


def _tasks(plan: Plan, states: dict[int, CopyState], settings: AuditSettings) -> Iterator[AuditTask]:
    replicas = {one.number: one for one in settings.replicas if one.broker == plan.broker}
    for chunk in plan.chunks:
        those = tuple((number, states[number]) for number in chunk.copies)
        yield AuditTask(chunk, tuple(replicas[number] for number in chunk.copies), those, settings)


def _concluded(
    plan: Plan, copies: dict[int, LogCopy], states: dict[int, CopyState], rows: list[Row], settings: AuditSettings
) -> BrokerResult:
    mine = [row for row in rows if row.broker == plan.broker]
    looked = [row for row in mine if isinstance(row, Looked)]
    findings = [row for row in mine if isinstance(row, Finding)]
    notes = [*plan.notes, *(f"{plan.broker}: {row.note}" for row in looked if row.note)]
    if Check.INDEX in settings.checks:
        runs = [row for row in mine if isinstance(row, QueueRun)]
        begin = min((chunk.span.begin for chunk in plan.chunks), default=0)
        conclusion = Conclusion(plan.broker, copies, states, begin, findings, runs)
        findings = conclusion.findings()
        notes += conclusion.notes
    return BrokerResult(
        plan.broker, plan.compared, tuple(sorted(copies)), sum(one.records for one in looked),
        sum(one.units for one in looked), sum(one.bytes_compared for one in looked),
        sum(one.bytes_decoded for one in looked), tuple(dict.fromkeys(findings)), tuple(notes),
    )  # fmt: skip
