"""From what is seen of a pipeline to its status, its conditions and what people are told. Pure, and without memory.

    Ready         it does what it is there for: it runs, or the next run will come, or it is done
    Progressing   a run is under way
    DataLoss      messages were gone before they were read, or a log has forked; stays until the resource is edited,
                  since the next clean run has seen nothing of it
    Degraded      the last run failed, an audit found something, a run warns of something

Reasons never change. A problem that keeps a pipeline from running (``Problem``) is decided before anything is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, final

import msgspec

from gantry_operator.event_recorder import Event
from gantry_operator.pipelines.reports import killed_run, lag_of, number, queues_of, run_of, text
from gantry_operator.pipelines.seen import Seen
from gantry_operator.status import conditions_of
from gantry_spec.decide.decision import Condition as Decided
from gantry_spec.pipelines.kinds import AUDIT, Pipeline
from gantry_spec.pipelines.status import Lag, LastRun, PipelineStatus, QueueStatus

DATA_LOSS_CODE: Final = 5
INTERRUPTED: Final = frozenset({130, 143})
WRITE_MS: Final = 10_000


class Problem(NamedTuple):
    """Why nothing is run."""

    reason: str
    text: str


@final
class View(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision rests on."""

    pipeline: Pipeline
    seen: Seen
    problem: Problem | None = None
    unapplied: str = ""
    """Why something of it could not be applied."""

    before: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The status that stands there."""

    now: str = ""


def status_of(view: View) -> PipelineStatus:
    """What stands there from now on."""
    generation = view.pipeline.metadata.generation
    run, said = last_run(view)
    before = view.before
    conditions = [_ready(view, run), _progressing(view), _data_loss(view, run), _degraded(view, run)]
    return PipelineStatus(
        observed_generation=generation,
        phase=_phase(view, run),
        last_run=run,
        lag=lag_of(said) if said else _kept(before.get("lag"), Lag, Lag()),
        queues_total=number(said, "queuesTotal") if said else number(before, "queuesTotal"),
        queues=queues_of(said) if said else _kept(before.get("queues"), list[QueueStatus], []),
        checkpoint=(text(said, "checkpoint") if said else "") or text(before, "checkpoint"),
        conditions=conditions_of(conditions, before, generation, view.now),
    )


def last_run(view: View) -> tuple[LastRun, Mapping[str, Any]]:
    """The run that is under way or ended last, and what it says; of one whose pod is gone, what stood there."""
    seen = view.seen
    known = _kept(view.before.get("lastRun"), LastRun, LastRun())
    if seen.page is not None:
        return run_of(seen.page), seen.page
    ended = seen.last_ended
    if ended is None or (known.end and ended.at < known.end):
        return known, {}
    if ended.words is not None:
        return run_of(ended.words, ended), ended.words
    return killed_run(ended), {}


def events_of(before: Mapping[str, Any], status: PipelineStatus) -> list[Event]:
    """The events of this status when it replaces that one."""
    known = {one.get("type"): one for one in before.get("conditions") or []}
    found = []
    for one in status.conditions:
        old = known.get(one.type, {})
        if (old.get("status"), old.get("reason")) == (one.status, one.reason):
            continue
        is_bad = one.status == "True" if one.type in ("DataLoss", "Degraded") else False
        is_stuck = one.type == "Ready" and one.status == "False" and one.reason in STUCK
        if is_bad or is_stuck:
            found.append(Event(one.reason, one.message or one.reason, is_warning=True))
    run, old_run = status.last_run, before.get("lastRun") or {}
    if run.end and run.end != old_run.get("end") and run.exit_code == 0:
        found.append(Event("RunDone", run.message or f"{run.rows} messages"))
    return found


STUCK: Final = frozenset(
    {
        *("InvalidSpec", "GroupNotFound", "ArchiveNotFound", "SharedDestination", "ImageMissing", "EngineRefused"),
        *("NotApplied", "RunFailed", "DriverFailing"),
    }
)
"""Reasons for which a person has to do something."""


def is_worth_a_write(status: Mapping[str, Any], written: Mapping[str, Any], age_ms: int) -> bool:
    """Whether this is to replace what was written so long ago: at once what people wait for, now and then the rest."""
    return _urgent(status) != _urgent(written) or (age_ms >= WRITE_MS and status != written)


def _urgent(status: Mapping[str, Any]) -> Any:
    conditions = sorted(
        (one.get("type"), one.get("status"), one.get("reason")) for one in status.get("conditions") or []
    )
    run = status.get("lastRun") or {}
    return conditions, status.get("phase"), status.get("observedGeneration"), run.get("end"), run.get("exitCode")


# -- conditions --------------------------------------------------------------------------------------------------------


def _ready(view: View, run: LastRun) -> Decided:
    def so(reason: str, message: str = "") -> Decided:
        return Decided(type="Ready", is_so=True, reason=reason, message=message)

    def not_so(reason: str, message: str = "") -> Decided:
        return Decided(type="Ready", is_so=False, reason=reason, message=message)

    spec, seen = view.pipeline.spec, view.seen
    if view.problem is not None:
        return not_so(*view.problem)
    if view.unapplied:
        return not_so("NotApplied", view.unapplied)
    if spec.suspend:
        return not_so("Suspended", "spec.suspend is true")
    if view.pipeline.is_continuous:
        if seen.page is not None:
            return so("Running")
        failing = next((pod for pod in seen.pods if pod.restarts and not pod.is_running), None)
        if failing is not None:
            return not_so("DriverFailing", f"{failing.name} has ended {failing.restarts} times: {_why(run)}")
        return not_so("Starting", _waiting(seen))
    if not spec.schedule and seen.is_done:
        return so("Done", run.message)
    if not spec.schedule and not seen.has_failed_for_good:
        return not_so("RunUnderWay", _waiting(seen))
    if _is_bad(view, run):
        return not_so("RunFailed", _why(run))
    return so("Scheduled" if spec.schedule else "Done", run.message)


def _progressing(view: View) -> Decided:
    if view.problem is not None:
        return Decided(type="Progressing", is_so=False, reason=view.problem.reason, message=view.problem.text)
    if view.seen.strangers:
        words = f"waits until {', '.join(view.seen.strangers)} has ended: there is one writer at a time"
        return Decided(type="Progressing", is_so=True, reason="WaitingForOldRun", message=words)
    if view.seen.is_busy:
        return Decided(type="Progressing", is_so=True, reason="RunUnderWay", message=_waiting(view.seen))
    is_off = view.pipeline.spec.suspend
    return Decided(type="Progressing", is_so=False, reason="Suspended" if is_off else "Idle")


def _data_loss(view: View, run: LastRun) -> Decided:
    if run.exit_code == DATA_LOSS_CODE:
        return Decided(type="DataLoss", is_so=True, reason=run.reason or "DataLost", message=_why(run))
    if run.rows_lost:
        words = f"{run.rows_lost} messages were gone before they were read"
        return Decided(type="DataLoss", is_so=True, reason="RowsLost", message=words)
    known: Mapping[str, Any] = next(
        (one for one in view.before.get("conditions") or [] if one.get("type") == "DataLoss"), {}
    )
    is_acknowledged = known.get("observedGeneration") != view.pipeline.metadata.generation
    if known.get("status") == "True" and not is_acknowledged:
        return Decided(type="DataLoss", is_so=True, reason=known["reason"], message=known.get("message", ""))
    return Decided(type="DataLoss", is_so=False, reason="NoneSeen")


def _degraded(view: View, run: LastRun) -> Decided:
    warning = (view.seen.page or {}).get("warning")
    if isinstance(warning, Mapping) and text(warning, "reason"):
        return Decided(type="Degraded", is_so=True, reason=text(warning, "reason"), message=text(warning, "text"))
    if _is_bad(view, run):
        is_finding = view.pipeline.kind is AUDIT and run.exit_code == 1 and run.reason
        reason = run.reason if is_finding else "RunFailed"
        return Decided(type="Degraded", is_so=True, reason=reason, message=_why(run))
    return Decided(type="Degraded", is_so=False, reason="AsExpected")


def _is_bad(view: View, run: LastRun) -> bool:
    """Whether the last run failed: not one that is under way, and not one that was told to end."""
    return view.seen.page is None and run.exit_code != 0 and run.exit_code not in INTERRUPTED


def _why(run: LastRun) -> str:
    last = (run.message.strip().splitlines() or [""])[-1][:500]
    return f"exit code {run.exit_code}, {run.reason or 'no reason'}: {last}"


def _waiting(seen: Seen) -> str:
    return "; ".join(f"{pod.name}: {pod.waits_for}" for pod in seen.pods if pod.waits_for and not pod.is_over)


def _phase(view: View, run: LastRun) -> str:
    if view.problem is not None:
        return "Blocked"
    if view.seen.running is not None:
        return "Running"
    if view.seen.is_busy:
        return "Starting"
    if view.pipeline.spec.suspend:
        return "Suspended"
    if _is_bad(view, run):
        return "Failed"
    if view.pipeline.spec.schedule:
        return "Scheduled"
    return "Done" if view.seen.is_done else "Starting"


def _kept(value: object, kind: Any, default: Any) -> Any:
    """What an operator wrote, this one or an older one."""
    if value is None:
        return default
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return default
