"""A bounded cache of answers of servers: a stale answer is used while it is refreshed, equal questions share a task.

    absent                              -> every caller waits for one load
    younger than `refresh_ms`           -> returned
    older                               -> returned, and one load begins; if it fails, the old answer stays
    passing, older than `MISSING_MS`    -> the same
    not used for `expire_ms`            -> forgotten
    more than `entries_max`             -> the entry that was not used for the longest time is forgotten

So a name server or broker that fails for a while does not stop clients whose routes are known.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, final

from gantry_client.errors import ClientError

log = logging.getLogger(__name__)

T = TypeVar("T")
MISSING_MS: Final = 1_000
"""How long the answer that something does not exist is used: it may be created at any moment. A passing state is asked
for again after this time, too."""
REFRESH_MS: Final = 20_000
"""The age from which an answer is refreshed; RocketMQ's proxy has the same."""
EXPIRE_MS: Final = 300_000
"""How long an answer that no client uses is kept."""
ENTRIES_MAX: Final = 20_000
"""The limit of entries; RocketMQ's proxy has the same."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T | None
    refresh_at_ms: int
    used_at_ms: int


@final
class AnswerCache(Generic[T]):
    """The answers of one kind, by a name. Owned by one event loop."""

    def __init__(
        self,
        what: str,
        load: Callable[[str], Awaitable[T | None]],
        now_ms: Callable[[], int],
        *,
        entries_max: int = ENTRIES_MAX,
        is_passing: Callable[[T], bool] = lambda _: False,
    ) -> None:
        """``load`` returns None for what does not exist, and raises ClientError if no server answers.

        ``is_passing`` returns whether an answer describes a state that ends soon, such as a failover.
        """
        self._what: Final = what
        self._load: Final = load
        self._now_ms: Final = now_ms
        self._entries_max: Final = entries_max
        self._is_passing: Final = is_passing
        self._entries: Final[OrderedDict[str, _Entry[T]]] = OrderedDict()
        self._loading: Final[dict[str, asyncio.Task[T | None]]] = {}

    def __repr__(self) -> str:
        return f"<AnswerCache {self._what} entries={len(self._entries)} loading={len(self._loading)}>"

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, name: str) -> T | None:
        """Return the answer for ``name``; None if it does not exist. Raises ClientError if no server answers."""
        fresh = self.fresh(name)
        if fresh is not None:
            return fresh
        entry = self._entries.get(name)
        if entry is None:
            return await self._begin(name)
        if entry.used_at_ms >= entry.refresh_at_ms:
            refreshed = self._begin(name)
            return await refreshed if entry.value is None else entry.value
        return None

    def fresh(self, name: str) -> T | None:
        """Return the answer for ``name`` if it exists and needs no refresh, else None."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        entry.used_at_ms = now_ms = self._now_ms()
        self._entries.move_to_end(name)
        return None if now_ms >= entry.refresh_at_ms else entry.value

    async def refresh(self, name: str) -> T | None:
        """Load the answer again, for a caller that found it outdated. If that fails, the old answer stays."""
        try:
            return await self._begin(name)
        except ClientError:
            entry = self._entries.get(name)
            if entry is None:
                raise
            return entry.value

    def forget_unused(self) -> None:
        """Forget the answers that were not used for long. Called periodically."""
        limit_ms = self._now_ms() - EXPIRE_MS
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.used_at_ms > limit_ms:
                return
            del self._entries[name]

    async def close(self) -> None:
        """Cancel the loads in progress."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str) -> "asyncio.Future[T | None]":
        task = self._loading.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load_once(name), name=f"gantry-proxy-{self._what}")
            self._loading[name] = task
            task.add_done_callback(lambda done: self._on_loaded(name, done))
        return asyncio.shield(task)

    async def _load_once(self, name: str) -> T | None:
        value = await self._load(name)
        now_ms = self._now_ms()
        is_short_lived = value is None or self._is_passing(value)
        self._entries[name] = _Entry(value, now_ms + (MISSING_MS if is_short_lived else REFRESH_MS), now_ms)
        self._entries.move_to_end(name)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        return value

    def _on_loaded(self, name: str, task: asyncio.Task[T | None]) -> None:
        self._loading.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("failed to load answer of server", extra={"kind": self._what, "key": name, "reason": str(error)})
