"""What is said about a group as a whole: each condition is one question, answered from what was seen and decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gantry_spec.decide.decision import Condition
from gantry_spec.decide.sleeping import unknown_masters
from gantry_spec.decide.view import View
from gantry_spec.decide.withheld import is_open
from gantry_spec.gate import contract_kept
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import Observed, Process

GOOD_WHEN_SO: Final = ("Ready", "Available", "Replicating", "DurabilityMet", "HugePagesReady")
"""Conditions that a healthy group has."""


def is_remarkable(kind: str, is_so: bool | None, message: str) -> bool:
    """Return whether a condition is to be shown to people.

    A condition that a healthy group has is shown unless it is true. Every other one is shown unless it is false and
    has no message. ``is_so`` is None for an unknown condition, which is always shown.
    """
    return is_so is not True if kind in GOOD_WHEN_SO else is_so is not False or bool(message)


def conditions(spec: Spec, seen: Sequence[View], observed: Observed, *, is_doing: bool) -> tuple[Condition, ...]:
    """All of them, of the shards that were seen."""
    states = (*_states(spec, seen, observed), _one("Paused", observed.is_paused, "ByAnnotation", "NotPaused", []))
    if is_asleep(seen, observed):
        return (*_asleep(), _one("Progressing", is_doing, "Acting", "NothingToDo", []), *states)
    views = [view for view in seen if view.shard.number < spec.shards]
    fenced = [view.shard.number for view in views if view.shard.is_fenced]
    mastered = [view for view in views if view.lease.record is not None and view.steady_master is not None]
    without = sorted({view.shard.number for view in views} - {view.shard.number for view in mastered})
    ledgers = [view.ledger for view in mastered]
    unacked = [one.shard for one in ledgers if len(one.in_sync) < one.acks_needed]
    behind = [one.shard for one in ledgers if len(one.in_sync) < spec.slaves]
    is_complete = len(mastered) == spec.shards
    available = _one("Available", is_complete and not unacked, "EveryShardAcknowledges", "NoMaster", without)
    if is_complete and unacked:
        available = _one("Available", False, "", "NoInSyncSlave", unacked)
    if is_complete and (fenced or observed.is_hibernated):
        available = _one("Available", False, "", "Fenced" if fenced else "Hibernating", fenced)
    degraded = sorted({*without, *behind})
    return (
        _one("Ready", is_complete and not degraded, "EverybodyInSync", "NotInSync", degraded),
        available,
        _one("Replicating", is_complete and not behind, "EverySlaveInSync", "SlavesBehind", degraded),
        _durability(spec, ledgers, is_complete=is_complete),
        _one("Progressing", is_doing, "Acting", "NothingToDo", []),
        _one("Degraded", bool(degraded) or not is_complete, "ShardsDegraded", "AllWell", degraded),
        *states,
    )


def is_asleep(views: Sequence[View], observed: Observed) -> bool:
    """Whether the group hibernates, and nothing of it runs any more."""
    members = [member for view in views for member in view.shard.members]
    runs = any(member.process is Process.RUNNING for member in members) or any(unknown_masters(view) for view in views)
    return observed.is_hibernated and not runs and all(shard.is_asleep for shard in observed.shards)


def _asleep() -> tuple[Condition, ...]:
    said = [
        Condition(type=kind, is_so=False, reason="Hibernated", message="by its annotation")
        for kind in ("Ready", "Available", "Replicating", "Degraded")
    ]
    return (*said, Condition(type="DurabilityMet", is_so=True, reason="Hibernated", message="everything is on disks"))


def _states(spec: Spec, views: Sequence[View], observed: Observed) -> Iterator[Condition]:
    """What people have asked for, as far as it is so."""
    fenced = [view for view in views if view.shard.is_fenced]
    open_still = [view.shard.number for view in fenced if is_open(view)]
    if fenced and open_still:
        yield _one("Fenced", False, "", "StillOpen", open_still)
    else:
        yield _one("Fenced", bool(fenced), "ByAnnotation", "NotFenced", [view.shard.number for view in fenced])
    if observed.is_hibernated and not is_asleep(views, observed):
        awake = [
            view.shard.number for view in views if any(one.process is Process.RUNNING for one in view.shard.members)
        ]
        yield _one("Hibernated", False, "", "Stopping", awake)
    else:
        yield _one("Hibernated", observed.is_hibernated, "ByAnnotation", "NotHibernated", [])
    surplus = [view.shard for view in views if view.shard.number >= spec.shards]
    left = "; ".join(f"shard {shard.number}: {shard.left or 'what is left on it is not known'}" for shard in surplus)
    reason = "Draining" if any(not shard.holds_nothing for shard in surplus) else "Closing"
    yield Condition(type="ScalingIn", is_so=bool(surplus), reason=reason if surplus else "NothingToDo", message=left)


def _durability(spec: Spec, ledgers: Sequence[Ledger], *, is_complete: bool) -> Condition:
    verdicts = [(one.shard, contract_kept(one, spec)) for one in ledgers]
    broken = [f"shard {shard}: {verdict.because}" for shard, verdict in verdicts if not verdict.is_allowed]
    is_unknown = not is_complete or any(verdict.bytes is None for _, verdict in verdicts)
    if is_unknown:
        return Condition(type="DurabilityMet", is_so=None, reason="Unknown", message="; ".join(broken))
    reason = "MoreAtRiskThanAllowed" if broken else "WithinSpec"
    return Condition(type="DurabilityMet", is_so=not broken, reason=reason, message="; ".join(broken))


def _one(kind: str, is_so: bool, yes: str, no: str, shards: Sequence[int]) -> Condition:
    message = f"shards {list(shards)}" if shards else ""
    return Condition(type=kind, is_so=is_so, reason=yes if is_so else no, message=message)
