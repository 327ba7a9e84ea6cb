"""What a master may acknowledge: how far its slaves are, and whether another member may be the master.

    slave a   received ----------------------| flushed -------------|
    slave b   received ------|               flushed ---|
                             `-- with one ack needed, a's counts; with two, b's

Slaves are counted by identity, never by connection: a peer that connects twice, or claims another's name, is one voter
or none. A slave that is gone keeps nothing: an ack is a promise of a slave that is connected.

Two kinds of acks prove nothing, because an election would not see them. Those of slaves that are never asked for a
promise; and those that end before the master's epoch begins: such a slave's log still ends in an older epoch, and would
lose against another one's of an epoch in between, though that lacks what was acknowledged.

Where no slave's ack is needed, grants decide, on a clock that never stops:

    a master of an asynchronous group answers 0 only while it holds one of two keys:
    1  a short grant from every electable slave, renewed with its acks
    2  the shard's Lease, as its sidecar reports it

A promotion ends both first: one slave that has promised a newer epoch grants nothing any more, and the Lease goes to
another member. So neither an unreachable API server nor a dead slave nor a dead sidecar alone stops a master. A grant
counts from when the master *sent* the beat that it answers, which is before the slave began to keep it: the master
stops first, however long the network takes. The clock must go on while the machine sleeps (``CLOCK_BOOTTIME``).
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
"""Of a grant, given away for clocks that do not run alike."""


@dataclass(slots=True)
class SlaveProgress:
    """One connected slave."""

    identity: str
    broker_id: int
    received: int = -1
    flushed: int = -1
    acked_at: float = 0.0
    """When its last ack came, on the loop's clock."""

    def advance(self, received: int, flushed: int, sent: int, now: float) -> None:
        """Move to what an ack reports of a log that was sent up to ``sent``.

        Raises ``StreamBroken`` for an ack that cannot be: of bytes that were never sent, or behind an earlier one.
        """
        if not flushed <= received <= sent:
            raise StreamBroken(f"it has received {received} and flushed {flushed} of {sent} that were sent")
        if received < self.received or flushed < self.flushed:
            raise StreamBroken(f"its log goes back, from {self.received} to {received}")
        self.received, self.flushed, self.acked_at = received, flushed, now

    def is_near(self, wrote: int, gap_bytes_max: int) -> bool:
        """Whether it is in sync with a log that ends at ``wrote``: others are copied to, but not waited for."""
        return self.received >= 0 and wrote - self.received <= gap_bytes_max

    def level(self, *, is_flushed_wanted: bool) -> int:
        """Up to where its acks count."""
        return min(self.received, self.flushed) if is_flushed_wanted else self.received


@final
class AckSet:
    """How far the connected slaves are. Owned by the loop.

    Positions of one slave never go back; the set's do, when a slave leaves.
    """

    def __init__(self, *, acks_needed: int, is_flushed_wanted: bool) -> None:
        self.acks_needed: Final = acks_needed
        self.is_flushed_wanted: Final = is_flushed_wanted
        self._slaves: dict[str, SlaveProgress] = {}
        self._electable: frozenset[int] = frozenset()
        self._epoch_start = 0

    def begin_epoch(self, start: int, electable: Collection[int]) -> None:
        """Count for an epoch that begins at ``start`` from now on. Without electable slaves there is no election."""
        self._epoch_start, self._electable = start, frozenset(electable)

    def __len__(self) -> int:
        return len(self._slaves)

    def __iter__(self) -> Iterator[SlaveProgress]:
        return iter(tuple(self._slaves.values()))

    def join(self, identity: str, broker_id: int, now: float) -> SlaveProgress | None:
        """Add a slave. None if that identity, or that number, is connected already."""
        if any(one.identity == identity or one.broker_id == broker_id for one in self._slaves.values()):
            return None
        slave = self._slaves[identity] = SlaveProgress(identity, broker_id, acked_at=now)
        return slave

    def leave(self, slave: SlaveProgress) -> None:
        """Remove a slave, and its acks with it."""
        if self._slaves.get(slave.identity) is slave:
            del self._slaves[slave.identity]

    def acked(self) -> int:
        """Up to where as many slaves as are needed have the log; -1 if too few of them prove anything."""
        levels = sorted((one.level(is_flushed_wanted=self.is_flushed_wanted) for one in self._voices()), reverse=True)
        end = levels[self.acks_needed - 1] if 0 < self.acks_needed <= len(levels) else -1
        return end if end >= self._epoch_start else -1

    def _voices(self) -> Iterator[SlaveProgress]:
        """The slaves whose acks count."""
        return (one for one in self._slaves.values() if not self._electable or one.broker_id in self._electable)

    def has_enough(self, wrote: int, gap_bytes_max: int) -> bool:
        """Whether enough slaves are connected and near."""
        return sum(slave.is_near(wrote, gap_bytes_max) for slave in self._voices()) >= self.acks_needed


@final
class Grants:
    """What one master was granted, by whom, until when. All times are of its own boot-time clock, in milliseconds."""

    def __init__(self, electable: Collection[str]) -> None:
        self.electable: Final = frozenset(electable)
        """The slaves that may be promoted, by identity. Without any, no other member can become the master."""

        self._until_ms: dict[str, int] = {}
        self._lease_until_ms = -1

    def granted(self, identity: str, sent_ms: int, grant_ms: int) -> None:
        """A slave has answered the beat that was sent at ``sent_ms``. A grant of 0 takes back what it gave."""
        if grant_ms <= 0:
            self._until_ms.pop(identity, None)
            return
        until_ms = sent_ms + int(grant_ms * (1 - MARGIN_SHARE))
        self._until_ms[identity] = max(until_ms, self._until_ms.get(identity, -1))

    def leased(self, renewed_ms: int, duration_ms: int) -> None:
        """The Lease was renewed by a request that was sent at ``renewed_ms``; a duration of 0 gives it back."""
        self._lease_until_ms = renewed_ms + int(duration_ms * (1 - MARGIN_SHARE)) if duration_ms > 0 else -1

    def may_acknowledge(self, now_ms: int) -> bool:
        """Whether one of the keys is held right now. To be asked just before each answer."""
        return now_ms < self.until_ms

    @property
    def until_ms(self) -> int:
        """Up to when a key is held."""
        if not self.electable:
            return 1 << 62
        by_slaves = min(self._until_ms.get(identity, -1) for identity in self.electable)
        return max(by_slaves, self._lease_until_ms)

    def missing(self, now_ms: int) -> list[str]:
        """The slaves whose grants are over, for the status."""
        return sorted(identity for identity in self.electable if self._until_ms.get(identity, -1) <= now_ms)


@final
class AckPolicy:
    """Decides whether this master may acknowledge, and whether sends wait for slaves. Owned by the loop."""

    def __init__(self, settings: ReplicationSettings, store: MessageStore, clock_ms: Callable[[], int]) -> None:
        """``clock_ms`` is what grants are counted on."""
        self.acks: Final = AckSet(
            acks_needed=settings.acks_needed, is_flushed_wanted=settings.ack_level is AckLevel.FLUSHED
        )
        self.grants = Grants(())
        self.is_degraded = False
        """Whether sends do not wait for the slaves that they ought to wait for."""

        self.clock_ms: Final = clock_ms
        self._settings: Final = settings
        self._store: Final = store
        self._hide_new_messages()

    def __repr__(self) -> str:
        return f"<AckPolicy slaves={len(self.acks)} degraded={self.is_degraded}>"

    def begin(self, electable: Collection[int]) -> None:
        """Count acks and grants for the newest epoch of the log; ``electable`` are the slaves that may be promoted."""
        self.grants = Grants([str(number) for number in electable])
        self.acks.begin_epoch(self._store.identity.epochs[-1].start, electable)

    def end(self) -> None:
        """This broker is no master any more."""
        self.is_degraded = False
        self.grants = Grants(())
        self._hide_new_messages()

    def _hide_new_messages(self) -> None:
        """What is not visible yet waits for the next master, or for slaves."""
        if self._settings.is_tail_hidden:
            self._store.positions.wait_for_slaves(-1)

    @property
    def is_waited_for(self) -> bool:
        """Whether sends wait for slaves now."""
        return self._settings.acks_needed > 0 and not self.is_degraded

    def may_acknowledge(self) -> bool:
        """Whether no other member can be the master now, as far as this broker has to know that by itself."""
        return self.is_waited_for or self.grants.may_acknowledge(self.clock_ms())

    def has_enough(self) -> bool:
        """Whether as many slaves as are needed are connected, and close to the end of the log."""
        return self.acks.has_enough(self._store.log.wrote, self._settings.gap_bytes_max)

    def missing(self) -> str:
        """Why nothing may be acknowledged."""
        names = ", ".join(self.grants.missing(self.clock_ms()))
        return f"nothing is acknowledged: no grant from slaves {names}, and no Lease is held"

    def judge(self) -> None:
        """Decide anew whether sends wait for slaves, and report to the store how far the slaves are."""
        if not self._settings.acks_needed:
            self._store.positions.stop_waiting_for_slaves()
            return
        is_degraded = self._settings.degrade is Degrade.ASYNC and not self.has_enough()
        if is_degraded != self.is_degraded:
            self.is_degraded = is_degraded
            what = "sends no longer wait for slaves" if is_degraded else "sends wait for slaves again"
            log.warning(what, extra={"slaves": len(self.acks), "wrote": self._store.log.wrote})
        if is_degraded:
            self._store.positions.stop_waiting_for_slaves()
        else:
            self._store.positions.wait_for_slaves(self.acks.acked())


@final
class GivenGrants:
    """The other side: until when what a slave has granted may count, on its own boot-time clock, in milliseconds.

    A promotion waits for that. A slave that was started again does not know when its last process granted
    last: a moment ago, as far as it can tell. So how long a master wants its grants is on the slave's disk before the
    first of them is given.
    """

    def __init__(self) -> None:
        self._grant_ms = 0
        self._until_ms = -1

    def started(self, grant_ms: int, now_ms: int) -> None:
        """This process begins; the last one may have granted for so long until now."""
        self._grant_ms = grant_ms
        self.given(now_ms)

    def welcomed(self, grant_ms: int) -> None:
        """A master wants grants of so long from now on; 0 for none."""
        self._grant_ms = grant_ms

    def given(self, now_ms: int) -> None:
        """One is given, or just was."""
        if self._grant_ms > 0:
            self._until_ms = max(self._until_ms, now_ms + self._grant_ms)

    def rest_ms(self, now_ms: int) -> int:
        """For how much longer one may count."""
        return max(0, self._until_ms - now_ms)
