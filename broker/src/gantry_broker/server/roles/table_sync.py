"""Copies tables from the master to slaves: topics, groups, users, offsets, progress, modes, ends of empty queues.

    master   a table has changed -> its document, stamped with the log's end, over every stream
    slave    a received document -> replaces the table; a topic that is missing in it is deleted when the log has
             reached the stamp

Topics, groups and users are sent at once, changed offsets once a second, all tables when a slave joins. Deletions need
the stamp: a slave whose log is behind would create the topic again from older messages. So do the progress of delays
and timers, the start of open transactions, and offsets of groups that pop: a slave without the log up to the stamp
lacks messages that were delivered or ended, or checkpoints, and would skip messages as the next master. A slave writes
adopted tables to its own files, so that a promotion, and a start, continue from there.

The start offsets of queues without messages are a table of their own. A slave learns the next offset of a queue from
the records of the log. For a queue whose messages have all expired there is no record, and a slave with an empty disk
would start it at 0: as the next master it would assign offsets again that consumers have passed long ago. So the master
reports such queues to a slave that joins, stamped with the end of its log. When everything up to there is visible on
the slave, its empty queues start where the master's do; a queue that has received a message since has its offset from
that.
"""

import logging
from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_access.account_document import AccountDocument
from gantry_broker.errors import StoreFull
from gantry_broker.ha.frames import Table
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.groups import GroupDocument
from gantry_broker.server.core.offsets import DelayOffsetDocument, OffsetDocument
from gantry_broker.server.core.request_modes import MODE_TABLE
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.pop.journal import PopProgress
from gantry_broker.server.timers.progress import TimerDocument
from gantry_broker.server.timers.service import TimerService
from gantry_broker.server.transactions.journal import TransactionProgress
from gantry_broker.store.message_store import MessageStore
from gantry_wire.commands.admin import TopicConfigTable
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.pop import MessageRequestModes

log = logging.getLogger(__name__)

URGENT_TABLES: Final = ("topics", "subscriptionGroup", "accounts")
"""Tables that are sent as soon as they change, since clients notice a delay. The last one is sent only if it exists."""

NAMES: Final = (*URGENT_TABLES, "consumerOffset", "delayOffset", "timerProgress", MODE_TABLE)
"""The tables that are sent when they have changed."""
ON_JOIN: Final = (*NAMES, "queueEnds")
"""Tables that a slave gets when it joins.

The last one is sent only then: a connected slave learns from the log how queues grow.
"""

QUEUES_PER_TURN_MAX: Final = 8
"""Queues changed in one turn of the loop: each may need a new queue file with megabytes of units without a message."""


class QueueEndsDocument(msgspec.Struct, rename="camel"):
    """The table of queue ends as it is sent."""

    end_table: dict[str, dict[int, int]] = {}
    """Next offset of each queue whose end does not follow from the log, by topic and queue id."""


@final
class QueueEnds:
    """The next offset of each queue whose end does not follow from the log, as the master reported it.

    All messages of such a queue have expired, or its last ones were lost. Owned by the loop.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store: Final = store
        self._reported: dict[tuple[str, int], int] = {}
        self._stamp = 0
        """End of the master's log when it reported the next offsets."""

    def document(self) -> QueueEndsDocument:
        """Return the next offset of each queue of this master whose end does not follow from the log."""
        ends: dict[str, dict[int, int]] = {}
        for queue in self._store.queues.queues_not_ending_in_log(self._store.log.min_physical):
            ends.setdefault(queue.topic, {})[queue.queue_id] = queue.end
        return QueueEndsDocument(ends)

    def receive(self, document: QueueEndsDocument, stamp: int) -> None:
        """Keep the next offsets that the master reports."""
        self._reported = {
            (topic, number): end for topic, ends in document.end_table.items() for number, end in ends.items()
        }
        self._stamp = stamp

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic, which starts at 0 if it is created again."""
        self._reported = {(name, number): end for (name, number), end in self._reported.items() if name != topic}

    def apply_reached(self, dispatched: int) -> None:
        """Apply the reported next offsets if ``dispatched``, the visible end of the log, has reached their stamp.

        If the disk has no space for a queue file, a later call tries that queue again.
        """
        if self._reported and self._store.log.min_physical > self._stamp:
            self._reported = {}  # The log was restarted before it had reached the stamp.
        if self._reported and dispatched >= self._stamp:
            self._raise_ends(QUEUES_PER_TURN_MAX)

    def adopt(self) -> None:
        """Apply all ends, because this broker becomes the master and continues the last master's queues.

        Without space for the file of an empty queue its end is kept in memory until its first message creates the file.
        Raises ``StoreFull`` if a queue with files needs fillers, units without a message, and the disk has no space for
        them: new messages would get the offsets of lost ones. Then this broker must not become the master, and the ends
        are kept for the next attempt. Space is reserved for all such queues before any end is applied.
        """
        queues = self._store.queues
        for (topic, number), end in self._reported.items():
            queues.reserve_to(topic, number, end)
        self._raise_ends(len(self._reported))
        for topic, number in self._reported:
            queue = queues.get(topic, number)
            if queue is None or queue.end < self._reported[topic, number]:
                raise StoreFull(f"no room for queue entries of lost messages: topic {topic}, queue {number}")
        self._reported = {}

    def _raise_ends(self, count: int) -> None:
        last_physical = max(self._store.log.wrote - 1, 0)
        for topic, number in list(self._reported)[:count]:
            end = self._reported.pop((topic, number))
            try:
                is_changed = self._store.queues.raise_end(topic, number, end, last_physical)
            except StoreFull:
                self._reported[topic, number] = end  # after the others, which may fit
                continue
            except ValueError as error:
                log.error(
                    "ignored an invalid queue end that the master reported",
                    extra={"topic": topic, "reason": str(error)},
                )
                is_changed = False
            if is_changed:
                log.info("queue end adopted from the master", extra={"topic": topic, "queue": number, "next": end})


@final
class TableSync:
    """Sends a master's tables to slaves, and adopts them on a slave. Owned by the loop."""

    def __init__(
        self, core: BrokerCore, delay: DelayService, timers: TimerService, on_urgent: Callable[[], None]
    ) -> None:
        """``on_urgent`` is called when a table has changed that is sent at once."""
        self._on_urgent: Final = on_urgent
        self._core: Final = core
        self._delay: Final = delay
        self._timers: Final = timers
        self._transactions: Final = TransactionProgress(core.offsets)
        self._pops: Final = PopProgress(core.offsets)
        self.queue_ends: Final = QueueEnds(core.store)
        self._changed: set[str] = set()
        self._offsets_change_count = -1
        self._is_receiving = False
        self._unsaved_at: int | None = None
        """End of the log when users and policies arrived that are not on the disk yet; None if there are none."""
        self._deleted_on_master: dict[str, int] = {}
        """Topics that the master has deleted, with the end of its log when it reported that."""
        self._listed_at: int | None = None
        """End of the master's log when it sent the present topics; None if queues of others are dropped already."""

    # -- a master's side -----------------------------------------------------------------------------------------------

    def mark_changed(self, name: str) -> None:
        """Mark a table as changed, to be sent to slaves."""
        if self._is_receiving:
            return
        self._changed.add(name)
        if name in URGENT_TABLES:
            self._on_urgent()

    def all_tables(self) -> list[Table]:
        """Return all tables, for a slave that has just joined."""
        return [self._encode_table(name) for name in ON_JOIN if name != "accounts" or self._core.accounts is not None]

    def urgent_tables(self) -> list[Table]:
        """Return the changed tables that are sent at once."""
        names = [name for name in URGENT_TABLES if name in self._changed]
        self._changed.difference_update(names)
        return [self._encode_table(name) for name in names]

    def due_tables(self) -> list[Table]:
        """Return the tables that have changed since the last call. Called once a second."""
        if self._core.offsets.change_count != self._offsets_change_count:
            self._offsets_change_count = self._core.offsets.change_count
            self._changed.add("consumerOffset")
        names = [name for name in NAMES if name in self._changed]
        self._changed.clear()
        return [self._encode_table(name) for name in names]

    def _encode_table(self, name: str) -> Table:
        core = self._core
        document: msgspec.Struct
        if name == "topics":
            document = core.topics.document()
        elif name == "subscriptionGroup":
            document = core.groups.document()
        elif name == "consumerOffset":
            document = core.offsets.document()
        elif name == "accounts":
            assert core.accounts is not None, "the table changes only if it exists"
            document = core.accounts.document()
        elif name == "queueEnds":
            document = self.queue_ends.document()
        elif name == "timerProgress":
            document = self._timers.progress.delivered_document()
        elif name == MODE_TABLE:
            document = core.request_modes.document()
        else:
            document = self._delay.progress.delivered_document()
        return Table(core.store.log.wrote, name, write_document(document))

    # -- a slave's side ------------------------------------------------------------------------------------------------

    def receive(self, table: Table) -> None:
        """Adopt a table of the master. An unreadable document is logged, and the old table stays in use."""
        self._is_receiving = True
        try:
            self._store_table(table.name, table.document, table.version)
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
            log.error(
                "cannot read a table of the master; the old one stays in use",
                extra={"table": table.name, "reason": str(error)},
            )
        finally:
            self._is_receiving = False

    def _store_table(self, name: str, data: bytes, end: int) -> None:
        core = self._core
        if name == "topics":
            document = msgspec.json.decode(data, type=TopicConfigTable, strict=False)
            deleted = core.topics.replace_from_master(document)
            self._deleted_on_master = {topic: self._deleted_on_master.get(topic, end) for topic in deleted}
            for topic in deleted:
                self.queue_ends.forget_topic(topic)
            self._listed_at = end
        elif name == "subscriptionGroup":
            core.groups.replace_from_master(msgspec.json.decode(data, type=GroupDocument, strict=False))
        elif name == "consumerOffset":
            offsets = msgspec.json.decode(data, type=OffsetDocument, strict=False)
            self._transactions.receive(offsets, end)
            self._pops.receive(offsets, end)
            core.offsets.replace_from_master(offsets)
        elif name == MODE_TABLE:
            core.request_modes.load(msgspec.json.decode(data, type=MessageRequestModes, strict=False))
            core.persistence.mark(MODE_TABLE, now=False)
        elif name == "delayOffset":
            self._delay.progress.receive(msgspec.json.decode(data, type=DelayOffsetDocument, strict=False), end)
        elif name == "timerProgress":
            self._timers.progress.receive(msgspec.json.decode(data, type=TimerDocument, strict=False), end)
        elif name == "accounts" and core.accounts is not None:
            core.accounts.load(msgspec.json.decode(data, type=AccountDocument, strict=False))
            if self._unsaved_at is None:
                self._unsaved_at = core.store.log.wrote
            core.persistence.mark("accounts", now=True)
        elif name == "queueEnds":
            self.queue_ends.receive(msgspec.json.decode(data, type=QueueEndsDocument, strict=False), end)
        else:
            log.warning("unknown table from the master; ignored", extra={"table": name})

    def ack_limit(self) -> int | None:
        """Return the position beyond which nothing may be acknowledged yet; None if there is no limit.

        The master has appended a record after it sent changed users. Its ack promises that the change survives.
        """
        return self._unsaved_at

    def note_written(self, name: str) -> None:
        """Record that the file of a table is current."""
        if name == "accounts":
            self._unsaved_at = None

    def begin_copying(self) -> None:
        """Forget what waits for the log: a stream begins, perhaps from another master, and sends all tables."""
        self._deleted_on_master.clear()  # Topics that the last master deleted may exist on this one.
        self._listed_at = None
        self._delay.progress.begin_copying()
        self._timers.progress.begin_copying()
        self._transactions.begin_copying()
        self._pops.begin_copying()

    def become_master(self) -> None:
        """Apply the progress of services up to the end of the log; forget what was stamped later."""
        self._delay.progress.become_master()
        self._timers.progress.become_master()
        self._transactions.become_master(self._core.store.log.wrote)
        self._pops.become_master(self._core.store.log.wrote)

    def apply_up_to(self, wrote: int, confirmed: int) -> None:
        """Apply what was stamped up to this end of the log: progress of services, queue ends, deletions."""
        self._is_receiving = True
        try:
            self._delay.progress.apply_up_to(min(wrote, confirmed))
            self._timers.progress.apply_up_to(min(wrote, confirmed))
            self._transactions.apply_up_to(min(wrote, confirmed))
            self._pops.apply_up_to(min(wrote, confirmed))
        finally:
            self._is_receiving = False
        self.queue_ends.apply_reached(self._core.store.dispatcher.dispatched)
        for topic, end in list(self._deleted_on_master.items()):
            if wrote >= end:
                del self._deleted_on_master[topic]
                self._is_receiving = True
                try:
                    self._core.topics.delete(topic)
                finally:
                    self._is_receiving = False
                self._core.store.delete_topic(topic, before=end)
                self._core.offsets.forget_topic(topic)
                log.info("topic deleted, as on the master", extra={"topic": topic})
        if self._listed_at is not None and self._core.store.dispatcher.dispatched >= self._listed_at:
            self._drop_unlisted(self._listed_at)

    def _drop_unlisted(self, listed_at: int) -> None:
        """Drop the queues of topics that the master had deleted before it sent its topics.

        A slave that was behind, or away, gets the messages of a topic that it never knew. A topic exists before its
        first message, so one whose messages all lie before ``listed_at`` was deleted. A topic with a later message may
        be new: the next table decides. Dropping waits for units that are held, which have no physical offset yet.
        A RocketMQ master does not send its topics with the end of its log, so its table proves nothing.
        """
        core, is_held = self._core, False
        listed = core.topics
        unlisted = [name for name in core.store.queues.topics() if name not in listed and not listed.is_system(name)]
        for topic in [] if core.settings.ha.is_master_classic else unlisted:
            queues = [queue for queue in core.store.queues if queue.topic == topic]
            if any(queue.end != queue.readable_end for queue in queues):
                is_held = True
            elif all(queue.end_before(listed_at) == queue.readable_end for queue in queues):
                core.store.delete_topic(topic, before=listed_at)
                core.offsets.forget_topic(topic)
                log.info("topic deleted, as on the master", extra={"topic": topic})
        if not is_held:
            self._listed_at = None
