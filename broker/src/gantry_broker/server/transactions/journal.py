"""Reads open transactions from the log, and appends their changes to it.

This broker reads the queues of half and op messages like a consumer: ten times a second, and before it ends a
transaction.
After a start or a promotion it begins at the restart offsets, which it commits as the offsets of its own group
(`TRANSACTION_GROUP`). No transaction is changed before all messages from before the promotion are read: one that seems
open may have been ended by another master.

Records that are appended together are in the log together, except if the log was torn between them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import Final, NamedTuple, final

from msgspec.structs import replace

from gantry_broker.errors import IndexRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.healed_records import HealedRecords
from gantry_broker.server.core.offsets import ConsumerOffsets, OffsetDocument
from gantry_broker.server.core.stamped_documents import StampedDocuments
from gantry_broker.server.core.unsaved_progress import SEPARATOR
from gantry_broker.server.transactions import records
from gantry_broker.server.transactions.halves import Half, OpenHalves, newest_copies
from gantry_broker.server.transactions.records import Outcome
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX: Final = 64
"""Limit of the messages of a queue that are read at once."""
SLICE_BYTES_MAX: Final = 1 << 20
"""Limit of the bytes of these messages."""
LOOK_UP_MAX: Final = 64
"""The limit of messages with one key that are examined."""

RESUMED_KEPT: Final = 1024
"""How many resumed messages are remembered: the key index may lack the newest half messages, and has the older ones."""

TOPICS: Final = (names.HALF_TOPIC, names.OP_HALF_TOPIC)
"""The topics of half messages and of op messages."""


class Slice(NamedTuple):
    """A part of a queue that was read at once."""

    messages: list[StoredMessage]
    next_offset: int
    """The queue offset at which reading continues."""

    is_end: bool
    """Whether the slice reaches the end of the queue."""

    is_waiting: bool = False
    """Whether the next message is damaged and may still be healed from a replica; reading waits for it."""


def read_slice(store: MessageStore, topic: str, offset: int) -> Slice:
    """Read messages of the half queue or the op queue from ``offset`` on."""
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
        if messages:  # the next slice begins with the damaged message
            return Slice(messages, messages[-1].queue_offset + 1, is_end=False)
        facts = {"topic": topic, "queue_offset": offset, "reason": str(error)}
        log.error("damaged transaction message; skipping it", extra=facts)
        next_offset = offset + 1
    return Slice(messages, next_offset, is_end=next_offset >= queue.readable_end)


def find_ops_for(store: MessageStore, half_offset: int) -> list[StoredMessage]:
    """Return our op messages about a half message. Raises ``IndexRebuilding`` while the index is incomplete."""
    found, _, _ = store.keys.records(names.OP_HALF_TOPIC, str(half_offset), LOOK_UP_MAX, 0, 1 << 62)
    return [op for op in map(decode_record, found) if records.is_op_for(op, half_offset)]


@final
class TransactionJournal:
    """The open transactions of the log, as far as it was read. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self.halves = OpenHalves()
        """The open transactions, as far as the queues were read."""
        self._epoch = -1
        """The epoch for which ``halves`` was read."""

        self._promotion_end = 0
        """The end of the log when this broker became the master."""

        self._is_caught_up = False
        """Whether the queues were read up to ``_promotion_end``."""

        self.is_waiting = False
        """Whether the next message is damaged and may still be healed from a replica; reading waits for it."""

        self.healed: Final = HealedRecords(core.store, *TOPICS)
        self._unflushed: Final[deque[tuple[int, int, int]]] = deque()
        """(end in the log, half, op): the restart offsets that become valid once the log is flushed up to the end."""

    def __repr__(self) -> str:
        return f"<TransactionJournal {self.halves!r} epoch={self._epoch}>"

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master and may append to the log, which no other thread is changing."""
        return self._core.gate.may_append

    @property
    def is_ready(self) -> bool:
        """Whether all messages from before the promotion are read, so that transactions may be changed."""
        self._follow_epoch()
        return self._is_caught_up and self._core.store.dispatcher.dispatched >= self._promotion_end

    def read_up_to(self, half_offset: int) -> bool:
        """Read new messages if they are few; return whether the journal is ready and lacks no message so far.

        False while this half message is stored but cannot be read yet. A half message that does not exist is not known
        afterwards.
        """
        if not self.is_master or not self.read_next() or not self.is_ready:
            return False
        queue = self._core.store.queues.get(names.HALF_TOPIC, 0)
        return queue is None or not queue.readable_end <= half_offset < queue.end

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_next(self) -> bool:
        """Read a slice of each queue. True if both are read to their ends."""
        self._follow_epoch()
        # Checked before reading, since the dispatched position grows meanwhile.
        is_all_dispatched = self._core.store.dispatcher.dispatched >= self._promotion_end
        if not self._read_halves() or not self._read_ops():
            return False
        self._is_caught_up = self._is_caught_up or is_all_dispatched
        return True

    def _follow_epoch(self) -> None:
        """Start from the restart offsets after a promotion, since the log may have changed."""
        epoch = self._core.store.identity.epoch
        if epoch == self._epoch:
            return
        offsets = self._core.offsets
        half = offsets.find(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0) or 0
        op = offsets.find(names.TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0) or 0
        self.halves, self._epoch, self._is_caught_up = OpenHalves(half, op), epoch, False
        self._promotion_end = self._core.store.log.wrote
        self._unflushed.clear()

    def _read_halves(self) -> bool:
        halves = self.halves
        read = read_slice(self._core.store, names.HALF_TOPIC, halves.half_offset)
        self.is_waiting = read.is_waiting
        for message in read.messages:
            halves.add(self._parse_half(message, is_restored=not self._is_caught_up))
        halves.skip_to(read.next_offset)
        return read.is_end

    def _read_ops(self) -> bool:
        halves = self.halves
        read = read_slice(self._core.store, names.OP_HALF_TOPIC, halves.op_offset)
        self.is_waiting = read.is_waiting
        for message in read.messages:
            try:
                ended = records.parse_ended_offsets(message)
            except ValueError as error:
                log.error(
                    "unreadable op message; skipping it", extra={"offset": message.queue_offset, "reason": str(error)}
                )
                ended = []
            halves.add_op(message.queue_offset, ended)
        halves.skip_ops_to(read.next_offset)
        return read.is_end

    def _parse_half(self, message: StoredMessage, *, is_restored: bool) -> Half:
        settings = self._core.settings
        return records.parse_half(
            message, settings.transaction_timeout_ms, settings.transaction_check_interval_ms, is_restored=is_restored
        )

    # -- reading single messages ---------------------------------------------------------------------------------------

    def read_message(self, half: Half) -> StoredMessage | None:
        """Return the half message of a transaction; None if it has expired or is damaged."""
        message = self.read_half_at(half.physical, is_known=True)
        return message if message is not None and message.queue_offset == half.queue_offset else None

    def read_half_at(self, physical_offset: int, *, is_known: bool = False) -> StoredMessage | None:
        """Return the half message at this physical offset, or None. ``is_known``: a record starts there."""
        store = self._core.store
        record = store.guard.message_at(physical_offset, is_known=is_known) if physical_offset >= 0 else None
        message = None if record is None else decode_record(record)
        return message if message is not None and message.topic == names.HALF_TOPIC else None

    # -- healed messages -----------------------------------------------------------------------------------------------

    def process_healed(self) -> None:
        """Process messages that were skipped as damaged and are healed now.

        Raises ``IndexRebuilding`` while it is unknown which transactions have ended.
        """
        self.healed.process(self._process_healed_record)

    def _process_healed_record(self, record: bytes) -> None:
        message = decode_record(record)
        halves, offset = self.halves, message.queue_offset
        if message.topic == names.OP_HALF_TOPIC:
            if offset < halves.op_offset:
                with contextlib.suppress(ValueError):
                    halves.close(records.parse_ended_offsets(message))
            return
        if offset >= halves.half_offset or halves.is_known(offset) or find_ops_for(self._core.store, offset):
            return
        half = self._parse_half(message, is_restored=True)
        halves.reopen(half)
        log.warning("reopened transaction of healed half message", extra={"offset": offset, "group": half.group})

    # -- restart offsets -----------------------------------------------------------------------------------------------

    def save_progress(self) -> None:
        """Save the restart offsets of the flushed part of the log, so that they are valid after a power loss."""
        store, halves, offsets = self._core.store, self.halves, self._core.offsets
        restart = (halves.half_restart_offset, halves.op_restart_offset)
        if any(restart) and (not self._unflushed or self._unflushed[-1][1:] != restart):
            self._unflushed.append((store.log.wrote, *restart))
        while self._unflushed and self._unflushed[0][0] <= store.log.flushed:
            _, half, op = self._unflushed.popleft()
            offsets.commit(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0, half)
            offsets.commit(names.TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0, op)


@final
class TransactionWriter:
    """Appends the changes of transactions to the log, related records together. Owned by the event loop."""

    def __init__(self, core: BrokerCore, journal: TransactionJournal) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._resumed: Final[dict[int, int]] = {}
        """Physical offset of each resumed message -> that of its new half message."""

    def end(self, half: Half, outcome: Outcome, drafts: list[Draft]) -> None:
        """End a transaction: append ``drafts`` and the op message together. Raises errors of the store."""
        core = self._core
        core.store.append_contiguous([*drafts, self._op_draft(half, newest_copies(half), outcome)])
        core.stats.count_put(len(drafts), core.store)
        self._journal.halves.mark_ended(half, outcome)

    def renew(self, half: Half, message: StoredMessage) -> StoredMessage | None:
        """Store the half message again with its next check count. Raises errors of the store.

        None if its properties have no room for the count.
        """
        store = self._core.store
        try:
            draft = records.renewed_draft(message, store.queues.get_or_create(names.HALF_TOPIC, 0), half)
        except LocalProtocolError:
            return None
        op = self._op_draft(half, [half.queue_offset], Outcome.STORED_AGAIN)
        physical_offsets, queue_offsets = store.append_contiguous([draft, op])
        half.set_successor(queue_offsets[0])
        return replace(
            message, physical_offset=physical_offsets[0], queue_offset=queue_offsets[0],
            properties_bytes=draft.properties,
        )  # fmt: skip

    def resume(self, message: StoredMessage) -> None:
        """Store the message of an abandoned transaction as a half message again. Raises errors of the store."""
        core = self._core
        draft = records.resumed_draft(message, core.store.queues.get_or_create(names.HALF_TOPIC, 0))
        [physical_offset], _ = core.store.append([draft])
        core.stats.count_put(1, core.store)
        if len(self._resumed) >= RESUMED_KEPT:
            del self._resumed[next(iter(self._resumed))]
        self._resumed[message.physical_offset] = physical_offset

    def is_resumed(self, message: StoredMessage) -> bool:
        """Whether the message of an abandoned transaction has a newer half message. Raises ``IndexRebuilding``."""
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

    def on_log_changed(self, end: int) -> None:
        """Forget half messages from ``end`` on: other messages will be stored at their offsets."""
        for given_up in [given_up for given_up, half in self._resumed.items() if half >= end]:
            del self._resumed[given_up]

    def _op_draft(self, half: Half, ended: list[int], outcome: Outcome) -> Draft:
        core = self._core
        queue = core.store.queues.get_or_create(names.OP_HALF_TOPIC, 0)
        return records.op_draft(queue, half, ended, outcome, host=core.store_host, now_ms=core.clock.wall_ms())


@final
class TransactionProgress:
    """The restart offsets of transactions on a slave, as far as its own log supports them. Owned by the event loop.

    A document of consumer offsets holds the restart offsets. They are valid only for a log that has all that the
    master's log had, so the document is stamped with the end of that log. A slave that applied them before its own log
    has that end, and became the master, would skip transactions that are still open:

        half queue   ... h85 ...            the master: h85 has ended, the restart offset is 86
        slave's log  ... h85 ...)           without the op message about h85; it must start at 85

    So a master's document waits until the log has its end, and whenever a stream from a master begins the restart
    offsets are dropped: reading too much costs only time.
    """

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets: Final = offsets
        self._waiting: Final = StampedDocuments[dict[str, int]]()
        """The restart offsets of the master by topic."""

    def receive(self, document: OffsetDocument, end: int) -> None:
        """Replace the restart offsets in a master's document, stamped with ``end``, by those of this broker."""
        starts: dict[str, int] = {}
        for topic in TOPICS:
            key = f"{topic}{SEPARATOR}{names.TRANSACTION_GROUP}"
            starts[topic] = document.offset_table.pop(key, {}).get(0, 0)
            own = self._offsets.find(names.TRANSACTION_GROUP, topic, 0)
            if own is not None:
                document.offset_table[key] = {0: own}
        self._waiting.receive(starts, end)

    def apply_up_to(self, position: int) -> None:
        """Apply the restart offsets for a log that equals the master's up to ``position``."""
        newest = self._waiting.take_reached(position)
        if newest is not None:
            self._commit(newest[1])

    def become_master(self, position: int) -> None:
        """Apply the restart offsets up to the end of the log, and forget later ones: this broker is the master."""
        self.apply_up_to(position)
        self._waiting.clear()

    def begin_copying(self) -> None:
        """Drop the restart offsets: the broker follows a master, and its log may have lost op messages."""
        self._waiting.clear()
        self._commit({topic: 0 for topic in TOPICS if self._offsets.find(names.TRANSACTION_GROUP, topic, 0)})

    def _commit(self, starts: dict[str, int]) -> None:
        for topic, offset in starts.items():
            self._offsets.commit(names.TRANSACTION_GROUP, topic, 0, offset)
