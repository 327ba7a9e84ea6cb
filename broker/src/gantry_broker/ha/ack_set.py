"""How far which slave is, and how far enough of them are.

    slave a   received ----------------------| flushed -------------|
    slave b   received ------|               flushed ---|
                             `-- with one ack needed, a's counts; with two, b's

Slaves are counted by identity, never by connection: a peer that connects twice, or claims another's name, is one voice
or none. Who is gone keeps nothing: an ack is a promise of somebody who is here.

Two kinds of acks prove nothing, because an election would not see them. Those of slaves that are never asked for a
promise; and those that end before the master's epoch begins: such a slave's log still ends in an older epoch, and would
lose against another one's of an epoch in between, though that lacks what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, final


@dataclass(slots=True)
class SlaveProgress:
    """One connected slave."""

    identity: str
    broker_id: int
    received: int = -1
    flushed: int = -1
    acked_at: float = 0.0
    """When it last said anything, on the loop's clock."""

    def level(self, *, is_flushed_wanted: bool) -> int:
        """How far it is, in the sense that counts."""
        return min(self.received, self.flushed) if is_flushed_wanted else self.received


@final
class AckSet:
    """Owned by the loop. Positions of one slave never go back; the set's do, when somebody leaves."""

    def __init__(self, *, acks_needed: int, is_flushed_wanted: bool) -> None:
        self.acks_needed: Final = acks_needed
        self.is_flushed_wanted: Final = is_flushed_wanted
        self._slaves: dict[str, SlaveProgress] = {}
        self._electable: frozenset[int] = frozenset()
        self._epoch_start = 0

    def begin_epoch(self, start: int, electable: Collection[int]) -> None:
        """From now on count for an epoch that begins at ``start``. With nobody electable there is no election."""
        self._epoch_start, self._electable = start, frozenset(electable)

    def __len__(self) -> int:
        return len(self._slaves)

    def __iter__(self) -> Iterator[SlaveProgress]:
        return iter(tuple(self._slaves.values()))

    def join(self, identity: str, broker_id: int, now: float) -> SlaveProgress | None:
        """Take somebody in. None if that identity, or that number, is here already."""
        if any(one.identity == identity or one.broker_id == broker_id for one in self._slaves.values()):
            return None
        slave = self._slaves[identity] = SlaveProgress(identity, broker_id, acked_at=now)
        return slave

    def leave(self, slave: SlaveProgress) -> None:
        """It is gone, and so is its voice."""
        if self._slaves.get(slave.identity) is slave:
            del self._slaves[slave.identity]

    def acked(self) -> int:
        """Up to where as many slaves as are needed have the log; -1 if too few of them prove anything."""
        levels = sorted((one.level(is_flushed_wanted=self.is_flushed_wanted) for one in self._voices()), reverse=True)
        end = levels[self.acks_needed - 1] if 0 < self.acks_needed <= len(levels) else -1
        return end if end >= self._epoch_start else -1

    def _voices(self) -> Iterator[SlaveProgress]:
        """Who counts."""
        return (one for one in self._slaves.values() if not self._electable or one.broker_id in self._electable)

    def has_enough(self, wrote: int, gap_bytes_max: int) -> bool:
        """Whether enough slaves are here and near: others are copied to, but nobody need wait for them."""
        near = sum(wrote - slave.received <= gap_bytes_max for slave in self._voices() if slave.received >= 0)
        return near >= self.acks_needed
