"""When administrators freed queues that are consumed in order by pop: earlier receipts have no effect any more.

The receipt of a queue whose last pop is not known may be from before a reset, or from before its topic or group was
deleted. Then it must not ack a message that its pop has not returned. So these times are kept:

    receipt with a pop time at or before that    no effect
    a later one                                  acks the message at which the next pop starts
    a time that was dropped                      the latest of them counts for all queues

They are a part of the document of committed offsets, and so in its file and on slaves with the offset that was set: a
change that survives a crash or a failover makes the same receipts void there. Times of several members are joined, and
the later one counts: a receipt that is void without need costs only a second delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

SEPARATOR: Final = "@"
"""Separates topic, group and queue in scopes."""

KEPT_MS: Final = 3 * 24 * 3600 * 1000
"""How long a time is kept: the limit of an invisible time. Older receipts have no effect then."""

TIMES_MAX: Final = 10_000
"""The limit of these times, some hundred bytes each. With more, the older half is dropped."""

_ANY: Final = ""
"""The scope of the latest of the times that were dropped: it stands for all queues."""


@final
class FreedQueues:
    """The times at which queues were freed, by scope. Owned by the event loop."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called after each change that must be stored."""
        self._on_change: Final = on_change
        self._times: dict[str, int] = {}
        """In the time of pops, by topic@group@queue, topic@ or @group."""

    def __repr__(self) -> str:
        return f"<FreedQueues times={len(self._times)}>"

    def last_ms(self, key: str, queue_id: int) -> int:
        """Return when a queue of topic@group was freed last; 0 if that is not known."""
        topic, _, group = key.partition(SEPARATOR)
        scopes = (_ANY, f"{topic}{SEPARATOR}", f"{SEPARATOR}{group}", f"{key}{SEPARATOR}{queue_id}")
        return max(self._times.get(scope, 0) for scope in scopes)

    def record_queue(self, key: str, queue_id: int, at_ms: int) -> None:
        """Record that one queue of topic@group is freed."""
        self._record(f"{key}{SEPARATOR}{queue_id}", at_ms)

    def record_owner(self, topic: str | None, group: str | None, at_ms: int) -> None:
        """Record that all queues of a topic, or of a group, are freed; the other one is None."""
        self._record(f"{topic or ''}{SEPARATOR}{group or ''}", at_ms)

    def document(self, now_ms: int) -> dict[str, int]:
        """Return the times as they are stored, without those that have expired at the wall time ``now_ms``."""
        self._drop(now_ms - KEPT_MS)
        return dict(self._times)

    def join(self, times: Mapping[str, int]) -> None:
        """Add stored times, or those of a master; of two times for one scope the later one counts."""
        for scope, at_ms in times.items():
            self._times[scope] = max(at_ms, self._times.get(scope, at_ms))
        self._limit()

    def _record(self, scope: str, at_ms: int) -> None:
        self._times[scope] = at_ms
        self._limit()
        self._on_change()

    def _limit(self) -> None:
        if len(self._times) > TIMES_MAX:
            self._drop(sorted(self._times.values())[len(self._times) - TIMES_MAX // 2 - 1])

    def _drop(self, until_ms: int) -> None:
        """Drop the times up to ``until_ms``. The latest of them counts for all queues from now on."""
        dropped = [scope for scope, at_ms in self._times.items() if at_ms <= until_ms]
        if dropped:
            self._times[_ANY] = max(self._times.pop(scope) for scope in dropped)
