"""Brokers as a sink's driver uses them, in memory: a queue of markers, half messages, and a driver that may die.

    brokers = ModelBrokers()
    with pytest.raises(DriverDied):
        await make_driver(brokers, calls=CallCounter(3)).commit(halves)      # it dies before its third call
    await make_driver(brokers).commit(brokers.store(rows))                        # the work of its successor
    assert brokers.delivered == rows

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


class DriverDied(BaseException):
    """The driver's process has died. It is not an Exception, so that no handler catches it."""


class HalfState(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"


@final
@dataclass
class ModelBrokers:
    """The state of the brokers, which outlives every driver."""

    markers: list[bytes] = field(default_factory=list)
    first_marker: int = 0
    """Markers before this one have expired."""
    hidden_markers: int = 0
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
class CallCounter:
    """Counts the calls of one driver to the brokers, and ends the driver at one of them.

    The driver dies before call `dies_at_call` is executed or, with `is_executed`, before it is answered; without
    a number it survives.
    """

    def __init__(self, dies_at_call: int | None = None, *, is_executed: bool = False) -> None:
        self._dies_at: Final = dies_at_call
        self._is_executed: Final = is_executed
        self.count = 0

    def begin_call(self) -> None:
        self.count += 1
        if self.count == self._dies_at and not self._is_executed:
            raise DriverDied

    def end_call(self) -> None:
        if self.count == self._dies_at:
            raise DriverDied


@final
class ModelMarkerQueue:
    """A `MarkerQueue` of the model brokers."""

    def __init__(self, brokers: ModelBrokers, calls: CallCounter) -> None:
        self._brokers: Final = brokers
        self._counter: Final = calls

    async def bounds(self) -> tuple[int, int]:
        self._counter.begin_call()
        bounds = self._brokers.first_marker, len(self._brokers.markers) - self._brokers.hidden_markers
        self._counter.end_call()
        return bounds

    async def read(self, begin: int, end: int) -> dict[int, bytes]:
        self._counter.begin_call()
        brokers = self._brokers
        assert end <= len(brokers.markers) - brokers.hidden_markers, "a hidden marker is read"
        found = {offset: brokers.markers[offset] for offset in range(max(begin, brokers.first_marker), end)}
        self._counter.end_call()
        return found

    async def append(self, body: bytes, keys: tuple[str, ...]) -> int:
        self._counter.begin_call()
        self._brokers.markers.append(body)
        self._brokers.hidden_markers = 0
        self._counter.end_call()
        return len(self._brokers.markers) - 1


@final
class ModelTransactionEnder:
    """A `TransactionEnder` of the model brokers."""

    def __init__(self, brokers: ModelBrokers, calls: CallCounter) -> None:
        self._brokers: Final = brokers
        self._counter: Final = calls

    async def commit(self, halves: HalfMessageList) -> None:
        gone = [place for place in halves if not self._end(place, HalfState.COMMITTED)]
        if gone:
            raise BatchTorn(f"{len(gone)} of {len(halves)}")

    async def roll_back(self, halves: HalfMessageList) -> int:
        return sum(self._end(place, HalfState.ROLLED_BACK) for place in halves)

    def _end(self, place: HalfMessageRef, state: HalfState) -> bool:
        self._counter.begin_call()
        is_in_state = self._brokers.end(place.half_offset, state)
        self._counter.end_call()
        return is_in_state


def make_driver(
    brokers: ModelBrokers, *, batch: int = 0, query: str = QUERY, run: str = "run-1", calls: CallCounter | None = None
) -> BatchCommit:
    """Return a driver with a batch to commit."""
    calls = calls or CallCounter()
    return BatchCommit(
        BatchDecider(ModelMarkerQueue(brokers, calls), query, batch, run),
        ModelTransactionEnder(brokers, calls),
        run=run,
    )
