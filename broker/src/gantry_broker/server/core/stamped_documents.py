"""Tables that a master has sent, which a slave must not apply before its own log has reached their stamps.

The stamp of a table is the end of the master's log when it sent the table.
"""

from collections import deque
from typing import Final, Generic, TypeVar, final

WAITING_MAX: Final = 64
"""How many documents wait for the log. When one more arrives, it replaces the last of them."""

D = TypeVar("D")


@final
class StampedDocuments(Generic[D]):
    """Documents of one table, each stamped with the end of the master's log at that time. Owned by the event loop."""

    def __init__(self) -> None:
        self.waiting: Final[deque[tuple[int, D]]] = deque()
        """The waiting documents with their stamps, in order of arrival."""

    def receive(self, document: D, end: int) -> None:
        """Add a document that the master sent when its log ended at ``end``."""
        if len(self.waiting) >= WAITING_MAX:
            self.waiting.pop()
        self.waiting.append((end, document))

    def take_reached(self, position: int) -> tuple[int, D] | None:
        """Remove the documents stamped up to ``position``; return the newest of them with its stamp."""
        newest: tuple[int, D] | None = None
        while self.waiting and self.waiting[0][0] <= position:
            newest = self.waiting.popleft()
        return newest

    def clear(self) -> None:
        """Remove all documents, since a stream from a master begins, or the broker is the master."""
        self.waiting.clear()
