"""Damaged records of the log, fetched again from a replica that has them, while the broker runs.

    guard reports damage -> ``Healer.ask`` -> ASK_RANGE on a stream that is there anyway -> RANGE
        -> every record verified, at its own place -> written over the damage, synced -> verified again -> healed

A master asks slaves that have acknowledged the range, and a slave asks the master it follows. Their logs are the same
there: the handshake has compared them, and a stream ends where they part. Only peers are asked that have offered it in
the handshake; RocketMQ's brokers never do, and nothing of theirs is believed here.

Where a replica is expected and not connected, or does not answer, the range waits here for it: right after a start of
the master, and while a slave is restarted. It is lost only when as many replicas as are expected lack it.

What is written has passed the checks that a read makes, so a second damaged replica cannot make things worse. It is
written through a descriptor of its own, while nothing is deleted and no log is cut (``quiet``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final, Protocol, final

from gantry_broker.errors import StoreError
from gantry_broker.ha.frames import AskRange, Range, encode
from gantry_broker.store.damage import Damage
from gantry_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

ANSWER_S: Final = 3.0
"""For one range. Shorter than readers wait for a message to be healed, so that a second replica may be asked."""

RETRY_S: Final = 60.0
"""How often replicas are asked again for what they did not give. A replica that is new is asked at once, and while
readers wait all are asked every ``ANSWER_S``."""


class Healing(Enum):
    """What became of an attempt to heal a range."""

    HEALED = "healed"
    LACKING = "every replica lacks it, or has it damaged, too"
    NOT_GIVEN = "not every replica has answered"
    NOT_WRITTEN = "it could not be written"


class RangeSource(Protocol):
    """A replica that is connected now."""

    def has_range(self, end: int) -> bool:
        """Whether it may be asked for what lies before ``end``."""
        ...

    async def fetch(self, start: int, end: int) -> bytes:
        """Whole records of ``[start, end)``, empty if it has none. Raises ``OSError``, which includes a timeout."""
        ...


@final
class RangeQuestion:
    """The question for a range that is under way on one stream; one at a time. Owned by the loop."""

    def __init__(self) -> None:
        self._start = -1
        self._answer: asyncio.Future[bytes] | None = None

    async def fetch(self, write: Callable[[bytes], object], start: int, end: int) -> bytes:
        """Ask, and wait for the answer."""
        if self._answer is not None:
            raise ConnectionError("another range is asked for")
        self._start, self._answer = start, asyncio.get_running_loop().create_future()
        try:
            write(encode(AskRange(start=start, end=end)))
            async with asyncio.timeout(ANSWER_S):
                records = await self._answer
        finally:
            self._answer = None
        if len(records) > end - start:
            raise ConnectionError(f"{len(records)} bytes were given, and {end - start} asked for")
        return records

    def answered(self, answer: Range) -> None:
        """A range came. One that is not waited for any more is dropped."""
        if self._answer is not None and not self._answer.done() and answer.start == self._start:
            self._answer.set_result(answer.records)

    def close(self) -> None:
        """The stream is over."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the replication stream ended"))


@final
class Healer:
    """Owned by the loop."""

    def __init__(
        self,
        store: MessageStore,
        sources: Callable[[], Iterable[RangeSource]],
        quiet: Callable[[], AbstractAsyncContextManager[object]],
        *,
        count_expected: Callable[[], int] = lambda: 0,
    ) -> None:
        """``quiet`` is held while a range is written: nothing may be deleted or cut meanwhile.

        ``count_expected`` gives how many replicas this broker ought to have; ``sources`` are those that are connected.
        """
        self._store: Final = store
        self._sources: Final = sources
        self._quiet: Final = quiet
        self._count_expected: Final = count_expected
        self._wanted: Final[deque[Damage]] = deque()
        self._awaiting: Final[deque[Damage]] = deque()
        """What a replica is asked for when it is connected, or later again."""

        self._task: asyncio.Task[None] | None = None
        self._asked: frozenset[int] = frozenset()
        self._asked_at = 0.0
        store.guard.damage.heal_with(self.ask)

    def __repr__(self) -> str:
        return f"<Healer wanted={len(self._wanted)} awaiting={len(self._awaiting)}>"

    def ask(self, damage: Damage) -> bool:
        """Have the range fetched, now or when a replica is connected. False if no replica is expected."""
        if any(source.has_range(damage.end) for source in self._sources()):
            self._wanted.append(damage)
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._run())
            return True
        if self._count_expected():
            self._awaiting.append(damage)
            return True
        return False

    def look(self, now: float) -> None:
        """About once a second: ask again for what is damaged still, where a replica is new, or after a while."""
        guard = self._store.guard
        guard.damage.end_overdue_waits()
        asked = frozenset(id(source) for source in self._sources() if source.has_range(0))
        retry_s = ANSWER_S if self._awaiting and guard.damage.is_awaited else RETRY_S
        if not asked - self._asked and now - self._asked_at < retry_s:
            return
        self._asked, self._asked_at = asked, now
        damaged = guard.damage.damaged
        starts = {damage.start for damage in damaged}
        for _ in range(len(self._awaiting)):
            damage = self._awaiting.popleft()
            if damage.start in starts and not self.ask(damage):
                guard.damage.not_healed(damage, "no replica is expected any more", is_lost=False)
        for damage in damaged:
            guard.damage.ask(damage)

    async def close(self) -> None:
        """Heal nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        guard = self._store.guard
        while self._wanted:
            damage = self._wanted.popleft()
            reason = ""
            try:
                healing = await self._heal(damage)
            except (OSError, StoreError) as error:
                healing, reason = Healing.NOT_WRITTEN, f"{Healing.NOT_WRITTEN.value}: {error}"
            except Exception:  # a fault of ours must not leave readers waiting, nor end the healing of others
                log.exception("unexpected error while healing a damaged message", extra={"offset": damage.start})
                healing, reason = Healing.NOT_WRITTEN, "unexpected error"
            if healing is Healing.HEALED:
                guard.damage.healed(damage)
            elif healing is Healing.NOT_GIVEN and self._count_expected():
                self._awaiting.append(damage)
            else:
                guard.damage.not_healed(damage, reason or healing.value, is_lost=healing is Healing.LACKING)

    async def _heal(self, damage: Damage) -> Healing:
        guard, place = self._store.guard, damage.start
        while place < damage.end:
            data, healing = await self._fetch(place, damage.end)
            if not data:
                return healing
            async with self._quiet():
                await asyncio.to_thread(self._store.guard.rewriting(place, data))
            if not guard.is_good_now(place, place + len(data)):
                raise OSError("what was written is damaged again when it is read")
            place += len(data)
        return Healing.HEALED

    async def _fetch(self, start: int, end: int) -> tuple[bytes, Healing]:
        """Verified records from ``start`` on; or none, and whether every expected replica lacks them."""
        lacking = 0
        has_failed = False
        for source in tuple(self._sources()):
            if not source.has_range(end):
                continue
            try:
                data = await source.fetch(start, end)
            except OSError as error:
                log.info("a replica did not give a range", extra={"offset": start, "reason": str(error)})
                has_failed = True
                continue
            if data and self._store.guard.is_whole(data, start):
                return data, Healing.HEALED
            lacking += 1
        is_known = lacking > 0 and not has_failed and lacking >= self._count_expected()
        return b"", Healing.LACKING if is_known else Healing.NOT_GIVEN
