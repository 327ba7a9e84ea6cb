"""How far a slave believes its master that transactions have ended.

A document of consumer offsets says where the broker has to begin to read what is open. That is true of a log that has
everything the master had then, and such a document is stamped with the end of the master's log. A slave that took it
before its own log has got there, and became the master, would pass over transactions that are still open in it:

    half queue   ... h85 ...            the master: h85 has ended, begin at 86
    slave's log  ... h85 ...)           without the op message about h85; it must begin at 85

So what a master says is kept until the log has got so far, and when another master is followed nothing is believed of
what this broker knew before: reading too much costs time only.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from gantry_broker.server.core.offsets import SEPARATOR, ConsumerOffsets, OffsetDocument
from gantry_wire import names

WAITING_MAX: Final = 64
"""Documents that the log has not reached yet; what does not fit is left out, and a later one says the same or more."""

TOPICS: Final = (names.HALF_TOPIC, names.OP_HALF_TOPIC)


@final
class TransactionProgress:
    """Owned by the event loop."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets: Final = offsets
        self._waiting: Final[deque[tuple[int, dict[str, int]]]] = deque()
        """(end of the master's log, where it began then by topic)."""

    def hear(self, document: OffsetDocument, end: int) -> None:
        """Take what is ours out of a master's document, whose log ends at ``end``, and put in what holds here."""
        said: dict[str, int] = {}
        for topic in TOPICS:
            key = f"{topic}{SEPARATOR}{names.TRANSACTION_GROUP}"
            said[topic] = document.offset_table.pop(key, {}).get(0, 0)
            own = self._offsets.find(names.TRANSACTION_GROUP, topic, 0)
            if own is not None:
                document.offset_table[key] = {0: own}
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append((end, said))

    def reach(self, position: int) -> None:
        """This log is the master's up to ``position``."""
        said: dict[str, int] = {}
        while self._waiting and self._waiting[0][0] <= position:
            _, said = self._waiting.popleft()
        self._commit(said)

    def lead(self, position: int) -> None:
        """This broker is the master, and its log ends here; what was said of more is forgotten."""
        self.reach(position)
        self._waiting.clear()

    def begin_copying(self) -> None:
        """A master is followed from now on, and this log may have lost what said that something has ended."""
        self._waiting.clear()
        self._commit({topic: 0 for topic in TOPICS if self._offsets.find(names.TRANSACTION_GROUP, topic, 0)})

    def _commit(self, said: dict[str, int]) -> None:
        for topic, offset in said.items():
            self._offsets.commit(names.TRANSACTION_GROUP, topic, 0, offset)
