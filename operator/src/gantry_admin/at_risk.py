"""The data that would be lost if something failed now: its bytes, and the age of the oldest of them.

    [0 ........ flushed ........ committed ........ wrote)
                `----------- the machine ----------'          power cut, crash of the kernel
                                 `--- the process -'          kill -9, unless the buffer outlives the process
    [0 ..... acked ................................ wrote)
             `------------- the master ------------'          disk or node gone, a slave is promoted

This is one broker's own view, of every byte that it has written. `group_view` has the shard's view: the acknowledged
data that the shard would lose, where a slave's copy counts for every fault. Both use `gantry_spec.ledger.bytes_beyond`.

Bytes are converted to seconds with a history of the time at which each part of the log was written:

    moments   t0      t1         t2     t3         the byte at `flushed` was written between t1 and t2: the data that
    wrote     100     250        600    900        would be lost is at most now - t1 old
    flushed           `- 300

The history is reset when the broker restarts or its log becomes shorter, because it is another log then.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from gantry_spec.ledger import bytes_beyond
from gantry_status import Reading, Role, Status

SAMPLES_MAX: Final = 12_000
"""Samples kept at most: twenty minutes under constant writes. A further one drops the older half."""


@final
class WrittenHistory:
    """Pairs of (time of publication, `wrote` at that time), both rising. Owned by the event loop."""

    def __init__(self) -> None:
        self._boot: object = None
        self._wrote: list[int] = []
        self._moments: list[int] = []
        self._grew_at: int | None = None

    def __repr__(self) -> str:
        return f"<WrittenHistory samples={len(self._wrote)}>"

    def record(self, reading: Reading) -> None:
        """Add the position and the time of one publication."""
        wrote, moment = reading.status.wrote, reading.status.published_boottime_ns
        if reading.origin.boot_id != self._boot or (wrote is not None and self._wrote and wrote < self._wrote[-1]):
            self._boot, self._wrote, self._moments, self._grew_at = reading.origin.boot_id, [], [], None
        if wrote is None:
            return
        if self._wrote and self._wrote[-1] == wrote:
            # Keep the later time: at that time, too, nothing beyond this offset had been written.
            if len(self._wrote) == 1 or self._moments[-1] < moment:
                self._moments[-1] = moment
            return
        self._wrote.append(wrote)
        self._moments.append(moment)
        self._grew_at = moment
        if len(self._wrote) > SAMPLES_MAX:
            del self._wrote[: SAMPLES_MAX // 2], self._moments[: SAMPLES_MAX // 2]

    def moment_before(self, offset: int) -> int | None:
        """Return the latest known time at which the byte at ``offset`` was not written yet; None if there is none."""
        index = bisect_right(self._wrote, offset) - 1
        return self._moments[index] if index >= 0 else None

    def idle_ms(self, now_ns: int) -> int | None:
        """Return for how long nothing was written, in ms; the first observation counts as a write. None before it."""
        return None if self._grew_at is None else max(now_ns - self._grew_at, 0) // 1_000_000

    def rate(self, window_ns: int) -> float | None:
        """Return the bytes per second over about the last ``window_ns``; None with fewer than two samples."""
        if len(self._wrote) < 2:
            return None
        end = self._moments[-1]
        index = max(bisect_right(self._moments, end - window_ns) - 1, 0)
        took = end - self._moments[index]
        return (self._wrote[-1] - self._wrote[index]) * 1e9 / took if took > 0 else 0.0


class Loss(StrEnum):
    """The kind of failure that a loss is computed for."""

    PROCESS = "process"
    """The process of the broker is killed; its machine keeps running."""

    MACHINE = "machine"
    """The machine loses power, and comes back with its disk."""

    MASTER = "master"
    """The disk or the machine is gone for good, and a slave is promoted."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk:
    """The data that one kind of failure would destroy."""

    loss: Loss
    bytes: int | None
    """The number of bytes at risk; None if unknown."""
    seconds: float | None
    """The age of the oldest of these bytes, at most; None if unknown, or older than the history."""


def acked_offset(status: Status, reported: int | None, acks_needed: int) -> int | None:
    """Return the offset up to which enough slaves have the log: as reported, or as the status page lists the slaves.

    The report is up to a second old and the page is younger. Data that is confirmed and was received by enough slaves
    counts as acked, even if the report does not include it yet.
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
    """Return the data at risk at this moment for every kind of failure."""
    process = status.wrote if status.is_crash_safe else status.committed
    master = acked if status.role is Role.MASTER else status.wrote
    safe = ((Loss.PROCESS, process), (Loss.MACHINE, status.flushed), (Loss.MASTER, master))
    return tuple(_risk_of(loss, status.wrote, offset, history, now_ns) for loss, offset in safe)


def _risk_of(loss: Loss, wrote: int | None, safe: int | None, history: WrittenHistory, now_ns: int) -> AtRisk:
    """Return the data at risk beyond ``safe``, the end of what the failure leaves."""
    count = bytes_beyond(wrote, safe, None if safe is None else 0)
    if count is None or safe is None:
        return AtRisk(loss=loss, bytes=None, seconds=None)
    if count == 0:
        return AtRisk(loss=loss, bytes=0, seconds=0.0)
    moment = history.moment_before(safe)
    return AtRisk(loss=loss, bytes=count, seconds=None if moment is None else max(now_ns - moment, 0) / 1e9)
