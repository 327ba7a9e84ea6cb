"""The status of a pipeline, its conditions and events, made from its observation. Pure and stateless.

    Ready         it runs, or is scheduled, or is done
    Progressing   a run is under way
    DataLoss      messages were deleted before they were read, or a log has forked; stays true until the resource is
                  edited, because the next successful run does not observe the loss
    Degraded      the last run failed, an audit has a finding, or a run reports a warning

Reasons never change. A problem that keeps a pipeline from running (``Problem``) is decided before anything is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import msgspec

from gantry_operator.event_recorder import Event
from gantry_operator.pipelines.facts import Problem
from gantry_operator.pipelines.observed import DriverExit, ObservedPipeline
from gantry_operator.status import RECONCILING, STALLED, conditions_of, is_due
from gantry_spec.decide.decision import Condition as DecidedCondition
from gantry_spec.pipelines.kinds import AUDIT, Pipeline
from gantry_spec.pipelines.status import Lag, LastRun, PipelineStatus, QueueStatus

DATA_LOSS_CODE: Final = 5
"""The exit code of a job that found lost messages."""

INTERRUPTED: Final = frozenset({130, 143})
"""The exit codes of a driver that was stopped by SIGINT or SIGTERM."""


@final
class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything from which the status is made."""

    pipeline: Pipeline
    observed: ObservedPipeline
    problem: Problem | None = None
    """Why the pipeline cannot run; None if it can."""

    unapplied: str = ""
    """Why an object could not be applied; empty if all were."""

    before: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The present status of the resource."""

    now: str = ""
    """The present time, as Kubernetes writes it."""


def status_of(view: View) -> PipelineStatus:
    """Return the new status of the pipeline."""
    generation = view.pipeline.metadata.generation
    run, report = last_run(view)
    before = view.before
    conditions = [_ready(view, run), _progressing(view), _data_loss(view, run), _degraded(view, run)]
    return PipelineStatus(
        observed_generation=generation,
        phase=_phase(view, run),
        last_run=run,
        lag=lag_of(report) if report else _convert_or(before.get("lag"), Lag, Lag()),
        queues_total=number(report, "queuesTotal") if report else number(before, "queuesTotal"),
        queues=queues_of(report) if report else _convert_or(before.get("queues"), list[QueueStatus], []),
        checkpoint=(text(report, "checkpoint") if report else "") or text(before, "checkpoint"),
        conditions=conditions_of([*conditions, *_progress(view, run)], before, generation, view.now),
    )


def last_run(view: View) -> tuple[LastRun, Mapping[str, Any]]:
    """Return the present or last run with its report; without the pod of that run, the one in the status."""
    observed = view.observed
    known = _known_run(view)
    if observed.page is not None:
        return run_of(observed.page), observed.page
    ended = observed.last_exit
    if ended is None or ended.at < (known.end or known.start):
        return known, {}
    if ended.report is not None:
        return run_of(ended.report, ended), ended.report
    return killed_run(ended), {}


def events_of(before: Mapping[str, Any], status: PipelineStatus) -> list[Event]:
    """Return the events to record when this status replaces the present one."""
    known = {one.get("type"): one for one in before.get("conditions") or []}
    found = []
    for one in status.conditions:
        old = known.get(one.type, {})
        if (old.get("status"), old.get("reason")) == (one.status, one.reason):
            continue
        is_bad = one.status == "True" if one.type in ("DataLoss", "Degraded") else False
        is_blocked = one.type == "Ready" and one.status == "False" and one.reason in BLOCKING_REASONS
        if is_bad or is_blocked:
            found.append(Event(one.reason, one.message or one.reason, is_warning=True))
    run, old_run = status.last_run, before.get("lastRun") or {}
    if run.end and run.end != old_run.get("end") and run.exit_code == 0:
        found.append(Event("RunDone", run.message or f"{run.rows} messages"))
    return found


BLOCKING_REASONS: Final = frozenset(
    {
        *("InvalidSpec", "GroupNotFound", "ArchiveNotFound", "SharedDestination", "ImageMissing", "EngineRefused"),
        *("NotApplied", "RunFailed", "DriverFailing"),
    }
)
"""The reasons that need an action of the user."""

FINAL_REASONS: Final = frozenset({"InvalidSpec", "SharedDestination", "ImageMissing", "EngineRefused"})
"""The problems that only an edit ends, of the pipeline or of the operator. What is not found may still be created."""


def is_worth_a_write(status: Mapping[str, Any], written: Mapping[str, Any], age_ms: int) -> bool:
    """Return whether to write this status: important changes at once, others when the last write is old enough."""
    return is_due(is_urgent=_urgent(status) != _urgent(written), is_changed=status != written, age_ms=age_ms)


def _urgent(status: Mapping[str, Any]) -> Any:
    """Return the part of a status whose changes are written at once."""
    conditions = sorted(
        (one.get("type"), one.get("status"), one.get("reason")) for one in status.get("conditions") or []
    )
    run = status.get("lastRun") or {}
    return conditions, status.get("phase"), status.get("observedGeneration"), run.get("end"), run.get("exitCode")


# -- conditions --------------------------------------------------------------------------------------------------------


def _ready(view: View, run: LastRun) -> DecidedCondition:
    def ready(reason: str, message: str = "") -> DecidedCondition:
        return DecidedCondition(type="Ready", is_true=True, reason=reason, message=message)

    def not_ready(reason: str, message: str = "") -> DecidedCondition:
        return DecidedCondition(type="Ready", is_true=False, reason=reason, message=message)

    spec, observed = view.pipeline.spec, view.observed
    if view.problem is not None:
        return not_ready(*view.problem)
    if view.unapplied:
        return not_ready("NotApplied", view.unapplied)
    if spec.suspend:
        return not_ready("Suspended", "spec.suspend is true")
    if view.pipeline.is_continuous:
        if observed.page is not None:
            return ready("Running")
        failing = next((pod for pod in observed.pods if pod.restarts and not pod.is_running), None)
        if failing is not None:
            return not_ready(
                "DriverFailing", f"{failing.name} has ended {failing.restarts} times: {_failure_text(run)}"
            )
        return not_ready("Starting", _waiting_text(observed))
    if not spec.schedule and observed.is_done:
        return ready("Done", run.message)
    if not spec.schedule and not observed.has_failed_for_good:
        return not_ready("RunInProgress", _waiting_text(observed))
    if _has_failed(view, run):
        return not_ready("RunFailed", _failure_text(run))
    return ready("Scheduled" if spec.schedule else "Done", run.message)


def _progressing(view: View) -> DecidedCondition:
    if view.problem is not None:
        return DecidedCondition(
            type="Progressing", is_true=False, reason=view.problem.reason, message=view.problem.text
        )
    if view.observed.outdated_pods:
        message = f"waiting for the end of {', '.join(view.observed.outdated_pods)}: only one writer may run"
        return DecidedCondition(type="Progressing", is_true=True, reason="WaitingForOldRun", message=message)
    if view.observed.is_busy:
        return DecidedCondition(
            type="Progressing", is_true=True, reason="RunInProgress", message=_waiting_text(view.observed)
        )
    is_suspended = view.pipeline.spec.suspend
    return DecidedCondition(type="Progressing", is_true=False, reason="Suspended" if is_suspended else "Idle")


def _progress(view: View, run: LastRun) -> list[DecidedCondition]:
    """Return the conditions by which kstatus waits; none if the present spec is applied. A run is no reason to wait."""
    if view.problem is not None and view.problem.reason in FINAL_REASONS:
        return [DecidedCondition(type=STALLED, is_true=True, reason=view.problem.reason, message=view.problem.text)]
    if view.problem is None and not view.pipeline.spec.schedule and view.observed.has_failed_for_good:
        return [DecidedCondition(type=STALLED, is_true=True, reason="RunFailed", message=_failure_text(run))]
    if view.problem is not None or view.unapplied:
        reason, message = view.problem or ("NotApplied", view.unapplied)
        return [DecidedCondition(type=RECONCILING, is_true=True, reason=reason, message=message)]
    if view.observed.outdated_pods:
        message = f"waiting for the end of {', '.join(view.observed.outdated_pods)}"
        return [DecidedCondition(type=RECONCILING, is_true=True, reason="WaitingForOldRun", message=message)]
    return []


def _known_run(view: View) -> LastRun:
    """Return the run in the present status; an empty one if it has none."""
    run: LastRun = _convert_or(view.before.get("lastRun"), LastRun, LastRun())
    return run


def _data_loss(view: View, run: LastRun) -> DecidedCondition:
    """Report a new loss of a run; else the known condition, until the generation changes.

    A run with a loss usually is still the last one when its user edits the resource. So only a loss that the present
    status does not contain is new: otherwise the same loss would be reported for the new generation, too.
    """
    known_run = _known_run(view)
    is_new_end = (run.start, run.end, run.exit_code) != (known_run.start, known_run.end, known_run.exit_code)
    if run.exit_code == DATA_LOSS_CODE and is_new_end:
        return DecidedCondition(
            type="DataLoss", is_true=True, reason=run.reason or "DataLost", message=_failure_text(run)
        )
    if run.rows_lost and (run.start, run.rows_lost) != (known_run.start, known_run.rows_lost):
        message = f"{run.rows_lost} messages were deleted before they were read"
        return DecidedCondition(type="DataLoss", is_true=True, reason="RowsLost", message=message)
    known: Mapping[str, Any] = next(
        (one for one in view.before.get("conditions") or [] if one.get("type") == "DataLoss"), {}
    )
    is_acknowledged = known.get("observedGeneration") != view.pipeline.metadata.generation
    if known.get("status") == "True" and not is_acknowledged:
        return DecidedCondition(type="DataLoss", is_true=True, reason=known["reason"], message=known.get("message", ""))
    return DecidedCondition(type="DataLoss", is_true=False, reason="NoneObserved")


def _degraded(view: View, run: LastRun) -> DecidedCondition:
    warning = (view.observed.page or {}).get("warning")
    if isinstance(warning, Mapping) and text(warning, "reason"):
        return DecidedCondition(
            type="Degraded", is_true=True, reason=text(warning, "reason"), message=text(warning, "text")
        )
    if _has_failed(view, run):
        is_finding = view.pipeline.kind is AUDIT and run.exit_code == 1 and run.reason
        reason = run.reason if is_finding else "RunFailed"
        return DecidedCondition(type="Degraded", is_true=True, reason=reason, message=_failure_text(run))
    return DecidedCondition(type="Degraded", is_true=False, reason="AsExpected")


def _has_failed(view: View, run: LastRun) -> bool:
    """Return whether the last run failed. A run that is under way, or that was interrupted, does not count."""
    return view.observed.page is None and run.exit_code != 0 and run.exit_code not in INTERRUPTED


def _failure_text(run: LastRun) -> str:
    last = (run.message.strip().splitlines() or [""])[-1][:500]
    return f"exit code {run.exit_code}, {run.reason or 'no reason'}: {last}"


def _waiting_text(observed: ObservedPipeline) -> str:
    return "; ".join(
        f"{pod.name}: {pod.waiting_reason}" for pod in observed.pods if pod.waiting_reason and not pod.is_over
    )


def _phase(view: View, run: LastRun) -> str:
    if view.problem is not None:
        return "Blocked"
    if view.observed.running_pod is not None:
        return "Running"
    if view.observed.is_busy:
        return "Starting"
    if view.pipeline.spec.suspend:
        return "Suspended"
    if _has_failed(view, run):
        return "Failed"
    if view.pipeline.spec.schedule:
        return "Scheduled"
    return "Done" if view.observed.is_done else "Starting"


def _convert_or(value: object, kind: Any, default: Any) -> Any:
    """Convert a value of the present status, which another version of the operator may have written."""
    if value is None:
        return default
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return default


# -- the report of a run, whose content is not trusted: values of a wrong type are ignored -----------------------------

QUEUES_MAX: Final = 50
"""How many queues of a report the status has."""

FACTS_MAX: Final = 20
"""How many additional results of a report the status has."""

TEXT_MAX: Final = 1_000
NUMBER_MAX: Final = (1 << 63) - 1


def run_of(document: Mapping[str, Any], ended: DriverExit | None = None) -> LastRun:
    """Return the run that a report describes; for a run that has ended, with its container's exit code."""
    facts = document.get("facts")
    pairs = list(facts.items())[:FACTS_MAX] if isinstance(facts, Mapping) else []
    return LastRun(
        start=text(document, "start"),
        end=text(document, "end") or ("" if ended is None else ended.at),
        rows=number(document, "rows"),
        bytes=number(document, "bytes"),
        files=number(document, "files"),
        rows_lost=number(document, "rowsLost"),
        exit_code=number(document, "exitCode") if ended is None else ended.exit_code,
        reason=text(document, "reason"),
        message=text(document, "text"),
        facts={str(name)[:100]: str(value)[:TEXT_MAX] for name, value in pairs},
    )


def killed_run(ended: DriverExit) -> LastRun:
    """Return a run that ended without a report."""
    return LastRun(
        end=ended.at, exit_code=ended.exit_code, reason=ended.reason or "Killed", message=ended.text[-TEXT_MAX:]
    )


def lag_of(document: Mapping[str, Any]) -> Lag:
    """Return the lag of the run that a report describes."""
    return Lag(rows=number(document, "lagRows"), seconds=_age(document.get("lagSeconds")))


def queues_of(document: Mapping[str, Any]) -> list[QueueStatus]:
    """Return the queues in a report, each of them `[topic, broker, queue, done, latest, lagSeconds]`."""
    found, rows = [], document.get("queues")
    for row in rows[:QUEUES_MAX] if isinstance(rows, list) else []:
        if isinstance(row, list) and len(row) == 6 and isinstance(row[0], str) and isinstance(row[1], str):
            queue, done, latest = (_integer(one) for one in row[2:5])
            found.append(
                QueueStatus(
                    topic=row[0][:200],
                    broker=row[1][:200],
                    queue=queue,
                    done=done,
                    latest=latest,
                    lag_seconds=_age(row[5]),
                )
            )
    return found


def number(document: Mapping[str, Any], name: str) -> int:
    """Return a number of a report, as a whole number of at least -1; 0 for any value that is no number."""
    return _integer(document.get(name))


def text(document: Mapping[str, Any], name: str) -> str:
    """Return a text of a report, shortened; empty for any other value."""
    value = document.get(name)
    return value[:TEXT_MAX] if isinstance(value, str) else ""


def _age(value: object) -> int:
    """Return a time in whole seconds; -1 if it is unknown."""
    return -1 if value is None else _integer(value)


def _integer(value: object) -> int:
    """Return a number as a whole number from -1 to ``NUMBER_MAX``; 0 for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return max(-1, min(int(min(max(value, -1), NUMBER_MAX)), NUMBER_MAX))
