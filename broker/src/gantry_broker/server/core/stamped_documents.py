"""What a master reports of its tables, for a slave that must not believe it before its own log has got as far."""

from collections import deque
from typing import Final, Generic, TypeVar, final

WAITING_MAX: Final = 64
"""Documents that the log has not reached yet; the newest stands for what does not fit."""

D = TypeVar("D")


@final
class StampedDocuments(Generic[D]):
    """Documents of one table, each stamped with the end of the master's log at that time. Owned by the event loop."""

    def __init__(self) -> None:
        self.waiting: Final[deque[tuple[int, D]]] = deque()
        """With their stamps, in order."""

    def receive(self, document: D, end: int) -> None:
        """Keep a document of a master whose log ends at ``end``."""
        if len(self.waiting) >= WAITING_MAX:
            self.waiting.pop()
        self.waiting.append((end, document))

    def reach(self, position: int) -> tuple[int, D] | None:
        """The newest one that holds for a log up to ``position``, with its stamp; it and older ones are forgotten."""
        newest: tuple[int, D] | None = None
        while self.waiting and self.waiting[0][0] <= position:
            newest = self.waiting.popleft()
        return newest

    def clear(self) -> None:
        """Forget all of them: another master is followed, or this broker is the master."""
        self.waiting.clear()
