"""Calls the handler of a push consumer, and handles its failures.

A handler that returns has consumed its message. A handler that raises has not: the message is sent back to the broker,
which redelivers it later through the retry topic of the group, and after too many attempts moves it to the dead letter
topic. The message counts as done here only when the broker has accepted it. If the broker does not accept it, the
message stays here and is handled again after a pause. Only a broadcast consumer drops a message whose handler failed:
it has no retry topic. An ordered consumer repeats a failed message itself, and sends back only those that are due for
the dead letter topic (`ordered_handling`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

import msgspec

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
"""The pause before a message that its broker did not accept is handled again here; as in RocketMQ's clients."""

TIMEOUT_LEVEL: Final = 3
"""The delay level of a message whose handler timed out; the same as in RocketMQ's clients."""

DEAD_LETTER_LEVEL: Final = -1
"""The delay level that moves a message to the dead letter topic without another retry."""


class Handling(Protocol):
    """Dispatches the messages of one consumer to the handler."""

    def start(self) -> None:
        """Start calling the handler for delivered messages."""

    def deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        """Accept fetched messages without waiting for the handler."""

    async def close(self) -> None:
        """Cancel the handlers that are still running."""


async def send_back(
    session: Session, group: str, max_reconsume_times: int | None, message: ReceivedMessage, delay_level: int
) -> None:
    """Send `message` back to its broker for redelivery; returns when the broker has accepted it.

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
    address = route.require_master(message.queue.broker_name)
    await session.calls.request_success(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one call of a handler."""

    retry: RetryLater | None
    """None if the handler consumed its message, otherwise the requested redelivery."""

    failure: str = ""
    """The error of the handler, if it was not RetryLater."""


@final
class HandlerCalls:
    """Calls the application's handler, with one message in each call, and records rates. Calls may be concurrent."""

    def __init__(self, handler: Handler, timeout_ms: int) -> None:
        self.rates = ConsumeRates(time.monotonic)
        self._handler = handler
        self._timeout_ms = timeout_ms

    async def call(self, message: ReceivedMessage) -> RetryLater | None:
        """Call the handler; return None if it consumed ``message``, otherwise the requested redelivery."""
        started_at = time.monotonic()
        outcome = await self.call_uncounted(message)
        took_ms = (time.monotonic() - started_at) * 1000
        self.rates.for_topic(message.queue.topic).record_handled(took_ms, is_consumed=outcome.retry is None)
        return outcome.retry

    async def call_uncounted(self, message: ReceivedMessage) -> Outcome:
        """Call the handler without recording rates.

        A handler that exceeds the timeout is cancelled: otherwise it would block the committed offset for ever.
        """
        limit = asyncio.timeout(self._timeout_ms / 1000)
        try:
            async with limit:
                await self._handler(message)
        except RetryLater as retry:
            return Outcome(retry)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # The consumer is closing.
            log.warning("handler cancelled itself; message not consumed", extra={"message_id": message.message_id})
            return Outcome(RetryLater(), "CancelledError")
        except Exception as error:
            log_fields = {"topic": message.topic, "message_id": message.message_id}
            if limit.expired():
                log.warning("handler timed out; message not consumed", extra=log_fields)
                return Outcome(RetryLater(TIMEOUT_LEVEL), f"timed out after {self._timeout_ms} ms")
            log.exception("handler failed; message not consumed", extra=log_fields)
            return Outcome(RetryLater(), f"{type(error).__name__}: {error}")
        return Outcome(None)


@final
@dataclass(frozen=True, slots=True)
class _Item:
    message: ReceivedMessage
    backlog: Backlog


async def send_back_or_drop(
    message: ReceivedMessage, delay_level: int, send_back: SendBack, model: MessageModel
) -> bool:
    """Send a failed message back to its broker. Return whether its consumer is done with it.

    A broadcast message has no retry topic, so it is dropped. A message that the broker refused stays with the consumer.
    """
    if model is MessageModel.BROADCASTING:
        log.warning("broadcast message dropped after its handler failed", extra={"message_id": message.message_id})
        return True
    try:
        await send_back(message, delay_level)
    except ClientError as error:
        log.warning(
            "failed to send message back to broker; retrying locally",
            extra={"topic": message.topic, "reason": str(error)},
        )
        return False
    return True


@final
class ConcurrentHandling:
    """Calls the handler for many messages concurrently, in no particular order."""

    def __init__(self, calls: HandlerCalls, send_back: SendBack, settings: ConsumerSettings) -> None:
        self._calls = calls
        self._send_back = send_back
        self._settings = settings
        self._ready: asyncio.Queue[_Item] = asyncio.Queue()
        """The delivered messages; bounded by the backlogs, whose limits pause the fetching."""
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
            item.backlog.start_handler()
            try:
                await self._handle(item)
            finally:
                item.backlog.end_handler()

    async def _handle(self, item: _Item) -> None:
        retry = await self._calls.call(item.message)
        if retry is not None and not await self._send_back_or_retry(item, retry.delay_level):
            return
        item.backlog.mark_done(item.message.queue_offset)

    async def _send_back_or_retry(self, item: _Item, delay_level: int) -> bool:
        """Send a failed message back or drop it; return True if it is done, False if it is handled again here."""
        if await send_back_or_drop(item.message, delay_level, self._send_back, self._settings.model):
            return True
        again = msgspec.structs.replace(item.message, reconsume_times=item.message.reconsume_times + 1)
        self._tasks.start(self._requeue_after_pause(_Item(again, item.backlog)), "retry")
        return False

    async def _requeue_after_pause(self, item: _Item) -> None:
        await asyncio.sleep(LOCAL_RETRY_MS / 1000)
        self._ready.put_nowait(item)
