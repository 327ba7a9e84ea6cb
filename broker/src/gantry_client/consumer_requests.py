"""Requests of brokers to a consumer on behalf of an administrator, answered as by RocketMQ's clients.

    220  reset the offsets of the queues that are read here    (no reply)
    221  report the offsets in a topic                         offsets by queue
    307  report the running information                        settings, assigned queues, rates, stacks
    309  consume this message now                              the result

A message that arrives with 309 has no further effect: no offset changes, and a failed message is not redelivered. A
consumer without a handler (``PollConsumer``) rejects it.
"""

import asyncio
import io
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Mapping
from typing import Final, Protocol, final

from gantry_client.clock import wall_ms
from gantry_client.consume_rates import ConsumeRates
from gantry_client.consumer_role import ConsumerRole
from gantry_client.handling import HandlerCalls
from gantry_client.messages import to_received_message
from gantry_client.queue_locks import QueueLocks
from gantry_client.queue_reader import QueueReader
from gantry_client.session import Session
from gantry_client.settings import ConsumerSettings
from gantry_wire.codes import PROTOCOL_VERSION_NAME, RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import ConsumerData, MessageQueue
from gantry_wire.commands.consumers import (
    ConsumeDirectly,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumerStatusRequest,
    ProcessQueueInfo,
    ResetOffsets,
    ResetOffsetsResult,
    RunningInfoRequest,
)
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
TASKS_MAX: Final = 500
"""The maximum number of tasks in one stack dump."""

FRAMES_MAX: Final = 50
"""The maximum number of frames of one stack; the innermost are kept."""


class ConsumerView(Protocol):
    """The part of a consumer that these requests use."""

    role: ConsumerRole
    locks: QueueLocks
    rates: ConsumeRates
    calls: HandlerCalls | None
    """The calls of the application's handler; None without a handler."""

    @property
    def settings(self) -> ConsumerSettings: ...

    @property
    def readers(self) -> Mapping[MessageQueue, QueueReader]: ...

    def describe(self) -> ConsumerData:
        """Return the description of the consumer for heartbeats."""

    def commit_soon(self) -> None:
        """Commit the offsets in the background, without waiting for the commit interval."""


@final
class ConsumerRequests:
    """Answers the requests to one consumer. Belongs to its event loop."""

    def __init__(self, session: Session, consumer: ConsumerView) -> None:
        self._session = session
        self._consumer = consumer
        self._started_at_ms = wall_ms()
        self._direct_count = 0
        """The number of messages that are being consumed because of code 309."""

        session.on_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset_offsets)
        session.on_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._report_status)
        session.on_request(RequestCode.GET_CONSUMER_RUNNING_INFO, self._report_running_info)
        session.on_request(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._handle_consume_request)

    def __repr__(self) -> str:
        return f"<ConsumerRequests {self._consumer.role.group} direct={self._direct_count}>"

    # ------- 220

    def _reset_offsets(self, command: Command, address: str) -> None:
        """Reset offsets for an administrator, whose broker leaves the reset to the consumers."""
        try:
            request = ResetOffsets.read(command.ext)
            offsets = read_document(command.body, ResetOffsetsResult).offset_table
        except FieldError as error:
            log.warning("invalid request to reset offsets", extra={"broker": address, "reason": str(error)})
            return
        if request.group != self._consumer.role.group:
            return
        for queue, offset in offsets.items():
            reader = self._consumer.readers.get(queue)
            if reader is not None and queue.topic == request.topic:
                log.warning("offset reset by administrator", extra={"queue": repr(queue), "offset": offset})
                reader.seek(offset)
        self._consumer.commit_soon()

    # ------- 221

    def _report_status(self, command: Command, address: str) -> Command:
        """Return the offsets of the queues that are read here; none for another group."""
        try:
            request = ConsumerStatusRequest.read(command.ext)
        except FieldError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        is_ours = request.group == self._consumer.role.group
        table = {
            queue: reader.backlog.commit_offset
            for queue, reader in self._consumer.readers.items()
            if is_ours and queue.topic == request.topic
        }
        return command.reply(body=write_document(ConsumerStatus(message_queue_table=table)))

    # ------- 307

    def _report_running_info(self, command: Command, address: str) -> Command:
        try:
            request = RunningInfoRequest.read(command.ext)
        except FieldError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        if request.consumer_group != self._consumer.role.group:
            return self._no_consumer(command, request.consumer_group)
        subscriptions = self._consumer.describe().subscription_data_set
        info = ConsumerRunningInfo(
            properties=self._describe_settings(),
            subscription_set=subscriptions,
            mq_table={queue: self._describe_queue(reader) for queue, reader in self._consumer.readers.items()},
            status_table={one.topic: self._consumer.rates.status(one.topic) for one in subscriptions},
            jstack=all_stacks() if request.jstack_enable else None,
        )
        return command.reply(body=write_document(info))

    def _describe_settings(self) -> dict[str, str]:
        """Return the settings under the property names of RocketMQ's consumers and tools."""
        role, settings, described = self._consumer.role, self._consumer.settings, self._consumer.describe()
        times_max = settings.max_reconsume_times
        return {
            "PROP_NAMESERVER_ADDR": "".join(f"{one};" for one in self._session.name_servers.addresses),
            "PROP_CONSUME_TYPE": described.consume_type,
            "PROP_CLIENT_VERSION": PROTOCOL_VERSION_NAME,
            "PROP_CONSUMEORDERLY": "true" if role.is_ordered else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at_ms),
            "consumerGroup": role.group,
            "messageModel": described.message_model,
            "consumeFromWhere": described.consume_from_where,
            "consumeThreadMax": str(settings.concurrency),
            "consumeTimeout": str(settings.consume_timeout_ms // 60_000),
            "maxReconsumeTimes": str(-1 if times_max is None else times_max),
            "pullBatchSize": str(settings.fetch_messages_max),
            "pullThresholdForQueue": str(settings.cached_messages_max),
            "pullThresholdSizeForQueue": str(settings.cached_bytes_max // MIB),
            "consumeConcurrentlyMaxSpan": str(settings.cached_span_max),
            "persistConsumerOffsetInterval": str(settings.commit_interval_ms),
        }

    def _describe_queue(self, reader: QueueReader) -> ProcessQueueInfo:
        backlog, locks = reader.backlog, self._consumer.locks
        first, last = backlog.span or (0, 0)
        return ProcessQueueInfo(
            commit_offset=backlog.commit_offset,
            cached_msg_min_offset=first,
            cached_msg_max_offset=last,
            cached_msg_count=backlog.messages,
            cached_msg_size_in_mib=backlog.bytes // MIB,
            locked=locks.is_held(reader.queue),
            last_lock_timestamp=locks.locked_at_ms(reader.queue),
            droped=backlog.is_dropped,
            last_pull_timestamp=reader.pulled_at_ms,
            last_consume_timestamp=backlog.handler_started_at_ms,
        )

    # ------- 309

    def _handle_consume_request(self, command: Command, address: str) -> Command | Awaitable[Command]:
        try:
            request = ConsumeDirectly.read(command.ext)
            record = decode_record(command.body)
        except (FieldError, RemoteProtocolError) as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"invalid request: {error}")
        calls = self._consumer.calls
        if request.consumer_group != self._consumer.role.group or calls is None:
            return self._no_consumer(command, request.consumer_group)
        if self._direct_count >= self._consumer.settings.concurrency:
            return command.reply(
                ResponseCode.SYSTEM_BUSY,
                f"{self._direct_count} messages are being consumed directly; retry later",
            )
        self._direct_count += 1
        return self._consume_directly(command, calls, record, request.broker_name or "")

    async def _consume_directly(
        self, command: Command, calls: HandlerCalls, record: StoredMessage, broker_name: str
    ) -> Command:
        started_at = time.monotonic()
        try:
            message = to_received_message(record, broker_name, body_bytes_max=self._consumer.settings.body_bytes_max)
            outcome = await calls.call_uncounted(message)
        finally:
            self._direct_count -= 1
        if outcome.retry is None:
            outcome_code = "CR_SUCCESS"
        else:
            outcome_code = "CR_THROW_EXCEPTION" if outcome.failure else "CR_LATER"
        result = ConsumeResult(
            consume_result=outcome_code,
            order=self._consumer.role.is_ordered,
            remark=outcome.failure or None,
            spent_time_mills=int((time.monotonic() - started_at) * 1000),
        )
        return command.reply(body=write_document(result))

    def _no_consumer(self, command: Command, group: str) -> Command:
        return command.reply(
            ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group[:300]}> not exist in this consumer"
        )


def all_stacks() -> str:
    """Return the stack of each thread and of each task of the running loop, one paragraph each.

    A Java client returns a thread dump; here most pending work is a task and not a thread.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, '?')} {ident}\n{''.join(traceback.format_stack(frame)[-FRAMES_MAX:])}"
        for ident, frame in sys._current_frames().items()
    ]
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    parts += [_task_text(task) for task in tasks[:TASKS_MAX]]
    if len(tasks) > TASKS_MAX:
        parts.append(f"and {len(tasks) - TASKS_MAX} tasks more\n")
    return "\n".join(parts)


def _task_text(task: asyncio.Task[object]) -> str:
    out = io.StringIO()
    task.print_stack(limit=FRAMES_MAX, file=out)
    return f"task {task.get_name()}\n{out.getvalue()}"
