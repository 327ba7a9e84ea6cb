"""What is known of damage to the log: which ranges, what is being done about each, and who waits for it.

A damaged record is reported once, counted, and kept here until it is healed or its file expires. ``ask_replica`` may
have it fetched from a replica, now or as soon as one is connected; for a bounded time readers then wait before it
instead of stepping over it, since a consumer that has stepped over an acknowledged message never sees it again.

    found ---- ask_replica ----> healing ----> healed, and forgotten
      ^                           |   |
      `---- could not be written -'   `------> lost: no replica has it ---- asked again ----> healing
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, final

from gantry_broker.ports.clock import Clock
from gantry_broker.store.commit_log import CommitLog

log = logging.getLogger(__name__)

DAMAGE_MAX: Final = 10_000
"""Damaged ranges that are remembered. More than that is a broken disk, which the counters show."""


class DamageState(Enum):
    """What is being done about a damaged range."""

    FOUND = "found"
    """There is no replica to ask, or what it gave could not be written."""

    HEALING = "healing"
    """A replica was asked for it, or will be when it is connected."""

    LOST = "lost"
    """No replica that could be asked has it."""


@dataclass(slots=True)
class Damage:
    """A range of the log that holds no good record."""

    start: int
    end: int
    state: DamageState = DamageState.FOUND
    wait_until_ms: int = -1
    """Until then, on the monotonic clock, readers wait before it."""

    has_waited: bool = False
    """Whether the time has begun for which readers wait before it."""

    was_lost: bool = False
    """Whether it was counted as lost."""

    def must_wait(self, now_ms: int, heal_wait_ms: int) -> bool:
        """Whether readers wait before it now. The time begins with the first of them."""
        if self.state is DamageState.HEALING and not self.has_waited:
            self.has_waited = True
            self.wait_until_ms = now_ms + heal_wait_ms
        return self.state is not DamageState.LOST and now_ms < self.wait_until_ms

    def end_wait(self) -> None:
        """Readers step over it from now on."""
        self.wait_until_ms = -1

    def turn(self, state: DamageState) -> None:
        """A replica is asked for it, or could not give it now."""
        self.state = state

    def lose(self) -> bool:
        """No replica has it. False if that was known before."""
        self.state = DamageState.LOST
        was_lost, self.was_lost = self.was_lost, True
        return not was_lost

    def cut(self, end: int) -> None:
        """The log ends at ``end`` now."""
        self.end = min(self.end, end)


class DamageCounters(NamedTuple):
    """What was found since the start."""

    found: int = 0
    found_bytes: int = 0
    healed: int = 0
    healed_bytes: int = 0
    lost: int = 0
    """Of those found: how many no replica could give."""


class Integrity(NamedTuple):
    """What is known of damage to a store's log. The names are those of the status page.

    See ``DamageTable`` and ``Scrubber``. Counts are since the start.
    """

    damaged_records: int = 0
    damaged_bytes: int = 0
    damaged_records_found: int = 0
    healed_records: int = 0
    lost_records: int = 0
    scrub_position: int = 0
    scrubbed_bytes: int = 0
    scrub_pass_ended_wall_ms: int = 0


@final
class DamageTable:
    """The damaged ranges of one log. Owned by the thread that owns the log."""

    def __init__(
        self, commit_log: CommitLog, clock: Clock, find_end: Callable[[int], int], *, heal_wait_ms: int
    ) -> None:
        """``find_end`` says where the first good record behind a damaged one begins."""
        self.on_healed: Final[list[Callable[[int, int], None]]] = []
        """Called with a range of the log that is good again."""

        self.on_resolved: Final[list[Callable[[], None]]] = []
        """Called when readers need not wait any more before some damaged range."""

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
        """Whether the record at ``offset`` is known to be damaged."""
        return offset in self._damage

    @property
    def integrity(self) -> Integrity:
        """What is known of damage, in numbers."""
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
        """The ranges that are known to be damaged now, in order."""
        begin = self._log.min_physical
        return sorted((one for one in self._damage.values() if one.start >= begin), key=lambda damage: damage.start)

    def heal_with(self, ask_replica: Callable[[Damage], bool]) -> None:
        """Fetch damaged ranges from replicas from now on.

        ``ask_replica`` has one give the range, now or when one is connected; False if this broker has no replicas.
        """
        self._ask_replica = ask_replica

    def report(self, offset: int, size: int = 0, **facts: object) -> Damage | None:
        """The record at ``offset`` is damaged: it is fetched from a replica, logged and counted once.

        ``size`` is what a queue says of its length; 0 if nothing does. None where more is damaged than is remembered.
        """
        damage = self._damage.get(offset)
        if damage is not None:
            return damage
        self._log.demand_own(offset)
        damage = Damage(offset, offset + size if size else self._find_end(offset))
        size = damage.end - offset
        counters = self.counters
        self.counters = counters._replace(found=counters.found + 1, found_bytes=counters.found_bytes + size)
        if len(self._damage) >= DAMAGE_MAX:
            return None
        self._damage[offset] = damage
        log.error("a stored message is damaged", extra={"offset": offset, "bytes": size, **facts})
        self.ask(damage)
        return damage

    def ask(self, damage: Damage) -> None:
        """Have a replica give the range, if there are replicas."""
        if damage.state is not DamageState.HEALING and self._ask_replica(damage):
            damage.turn(DamageState.HEALING)

    def must_wait(self, offset: int, size: int = 0, **facts: object) -> bool:
        """Report the damaged record at ``offset``. True while a reader that would pass over it has to wait instead."""
        damage = self.report(offset, size, **facts)
        return damage is not None and damage.must_wait(self._clock.monotonic_ms(), self._heal_wait_ms)

    def must_wait_before_gap(self) -> bool:
        """Whether a reader has to wait before a place of a queue whose message a start has not found in the log.

        It may lie in any range that is damaged and may still be healed; then it gets its place in the queue.
        """
        now_ms, wait_ms = self._clock.monotonic_ms(), self._heal_wait_ms
        waits = [damage.must_wait(now_ms, wait_ms) for damage in self._damage.values()]  # the time begins for all
        return any(waits)

    def may_be_healed(self, offset: int) -> bool:
        """Whether the record at ``offset`` is damaged, and a replica may still give it."""
        damage = self._damage.get(offset)
        return damage is not None and damage.state is DamageState.HEALING

    @property
    def is_awaited(self) -> bool:
        """Whether readers wait before some damaged range."""
        return any(damage.wait_until_ms >= 0 for damage in self._damage.values())

    def end_overdue_waits(self) -> None:
        """Resume readers that have waited before a damaged range for as long as they may."""
        now_ms = self._clock.monotonic_ms()
        overdue = [damage for damage in self._damage.values() if 0 <= damage.wait_until_ms <= now_ms]
        for damage in overdue:
            damage.end_wait()
            reason = "no replica gave it in time"
            facts = {"offset": damage.start, "bytes": damage.end - damage.start, "reason": reason}
            log.warning("a damaged message is passed over", extra=facts)
        if overdue:
            self._resolved()

    def healed(self, damage: Damage) -> None:
        """The range was written again, and verified."""
        if self._damage.pop(damage.start, None) is not None:
            counters, size = self.counters, damage.end - damage.start
            self.counters = counters._replace(
                healed=counters.healed + 1, healed_bytes=counters.healed_bytes + size
            )  # fmt: skip
            log.warning("a damaged message was healed from a replica", extra={"offset": damage.start, "bytes": size})
            for listener in self.on_healed:
                listener(damage.start, damage.end)
        self._resolved()

    def not_healed(self, damage: Damage, reason: str, *, is_lost: bool) -> None:
        """No replica has it (``is_lost``), or it could not be written: readers step over it."""
        if damage.start not in self._damage:
            return
        facts = {"offset": damage.start, "bytes": damage.end - damage.start, "reason": reason}
        damage.end_wait()
        if is_lost:
            if damage.lose():
                self.counters = self.counters._replace(lost=self.counters.lost + 1)
                log.error("a damaged message is lost: no replica has it; `gantry store verify` shows it", extra=facts)
        else:
            damage.turn(DamageState.FOUND)
            log.warning("a damaged message was not healed yet", extra=facts)
        self._resolved()

    def rewritten(self, offset: int, size: int) -> None:
        """A record that was damaged on the disk alone was written again from memory."""
        counters = self.counters
        self.counters = counters._replace(
            found=counters.found + 1, found_bytes=counters.found_bytes + size,
            healed=counters.healed + 1, healed_bytes=counters.healed_bytes + size,
        )  # fmt: skip
        facts = {"offset": offset, "bytes": size}
        log.warning("a message that is damaged on the disk was written again from memory", extra=facts)

    def found_good(self, start: int, end: int) -> None:
        """``[start, end)`` was read and verified: nothing of it is damaged any more."""
        if self._damage and any(start <= offset < end for offset in self._damage):
            self.forget(start, end)
            for listener in self.on_healed:
                listener(start, end)
            self._resolved()

    def forget(self, start: int, end: int) -> None:
        """Remove the damage recorded in ``[start, end)``, whose records were verified again."""
        for offset in [offset for offset in self._damage if start <= offset < end]:
            del self._damage[offset]

    def cut(self, end: int) -> None:
        """The log ends at ``end`` now: other records will lie behind it, none of which is damaged."""
        for damage in list(self._damage.values()):
            if damage.start >= end:
                del self._damage[damage.start]
            else:
                damage.cut(end)

    def behind(self, offset: int) -> int:
        """Where the damaged ranges end that begin at ``offset`` and follow each other; ``offset`` if there is none."""
        while (damage := self._damage.get(offset)) is not None:
            offset = damage.end
        return offset

    def _resolved(self) -> None:
        for listener in self.on_resolved:
            listener()
