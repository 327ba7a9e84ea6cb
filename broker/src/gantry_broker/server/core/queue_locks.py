"""Locks of queues for ordered consumption: one client of a group at a time, for a minute unless renewed.

Invariant: no two clients may both have reason to believe that a queue is theirs. A client believes a grant for at most
`LOCK_LEASE_MS` (Java's and ours for half of it, renewing every 20 s), so the danger is a grant that a client believes
and this broker does not know:

- **A promotion, or a start after a crash.** Locks are not replicated: to be safe every grant would have to wait for a
  slave, and a table that lags grants a queue to its last holder but one. So a new master does not know who holds what,
  and for one lease grants nothing (`forget_holders`). It answers with an error, not with "none of them": holders then
  continue until their belief ends, and no other client holds their queues. Ordered groups rest for up to a minute,
  counted from the promotion; others notice nothing. The alternative, first come first served, is what RocketMQ does:
  two consumers then hold one queue for up to half a minute after each failover.
- **A clean stop** writes the locks down, and the next start believes them for one more lease: holders continue at once.
- **A master that was replaced** and does not know it must not renew grants for ever. It grants only while it is sure of
  its role, that is while it could acknowledge a message. It finds out within seconds, and its last grant is believed
  for half a lease: both fit into the lease that the new master waits.

A log that never held a message, in its first epoch, is a new group: no client can hold a lock, and none has to wait.
"""

from dataclasses import dataclass
from typing import Final, final

import msgspec

from gantry_broker.ports import Clock
from gantry_wire.commands.clients import Document, MessageQueue

LOCK_LEASE_MS: Final = 60_000


@dataclass(slots=True)
class QueueLock:
    """The client that holds a queue, and when it last renewed that."""

    client_id: str
    renewed_at_ms: int


class HeldQueue(Document):
    """One lock in the file."""

    group: str
    client_id: str
    queue: MessageQueue


class LockDocument(Document):
    """queueLocks.json: who held what at the last clean stop."""

    held: list[HeldQueue] = msgspec.field(default_factory=list)


@final
class QueueLocks:
    """All locks by group. Owned by the event loop; leases run on the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, QueueLock]] = {}
        self._rests_until_ms = 0

    def __repr__(self) -> str:
        rest = f" rests_ms={self.rest_ms}" if self.rest_ms else ""
        return f"<QueueLocks groups={len(self._groups)}{rest}>"

    @property
    def rest_ms(self) -> int:
        """How long no lock is granted yet, since clients may hold locks that this broker does not know."""
        return max(0, self._rests_until_ms - self._clock.monotonic_ms())

    def forget_holders(self) -> None:
        """Grant nothing until every grant of an earlier master has ended."""
        self._groups.clear()
        # A client's belief begins when it asks, and ends exactly one lease later: one more millisecond is free again.
        self._rests_until_ms = self._clock.monotonic_ms() + LOCK_LEASE_MS + 1

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Lock what is free, expired, or held by the same client already; returns what it holds now.

        Not to be asked while `rest_ms` runs: "none" would be taken for "held by others".
        """
        assert not self.rest_ms, "callers refuse while holders may be unknown"
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
        """Forget locks that were not renewed."""
        oldest_ms = self._clock.monotonic_ms() - LOCK_LEASE_MS
        for group in list(self._groups):
            locks = self._groups[group]
            for queue in [queue for queue, lock in locks.items() if lock.renewed_at_ms < oldest_ms]:
                del locks[queue]
            if not locks:
                del self._groups[group]

    # ------- over a clean stop

    def document(self) -> LockDocument:
        """Who holds what now."""
        self.expire()
        held = [
            HeldQueue(group=group, client_id=lock.client_id, queue=queue)
            for group, locks in self._groups.items()
            for queue, lock in locks.items()
        ]
        return LockDocument(held=held)

    def load(self, document: LockDocument) -> None:
        """Believe them as if they had been renewed just now: how long the stop took is not known."""
        now_ms = self._clock.monotonic_ms()
        for one in document.held:
            self._groups.setdefault(one.group, {})[one.queue] = QueueLock(one.client_id, now_ms)
