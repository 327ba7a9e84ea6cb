"""The log as transactions see it: what is open is read from it, and what becomes of that is added to it.

This broker reads the two queues as a consumer would, up to their ends whenever a transaction is ended, and after a
start or a promotion from where the last reading was of interest. Nothing is acted on before everything from before this
broker was the master is read: what seems open there may have been ended by another master.

What is appended together is in the log together but for one case: the log may have been torn between the two.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from dataclasses import replace
from typing import Final, NamedTuple, final

from gantry_broker.errors import IndexRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.healed_records import HealedRecords
from gantry_broker.server.core.offsets import SEPARATOR, ConsumerOffsets, OffsetDocument
from gantry_broker.server.core.stamped_documents import StampedDocuments
from gantry_broker.server.transactions import records
from gantry_broker.server.transactions.halves import Half, OpenHalves, newest_places
from gantry_broker.server.transactions.records import Outcome
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX: Final = 64
SLICE_BYTES_MAX: Final = 1 << 20
LOOK_UP_MAX: Final = 64
"""Messages with one key that are looked at."""

RESUMED_KEPT: Final = 1024
"""The index of keys may not have the newest half messages yet, and knows those before them."""

TOPICS: Final = (names.HALF_TOPIC, names.OP_HALF_TOPIC)


class Slice(NamedTuple):
    """What was read of a queue at once."""

    messages: list[StoredMessage]
    next_offset: int
    is_end: bool
    """Whether there is nothing more."""

    is_waiting: bool = False
    """Whether the next message is damaged, and may still come from a replica: nothing behind it is read yet."""


def read_slice(store: MessageStore, topic: str, offset: int) -> Slice:
    """Messages of a queue of half or op messages from ``offset`` on."""
    queue = store.queues.get(topic, 0)
    if queue is None:
        return Slice([], offset, is_end=True)
    offset = max(offset, queue.min_offset)
    if offset >= queue.readable_end:
        return Slice([], offset, is_end=True)
    result = store.read(topic, 0, offset, count_max=SLICE_MESSAGES_MAX, bytes_max=SLICE_BYTES_MAX, accept=None)
    if result.is_waiting and not result.body:
        return Slice([], max(offset, result.next_offset), is_end=False, is_waiting=True)
    messages: list[StoredMessage] = []
    position = 0
    try:
        while position < len(result.body):
            messages.append(decode_record(result.body, position))
            position += messages[-1].size
        next_offset = max(result.next_offset, offset + 1)
    except RemoteProtocolError as error:
        log.error("a message of a transaction is damaged", extra={"topic": topic, "reason": str(error)})
        next_offset = messages[-1].queue_offset + 1 if messages else offset + 1
    return Slice(messages, next_offset, is_end=next_offset >= queue.readable_end)


def ops_about(store: MessageStore, half_offset: int) -> list[StoredMessage]:
    """The op messages of ours about a half message. Raises ``IndexRebuilding`` while not all of them are known."""
    found, _, _ = store.keys.records(names.OP_HALF_TOPIC, str(half_offset), LOOK_UP_MAX, 0, 1 << 62)
    return [op for op in map(decode_record, found) if records.is_about(op, half_offset)]


@final
class TransactionJournal:
    """Which transactions are open, as far as the log was read. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self.halves = OpenHalves()
        self._epoch = -1
        """The epoch that ``halves`` is of."""

        self._begin = 0
        """Where the log ended when this broker became the master."""

        self._is_level = False
        """Whether the queues were read to their ends since then."""

        self.is_waiting = False
        """Whether the next message is damaged, and may still come from a replica: nothing behind it is read yet."""

        self.healed: Final = HealedRecords(core.store, *TOPICS)
        self._unflushed: Final[deque[tuple[int, int, int]]] = deque()
        """(end in the log, half, op): where a restart may begin once that much is on the disk."""

    def __repr__(self) -> str:
        return f"<TransactionJournal {self.halves!r} epoch={self._epoch}>"

    @property
    def is_master(self) -> bool:
        """Whether the log is ours to add to."""
        gate = self._core.gate
        return gate.sends is None and not gate.is_still

    @property
    def is_ready(self) -> bool:
        """Whether everything from before this broker was the master is read, and may be acted on."""
        self._follow_epoch()
        return self._is_level and self._core.store.dispatcher.dispatched >= self._begin

    def knows(self, half_offset: int) -> bool:
        """Whether it is known what is open, and whether that half message is: reads what is new, if it is not much."""
        if not self.is_master or not self.read_on() or not self.is_ready:
            return False
        queue = self._core.store.queues.get(names.HALF_TOPIC, 0)
        return queue is None or not queue.readable_end <= half_offset < queue.end

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_on(self) -> bool:
        """Read a slice of what is new. True when there is nothing more."""
        self._follow_epoch()
        is_all_there = self._core.store.dispatcher.dispatched >= self._begin  # before it is read: it grows meanwhile
        if not self._read_halves() or not self._read_ops():
            return False
        self._is_level = self._is_level or is_all_there
        return True

    def _follow_epoch(self) -> None:
        """After a promotion the log may be another one: begin anew."""
        epoch = self._core.store.identity.epoch
        if epoch == self._epoch:
            return
        offsets = self._core.offsets
        half = offsets.find(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0) or 0
        op = offsets.find(names.TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0) or 0
        self.halves, self._epoch, self._is_level = OpenHalves(half, op), epoch, False
        self._begin = self._core.store.log.wrote
        self._unflushed.clear()

    def _read_halves(self) -> bool:
        halves = self.halves
        read = read_slice(self._core.store, names.HALF_TOPIC, halves.half_offset)
        self.is_waiting = read.is_waiting
        for message in read.messages:
            halves.found(self._half_of(message, is_restored=not self._is_level))
        halves.passed(read.next_offset)
        return read.is_end

    def _read_ops(self) -> bool:
        halves = self.halves
        read = read_slice(self._core.store, names.OP_HALF_TOPIC, halves.op_offset)
        self.is_waiting = read.is_waiting
        for message in read.messages:
            try:
                ended = records.ended_by(message)
            except ValueError as error:
                log.error("an op message cannot be read", extra={"offset": message.queue_offset, "reason": str(error)})
                ended = []
            halves.done(message.queue_offset, ended)
        halves.passed_ops(read.next_offset)
        return read.is_end

    def _half_of(self, message: StoredMessage, *, is_restored: bool) -> Half:
        settings = self._core.settings
        return records.half_of(
            message, settings.transaction_timeout_ms, settings.transaction_check_interval_ms, is_restored=is_restored
        )

    # -- looking up ----------------------------------------------------------------------------------------------------

    def message(self, half: Half) -> StoredMessage | None:
        """The half message itself; None if its file has expired, or is damaged."""
        message = self.half_at(half.physical, is_known=True)
        return message if message is not None and message.queue_offset == half.queue_offset else None

    def half_at(self, physical_offset: int, *, is_known: bool = False) -> StoredMessage | None:
        """The half message that begins at this place of the log; None if none does. ``is_known``: one did."""
        store = self._core.store
        record = store.guard.message_at(physical_offset, is_known=is_known) if physical_offset >= 0 else None
        message = None if record is None else decode_record(record)
        return message if message is not None and message.topic == names.HALF_TOPIC else None

    # -- what was passed over, and is healed --------------------------------------------------------------------------

    def take_healed(self) -> None:
        """Take messages into account that were passed over as damaged, and are good again.

        Raises ``IndexRebuilding`` while it is not known what has ended.
        """
        self.healed.take(self._take_healed)

    def _take_healed(self, record: bytes) -> None:
        message = decode_record(record)
        halves, offset = self.halves, message.queue_offset
        if message.topic == names.OP_HALF_TOPIC:
            if offset < halves.op_offset:
                with contextlib.suppress(ValueError):
                    halves.close(records.ended_by(message))
            return
        if offset >= halves.half_offset or halves.is_known(offset) or ops_about(self._core.store, offset):
            return
        half = self._half_of(message, is_restored=True)
        halves.reopen(half)
        log.warning("a half message that was passed over is open again", extra={"offset": offset, "group": half.group})

    # -- where to begin after a restart --------------------------------------------------------------------------------

    def note(self) -> None:
        """Keep where reading has to begin: never beyond what a power loss leaves of the log."""
        store, halves, offsets = self._core.store, self.halves, self._core.offsets
        low = (halves.half_low, halves.op_low)
        if any(low) and (not self._unflushed or self._unflushed[-1][1:] != low):
            self._unflushed.append((store.log.wrote, *low))
        while self._unflushed and self._unflushed[0][0] <= store.log.flushed:
            _, half, op = self._unflushed.popleft()
            offsets.commit(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0, half)
            offsets.commit(names.TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0, op)


@final
class TransactionWriter:
    """Adds to the log what becomes of transactions, in one piece where it belongs together. Owned by the event loop."""

    def __init__(self, core: BrokerCore, journal: TransactionJournal) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._resumed: Final[dict[int, int]] = {}
        """Where messages lie that were given up and resumed, and where the half message of each is."""

    def end(self, half: Half, outcome: Outcome, drafts: list[Draft]) -> None:
        """Store what it comes to, and that it is over, in one piece. Raises what the store raises."""
        core = self._core
        core.store.append_contiguous([*drafts, self._op(half, newest_places(half), outcome)])
        core.stats.put(len(drafts), core.store)
        self._journal.halves.ended(half, outcome)

    def renew(self, half: Half, message: StoredMessage) -> StoredMessage | None:
        """Store it again, counted; None if its properties have no room for that. Raises what the store raises."""
        store = self._core.store
        try:
            draft = records.renewed_draft(message, store.queues.get_or_create(names.HALF_TOPIC, 0), half)
        except LocalProtocolError:
            return None
        op = self._op(half, [half.queue_offset], Outcome.STORED_AGAIN)
        physical_offsets, queue_offsets = store.append_contiguous([draft, op])
        half.stored_again(queue_offsets[0])
        return replace(
            message, physical_offset=physical_offsets[0], queue_offset=queue_offsets[0],
            properties_bytes=draft.properties,
        )  # fmt: skip

    def resume(self, message: StoredMessage) -> None:
        """Store one that was given up as a half message again. Raises what the store raises."""
        core = self._core
        draft = records.resumed_draft(message, core.store.queues.get_or_create(names.HALF_TOPIC, 0))
        [physical_offset], _ = core.store.append([draft])
        core.stats.put(1, core.store)
        if len(self._resumed) >= RESUMED_KEPT:
            del self._resumed[next(iter(self._resumed))]
        self._resumed[message.physical_offset] = physical_offset

    def is_resumed(self, message: StoredMessage) -> bool:
        """Whether there is a newer half message of one that was given up. Raises ``IndexRebuilding``."""
        if message.physical_offset in self._resumed:
            return True
        unique = message.properties.get(keys.UNIQUE_KEY)
        if not unique:
            return False
        matches = self._core.store.keys.matches(names.HALF_TOPIC, unique, LOOK_UP_MAX, 0, 1 << 62)
        if any(offset > message.physical_offset for offset in matches.physical_offsets):
            return True
        if not matches.is_complete:
            raise IndexRebuilding("the key index is being rebuilt from the commit log; try again later")
        return False

    def log_cut(self, end: int) -> None:
        """Forget half messages behind ``end``: other messages will lie at those places."""
        for place in [place for place, half in self._resumed.items() if half >= end]:
            del self._resumed[place]

    def _op(self, half: Half, ended: list[int], outcome: Outcome) -> Draft:
        core = self._core
        queue = core.store.queues.get_or_create(names.OP_HALF_TOPIC, 0)
        return records.op_draft(queue, half, ended, outcome, host=core.store_host, now_ms=core.clock.wall_ms())


@final
class TransactionProgress:
    """How far a slave believes its master that transactions have ended. Owned by the event loop.

    A document of consumer offsets holds where the broker has to begin to read what is open. That is true of a log that
    has everything the master had then, and such a document is stamped with the end of the master's log. A slave that
    took it before its own log has got there, and became the master, would pass over transactions that are still open:

        half queue   ... h85 ...            the master: h85 has ended, begin at 86
        slave's log  ... h85 ...)           without the op message about h85; it must begin at 85

    So a master's document is kept until the log has got so far, and when another master is followed nothing is believed
    that this broker knew before: reading too much costs time only.
    """

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets: Final = offsets
        self._waiting: Final = StampedDocuments[dict[str, int]]()
        """Where the master began, by topic."""

    def receive(self, document: OffsetDocument, end: int) -> None:
        """Take what is ours out of a master's document, whose log ends at ``end``, and put in what holds here."""
        begins: dict[str, int] = {}
        for topic in TOPICS:
            key = f"{topic}{SEPARATOR}{names.TRANSACTION_GROUP}"
            begins[topic] = document.offset_table.pop(key, {}).get(0, 0)
            own = self._offsets.find(names.TRANSACTION_GROUP, topic, 0)
            if own is not None:
                document.offset_table[key] = {0: own}
        self._waiting.receive(begins, end)

    def reach(self, position: int) -> None:
        """This log is the master's up to ``position``."""
        newest = self._waiting.reach(position)
        if newest is not None:
            self._commit(newest[1])

    def lead(self, position: int) -> None:
        """This broker is the master, and its log ends here; documents of a longer log are forgotten."""
        self.reach(position)
        self._waiting.clear()

    def begin_copying(self) -> None:
        """A master is followed from now on, and this log may have lost op messages."""
        self._waiting.clear()
        self._commit({topic: 0 for topic in TOPICS if self._offsets.find(names.TRANSACTION_GROUP, topic, 0)})

    def _commit(self, begins: dict[str, int]) -> None:
        for topic, offset in begins.items():
            self._offsets.commit(names.TRANSACTION_GROUP, topic, 0, offset)
