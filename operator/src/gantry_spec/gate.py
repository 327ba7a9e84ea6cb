"""``may``: the one function that everything passes that can cost availability or bytes.

It looks at what an action would do, at the ledger, and at what the spec allows, and says yes, or no and why, in bytes.
Whoever decides asks it for every action; so does whoever acts, just before, with a newer ledger. It never weighs
reasons: a restart that is wanted by a person passes the same gate as one that is wanted by a roll.
"""

from __future__ import annotations

from typing import NamedTuple

from gantry_spec.actions import (
    Action,
    Crown,
    Drain,
    MemberAction,
    Remove,
    ReplaceDisk,
    Restart,
    Sleep,
    Withdraw,
)
from gantry_spec.ledger import Fault, Ledger
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.quantities import bytes_text, duration_text


class Verdict(NamedTuple):
    """Whether something may be done."""

    is_allowed: bool
    because: str = ""
    """Why not."""

    bytes: int | None = 0
    """What is at stake; None if nobody knows."""


ALLOWED = Verdict(True)


def may(action: Action, ledger: Ledger, spec: Spec) -> Verdict:
    """Whether this may be done now."""
    match action:
        case Crown(record=record) if record.newest is not None:
            loss, goal = record.newest.loss, record.goal
            return may_lose(None if loss < 0 else loss, spec, accepted=0 if goal is None else goal.loss_accepted)
        case Remove(holds_nothing=True) | ReplaceDisk(is_accepted=True):
            return ALLOWED
        case Restart() | Remove() | ReplaceDisk():
            return _may_stop(action, ledger, spec)
        case Withdraw(is_ordered=True):
            return ALLOWED
        case Sleep() if ledger.is_fresh:
            return _may_stop_master(action, ledger)
        case Drain() | Withdraw() if not ledger.is_fresh:
            return Verdict(False, "what is at risk is not known now", None)
        case _:
            return ALLOWED


def may_lose(at_most: int | None, spec: Spec, *, accepted: int | None = 0) -> Verdict:
    """Whether so much may be lost; None is whatever it is, which only a person can accept."""
    if accepted is None or at_most == 0:
        return ALLOWED
    limit = max(int(spec.failover.max_data_loss_bytes), accepted)
    if at_most is None:
        return Verdict(False, "nobody knows how much would be lost", None)
    if at_most > limit:
        what = f"{bytes_text(at_most)} could be lost, and spec.failover.maxDataLossBytes allows {bytes_text(limit)}"
        return Verdict(False, what, at_most)
    return ALLOWED


def _may_stop(action: MemberAction, ledger: Ledger, spec: Spec) -> Verdict:
    if ledger.master is None or not ledger.is_fresh or ledger.wrote is None:
        return Verdict(False, "what is at risk is not known now: no fresh word of a master", None)
    if action.member == ledger.master:
        return _may_stop_master(action, ledger)
    if isinstance(action, ReplaceDisk) or action.member not in ledger.in_sync:
        return ALLOWED
    others = [number for number in ledger.in_sync if number != action.member]
    if len(others) < ledger.acks_needed and not ledger.is_draining:
        why = f"acknowledgements need {ledger.acks_needed} slaves, and {len(others)} would be left; withdraw first"
        return Verdict(False, why, ledger.risk(Fault.SLAVE).bytes)
    return _within_contract(ledger, spec)


def _may_stop_master(action: Action, ledger: Ledger) -> Verdict:
    if isinstance(action, ReplaceDisk):
        return Verdict(False, "it is the master, and its disk may be the only copy", ledger.risk(Fault.DISK).bytes)
    if not ledger.is_draining:
        return Verdict(False, "it is the master, and it is not drained", ledger.risk(Fault.PROCESS).bytes)
    if ledger.wrote is None or ledger.flushed is None:
        return Verdict(False, "how much of it is on its disk is not known", None)
    if ledger.flushed < ledger.wrote:
        left = ledger.wrote - ledger.flushed
        return Verdict(False, f"{bytes_text(left)} of it are not on its disk yet", left)
    return ALLOWED


def _within_contract(ledger: Ledger, spec: Spec) -> Verdict:
    """Nothing is made worse while more is at risk than the spec allows."""
    contract = contract_kept(ledger, spec)
    if not contract.is_allowed and ledger.risk(Fault.MACHINE).bytes is not None:
        return contract
    return ALLOWED if contract.is_allowed else Verdict(False, contract.because, None)


def contract_kept(ledger: Ledger, spec: Spec) -> Verdict:
    """Whether ``spec.durability`` is kept now."""
    risk = ledger.risk(Fault.MACHINE)
    if risk.bytes is None:
        return Verdict(False, "what is at risk is not known", None)
    if risk.bytes > spec.durability.max_at_risk_bytes:
        limit = bytes_text(spec.durability.max_at_risk_bytes)
        return Verdict(False, f"{bytes_text(risk.bytes)} are at risk, and the spec allows {limit}", risk.bytes)
    if risk.bytes and risk.age_ms is not None and risk.age_ms > spec.durability.max_at_risk:
        age, limit = duration_text(risk.age_ms), duration_text(spec.durability.max_at_risk)
        return Verdict(
            False, f"{bytes_text(risk.bytes)} are at risk for {age}, and the spec allows {limit}", risk.bytes
        )
    return ALLOWED
