"""The safety gate: ``check_action`` checks every action that can cost availability or lose data.

It compares the effect of an action with the durability ledger and the limits in the spec, and allows the action or
returns the reason against it, in bytes. It is called for every action when the decision is made; a local group calls it
again with a newer ledger immediately before execution, since its actions wait for each other.

A person can override a check only with a request whose acceptance is part of the action: an accepted loss
(``RecordMaster``, ``ReplaceDisk.is_accepted``), or a fence, a scale-in or a hibernation (``Withdraw.is_ordered``). A
shard that was found empty (``Remove.is_empty``) has nothing to lose. The other checks do not depend on the origin of an
action.
"""

from __future__ import annotations

from typing import NamedTuple

from gantry_spec.actions import (
    Action,
    Drain,
    Hibernate,
    MemberAction,
    RecordMaster,
    Remove,
    ReplaceDisk,
    Restart,
    Withdraw,
)
from gantry_spec.ledger import Fault, Ledger
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.quantities import duration_text
from gantry_status.text import bytes_text


class Verdict(NamedTuple):
    """The result of a check: whether an action is allowed."""

    is_allowed: bool
    reason: str = ""
    """Why the action is not allowed; empty if it is."""

    bytes: int | None = 0
    """How many bytes the action could lose; None if it is unknown."""


ALLOWED = Verdict(True)


def check_action(action: Action, ledger: Ledger, spec: Spec) -> Verdict:
    """Return whether an action is allowed now."""
    match action:
        case RecordMaster(record=record) if record.newest is not None:
            loss, goal = record.newest.loss, record.goal
            return check_loss(None if loss < 0 else loss, spec, accepted=0 if goal is None else goal.loss_accepted)
        case Remove(is_empty=True) | ReplaceDisk(is_accepted=True):
            return ALLOWED
        case Restart() | Remove() | ReplaceDisk():
            return _may_stop(action, ledger, spec)
        case Withdraw(is_ordered=True):
            return ALLOWED
        case Hibernate() if ledger.is_fresh:
            return _may_stop_master(action, ledger)
        case Drain() | Withdraw() if not ledger.is_fresh:
            return Verdict(False, "the bytes at risk are unknown: no recent report from a master", None)
        case _:
            return ALLOWED


def check_loss(at_most: int | None, spec: Spec, *, accepted: int | None = 0) -> Verdict:
    """Return whether a loss of ``at_most`` bytes is allowed. Only a person can accept an unknown loss (None)."""
    if accepted is None or at_most == 0:
        return ALLOWED
    allowed = int(spec.failover.max_data_loss_bytes)
    if at_most is None:
        return Verdict(False, "the possible loss is unknown", None)
    if at_most > max(allowed, accepted):
        what = f"{bytes_text(at_most)} could be lost, but spec.failover.maxDataLossBytes allows {bytes_text(allowed)}"
        what += f", and the request accepts {bytes_text(accepted)}" if accepted > allowed else ""
        return Verdict(False, what, at_most)
    return ALLOWED


def _may_stop(action: MemberAction, ledger: Ledger, spec: Spec) -> Verdict:
    """Return whether a member may be stopped, removed, or lose its disk."""
    if ledger.master is None or not ledger.is_fresh or ledger.wrote is None:
        return Verdict(False, "the bytes at risk are unknown: no recent report from a master", None)
    if action.member == ledger.master:
        return _may_stop_master(action, ledger)
    if isinstance(action, ReplaceDisk) or action.member not in ledger.in_sync:
        return ALLOWED
    others = [number for number in ledger.acknowledging if number != action.member]
    is_counted = action.member in ledger.acknowledging
    if is_counted and len(others) < ledger.acks_needed and not ledger.is_draining:
        why = f"acknowledgements need {ledger.acks_needed} slaves, but {len(others)} would remain; withdraw first"
        return Verdict(False, why, ledger.risk(Fault.SLAVE).bytes)
    return check_durability(ledger, spec)  # the stop adds to the bytes at risk: they must be within the limit now


def _may_stop_master(action: Action, ledger: Ledger) -> Verdict:
    """Return whether the master may be stopped, removed, or lose its disk."""
    if isinstance(action, ReplaceDisk):
        return Verdict(
            False, "the member is the master, and its disk may hold the only copy", ledger.risk(Fault.DISK).bytes
        )
    if not ledger.is_draining:
        return Verdict(False, "the member is the master and is not drained", ledger.risk(Fault.PROCESS).bytes)
    if ledger.wrote is None or ledger.flushed is None:
        return Verdict(False, "the flushed position of the master is unknown", None)
    if ledger.flushed < ledger.wrote:
        left = ledger.wrote - ledger.flushed
        return Verdict(False, f"{bytes_text(left)} of the master's log are not flushed yet", left)
    return ALLOWED


def check_durability(ledger: Ledger, spec: Spec) -> Verdict:
    """Return whether the bytes at risk are within ``spec.durability`` now."""
    risk = ledger.risk(Fault.MACHINE)
    if risk.bytes is None:
        return Verdict(False, "the bytes at risk are unknown", None)
    if risk.bytes > spec.durability.max_at_risk_bytes:
        limit = bytes_text(spec.durability.max_at_risk_bytes)
        return Verdict(False, f"{bytes_text(risk.bytes)} are at risk, but spec.durability allows {limit}", risk.bytes)
    if risk.bytes and risk.age_ms is not None and risk.age_ms > spec.durability.max_at_risk:
        age, limit = duration_text(risk.age_ms), duration_text(spec.durability.max_at_risk)
        return Verdict(
            False, f"{bytes_text(risk.bytes)} are at risk for {age}, but spec.durability allows {limit}", risk.bytes
        )
    return ALLOWED
