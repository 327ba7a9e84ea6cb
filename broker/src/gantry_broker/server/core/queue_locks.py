"""Locks of queues for ordered consumption: one client of a group holds a queue, for a minute unless it renews the lock.

Invariant: at no time do two clients of a group rely on a lock of the same queue. A client relies on a lock for at most
`LOCK_LEASE_MS` (Java's and ours for half of it, renewing every 20 s), so the danger is a lock that a client relies on
and that this broker does not know:

- **A promotion, or a start after a crash.** Locks are not replicated: to be safe every lock would have to wait for a
  slave, and a table that lags would give a queue to a previous holder. So a new master does not know the holders, and
  locks nothing for `LOCK_LEASE_MS` (`forget_holders`). It answers with an error, not with "none of them": holders then
  continue until their locks end, and no other client holds their queues. Ordered groups pause for up to a minute,
  counted from the promotion or the start; other groups are not affected. The alternative, first come first served, is
  what RocketMQ does: two consumers then hold one queue for up to half a minute after each failover.
- **A clean stop** saves the locks, and the next start honours them as if they were renewed then: holders continue at
  once.
- **A master that was replaced** and does not know it must not renew locks for ever. It locks only while it is sure of
  its role, that is while it could acknowledge a message. It learns of its replacement within seconds, and a client
  relies on its last lock for half of `LOCK_LEASE_MS`: both fit into the time that the new master waits.

A log without any message in its first epoch belongs to a new shard: no client can hold a lock, and none has to wait.
"""

from dataclasses import dataclass
from typing import Final, final

import msgspec

from gantry_broker.ports import Clock
from gantry_wire.commands.clients import Document, MessageQueue

LOCK_LEASE_MS: Final = 60_000
"""How long a lock is valid without a renewal."""


@dataclass(slots=True)
class QueueLock:
    """The client that holds a queue, and the time of its last renewal."""

    client_id: str
    renewed_at_ms: int
    """Monotonic time of the last renewal."""


class HeldQueue(Document):
    """A lock as it is stored in the file."""

    group: str
    client_id: str
    queue: MessageQueue


class LockDocument(Document):
    """The content of queueLocks.json: the holders of queues at the last clean stop."""

    held: list[HeldQueue] = msgspec.field(default_factory=list)


@final
class QueueLocks:
    """The locks of all groups. Owned by the event loop; times are those of the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, QueueLock]] = {}
        self._locking_paused_until_ms = 0

    def __repr__(self) -> str:
        pause = f" lock_pause_ms={self.lock_pause_ms}" if self.lock_pause_ms else ""
        return f"<QueueLocks groups={len(self._groups)}{pause}>"

    @property
    def lock_pause_ms(self) -> int:
        """How long no queue is locked yet, because clients may hold locks that this broker does not know."""
        return max(0, self._locking_paused_until_ms - self._clock.monotonic_ms())

    def forget_holders(self) -> None:
        """Lock nothing until every lock of an earlier master, or of an earlier process, has ended."""
        self._groups.clear()
        # A client relies on a lock from its request until LOCK_LEASE_MS later; one millisecond after that is safe.
        self._locking_paused_until_ms = self._clock.monotonic_ms() + LOCK_LEASE_MS + 1

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Lock the queues that are free, expired, or already held by the client; return those that it holds now.

        Must not be called while `lock_pause_ms` is positive: clients take "none" for "held by others".
        """
        assert not self.lock_pause_ms, "callers refuse while holders may be unknown"
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
        """Whether a lock of the group is live. Then a message resent to its retry topic goes to the dead letters."""
        oldest_ms = self._clock.monotonic_ms() - LOCK_LEASE_MS
        return any(lock.renewed_at_ms >= oldest_ms for lock in self._groups.get(group, {}).values())

    def expire(self) -> None:
        """Remove locks that were not renewed in time."""
        oldest_ms = self._clock.monotonic_ms() - LOCK_LEASE_MS
        for group in list(self._groups):
            locks = self._groups[group]
            for queue in [queue for queue, lock in locks.items() if lock.renewed_at_ms < oldest_ms]:
                del locks[queue]
            if not locks:
                del self._groups[group]

    # ------- saving and loading

    def document(self) -> LockDocument:
        """Return the present holders, as they are stored at a clean stop."""
        self.expire()
        held = [
            HeldQueue(group=group, client_id=lock.client_id, queue=queue)
            for group, locks in self._groups.items()
            for queue, lock in locks.items()
        ]
        return LockDocument(held=held)

    def load(self, document: LockDocument) -> None:
        """Load stored locks as if they had been renewed just now: the duration of the stop is unknown."""
        now_ms = self._clock.monotonic_ms()
        for one in document.held:
            self._groups.setdefault(one.group, {})[one.queue] = QueueLock(one.client_id, now_ms)
