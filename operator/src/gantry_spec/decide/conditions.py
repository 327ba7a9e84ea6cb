"""The conditions of a group, derived from its observed state and the decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gantry_spec.decide.decision import Condition, Fences
from gantry_spec.decide.hibernation import masters_in_unknown_state, was_stopped_in_order
from gantry_spec.decide.view import ShardView
from gantry_spec.decide.withdrawal import can_take_sends
from gantry_spec.gate import check_durability
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import ObservedGroup, Process

GOOD_WHEN_TRUE: Final = (
    "Ready",
    "Available",
    "Replicating",
    "DurabilityMet",
    "HugePagesReady",
    "ProxiesReady",
    "PodsScheduled",
    "Resized",
    "BackedUp",
    "Restored",
)
"""Conditions that are true in a healthy group."""


def is_shown_in_status(kind: str, is_true: bool | None, message: str) -> bool:
    """Return whether `gantry status` shows a condition.

    A condition that is true in a healthy group is shown unless it is true. Every other one is shown unless it is false
    and has no message. ``is_true`` is None for an unknown condition, which is always shown.
    """
    return is_true is not True if kind in GOOD_WHEN_TRUE else is_true is not False or bool(message)


def conditions(
    spec: Spec, all_views: Sequence[ShardView], observed: ObservedGroup, fences: Fences, *, is_acting: bool
) -> tuple[Condition, ...]:
    """Return the conditions of a group. ``all_views`` has the shards whose Lease could be read."""
    states = (
        *_requested_states(spec, all_views, observed, fences),
        _condition("Paused", observed.is_paused, "ByAnnotation", "NotPaused", []),
    )
    if has_hibernated(all_views, observed):
        return (
            *_hibernated_conditions(spec, all_views),
            _condition("Progressing", is_acting, "Acting", "NothingToDo", []),
            *states,
        )
    views = [view for view in all_views if view.shard.number < spec.shards]
    fenced = [view.shard.number for view in views if view.shard.is_fenced]
    mastered = [view for view in views if view.lease.record is not None and view.healthy_master is not None]
    without = sorted({view.shard.number for view in views} - {view.shard.number for view in mastered})
    ledgers = [view.ledger for view in mastered]
    unacked = [one.shard for one in ledgers if len(one.acknowledging) < one.acks_needed]
    behind = [one.shard for one in ledgers if one.not_in_sync(spec)]
    is_complete = len(mastered) == spec.shards
    available = _condition("Available", is_complete and not unacked, "AllShardsAcknowledge", "NoMaster", without)
    if is_complete and unacked:
        available = _condition("Available", False, "", "NoInSyncSlave", unacked)
    if is_complete and (fenced or observed.is_hibernated):
        available = _condition("Available", False, "", "Fenced" if fenced else "Hibernating", fenced)
    degraded = sorted({*without, *behind})
    return (
        _condition("Ready", is_complete and not degraded, "AllReplicasInSync", "NotInSync", degraded),
        available,
        _condition("Replicating", is_complete and not behind, "AllSlavesInSync", "SlavesBehind", degraded),
        _durability(spec, ledgers, is_complete=is_complete),
        _condition("Progressing", is_acting, "Acting", "NothingToDo", []),
        _condition("Degraded", bool(degraded) or not is_complete, "ShardsDegraded", "Healthy", degraded),
        *states,
    )


def has_hibernated(views: Sequence[ShardView], observed: ObservedGroup) -> bool:
    """Return whether the group hibernates and none of its processes runs any more."""
    members = [member for view in views for member in view.shard.members]
    runs = any(member.process is Process.RUNNING for member in members) or any(
        masters_in_unknown_state(view) for view in views
    )
    return observed.is_hibernated and not runs and all(shard.is_scaled_to_zero for shard in observed.shards)


def _hibernated_conditions(spec: Spec, views: Sequence[ShardView]) -> tuple[Condition, ...]:
    """Return the conditions of a group none of whose processes runs."""
    in_order = {view.shard.number for view in views if was_stopped_in_order(view)}
    others = sorted({*range(spec.shards), *(view.shard.number for view in views)} - in_order)
    negative = [
        Condition(type=kind, is_true=False, reason="Hibernated", message="the group is hibernated by its annotation")
        for kind in ("Ready", "Available", "Replicating", "Degraded")
    ]
    return (
        *negative,
        Condition(
            type="DurabilityMet",
            is_true=None if others else True,
            reason="Unknown" if others else "Hibernated",
            message=f"shards {others} had no master when they stopped" if others else "all messages are on disks",
        ),
    )


def fences_of(views: Sequence[ShardView]) -> Fences:
    """Return which shards are fenced, and which are to be."""
    fenced = [view for view in views if view.shard.is_fenced]
    still_open = tuple(view.shard.number for view in fenced if can_take_sends(view))
    closed = tuple(view.shard.number for view in fenced if view.shard.number not in still_open)
    return Fences(closed=closed, still_open=still_open)


def _requested_states(
    spec: Spec, views: Sequence[ShardView], observed: ObservedGroup, fences: Fences
) -> Iterator[Condition]:
    """Yield the conditions of states that people have requested, and of a scale-in."""
    if fences.still_open:
        yield _condition("Fenced", False, "", "SendsNotRefused", fences.still_open)
    else:
        yield _condition("Fenced", bool(fences.closed), "ByAnnotation", "NotFenced", fences.closed)
    if observed.is_hibernated and not has_hibernated(views, observed):
        awake = [
            view.shard.number for view in views if any(one.process is Process.RUNNING for one in view.shard.members)
        ]
        yield _condition("Hibernated", False, "", "Stopping", awake)
    else:
        yield _condition("Hibernated", observed.is_hibernated, "ByAnnotation", "NotHibernated", [])
    surplus = [view.shard for view in views if view.shard.number >= spec.shards]
    left = "; ".join(
        f"shard {shard.number}: {shard.remaining_text or 'its remaining messages are unknown'}" for shard in surplus
    )
    reason = "Draining" if any(not shard.is_empty for shard in surplus) else "Closing"
    yield Condition(type="ScalingIn", is_true=bool(surplus), reason=reason if surplus else "NothingToDo", message=left)


def _durability(spec: Spec, ledgers: Sequence[Ledger], *, is_complete: bool) -> Condition:
    verdicts = [(one.shard, check_durability(one, spec)) for one in ledgers]
    broken = [f"shard {shard}: {verdict.reason}" for shard, verdict in verdicts if not verdict.is_allowed]
    is_unknown = not is_complete or any(verdict.bytes is None for _, verdict in verdicts)
    if is_unknown:
        return Condition(type="DurabilityMet", is_true=None, reason="Unknown", message="; ".join(broken))
    reason = "MoreAtRiskThanAllowed" if broken else "WithinSpec"
    return Condition(type="DurabilityMet", is_true=not broken, reason=reason, message="; ".join(broken))


def _condition(kind: str, is_true: bool, yes: str, no: str, shards: Sequence[int]) -> Condition:
    """Return a condition with the reason ``yes`` or ``no``, and a message that names the shards, if any are given."""
    message = f"shards {list(shards)}" if shards else ""
    return Condition(type=kind, is_true=is_true, reason=yes if is_true else no, message=message)
