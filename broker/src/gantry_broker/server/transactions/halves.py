"""Which transactions are open: what the half messages and the op messages of the log come to. Pure.

    half queue   h0  h1  h2  h3  h2'            h2' is h2, stored again before its producer was asked
    op queue     "h1,"  "h2,"  "h0,"            h1 and h0 have ended, h2 has gone on as h2'
                 => open: h3, h2'               and nothing before h3 has to be read again after a restart

Both queues are read in their order, and reading a part again changes nothing. A half message that was stored again
names the first of its kind, so that the older ones are not open any more even if the op message behind them was torn
off. A half message may end while its next place was not read yet: then that place has ended, too.
"""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, final

UNKNOWN: Final = -1
"""The physical offset of a place that was not read, because nothing of interest lies before it."""

OUTCOMES_MAX: Final = 4096
"""So many ends are known without a look into the index, which comes a moment later than they."""


@dataclass(slots=True)
class Half:
    """One open transaction."""

    queue_offset: int
    physical: int
    group: str
    open_since_ms: int
    """When it was stored first."""

    first_check_ms: int
    """When its producer may be asked for the first time."""

    immunity_ms: int | None = None
    """How long its producer has to end it without being asked, if it has said so itself."""

    checks: int = 0
    origin: int = -1
    """Where it was stored first; its own place if it was not stored again."""

    is_restored: bool = False
    """Whether it is from before this broker was the master: then somebody else may have ended it, nearly."""

    aliases: dict[int, int] = field(default_factory=dict)
    """Its older places: queue offset and physical offset."""

    successor: int | None = None
    """Its next place, while nobody has read that yet."""

    def __post_init__(self) -> None:
        if self.origin < 0:
            self.origin = self.queue_offset
        if self.origin != self.queue_offset and not self.aliases:
            self.aliases = {self.origin: UNKNOWN}

    def stored_again(self, queue_offset: int) -> None:
        """It has a next place, which is read later."""
        self.successor = queue_offset

    @property
    def places(self) -> dict[int, int]:
        """All places by which somebody may name it."""
        return {**self.aliases, self.queue_offset: self.physical}


def newest_places(half: Half) -> list[int]:
    """Where it is now, and where it will be as soon as that is read: what has to be said to be over."""
    return [half.queue_offset] if half.successor is None else [half.queue_offset, half.successor]


@final
class OpenHalves:
    """Owned by the loop. Offsets are of the two queues unless they are called physical."""

    def __init__(self, half_offset: int = 0, op_offset: int = 0) -> None:
        self.half_offset = half_offset
        """The next half message to look at."""

        self.op_offset = op_offset
        """The next op message to look at."""

        self._open: dict[int, Half] = {}
        self._aliases: dict[int, int] = {}
        self._by_origin: dict[int, int] = {}
        self._ended: set[int] = set()
        """Those that ended here, and whose op messages were not read yet."""

        self._ended_unread: set[int] = set()
        """Those whose op messages were read before they were."""

        self._outcomes: Final[dict[int, str]] = {}
        """How the last ones ended here, by all their places."""

        self._order: Final[deque[int]] = deque()
        self._ops: Final[deque[tuple[int, int]]] = deque()
        """(offset of an op message, the last half message that it is about)."""

        self._due: Final[list[tuple[int, int]]] = []

    def __repr__(self) -> str:
        return f"<OpenHalves open={len(self._open)} half_offset={self.half_offset} op_offset={self.op_offset}>"

    def __len__(self) -> int:
        return len(self._open)

    # -- reading the queues --------------------------------------------------------------------------------------------

    def found(self, half: Half) -> None:
        """The next half message."""
        assert half.queue_offset >= self.half_offset, (half, self.half_offset)
        self.half_offset = half.queue_offset + 1
        self._order.append(half.queue_offset)
        if half.queue_offset in self._ended or half.queue_offset in self._ended_unread:
            self._ended_unread.discard(half.queue_offset)
            return  # it has ended before it was read, perhaps under its older place
        older = self._open.pop(self._by_origin.get(half.origin, -1), None)
        if older is not None:
            is_restored = half.is_restored or older.is_restored
            half = replace(half, aliases=older.places, is_restored=is_restored)
        self._add(half)

    def passed(self, half_offset: int) -> None:
        """There is nothing before this offset that could be read."""
        self.half_offset = max(self.half_offset, half_offset)
        if self._ended_unread:
            self._ended_unread = {offset for offset in self._ended_unread if offset >= self.half_offset}

    def done(self, op_offset: int, half_offsets: list[int]) -> None:
        """The next op message: these have ended."""
        self.op_offset = op_offset + 1
        if half_offsets:
            self._ops.append((op_offset, max(half_offsets)))
        for offset in half_offsets:
            self._ended.discard(offset)
            if offset >= self.half_offset:
                self._ended_unread.add(offset)
        self.close(half_offsets)

    def passed_ops(self, op_offset: int) -> None:
        """There is no op message before this offset that could be read."""
        self.op_offset = max(self.op_offset, op_offset)

    # -- what was passed over as damaged, and is healed ----------------------------------------------------------------

    def is_known(self, half_offset: int) -> bool:
        """Whether it is open, as it is or stored again, or was ended here."""
        is_open = half_offset in self._by_origin or self.find(half_offset) is not None
        return is_open or half_offset in self._ended or half_offset in self._outcomes

    def reopen(self, half: Half) -> None:
        """A half message before ``half_offset`` that could not be read, and that no op message is about."""
        assert half.queue_offset < self.half_offset, (half, self.half_offset)
        bisect.insort(self._order, half.queue_offset)
        self._add(half)

    def close(self, half_offsets: list[int]) -> None:
        """An op message says that these have ended."""
        for offset in half_offsets:
            half = self._open.get(offset)
            if half is not None and half.successor is None:  # otherwise its successor continues the transaction
                self._close(offset)

    # -- what happens here ---------------------------------------------------------------------------------------------

    def find(self, half_offset: int) -> Half | None:
        """The open transaction that is or was there."""
        return self._open.get(self._aliases.get(half_offset, half_offset))

    def ended(self, half: Half, outcome: str) -> None:
        """It was ended just now; the op message that says so comes later."""
        self._ended.update(newest_places(half))
        outcomes = self._outcomes
        outcomes.update(dict.fromkeys([*half.places, *newest_places(half)], outcome))
        while len(outcomes) > OUTCOMES_MAX:
            del outcomes[next(iter(outcomes))]
        self._close(half.queue_offset)

    def outcome(self, half_offset: int) -> str | None:
        """How it was ended here, if that was not long ago."""
        return self._outcomes.get(half_offset)

    def next_due(self, now_ms: int) -> Half | None:
        """One whose producer is to be asked now. It does not come again before ``ask_again``, or its renewal."""
        due = self._due
        while due and due[0][0] <= now_ms:
            half = self._open.get(heapq.heappop(due)[1])
            if half is not None:
                return half
        return None

    def ask_again(self, half: Half, at_ms: int) -> None:
        """It could not be asked for."""
        heapq.heappush(self._due, (at_ms, half.queue_offset))

    # -- where to begin after a restart --------------------------------------------------------------------------------

    @property
    def half_low(self) -> int:
        """The first half message that is still of interest."""
        order = self._order
        while order and order[0] not in self._open and order[0] not in self._ended:
            order.popleft()
        return order[0] if order else self.half_offset

    @property
    def op_low(self) -> int:
        """The first op message that says anything about those."""
        low, ops = self.half_low, self._ops
        while ops and ops[0][1] < low:
            ops.popleft()
        return ops[0][0] if ops else self.op_offset

    def _add(self, half: Half) -> None:
        """It is open, and can be found by all its places."""
        self._aliases.update(dict.fromkeys(half.aliases, half.queue_offset))
        self._by_origin[half.origin] = half.queue_offset
        self._open[half.queue_offset] = half
        heapq.heappush(self._due, (half.first_check_ms, half.queue_offset))

    def _close(self, half_offset: int) -> None:
        half = self._open.pop(half_offset, None)
        if half is not None:
            for alias in half.aliases:
                self._aliases.pop(alias, None)
            self._by_origin.pop(half.origin, None)
