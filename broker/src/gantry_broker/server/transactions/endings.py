"""How transactions are ended: each once, by who may, and in the way in which it was ended before.

    producer   end ----> [committed, op] or [op], in one piece
               again --> nothing more is stored; the same answer for the same way, a refusal for the other one

The log may have been torn after the committed message, and before the op message. Then the half message looks open
though it was committed, so one from before this broker was the master is looked up by its unique key before that.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.transactions import records
from gantry_broker.server.transactions.halves import UNKNOWN, Half
from gantry_broker.server.transactions.journal import LOOK_UP_MAX, TransactionJournal, TransactionWriter, ops_about
from gantry_broker.server.transactions.records import Outcome
from gantry_wire import ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.transactions import EndTransaction
from gantry_wire.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK, StoredMessage, decode_record

NOT_FOUND: Final = "Find prepared transaction message failed"
DAMAGED: Final = "the half message is damaged and will be fetched from a replica; try again later"


class Ended(NamedTuple):
    """What became of an order to end a transaction."""

    code: ResponseCode
    remark: str | None = None


@final
class Endings:
    """Owned by the event loop."""

    def __init__(self, core: BrokerCore, journal: TransactionJournal, writer: TransactionWriter) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._writer: Final = writer
        self.committed = 0
        self.rolled_back = 0

    def end(self, asked: EndTransaction) -> Ended | None:
        """Commit or roll back, once; None where there is nothing to answer. Raises what the store raises."""
        assert self._journal.is_ready, "knows() comes first"
        if asked.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None
        outcome = Outcome.COMMITTED if asked.commit_or_rollback == TRANSACTION_COMMIT else Outcome.ROLLED_BACK
        half = self._journal.halves.find(asked.tran_state_table_offset)
        if half is None:
            return self._ended_before(asked, outcome)
        refusal = self._refusal(half, asked)
        if refusal is not None:
            return refusal
        message = self._journal.message(half)
        if message is None:
            return self._not_readable(half.physical)
        if outcome is Outcome.COMMITTED:
            return self._commit(half, message)
        self._writer.end(half, outcome, [])
        self.rolled_back += 1
        return Ended(ResponseCode.SUCCESS)

    def _commit(self, half: Half, message: StoredMessage) -> Ended:
        place = records.real_place(message)
        if place is None:
            return Ended(ResponseCode.SYSTEM_ERROR, "the half message does not say which topic it is for")
        is_stored = half.is_restored and self._was_committed(message, place[0])
        self._core.topics.widen(*place)
        drafts = [] if is_stored else [records.committed_draft(message, self._core.store.queues.get_or_create(*place))]
        self._writer.end(half, Outcome.COMMITTED, drafts)
        self.committed += 1
        return Ended(ResponseCode.SUCCESS)

    def _refusal(self, half: Half, asked: EndTransaction) -> Ended | None:
        if half.group != asked.producer_group:
            return Ended(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if not self._is_its_place(half, asked):
            return Ended(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        age_ms = self._core.clock.wall_ms() - half.open_since_ms
        if half.immunity_ms is not None and not asked.from_transaction_check and age_ms > half.immunity_ms:
            return Ended(ResponseCode.ILLEGAL_OPERATION, "too late: this broker asks the producer how it has ended")
        return None

    def _is_its_place(self, half: Half, asked: EndTransaction) -> bool:
        """Whether the two offsets name one message. Who may end it was decided by the second one."""
        physical = half.places[asked.tran_state_table_offset]
        if physical != UNKNOWN:
            return physical == asked.commit_log_offset
        message = self._journal.half_at(asked.commit_log_offset)
        return message is not None and message.queue_offset == asked.tran_state_table_offset

    def _ended_before(self, asked: EndTransaction, outcome: Outcome) -> Ended:
        """It is not open any more, or never was. Ending it in the same way again is no failure, and stores nothing."""
        found, physical = self._outcome_of(asked.tran_state_table_offset), self._physical(asked.tran_state_table_offset)
        if found is None:
            return self._not_readable(physical)
        if physical not in (asked.commit_log_offset, UNKNOWN):
            return Ended(ResponseCode.SYSTEM_ERROR, NOT_FOUND)
        if found is outcome:
            return Ended(ResponseCode.SUCCESS)
        return Ended(ResponseCode.ILLEGAL_OPERATION, f"the transaction was ended before: {found.value}")

    def _not_readable(self, physical_offset: int) -> Ended:
        """The answer where there is no such half message, or where it is damaged and may still be healed."""
        if self._core.store.guard.damage.may_be_healed(physical_offset):
            return Ended(ResponseCode.SERVICE_NOT_AVAILABLE, DAMAGED)
        return Ended(ResponseCode.SYSTEM_ERROR, NOT_FOUND)

    def _physical(self, half_offset: int) -> int:
        """Where in the log a half message lies, which must not be said for another one; UNKNOWN if it has expired."""
        queue = self._core.store.queues.get(names.HALF_TOPIC, 0)
        unit = None if queue is None else queue.unit(half_offset)
        return UNKNOWN if unit is None else unit[0]

    def _outcome_of(self, half_offset: int) -> Outcome | None:
        """How it has ended, as far as that is known here, or an op message says so."""
        text = self._journal.halves.outcome(half_offset)
        if text is not None:
            return Outcome(text)
        outcomes = map(records.outcome_in, ops_about(self._core.store, half_offset))
        return next((outcome for outcome in outcomes if outcome is not None), None)

    def _was_committed(self, message: StoredMessage, topic: str) -> bool:
        """Whether the log was torn after the committed message, and before the op message."""
        unique = message.properties.get(keys.UNIQUE_KEY)
        if not unique:
            return False
        found, _, _ = self._core.store.keys.records(topic, unique, LOOK_UP_MAX, 0, 1 << 62)
        for record in found:
            other = decode_record(record)
            is_commit = other.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            if other.topic == topic and is_commit and is_of(message, other):
                return True
        return False


def is_of(half: StoredMessage, committed: StoredMessage) -> bool:
    """Whether this came of that half message, wherever it was then.

    Equal unique keys are not enough: a producer may send one message in two transactions. When it was born stays with
    it, also where RocketMQ has stored it again without a word about its first place.
    """
    return (committed.born_timestamp_ms, committed.born_host) == (half.born_timestamp_ms, half.born_host)
