"""Renewing the shard's Lease for the broker beside us, as long as the record there names it as the master.

    sent ------- the API server renews ------- answered ------- order `lease` ------> the broker holds a key until
      |                                                                               sent + duration, less a margin
      `- this moment counts, on the boot-time clock of the machine that broker and sidecar share

The key is one of two with which a master may acknowledge where no slave's ack is needed (design 5). The rules:

- What counts is when the request was *sent*. Whoever takes a new epoch waits for the whole duration after his own
  write, and every renewal that succeeds was sent before it.
- The broker is told only of renewals that were answered. One that was not answered may have been done: nobody is told,
  which wastes a key and risks nothing.
- A renewal changes nothing but the time. If the record has moved on, it fails, and is not tried again before the record
  was read and names this broker still.
- Nothing is asked of anybody for a broker that is no master, or that stands still.
- One that has its role again by itself (``regaining``) gets no key before the Lease was read for half a minute on end:
  whoever decides may go by kubelet's word that its process does not run, and kubelet says anew every ten seconds.

A sidecar that ends gives nothing back: its broker keeps the key for as long as it was given, and the next one renews.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, final

from gantry_admin.errors import Problem
from gantry_admin.lease_keeper import KeptLease, LeaseKeeper, LeaseMoved, LeaseUnavailable
from gantry_spec.lease import LeaseRecord
from gantry_status.moment import Now, now
from gantry_status.orders import HaRole, HaStatus, Lease

log = logging.getLogger(__name__)

RENEWALS_PER_DURATION: Final = 3
INTERVAL_S_MIN: Final = 0.2
RETRY_S: Final = 1.0
"""After a failure, and while the record does not name this broker; less where a Lease is short."""
HOLD_S: Final = 30.0
"""For how long the Lease must have been read on end before a broker that has its role by itself gets a key."""
IDLE_S: Final = 0.5
"""Between two looks at a broker that is no master: they cost nobody anything."""
ASK_TIMEOUT_S: Final = 4.0
ORDER_TIMEOUT_S: Final = 1.0

Give = Callable[[Lease], Awaitable[object]]
"""Pass an order on to the broker. Raises ``Problem``."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWord:
    """How the Lease stands, for people."""

    reason: str = "it was not read yet"
    """Why it is not renewed; empty while it is."""
    renewed_ms: int | None = None
    """When the last request that was answered had been sent, on the boot-time clock."""
    duration_ms: int | None = None


def lost_its_key(before: HaStatus | None, word: HaStatus | None) -> bool:
    """Whether a master that was renewed for has another term now, or was started again: keys are a term's own."""
    if before is None or word is None or word.role is not HaRole.MASTER:
        return False
    return (before.role, before.epoch, before.identity) != (word.role, word.epoch, word.identity) or (
        not word.may_acknowledge
    )


@final
class LeaseRenewal:
    """Owned by the event loop."""

    def __init__(
        self, keeper: LeaseKeeper, word: Callable[[], HaStatus | None], give: Give, *, clock: Now = now,
        hold_s: float = HOLD_S,
    ) -> None:  # fmt: skip
        """``word`` is what the broker said lately of its role; None if it said nothing, or stands still."""
        self.shown: LeaseWord = LeaseWord()
        self.renewed = 0
        self.moved = 0
        self.failed = 0
        self._keeper: Final = keeper
        self._word: Final = word
        self._give: Final = give
        self._clock: Final = clock
        self._hold_s: Final = hold_s
        self._kept: KeptLease | None = None
        self._reached_ms: int | None = None
        """Since when the Lease was read whenever that was tried."""

    def __repr__(self) -> str:
        return f"<LeaseRenewal renewed={self.renewed} {self.shown.reason}>"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            word, wait_s = self._word(), await self.step()
            began_s = time.monotonic()
            while (rest_s := began_s + wait_s - time.monotonic()) > 0:
                await asyncio.sleep(min(rest_s, IDLE_S))
                if time.monotonic() - began_s >= RETRY_S and lost_its_key(word, self._word()):
                    break

    async def step(self) -> float:
        """Renew if it is right to, and say in how many seconds to come back."""
        word = self._word()
        reason = why_not_asked(word)
        if reason or word is None:
            self._kept = None
            self._say(reason)
            return IDLE_S
        try:
            return await self._renew(word)
        except LeaseMoved:
            self.moved += 1
            self._kept = None
            self._say("somebody else has changed it just now")
            return 0.0
        except LeaseUnavailable as error:
            self.failed += 1
            self._kept = self._reached_ms = None
            self._say(str(error))
        except Problem as problem:
            self._say(f"the broker did not take it: {problem.reason}")
        return self._retry_s()

    async def _renew(self, word: HaStatus) -> float:
        kept = self._kept
        if kept is None:
            kept = await self._keeper.read(timeout_s=self._timeout_s())
        self._reached_ms = self._now_ms() if self._reached_ms is None else self._reached_ms
        reason = why_not_named(kept.record, word) or self._why_held(word)
        if reason or kept.record is None:
            self._kept = None
            self._say(reason)
            return self._retry_s()
        sent_ms = self._now_ms()
        holder = f"{word.broker_name}/{word.broker_id}/{word.identity}"
        self._kept = await self._keeper.renew(kept, holder, timeout_s=self._timeout_s())
        duration_ms = kept.record.duration_ms
        await self._give(Lease(renewed_ms=sent_ms, duration_ms=duration_ms))
        self.renewed += 1
        if self.shown.reason:
            log.info("the Lease is renewed for this broker", extra={"epoch": word.epoch})
        self.shown = LeaseWord(reason="", renewed_ms=sent_ms, duration_ms=duration_ms)
        return max(duration_ms / 1000 / RENEWALS_PER_DURATION, INTERVAL_S_MIN)

    def _why_held(self, word: HaStatus) -> str:
        assert self._reached_ms is not None, "it was read"
        is_held = word.is_regained and self._now_ms() - self._reached_ms < self._hold_s * 1000
        return (
            "it has its role again by itself, and the Lease has not been read for long enough since" if is_held else ""
        )

    def _timeout_s(self) -> float:
        known = self.shown.duration_ms
        return ASK_TIMEOUT_S if known is None else min(ASK_TIMEOUT_S, known / 1000 / RENEWALS_PER_DURATION)

    def _retry_s(self) -> float:
        known = self.shown.duration_ms
        return RETRY_S if known is None else min(RETRY_S, known / 1000 / (4 * RENEWALS_PER_DURATION))

    def _say(self, reason: str) -> None:
        if reason != self.shown.reason and not self.shown.reason:
            log.warning("the Lease is not renewed for this broker any more", extra={"reason": reason})
        shown = self.shown
        self.shown = LeaseWord(reason=reason, renewed_ms=shown.renewed_ms, duration_ms=shown.duration_ms)

    def _now_ms(self) -> int:
        return self._clock().boottime_ns // 1_000_000


def why_not_asked(word: HaStatus | None) -> str:
    """Why nobody needs to be asked for a broker that said ``word``; empty if it may have a right to the Lease."""
    if word is None:
        return "the broker has not said lately who it is, or stands still"
    return "" if word.role is HaRole.MASTER else "this broker is no master"


def why_not_named(record: LeaseRecord | None, word: HaStatus) -> str:
    """Why the record does not name the master that said ``word``; empty if it does."""
    if record is None:
        return "there is no record in the Lease"
    term = record.newest
    if term is None or not record.is_settled:
        return f"epoch {record.epoch} has no master yet"
    if term.epoch != word.epoch:
        return f"the newest term is of epoch {term.epoch}, this broker is in {word.epoch}"
    if term.master != word.broker_id:
        return f"the master of epoch {term.epoch} is {term.master}, this broker is {word.broker_id}"
    if term.identity != word.identity:
        return f"the master of epoch {term.epoch} has another store"
    return ""
