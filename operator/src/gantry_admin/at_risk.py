"""What would be lost if something broke now: bytes, and how old the oldest of them is. Pure.

    [0 ........ flushed ........ committed ........ wrote)
                `----------- the machine ----------'          power cut, crash of the kernel
                                 `--- the process -'          kill -9, unless the buffer outlives the process
    [0 ..... acked ................................ wrote)
             `------------- the master ------------'          disk or node gone, a slave is promoted

This is one broker's own view, of every byte that it has written. What a shard would lose of what it has acknowledged,
where a slave's copy counts for every fault, is `shard_ledgers`; both count with `gantry_spec.ledger.beyond`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import final

from gantry_admin.history import WrittenHistory
from gantry_spec.ledger import beyond
from gantry_status import Role, Status


class Loss(StrEnum):
    """What would have to break."""

    PROCESS = "process"
    MACHINE = "machine"
    MASTER = "master"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk:
    """What one kind of break would take."""

    loss: Loss
    bytes: int | None
    """None: not known."""
    seconds: float | None
    """The oldest of them was written at most so long ago. None: before anybody watched, or not known."""


def acked_offset(status: Status, reported: int | None, acks_needed: int) -> int | None:
    """How far enough slaves have the log: as the broker reports, else as the page shows its slaves.

    The broker is asked once a second and the page is younger. What it calls confirmed and enough slaves have received
    is acknowledged, whatever counts as an acknowledgement.
    """
    received = sorted((slave.received for slave in status.slaves if slave.received is not None), reverse=True)
    needed = max(acks_needed, 1)
    received_by_enough = received[needed - 1] if len(received) >= needed else None
    if reported is None:
        return received_by_enough
    if received_by_enough is None or acks_needed < 1 or status.confirmed is None:
        return reported
    return max(reported, min(received_by_enough, status.confirmed))


def at_risk(status: Status, acked: int | None, history: WrittenHistory, now_ns: int) -> tuple[AtRisk, ...]:
    """Every kind of break, at this moment."""
    process = status.wrote if status.is_crash_safe else status.committed
    master = acked if status.role is Role.MASTER else status.wrote
    safe = ((Loss.PROCESS, process), (Loss.MACHINE, status.flushed), (Loss.MASTER, master))
    return tuple(_one(loss, status.wrote, offset, history, now_ns) for loss, offset in safe)


def _one(loss: Loss, wrote: int | None, safe: int | None, history: WrittenHistory, now_ns: int) -> AtRisk:
    count = beyond(wrote, safe, None if safe is None else 0)
    if count is None or safe is None:
        return AtRisk(loss=loss, bytes=None, seconds=None)
    if count == 0:
        return AtRisk(loss=loss, bytes=0, seconds=0.0)
    moment = history.moment_before(safe)
    return AtRisk(loss=loss, bytes=count, seconds=None if moment is None else max(now_ns - moment, 0) / 1e9)
