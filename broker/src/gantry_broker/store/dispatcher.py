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
from typing import Final, Protocol, final

from gantry_broker.store.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

HeldUnit = tuple[ConsumeQueue, int, int, int, int]
"""Queue, queue offset, physical offset, size, tags code."""

Indexed = tuple[ConsumeQueue, Sequence[str], int]
"""Queue, keys, physical offset."""

AppendedListener = Callable[[Collection[ConsumeQueue]], None]


class Index(Protocol):
    """Where keys go."""

    def put_batch(self, items: Sequence[Indexed], timestamp_ms: int) -> None: ...


@final
class Dispatcher:
    """Owned by the loop's thread."""

    def __init__(self, listeners: list[AppendedListener]) -> None:
        self.listeners: Final = listeners
        self.index: Index | None = None
        self.is_held = False
        self.dispatched = 0
        self.tail: tuple[int, int, int] = (0, -1, 0)
        """Everything before the first is in queues and index; the record that ends there, and its store time."""
        self._held_units: deque[HeldUnit] = deque()
        self._held_keys: deque[tuple[int, list[Indexed]]] = deque()

    @property
    def held_count(self) -> int:
        """How many units wait for ``confirmed``."""
        return len(self._held_units)

    def appended(
        self,
        wrote: int,
        last_physical: int,
        timestamp_ms: int,
        touched: Mapping[ConsumeQueue, int],
        held: list[HeldUnit] | None,
        indexed: list[Indexed],
    ) -> None:
        """A batch was appended. Called by the append loop, once, after the bytes are in the log."""
        if held is not None:
            self._held_units += held
            if indexed:
                self._held_keys.append((timestamp_ms, indexed))
            return
        if indexed and self.index is not None:
            self.index.put_batch(indexed, timestamp_ms)
        # Before the ends of the queues move: the flush thread reads those first and this then.
        self.tail = (wrote, last_physical, timestamp_ms)
        for queue in touched:
            queue.readable_end = queue.end
        self.dispatched = wrote
        if touched:
            for listener in self.listeners:
                listener(touched.keys())

    def hold(self) -> None:
        """From now on nothing is shown before ``release`` says so."""
        self.is_held = True

    def release(self, confirmed: int, wrote: int, *, keep_holding: bool = True) -> None:
        """Show every message that ends at or before ``confirmed``. Without holding on, all must be confirmed."""
        touched: dict[ConsumeQueue, int] = {}
        units = self._held_units
        while units and units[0][2] + units[0][3] <= confirmed:
            queue, offset, physical, size, tags_code = units.popleft()
            touched.setdefault(queue, offset)
            queue.put(offset, physical, size, tags_code)
        keys = self._held_keys
        while keys and keys[0][1][-1][2] < confirmed:
            timestamp_ms, indexed = keys.popleft()
            if self.index is not None:
                self.index.put_batch(indexed, timestamp_ms)
        self.dispatched = units[0][2] if units else min(confirmed, wrote)
        if not keep_holding:
            assert not units, "dispatch can be let go only when everything is confirmed"
            self.is_held = False
        if touched:
            for listener in self.listeners:
                listener(touched.keys())
