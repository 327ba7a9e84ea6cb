"""Handles pulls: they return messages of one queue from an offset on, or are held until there are messages."""

import asyncio
from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_broker.errors import BrokerError, QueueRebuilding
from gantry_broker.server.archive.reads import ArchiveReads
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import Answer, handles
from gantry_broker.server.core.refusals import Refusal, Refused, store_refusal
from gantry_broker.server.pull.cold_reads import HOLD_S, ColdReads
from gantry_broker.server.pull.pull_frames import FOUND_HEAD_BYTES_MAX, PullRequest, encode_found
from gantry_broker.server.pull.pull_hold import FilterBudget, HeldPull, PullHold
from gantry_broker.server.pull.pull_plans import PullPlan, PullPlans
from gantry_broker.store.inner_batches import find_inner_batch
from gantry_broker.store.reader import ReadResult, ReadStatus
from gantry_remoting import Connection
from gantry_status import RefusalReason
from gantry_wire import Command, RequestCode, ResponseCode, WireLimits
from gantry_wire.commands.archive import ArchivedRange
from gantry_wire.commands.nameserver import MASTER_ID
from gantry_wire.commands.pull import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullMessage
from gantry_wire.filters import MessageFilter, TagFilter

SUSPEND_MS_MAX: Final = 60_000
"""The longest time for which a pull is held, even if the client requests more."""

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
"""The code of the answer for each outcome of a read."""
_BEYOND: Final = (
    ReadStatus.OFFSET_OVERFLOW_BADLY,
    ReadStatus.NO_MATCHED_LOGIC_QUEUE,
    ReadStatus.NO_MESSAGE_IN_QUEUE,
)
"""Results of a pull whose offset is after the end of its queue."""
PUSH: Final = "CONSUME_PASSIVELY"
"""The consume type of groups whose clients pause after an error."""
READS_COLD_DATA: Final = "This consumer group is reading cold data. It has been flow control"
"""RocketMQ's text for a group that is limited."""
_EMPTY_QUEUE: Final = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE)
"""Results of a pull from a queue without messages."""


HELD_PULLS_FULL: Final = Refusal(
    ResponseCode.SYSTEM_BUSY,
    "[OVERLOAD]system busy, start flow control for a while: too many held pulls",
    RefusalReason.HELD_PULLS_FULL,
)
"""The answer to a pull that would be held although too many are."""


@final
class PullHandlers:
    """The handlers of pulls, codes 11 and 361. Owned by the event loop."""

    def __init__(
        self,
        core: BrokerCore,
        loop: asyncio.AbstractEventLoop,
        archive: ArchiveReads | None = None,
        *,
        suggest_broker: Callable[[bytes, int], int],
        find_slave: Callable[[int], int] = lambda _preferred: MASTER_ID,
    ) -> None:
        """``suggest_broker`` returns the broker for the next pull, from the messages found and the group's setting.

        ``archive`` has messages that are not in the log any more. ``find_slave`` returns a connected slave, given the
        one that the group's setting prefers, or the master.
        """
        self._core = core
        self._loop = loop
        self._archive: Final = archive
        self._suggest_broker: Final = suggest_broker
        self._find_slave: Final = find_slave
        self._plans: Final = PullPlans(core)
        self._read_ms = 0
        """The duration of the last read of a queue."""

        self._budget = FilterBudget(loop)
        self.cold: Final = ColdReads(core.live, core.store, core.clock)
        """The limits of groups that read old messages."""
        settings = core.settings
        self.hold = PullHold(
            loop,
            self.retry,
            held_max=settings.held_pulls_max,
            held_per_connection_max=settings.held_pulls_per_connection_max,
            is_spent=lambda: self._budget.is_spent,
        )

    @handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, command: Command, connection: Connection) -> Answer:
        pull = PullMessage.read(command.ext)
        plan = self._plans.find(pull)
        if self._is_limited(pull, plan):
            return self._limit(command, pull, connection)
        return self._answer(command, pull, plan, self._read_first(pull, plan, connection), connection)

    def pull_usual(
        self, request: PullRequest, connection: Connection, limits: WireLimits
    ) -> tuple[bytes, ...] | Answer:
        """Do the same for a usual request. An answer with messages is returned as the parts of its frame."""
        pull = request.fields
        plan = self._plans.find(pull)
        if self._is_limited(pull, plan):
            return self._limit(request.to_command(), pull, connection)
        result = self._read_first(pull, plan, connection)
        body, next_offset = result.body, result.next_offset
        body_bytes_max = limits.frame_bytes_max - FOUND_HEAD_BYTES_MAX
        if result.status is not ReadStatus.FOUND or request.flag or len(body) > body_bytes_max:
            return self._answer(request.to_command(), pull, plan, result, connection)
        self._count(pull, plan, result)
        broker_id = self._suggest_broker(body, plan.slow_broker_id)
        head = encode_found(broker_id, next_offset, result.min_offset, result.max_offset, request.opaque, len(body))
        return head, body

    def _is_limited(self, pull: PullMessage, plan: PullPlan) -> bool:
        """Return whether a pull must wait, because its group has read too much cold data. A redirect never waits."""
        if not self.cold.is_enabled or self._core.offsets.may_redirect(plan.key):
            return False
        return self.cold.is_limited(pull.consumer_group, pull.topic, pull.queue_id, pull.queue_offset)

    def _limit(self, command: Command, pull: PullMessage, connection: Connection) -> Command | None:
        """Return the answer to a group that has read too much cold data; None for a pull that gets a message later.

        As in RocketMQ a pull consumer waits; the client of a push consumer pauses by itself after the answer.
        """
        state = self._core.clients.consumers.get(pull.consumer_group)
        is_push = state is not None and state.consume_type == PUSH
        if is_push or command.is_oneway or self.hold.is_stopped or not self.hold.has_room(connection):
            return command.reply(ResponseCode.SYSTEM_BUSY, READS_COLD_DATA)
        one = msgspec.structs.replace(pull, max_msg_nums=1)
        deadline = self._loop.time() + HOLD_S
        self.hold.hold(HeldPull(command, connection, one, pull.queue_offset, deadline, is_limited=True))
        return None

    def retry(self, held: HeldPull, must_answer: bool) -> Command | None:
        """Retry a held pull; return None if it stays held. An error becomes the answer."""
        if held.is_limited and not must_answer:
            return None
        try:
            plan = self._plans.find(held.pull)  # the group or the topic may have lost its permission meanwhile
            redirect = None
            if self._core.offsets.may_redirect(plan.key):
                redirect = self._redirect(held.pull, plan, held.connection, was_held=True)
            if redirect is not None:
                return self._reply(held.command, held.pull, plan, held.next_offset, redirect)
            result = self._read(held.pull, plan, held.next_offset)
            if result.status is ReadStatus.OFFSET_TOO_SMALL and self._find_archived(held.pull, held.next_offset):
                # Its messages have expired while it was held. The next pull reads them from the archive.
                result = result._replace(status=ReadStatus.NO_MATCHED_MESSAGE, next_offset=held.next_offset)
                return self._reply(held.command, held.pull, plan, held.next_offset, result)
        except Refused as refused:
            return held.command.reply(refused.code, refused.remark)
        except BrokerError as error:
            return self._core.stats.refusals.reply(held.command, store_refusal(error))
        code = _code(result, held.next_offset)
        if code is ResponseCode.PULL_RETRY_IMMEDIATELY:
            held.skip_to(result.next_offset)
            if result.next_offset < result.max_offset and not must_answer:
                self.hold.continue_later(held)
        elif code is not ResponseCode.PULL_NOT_FOUND:
            return self._reply(held.command, held.pull, plan, held.next_offset, result)
        if not must_answer:
            return None
        if held.next_offset != held.pull.queue_offset:
            result = result._replace(status=ReadStatus.NO_MATCHED_MESSAGE, next_offset=held.next_offset)
        return self._reply(held.command, held.pull, plan, held.next_offset, result)

    # ------- reading

    def _read_first(self, pull: PullMessage, plan: PullPlan, connection: Connection) -> ReadResult:
        """Read for a pull that has just arrived, and commit the offset that it carries."""
        redirect = None
        if self._core.offsets.may_redirect(plan.key):
            redirect = self._redirect(pull, plan, connection, was_held=False)
        if redirect is not None:
            return redirect
        result = self._read(pull, plan, pull.queue_offset)
        if pull.sys_flag & PULL_COMMIT_OFFSET and pull.commit_offset >= 0:
            self._core.commit_offset(pull.consumer_group, pull.topic, pull.queue_id, pull.commit_offset)
        return result

    def _read(self, pull: PullMessage, plan: PullPlan, offset: int) -> ReadResult:
        began = self._loop.time()
        read = self._read_batches if plan.has_inner_batches else self._read_queue
        try:
            result = read(pull, offset, plan.filter)
        except QueueRebuilding:
            # Answered like an empty queue: the pull is held, or repeated, and is woken when the queue is rebuilt.
            queue = self._core.store.queues.get_or_create(pull.topic, pull.queue_id)
            result = ReadResult(ReadStatus.OFFSET_FOUND_NULL, offset, queue.min_offset, queue.readable_end)
        self._read_ms = int((self._loop.time() - began) * 1000)
        if self._core.archive is not None:
            archived = self._core.archive.find(pull.topic, pull.queue_id)
            if archived is not None and archived.begin < result.min_offset:
                result = result._replace(min_offset=archived.begin)
        return result

    def _read_batches(self, pull: PullMessage, offset: int, message_filter: MessageFilter) -> ReadResult:
        """Read as `_read_queue`, but a batch in one record is read whole, and the next read begins after it."""
        store = self._core.store
        queue = store.queues.get(pull.topic, pull.queue_id)
        batch = find_inner_batch(store.log, queue, offset)
        result = self._read_queue(pull, offset if batch is None else batch.start, message_filter)
        batch = find_inner_batch(store.log, queue, result.next_offset)
        return result if batch is None else result._replace(next_offset=batch.end)

    def _read_queue(self, pull: PullMessage, offset: int, message_filter: MessageFilter) -> ReadResult:
        count_max, bytes_max = self._limits_of(pull)
        store = self._core.store
        if isinstance(message_filter, TagFilter):
            result = store.read(
                pull.topic,
                pull.queue_id,
                offset,
                count_max=count_max,
                bytes_max=bytes_max,
                accept=message_filter.codes or None,
            )
        else:
            units_max = self._budget.count_units(message_filter)
            result = store.read(
                pull.topic,
                pull.queue_id,
                offset,
                count_max=count_max,
                bytes_max=bytes_max,
                want=message_filter.accepts_encoded,
                units_max=units_max,
            )
            self._budget.spend(message_filter, max(0, min(units_max, result.next_offset - offset)))
        if result.status in _BEYOND and offset > result.max_offset and self._core.is_slave():
            # The message may exist on the master only: the reader waits until this slave has it, too.
            return result._replace(status=ReadStatus.OFFSET_OVERFLOW_ONE, next_offset=offset)
        return result

    def _limits_of(self, pull: PullMessage) -> tuple[int, int]:
        """Return how many messages, and about how many bytes, the answer may have."""
        settings = self._core.live.current
        bytes_max = settings.pull_bytes_max
        if pull.max_msg_bytes is not None and pull.max_msg_bytes > 0:
            bytes_max = min(pull.max_msg_bytes, settings.pull_bytes_limit)
        return max(1, min(pull.max_msg_nums, settings.pull_messages_max)), bytes_max

    def _redirect(self, pull: PullMessage, plan: PullPlan, reader: Connection, *, was_held: bool) -> ReadResult | None:
        """Return the result that redirects a reader after a reset, or from an offset in a lost part of the log.

        A slave does not redirect: readers return to its master sooner or later. A pull that ``was_held`` may be older
        than the reset.
        """
        if self._core.is_slave():
            return None
        offsets, status = self._core.offsets, ReadStatus.OFFSET_RESET
        queue = pull.consumer_group, pull.topic, pull.queue_id
        target = offsets.resets.redirect_offset(*queue, reader, was_held=was_held)
        if target is None:
            committed = _committed(pull)
            if committed is None:
                committed = offsets.find(*queue)
            status = ReadStatus.OFFSET_OVERFLOW_BADLY
            target = offsets.epoch_starts.redirect_offset(*queue, pull.queue_offset, committed=committed)
        if target is None:
            return None
        return self._read(pull, plan, target)._replace(status=status, next_offset=target, body=b"", count=0)

    # ------- answering

    def _answer(
        self, command: Command, pull: PullMessage, plan: PullPlan, result: ReadResult, connection: Connection
    ) -> Answer:
        """Return the answer to a pull that has just arrived, or hold it and return None.

        The answer is awaitable if the messages are in the archive.
        """
        if result.status is ReadStatus.OFFSET_TOO_SMALL and self._archive is not None:
            archived = self._find_archived(pull, pull.queue_offset)
            if archived is not None:
                return self._answer_archived(command, pull, plan, result, archived, connection)
        can_hold = pull.sys_flag & PULL_SUSPEND and pull.suspend_timeout_millis > 0 and not self.hold.is_stopped
        # A one-way pull is not held: nothing waits for its answer, and held pulls are answered without the dispatcher.
        if can_hold and _code(result, pull.queue_offset) is ResponseCode.PULL_NOT_FOUND and not command.is_oneway:
            if not self.hold.has_room(connection):
                return self._core.stats.refusals.reply(command, HELD_PULLS_FULL)
            suspend_ms = min(pull.suspend_timeout_millis, SUSPEND_MS_MAX)
            deadline = self._loop.time() + suspend_ms / 1000
            self.hold.hold(HeldPull(command, connection, pull, pull.queue_offset, deadline))
            return None
        return self._reply(command, pull, plan, pull.queue_offset, result)

    # ------- messages that are in the archive

    def _find_archived(self, pull: PullMessage, offset: int) -> ArchivedRange | None:
        """Return the archived range of a pull's queue if it has messages at or after ``offset``, which the log lacks.

        Raises Refused while it is not known what the archive has: the reader would skip these messages.
        """
        archived = None if self._archive is None else self._archive.find(pull.topic, pull.queue_id)
        return archived if archived is not None and offset < archived.end and archived.begin < archived.end else None

    def _answer_archived(
        self, command: Command, pull: PullMessage, plan: PullPlan, result: ReadResult, archived: ArchivedRange,
        connection: Connection,
    ) -> Answer:  # fmt: skip
        """Answer a pull from an offset that is before the first message of the log."""
        if pull.queue_offset < archived.begin:
            begin = min(archived.begin, result.next_offset)
            return self._reply(command, pull, plan, pull.queue_offset, result._replace(next_offset=begin))
        return self._read_archived(command, pull, plan, result, connection)

    async def _read_archived(
        self, command: Command, pull: PullMessage, plan: PullPlan, result: ReadResult, connection: Connection
    ) -> Command:
        """Return the answer to a pull with messages from the archive."""
        archive, core = self._archive, self._core
        assert archive is not None, "checked by the caller"
        began = self._loop.time()
        count_max, bytes_max = self._limits_of(pull)
        log_begin = result.next_offset  # of a read from before the first message of the log
        read = await archive.read(
            pull, plan.filter, connection, log_begin=log_begin, count_max=count_max, bytes_max=bytes_max
        )
        self._read_ms = int((self._loop.time() - began) * 1000)
        # The next pull goes to this broker, which has an archive, or to a slave that reads it instead.
        broker_id = core.settings.broker_id if core.is_slave() else MASTER_ID
        if broker_id == MASTER_ID and archive.is_slave_preferred:
            broker_id = self._find_slave(plan.slow_broker_id)
        status = ReadStatus.FOUND if read.record_count else ReadStatus.NO_MATCHED_MESSAGE
        found = result._replace(status=status, next_offset=read.next_offset, body=read.body, count=read.record_count)
        return self._reply(command, pull, plan, pull.queue_offset, found, broker_id=broker_id)

    # ------- answering

    def _reply(
        self,
        command: Command,
        pull: PullMessage,
        plan: PullPlan,
        offset: int,
        result: ReadResult,
        *,
        broker_id: int | None = None,
    ) -> Command:
        """Return the answer with a result. It suggests ``broker_id`` for the next pull, by default as for the log."""
        code = _code(result, offset)
        if code is ResponseCode.SUCCESS:
            self._count(pull, plan, result)
        else:
            self._core.offsets.pulled.record(plan.key, pull.queue_id, result.next_offset)
            self._core.stats.count_empty_pull()
        if broker_id is None:
            broker_id = self._suggest_broker(result.body, plan.slow_broker_id)
        ext = {
            "suggestWhichBrokerId": str(broker_id),
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        body = result.body if code is ResponseCode.SUCCESS else b""
        return command.reply(code, result.status.name, ext=ext, body=body)

    def _count(self, pull: PullMessage, plan: PullPlan, result: ReadResult) -> None:
        """Count an answer with messages."""
        core, count, size = self._core, result.count, len(result.body)
        core.offsets.pulled.record(plan.key, pull.queue_id, result.next_offset)
        core.stats.count_found_pull(count, size, self._read_ms)
        self.cold.count(pull.consumer_group, result.body)
        plan.tally.add(count, size, self._read_ms)


def _committed(pull: PullMessage) -> int | None:
    """Return the offset that a pull commits; None if it commits none."""
    return pull.commit_offset if pull.sys_flag & PULL_COMMIT_OFFSET and pull.commit_offset >= 0 else None


def _code(result: ReadResult, offset: int) -> ResponseCode:
    if result.status in _EMPTY_QUEUE and offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return _CODES[result.status]
