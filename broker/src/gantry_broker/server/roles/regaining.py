"""Whether a broker may have the role again that it had when its process ended: what it knows itself. Pure.

    master of epoch e --- its process ends, another begins ---> no role --- order `regain e` ---> master of epoch e

The rule it guards: **having a role again is as safe as never having lost it, or it is refused.** An epoch is one
history, so nothing of it may be missing here: a master that has lost its tail would write other bytes at the same
offsets. Whoever elects counts on ``S`` slaves of which ``k`` acknowledge, so both must be those of then. What was
promised or taken since stays so, however often the process ends.

With that it is where a master is that could not be reached for a while, and the same guards stop it: nothing is
acknowledged without ``k`` acks of slaves that have promised nobody else, or, where none is needed, without a key
(``ha/grants``); a new process has none. Whether it is still *wanted* is for whoever orders: ``gantry_spec.regaining``.
"""

from __future__ import annotations

from typing import NamedTuple

from gantry_broker.ha.role_files import RoleRecord
from gantry_status.orders import HaRole


class Remembered(NamedTuple):
    """What a broker has on its disk of the role that it had."""

    role: HaRole
    """The one that it has now."""

    record: RoleRecord
    log_epoch: int
    """The newest of its log's history."""

    promised_epoch: int
    is_whole: bool | None
    acks_needed: int
    """How many this process would wait for."""


def why_not_regained(known: Remembered) -> str:
    """Why it may not; empty if it may. A slave regains its role by following the master of the very epoch."""
    record = known.record
    if known.role is not HaRole.UNASSIGNED:
        return f"this is {known.role}"
    if not record.epoch:
        return "it had no role before"
    if record.is_over:
        return f"its role of epoch {record.epoch} was taken from it"
    if known.promised_epoch > record.epoch:
        return f"epoch {known.promised_epoch} was promised since epoch {record.epoch}"
    return _why_no_master(known) if record.is_master else ""


def _why_no_master(known: Remembered) -> str:
    epoch = known.record.epoch
    if known.log_epoch != epoch:
        return f"its log ends in epoch {known.log_epoch}, and not in epoch {epoch}"
    if known.is_whole is not True:
        return "it may lack what it has acknowledged"
    if known.record.acks_needed != known.acks_needed:
        return (
            f"it waited for {known.record.acks_needed} slaves in epoch {epoch}, and would wait for {known.acks_needed}"
        )
    return ""
