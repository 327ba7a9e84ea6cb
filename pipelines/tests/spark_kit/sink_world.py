"""Brokers as a sink's driver uses them, in memory: a queue of markers, half messages, and a driver that may die.

    world = World()
    with pytest.raises(Died):
        await attempt(world, life=Life(3)).commit(halves)      # it dies before its third call
    await attempt(world).commit(world.store(rows))          # the work of its successor
    assert world.delivered == rows

This module decides nothing. A half message ends once, as in a broker: a repeated request for it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, final

from pyspark_rocketmq.errors import BatchTorn
from pyspark_rocketmq.sink.batch_commit import BatchCommit
from pyspark_rocketmq.sink.batch_decider import BatchDecider
from pyspark_rocketmq.sink.half_message_list import HalfMessageList, HalfMessageRef

QUERY: Final = "query-1"
TOPIC: Final = "T"
BROKER: Final = "broker-a"


class Died(BaseException):
    """The driver's process has died. It is not an Exception, so that no handler catches it."""


class HalfState(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"


@final
@dataclass
class World:
    """The state of the brokers, which outlives every driver."""

    markers: list[bytes] = field(default_factory=list)
    first: int = 0
    """Markers before this one have expired."""
    hidden: int = 0
    """So many of the last markers are not visible until another one is stored, as after a crash."""
    states: dict[int, HalfState] = field(default_factory=dict)
    rows: dict[int, str] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)

    def store(self, rows: Sequence[str]) -> HalfMessageList:
        """Store rows as half messages, as a task does."""
        places = []
        for row in rows:
            number = len(self.states)
            self.states[number], self.rows[number] = HalfState.OPEN, row
            places.append(HalfMessageRef(TOPIC, BROKER, number, number * 100))
        return HalfMessageList(places)

    def end(self, number: int, state: HalfState) -> bool:
        """End a half message once, as a broker does, and return whether it is in that state now."""
        if self.states[number] is HalfState.OPEN:
            self.states[number] = state
            if state is HalfState.COMMITTED:
                self.delivered.append(self.rows[number])
        return self.states[number] is state

    @property
    def open_rows(self) -> list[str]:
        return [self.rows[number] for number, state in self.states.items() if state is HalfState.OPEN]


@final
class Life:
    """The life of a driver, counted in calls to the brokers.

    It ends before the n-th call is executed, or before it is answered.
    """

    def __init__(self, dies_at: int | None = None, *, is_executed: bool = False) -> None:
        self._dies_at: Final = dies_at
        self._is_executed: Final = is_executed
        self.calls = 0

    def begin_call(self) -> None:
        self.calls += 1
        if self.calls == self._dies_at and not self._is_executed:
            raise Died

    def end_call(self) -> None:
        if self.calls == self._dies_at:
            raise Died


@final
class WorldQueue:
    """A `MarkerQueue` on a world."""

    def __init__(self, world: World, life: Life) -> None:
        self._world: Final = world
        self._life: Final = life

    async def bounds(self) -> tuple[int, int]:
        self._life.begin_call()
        bounds = self._world.first, len(self._world.markers) - self._world.hidden
        self._life.end_call()
        return bounds

    async def read(self, begin: int, end: int) -> dict[int, bytes]:
        self._life.begin_call()
        world = self._world
        assert end <= len(world.markers) - world.hidden, "a hidden marker is read"
        found = {offset: world.markers[offset] for offset in range(max(begin, world.first), end)}
        self._life.end_call()
        return found

    async def append(self, body: bytes, keys: tuple[str, ...]) -> int:
        self._life.begin_call()
        self._world.markers.append(body)
        self._world.hidden = 0
        self._life.end_call()
        return len(self._world.markers) - 1


@final
class WorldTransactionEnder:
    """A `TransactionEnder` on a world."""

    def __init__(self, world: World, life: Life) -> None:
        self._world: Final = world
        self._life: Final = life

    async def commit(self, halves: HalfMessageList) -> None:
        gone = [place for place in halves if not self._end(place, HalfState.COMMITTED)]
        if gone:
            raise BatchTorn(f"{len(gone)} of {len(halves)}")

    async def roll_back(self, halves: HalfMessageList) -> int:
        return sum(self._end(place, HalfState.ROLLED_BACK) for place in halves)

    def _end(self, place: HalfMessageRef, state: HalfState) -> bool:
        self._life.begin_call()
        is_in_state = self._world.end(place.half_offset, state)
        self._life.end_call()
        return is_in_state


def attempt(
    world: World, *, batch: int = 0, query: str = QUERY, run: str = "run-1", life: Life | None = None
) -> BatchCommit:
    """Return a driver with a batch to commit."""
    life = life or Life()
    return BatchCommit(
        BatchDecider(WorldQueue(world, life), query, batch, run), WorldTransactionEnder(world, life), run=run
    )
