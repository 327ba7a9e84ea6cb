"""Locks of queues for ordered consumption: one client of a group at a time, for a minute unless renewed."""

from dataclasses import dataclass
from typing import final

from gantry_broker.ports import Clock
from gantry_wire.commands.clients import MessageQueue

LOCK_LEASE_MS = 60_000


@dataclass(slots=True)
class QueueLock:
    """Who holds a queue, and since when it was last renewed."""

    client_id: str
    renewed_at_ms: int


@final
class QueueLocks:
    """All locks by group. Owned by the event loop; leases run on the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, QueueLock]] = {}

    def __repr__(self) -> str:
        return f"<QueueLocks groups={len(self._groups)}>"

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Lock what is free, expired, or held by the same client already; returns what it holds now."""
        now_ms = self._clock.monotonic_ms()
        locks = self._groups.setdefault(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or now_ms - lock.renewed_at_ms > LOCK_LEASE_MS:
                locks[queue] = QueueLock(client_id, now_ms)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            self._groups.pop(group, None)

    def is_held(self, group: str) -> bool:
        """Whether any lock of the group is live: then its failed messages are not put off, but given up."""
        oldest_ms = self._clock.monotonic_ms() - LOCK_LEASE_MS
        return any(lock.renewed_at_ms >= oldest_ms for lock in self._groups.get(group, {}).values())

    def expire(self) -> None:
        """Forget locks that nobody renewed."""
        oldest_ms = self._clock.monotonic_ms() - LOCK_LEASE_MS
        for group in list(self._groups):
            locks = self._groups[group]
            for queue in [queue for queue, lock in locks.items() if lock.renewed_at_ms < oldest_ms]:
                del locks[queue]
            if not locks:
                del self._groups[group]
