"""Handlers that see the messages of a queue one after another, in order.

One task per queue. A failed message is tried again in its place after a pause, and everything behind it waits; with
`max_reconsume_times` it is given up in the end and goes to the dead letter topic. A queue whose lock is in doubt rests
until the lock is renewed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from gantry_client.background import BackgroundTasks
from gantry_client.backlog import Backlog
from gantry_client.handling import GIVE_UP, HandlerCalls, SendBack, give_up
from gantry_client.messages import ReceivedMessage
from gantry_client.settings import ConsumerSettings
from gantry_wire.commands.clients import MessageQueue

log = logging.getLogger(__name__)

LOCK_DOUBT_PAUSE_MS: Final = 100


@final
class OrderedHandling:
    """Calls the handler for one message of each queue at a time, and for at most `concurrency` queues at once."""

    def __init__(
        self,
        calls: HandlerCalls,
        send_back: SendBack,
        settings: ConsumerSettings,
        *,
        is_locked: Callable[[MessageQueue], bool],
    ) -> None:
        self._calls = calls
        self._send_back = send_back
        self._settings = settings
        self._is_locked = is_locked
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._waiting: dict[int, deque[ReceivedMessage]] = {}
        """Messages in order, by the identity of their backlog; a key is there while its task runs."""
        self._turns: dict[MessageQueue, asyncio.Lock] = {}
        """A queue that was given away and came back has two backlogs for a moment; only one may be at work."""
        self._tasks = BackgroundTasks("ordered-handlers")

    def __repr__(self) -> str:
        return f"<OrderedHandling queues={len(self._waiting)}>"

    def start(self) -> None:
        """Nothing to do: every queue's task begins with its first message."""

    def deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        waiting = self._waiting.get(id(backlog))
        if waiting is not None:
            waiting.extend(messages)
            return
        waiting = self._waiting[id(backlog)] = deque(messages)
        self._tasks.start(self._work(queue, backlog, waiting), f"{queue.topic}-{queue.queue_id}")

    async def close(self) -> None:
        await self._tasks.close()

    async def _work(self, queue: MessageQueue, backlog: Backlog, waiting: deque[ReceivedMessage]) -> None:
        try:
            while waiting and not backlog.is_dropped:
                pause_ms = await self._handle_first(queue, backlog, waiting)
                if pause_ms:
                    await asyncio.sleep(pause_ms / 1000)
        finally:
            del self._waiting[id(backlog)]

    async def _handle_first(self, queue: MessageQueue, backlog: Backlog, waiting: deque[ReceivedMessage]) -> int:
        """Try the first of `waiting`; how long to rest before the next try, in milliseconds."""
        async with self._turns.setdefault(queue, asyncio.Lock()), self._slots:
            if backlog.is_dropped:
                return 0
            if not self._is_locked(queue):
                return LOCK_DOUBT_PAUSE_MS
            message = waiting[0]
            backlog.begin()
            try:
                later = await self._calls.call(message)
                if later is None or await self._is_given_up(message, later.delay_level):
                    backlog.done(message.queue_offset)
                    waiting.popleft()
                    return 0
            finally:
                backlog.end()
            waiting[0] = replace(message, reconsume_times=message.reconsume_times + 1)
            return self._settings.ordered_retry_delay_ms

    async def _is_given_up(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Whether a message that failed goes to the dead letter topic now, and has arrived there."""
        times_max = self._settings.max_reconsume_times
        is_too_often = times_max is not None and message.reconsume_times >= times_max
        if delay_level != GIVE_UP and not is_too_often:
            return False
        return await give_up(message, GIVE_UP, self._send_back, self._settings.model)
