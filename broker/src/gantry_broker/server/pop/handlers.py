"""Handles pops and the requests around them: peeks, notifications, and how many requests wait.

A pop that finds no message is held like a pull, until a message arrives in one of its queues or in the retry topic, or
until its time is over. The time that the client writes into the request is not used, since its clock may be wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused, store_refusal
from gantry_broker.server.pop import requests
from gantry_broker.server.pop.claims import Popped
from gantry_broker.server.pop.service import Pops
from gantry_broker.server.pop.writer import Answer
from gantry_broker.server.pull.handlers import SUSPEND_MS_MAX
from gantry_broker.server.pull.pull_hold import ANY_QUEUE, PullHold, QueueKey
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.pop import (
    Notification,
    NotificationResult,
    PeekMessage,
    PollingInfo,
    PollingInfoResult,
    PopMessage,
    PopResult,
)
from gantry_wire.filters import MessageFilter
from gantry_wire.pop_receipts import format_offsets, format_start_offsets, queue_topic

FOUND: Final = "FOUND"
"""RocketMQ's text for a pop with messages."""
NO_MESSAGE: Final = "NO_MESSAGE_IN_QUEUE"
"""RocketMQ's text for a pop without messages."""

PEEKED_MAX: Final = 64
"""The limit of the messages of one peek."""

R = TypeVar("R", PopMessage, Notification)


@dataclass(slots=True, eq=False)
class _Held(Generic[R]):
    """A request that waits for messages in one of its queues."""

    command: Command
    connection: Connection
    request: R
    keys: tuple[QueueKey, ...]
    deadline: float
    handlers: PopHandlers
    is_done: bool = False
    is_held: bool = False
    is_more_left: bool = True


@final
@dataclass(slots=True, eq=False, kw_only=True)
class HeldPop(_Held[PopMessage]):
    """A pop that waits for messages."""

    message_filter: MessageFilter

    @property
    def contest(self) -> Hashable:
        """The group, and what else decides whether there are messages: their order, and the limits of a pop."""
        request = self.request
        return request.consumer_group, bool(request.order), request.max_msg_nums

    def retry(self, must_answer: bool) -> Command | None:
        return self.handlers.attempt_pop(self, must_answer)

    def full_reply(self) -> Command:
        """Return the answer if too many requests are held."""
        return self.handlers.no_messages(self, None, ResponseCode.POLLING_FULL)


@final
class HeldNotification(_Held[Notification]):
    """A request that is answered when there are messages to pop."""

    __slots__ = ()

    @property
    def contest(self) -> Hashable:
        """The group: a notification takes no messages from others, but if there are none, that is so for all."""
        return self.request.consumer_group, bool(self.request.order)

    def retry(self, must_answer: bool) -> Command | None:
        return self.handlers.attempt_notification(self, must_answer)

    def full_reply(self) -> Command:
        """Return the answer if too many requests are held."""
        return self.command.reply(ext=NotificationResult(polling_full=True).write())


@final
class PopHandlers:
    """The handlers of pops. Owned by the event loop."""

    def __init__(self, core: BrokerCore, pops: Pops, hold: PullHold, loop: asyncio.AbstractEventLoop) -> None:
        self._core: Final = core
        self._pops: Final = pops
        self._hold: Final = hold
        self._loop: Final = loop

    # ------- pops

    @handles(RequestCode.POP_MESSAGE)
    def pop(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        """Answer with messages, or hold the request."""
        request = PopMessage.read(command.ext)
        requests.check_pop(self._core, request)
        found, deadline = requests.parse_pop_filter(request), self._deadline(request.poll_time)
        keys = wait_keys(request.topic, request.consumer_group, request.queue_id)
        held = HeldPop(command, connection, request, keys, deadline, self, message_filter=found)
        if self._pops.read_if_short():
            return self._answer_or_hold(held, request.poll_time)
        return self._pops.when_ready(command, lambda: self._answer_or_hold(held, request.poll_time))

    def attempt_pop(self, held: HeldPop, must_answer: bool) -> Command | None:
        """Pop messages; return the answer, or None if there is none yet. An error becomes the answer."""
        request = held.request
        try:
            requests.check_pop(self._core, request)  # a permission may be gone meanwhile
            if not self._pops.is_ready:
                held.is_more_left = False  # all are retried when it is
                return self.no_messages(held, None) if must_answer else None
            popped = self._pops.popper.pop(request, held.message_filter)
        except Refused as refused:
            return held.command.reply(refused.code, refused.remark)
        except BrokerError as error:
            return self._core.stats.refusals.reply(held.command, store_refusal(error))
        held.is_more_left = popped.is_unfinished or (popped.count > 0 and popped.rest_count > 0)
        if popped.count:
            return self._reply_found(held, popped)
        if must_answer:
            return self.no_messages(held, popped)
        if popped.is_unfinished:
            self._continue_later(held)
        return None

    def _continue_later(self, held: HeldPop) -> None:
        """Examine more messages in a later turn: a filter examines a limited number in one."""
        if held.is_held:
            self._hold.continue_later(held)
        else:
            self._loop.call_soon(self._hold.mark_queues, held.keys)

    def _reply_found(self, held: HeldPop, popped: Popped) -> Command | None:
        """Return the reply, or None if it is sent when the checkpoints are stored."""
        core, request = self._core, held.request
        core.stats.count_found_pull(popped.count, popped.size, 0)
        for flag, queue_id, _, offsets in popped.queues:
            topic = queue_topic(request.topic, request.consumer_group, flag)
            tally = core.topic_statistics.new_pull_tally(request.consumer_group, topic, queue_id)
            tally.add(len(offsets), popped.size * len(offsets) // popped.count, took_ms=0)
        ext = PopResult(
            pop_time=popped.pop_time_ms,
            invisible_time=request.invisible_time,
            revive_qid=popped.revive_queue,
            rest_num=popped.rest_count,
            start_offset_info=format_start_offsets((flag, number, start) for flag, number, start, _ in popped.queues),
            msg_offset_info=format_offsets((flag, number, offsets) for flag, number, _, offsets in popped.queues),
            order_count_info=";".join(popped.order_counts) or None,
        ).write()
        reply = held.command.reply(remark=FOUND, ext=ext, body=b"".join(popped.parts))
        if not popped.claims:
            return reply
        held.is_done = True
        self._pops.writer.add_pop(popped.claims, Answer(held.command, held.connection, reply))
        return None

    def no_messages(self, held: HeldPop, popped: Popped | None, code: int = ResponseCode.POLLING_TIMEOUT) -> Command:
        """Return the answer to a pop without messages."""
        self._core.stats.count_empty_pull()
        ext = PopResult(
            pop_time=self._pops.journal.times.pop_time_ms(), invisible_time=held.request.invisible_time, revive_qid=0,
            rest_num=0 if popped is None else popped.rest_count, start_offset_info="", msg_offset_info="",
        ).write()  # fmt: skip
        return held.command.reply(code, NO_MESSAGE, ext=ext)

    # ------- requests that wait

    def _deadline(self, poll_ms: int) -> float:
        return self._loop.time() + min(max(poll_ms, 0), SUSPEND_MS_MAX) / 1000

    def _answer_or_hold(self, held: HeldPop | HeldNotification, poll_ms: int) -> Command | None:
        """Answer a request, or hold it until there are messages."""
        is_late = held.deadline <= self._loop.time()  # it has waited until the checkpoints were read
        is_waiting = poll_ms > 0 and not is_late and not self._hold.is_stopped and not held.command.is_oneway
        answer = held.retry(not is_waiting)
        if answer is not None or held.is_done:
            return answer
        if not self._hold.has_room(held.connection):
            return held.full_reply()
        held.is_held = True
        self._hold.hold(held)
        return None

    @handles(RequestCode.NOTIFICATION)
    def notify(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        """Answer when there are messages to pop."""
        request = Notification.read(command.ext)
        requests.check_queue_of_group(self._core, request.consumer_group, request.topic, request.queue_id)
        keys = wait_keys(request.topic, request.consumer_group, request.queue_id)
        held = HeldNotification(command, connection, request, keys, self._deadline(request.poll_time), self)
        if self._pops.read_if_short():
            return self._answer_or_hold(held, request.poll_time)
        return self._pops.when_ready(command, lambda: self._answer_or_hold(held, request.poll_time))

    def attempt_notification(self, held: HeldNotification, must_answer: bool) -> Command | None:
        """Return the answer if there are messages, or if it must be given."""
        request = held.request
        is_found = self._pops.is_ready and self._pops.popper.has_messages(
            request.consumer_group, request.topic, request.queue_id,
            attempt_id=request.attempt_id, is_order=request.order,
        )  # fmt: skip
        held.is_more_left = is_found
        if not is_found and not must_answer:
            return None
        return held.command.reply(ext=NotificationResult(has_msg=is_found).write())

    @handles(RequestCode.POLLING_INFO)
    def count_polls(self, command: Command, connection: Connection) -> Command:
        """Answer with the number of requests that wait for messages of a queue."""
        request = PollingInfo.read(command.ext)
        group, topic = request.consumer_group, request.topic
        requests.check_queue_of_group(self._core, group, topic, request.queue_id)
        found = self._hold.held_for((topic, max(request.queue_id, ANY_QUEUE)))
        count = sum(1 for held in found if isinstance(held, HeldPop) and held.request.consumer_group == group)
        return command.reply(ext=PollingInfoResult(polling_num=count).write())

    @handles(RequestCode.PEEK_MESSAGE)
    def peek(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        """Answer with the next messages of a group, which stay visible."""
        request = PeekMessage.read(command.ext)
        requests.check_queue_of_group(self._core, request.consumer_group, request.topic, request.queue_id)
        if not 1 <= request.max_msg_nums <= PEEKED_MAX:
            text = f"maxMsgNums {request.max_msg_nums} is illegal: expected 1 to {PEEKED_MAX}"
            raise Refused(ResponseCode.INVALID_PARAMETER, text)
        if self._pops.read_if_short():
            return self._peek(command, request)
        return self._pops.when_ready(command, lambda: self._peek(command, request))

    def _peek(self, command: Command, request: PeekMessage) -> Command:
        popped = self._pops.popper.peek(request)
        ext = PopResult(pop_time=0, invisible_time=0, revive_qid=0, rest_num=popped.rest_count).write()
        if not popped.count:
            return command.reply(ResponseCode.PULL_NOT_FOUND, NO_MESSAGE, ext=ext)
        self._core.stats.count_found_pull(popped.count, popped.size, 0)
        return command.reply(remark=FOUND, ext=ext, body=b"".join(popped.parts))


def wait_keys(topic: str, group: str, queue_id: int) -> tuple[QueueKey, ...]:
    """Return the queues for whose messages a pop waits: its own, and those of the retry topics."""
    retries = (names.pop_retry_topic(topic, group, is_v2=is_v2) for is_v2 in (False, True))
    return ((topic, max(queue_id, ANY_QUEUE)), *((retry, ANY_QUEUE) for retry in retries))
