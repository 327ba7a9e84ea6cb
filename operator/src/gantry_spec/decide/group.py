"""The decision for all shards of a group: each shard on its own, with at most one disruption at a time.

A planned disruption takes brokers of a shard away for a while, and its clients use the other shards. So only one shard
is disrupted at a time: one whose master is already draining continues; otherwise it is the first that has a reason, and
only while no shard without a reason is degraded. Actions that repair a shard are never delayed by this, and neither is
the withdrawal of a shard that is fenced, scaled in or about to hibernate. Every action passes the safety gate
(``gate.check_action``), which refuses those that would cost more availability or data than the spec allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gantry_spec.actions import Action, Drain, Remove, Restart, Resume, Wait, Withdraw
from gantry_spec.decide.bootstrap import create_record
from gantry_spec.decide.conditions import conditions, fences_of
from gantry_spec.decide.decision import Decision
from gantry_spec.decide.election import elect_master
from gantry_spec.decide.hibernation import hibernate
from gantry_spec.decide.membership import maintain_members, repair_members
from gantry_spec.decide.term_maintenance import keep_fenced, maintain_term
from gantry_spec.decide.view import ShardView
from gantry_spec.decide.withdrawal import withdraw_masters
from gantry_spec.gate import check_action
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import ObservedGroup, ObservedShard, Process


def decide(spec: Spec, observed: ObservedGroup, now_ms: int, previous: Mapping[int, Ledger] | None = None) -> Decision:
    """Return the actions for a group now. ``now_ms`` is on the observer's clock; ``previous`` has the
    durability ledgers of the last decision, by shard."""
    before = {} if previous is None else previous
    by_number = {shard.number: shard for shard in observed.shards}
    views: list[ShardView] = []
    actions: list[Action] = []
    for number in sorted({*by_number, *range(spec.shards)}):
        shard = by_number.get(number, ObservedShard(number=number))
        if shard.lease is None:
            actions.append(Wait(shard=number, why="the Lease cannot be read; the role is not moved"))
            continue
        view = ShardView(spec, shard, now_ms, observed.template, before.get(number), observed.lease_duration_ms)
        views.append(view)
        actions += hibernate(view) if observed.is_hibernated else _decide_shard(view)
    if observed.is_paused:
        actions = [Wait(shard=0, why="the group is paused")]
    allowed = _apply_gate(_limit_to_one_shard(actions, views), {view.shard.number: view.ledger for view in views}, spec)
    is_acting = any(not isinstance(action, Wait) for action in allowed)
    fences = fences_of(views)
    return Decision(
        actions=tuple(allowed),
        ledgers=tuple(view.ledger for view in views),
        conditions=conditions(spec, views, observed, fences, is_acting=is_acting),
        fences=fences,
    )


def _decide_shard(view: ShardView) -> list[Action]:
    number = view.shard.number
    if view.shard.is_fenced:
        return [*_processes(view), *keep_fenced(view)]
    if number >= view.spec.shards:
        return _decide_surplus_shard(view)
    if view.lease.record is None:
        return [*_processes(view), *create_record(view)]
    role = maintain_term(view) if view.record.is_settled else elect_master(view)
    return [*_processes(view), *role]


def _processes(view: ShardView) -> list[Action]:
    """Return the actions on processes; none in a manual promotion, where a person runs the processes, too."""
    if view.manual_request is not None:
        return []
    return [*(maintain_members(view) if view.shard.number < view.spec.shards else repair_members(view))]


def _decide_surplus_shard(view: ShardView) -> list[Action]:
    """Withdraw a shard beyond ``spec.shards`` from clients, and remove it when it is empty."""
    number, why = view.shard.number, "the shard is scaled in"
    withdrawing = withdraw_masters(view, why, clients_only=True)
    if withdrawing or not view.shard.is_empty:
        left = f": {view.shard.remaining_text}" if view.shard.remaining_text else ""
        wait = Wait(shard=number, why=f"{why} and stays until it has no messages{left}")
        if view.lease.record is None:
            return [wait, *withdrawing, *_processes(view)]
        role = maintain_term(view) if view.record.is_settled else elect_master(view)
        # A master that was drained for its removal takes sends again if messages have come; a withdrawn one does not.
        is_drained = view.record.is_settled and view.healthy_master is not None and view.healthy_master.is_draining
        wanted = [one for one in role if is_drained or not isinstance(one, Resume)]
        return [wait, *withdrawing, *_processes(view), *wanted]
    return [
        Remove(shard=number, member=one.number, boot_id=one.boot_id, is_empty=True, why="the shard is empty")
        for one in view.shard.members
        if one.process is not Process.ABSENT
    ]


def _limit_to_one_shard(actions: Sequence[Action], views: Sequence[ShardView]) -> list[Action]:
    """Replace actions that would disrupt a second shard by waits."""
    to_disrupt = {action.shard for action in actions if _disrupts(action, views)}
    started = {view.shard.number for view in views if _is_drained(view) and view.shard.number in to_disrupt}
    degraded = {view.shard.number for view in views if _is_degraded(view)} - to_disrupt
    chosen_shard = min(started or to_disrupt, default=-1)
    may_disrupt = bool(started) or not degraded - {chosen_shard}
    result: list[Action] = []
    for action in actions:
        if _disrupts(action, views) and (action.shard != chosen_shard or not may_disrupt):
            others = sorted((degraded or {chosen_shard}) - {action.shard})
            why = f"shard {others[0]} is degraded or being changed; afterwards: {action.why}"
            result.append(Wait(shard=action.shard, why=why))
        else:
            result.append(action)
    return result


def _disrupts(action: Action, views: Sequence[ShardView]) -> bool:
    """Return whether an action interrupts clients of a shard that serves."""
    if isinstance(action, Drain | Withdraw):
        return not (isinstance(action, Withdraw) and action.is_ordered)
    view = next((one for one in views if one.shard.number == action.shard), None)
    return (
        isinstance(action, Restart) and view is not None and action.member in {*view.ledger.in_sync, view.ledger.master}
    )


def _is_drained(view: ShardView) -> bool:
    return view.ledger.is_draining


def _is_degraded(view: ShardView) -> bool:
    """Return whether the shard has no master with a recent report, or a slave of the spec is not in sync."""
    return view.ledger.master is None or not view.ledger.is_fresh or bool(view.ledger.not_in_sync(view.spec))


def _apply_gate(actions: Sequence[Action], ledgers: Mapping[int, Ledger], spec: Spec) -> list[Action]:
    """Check every action at the gate, and replace each forbidden one by a wait with the reason."""
    passed: list[Action] = []
    for action in actions:
        verdict = check_action(action, ledgers[action.shard], spec) if action.shard in ledgers else None
        if verdict is None or verdict.is_allowed:
            passed.append(action)
        else:
            name = type(action).__name__.lower()
            passed.append(Wait(shard=action.shard, why=f"{name} not allowed: {verdict.reason}"))
    return passed
