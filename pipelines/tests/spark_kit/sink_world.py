"""Brokers as a sink's driver sees them, in memory: a queue of markers, half messages, and a driver that may die.

    world = World()
    with pytest.raises(Died):
        await attempt(world, life=Life(3)).commit(halves)      # its third call is never made, or never answered
    await attempt(world).commit(world.store(rows))          # what its successor does
    assert world.delivered == rows

Nothing here decides anything: what a half message is asked for twice is written down, and the test judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, final

from pyspark_rocketmq.errors import BatchTorn
from pyspark_rocketmq.sink.committing import BatchCommit
from pyspark_rocketmq.sink.deciding import Decisions
from pyspark_rocketmq.sink.halves import HalfPlace, Halves

QUERY: Final = "query-1"
TOPIC: Final = "T"
BROKER: Final = "broker-a"


class Died(BaseException):
    """The driver's process is gone. No Exception, so that nothing handles it."""


class HalfState(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"


@final
@dataclass
class World:
    """What brokers have, which outlives every driver."""

    markers: list[bytes] = field(default_factory=list)
    first: int = 0
    """Markers before this one have expired."""
    hidden: int = 0
    """So many of the last markers are not shown until another one is stored, as after a crash."""
    states: dict[int, HalfState] = field(default_factory=dict)
    rows: dict[int, str] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)

    def store(self, rows: Sequence[str]) -> Halves:
        """A task stores these as half messages."""
        places = []
        for row in rows:
            number = len(self.states)
            self.states[number], self.rows[number] = HalfState.OPEN, row
            places.append(HalfPlace(TOPIC, BROKER, number, number * 100))
        return Halves(places)

    def end(self, number: int, state: HalfState) -> bool:
        """As a broker does: once; whether the half message is in that state now."""
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
    """A driver's, counted in calls to the brokers. It ends before the n-th is carried out, or before it is answered."""

    def __init__(self, dies_at: int | None = None, *, is_carried_out: bool = False) -> None:
        self._dies_at: Final = dies_at
        self._is_carried_out: Final = is_carried_out
        self.calls = 0

    def begins(self) -> None:
        self.calls += 1
        if self.calls == self._dies_at and not self._is_carried_out:
            raise Died

    def ends(self) -> None:
        if self.calls == self._dies_at:
            raise Died


@final
class WorldQueue:
    """`MarkerQueue` on a world."""

    def __init__(self, world: World, life: Life) -> None:
        self._world: Final = world
        self._life: Final = life

    async def bounds(self) -> tuple[int, int]:
        self._life.begins()
        return self._world.first, len(self._world.markers) - self._world.hidden

    async def read(self, begin: int, end: int) -> dict[int, bytes]:
        self._life.begins()
        world = self._world
        assert end <= len(world.markers) - world.hidden, "nobody reads what is not shown"
        return {offset: world.markers[offset] for offset in range(max(begin, world.first), end)}

    async def append(self, body: bytes, keys: tuple[str, ...]) -> int:
        self._life.begins()
        self._world.markers.append(body)
        self._world.hidden = 0
        self._life.ends()
        return len(self._world.markers) - 1


@final
class WorldEnds:
    """`Ends` on a world."""

    def __init__(self, world: World, life: Life) -> None:
        self._world: Final = world
        self._life: Final = life

    async def commit(self, halves: Halves) -> None:
        gone = [place for place in halves if not self._end(place, HalfState.COMMITTED)]
        if gone:
            raise BatchTorn(f"{len(gone)} of {len(halves)}")

    async def roll_back(self, halves: Halves) -> int:
        return sum(self._end(place, HalfState.ROLLED_BACK) for place in halves)

    def _end(self, place: HalfPlace, state: HalfState) -> bool:
        self._life.begins()
        is_so = self._world.end(place.half_offset, state)
        self._life.ends()
        return is_so


def attempt(
    world: World, *, batch: int = 0, query: str = QUERY, run: str = "run-1", life: Life | None = None
) -> BatchCommit:
    """A driver with a batch to commit."""
    life = life or Life()
    return BatchCommit(Decisions(WorldQueue(world, life), query, batch, run), WorldEnds(world, life), run=run)
