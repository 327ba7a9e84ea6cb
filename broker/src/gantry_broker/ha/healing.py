"""Repair damaged records of the log from a replica, while the broker runs.

    guard reports damage -> ``Healer.request`` -> RANGE_REQUEST on an existing stream -> RANGE
        -> every record verified, at its own place -> written over the damage, synced -> verified again -> healed

A master requests records from slaves that have acknowledged the range, and a slave from its master. Their logs are the
same there: the handshake has compared them, and a stream ends where they diverge. Only peers that have offered range
requests in the handshake get them. RocketMQ's brokers never do, and nothing of theirs is trusted here.

Where a replica is expected and not connected, or does not answer, the range waits for it: right after a start of the
master, and while a slave is restarted. The range is lost only when as many replicas as are expected lack it: a slave
also lacks what its log does not reach yet. If that is so for all of them, no slave ever had the range, and one waits at
it, since a stream stops at damage: the master replaces the range by void records (``on_lost``).

Records are written only after the same checks as a read, so a second damaged replica cannot make things worse. They are
written through a separate descriptor, while nothing is deleted and the log is not truncated (``pause_retention``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final, Protocol, final

from gantry_broker.errors import StoreError
from gantry_broker.ha.frames import Range, RangeRequest, encode
from gantry_broker.store.damage import Damage
from gantry_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

ANSWER_S: Final = 3.0
"""Timeout of one request, in seconds. Readers wait longer for a repair, so a second replica can be asked."""

RETRY_S: Final = 60.0
"""Seconds until replicas are asked again for the same range.

A new replica is asked at once, and while readers wait all are asked every ``ANSWER_S``.
"""


class HealOutcome(Enum):
    """The result of an attempt to heal a range."""

    HEALED = "healed"
    LACKING = "every replica lacks it, or has it damaged, too"
    UNANSWERED = "not every replica has answered"
    NOT_WRITTEN = "it could not be written"


class RangeSource(Protocol):
    """A replica that is connected now."""

    def has_range(self, end: int) -> bool:
        """Return whether it can be asked for records before ``end``."""
        ...

    def lacks(self, start: int) -> bool:
        """Return whether it has nothing of the log from ``start`` on, and nothing of that is on the way to it."""
        ...

    def waits_at(self, start: int) -> bool:
        """Return whether it has everything before ``start``, and the record there is the next one that it needs."""
        ...

    async def fetch(self, start: int, end: int) -> bytes:
        """Return records of ``[start, end)`` from ``start`` on, unverified and perhaps not all; empty if it has none.

        Raises ``OSError``, also on a timeout.
        """
        ...


async def ignore_loss(damage: Damage) -> None:
    """Do nothing about a lost range."""


@final
class RangeRequester:
    """Requests ranges over one stream, one at a time. Owned by the loop."""

    def __init__(self) -> None:
        self._start = -1
        self._answer: asyncio.Future[bytes] | None = None

    async def fetch(self, write: Callable[[bytes], object], start: int, end: int) -> bytes:
        """Send the request, and wait for the reply."""
        if self._answer is not None:
            raise ConnectionError("another range request is in progress")
        self._start, self._answer = start, asyncio.get_running_loop().create_future()
        try:
            write(encode(RangeRequest(start=start, end=end)))
            async with asyncio.timeout(ANSWER_S):
                records = await self._answer
        finally:
            self._answer = None
        if len(records) > end - start:
            raise ConnectionError(f"the replica sent {len(records)} bytes for a range of {end - start}")
        return records

    def deliver_range(self, answer: Range) -> None:
        """Deliver a received range. One that is no longer waited for is dropped."""
        if self._answer is not None and not self._answer.done() and answer.start == self._start:
            self._answer.set_result(answer.records)

    def close(self) -> None:
        """Fail the request in progress, because the stream has ended."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the replication stream ended"))


@final
class Healer:
    """Heals damaged ranges from replicas. Owned by the loop."""

    def __init__(
        self,
        store: MessageStore,
        sources: Callable[[], Iterable[RangeSource]],
        pause_retention: Callable[[], AbstractAsyncContextManager[object]],
        *,
        count_expected: Callable[[], int] = lambda: 0,
        on_lost: Callable[[Damage], Awaitable[None]] = ignore_loss,
    ) -> None:
        """Create a healer.

        ``pause_retention`` is held while a range is written: meanwhile no file may be deleted, nor the log truncated.

        ``count_expected`` returns how many replicas this broker ought to have; ``sources`` are the connected ones.
        ``on_lost`` is called with a range that no replica has ever had, and at which one waits.
        """
        self._store: Final = store
        self._sources: Final = sources
        self._pause_retention: Final = pause_retention
        self._count_expected: Final = count_expected
        self._on_lost: Final = on_lost
        self._wanted: Final[deque[Damage]] = deque()
        self._awaiting: Final[deque[Damage]] = deque()
        """Ranges that are requested when a replica connects, or again later."""

        self._task: asyncio.Task[None] | None = None
        self._retried_sources: frozenset[int] = frozenset()
        self._retried_at = 0.0
        store.guard.damage.set_healer(self.request)

    def __repr__(self) -> str:
        return f"<Healer wanted={len(self._wanted)} awaiting={len(self._awaiting)}>"

    def request(self, damage: Damage) -> bool:
        """Have the range fetched, now or when a replica is connected. False if none has it, and none is expected."""
        if any(source.has_range(damage.end) or source.lacks(damage.start) for source in self._sources()):
            self._wanted.append(damage)
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._run())
            return True
        if self._count_expected():
            self._awaiting.append(damage)
            return True
        return False

    def retry_damaged(self, now: float) -> None:
        """Ask new replicas for ranges that are still damaged, and all replicas again after a while.

        Called about once a second.
        """
        guard = self._store.guard
        guard.damage.end_overdue_waits()
        sources = frozenset(id(source) for source in self._sources() if source.has_range(0))
        retry_s = ANSWER_S if self._awaiting and guard.damage.is_awaited else RETRY_S
        if not sources - self._retried_sources and now - self._retried_at < retry_s:
            return
        self._retried_sources, self._retried_at = sources, now
        damaged = guard.damage.damaged
        starts = {damage.start for damage in damaged}
        for _ in range(len(self._awaiting)):
            damage = self._awaiting.popleft()
            if damage.start in starts and not self.request(damage):
                guard.damage.mark_not_healed(damage, "no replica is configured", is_lost=False)
        for damage in damaged:
            guard.damage.request_from_replica(damage)

    async def close(self) -> None:
        """Stop healing, and cancel the attempt in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        guard = self._store.guard
        while self._wanted:
            damage = self._wanted.popleft()
            reason = ""
            try:
                outcome = await self._heal(damage)
            except (OSError, StoreError) as error:
                outcome, reason = HealOutcome.NOT_WRITTEN, f"{HealOutcome.NOT_WRITTEN.value}: {error}"
            except Exception:  # A bug must not leave readers waiting, nor stop the healing of other ranges.
                log.exception("unexpected error while healing a damaged message", extra={"offset": damage.start})
                outcome, reason = HealOutcome.NOT_WRITTEN, "unexpected error"
            if outcome is HealOutcome.HEALED:
                guard.damage.mark_healed(damage)
            elif outcome is HealOutcome.UNANSWERED and self._count_expected():
                self._awaiting.append(damage)
            else:
                guard.damage.mark_not_healed(damage, reason or outcome.value, is_lost=outcome is HealOutcome.LACKING)
                if outcome is HealOutcome.LACKING and self._is_unreplicated(damage):
                    await self._on_lost(damage)

    def _is_unreplicated(self, damage: Damage) -> bool:
        """Return whether a replica waits at the range, and the logs of all that are expected end there or before."""
        sources = tuple(self._sources())
        is_lacked = all(source.lacks(damage.start) for source in sources) and len(sources) >= self._count_expected()
        return is_lacked and any(source.waits_at(damage.start) for source in sources)

    async def _heal(self, damage: Damage) -> HealOutcome:
        guard, offset = self._store.guard, damage.start
        while offset < damage.end:
            data, outcome = await self._fetch(offset, damage.end)
            if not data:
                return outcome
            async with self._pause_retention():
                await asyncio.to_thread(self._store.guard.prepare_rewrite(offset, data))
            if not guard.is_range_good(offset, offset + len(data)):
                raise OSError("the repaired range is damaged again when it is read back")
            offset += len(data)
        return HealOutcome.HEALED

    async def _fetch(self, start: int, end: int) -> tuple[bytes, HealOutcome]:
        """Return verified records from ``start`` on; or none, and whether every expected replica lacks them."""
        lacking = 0
        has_failed = False
        for source in tuple(self._sources()):
            if source.lacks(start):
                lacking += 1
                continue
            if not source.has_range(end):
                continue
            try:
                data = await source.fetch(start, end)
            except OSError as error:
                log.info(
                    "failed to fetch a damaged range from a replica", extra={"offset": start, "reason": str(error)}
                )
                has_failed = True
                continue
            if data and self._store.guard.is_intact(data, start):
                return data, HealOutcome.HEALED
            lacking += 1
        is_known = lacking > 0 and not has_failed and lacking >= self._count_expected()
        return b"", HealOutcome.LACKING if is_known else HealOutcome.UNANSWERED
