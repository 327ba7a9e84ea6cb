"""Late timer messages: those that are read when later ones are delivered already, so they are delivered at once.

They are in no file. A start reads them again from the log, from the smallest of their queue offsets on, which is needed
after each slice of deliveries; so the offsets have a heap of their own.
"""

from __future__ import annotations

import heapq
from typing import Final, final

from gantry_broker.server.timers.entries import decode_entry


@final
class UrgentMessages:
    """The entries of late messages, in due order. Owned by the event loop."""

    def __init__(self) -> None:
        self._by_due: list[bytes] = []
        self._entries: Final[set[bytes]] = set()
        self._offsets: list[int] = []
        """A heap of queue offsets, of which some may be removed."""
        self._present: Final[set[int]] = set()
        """The queue offsets that are not removed."""

    def __repr__(self) -> str:
        return f"<UrgentMessages {len(self)}>"

    def __len__(self) -> int:
        return len(self._by_due)

    def __contains__(self, data: bytes) -> bool:
        return data in self._entries

    @property
    def first_offset(self) -> int | None:
        """The smallest queue offset; None if there is no message."""
        while self._offsets and self._offsets[0] not in self._present:
            heapq.heappop(self._offsets)
        return self._offsets[0] if self._offsets else None

    def clear(self) -> None:
        """Remove all messages: a start reads them again."""
        self._by_due, self._offsets = [], []
        self._entries.clear()
        self._present.clear()

    def push(self, data: bytes) -> None:
        """Add the entry of a message; one that is there already is ignored."""
        if data in self._entries:
            return
        offset = decode_entry(data).queue_offset
        heapq.heappush(self._by_due, data)
        heapq.heappush(self._offsets, offset)
        self._entries.add(data)
        self._present.add(offset)

    def peek(self) -> bytes | None:
        """Return the entry that is due first; None if there is none."""
        return self._by_due[0] if self._by_due else None

    def pop(self) -> bytes:
        """Remove and return the entry that is due first."""
        data = heapq.heappop(self._by_due)
        self._entries.discard(data)
        self._present.discard(decode_entry(data).queue_offset)
        return data
