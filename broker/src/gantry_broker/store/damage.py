"""The table of damage to the log: the damaged ranges, the state of each, and how long readers wait for it.

A damaged record is reported once, counted, and kept here until it is good again or leaves the log. ``ask_replica`` may
have it fetched from a replica, now or as soon as one is connected; for a bounded time readers then wait before it
instead of skipping it, since a consumer that has skipped an acknowledged message never receives it.

    found ---- ask_replica ----> healing ----> healed, and removed from the table
      ^                           |   |
      `---- could not be written -'   `------> lost: no replica has it ---- requested again ----> healing
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, final

from gantry_broker.ports.clock import Clock
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.identity import LOG_END_MAX

log = logging.getLogger(__name__)

DAMAGE_MAX: Final = 10_000
"""Limit of the damaged ranges in the table. More than that means a broken disk, which the counters show."""


class DamageState(Enum):
    """The state of a damaged range."""

    FOUND = "found"
    """There is no replica to request it from, or its data could not be written."""

    HEALING = "healing"
    """It was requested from a replica, or will be when one is connected."""

    LOST = "lost"
    """Every expected replica was asked, and none has it."""


@dataclass(slots=True)
class Damage:
    """A range of the log that holds no good record."""

    start: int
    """The physical offset at which the range begins."""

    end: int
    """Where the first good record after it begins, or where the search for one ended."""

    state: DamageState = DamageState.FOUND
    wait_until_ms: int = -1
    """Monotonic time until which readers wait before the range; -1 if they do not wait."""

    has_waited: bool = False
    """Whether a reader has started to wait before the range."""

    was_lost: bool = False
    """Whether the range was counted as lost."""

    def must_wait(self, now_ms: int, heal_wait_ms: int) -> bool:
        """Return whether readers wait before the range now. The wait begins with the first reader."""
        if self.state is DamageState.HEALING and not self.has_waited:
            self.has_waited = True
            self.wait_until_ms = now_ms + heal_wait_ms
        return self.state is not DamageState.LOST and now_ms < self.wait_until_ms

    def end_wait(self) -> None:
        """Let readers skip the range from now on."""
        self.wait_until_ms = -1

    def set_state(self, state: DamageState) -> None:
        """Set the state of the range."""
        self.state = state

    def mark_lost(self) -> bool:
        """Mark the range as lost, because no replica has it. Return False if it was marked before."""
        self.state = DamageState.LOST
        was_lost, self.was_lost = self.was_lost, True
        return not was_lost

    def shorten(self, end: int) -> None:
        """Shorten the range to the new end of the log."""
        self.end = min(self.end, end)


class DamageCounters(NamedTuple):
    """Counters of damaged ranges since the start."""

    found: int = 0
    """Number of damaged ranges that were found."""

    found_bytes: int = 0
    healed: int = 0
    """Number of ranges that were rewritten, from a replica or from memory."""

    healed_bytes: int = 0
    lost: int = 0
    """Number of the found ranges that no replica had."""


class Integrity(NamedTuple):
    """Numbers about damage to a store's log. The names are those of the status page.

    See ``DamageTable`` and ``Scrubber``. The first two are the present damage; other counts are since the start.
    """

    damaged_records: int = 0
    """Number of ranges that are damaged now."""

    damaged_bytes: int = 0
    """Size of the ranges that are damaged now."""

    damaged_records_found: int = 0
    healed_records: int = 0
    lost_records: int = 0
    """Number of damaged ranges that no replica had."""

    scrub_position: int = 0
    """The offset up to which the scrubber, which reads the whole log at rest, has come."""

    scrubbed_bytes: int = 0
    scrub_pass_ended_wall_ms: int = 0
    """Wall-clock time at which the scrubber last reached the end of the log; 0 if it has not."""


@final
class DamageTable:
    """The damaged ranges of one log. Owned by the loop's thread, as the log is."""

    def __init__(
        self, commit_log: CommitLog, clock: Clock, find_end: Callable[[int], int], *, heal_wait_ms: int
    ) -> None:
        """Create an empty table. ``find_end`` returns the start of the first good record after a damaged one."""
        self.on_healed: Final[list[Callable[[int, int], None]]] = []
        """Callbacks that take a range of the log that is good again."""

        self.on_resolved: Final[list[Callable[[], None]]] = []
        """Callbacks that are called when readers no longer have to wait before a damaged range."""

        self.counters = DamageCounters()
        self._log: Final = commit_log
        self._clock: Final = clock
        self._find_end: Final = find_end
        self._heal_wait_ms: Final = heal_wait_ms
        self._damage: Final[dict[int, Damage]] = {}
        self._ask_replica: Callable[[Damage], bool] = lambda damage: False

    def __repr__(self) -> str:
        return f"<DamageTable damaged={len(self._damage)} {self.counters!r}>"

    def __contains__(self, offset: object) -> bool:
        """Return whether the record at ``offset`` is known to be damaged."""
        return offset in self._damage

    def at(self, offset: int) -> Damage | None:
        """Return the damaged range that begins at ``offset``; None if there is none."""
        return self._damage.get(offset)

    @property
    def integrity(self) -> Integrity:
        """The present damage and the counters since the start."""
        damaged, counters = self.damaged, self.counters
        return Integrity(
            damaged_records=len(damaged),
            damaged_bytes=sum(damage.end - damage.start for damage in damaged),
            damaged_records_found=counters.found,
            healed_records=counters.healed,
            lost_records=counters.lost,
        )

    @property
    def damaged(self) -> list[Damage]:
        """The ranges that are damaged now, in order."""
        return sorted(self._damage.values(), key=lambda damage: damage.start)

    def set_healer(self, ask_replica: Callable[[Damage], bool]) -> None:
        """Fetch damaged ranges from replicas from now on.

        ``ask_replica`` requests a range from a replica, now or when one is connected. It returns False if this broker
        has no replicas.
        """
        self._ask_replica = ask_replica

    def report(self, offset: int, size: int = 0, **extra: object) -> Damage | None:
        """Add the damaged record at ``offset``: log it, count it, and request it from a replica, once.

        ``size`` is its length according to a queue; 0 if unknown. Return None if its file has expired meanwhile, or if
        the table is full: then it is only counted, at each report. Raises ``StoreFailed`` if the file belongs to
        another store.
        """
        damage = self._damage.get(offset)
        if damage is not None or offset < self._log.min_physical:
            return damage
        self._log.require_own_file(offset)
        damage = Damage(offset, offset + size if size else self._find_end(offset))
        size = damage.end - offset
        counters = self.counters
        self.counters = counters._replace(found=counters.found + 1, found_bytes=counters.found_bytes + size)
        if len(self._damage) >= DAMAGE_MAX:
            return None
        self._damage[offset] = damage
        log.error("stored message is damaged", extra={"offset": offset, "bytes": size, **extra})
        self.request_from_replica(damage)
        return damage

    def request_from_replica(self, damage: Damage) -> None:
        """Request the range from a replica, if there are replicas."""
        if damage.state is not DamageState.HEALING and self._ask_replica(damage):
            damage.set_state(DamageState.HEALING)

    def must_wait(self, offset: int, size: int = 0, **extra: object) -> bool:
        """Report the damaged record at ``offset``. Return True while a reader must wait instead of skipping it."""
        damage = self.report(offset, size, **extra)
        return damage is not None and damage.must_wait(self._clock.monotonic_ms(), self._heal_wait_ms)

    def must_wait_before_gap(self, before: int = LOG_END_MAX) -> bool:
        """Return whether a reader must wait before a queue offset whose message a start did not find in the log.

        The message may lie in any damaged range that begins before ``before`` and may still be healed; then it is put
        into the queue.
        """
        now_ms, wait_ms = self._clock.monotonic_ms(), self._heal_wait_ms
        # A list, and not ``any`` over a generator, since the wait must begin for all ranges.
        waits = [damage.must_wait(now_ms, wait_ms) for damage in self._damage.values() if damage.start < before]
        return any(waits)

    def may_be_healed(self, offset: int) -> bool:
        """Return whether the record at ``offset`` is damaged and may still be healed from a replica."""
        damage = self._damage.get(offset)
        return damage is not None and damage.state is DamageState.HEALING

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits before any damaged range."""
        return any(damage.wait_until_ms >= 0 for damage in self._damage.values())

    def end_overdue_waits(self) -> None:
        """Resume readers that have waited before a damaged range for as long as they may."""
        now_ms = self._clock.monotonic_ms()
        overdue = [damage for damage in self._damage.values() if 0 <= damage.wait_until_ms <= now_ms]
        for damage in overdue:
            damage.end_wait()
            reason = "no replica sent it in time"
            extra = {"offset": damage.start, "bytes": damage.end - damage.start, "reason": reason}
            log.warning("damaged message skipped", extra=extra)
        if overdue:
            self._notify_resolved()

    def mark_healed(self, damage: Damage) -> None:
        """Remove a range that was rewritten and verified."""
        if self._damage.pop(damage.start, None) is not None:
            counters, size = self.counters, damage.end - damage.start
            self.counters = counters._replace(
                healed=counters.healed + 1, healed_bytes=counters.healed_bytes + size
            )  # fmt: skip
            log.warning("damaged message healed from a replica", extra={"offset": damage.start, "bytes": size})
            for listener in self.on_healed:
                listener(damage.start, damage.end)
        self._notify_resolved()

    def mark_not_healed(self, damage: Damage, reason: str, *, is_lost: bool) -> None:
        """Let readers skip a range that no replica has (``is_lost``) or that could not be written."""
        if damage.start not in self._damage:
            return
        extra = {"offset": damage.start, "bytes": damage.end - damage.start, "reason": reason}
        damage.end_wait()
        if is_lost:
            if damage.mark_lost():
                self.counters = self.counters._replace(lost=self.counters.lost + 1)
                log.error("damaged message is lost: no replica has it; `gantry store verify` shows it", extra=extra)
        else:
            damage.set_state(DamageState.FOUND)
            log.warning("damaged message not healed yet", extra=extra)
        self._notify_resolved()

    def count_rewritten(self, offset: int, size: int) -> None:
        """Count and log a record that was damaged only on the disk and was rewritten from memory."""
        counters = self.counters
        self.counters = counters._replace(
            found=counters.found + 1, found_bytes=counters.found_bytes + size,
            healed=counters.healed + 1, healed_bytes=counters.healed_bytes + size,
        )  # fmt: skip
        extra = {"offset": offset, "bytes": size}
        log.warning("message damaged on the disk was rewritten from memory", extra=extra)

    def mark_good(self, start: int, end: int) -> None:
        """Remove the damage in ``[start, end)``, which was read and verified, and call the callbacks."""
        if self._damage and any(start <= offset < end for offset in self._damage):
            self.forget(start, end)
            for listener in self.on_healed:
                listener(start, end)
            self._notify_resolved()

    def forget(self, start: int, end: int) -> None:
        """Remove the damage in ``[start, end)`` without calling the callbacks."""
        for offset in [offset for offset in self._damage if start <= offset < end]:
            del self._damage[offset]

    def expire(self, begin: int) -> None:
        """Remove the damage before ``begin``, the new beginning of the log, and resume readers that waited for it."""
        expired = [damage for damage in self._damage.values() if damage.start < begin]
        for damage in expired:
            del self._damage[damage.start]
        if any(damage.wait_until_ms >= 0 for damage in expired):
            self._notify_resolved()

    def truncate(self, end: int) -> None:
        """Remove the damage after ``end``, the new end of the log, since other records will be written there."""
        for damage in list(self._damage.values()):
            if damage.start >= end:
                del self._damage[damage.start]
            else:
                damage.shorten(end)

    def end_of_damage_at(self, offset: int) -> int:
        """Return the end of the adjacent damaged ranges from ``offset`` on; ``offset`` if there is none."""
        while (damage := self._damage.get(offset)) is not None:
            offset = damage.end
        return offset

    def _notify_resolved(self) -> None:
        for listener in self.on_resolved:
            listener()
