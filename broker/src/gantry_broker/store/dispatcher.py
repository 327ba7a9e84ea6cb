"""Dispatch from the log to the consume queues and the key index, and visibility of messages to consumers.

Normally the append loop has already packed a message's queue unit before the dispatcher is called, which only makes the
unit visible to consumers. While dispatch is held, because only ``confirmed`` messages may be visible, units wait here
in a deque, in order of their physical offsets, and ``release`` writes those that lie before the confirmed offset.
``ScanDispatcher`` is the general path, from the bytes of a record: recovery and rebuilding use it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, final

from gantry_broker.errors import StoreFull
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_broker.store.inner_batches import fill_batch
from gantry_speedups import native

log = logging.getLogger(__name__)

HeldUnit = tuple[ConsumeQueue, int, int, int, int]
"""A unit that is not written yet: queue, queue offset, physical offset, size, tags code."""

QueuesListener = Callable[[Collection[ConsumeQueue]], None]
"""A callback that takes the queues that have become longer for consumers."""


class BatchIndex(Protocol):
    """The part of the key index that the dispatcher uses."""

    def put_batch(self, drafts: Sequence[Draft], physical_offsets: Sequence[int], timestamp_ms: int) -> None: ...


class AppendedBatch(NamedTuple):
    """A batch of messages in the log: from the append loop, or from a slave's log when the slave is promoted."""

    wrote: int
    """The end of the log after the batch."""

    timestamp_ms: int
    """The store time of the batch, in milliseconds."""

    drafts: Sequence[Draft]
    """The messages of the batch, of which the index needs the keys."""

    physical_offsets: Sequence[int]
    """Where the record of each message begins in the log."""

    touched: Mapping[ConsumeQueue, int]
    """The queues that have become longer, with their previous ends. Not used if ``held`` is not None."""

    held: list[HeldUnit] | None
    """The units if they are not written because dispatch is held; None otherwise."""


def release_units_in_python(units: deque[HeldUnit], confirmed: int) -> tuple[dict[ConsumeQueue, int], Exception | None]:
    """Write the leading ``units`` whose records end at or before ``confirmed``, and remove them.

    Return the queues that have got units, each with the queue offset of its first, and the error that stopped it, or
    None.
    """
    touched: dict[ConsumeQueue, int] = {}
    while units and units[0][2] + units[0][3] <= confirmed:
        queue, offset, physical, size, tags_code = units[0]
        try:
            queue.put(offset, physical, size, tags_code)
        except Exception as error:  # noqa: BLE001 - the caller raises it, after the others are visible
            return touched, error
        units.popleft()
        touched.setdefault(queue, offset)
    return touched, None


release_units: Final[Any] = release_units_in_python if native is None else native.release_units


@final
class Dispatcher:
    """Makes appended messages visible in queues and index. Owned by the loop's thread."""

    def __init__(self, index: BatchIndex | None, listeners: list[QueuesListener]) -> None:
        """Create a dispatcher. ``listeners`` are called with the queues that one batch or several have extended."""
        self._listeners: Final = listeners
        self._index: Final = index
        self.is_held = False
        """Whether messages become visible only when they are confirmed; see ``hold``."""
        self.is_behind = False
        """Whether confirmed messages are not visible because the disk is full."""
        self.dispatched = 0
        """The records before this offset are in queues and index, and visible to consumers."""

        self.last_dispatched: tuple[int, int, int] = (0, -1, 0)
        """End of what is in queues and index; start of the last record before it, -1 if unknown; its store time.

        That record ends there, unless the blank record that closes a file follows it. A tuple that is replaced, so that
        the thread ``gantry-point`` (``point_writer``) reads three values that belong together.
        """
        self._held_units: deque[HeldUnit] = deque()
        self._held_batches: deque[AppendedBatch] = deque()
        self._batch_ends: deque[tuple[ConsumeQueue, int, int, int]] = deque()

    def start_at(self, end: int, last_record: int, timestamp_ms: int) -> None:
        """Set the visible end to ``end``; the last record before it begins at ``last_record``, -1 if unknown.

        ``timestamp_ms`` is the store time of that record.
        """
        self.last_dispatched = (end, last_record, timestamp_ms)
        self.dispatched = end

    def make_visible(self, end: int, last_record: int, timestamp_ms: int, touched: Collection[ConsumeQueue]) -> None:
        """Move a slave's visible end to ``end``. ``touched`` are the queues that have become longer."""
        self.start_at(end, last_record, timestamp_ms)
        self.is_behind = False
        if touched:
            for listener in self._listeners:
                listener(touched)

    def mark_behind(self) -> None:
        """Record that the disk is too full to make confirmed messages visible; the next attempt clears it."""
        self.is_behind = True

    def dispatch_batch(self, batch: AppendedBatch) -> None:
        """Dispatch a batch, or hold it. Called once for each, after its bytes are in the log."""
        wrote, timestamp_ms, drafts, physical_offsets, touched, held = batch
        if held is not None:
            self._held_units += held
            self._held_batches.append(batch)
            return
        if self._index is not None:
            self._index.put_batch(drafts, physical_offsets, timestamp_ms)
        # The dispatched end moves before the ends of the queues, since ``gantry-point`` reads the queues first.
        self.last_dispatched = (wrote, physical_offsets[-1], timestamp_ms)
        for queue in touched:
            queue.readable_end = queue.end
        self.dispatched = wrote
        if touched:
            for listener in self._listeners:
                listener(touched.keys())

    def hold(self) -> None:
        """Hold dispatch: now messages become visible only through ``release`` or, on a slave, ``make_visible``."""
        self.is_held = True

    def release(self, confirmed: int, *, keep_holding: bool = True) -> bool:
        """Make messages visible that end at or before ``confirmed``. Without ``keep_holding`` all must be confirmed.

        Return False if the disk has no space for a queue's next entries: the rest waits for the next call.
        """
        units, batches = self._held_units, self._held_batches
        touched, error = release_units(units, confirmed)
        stop = confirmed if error is None else units[0][2]
        if error is None:
            stop, error = self._fill_batches(confirmed)
        if error is not None:
            if not isinstance(error, StoreFull):
                raise error
            if not self.is_behind:
                log.error(
                    "no disk space for consume queue entries; stored messages stay invisible until there is space",
                    extra={"reason": str(error)},
                )
        confirmed, self.is_behind = stop, error is not None
        # Keys are indexed batch by batch, and the recovery point moves with them: it never lies inside a batch.
        while batches and batches[0].wrote <= confirmed:
            batch = batches.popleft()
            if self._index is not None:
                self._index.put_batch(batch.drafts, batch.physical_offsets, batch.timestamp_ms)
            self.last_dispatched = (batch.wrote, batch.physical_offsets[-1], batch.timestamp_ms)
            self.dispatched = batch.wrote
        if not keep_holding:
            assert not units and not batches, "holding may end only when everything is confirmed"
            self.is_held = False
        if touched:
            for listener in self._listeners:
                listener(touched.keys())
        return error is None

    def _fill_batches(self, confirmed: int) -> tuple[int, StoreFull | None]:
        """Write the fillers of held batches that end at or before ``confirmed``; return up to where, and the error."""
        while self._batch_ends and self._batch_ends[0][2] + self._batch_ends[0][3] <= confirmed:
            queue, end, physical, _ = self._batch_ends[0]
            try:
                fill_batch(queue, end, physical)
            except StoreFull as error:
                return physical, error
            self._batch_ends.popleft()
        return confirmed, None

    def hold_batch_end(self, queue: ConsumeQueue, end: int, physical: int, size: int) -> None:
        """Fill the queue up to ``end`` with the held unit of a record that RocketMQ wrote, which takes the offsets."""
        self._batch_ends.append((queue, end, physical, size))

    @property
    def held_end(self) -> int:
        """End of the batches that wait for ``confirmed``; 0 if there are none."""
        return self._held_batches[-1].wrote if self._held_batches else 0

    def drop_held_batches(self) -> None:
        """Drop the held batches and release their queue offsets. Their records stay in the log."""
        for queue in {unit[0] for unit in self._held_units}:
            queue.rewind(queue.readable_end)
        self._held_units.clear()
        self._held_batches.clear()
        self._batch_ends.clear()

    def drop_held_units(self, queues: Collection[ConsumeQueue]) -> None:
        """Drop the held units of deleted queues."""
        self._drop_held(lambda queue, _: queue in queues)

    def drop_held_from(self, queue: ConsumeQueue, offset: int) -> None:
        """Drop the held units of ``queue`` from queue offset ``offset`` on: newer messages have these offsets."""
        self._drop_held(lambda other, last: other is queue and last >= offset)

    def _drop_held(self, is_dropped: Callable[[ConsumeQueue, int], bool]) -> None:
        """Drop the held units, and ends of batches, whose queue and last queue offset ``is_dropped`` selects."""
        if self._held_units:
            kept = [unit for unit in self._held_units if not is_dropped(unit[0], unit[1])]
            self._held_units.clear()
            self._held_units.extend(kept)
        self._batch_ends = deque(end for end in self._batch_ends if not is_dropped(end[0], end[1] - 1))
