"""What is said about a group as a whole: each condition is one question, answered from what was seen and decided."""

from __future__ import annotations

from collections.abc import Sequence

from gantry_spec.decide.decision import Condition
from gantry_spec.decide.view import View
from gantry_spec.gate import contract_kept
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.group import Spec


def conditions(spec: Spec, views: Sequence[View], *, is_paused: bool, is_doing: bool) -> tuple[Condition, ...]:
    """All of them."""
    mastered = [view for view in views if view.lease.record is not None and view.steady_master is not None]
    without = sorted({view.shard.number for view in views} - {view.shard.number for view in mastered})
    ledgers = [view.ledger for view in mastered]
    unacked = [one.shard for one in ledgers if len(one.in_sync) < one.acks_needed]
    behind = [one.shard for one in ledgers if len(one.in_sync) < spec.slaves]
    is_complete = len(mastered) == spec.shards
    available = _one("Available", is_complete and not unacked, "EveryShardAcknowledges", "NoMaster", without)
    if is_complete and unacked:
        available = _one("Available", False, "", "NoInSyncSlave", unacked)
    degraded = sorted({*without, *behind})
    return (
        _one("Ready", is_complete and not degraded, "EverybodyInSync", "NotInSync", degraded),
        available,
        _one("Replicating", is_complete and not behind, "EverySlaveInSync", "SlavesBehind", degraded),
        _durability(spec, ledgers, is_complete=is_complete),
        _one("Progressing", is_doing, "Acting", "NothingToDo", []),
        _one("Degraded", bool(degraded) or not is_complete, "ShardsDegraded", "AllWell", degraded),
        _one("Paused", is_paused, "ByAnnotation", "NotPaused", []),
    )


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
