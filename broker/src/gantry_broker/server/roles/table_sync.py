"""The tables on a slave as they are on its master: topics, groups, offsets, delay progress, ends of empty queues.

    master   a table has changed -> its document, stamped with the log's end, over every stream
    slave    taken as a whole; a topic that is gone from it is deleted when the log has got as far as the stamp

Topics and groups go out at once, offsets once a second if they have changed, everything when a slave comes. The stamp
is for deletions: a slave whose log is behind would make the topic again from older messages of it. And it is for delay
progress, and where open transactions begin: without the log up to there a slave lacks what was delivered or ended, and
would skip it as the next master. A slave writes what it takes to its own files, so that a promotion, and a start, go on
from there.

Where queues start that have nothing left in the log is a table of its own. A slave learns from the log's records what
their queues' next numbers are. Of a queue whose messages have all expired no record is left, and a slave that comes
with nothing would let it begin at 0: as the next master it would give numbers away again that consumers have passed
long ago. So the master reports such queues to a slave that comes, together with the end of its own log. When
everything up to there is visible on the slave, its queues that have nothing either start where the master's do; a queue
in which something came since has its number from that.
"""

import logging
from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_broker.errors import StoreFull
from gantry_broker.ha.frames import Table
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.groups import GroupDocument
from gantry_broker.server.core.offsets import DelayOffsetDocument, OffsetDocument
from gantry_broker.server.core.persist import without_nulls
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.transactions.journal import TransactionProgress
from gantry_broker.store.message_store import MessageStore
from gantry_wire.commands.admin import TopicConfigTable

log = logging.getLogger(__name__)

AT_ONCE: Final = ("topics", "subscriptionGroup")
NAMES: Final = (*AT_ONCE, "consumerOffset", "delayOffset")
ON_JOIN: Final = (*NAMES, "queueEnds")
"""The last of them once only: a slave that stays sees in the log how far queues come."""

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
        self._reported: dict[tuple[str, int], int] = {}
        self._stamp = 0
        """Where the master's log ended when it reported them."""

    def document(self) -> QueueEndsDocument:
        """A master's queues that have nothing left."""
        ends: dict[str, dict[int, int]] = {}
        for queue in self._store.queues.idle(self._store.log.min_physical):
            ends.setdefault(queue.topic, {})[queue.queue_id] = queue.end
        return QueueEndsDocument(ends)

    def receive(self, document: QueueEndsDocument, stamp: int) -> None:
        """Keep what the master reports."""
        self._reported = {
            (topic, number): end for topic, ends in document.end_table.items() for number, end in ends.items()
        }
        self._stamp = stamp

    def forget_topic(self, topic: str) -> None:
        """It is deleted, and begins anew if it is made again."""
        self._reported = {place: end for place, end in self._reported.items() if place[0] != topic}

    def reach(self, dispatched: int) -> None:
        """Consumers see everything up to here. On a disk without room the rest is tried again with the next call."""
        if self._reported and self._store.log.min_physical > self._stamp:
            self._reported = {}  # of a log that was thrown away before it had come so far
        if self._reported and dispatched >= self._stamp:
            self._make(MADE_MAX)

    def adopt(self) -> None:
        """Set all of them: this broker is going to be the master, and its queues continue where the last one's did."""
        self._make(len(self._reported))
        self._reported = {}

    def _make(self, count: int) -> None:
        for topic, number in list(self._reported)[:count]:
            try:
                is_made = self._store.queues.set_start_offset(topic, number, self._reported[topic, number])
            except StoreFull:
                return
            except ValueError as error:
                log.error("the master reports an impossible queue", extra={"topic": topic, "reason": str(error)})
                is_made = False
            if is_made:
                facts = {"topic": topic, "queue": number, "next": self._reported[topic, number]}
                log.info("start offset of empty queue adopted from the master", extra=facts)
            del self._reported[topic, number]


@final
class TableSync:
    """Owned by the loop."""

    def __init__(self, core: BrokerCore, delay: DelayService, on_urgent: Callable[[], None]) -> None:
        """``on_urgent`` is called when a table has changed that goes out at once."""
        self._on_urgent: Final = on_urgent
        self._core: Final = core
        self._delay: Final = delay
        self._transactions: Final = TransactionProgress(core.offsets)
        self.queue_ends: Final = QueueEnds(core.store)
        self._changed: set[str] = set()
        self._offsets_edition = -1
        self._is_taking = False
        self._doomed: dict[str, int] = {}
        """Topics that the master does not have any more, and the end of its log when it reported that."""

    # -- a master's side -----------------------------------------------------------------------------------------------

    def changed(self, name: str) -> None:
        """A table is not what it was."""
        if self._is_taking:
            return
        self._changed.add(name)
        if name in AT_ONCE:
            self._on_urgent()

    def everything(self) -> list[Table]:
        """For a slave that has just come."""
        return [self._table(name) for name in ON_JOIN]

    def urgent(self) -> list[Table]:
        """What goes out at once."""
        names = [name for name in AT_ONCE if name in self._changed]
        self._changed.difference_update(names)
        return [self._table(name) for name in names]

    def due(self) -> list[Table]:
        """Once a second: what has changed since."""
        if self._core.offsets.edition != self._offsets_edition:
            self._offsets_edition = self._core.offsets.edition
            self._changed.add("consumerOffset")
        names = [name for name in NAMES if name in self._changed]
        self._changed.clear()
        return [self._table(name) for name in names]

    def _table(self, name: str) -> Table:
        core = self._core
        document: msgspec.Struct
        if name == "topics":
            document = core.topics.document()
        elif name == "subscriptionGroup":
            document = core.groups.document()
        elif name == "consumerOffset":
            document = core.offsets.document()
        elif name == "queueEnds":
            document = self.queue_ends.document()
        else:
            document = self._delay.progress.delivered()
        data = without_nulls(msgspec.to_builtins(document, str_keys=True))
        return Table(core.store.log.wrote, name, msgspec.json.encode(data))

    # -- a slave's side ------------------------------------------------------------------------------------------------

    def take(self, table: Table) -> None:
        """Take a table of the master. A document that cannot be read is logged, and the old one stays in use."""
        self._is_taking = True
        try:
            self._take(table.name, table.document, table.version)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.error("the master's table cannot be read", extra={"table": table.name, "reason": str(error)})
        finally:
            self._is_taking = False

    def _take(self, name: str, data: bytes, end: int) -> None:
        core = self._core
        if name == "topics":
            document = msgspec.json.decode(data, type=TopicConfigTable, strict=False)
            gone = core.topics.take(document)
            self._doomed = {topic: self._doomed.get(topic, end) for topic in gone}
            for topic in gone:
                self.queue_ends.forget_topic(topic)
        elif name == "subscriptionGroup":
            core.groups.take(msgspec.json.decode(data, type=GroupDocument, strict=False))
        elif name == "consumerOffset":
            offsets = msgspec.json.decode(data, type=OffsetDocument, strict=False)
            self._transactions.receive(offsets, end)
            core.offsets.take(offsets)
        elif name == "delayOffset":
            self._delay.progress.receive(msgspec.json.decode(data, type=DelayOffsetDocument, strict=False), end)
        elif name == "queueEnds":
            self.queue_ends.receive(msgspec.json.decode(data, type=QueueEndsDocument, strict=False), end)
        else:
            log.warning("the master has a table that is not known here", extra={"table": name})

    def begin_copying(self) -> None:
        """A master is followed from now on; its tables come with its log."""
        self._doomed.clear()  # what another one had deleted may live on with this one
        self._delay.progress.begin_copying()
        self._transactions.begin_copying()

    def lead(self) -> None:
        """This broker is the master now."""
        self._delay.progress.lead()
        self._transactions.lead(self._core.store.log.wrote)

    def settle(self, wrote: int, confirmed: int) -> None:
        """The log has got so far: topics that were deleted by then go, and what was delivered by then counts."""
        self._is_taking = True
        try:
            self._delay.progress.reach(min(wrote, confirmed))
            self._transactions.reach(min(wrote, confirmed))
        finally:
            self._is_taking = False
        self.queue_ends.reach(self._core.store.dispatcher.dispatched)
        for topic, end in list(self._doomed.items()):
            if wrote >= end:
                del self._doomed[topic]
                self._is_taking = True
                try:
                    self._core.topics.delete(topic)
                finally:
                    self._is_taking = False
                self._core.store.delete_topic(topic, before=end)
                self._core.offsets.forget_topic(topic)
                log.info("a topic was deleted on the master", extra={"topic": topic})
