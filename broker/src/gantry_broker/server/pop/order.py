"""Ordered pop consumption: a queue is blocked while messages of it are invisible and not acked.

    popped  5 6 7 8      acked 5, 6      committed offset 7      the next pop, once 7 and 8 are visible: 7 8 9 ...

Nothing is stored for each message: the committed offset of the group is that of the first message that is not acked,
and a pop starts there. A request with the ``attemptId`` of the last one repeats it at once, since its answer was lost.

The table is written to ``consumerOrderInfo.json`` every few seconds, in RocketMQ's format. After a crash a queue may be
blocked no more, so that its messages are delivered again before their time, also those that were acked out of order;
they are never skipped. A slave has no table, and a member whose log is truncated forgets the pops of lost messages.

The receipt of a queue without an entry may be from before a reset, or from before its topic or group was deleted. Then
it must not ack a message that its pop has not returned: ``core.freed_queues`` keeps when queues were freed.

Owned by the event loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final, final

import msgspec
from msgspec import UNSET, UnsetType

from gantry_broker.server.core.freed_queues import FreedQueues
from gantry_wire.commands.clients import Document

SEPARATOR: Final = "@"
"""Separates topic and group in keys of the table."""

ORDER_TABLE: Final = "consumerOrderInfo"
"""The name of the table's file."""

ILLEGAL: Final = -1
"""The result of an ack of a message that is not among the last ones popped."""
OUTDATED: Final = -2
"""The result of an ack without effect: with the receipt of an earlier pop, or of one that is not known."""

FREE_TIMES_MIN: Final = 4096
"""With so many times at which queues become free, outdated ones are looked for: below, the saving is not worth it."""

KEPT_MS: Final = 24 * 3600 * 1000
"""How long the entry of a queue is kept that is not consumed, as in RocketMQ."""


class OrderInfo(Document):
    """The messages of the last ordered pop from a queue, with RocketMQ's names for the fields."""

    pop_time: int
    invisible_time: int = msgspec.field(name="i", default=0)
    offset_list: list[int] = msgspec.field(name="o", default_factory=list)
    """The first offset, then the distance of each other message from it."""

    next_visible: dict[int, int] | None = msgspec.field(name="ot", default=None)
    """When single messages become visible whose invisible time was changed, by offset."""

    counts: dict[int, int] | None = msgspec.field(name="oc", default=None)
    """How often messages were delivered before, by offset, if they were."""

    last_consumed_ms: int = msgspec.field(name="l", default=0)
    acked_bits: int = msgspec.field(name="cm", default=0)
    attempt_id: str | None = msgspec.field(name="a", default=None)
    wall_lead_ms: int | UnsetType = UNSET
    """How far the wall clock was ahead of the clock of deadlines at the pop, if at all; it is not written."""

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the messages."""
        first, *others = self.offset_list
        return [first, *(first + distance for distance in others)]

    @property
    def unacked(self) -> list[int]:
        """The queue offsets of the messages that are not acked."""
        return [offset for index, offset in enumerate(self.offsets) if not self.acked_bits >> index & 1]

    @property
    def free_at_ms(self) -> int:
        """When all messages that are not acked are visible, on the clock of deadlines; 0 if all are acked."""
        changed, usual = self.next_visible or {}, self.pop_time + self.invisible_time
        times = [changed.get(offset, usual) for offset in self.unacked]
        return max(times) - self.lead_ms if times else 0

    @property
    def lead_ms(self) -> int:
        """How far the times of the entry are ahead of the clock of deadlines."""
        return 0 if self.wall_lead_ms is UNSET else self.wall_lead_ms


class OrderDocument(Document):
    """The content of consumerOrderInfo.json, with RocketMQ's name for its field."""

    table: dict[str, dict[int, OrderInfo]] = msgspec.field(default_factory=dict)
    """The last ordered pop from each queue, by topic@group and queue id."""

    freed: dict[str, int] | UnsetType = UNSET
    """A field of earlier releases: the times of ``FreedQueues``, which are read and no longer written."""


@final
class OrderedQueues:
    """The queues that are consumed in order. Owned by the event loop."""

    def __init__(self, freed: FreedQueues | None = None) -> None:
        """``freed`` has the times at which administrators freed queues; without it no stored ones are known."""
        self._table: dict[str, dict[int, OrderInfo]] = {}
        self._freed: Final = freed or FreedQueues()
        self._free: list[tuple[int, str, int]] = []
        """A heap of (time, topic@group, queue): when blocked queues may be free."""
        self._free_max = FREE_TIMES_MIN
        """With so many entries, the heap is freed of those that are outdated."""

        self.change_count = 0
        """The number of changes of the table since this start."""

    def __repr__(self) -> str:
        return f"<OrderedQueues groups={len(self._table)}>"

    def is_blocked(self, key: str, queue_id: int, attempt_id: str | None, now_ms: int) -> bool:
        """Whether messages of a queue are invisible, so that none is to be popped; not for a repeated request.

        ``now_ms`` is on the clock of deadlines.
        """
        info = self._table.get(key, {}).get(queue_id)
        if info is None or (attempt_id is not None and info.attempt_id == attempt_id):
            return False
        return now_ms < info.free_at_ms

    def record_pop(self, key: str, queue_id: int, info: OrderInfo) -> dict[int, int]:
        """Record the messages of a pop; return how often each of them was delivered before, if it was."""
        previous = self._table.get(key, {}).get(queue_id)
        if previous is not None:
            earlier = previous.counts or {}
            if previous.attempt_id is not None and previous.attempt_id == info.attempt_id:
                info.counts = earlier
            else:
                known = set(previous.offsets)
                info.counts = {offset: earlier.get(offset, 0) + 1 for offset in info.offsets if offset in known}
        self._table.setdefault(key, {})[queue_id] = info
        self._schedule(key, queue_id, info)
        return info.counts or {}

    def ack(self, key: str, queue_id: int, offset: int, pop_time_ms: int, *, next_offset: int) -> int:
        """Ack a message; return the next offset of the group, or ILLEGAL or OUTDATED.

        A crash or a failover may have lost the entry of the queue. Then only the message at ``next_offset`` can be
        acked, since those between it and another one may be unacked; RocketMQ would skip them.
        """
        info = self._table.get(key, {}).get(queue_id)
        if info is None:
            is_valid = offset == next_offset and pop_time_ms > self._freed.last_ms(key, queue_id)
            return offset + 1 if is_valid else OUTDATED
        if info.pop_time != pop_time_ms:
            return OUTDATED
        offsets = info.offsets
        if offset not in offsets:
            return ILLEGAL
        info.acked_bits |= 1 << offsets.index(offset)
        self._schedule(key, queue_id, info)
        unacked = info.unacked
        return unacked[0] if unacked else offsets[-1] + 1

    def change_visible(self, key: str, queue_id: int, offset: int, pop_time_ms: int, visible_ms: int) -> None:
        """Let a message become visible at another time, unless it was popped again since ``pop_time_ms``.

        ``visible_ms`` is on the clock of deadlines.
        """
        info = self._table.get(key, {}).get(queue_id)
        if info is None or info.pop_time != pop_time_ms:
            return
        info.next_visible = {**(info.next_visible or {}), offset: visible_ms + info.lead_ms}
        self._schedule(key, queue_id, info)

    def is_known(self, key: str, queue_id: int) -> bool:
        """Whether the last ordered pop from a queue is known."""
        return queue_id in self._table.get(key, ())

    def forget(self, key: str, queue_id: int, now_ms: int) -> None:
        """Free a queue: its group was reset. Receipts of pops until the wall time ``now_ms`` have no effect any more.

        Receipts of the last pop have none either, if the wall clock was set back since.
        """
        info = self._table.get(key, {}).pop(queue_id, None)
        last_ms = 0 if info is None else info.pop_time
        self._freed.record_queue(key, queue_id, max(now_ms, last_ms))
        self.change_count += 1

    def forget_keys(self, topic: str | None, group: str | None, now_ms: int) -> None:
        """Free all queues of a topic, or of a group, that was deleted, in the same way."""
        for key in list(self._table):
            name, _, owner = key.partition(SEPARATOR)
            if topic in (None, name) and group in (None, owner):
                now_ms = max(now_ms, *(info.pop_time for info in self._table.pop(key).values()), 0)
        self._freed.record_owner(topic, group, now_ms)
        self.change_count += 1

    def forget_beyond(self, end_of: Callable[[str, int], int]) -> None:
        """Forget pops of messages that the log lost when it was truncated: others will have their offsets.

        ``end_of`` returns the end of a queue by topic and number.
        """
        for key, queues in self._table.items():
            topic = key.partition(SEPARATOR)[0]
            for queue_id in [number for number, info in queues.items() if info.offsets[-1] >= end_of(topic, number)]:
                del queues[queue_id]
                self.change_count += 1

    def take_free(self, now_ms: int) -> list[tuple[str, int]]:
        """Return (topic, queue) of the queues that may have become free since the last call."""
        found: list[tuple[str, int]] = []
        while self._free and self._free[0][0] <= now_ms:
            _, key, queue_id = heapq.heappop(self._free)
            found.append((key.partition(SEPARATOR)[0], queue_id))
        return found

    def document(self, now_ms: int) -> OrderDocument:
        """Return the table for its file, without queues that are not consumed any more."""
        kept = {
            key: {number: one for number, one in queues.items() if now_ms - one.last_consumed_ms < KEPT_MS}
            for key, queues in self._table.items()
        }
        self._table = {key: queues for key, queues in kept.items() if queues}
        table = {
            key: {number: msgspec.structs.replace(one, wall_lead_ms=UNSET) for number, one in queues.items()}
            for key, queues in self._table.items()
        }
        return OrderDocument(table=table)

    def load(self, document: OrderDocument, now_ms: int, *, wall_lead_ms: int = 0) -> None:
        """Load the table of the file. No queue is blocked for longer than its invisible time from now on.

        ``now_ms`` is the wall time, and ``wall_lead_ms`` how far it is ahead of the clock of deadlines.
        """
        self._table = document.table
        if document.freed:
            self._freed.join(document.freed)
        for key, queues in self._table.items():
            for queue_id, info in list(queues.items()):
                if not info.offset_list:
                    del queues[queue_id]
                    continue
                info.wall_lead_ms = wall_lead_ms + max(0, info.pop_time - now_ms)  # the wall clock was set back
                self._schedule(key, queue_id, info)

    def _schedule(self, key: str, queue_id: int, info: OrderInfo) -> None:
        self.change_count += 1
        if len(self._free) >= self._free_max:
            self._remove_outdated_times()
        heapq.heappush(self._free, (info.free_at_ms, key, queue_id))

    def _remove_outdated_times(self) -> None:
        """Remove the times that a later pop or ack has changed: each pop leaves one, for up to its invisible time."""
        self._free = [one for one in set(self._free) if self._is_present(*one)]
        heapq.heapify(self._free)
        self._free_max = max(FREE_TIMES_MIN, 2 * len(self._free))

    def _is_present(self, time_ms: int, key: str, queue_id: int) -> bool:
        """Whether a queue becomes free at this time. One that was freed since keeps it: its pops may still wait."""
        info = self._table.get(key, {}).get(queue_id)
        return info is None or info.free_at_ms == time_ms


def offset_list_of(offsets: Sequence[int]) -> list[int]:
    """Return offsets as the table holds them."""
    return [offsets[0], *(offset - offsets[0] for offset in offsets[1:])]
