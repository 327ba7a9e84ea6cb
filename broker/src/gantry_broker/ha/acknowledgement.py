"""Decide what a master may acknowledge: how far its slaves are, and whether another member may be the master.

    slave a   received ----------------------| flushed -------------|
    slave b   received ------|               flushed ---|
                             `-- with one ack needed, a's counts; with two, b's

Slaves are counted by identity, not by connection: a peer that connects twice, or claims another's name, counts once or
not at all. RocketMQ's slaves report no identity: each of their connections counts. A slave that has disconnected does
not count: that it still has what it acknowledged is known only while it is connected.

Two kinds of acks are ignored, because an election does not consider them: those of slaves that are not electable, if
the term names electable slaves, and those that end before the master's epoch begins. In the second case the slave's log
still ends in an older epoch, and would lose against a log with an epoch in between, although that log lacks what was
acknowledged.

Where sends do not wait for slaves, grants decide: short permissions of slaves to acknowledge, on a clock that never
stops.

    a master with electable slaves answers 0 only while one of two conditions holds:
    1  it has a short grant from every electable slave, renewed with its acks
    2  it has the shard's Lease, as its sidecar reports it

Slaves give grants only where no ack is needed. A master that needs acks, and has degraded (with ``haDegrade=ASYNC`` it
continues without slaves if too few are in sync), can fulfil only the second condition. A master without electable
slaves needs neither.

A promotion ends both first: a slave that has promised a newer epoch grants nothing any more, and the Lease moves to
another member. So neither an unreachable API server nor a dead slave nor a dead sidecar alone stops a master. A grant
counts from when the master *sent* the heartbeat that it answers, which is before the slave began to keep it: the master
stops first, however long the network takes. The clock must run while the machine sleeps (``CLOCK_BOOTTIME``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, final

from gantry_broker.ha.frames import StreamBroken
from gantry_broker.ha.settings import AckLevel, Degrade, ReplicationSettings
from gantry_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

MARGIN_SHARE: Final = 0.1
"""Share of a grant's duration that is not used, because two clocks do not run at the same speed."""


@dataclass(slots=True)
class SlaveProgress:
    """How much of the log one connected slave has acknowledged."""

    identity: str
    """UUID of the slave's store; for a slave of RocketMQ's, the address and port of its connection."""

    broker_id: int
    received: int = -1
    """End of what the slave has received; -1 before its first ack."""

    flushed: int = -1
    """End of what the slave has flushed to its disk; -1 before its first ack, and always for a slave of RocketMQ's."""

    acked_at: float = 0.0
    """When its last ack arrived, or before that when it joined, on the loop's clock."""

    def advance(self, received: int, flushed: int, sent: int, now: float) -> None:
        """Record the positions in an ack, for a log that was sent up to ``sent``.

        Raises ``StreamBroken`` for an impossible ack: of bytes that were never sent, of more flushed than received
        bytes, or lower than an earlier one.
        """
        if not flushed <= received <= sent:
            raise StreamBroken(
                f"invalid ack: flushed {flushed}, received {received}, sent {sent}; none may exceed the next one"
            )
        if received < self.received or flushed < self.flushed:
            before = f"received {self.received} and flushed {self.flushed}"
            raise StreamBroken(f"invalid ack: received {received} and flushed {flushed} after {before}")
        self.received, self.flushed, self.acked_at = received, flushed, now

    def is_in_sync(self, wrote: int, gap_bytes_max: int) -> bool:
        """Return whether the slave is close enough to a log that ends at ``wrote`` to be waited for.

        A slave that is farther behind still gets the log.
        """
        return self.received >= 0 and wrote - self.received <= gap_bytes_max

    def acked_position(self, *, is_flushed_wanted: bool) -> int:
        """Return the position up to which the slave's acks count: with ``is_flushed_wanted`` what is on its disk."""
        return min(self.received, self.flushed) if is_flushed_wanted else self.received


@final
class AckSet:
    """The progress of all connected slaves. Owned by the loop.

    The positions of one slave never move backwards; those of the set do when a slave disconnects. With
    ``is_flushed_wanted`` an ack counts only up to what the slave has flushed to its disk. Times are the loop's.
    """

    def __init__(self, *, acks_needed: int, is_flushed_wanted: bool) -> None:
        self.acks_needed: Final = acks_needed
        self.is_flushed_wanted: Final = is_flushed_wanted
        self._slaves: dict[str, SlaveProgress] = {}
        self._electable: frozenset[int] = frozenset()
        self._epoch_start = 0

    def begin_epoch(self, start: int, electable: Collection[int]) -> None:
        """Count acks of electable slaves, or of all if there are none, for an epoch that begins at ``start``."""
        self._epoch_start, self._electable = start, frozenset(electable)

    def __len__(self) -> int:
        return len(self._slaves)

    def __iter__(self) -> Iterator[SlaveProgress]:
        return iter(tuple(self._slaves.values()))

    def join(self, identity: str, broker_id: int, now: float) -> SlaveProgress | None:
        """Add a slave, or return None if that identity or that broker id is connected already."""
        if any(one.identity == identity or one.broker_id == broker_id for one in self._slaves.values()):
            return None
        slave = self._slaves[identity] = SlaveProgress(identity, broker_id, acked_at=now)
        return slave

    def leave(self, slave: SlaveProgress) -> None:
        """Remove a slave, and its acks with it."""
        if self._slaves.get(slave.identity) is slave:
            del self._slaves[slave.identity]

    def acked_offset(self) -> int:
        """Return the position up to which enough slaves have the log; -1 if too few acks prove anything."""
        levels = sorted(
            (one.acked_position(is_flushed_wanted=self.is_flushed_wanted) for one in self._counted_slaves()),
            reverse=True,
        )
        end = levels[self.acks_needed - 1] if 0 < self.acks_needed <= len(levels) else -1
        return end if end >= self._epoch_start else -1

    def _counted_slaves(self) -> Iterator[SlaveProgress]:
        """Yield the slaves whose acks count: the electable ones, or all if the term names none.

        Where flushed acks are wanted, a slave that reports no flushed position does not count, however much it has
        received: one of RocketMQ's never reports it.
        """
        return (
            one
            for one in self._slaves.values()
            if (not self._electable or one.broker_id in self._electable)
            and (one.flushed >= 0 or not self.is_flushed_wanted)
        )

    def has_enough(self, wrote: int, gap_bytes_max: int) -> bool:
        """Return whether enough of the slaves whose acks count are connected and in sync."""
        return sum(slave.is_in_sync(wrote, gap_bytes_max) for slave in self._counted_slaves()) >= self.acks_needed


@final
class Grants:
    """The permissions to acknowledge that a master holds. Times are milliseconds of its own boot-time clock."""

    def __init__(self, electable: Collection[str]) -> None:
        self.electable: Final = frozenset(electable)
        """The slaves that may be promoted, by broker id. Without any, no other member can become the master."""

        self._until_ms: dict[str, int] = {}
        self._lease_until_ms = -1

    def record_grant(self, broker_id: str, sent_ms: int, grant_ms: int) -> None:
        """Record that a slave has answered the heartbeat sent at ``sent_ms``. A grant of 0 ends an earlier one."""
        if grant_ms <= 0:
            self._until_ms.pop(broker_id, None)
            return
        until_ms = sent_ms + int(grant_ms * (1 - MARGIN_SHARE))
        self._until_ms[broker_id] = max(until_ms, self._until_ms.get(broker_id, -1))

    def record_lease(self, renewed_ms: int, duration_ms: int) -> None:
        """Record a renewal of the Lease that was requested at ``renewed_ms``; a duration of 0 ends it."""
        self._lease_until_ms = renewed_ms + int(duration_ms * (1 - MARGIN_SHARE)) if duration_ms > 0 else -1

    def may_acknowledge(self, now_ms: int) -> bool:
        """Return whether the master holds a grant of every electable slave, or the Lease, now.

        Always true without electable slaves. Check it just before each answer.
        """
        return now_ms < self.until_ms

    @property
    def until_ms(self) -> int:
        """Time until which the master may acknowledge."""
        if not self.electable:
            return 1 << 62
        by_slaves = min(self._until_ms.get(broker_id, -1) for broker_id in self.electable)
        return max(by_slaves, self._lease_until_ms)

    def slaves_without_grant(self, now_ms: int) -> list[str]:
        """Return the broker ids of electable slaves that have given no grant or whose grants have expired."""
        return sorted(broker_id for broker_id in self.electable if self._until_ms.get(broker_id, -1) <= now_ms)


@final
class AckPolicy:
    """Decides whether this master may acknowledge, and whether sends wait for slaves. Owned by the loop."""

    def __init__(self, settings: ReplicationSettings, store: MessageStore, clock_ms: Callable[[], int]) -> None:
        """Create a policy. ``clock_ms`` is the clock on which grants expire."""
        self.acks: Final = AckSet(
            acks_needed=settings.acks_needed, is_flushed_wanted=settings.ack_level is AckLevel.FLUSHED
        )
        self.grants = Grants(())
        """The permissions to acknowledge that slaves have given this master."""
        self.is_degraded = False
        """Whether sends skip the wait for slaves because too few slaves are in sync."""

        self.clock_ms: Final = clock_ms
        self._settings: Final = settings
        self._store: Final = store
        self._hide_new_messages()

    def __repr__(self) -> str:
        return f"<AckPolicy slaves={len(self.acks)} degraded={self.is_degraded}>"

    def begin(self, electable: Collection[int]) -> None:
        """Count acks and grants for the newest epoch of the log; ``electable`` are slaves that may be promoted."""
        self.grants = Grants([str(number) for number in electable])
        self.acks.begin_epoch(self._store.identity.epochs[-1].start, electable)

    def end(self) -> None:
        """End this broker's term as master: drop its grants, and hide new messages if unconfirmed ones are hidden."""
        self.is_degraded = False
        self.grants = Grants(())
        self._hide_new_messages()

    def _hide_new_messages(self) -> None:
        """With ``is_unconfirmed_hidden``, hide new messages until slaves or the next master confirm them."""
        if self._settings.is_unconfirmed_hidden:
            self._store.positions.set_acked(-1)

    @property
    def is_waiting_for_slaves(self) -> bool:
        """Whether sends wait for slaves now."""
        return self._settings.acks_needed > 0 and not self.is_degraded

    def may_acknowledge(self) -> bool:
        """Return whether this broker can exclude that another member is the master now.

        While sends wait for slaves, their acks prove it.
        """
        return self.is_waiting_for_slaves or self.grants.may_acknowledge(self.clock_ms())

    def has_enough(self) -> bool:
        """Return whether as many slaves as are needed are connected and in sync."""
        return self.acks.has_enough(self._store.log.wrote, self._settings.gap_bytes_max)

    def describe_missing_grants(self) -> str:
        """Return the reason why nothing may be acknowledged, for the status."""
        names = ", ".join(self.grants.slaves_without_grant(self.clock_ms()))
        return f"nothing is acknowledged: no grant from slaves {names}, and no Lease is held"

    def reevaluate(self) -> None:
        """Decide again whether sends wait for slaves, and report the slaves' progress to the store."""
        if not self._settings.acks_needed:
            self._store.positions.clear_acked()
            return
        is_degraded = self._settings.degrade is Degrade.ASYNC and not self.has_enough()
        if is_degraded != self.is_degraded:
            self.is_degraded = is_degraded
            what = "sends no longer wait for slaves" if is_degraded else "sends wait for slaves again"
            log.warning(what, extra={"slaves": len(self.acks), "wrote": self._store.log.wrote})
        if is_degraded:
            self._store.positions.clear_acked()
        else:
            self._store.positions.set_acked(self.acks.acked_offset())


@final
class GivenGrants:
    """How long the grants that a slave has given may still count, in milliseconds of its boot-time clock.

    A promotion waits for that time. A slave that was restarted does not know when its last process gave the last grant:
    it must assume that the last grant was given just before the restart. Therefore the duration that a master wants is
    on the slave's disk before the first grant is given.
    """

    def __init__(self) -> None:
        self._grant_ms = 0
        self._until_ms = -1

    def restore(self, grant_ms: int, now_ms: int) -> None:
        """Assume at the start that the previous process gave a grant of this duration just now."""
        self._grant_ms = grant_ms
        self.record_grant(now_ms)

    def set_grant_ms(self, grant_ms: int) -> None:
        """Set the duration of grants that the master wants from now on; 0 for none."""
        self._grant_ms = grant_ms

    def record_grant(self, now_ms: int) -> None:
        """Record that a grant is given now."""
        if self._grant_ms > 0:
            self._until_ms = max(self._until_ms, now_ms + self._grant_ms)

    def remaining_ms(self, now_ms: int) -> int:
        """Return for how many milliseconds a grant may still count."""
        return max(0, self._until_ms - now_ms)
