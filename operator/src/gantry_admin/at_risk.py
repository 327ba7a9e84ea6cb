"""What would be lost if something broke now: bytes, and how old the oldest of them is.

    [0 ........ flushed ........ committed ........ wrote)
                `----------- the machine ----------'          power cut, crash of the kernel
                                 `--- the process -'          kill -9, unless the buffer outlives the process
    [0 ..... acked ................................ wrote)
             `------------- the master ------------'          disk or node gone, a slave is promoted

This is one broker's own view, of every byte that it has written. What a shard would lose of what it has acknowledged,
where a slave's copy counts for every fault, is `group_view`; both count with `gantry_spec.ledger.beyond`.

Bytes become seconds by the history of when which byte of the log was written, as far as it was watched:

    moments   t0      t1         t2     t3         the byte at `flushed` was written between t1 and t2: whatever a
    wrote     100     250        600    900        loss would take is up to now - t1 old
    flushed           `- 300

A broker that is started again, or whose log became shorter, is another log: the history begins anew.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from gantry_spec.ledger import beyond
from gantry_status import Reading, Role, Status

SAMPLES_MAX: Final = 12_000
"""Twenty minutes of a broker that is written to all the time. Older ones are forgotten half by half."""


@final
class WrittenHistory:
    """Pairs of (when the broker looked, how far it had written), both rising. Owned by the event loop."""

    def __init__(self) -> None:
        self._boot: object = None
        self._wrote: list[int] = []
        self._moments: list[int] = []
        self._grew_at: int | None = None

    def __repr__(self) -> str:
        return f"<WrittenHistory samples={len(self._wrote)}>"

    def see(self, reading: Reading) -> None:
        """One publication more."""
        wrote, moment = reading.status.wrote, reading.status.published_boottime_ns
        if reading.origin.boot_id != self._boot or (wrote is not None and self._wrote and wrote < self._wrote[-1]):
            self._boot, self._wrote, self._moments, self._grew_at = reading.origin.boot_id, [], [], None
        if wrote is None:
            return
        if self._wrote and self._wrote[-1] == wrote:
            # The later moment: at it, nothing newer was written yet.
            if len(self._wrote) == 1 or self._moments[-1] < moment:
                self._moments[-1] = moment
            return
        self._wrote.append(wrote)
        self._moments.append(moment)
        self._grew_at = moment
        if len(self._wrote) > SAMPLES_MAX:
            del self._wrote[: SAMPLES_MAX // 2], self._moments[: SAMPLES_MAX // 2]

    def moment_before(self, offset: int) -> int | None:
        """A moment at which the byte at ``offset`` was not written yet: the latest that is known; None without one."""
        index = bisect_right(self._wrote, offset) - 1
        return self._moments[index] if index >= 0 else None

    def still_ms(self, now_ns: int) -> int | None:
        """For how long nothing was written; None before anybody has watched."""
        return None if self._grew_at is None else max(now_ns - self._grew_at, 0) // 1_000_000

    def rate(self, window_ns: int) -> float | None:
        """Bytes a second, over about the last ``window_ns``; None before there is anything to compare."""
        if len(self._wrote) < 2:
            return None
        end = self._moments[-1]
        index = max(bisect_right(self._moments, end - window_ns) - 1, 0)
        took = end - self._moments[index]
        return (self._wrote[-1] - self._wrote[index]) * 1e9 / took if took > 0 else 0.0


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
