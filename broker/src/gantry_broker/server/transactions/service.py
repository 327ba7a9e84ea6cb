"""Transactions of this broker: half messages are kept, ended, asked about, and given up.

    producer   half --------------> stored, code 0; nobody sees it
               end ---------------> [committed, op] or [op], in one piece; the answer when that is promised
    broker     no end in time ----> [half again, op], then the question to any live producer of the group
               asked too often, or too old -----> [a copy in TRANS_CHECK_MAX_TIME_TOPIC, op]

Nothing but the log says what is open: this broker reads the two queues as a consumer would, up to their ends whenever
somebody ends a transaction, and after a start or a promotion from where the last reading was of interest. What is
appended together is in the log together but for one case: the log may have been torn between the two. Then the half
message looks open though it was committed, so one from before this broker was the master is looked up by its unique
key before it is committed.

A question is not counted while no producer of the group is there: a producer that is away for a while finds its
transactions where it left them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core import BrokerCore
from gantry_broker.server.transactions import records
from gantry_broker.server.transactions.halves import UNKNOWN, Half, OpenHalves
from gantry_broker.server.transactions.records import Outcome
from gantry_broker.store.draft import Draft
from gantry_remoting import Connection
from gantry_wire import ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.transactions import EndTransaction
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK, StoredMessage, decode_record

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
LEARN_S: Final = 10.0
LEARN_POLL_S: Final = 0.005
SLICE_MESSAGES_MAX: Final = 64
SLICE_BYTES_MAX: Final = 1 << 20
QUESTIONS_MAX: Final = 16
"""In one slice."""
ABSENT_RETRY_MS: Final = 1_000
"""How soon it is looked again whether a producer of the group is there."""
LOOK_UP_MAX: Final = 64
HOUR_MS: Final = 3_600_000
ENDINGS: Final = {outcome.value: outcome for outcome in Outcome if outcome is not Outcome.STORED_AGAIN}


class Ended(NamedTuple):
    """What became of an order to end a transaction."""

    code: ResponseCode
    remark: str | None = None
    is_new: bool = False
    """Whether something was stored for it."""


@final
class Transactions:
    """Owned by the event loop; ``run`` is its task."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self._halves = OpenHalves()
        self._epoch = -1
        """The epoch that ``_halves`` is of."""

        self._begin = 0
        """Where the log ended when this broker became the master."""

        self._is_level = False
        """Whether the queues were read to their ends since then."""

        self._unflushed: Final[deque[tuple[int, int, int]]] = deque()
        """(end in the log, half, op): where a restart may begin once that much is on the disk."""

        self.may_be_told: Callable[[Connection, str], bool] = lambda connection, topic: True
        """Whether a peer may see a message that is not published yet: a question holds all of it."""

        self._turn = 0
        self.committed = 0
        self.rolled_back = 0
        self.given_up = 0
        self.asked = 0

    def __repr__(self) -> str:
        return f"<Transactions {self._halves!r} epoch={self._epoch}>"

    @property
    def open_count(self) -> int:
        """How many are open, as far as this broker has read."""
        return len(self._halves)

    # -- reading the queues --------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether everything from before this broker was the master is read, and may be acted on."""
        self._follow_epoch()
        return self._is_level and self._core.store.dispatched >= self._begin

    def _follow_epoch(self) -> None:
        """After a promotion the log may be another one: begin anew."""
        epoch = self._core.store.identity.epoch
        if epoch == self._epoch:
            return
        offsets = self._core.offsets
        half = offsets.find(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0) or 0
        op = offsets.find(names.TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0) or 0
        self._halves, self._epoch, self._is_level = OpenHalves(half, op), epoch, False
        self._begin = self._core.store.wrote
        self._unflushed.clear()

    def read_on(self) -> bool:
        """Read a slice of what is new. True when there is nothing more."""
        self._follow_epoch()
        if not self._read_halves() or not self._read_ops():
            return False
        if not self._is_level and self._core.store.dispatched >= self._begin:
            self._is_level = True
        return True

    def _read_halves(self) -> bool:
        settings, halves = self._core.settings, self._halves
        messages, next_offset, is_end = self._read(names.HALF_TOPIC, halves.half_offset)
        for message in messages:
            half = records.half_of(message, settings.transaction_timeout_ms, settings.transaction_check_interval_ms)
            half.is_restored = not self._is_level
            halves.found(half)
        halves.passed(next_offset)
        return is_end

    def _read_ops(self) -> bool:
        halves = self._halves
        messages, next_offset, is_end = self._read(names.OP_HALF_TOPIC, halves.op_offset)
        for message in messages:
            try:
                ended = records.ended_by(message)
            except ValueError as error:
                log.error("an op message cannot be read", extra={"offset": message.queue_offset, "reason": str(error)})
                ended = []
            halves.done(message.queue_offset, ended)
        halves.op_offset = max(halves.op_offset, next_offset)
        return is_end

    def _read(self, topic: str, offset: int) -> tuple[list[StoredMessage], int, bool]:
        """Messages of a queue from ``offset`` on, where to read next, and whether that is its end."""
        queue = self._core.store.find_queue(topic, 0)
        if queue is None:
            return [], offset, True
        offset = max(offset, queue.min_offset)
        if offset >= queue.readable_end:
            return [], offset, True
        result = self._core.store.read(
            topic, 0, offset, count_max=SLICE_MESSAGES_MAX, bytes_max=SLICE_BYTES_MAX, accept=None
        )
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
        return messages, next_offset, next_offset >= queue.readable_end

    # -- ending --------------------------------------------------------------------------------------------------------

    def knows(self, half_offset: int) -> bool:
        """Whether it is known what is open, and whether that half message is: reads what is new, if it is not much."""
        if not self._is_master or not self.read_on() or not self.is_ready:
            return False
        queue = self._core.store.find_queue(names.HALF_TOPIC, 0)
        return queue is None or not queue.readable_end <= half_offset < queue.end

    @property
    def _is_master(self) -> bool:
        gate = self._core.gate
        return gate.sends is None and not gate.is_still

    async def learn(self, half_offset: int) -> bool:
        """Wait until it is known; False when that takes too long."""
        try:
            async with asyncio.timeout(LEARN_S):
                while not self.knows(half_offset):
                    await asyncio.sleep(LEARN_POLL_S)
        except TimeoutError:
            return False
        return True

    def end(self, asked: EndTransaction) -> Ended | None:
        """Commit or roll back, once; None where there is nothing to answer. Raises what the store raises."""
        assert self.is_ready, "knows() comes first"
        if asked.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None
        outcome = Outcome.COMMITTED if asked.commit_or_rollback == TRANSACTION_COMMIT else Outcome.ROLLED_BACK
        half = self._halves.find(asked.tran_state_table_offset)
        if half is None:
            return self._ended_before(asked, outcome)
        refusal = self._refusal(half, asked)
        if refusal is not None:
            return refusal
        message = self._message(half)
        if message is None:
            return Ended(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        if outcome is Outcome.ROLLED_BACK:
            self._close(half, outcome, [])
            self.rolled_back += 1
        else:
            place = records.real_place(message)
            if place is None:
                return Ended(ResponseCode.SYSTEM_ERROR, "the half message does not say which topic it is for")
            is_stored = half.is_restored and self._was_committed(half, message, place[0])
            drafts = [] if is_stored else [records.committed_draft(message, self._core.store.queue(*place))]
            self._close(half, outcome, drafts)
            self.committed += 1
        return Ended(ResponseCode.SUCCESS, is_new=True)

    def _refusal(self, half: Half, asked: EndTransaction) -> Ended | None:
        places = {**half.aliases, half.queue_offset: half.physical}
        if half.group != asked.producer_group:
            return Ended(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        physical = places[asked.tran_state_table_offset]
        if physical == UNKNOWN:
            physical = self._physical(asked.tran_state_table_offset)
        if physical != asked.commit_log_offset:
            return Ended(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        age_ms = self._core.clock.wall_ms() - half.born_ms
        if half.immunity_ms is not None and not asked.from_transaction_check and age_ms > half.immunity_ms:
            return Ended(ResponseCode.ILLEGAL_OPERATION, "too late: this broker asks the producer how it has ended")
        return None

    def _ended_before(self, asked: EndTransaction, outcome: Outcome) -> Ended:
        """It is not open any more, or never was. Ending it in the same way again is no failure, and stores nothing."""
        found = self._outcome_of(asked.tran_state_table_offset)
        if found is None or self._physical(asked.tran_state_table_offset) not in (asked.commit_log_offset, UNKNOWN):
            return Ended(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        if found is outcome:
            return Ended(ResponseCode.SUCCESS)
        return Ended(ResponseCode.ILLEGAL_OPERATION, f"the transaction was ended before: {found.value}")

    def _physical(self, half_offset: int) -> int:
        """Where in the log a half message is, that is not to be said for another one; UNKNOWN when it has expired.

        Who may end it was judged by what lies where the request says.
        """
        queue = self._core.store.find_queue(names.HALF_TOPIC, 0)
        unit = None if queue is None else queue.unit(half_offset)
        return UNKNOWN if unit is None else unit[0]

    def _outcome_of(self, half_offset: int) -> Outcome | None:
        """What the op message about this half message says; None if there is none that says so."""
        found, _, _ = self._core.store.query_keys(names.OP_HALF_TOPIC, str(half_offset), LOOK_UP_MAX, 0, 1 << 62)
        for record in found:
            message = decode_record(record)
            is_about = message.topic == names.OP_HALF_TOPIC and message.properties.get(keys.KEYS) == str(half_offset)
            text = message.properties.get(records.OUTCOME, "")
            if is_about and text in ENDINGS:
                return ENDINGS[text]
        return None

    def _was_committed(self, half: Half, message: StoredMessage, topic: str) -> bool:
        """Whether the log was torn after the committed message, and before the op message."""
        unique = message.properties.get(keys.UNIQUE_KEY)
        if not unique:
            return False
        places = {half.physical, *half.aliases.values()}
        found, _, _ = self._core.store.query_keys(topic, unique, LOOK_UP_MAX, 0, 1 << 62)
        for record in found:
            other = decode_record(record)
            is_commit = other.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            if other.topic == topic and is_commit and other.prepared_offset in places:
                return True
        return False

    def _message(self, half: Half) -> StoredMessage | None:
        record = self._core.store.message_at(half.physical)
        message = None if record is None else decode_record(record)
        return message if message is not None and message.topic == names.HALF_TOPIC else None

    def _close(self, half: Half, outcome: Outcome, drafts: list[Draft]) -> None:
        """Store what it comes to, and that it is over, in one piece."""
        core = self._core
        queue = core.store.queue(names.OP_HALF_TOPIC, 0)
        op = records.op_draft(queue, half, outcome, core.store_host, core.clock.wall_ms())
        core.store.append_contiguous([*drafts, op])
        core.stats.put(len(drafts), core.store)
        if outcome is not Outcome.STORED_AGAIN:
            self._halves.ended(half)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read, ask, give up, and note how far that is, until cancelled."""
        while True:
            pause_s = TICK_S
            if self._is_master:
                try:
                    while self._is_master and not self.read_on():
                        await asyncio.sleep(0)
                    if self._is_master and self.is_ready:
                        self._note()
                        if self.ask():
                            pause_s = 0
                except BrokerError as error:
                    log.warning("transactions wait for the store", extra={"reason": str(error)})
                    pause_s = 1.0
            await asyncio.sleep(pause_s)

    def ask(self) -> bool:
        """Ask about some that are due. True if there may be more."""
        now_ms = self._core.clock.wall_ms()
        for _ in range(QUESTIONS_MAX):
            half = self._halves.next_due(now_ms)
            if half is None:
                return False
            try:
                self._ask(half, now_ms)
            except BrokerError:
                self._halves.ask_again(half, now_ms + ABSENT_RETRY_MS)
                raise
        return True

    def _ask(self, half: Half, now_ms: int) -> None:
        message = self._message(half)
        place = None if message is None else records.real_place(message)
        if message is None or place is None:
            log.error("a half message cannot be read, and is passed over", extra={"offset": half.queue_offset})
            self._close(half, Outcome.GIVEN_UP, [])
            return
        settings = self._core.settings
        is_too_old = now_ms - half.born_ms > settings.store.retention.reserved_hours * HOUR_MS
        if half.checks >= settings.transaction_check_max or is_too_old:
            self._give_up(half, message)
            return
        producer = self._producer(half.group, place[0])
        if producer is None:
            self._halves.ask_again(half, now_ms + ABSENT_RETRY_MS)
            return
        self.asked += 1
        renewed = self._renew(half, message)
        if renewed is None:
            self._halves.ask_again(half, now_ms + settings.transaction_check_interval_ms)
            renewed = message
        producer.send(records.question(renewed, *place, settings.broker_name).encode())

    def _renew(self, half: Half, message: StoredMessage) -> StoredMessage | None:
        """Store it again, counted; None if its properties have no room for that."""
        core = self._core
        try:
            draft = records.renewed_draft(message, core.store.queue(names.HALF_TOPIC, 0), half)
        except LocalProtocolError:
            return None
        queue = core.store.queue(names.OP_HALF_TOPIC, 0)
        op = records.op_draft(queue, half, Outcome.STORED_AGAIN, core.store_host, core.clock.wall_ms())
        physical_offsets, _ = core.store.append_contiguous([draft, op])
        record = core.store.message_at(physical_offsets[0])
        assert record is not None, "what was appended just now is there"
        return decode_record(record)

    def _give_up(self, half: Half, message: StoredMessage) -> None:
        core = self._core
        topic = core.topics.ensure(names.CHECK_MAX_TIME_TOPIC, 1).topic_name
        self._close(
            half, Outcome.GIVEN_UP, [records.copy_draft(message, core.store.queue(topic, 0), message.properties)]
        )
        self.given_up += 1
        log.warning(
            "a transaction was given up",
            extra={
                "group": half.group,
                "asked": half.checks,
                "message_id": message.properties.get(keys.UNIQUE_KEY, ""),
            },
        )

    def _producer(self, group: str, topic: str) -> Connection | None:
        """Any live producer of the group that may be shown the message; another one each time."""
        members = self._core.clients.producers.get(group, {})
        alive = [one for one in members if one.is_open and self.may_be_told(one, topic)]
        self._turn += 1
        return alive[self._turn % len(alive)] if alive else None

    # -- where to begin after a restart --------------------------------------------------------------------------------

    def _note(self) -> None:
        """Keep where reading has to begin: never beyond what a power loss leaves of the log."""
        store, halves, offsets = self._core.store, self._halves, self._core.offsets
        low = (halves.half_low, halves.op_low)
        if not self._unflushed or self._unflushed[-1][1:] != low:
            self._unflushed.append((store.wrote, *low))
        while self._unflushed and self._unflushed[0][0] <= store.flushed:
            _, half, op = self._unflushed.popleft()
            offsets.commit(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0, half)
            offsets.commit(names.TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0, op)
