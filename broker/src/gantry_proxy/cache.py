"""A bounded cache of answers of servers: a stale answer is used while it is refreshed, equal questions share a task.

    absent                              -> every caller waits for one load
    younger than `refresh_ms`           -> returned
    older                               -> returned, and one load begins; if it fails, the old answer stays
    passing, older than `MISSING_MS`    -> the same
    older than `age_ms_max`             -> as if it were absent; without this limit an old answer is better than none
    not used for `EXPIRE_MS`            -> forgotten
    more than `entries_max`             -> the entry that was not used for the longest time is forgotten

So a name server or broker that fails for a while does not stop clients whose routes are known. Names that do not exist
have a table of their own: a client that asks for many of them cannot displace the answers that clients use.
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
V = TypeVar("V")
MISSING_MS: Final = 1_000
"""How long the answer that something does not exist is used: it may be created at any moment. A passing state is asked
for again after this time, too."""
REFRESH_MS: Final = 20_000
"""The age from which an answer is refreshed; RocketMQ's proxy has the same."""
EXPIRE_MS: Final = 300_000
"""How long an answer that no client uses is kept."""
ENTRIES_MAX: Final = 20_000
"""The limit of entries; RocketMQ's proxy has the same."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """How many answers are kept, and how old they may be."""

    entries_max: int = ENTRIES_MAX
    """The limit of answers, and of names that do not exist."""

    refresh_ms: int = REFRESH_MS
    """The age from which an answer is refreshed while it is still used."""

    age_ms_max: int | None = None
    """The age from which an answer is not used any more; None if it is used until a newer one comes."""


DEFAULT_LIMITS: Final = CacheLimits()


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    loaded_at_ms: int
    """When the question was asked."""

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
        limits: CacheLimits = DEFAULT_LIMITS,
        is_passing: Callable[[T], bool] = lambda _: False,
    ) -> None:
        """``load`` returns None for what does not exist, and raises ClientError if no server answers.

        ``is_passing`` returns whether an answer describes a state that ends soon, such as a failover.
        """
        self._what: Final = what
        self._load: Final = load
        self._now_ms: Final = now_ms
        self._limits: Final = limits
        self._is_passing: Final = is_passing
        self._entries: Final[OrderedDict[str, _Entry[T]]] = OrderedDict()
        """The last used is the last one."""
        self._missing: Final[OrderedDict[str, int]] = OrderedDict()
        """When names that do not exist were asked for; the last asked for is the last one."""
        self._loading: Final[dict[str, asyncio.Task[T | None]]] = {}

    def __repr__(self) -> str:
        return f"<AnswerCache {self._what} entries={len(self._entries)} loading={len(self._loading)}>"

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, name: str) -> T | None:
        """Return the last answer for ``name``, also an outdated one; None without one."""
        entry = self._entries.get(name)
        return None if entry is None else entry.value

    @property
    def load_count(self) -> int:
        """How many loads are in progress."""
        return len(self._loading)

    def asks(self, name: str) -> bool:
        """Return whether `get` would ask a server for a name that it has no answer for, not even an old one."""
        return name not in self._entries and name not in self._loading and not self._is_missing(name)

    async def get(self, name: str) -> T | None:
        """Return the answer for ``name``; None if it does not exist. Raises ClientError if no server answers."""
        fresh = self.fresh(name)
        if fresh is not None:
            return fresh
        entry = self._entries.get(name)
        if entry is None:
            return None if self._is_missing(name) else await asyncio.shield(self._begin(name))
        age_ms, age_ms_max = entry.used_at_ms - entry.loaded_at_ms, self._limits.age_ms_max
        if age_ms_max is not None and age_ms >= age_ms_max:
            return await asyncio.shield(self._begin(name))
        self._begin(name)
        return entry.value

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
            return await asyncio.shield(self._begin(name))
        except ClientError:
            if name in self._entries or name in self._missing:
                return self.peek(name)
            raise

    def forget_unused(self) -> None:
        """Forget the answers that were not used for long. Called periodically."""
        now_ms = self._now_ms()
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if now_ms - entry.used_at_ms < EXPIRE_MS:
                break
            del self._entries[name]
        while self._missing:
            name, asked_at_ms = next(iter(self._missing.items()))
            if now_ms - asked_at_ms < MISSING_MS:
                break
            del self._missing[name]

    async def close(self) -> None:
        """Cancel the loads in progress."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_missing(self, name: str) -> bool:
        asked_at_ms = self._missing.get(name)
        return asked_at_ms is not None and self._now_ms() - asked_at_ms < MISSING_MS

    def _begin(self, name: str) -> asyncio.Task[T | None]:
        """Return the task that loads an answer; a caller that awaits it shields it, since others may, too."""
        task = self._loading.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load_once(name), name=f"gantry-proxy-{self._what}")
            self._loading[name] = task
            task.add_done_callback(lambda done: self._on_loaded(name, done))
        return task

    async def _load_once(self, name: str) -> T | None:
        asked_at_ms = self._now_ms()
        value = await self._load(name)
        if value is None:
            self._entries.pop(name, None)
            self._missing[name] = asked_at_ms
            _move_last(self._missing, name, self._limits.entries_max)
        else:
            self._missing.pop(name, None)
            refresh_at_ms = asked_at_ms + (MISSING_MS if self._is_passing(value) else self._limits.refresh_ms)
            if self._limits.age_ms_max is not None:
                refresh_at_ms = min(refresh_at_ms, asked_at_ms + self._limits.age_ms_max)
            self._entries[name] = _Entry(value, asked_at_ms, refresh_at_ms, self._now_ms())
            _move_last(self._entries, name, self._limits.entries_max)
        return value

    def _on_loaded(self, name: str, task: asyncio.Task[T | None]) -> None:
        self._loading.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("failed to load answer of server", extra={"kind": self._what, "key": name, "reason": str(error)})


def _move_last(table: OrderedDict[str, V], name: str, entries_max: int) -> None:
    """Make an entry the last one, and forget the first ones beyond the limit."""
    table.move_to_end(name)
    while len(table) > entries_max:
        table.popitem(last=False)
