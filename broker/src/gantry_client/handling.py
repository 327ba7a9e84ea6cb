"""How a push consumer's handler is called, and what becomes of a message when it fails.

A handler that returns has consumed its message. One that raises has not: the message goes back to the broker, which
delivers it again later by way of the group's retry topic, and after too many times moves it to the dead letter topic.
Only when the broker has it in its hands does the message count as done here. When the broker does not take it, the
message stays and is handled again after a pause. Nothing is ever skipped because of an error.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, final

from gantry_client.background import BackgroundTasks
from gantry_client.backlog import Backlog
from gantry_client.consume_rates import ConsumeRates
from gantry_client.errors import ClientError, RetryLater
from gantry_client.messages import ReceivedMessage
from gantry_client.session import Session
from gantry_client.settings import ConsumerSettings, MessageModel
from gantry_wire.codes import RequestCode
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.send import SendBack as SendBackHeader

log = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], Awaitable[None]]
"""Consumes one message. Raises RetryLater, or anything else, to have it delivered again."""

SendBack = Callable[[ReceivedMessage, int], Awaitable[None]]
"""`send_back` of one consumer: takes a message and its delay level."""

LOCAL_RETRY_MS: Final = 5000
"""How long a message that no broker took back waits for its next try here; RocketMQ's clients wait as long."""

TIMEOUT_LEVEL: Final = 3
"""The delay level of a message whose handler took too long; that of RocketMQ's clients."""

GIVE_UP: Final = -1
"""The delay level that moves a message to the dead letter topic."""


class Handling(Protocol):
    """Consumes the messages that a group member delivers."""

    def start(self) -> None:
        """Begin to call the handler."""

    def deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        """Take messages in; never waits."""

    async def close(self) -> None:
        """Cancel handlers that still run."""


async def send_back(
    session: Session, group: str, max_reconsume_times: int | None, message: ReceivedMessage, delay_level: int
) -> None:
    """Give `message` back to the broker that it came from; returns when the broker has it.

    Raises a ClientError when that is not certain.
    """
    route = await session.routes.get(message.queue.topic)
    header = SendBackHeader(
        offset=message.physical_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.offset_message_id,
        origin_topic=message.topic,
        unit_mode=False,
        max_reconsume_times=max_reconsume_times,
    )
    address = route.demand_master(message.queue.broker_name)
    await session.calls.demand(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call of a handler has ended."""

    later: RetryLater | None
    """None when the handler consumed its message, otherwise when to deliver it again."""

    fault: str = ""
    """What it raised, if that was no wish to have the message later."""


@final
class HandlerCalls:
    """Calls the application's handler for one message, and keeps count of how that goes."""

    def __init__(self, handler: Handler, timeout_ms: int) -> None:
        self.rates = ConsumeRates(time.monotonic)
        self._handler = handler
        self._timeout_ms = timeout_ms

    async def call(self, message: ReceivedMessage) -> RetryLater | None:
        """None when the handler consumed ``message``, otherwise when to deliver it again."""
        began_at = time.monotonic()
        outcome = await self.outcome(message)
        took_ms = (time.monotonic() - began_at) * 1000
        self.rates.of(message.queue.topic).handled(took_ms, is_consumed=outcome.later is None)
        return outcome.later

    async def outcome(self, message: ReceivedMessage) -> Outcome:
        """What becomes of one call that counts for nothing.

        One that takes too long is cancelled: it would keep what was committed from moving for ever.
        """
        limit = asyncio.timeout(self._timeout_ms / 1000)
        try:
            async with limit:
                await self._handler(message)
        except RetryLater as later:
            return Outcome(later)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # We are being closed.
            log.warning("a handler was cancelled from inside", extra={"message_id": message.message_id})
            return Outcome(RetryLater(), "CancelledError")
        except Exception as error:
            named = {"topic": message.topic, "message_id": message.message_id}
            if limit.expired():
                log.warning("a handler took too long", extra=named)
                return Outcome(RetryLater(TIMEOUT_LEVEL), f"it took more than {self._timeout_ms} ms")
            log.exception("a handler failed", extra=named)
            return Outcome(RetryLater(), f"{type(error).__name__}: {error}")
        return Outcome(None)


@final
@dataclass(frozen=True, slots=True)
class _Item:
    message: ReceivedMessage
    backlog: Backlog


async def give_up(message: ReceivedMessage, delay_level: int, send_back: SendBack, model: MessageModel) -> bool:
    """Give a failed message back to its broker; return whether its consumer is done with it.

    A broadcast message has no retry topic, so it is dropped. What the broker refused stays with the consumer.
    """
    if model is MessageModel.BROADCASTING:
        log.warning("a broadcast message is dropped", extra={"message_id": message.message_id})
        return True
    try:
        await send_back(message, delay_level)
    except ClientError as error:
        log.warning("a message is not taken back", extra={"topic": message.topic, "reason": str(error)})
        return False
    return True


@final
class ConcurrentHandling:
    """Calls the handler for many messages at once, in no particular order."""

    def __init__(self, calls: HandlerCalls, send_back: SendBack, settings: ConsumerSettings) -> None:
        self._calls = calls
        self._send_back = send_back
        self._settings = settings
        self._ready: asyncio.Queue[_Item] = asyncio.Queue()
        """Bounded by the backlogs, whose limits stop the fetching."""
        self._tasks = BackgroundTasks("handlers")

    def __repr__(self) -> str:
        return f"<ConcurrentHandling waiting={self._ready.qsize()} {self._tasks!r}>"

    def start(self) -> None:
        for number in range(self._settings.concurrency):
            self._tasks.start(self._work(), f"worker-{number}")

    def deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            self._ready.put_nowait(_Item(message, backlog))

    async def close(self) -> None:
        await self._tasks.close()

    async def _work(self) -> None:
        while True:
            item = await self._ready.get()
            if item.backlog.is_dropped:
                continue
            item.backlog.begin()
            try:
                await self._handle(item)
            finally:
                item.backlog.end()

    async def _handle(self, item: _Item) -> None:
        later = await self._calls.call(item.message)
        if later is not None and not await self._give_back(item, later.delay_level):
            return
        item.backlog.done(item.message.queue_offset)

    async def _give_back(self, item: _Item, delay_level: int) -> bool:
        """Whether the message is in safe hands."""
        if await give_up(item.message, delay_level, self._send_back, self._settings.model):
            return True
        again = replace(item.message, reconsume_times=item.message.reconsume_times + 1)
        self._tasks.start(self._try_again(_Item(again, item.backlog)), "retry")
        return False

    async def _try_again(self, item: _Item) -> None:
        await asyncio.sleep(LOCAL_RETRY_MS / 1000)
        self._ready.put_nowait(item)
