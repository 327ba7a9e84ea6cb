"""Handles pulls: they return messages of one queue from an offset on, or are held until there are messages."""

import asyncio
from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_broker.errors import BrokerError, QueueRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refusal, Refused, store_refusal
from gantry_broker.server.core.topic_attributes import BATCH_QUEUES, QUEUE_TYPE
from gantry_broker.server.pull.cold_reads import HOLD_S, ColdReads
from gantry_broker.server.pull.pull_hold import FilterBudget, HeldPull, PullHold
from gantry_broker.store.inner_batches import find_inner_batch
from gantry_broker.store.reader import ReadResult, ReadStatus
from gantry_remoting import Connection
from gantry_status import RefusalReason
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.nameserver import PERMISSION_READ
from gantry_wire.commands.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from gantry_wire.filters import MessageFilter, TagFilter, is_tag_type, parse_filter

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
        self, core: BrokerCore, loop: asyncio.AbstractEventLoop, *, suggest_broker: Callable[[bytes, int], int]
    ) -> None:
        """``suggest_broker`` returns the broker for the next pull, from the messages found and the group's setting."""
        self._core = core
        self._loop = loop
        self._suggest_broker: Final = suggest_broker
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
    def pull(self, command: Command, connection: Connection) -> Command | None:
        pull = PullMessage.read(command.ext)
        self._check(pull)
        message_filter = self._filter(pull)
        redirect = self._redirect(pull, connection, message_filter, was_held=False)
        if redirect is not None:
            return self._reply(command, pull, pull.queue_offset, redirect)
        if self.cold.is_limited(pull.consumer_group, pull.topic, pull.queue_id, pull.queue_offset):
            return self._limit(command, pull, connection)
        result = self._read(pull, pull.queue_offset, message_filter)
        committed = _committed(pull)
        if committed is not None:
            self._core.offsets.commit(pull.consumer_group, pull.topic, pull.queue_id, committed)
        can_hold = pull.sys_flag & PULL_SUSPEND and pull.suspend_timeout_millis > 0 and not self.hold.is_stopped
        # A one-way pull is not held: nothing waits for its answer, and held pulls are answered without the dispatcher.
        if can_hold and _code(result, pull.queue_offset) is ResponseCode.PULL_NOT_FOUND and not command.is_oneway:
            if not self.hold.has_room(connection):
                return self._core.stats.refusals.reply(command, HELD_PULLS_FULL)
            suspend_ms = min(pull.suspend_timeout_millis, SUSPEND_MS_MAX)
            deadline = self._loop.time() + suspend_ms / 1000
            self.hold.hold(HeldPull(command, connection, pull, pull.queue_offset, deadline))
            return None
        return self._reply(command, pull, pull.queue_offset, result)

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
            self._check(held.pull)  # the group or the topic may have lost its permission meanwhile
            message_filter = self._filter(held.pull)
            redirect = self._redirect(held.pull, held.connection, message_filter, was_held=True)
            if redirect is not None:
                return self._reply(held.command, held.pull, held.next_offset, redirect)
            result = self._read(held.pull, held.next_offset, message_filter)
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
            return self._reply(held.command, held.pull, held.next_offset, result)
        if not must_answer:
            return None
        if held.next_offset != held.pull.queue_offset:
            result = result._replace(status=ReadStatus.NO_MATCHED_MESSAGE, next_offset=held.next_offset)
        return self._reply(held.command, held.pull, held.next_offset, result)

    def _read(self, pull: PullMessage, offset: int, message_filter: MessageFilter) -> ReadResult:
        began = self._loop.time()
        try:
            result = self._read_now(pull, offset, message_filter)
        except QueueRebuilding:
            # Answered like an empty queue: the pull is held, or repeated, and is woken when the queue is rebuilt.
            queue = self._core.store.queues.get_or_create(pull.topic, pull.queue_id)
            result = ReadResult(ReadStatus.OFFSET_FOUND_NULL, offset, queue.min_offset, queue.readable_end)
        self._read_ms = int((self._loop.time() - began) * 1000)
        return result

    def _read_now(self, pull: PullMessage, offset: int, message_filter: MessageFilter) -> ReadResult:
        if self._has_inner_batches(pull.topic):
            return self._read_batches(pull, offset, message_filter)
        return self._read_queue(pull, offset, message_filter)

    def _has_inner_batches(self, topic: str) -> bool:
        """Whether RocketMQ may have stored batches of this topic as one record each."""
        config = self._core.topics.find(topic)
        return config is not None and config.attributes.get(QUEUE_TYPE) == BATCH_QUEUES

    def _read_batches(self, pull: PullMessage, offset: int, message_filter: MessageFilter) -> ReadResult:
        """Read as `_read_queue`, but a batch in one record is read whole, and the next read begins after it."""
        store = self._core.store
        queue = store.queues.get(pull.topic, pull.queue_id)
        batch = find_inner_batch(store.log, queue, offset)
        result = self._read_queue(pull, offset if batch is None else batch.start, message_filter)
        batch = find_inner_batch(store.log, queue, result.next_offset)
        return result if batch is None else result._replace(next_offset=batch.end)

    def _read_queue(self, pull: PullMessage, offset: int, message_filter: MessageFilter) -> ReadResult:
        settings = self._core.settings
        count_max = max(1, min(pull.max_msg_nums, settings.pull_messages_max))
        bytes_max = settings.pull_bytes_max
        if pull.max_msg_bytes is not None and pull.max_msg_bytes > 0:
            bytes_max = min(pull.max_msg_bytes, settings.pull_bytes_limit)
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

    def _redirect(
        self, pull: PullMessage, reader: Connection, message_filter: MessageFilter, *, was_held: bool
    ) -> ReadResult | None:
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
        return self._read(pull, target, message_filter)._replace(status=status, next_offset=target, body=b"", count=0)

    def _broker_when_slow(self, group: str) -> int:
        config = self._core.groups.all.get(group)
        return 1 if config is None else config.which_broker_when_consume_slowly

    def _reply(self, command: Command, pull: PullMessage, offset: int, result: ReadResult) -> Command:
        code, group = _code(result, offset), pull.consumer_group
        self._core.offsets.pulled.record(group, pull.topic, pull.queue_id, result.next_offset)
        if code is ResponseCode.SUCCESS:
            size = len(result.body)
            self.cold.count(group, result.body)
            self._core.stats.count_found_pull(result.count, size, self._read_ms)
            self._core.topic_statistics.count_pull(
                group, pull.topic, pull.queue_id, count=result.count, size=size, took_ms=self._read_ms
            )
        else:
            self._core.stats.count_empty_pull()
        ext = {
            "suggestWhichBrokerId": str(self._suggest_broker(result.body, self._broker_when_slow(group))),
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        body = result.body if code is ResponseCode.SUCCESS else b""
        return command.reply(code, result.status.name, ext=ext, body=body)

    # ------- checks, in RocketMQ's order

    def _check(self, pull: PullMessage) -> None:
        core = self._core
        group = core.groups.find_or_create(pull.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{pull.consumer_group[:300]}] does not exist",
            )
        if not group.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {pull.consumer_group}")
        config = core.topics.find(pull.topic)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{pull.topic[:300]}] not exist, apply first please!")
        if not config.perm & PERMISSION_READ or pull.topic in names.HIDDEN_TOPICS:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{pull.topic}] pulling message is forbidden")
        if not 0 <= pull.queue_id < config.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{pull.queue_id}] is illegal, topic:[{pull.topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}]",
            )
        state = core.clients.consumers.get(pull.consumer_group)
        if state is not None and state.message_model == "BROADCASTING" and not group.consume_broadcast_enable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{pull.consumer_group}] can not consume by broadcast way",
            )
        if core.groups.is_forbidden(pull.consumer_group, pull.topic):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{pull.consumer_group}] is forbidden for topic[{pull.topic}]",
            )

    def _filter(self, pull: PullMessage) -> MessageFilter:
        """Return the filter of a pull: its own expression, or that of its group's heartbeat."""
        if pull.sys_flag & PULL_SUBSCRIPTION:
            check_filter_type(self._core, pull.consumer_group, pull.topic, pull.expression_type)
            try:
                return parse_filter(pull.expression_type, pull.subscription)
            except ValueError as error:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
                ) from error
        state = self._core.clients.consumers.get(pull.consumer_group)
        if state is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        subscription = state.subscriptions.get(pull.topic)
        if subscription is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.data.sub_version < pull.sub_version:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if subscription.filter is None:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"The broker's consumer filter data is not exist!Your expression may be wrong! {subscription.fault}",
            )
        check_filter_type(self._core, pull.consumer_group, pull.topic, subscription.data.expression_type)
        return subscription.filter


def check_filter_type(core: BrokerCore, group: str, topic: str, expression_type: str | None) -> None:
    """Raise Refused, with RocketMQ's text, if filters of this type are switched off."""
    if not is_tag_type(expression_type) and not core.settings.is_property_filter_enabled:
        kind = expression_type or ""
        core.stats.refusals.count_property_filter(group, topic, kind)
        text = f"The broker does not support consumer to filter message by {kind[:64]}"
        raise Refused(ResponseCode.SYSTEM_ERROR, text)


def _committed(pull: PullMessage) -> int | None:
    """Return the offset that a pull commits; None if it commits none."""
    return pull.commit_offset if pull.sys_flag & PULL_COMMIT_OFFSET and pull.commit_offset >= 0 else None


def _code(result: ReadResult, offset: int) -> ResponseCode:
    if result.status in _EMPTY_QUEUE and offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return _CODES[result.status]
