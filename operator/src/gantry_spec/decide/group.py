"""The shards of a group together: each decided for itself, one at a time where clients notice, all through the gate.

A shard that is disturbed on purpose has fewer brokers for a while, and clients go to the others. So only one is at a
time: the first that has begun, else the first that has a reason, and not while another one is ill. What heals is never
held back by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gantry_spec.actions import Action, Drain, Remove, Restart, Resume, Wait, Withdraw
from gantry_spec.decide.beginning import start
from gantry_spec.decide.conditions import conditions
from gantry_spec.decide.decision import Decision
from gantry_spec.decide.electing import elect
from gantry_spec.decide.membership import processes
from gantry_spec.decide.settled import fenced, settle
from gantry_spec.decide.sleeping import hibernate
from gantry_spec.decide.view import View
from gantry_spec.decide.withheld import withdrawn
from gantry_spec.gate import may
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Observed, ObservedShard, Process


def decide(spec: Spec, observed: Observed, now_ms: int, previous: Mapping[int, Ledger] | None = None) -> Decision:
    """What to do now. ``now_ms`` is of the clock of ``observed``; ``previous`` are the ledgers of the last look."""
    before = {} if previous is None else previous
    seen = {shard.number: shard for shard in observed.shards}
    views: list[View] = []
    actions: list[Action] = []
    for number in sorted({*seen, *range(spec.shards)}):
        shard = seen.get(number, ObservedShard(number=number))
        if shard.lease is None:
            actions.append(Wait(shard=number, why="its Lease cannot be read: its role stays where it is"))
            continue
        view = View(spec, shard, now_ms, observed.template, before.get(number), observed.lease_duration_ms)
        views.append(view)
        actions += hibernate(view) if observed.is_hibernated else _shard(view)
    if observed.is_paused:
        actions = [Wait(shard=0, why="the group is paused")]
    allowed = _gated(_one_at_a_time(actions, views), {view.shard.number: view.ledger for view in views}, spec)
    is_doing = any(not isinstance(action, Wait) for action in allowed)
    return Decision(
        actions=tuple(allowed),
        ledgers=tuple(view.ledger for view in views),
        conditions=conditions(spec, views, observed, is_doing=is_doing),
    )


def _shard(view: View) -> list[Action]:
    number = view.shard.number
    if view.shard.is_fenced:
        return [*processes(view), *fenced(view)] if number < view.spec.shards else fenced(view)
    if number >= view.spec.shards:
        return _surplus(view)
    if view.lease.record is None:
        return [*_processes(view), *start(view)]
    role = settle(view) if view.record.is_settled else elect(view)
    return [*_processes(view), *role]


def _processes(view: View) -> list[Action]:
    """A person who gives orders by hand runs the processes, too."""
    return [*processes(view)] if view.by_hand is None else []


def _surplus(view: View) -> list[Action]:
    """A shard beyond ``spec.shards`` takes no sends any more, and goes when nothing is left on it."""
    number, why = view.shard.number, "it is scaled away"
    withdrawing = withdrawn(view, why, goes_on=True)
    if withdrawing or not view.shard.holds_nothing:
        left = f": {view.shard.left}" if view.shard.left else ""
        wait = Wait(shard=number, why=f"{why}, and stays until no message and no consumer is left on it{left}")
        if view.lease.record is None:
            return [wait, *withdrawing]
        role = settle(view) if view.record.is_settled else elect(view)
        is_still = view.record.is_settled and view.steady_master is not None and view.steady_master.is_draining
        return [wait, *withdrawing, *(one for one in role if is_still or not isinstance(one, Resume))]
    return [
        Remove(
            shard=number, member=one.number, boot_id=one.boot_id, holds_nothing=True, why="nothing is left on its shard"
        )
        for one in view.shard.members
        if one.process is not Process.ABSENT
    ]


def _one_at_a_time(actions: Sequence[Action], views: Sequence[View]) -> list[Action]:
    """Hold back what disturbs a second shard."""
    wanting = {action.shard for action in actions if _disturbs(action, views)}
    begun = {view.shard.number for view in views if _is_drained(view) and view.shard.number in wanting}
    ill = {view.shard.number for view in views if _is_ill(view)} - wanting
    holder = min(begun or wanting, default=-1)
    is_open = bool(begun) or not ill - {holder}
    held: list[Action] = []
    for action in actions:
        if _disturbs(action, views) and (action.shard != holder or not is_open):
            others = sorted((ill or {holder}) - {action.shard})
            held.append(Wait(shard=action.shard, why=f"shard {others[0]} comes first; then: {action.why}"))
        else:
            held.append(action)
    return held


def _disturbs(action: Action, views: Sequence[View]) -> bool:
    """Whether clients of a shard that serves would notice."""
    if isinstance(action, Drain | Withdraw):
        return not (isinstance(action, Withdraw) and action.is_ordered)
    view = next((one for one in views if one.shard.number == action.shard), None)
    return (
        isinstance(action, Restart) and view is not None and action.member in {*view.ledger.in_sync, view.ledger.master}
    )


def _is_drained(view: View) -> bool:
    return view.ledger.is_draining


def _is_ill(view: View) -> bool:
    """Whether somebody of the spec is missing from it."""
    return view.ledger.master is None or not view.ledger.is_fresh or len(view.ledger.in_sync) < view.spec.slaves


def _gated(actions: Sequence[Action], ledgers: Mapping[int, Ledger], spec: Spec) -> list[Action]:
    """Everything passes the gate; what does not becomes a wait that says why."""
    passed: list[Action] = []
    for action in actions:
        verdict = may(action, ledgers[action.shard], spec) if action.shard in ledgers else None
        if verdict is None or verdict.is_allowed:
            passed.append(action)
        else:
            what = type(action).__name__.lower()
            passed.append(Wait(shard=action.shard, why=f"no {what}: {verdict.because}"))
    return passed
