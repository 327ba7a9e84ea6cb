"""The open transactions, as they follow from the half messages and op messages of the log. Pure.

    half queue   h0  h1  h2  h3  h2'            h2' is h2, stored again before its producer was asked
    op queue     "h1,"  "h2,"  "h0,"            h1 and h0 have ended, h2 continues as h2'
                 => open: h3, h2'               and nothing before h3 has to be read again after a restart

Both queues are read in order, and reading a part again changes nothing. A half message that was stored again names its
first offset, so that the older copies are not open any more even if their op message was torn off. It counts as a copy
only if it has their identity: an older version of Gantry may have stored that offset for a client. A half message may
end before its next copy was read: then that copy has ended, too.
"""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, final

UNKNOWN: Final = -1
"""The physical offset of a copy that was not read, because reading started after it in the queue."""

OUTCOMES_MAX: Final = 4096
"""How many outcomes are kept in memory, since the index has them only a moment later."""


@dataclass(slots=True)
class Half:
    """An open transaction, known by its newest half message."""

    queue_offset: int
    """The offset of its newest copy in the half queue."""

    physical: int
    """The physical offset of its newest copy."""

    group: str
    """The producer group, whose members may end it."""

    open_since_ms: int
    """The time at which it was first stored."""

    first_check_ms: int
    """The time of the next check with its producer: the first one of this half message, not of the transaction."""

    immunity_ms: int | None = None
    """How long its producer has to end it without a check, if the message sets a limit."""

    checks: int = 0
    """How often its producer has been asked for the outcome."""

    origin: int = -1
    """The queue offset of its first copy; its own offset if it was not stored again."""

    identity: bytes = b""
    """What all copies of the message have in common, and no other message has."""

    is_restored: bool = False
    """Whether it is from before this broker was the master: the old master may have ended it incompletely."""

    aliases: dict[int, int] = field(default_factory=dict)
    """Its older copies: queue offset -> physical offset."""

    successor: int | None = None
    """The queue offset of its next copy, until that is read."""

    def __post_init__(self) -> None:
        if self.origin < 0:
            self.origin = self.queue_offset
        if self.origin != self.queue_offset and not self.aliases:
            self.aliases = {self.origin: UNKNOWN}

    def set_successor(self, queue_offset: int) -> None:
        """Record the queue offset of its next copy, which is read later."""
        self.successor = queue_offset

    @property
    def copies(self) -> dict[int, int]:
        """All copies by which a request may name it: queue offset -> physical offset."""
        return {**self.aliases, self.queue_offset: self.physical}


def newest_copies(half: Half) -> list[int]:
    """Return the queue offsets of its newest copies, which the op message has to end."""
    return [half.queue_offset] if half.successor is None else [half.queue_offset, half.successor]


@final
class OpenHalves:
    """The open transactions. Offsets are queue offsets unless they are called physical. Owned by the event loop."""

    def __init__(self, half_offset: int = 0, op_offset: int = 0) -> None:
        self.half_offset = half_offset
        """The next half message to read."""

        self.op_offset = op_offset
        """The next op message to read."""

        self._open: dict[int, Half] = {}
        self._aliases: dict[int, int] = {}
        self._by_origin: dict[int, int] = {}
        self._ended: set[int] = set()
        """Half messages that ended here, and whose op messages were not read yet."""

        self._ended_unread: set[int] = set()
        """Half messages whose op messages were read before them."""

        self._outcomes: Final[dict[int, str]] = {}
        """The outcomes of the last transactions that ended here, by the offsets of all their copies."""

        self._order: Final[deque[int]] = deque()
        self._ops: Final[deque[tuple[int, int]]] = deque()
        """(offset of an op message, the last half message that it ends)."""

        self._due: Final[list[tuple[int, int]]] = []

    def __repr__(self) -> str:
        return f"<OpenHalves open={len(self._open)} half_offset={self.half_offset} op_offset={self.op_offset}>"

    def __len__(self) -> int:
        return len(self._open)

    # -- reading the queues --------------------------------------------------------------------------------------------

    def add(self, half: Half) -> None:
        """Add the next half message of the queue."""
        assert half.queue_offset >= self.half_offset, (half, self.half_offset)
        self.half_offset = half.queue_offset + 1
        self._order.append(half.queue_offset)
        if half.queue_offset in self._ended or half.queue_offset in self._ended_unread:
            self._ended_unread.discard(half.queue_offset)
            return  # it has ended before it was read, perhaps as an older copy
        older = self._open.get(self._by_origin.get(half.origin, -1))
        if older is not None and older.identity == half.identity:
            del self._open[older.queue_offset]
            is_restored = half.is_restored or older.is_restored
            half = replace(half, aliases=older.copies, is_restored=is_restored)
        elif older is not None:  # it names another message, so it is no copy
            half = replace(half, origin=half.queue_offset, aliases={})
        self._add(half)

    def skip_to(self, half_offset: int) -> None:
        """Continue at this offset, since no earlier half message can be read."""
        self.half_offset = max(self.half_offset, half_offset)
        if self._ended_unread:
            self._ended_unread = {offset for offset in self._ended_unread if offset >= self.half_offset}

    def add_op(self, op_offset: int, half_offsets: list[int]) -> None:
        """Add the next op message of the queue, which ends these half messages."""
        self.op_offset = op_offset + 1
        if half_offsets:
            self._ops.append((op_offset, max(half_offsets)))
        for offset in half_offsets:
            self._ended.discard(offset)
            if offset >= self.half_offset:
                self._ended_unread.add(offset)
        self.close(half_offsets)

    def skip_ops_to(self, op_offset: int) -> None:
        """Continue at this offset, since no earlier op message can be read."""
        self.op_offset = max(self.op_offset, op_offset)

    # -- damaged messages that were skipped and are healed -------------------------------------------------------------

    def is_known(self, half_offset: int) -> bool:
        """Whether the half message, or a later copy of it, is open, or was ended here."""
        is_open = half_offset in self._by_origin or self.find(half_offset) is not None
        return is_open or half_offset in self._ended or half_offset in self._outcomes

    def reopen(self, half: Half) -> None:
        """Add a healed half message before ``half_offset`` that has no op message."""
        assert half.queue_offset < self.half_offset, (half, self.half_offset)
        bisect.insort(self._order, half.queue_offset)
        self._add(half)

    def close(self, half_offsets: list[int]) -> None:
        """Close half messages that an op message has ended."""
        for offset in half_offsets:
            half = self._open.get(offset)
            if half is not None and half.successor is None:  # otherwise its successor continues the transaction
                self._close(offset)

    # -- ending and checking -------------------------------------------------------------------------------------------

    def find(self, half_offset: int) -> Half | None:
        """Return the open transaction with a copy at this offset; None if there is none."""
        return self._open.get(self._aliases.get(half_offset, half_offset))

    def mark_ended(self, half: Half, outcome: str) -> None:
        """Mark a transaction as ended; its op message is read later."""
        self._ended.update(newest_copies(half))
        outcomes = self._outcomes
        outcomes.update(dict.fromkeys([*half.copies, *newest_copies(half)], outcome))
        while len(outcomes) > OUTCOMES_MAX:
            del outcomes[next(iter(outcomes))]
        self._close(half.queue_offset)

    def outcome(self, half_offset: int) -> str | None:
        """Return the outcome of a transaction that ended here not long ago; None otherwise."""
        return self._outcomes.get(half_offset)

    def next_due(self, now_ms: int) -> Half | None:
        """Return a transaction to check now; None if none is due. It is due again by ``check_later`` or its renewal."""
        due = self._due
        while due and due[0][0] <= now_ms:
            half = self._open.get(heapq.heappop(due)[1])
            if half is not None:
                return half
        return None

    def check_later(self, half: Half, at_ms: int) -> None:
        """Schedule another check at ``at_ms``, because this one was not possible."""
        heapq.heappush(self._due, (at_ms, half.queue_offset))

    # -- restart offsets -----------------------------------------------------------------------------------------------

    @property
    def half_restart_offset(self) -> int:
        """The offset of the first half message that a restart has to read."""
        order = self._order
        while order and order[0] not in self._open and order[0] not in self._ended:
            order.popleft()
        return order[0] if order else self.half_offset

    @property
    def op_restart_offset(self) -> int:
        """The offset of the first op message about a half message from ``half_restart_offset`` on."""
        low, ops = self.half_restart_offset, self._ops
        while ops and ops[0][1] < low:
            ops.popleft()
        return ops[0][0] if ops else self.op_offset

    def _add(self, half: Half) -> None:
        """Add an open transaction, to be found by all of its copies."""
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
