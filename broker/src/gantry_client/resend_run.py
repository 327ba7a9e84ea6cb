"""Sends dead letters of a group, or messages of a topic, again: first a plan, then one outcome for each message.

    %DLQ%group   [begin ... already sent ... next ........ end)      `end` is the end of a queue when the plan was made

`ResendRun.plan` reads the messages and sends nothing. `ResendRun.execute` sends what a plan lists, and nothing else:
each message is read again, and its id is compared, so that only ids and positions are kept in between.

Where progress is kept, it is the committed offset of a separate reader group on the brokers, so that a run can be
continued from any machine. An offset is committed only after its messages are acknowledged: a run that crashes sends
some messages twice, and skips none that can be sent. Dead letters stay in their topic until they expire.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from gantry_client.admin import Admin
from gantry_client.errors import (
    ClientError,
    DamagedMessage,
    InvalidMessage,
    NoRoute,
    ResendStopped,
    UnreadableBody,
)
from gantry_client.fetching import FetchStatus
from gantry_client.messages import ReceivedMessage
from gantry_client.producer import Producer
from gantry_client.pull_consumer import PullConsumer
from gantry_client.resend_plan import (
    OutcomeKind,
    PlanDigest,
    PlannedMessage,
    Position,
    ResendOutcome,
    ResendPlan,
    ResendRequest,
    Verdict,
)
from gantry_wire import properties as property_names
from gantry_wire.commands.clients import MessageQueue

FETCH_MESSAGES: Final = 32
"""How many messages are fetched at once, and how many copies are looked up at once."""
COMMIT_EVERY: Final = 32
"""The acknowledged messages between two commits, and so how many a crash may send twice."""
FAILURES_MAX: Final = 3
"""Failures in a row after which a run without progress stops: then the brokers are the cause, not the messages. A run
with progress stops at the first one, so that its progress does not pass a message that may have to be sent."""
STOPPED: Final = "not attempted: the run stopped after a failure"
CANCELLED: Final = "the run was cancelled before the broker answered"


@dataclass(slots=True)
class _Budget:
    """What a plan may still read, so that a filter that accepts little costs a limited amount."""

    messages: float
    body_bytes: float

    def spend(self, read: "_Read") -> None:
        """Count one message that was read."""
        self.messages -= 1
        self.body_bytes -= 0 if read.message is None else len(read.message.stored_body)

    @property
    def is_spent(self) -> bool:
        return self.messages <= 0 or self.body_bytes <= 0


class _Read(NamedTuple):
    """One position of the source, and what was read there."""

    position: Position
    message: ReceivedMessage | None
    fault: str = ""
    """Why there is no message."""
    message_id: str = ""
    """The id of a damaged message."""


@final
class ResendRun:
    """One run over messages that are sent again, in one plan or in several. Owned by one event loop."""

    def __init__(self, request: ResendRequest, reader: PullConsumer, producer: Producer, admin: Admin) -> None:
        """Create a run. Raises InvalidMessage for an invalid request."""
        request.check()
        self._request = request
        self._reader = reader
        self._producer = producer
        self._admin = admin
        self._next: dict[MessageQueue, int] = {}
        """Where the next plan begins in each queue that a plan has examined."""
        self._target_faults: dict[str, str] = {}
        self._committed: dict[MessageQueue, int] = {}
        """The offset up to which this run has committed in each queue, or from which it began."""

    # ------- the plan

    async def plan(
        self, messages_max: int, *, examined_max: float = math.inf, examined_bytes_max: float = math.inf
    ) -> ResendPlan:
        """Return the next messages that would be sent: at most this many, after at most `examined_max` were read.

        `examined_bytes_max` limits the bodies that are read, up to one fetch more. The next call continues after them.
        Raises ClientError.
        """
        plan, budget = ResendPlan(), _Budget(examined_max, examined_bytes_max)
        if self._request.positions:
            for position in self._request.positions:
                plan.messages.append(await self._planned(await self._read_one(position)))
        else:
            for queue in await self._reader.queues(self._request.source):
                await self._plan_queue(plan, queue, messages_max, budget)
        digest = PlanDigest(self._request)
        for one in plan.messages:
            digest.add(one)
        plan.digest = digest.text()
        return plan

    async def _plan_queue(self, plan: ResendPlan, queue: MessageQueue, messages_max: int, budget: _Budget) -> None:
        """Add the messages of one queue to the plan."""
        begin, end = await self._range(queue)
        offset = begin
        if len(plan.messages) < messages_max and not budget.is_spent:
            async for read in self._read(queue, begin, end):
                offset = read.position.offset + 1
                budget.spend(read)
                if read.message is None or self._request.accepts(read.message):
                    plan.messages.append(await self._planned(read))
                if len(plan.messages) >= messages_max or budget.is_spent:
                    break
            else:
                offset = end
        self._next[queue] = offset
        plan.remaining += end - offset

    async def _range(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the range of offsets to examine now."""
        request, reader = self._request, self._reader
        begin, end = await reader.min_offset(queue), await reader.max_offset(queue)
        if queue in self._next:
            begin = max(begin, self._next[queue])
        else:
            if request.keeps_progress and not request.is_from_start:
                begin = max(begin, await reader.committed(queue) or 0)
            if request.since_ms is not None:
                begin = max(begin, await reader.offset_at(queue, request.since_ms))
            self._committed[queue] = begin
        if request.until_ms is not None:
            end = min(end, await reader.offset_at(queue, request.until_ms))
        return begin, max(begin, end)

    async def _read(self, queue: MessageQueue, begin: int, end: int) -> AsyncIterator[_Read]:
        """Yield what is stored in `[begin, end)` of a queue, damaged messages included."""
        offset = begin
        while offset < end:
            try:
                result = await self._reader.fetch(queue, offset, messages_max=FETCH_MESSAGES)
            except DamagedMessage as error:
                position = Position(queue.broker_name, queue.queue_id, error.queue_offset)
                yield _Read(position, None, "the message is damaged", error.message_id)
                offset = error.queue_offset + 1
                continue
            for message in result.messages:
                if message.queue_offset < end:
                    yield _Read(Position(queue.broker_name, queue.queue_id, message.queue_offset), message)
            if result.next_offset <= offset:
                if result.status is FetchStatus.NO_NEW:
                    return  # The message is not confirmed yet; the next run finds it.
                raise ResendStopped(f"messages of {queue.topic} were deleted while they were being read")
            offset = result.next_offset

    async def _read_one(self, position: Position) -> _Read:
        """Return the message at a position."""
        queue = self._queue_at(position)
        if queue not in await self._reader.queues(queue.topic):
            return _Read(position, None, f"{queue.topic} has no such queue")
        try:
            result = await self._reader.fetch(queue, position.offset, messages_max=1)
        except DamagedMessage as error:
            return _Read(position, None, "the message is damaged", error.message_id)
        for message in result.messages:
            if message.queue_offset == position.offset:
                return _Read(position, message)
        return _Read(position, None, "no message has this position; it may have expired")

    async def _planned(self, read: _Read) -> PlannedMessage:
        """Return whether and how a message would be sent."""
        message = read.message
        if message is None:
            return PlannedMessage(
                position=read.position, message_id=read.message_id, target=None, body_bytes=0, stored_ms=0,
                verdict=Verdict.UNSENDABLE, reason=read.fault,
            )  # fmt: skip
        target = self._request.target_of(message, message.properties.get(property_names.RETRY_TOPIC))
        verdict, reason, body_bytes, resent_ms = Verdict.SEND, "", 0, None
        if target is None:
            verdict, reason = Verdict.NO_ORIGIN, "it names no original topic; choose a target topic"
        else:
            try:
                body_bytes = self._producer.resend_bytes(message, topic=target)
                if reason := await self._target_fault(target):
                    verdict = Verdict.NO_TARGET
                elif not self._request.keeps_progress:
                    resent_ms = await self._newest_copy_ms(message, target)
                    if resent_ms is not None and not self._request.is_from_start:
                        verdict, reason = Verdict.RESENT, f"{target} has a copy already"
            except (UnreadableBody, InvalidMessage) as error:
                verdict, reason = Verdict.UNSENDABLE, str(error)
        return PlannedMessage(
            position=read.position, message_id=message.message_id, target=target, body_bytes=body_bytes,
            stored_ms=message.store_timestamp_ms, verdict=verdict, reason=reason, resent_ms=resent_ms,
        )  # fmt: skip

    async def _target_fault(self, topic: str) -> str:
        """Return why a topic accepts no messages now; empty if it does. A topic is not created by sending to it."""
        if topic not in self._target_faults:
            try:
                await self._producer.queues(topic)
                self._target_faults[topic] = ""
            except NoRoute as error:
                self._target_faults[topic] = str(error)
        return self._target_faults[topic]

    async def _newest_copy_ms(self, message: ReceivedMessage, target: str) -> int | None:
        """Return when the newest copy of a message in its target was stored, by the brokers' index.

        A copy has the same id and was stored after the message. The index knows a message shortly after it is stored.
        """
        if property_names.UNIQUE_KEY not in message.properties:
            return None
        found = await self._admin.messages.by_id(target, message.message_id)
        stored = [
            one.store_timestamp_ms
            for one in found
            if one.store_timestamp_ms >= message.store_timestamp_ms
            and (one.queue, one.queue_offset) != (message.queue, message.queue_offset)
        ]
        return max(stored, default=None)

    # ------- the execution

    async def execute(self, plan: ResendPlan, on_outcome: Callable[[ResendOutcome], None]) -> None:
        """Send the messages of a plan, in order, and call `on_outcome` once for each message of the plan.

        It returns normally also if messages fail. If it is cancelled, the message whose reply is missing is unknown,
        and the following ones are skipped.
        """
        left, failures = iter(plan.messages), 0
        failures_max = 1 if self._request.keeps_progress else FAILURES_MAX
        pending: PlannedMessage | None = None
        done: dict[MessageQueue, int] = {}
        try:
            for current in left:
                pending = current
                outcome = await self._outcome(current)
                pending = None
                on_outcome(outcome)
                if outcome.kind in (OutcomeKind.FAILED, OutcomeKind.UNKNOWN):
                    failures += 1
                    if failures >= failures_max:
                        break
                    continue
                failures = 0
                queue = self._queue_at(current.position)
                done[queue] = current.position.offset + 1
                if done[queue] - self._committed.get(queue, 0) >= COMMIT_EVERY:
                    await self._commit(queue, done[queue])
        except asyncio.CancelledError:
            if pending is not None:
                on_outcome(ResendOutcome(message=pending, kind=OutcomeKind.UNKNOWN, reason=CANCELLED))
            raise
        finally:
            for one in left:
                on_outcome(ResendOutcome(message=one, kind=OutcomeKind.SKIPPED, reason=STOPPED))
            # An interrupted run commits, too: acknowledged messages need not be sent twice.
            await asyncio.shield(self._commit_all(done))

    async def _outcome(self, planned: PlannedMessage) -> ResendOutcome:
        """Send one message, unless the plan excludes it."""
        if planned.verdict is not Verdict.SEND:
            kind = OutcomeKind.FAILED if planned.verdict is Verdict.NO_TARGET else OutcomeKind.SKIPPED
            return ResendOutcome(message=planned, kind=kind, reason=planned.reason)
        try:
            read = await self._read_one(planned.position)
        except ClientError as error:
            return ResendOutcome(message=planned, kind=OutcomeKind.FAILED, reason=f"it cannot be read: {error}")
        message = read.message
        if message is None or message.message_id != planned.message_id or planned.target is None:
            reason = read.fault or "another message has this position now"
            return ResendOutcome(message=planned, kind=OutcomeKind.FAILED, reason=reason)
        try:
            receipt = await self._producer.send_again(message, topic=planned.target)
        except ClientError as error:
            is_unknown = getattr(error, "is_outcome_unknown", False)
            kind = OutcomeKind.UNKNOWN if is_unknown else OutcomeKind.FAILED
            return ResendOutcome(message=planned, kind=kind, reason=str(error))
        reason = "" if receipt.is_acknowledged else f"stored, but not acknowledged ({receipt.status.name})"
        return ResendOutcome(
            message=planned, kind=OutcomeKind.UNKNOWN if reason else OutcomeKind.SENT, reason=reason,
            new_offset_message_id=receipt.offset_message_id, broker_name=receipt.queue.broker_name,
            queue_id=receipt.queue.queue_id, queue_offset=receipt.queue_offset,
        )  # fmt: skip

    def _queue_at(self, position: Position) -> MessageQueue:
        return MessageQueue(
            topic=self._request.source, broker_name=position.broker_name, queue_id=position.queue_id
        )  # fmt: skip

    async def _commit_all(self, done: dict[MessageQueue, int]) -> None:
        for queue, offset in done.items():
            if offset > self._committed.get(queue, 0):
                await self._commit(queue, offset)

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        self._committed[queue] = offset
        if self._request.keeps_progress:
            await self._reader.commit(queue, offset)
