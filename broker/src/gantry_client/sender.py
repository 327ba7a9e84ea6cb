"""Sends one message: attempts, the choice of the next broker, the deadline, and the limit on outstanding sends.

Only this module retries sends, and only those to any queue. A refusal that every broker would repeat is raised at once.
After other failures the route is refreshed, and the next attempt uses a broker that has not failed in this send; if
none is left, it backs off, because a broker that restarts needs some time. Once an attempt may have stored the message,
every failure of the send is a SendFailed, which states that its outcome is unknown.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, final

from gantry_client.calls import parse_header
from gantry_client.clock import Deadline, wall_ms
from gantry_client.errors import (
    Attempt,
    BrokerRefused,
    ClientError,
    RequestFailed,
    SendFailed,
    SendTimeout,
    Unavailable,
)
from gantry_client.messages import SendReceipt, SendStatus
from gantry_client.outgoing import OutgoingMessage
from gantry_client.routes import Route
from gantry_client.selection import QueueSelector
from gantry_client.session import Session
from gantry_client.settings import ProducerSettings
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command, oneway
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.send import SendResult

RETRYABLE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        204,
        205,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals after which another broker may accept the message (204: no buyer id, 205: not in this unit)."""

ROUTE_REFRESH_MS: Final = 500
"""How long a retry waits for a fresh route before it uses the old one; name servers must not use up the deadline."""

BACKOFF_FIRST_MS: Final = 100
"""The first backoff of a send, before a broker is tried a second time; it doubles with every further attempt."""

_STATUSES: Final = frozenset(status.value for status in SendStatus)


@final
class Slots:
    """A semaphore with `count` slots and `bytes_max` bytes in total, granted in FIFO order. Belongs to one event loop.

    asyncio's semaphore scans all its waiters whenever one is woken, which is quadratic for the thousands of sends that
    may wait here. This class grants slots directly and touches each waiter once. A granted waiter runs only in the next
    turn of the loop; until then it counts as queued, so that no later caller runs before it.
    """

    def __init__(self, count: int, bytes_max: int) -> None:
        self._count = count
        self._bytes_max = bytes_max
        self.in_use = 0
        """The slots that callers have now."""
        self.bytes_in_use = 0
        """The bytes of the sends that have these slots."""
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._queued = 0
        """The callers that wait, or have been granted a slot and have not run since."""

    def __repr__(self) -> str:
        return f"<Slots in_use={self.in_use} bytes={self.bytes_in_use} waiting={len(self._waiting)}>"

    def try_acquire(self, size: int) -> bool:
        """Acquire a slot for `size` bytes if one is free and no other caller is queued."""
        if self._queued or not self._has_room(size):
            return False
        self._occupy(size)
        return True

    async def acquire(self, size: int) -> None:
        """Wait in FIFO order for a slot for `size` bytes."""
        if self.try_acquire(size):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((granted, size))
        self._queued += 1
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size)  # The slot was granted already; the next waiter must get it.
            raise
        finally:
            self._queued -= 1
            # Later callers may have queued behind this one only, or behind a large one that is cancelled now.
            self._grant_waiting()

    def release(self, size: int) -> None:
        """Release a slot and grant free slots to the longest waiters."""
        self.in_use -= 1
        self.bytes_in_use -= size
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        while self._waiting:
            granted, size = self._waiting[0]
            if granted.done():
                self._waiting.popleft()
            elif self._has_room(size):
                self._waiting.popleft()
                self._occupy(size)
                granted.set_result(None)
            else:
                return

    def _has_room(self, size: int) -> bool:
        """Return whether a slot is free. One send alone always has room, however large, or it would wait for ever."""
        if self.in_use == 0:
            return True
        return self.in_use < self._count and self.bytes_in_use + size <= self._bytes_max

    def _occupy(self, size: int) -> None:
        self.in_use += 1
        self.bytes_in_use += size


@final
class Sender:
    """Sends prepared messages for one producer group. Belongs to one event loop."""

    def __init__(self, session: Session, group: str, settings: ProducerSettings) -> None:
        self._session = session
        self._group = group
        self._settings = settings
        self._selector = QueueSelector(settings.avoid_failed_broker_ms)
        self._slots = Slots(settings.outstanding_max, settings.outstanding_bytes_max)

    def __repr__(self) -> str:
        return f"<Sender {self._group} outstanding={self.outstanding}>"

    @property
    def outstanding(self) -> int:
        """The number of sends without a reply."""
        return self._slots.in_use

    async def send(self, outgoing: OutgoingMessage, queue: MessageQueue | None, deadline: Deadline) -> SendReceipt:
        """Send to `queue`, or to any queue if it is None, when a slot for outstanding sends is free."""
        size = len(outgoing.body)
        await self._take_slot(outgoing.topic, size, deadline)
        try:
            if queue is None:
                return await self._send_anywhere(outgoing, deadline)
            return await self._send_to(queue, outgoing, deadline)
        finally:
            self._slots.release(size)

    async def find_route(self, topic: str, deadline: Deadline, attempts: Sequence[Attempt] = ()) -> Route:
        """Return the route of `topic` for a send with `deadline`. Raises SendTimeout, and like `for_sending`."""
        known = self._session.routes.find_for_sending(topic)
        if known is not None:
            return known
        try:
            async with asyncio.timeout_at(deadline.at):
                return await self._session.routes.for_sending(topic)
        except TimeoutError as error:
            raise SendTimeout(topic, tuple(attempts), "the deadline passed while its route was queried") from error

    async def send_oneway(self, outgoing: OutgoingMessage, queue: MessageQueue | None) -> None:
        """Write the message to a connection without waiting for a reply."""
        if queue is None:
            route = await self._session.routes.for_sending(outgoing.topic)
            queue = self._selector.next(route, (), _now_s())
        else:
            route = await self._session.routes.for_sending(queue.topic)
        address = route.require_master(queue.broker_name)
        command = oneway(_code(outgoing), self._fields(queue, outgoing), outgoing.body)
        await self._session.pool.send_oneway(address, command, self._settings.send_timeout_ms)

    async def _take_slot(self, topic: str, size: int, deadline: Deadline) -> None:
        if self._slots.try_acquire(size):
            return
        try:
            async with asyncio.timeout_at(deadline.at):
                await self._slots.acquire(size)
        except TimeoutError as error:
            why = f"{self._slots.in_use} other sends were outstanding until the deadline"
            raise SendTimeout(topic, (), why) from error

    async def _send_anywhere(self, outgoing: OutgoingMessage, deadline: Deadline) -> SendReceipt:
        attempts: list[Attempt] = []
        backoff_ms = BACKOFF_FIRST_MS
        try:
            while True:
                route = await self.find_route(outgoing.topic, deadline, attempts)
                tried = {attempt.broker_name for attempt in attempts}
                queue = self._selector.next(route, tried, _now_s())
                if queue.broker_name in tried:
                    await asyncio.sleep(min(backoff_ms, deadline.remaining_ms) / 1000)
                    backoff_ms *= 2
                try:
                    receipt = await self._attempt(route.require_master(queue.broker_name), queue, outgoing, deadline)
                except RequestFailed as error:
                    attempts.append(Attempt(queue.broker_name, error))
                    await self._prepare_retry(outgoing.topic, attempts, deadline)
                else:
                    self._selector.record_success(queue.broker_name)
                    return receipt
        except SendFailed:
            raise
        except ClientError as error:
            if any(attempt.error.is_outcome_unknown for attempt in attempts):
                # Errors such as NoMaster would state that nothing is stored.
                raise SendFailed(
                    outgoing.topic, tuple(attempts), f"and the last attempt ended with: {error}"
                ) from error
            raise

    async def _send_to(self, queue: MessageQueue, outgoing: OutgoingMessage, deadline: Deadline) -> SendReceipt:
        route = await self.find_route(queue.topic, deadline)
        try:
            return await self._attempt(route.require_master(queue.broker_name), queue, outgoing, deadline)
        except BrokerRefused:
            raise
        except RequestFailed as error:
            attempts = (Attempt(queue.broker_name, error),)
            if deadline.has_passed:
                raise SendTimeout(outgoing.topic, attempts, "the deadline passed") from error
            raise SendFailed(outgoing.topic, attempts, "and no other queue is allowed") from error

    async def _prepare_retry(self, topic: str, attempts: list[Attempt], deadline: Deadline) -> None:
        """Return if another attempt may be made, after refreshing the route; raise otherwise."""
        error = attempts[-1].error
        if isinstance(error, BrokerRefused) and error.code not in RETRYABLE_CODES:
            raise error
        if deadline.has_passed:
            raise SendTimeout(topic, tuple(attempts), "the deadline passed") from error
        if len(attempts) > self._settings.retries:
            raise SendFailed(topic, tuple(attempts), f"all {len(attempts)} attempts failed") from error
        if isinstance(error, Unavailable):
            self._selector.record_failure(attempts[-1].broker_name, _now_s())
        await self._refresh_route(topic, deadline)

    async def _refresh_route(self, topic: str, deadline: Deadline) -> None:
        try:
            async with asyncio.timeout(min(ROUTE_REFRESH_MS, deadline.remaining_ms) / 1000):
                await self._session.routes.refresh(topic)
        except (TimeoutError, RequestFailed):
            return  # The retry uses the old route.

    async def _attempt(
        self, address: str, queue: MessageQueue, outgoing: OutgoingMessage, deadline: Deadline
    ) -> SendReceipt:
        timeout_ms = max(1, deadline.remaining_ms)
        if self._settings.attempt_timeout_ms is not None:
            timeout_ms = min(timeout_ms, self._settings.attempt_timeout_ms)
        command = Command(code=_code(outgoing), ext=self._fields(queue, outgoing), body=outgoing.body)
        reply = await self._session.pool.request(address, command, timeout_ms)
        if reply.code not in _STATUSES:
            raise BrokerRefused(reply.code, reply.remark, address)
        result = parse_header(reply, SendResult, address)
        return SendReceipt(
            status=SendStatus(reply.code),
            message_id=outgoing.message_id,
            offset_message_id=result.msg_id,
            queue=MessageQueue(topic=queue.topic, broker_name=queue.broker_name, queue_id=result.queue_id),
            queue_offset=result.queue_offset,
            transaction_id=result.transaction_id,
            recall_handle=result.recall_handle,
        )

    def _fields(self, queue: MessageQueue, outgoing: OutgoingMessage) -> dict[str, str]:
        queues = self._settings.default_topic_queues
        return outgoing.header(self._group, queue, wall_ms(), default_topic_queues=queues).write()


def _code(outgoing: OutgoingMessage) -> RequestCode:
    return RequestCode.SEND_BATCH_MESSAGE if outgoing.is_batch else RequestCode.SEND_MESSAGE_V2


def _now_s() -> float:
    return asyncio.get_running_loop().time()
