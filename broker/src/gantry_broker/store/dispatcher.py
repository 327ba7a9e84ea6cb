"""From the log to what is derived of it: consume queues and the key index.

Normally the append loop has already packed a message's queue unit when this module hears of it, and all that is left
is to let consumers see it. When dispatch is held back (a later mode shows only what is ``confirmed``), units wait here
in order of their physical offsets, in a deque, and ``release`` lets those go that the confirmed offset has passed.
``dispatch_record`` is the general path, from the bytes of a record: recovery and rebuilding use it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, final

from gantry_broker.errors import StoreFull
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft

log = logging.getLogger(__name__)

HeldUnit = tuple[ConsumeQueue, int, int, int, int]
"""Queue, queue offset, physical offset, size, tags code."""

QueuesListener = Callable[[Collection[ConsumeQueue]], None]


class Index(Protocol):
    """Where keys go."""

    def put_batch(self, drafts: Sequence[Draft], physical_offsets: Sequence[int], timestamp_ms: int) -> None: ...


class Appended(NamedTuple):
    """What the append loop says of a batch."""

    wrote: int
    timestamp_ms: int
    drafts: Sequence[Draft]
    physical_offsets: list[int]
    touched: Mapping[ConsumeQueue, int]
    """The queues that have become longer, with their ends before."""

    held: list[HeldUnit] | None
    """The units, if they were not written because dispatch is held."""


@final
class Dispatcher:
    """Owned by the loop's thread."""

    def __init__(self, index: Index | None, listeners: list[QueuesListener]) -> None:
        """``listeners`` are called once for each batch with the queues that have become longer for consumers."""
        self._listeners: Final = listeners
        self._index: Final = index
        self.is_held = False
        self.is_behind = False
        """Whether confirmed messages could not be shown for want of room."""
        self.dispatched = 0
        self.tail: tuple[int, int, int] = (0, -1, 0)
        """Everything before the first is in queues and index; the record that ends there, and its store time."""
        self._held_units: deque[HeldUnit] = deque()
        self._held_keys: deque[Appended] = deque()

    def start_at(self, end: int, tail: int, timestamp_ms: int) -> None:
        """Everything before ``end`` is shown; the record that ends there begins at ``tail``, -1 if it is not known."""
        self.tail = (end, tail, timestamp_ms)
        self.dispatched = end

    def show(self, end: int, tail: int, timestamp_ms: int, touched: Collection[ConsumeQueue]) -> None:
        """What a slave has copied before ``end`` is in its queues now, of which ``touched`` have become longer."""
        self.start_at(end, tail, timestamp_ms)
        self.is_behind = False
        if touched:
            for listener in self._listeners:
                listener(touched)

    def fall_behind(self) -> None:
        """There is no room to show what is confirmed; the next attempt says whether there is some again."""
        self.is_behind = True

    def appended(self, batch: Appended) -> None:
        """A batch was appended. Called by the append loop, once, after the bytes are in the log."""
        wrote, timestamp_ms, drafts, physical_offsets, touched, held = batch
        if held is not None:
            self._held_units += held
            self._held_keys.append(batch)
            return
        if self._index is not None:
            self._index.put_batch(drafts, physical_offsets, timestamp_ms)
        # Before the ends of the queues move: the flush thread reads those first and this then.
        self.tail = (wrote, physical_offsets[-1], timestamp_ms)
        for queue in touched:
            queue.readable_end = queue.end
        self.dispatched = wrote
        if touched:
            for listener in self._listeners:
                listener(touched.keys())

    def hold(self) -> None:
        """From now on nothing is shown before ``release`` says so."""
        self.is_held = True

    def release(self, confirmed: int, *, keep_holding: bool = True) -> bool:
        """Show every message that ends at or before ``confirmed``. Without holding on, all must be confirmed.

        False when the disk has no room for a queue's next entries: what is left waits for the next call.
        """
        touched: dict[ConsumeQueue, int] = {}
        units, batches = self._held_units, self._held_keys
        is_complete = True
        while units and units[0][2] + units[0][3] <= confirmed:
            queue, offset, physical, size, tags_code = units[0]
            try:
                queue.put(offset, physical, size, tags_code)
            except StoreFull as exc:
                if not self.is_behind:
                    log.error("no room to show messages that are stored", extra={"reason": str(exc)})
                confirmed, is_complete = physical, False
                break
            units.popleft()
            touched.setdefault(queue, offset)
        self.is_behind = not is_complete
        # Keys follow batch by batch, and so does the recovery point: it never lies inside a batch.
        while batches and batches[0].wrote <= confirmed:
            batch = batches.popleft()
            if self._index is not None:
                self._index.put_batch(batch.drafts, batch.physical_offsets, batch.timestamp_ms)
            self.tail = (batch.wrote, batch.physical_offsets[-1], batch.timestamp_ms)
            self.dispatched = batch.wrote
        if not keep_holding:
            assert not units and not batches, "dispatch can be let go only when everything is confirmed"
            self.is_held = False
        if touched:
            for listener in self._listeners:
                listener(touched.keys())
        return is_complete

    @property
    def held_end(self) -> int:
        """Up to where batches wait for ``confirmed``; 0 if none does."""
        return self._held_keys[-1].wrote if self._held_keys else 0

    def drop_held(self) -> None:
        """Let go of what was not shown, and of its numbers. It is in the log."""
        for queue in {unit[0] for unit in self._held_units}:
            queue.rewind(queue.readable_end)
        self._held_units.clear()
        self._held_keys.clear()

    def forget(self, queues: Collection[ConsumeQueue]) -> None:
        """These queues are deleted: what was to be shown in them is not."""
        if self._held_units:
            kept = [unit for unit in self._held_units if unit[0] not in queues]
            self._held_units.clear()
            self._held_units.extend(kept)
