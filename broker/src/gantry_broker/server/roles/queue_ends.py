"""Where queues go on that have nothing left in the log, so that a slave that begins anew counts on as its master does.

A slave learns from the log's records what their queues' next numbers are. Of a queue whose messages have all expired no
record is left, and a slave that comes with nothing would let it begin at 0: as the next master it would give numbers
away again that consumers have passed long ago. So the master names such queues to a slave that comes, together with the
end of its own log. When the slave shows everything up to there, its queues that have nothing either begin where the
master says; a queue in which something came since has its number from that.
"""

from __future__ import annotations

import logging
from typing import Final, final

import msgspec

from gantry_broker.errors import StoreFull
from gantry_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

MADE_MAX: Final = 8
"""In one turn of the loop: each may cost a file of the queue with megabytes of filler."""


class QueueEndsDocument(msgspec.Struct, rename="camel"):
    """As it travels."""

    end_table: dict[str, dict[int, int]] = {}
    """Topic, queue id, the next message's number."""


@final
class QueueEnds:
    """Owned by the loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store: Final = store
        self._told: dict[tuple[str, int], int] = {}
        self._stamp = 0
        """Where the master's log ended when it told them."""

    def document(self) -> QueueEndsDocument:
        """A master's queues that have nothing left."""
        ends: dict[str, dict[int, int]] = {}
        for queue in self._store.idle_queues():
            ends.setdefault(queue.topic, {})[queue.queue_id] = queue.end
        return QueueEndsDocument(ends)

    def hear(self, document: QueueEndsDocument, stamp: int) -> None:
        """What the master says."""
        self._told = {
            (topic, number): end for topic, ends in document.end_table.items() for number, end in ends.items()
        }
        self._stamp = stamp

    def forget_topic(self, topic: str) -> None:
        """It is deleted, and begins anew if it is made again."""
        self._told = {place: end for place, end in self._told.items() if place[0] != topic}

    def reach(self, dispatched: int) -> None:
        """Consumers see everything up to here. On a disk without room the rest is tried again with the next call."""
        if self._told and self._store.min_physical > self._stamp:
            self._told = {}  # of a log that was thrown away before it had come so far
        if self._told and dispatched >= self._stamp:
            self._make(MADE_MAX)

    def lead(self) -> None:
        """This broker is the master now, and gives out the next numbers."""
        self._make(len(self._told))
        self._told = {}

    def _make(self, count: int) -> None:
        for topic, number in list(self._told)[:count]:
            try:
                is_made = self._store.go_on_at(topic, number, self._told[topic, number])
            except StoreFull:
                return
            except ValueError as error:
                log.error("the master names a queue that cannot be", extra={"topic": topic, "reason": str(error)})
                is_made = False
            if is_made:
                facts = {"topic": topic, "queue": number, "next": self._told[topic, number]}
                log.info("an empty queue goes on where the master's does", extra=facts)
            del self._told[topic, number]
