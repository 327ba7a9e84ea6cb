"""Ends transactions: each once, only by its producer group, and always with the same outcome.

    producer   end ----> [committed, op] or [op], appended together
               again --> nothing is stored; the same answer for the same outcome, a refusal for the other one

The log may have been torn between the committed message and the op message. Then the half message seems open although
it was committed. So before a half message from before the promotion of this broker is committed, its committed message
is searched by the unique key.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.timer_properties import as_timer, due_time, is_timer
from gantry_broker.server.transactions import records
from gantry_broker.server.transactions.halves import UNKNOWN, Half
from gantry_broker.server.transactions.journal import LOOK_UP_MAX, TransactionJournal, TransactionWriter, find_ops_for
from gantry_broker.server.transactions.records import Outcome
from gantry_broker.store.draft import Draft
from gantry_wire import ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.transactions import EndTransaction
from gantry_wire.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK, StoredMessage, decode_record

NOT_FOUND: Final = "Find prepared transaction message failed"
"""RocketMQ's text for a half message that does not exist."""
DAMAGED: Final = "the half message is damaged and will be fetched from a replica; try again later"
"""The text for a half message that may still be healed."""


class EndResult(NamedTuple):
    """The result of a request to end a transaction."""

    code: ResponseCode
    remark: str | None = None


@final
class TransactionEndings:
    """Commits and rolls back transactions. Owned by the event loop."""

    def __init__(self, core: BrokerCore, journal: TransactionJournal, writer: TransactionWriter) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._writer: Final = writer
        self.committed_count = 0
        self.rolled_back_count = 0

    def end(self, request: EndTransaction) -> EndResult | None:
        """Commit or roll back a transaction once; None if the request has no answer. Raises errors of the store."""
        assert self._journal.is_ready, "callers check read_up_to() first"
        if request.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return None
        outcome = Outcome.COMMITTED if request.commit_or_rollback == TRANSACTION_COMMIT else Outcome.ROLLED_BACK
        half = self._journal.halves.find(request.tran_state_table_offset)
        if half is None:
            return self._answer_repeated_end(request, outcome)
        refusal = self._refusal(half, request)
        if refusal is not None:
            return refusal
        message = self._journal.read_message(half)
        if message is None:
            return self._answer_unreadable(half.physical)
        if _is_of_proxy(request) and message.properties.get(keys.REAL_TOPIC) != request.topic:
            return EndResult(ResponseCode.SYSTEM_ERROR, "the transaction is of another topic")
        if outcome is Outcome.COMMITTED:
            return self._commit(half, message)
        self._writer.end(half, outcome, [])
        self.rolled_back_count += 1
        return EndResult(ResponseCode.SUCCESS)

    def _commit(self, half: Half, message: StoredMessage) -> EndResult:
        destination = records.find_destination(message)
        if destination is None:
            return EndResult(ResponseCode.SYSTEM_ERROR, "the half message has no valid destination topic")
        topics = [destination[0], names.TIMER_TOPIC] if is_timer(message.properties) else [destination[0]]
        is_stored = half.is_restored and any(self._was_committed(message, topic) for topic in topics)
        self._core.topics.ensure_queue(*destination)
        drafts = [] if is_stored else [self._committed_draft(message, destination)]
        self._writer.end(half, Outcome.COMMITTED, drafts)
        self.committed_count += 1
        return EndResult(ResponseCode.SUCCESS)

    def _committed_draft(self, message: StoredMessage, destination: tuple[str, int]) -> Draft:
        """Return the committed message, in the timer topic if it has to wait. Raises Refused for an invalid time."""
        core = self._core
        due_ms = due_time(message.properties, core.settings, core.clock.wall_ms())
        if due_ms is None:
            return records.committed_draft(message, core.store.queues.get_or_create(*destination))
        properties = as_timer(message.properties, *destination, due_ms)
        return records.committed_draft(message, core.store.queues.get_or_create(names.TIMER_TOPIC, 0), properties)

    def _refusal(self, half: Half, request: EndTransaction) -> EndResult | None:
        if half.group != request.producer_group:
            return EndResult(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if not self._offsets_match(half, request):
            return EndResult(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        age_ms = self._core.clock.wall_ms() - half.open_since_ms
        if half.immunity_ms is not None and not request.from_transaction_check and age_ms > half.immunity_ms:
            return EndResult(
                ResponseCode.ILLEGAL_OPERATION, "too late: this broker checks the transaction with its producer"
            )
        return None

    def _offsets_match(self, half: Half, request: EndTransaction) -> bool:
        """Whether both offsets name the same message. Access control has checked only the second one."""
        physical = half.copies[request.tran_state_table_offset]
        if physical != UNKNOWN:
            return physical == request.commit_log_offset
        message = self._journal.read_half_at(request.commit_log_offset)
        return message is not None and message.queue_offset == request.tran_state_table_offset

    def _answer_repeated_end(self, request: EndTransaction, outcome: Outcome) -> EndResult:
        """Answer a request for a transaction that is not open. The same outcome again succeeds, and stores nothing."""
        found, physical = (
            self._find_outcome(request.tran_state_table_offset),
            self._physical_offset(request.tran_state_table_offset),
        )
        if found is None:
            return self._answer_unreadable(physical)
        if physical not in (request.commit_log_offset, UNKNOWN):
            return EndResult(ResponseCode.SYSTEM_ERROR, NOT_FOUND)
        if found is outcome:
            return EndResult(ResponseCode.SUCCESS)
        return EndResult(ResponseCode.ILLEGAL_OPERATION, f"the transaction was ended before: {found.value}")

    def _answer_unreadable(self, physical_offset: int) -> EndResult:
        """Return the answer if the half message does not exist, or is damaged and may still be healed."""
        if self._core.store.guard.damage.may_be_healed(physical_offset):
            return EndResult(ResponseCode.SERVICE_NOT_AVAILABLE, DAMAGED)
        return EndResult(ResponseCode.SYSTEM_ERROR, NOT_FOUND)

    def _physical_offset(self, half_offset: int) -> int:
        """Return the physical offset of a half message, to compare with the request; UNKNOWN if it has expired."""
        queue = self._core.store.queues.get(names.HALF_TOPIC, 0)
        unit = None if queue is None else queue.unit(half_offset)
        return UNKNOWN if unit is None else unit[0]

    def _find_outcome(self, half_offset: int) -> Outcome | None:
        """Return the outcome of a transaction that ended here, or from its op message; None if neither has it."""
        text = self._journal.halves.outcome(half_offset)
        if text is not None:
            return Outcome(text)
        outcomes = map(records.parse_outcome, find_ops_for(self._core.store, half_offset))
        return next((outcome for outcome in outcomes if outcome is not None), None)

    def _was_committed(self, message: StoredMessage, topic: str) -> bool:
        """Whether the log was torn between the committed message and the op message."""
        unique = message.properties.get(keys.UNIQUE_KEY)
        if not unique:
            return False
        found, _, _ = self._core.store.keys.records(topic, unique, LOOK_UP_MAX, 0, 1 << 62)
        for record in found:
            other = decode_record(record)
            is_commit = other.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            if other.topic == topic and is_commit and is_committed_from(message, other):
                return True
        return False


def _is_of_proxy(request: EndTransaction) -> bool:
    """Return whether a request has the form of a proxy's, whose producer group is the topic of its client's call.

    The client has permission for that topic. A producer over remoting may have a group with the same name, and publish
    to other topics: its transactions are not the client's. Such a producer names its topic or that of half messages.
    """
    return request.topic == request.producer_group


def is_committed_from(half: StoredMessage, committed: StoredMessage) -> bool:
    """Whether a committed message belongs to this half message, at any earlier offset.

    Equal unique keys are not enough: a producer may send one message in two transactions. Birth time and host stay the
    same, also if RocketMQ has stored the message again without recording its first offset.
    """
    return (committed.born_timestamp_ms, committed.born_host) == (half.born_timestamp_ms, half.born_host)
