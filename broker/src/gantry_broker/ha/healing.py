"""Damaged records of the log, fetched again from a replica that has them, while the broker runs.

    guard reports damage -> ``Healer.ask`` -> ASK_RANGE on a stream that is there anyway -> RANGE
        -> every record verified, at its own place -> written over the damage, synced -> verified again -> healed

A master asks slaves that have acknowledged the range, and a slave asks the master it follows. Their logs are the same
there: the handshake has compared them, and a stream ends where they part. Only peers are asked that have said in the
handshake that they answer; RocketMQ's brokers never do, and nothing of theirs is believed here.

What is written has passed the checks that a read makes, so a second damaged replica cannot make things worse. It is
written through a descriptor of its own, while nothing is deleted and no log is cut (``quiet``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, final

from gantry_broker.errors import StoreError
from gantry_broker.ha.frames import AskRange, Range, encode
from gantry_broker.store.log_guard import Damage
from gantry_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

ANSWER_S: Final = 3.0
"""For one range. Shorter than readers wait for a message to be healed, so that a second replica may be asked."""

RETRY_S: Final = 60.0
"""How often replicas are asked again for what they did not give. A replica that is new is asked at once."""


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
    ) -> None:
        """``quiet`` is held while a range is written: nothing may be deleted or cut meanwhile."""
        self._store: Final = store
        self._sources: Final = sources
        self._quiet: Final = quiet
        self._wanted: Final[deque[Damage]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._asked: frozenset[int] = frozenset()
        self._asked_at = 0.0
        store.guard.ask_replica = self.ask

    def __repr__(self) -> str:
        return f"<Healer wanted={len(self._wanted)}>"

    def ask(self, damage: Damage) -> bool:
        """Have the range fetched, if a replica is there that can be asked."""
        if not any(source.has_range(damage.end) for source in self._sources()):
            return False
        self._wanted.append(damage)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return True

    def look(self, now: float) -> None:
        """About once a second: ask again for what is damaged still, where a replica is new, or after a while."""
        asked = frozenset(id(source) for source in self._sources() if source.has_range(0))
        if not asked - self._asked and now - self._asked_at < RETRY_S:
            return
        self._asked, self._asked_at = asked, now
        for damage in self._store.guard.damaged:
            self._store.guard.ask(damage)

    async def close(self) -> None:
        """Heal nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        guard = self._store.guard
        while self._wanted:
            damage = self._wanted.popleft()
            try:
                fault, is_lost = await self._heal(damage)
            except (OSError, StoreError) as error:
                fault, is_lost = f"it could not be written: {error}", False
            except Exception:  # a fault of ours must not leave readers waiting, nor end the healing of others
                log.exception("unexpected error while healing a damaged message", extra={"offset": damage.start})
                fault, is_lost = "unexpected error", False
            if fault:
                guard.not_healed(damage, fault, is_lost=is_lost)
            else:
                guard.healed(damage)

    async def _heal(self, damage: Damage) -> tuple[str, bool]:
        """Why the range is not healed, empty if it is, and whether no replica has it."""
        guard, place = self._store.guard, damage.start
        while place < damage.end:
            data, is_lost = await self._fetch(place, damage.end)
            if not data:
                return ("every replica lacks it, or has it damaged, too" if is_lost else "no replica answered"), is_lost
            async with self._quiet():
                await asyncio.to_thread(self._store.rewriting(place, data))
            if not guard.is_good_now(place, place + len(data)):
                return "what was written is damaged again when it is read", False
            place += len(data)
        return "", False

    async def _fetch(self, start: int, end: int) -> tuple[bytes, bool]:
        """Verified records from ``start`` on; nothing, and whether that is because all who could be asked have none."""
        has_asked = has_failed = False
        for source in tuple(self._sources()):
            if not source.has_range(end):
                continue
            has_asked = True
            try:
                data = await source.fetch(start, end)
            except OSError as error:
                log.info("a replica did not give a range", extra={"offset": start, "reason": str(error)})
                has_failed = True
                continue
            if data and self._store.guard.is_whole(data, start):
                return data, False
        return b"", has_asked and not has_failed
