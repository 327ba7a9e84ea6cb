"""Calls the handler for the messages of a queue one after another, in order.

There is one task per queue. A failed message is handled again after a pause, while the later messages of its queue
wait; after `max_reconsume_times`, if that is set, it goes to the dead letter topic, or is dropped by a broadcast
consumer. A queue whose lock is not certainly held pauses until the lock is renewed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

import msgspec

from gantry_client.background import BackgroundTasks
from gantry_client.backlog import Backlog
from gantry_client.handling import DEAD_LETTER_LEVEL, HandlerCalls, SendBack, send_back_or_drop
from gantry_client.messages import ReceivedMessage
from gantry_client.settings import ConsumerSettings
from gantry_wire.commands.clients import MessageQueue

log = logging.getLogger(__name__)

LOCK_RECHECK_MS: Final = 100
"""How often a paused queue checks whether its lock is held again."""


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
        """Messages in order, by the identity of their backlog; a key exists while its task runs."""
        self._queue_locks: dict[MessageQueue, asyncio.Lock] = {}
        """A queue that was released and reassigned briefly has two backlogs; only one may call the handler."""
        self._tasks = BackgroundTasks("ordered-handlers")

    def __repr__(self) -> str:
        return f"<OrderedHandling queues={len(self._waiting)}>"

    def start(self) -> None:
        """Do nothing: the task of a queue starts with its first message."""

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
        """Handle the first of `waiting`; return the pause before the next attempt in milliseconds."""
        async with self._queue_locks.setdefault(queue, asyncio.Lock()), self._slots:
            if backlog.is_dropped:
                return 0
            if not self._is_locked(queue):
                return LOCK_RECHECK_MS
            message = waiting[0]
            backlog.start_handler()
            try:
                retry = await self._calls.call(message)
                if retry is None or await self._move_to_dead_letters_if_due(message, retry.delay_level):
                    backlog.mark_done(message.queue_offset)
                    waiting.popleft()
                    return 0
            finally:
                backlog.end_handler()
            waiting[0] = msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1)
            return self._settings.ordered_retry_delay_ms

    async def _move_to_dead_letters_if_due(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Send a failed message to the dead letter topic if it is due; return True if it is done.

        A broadcast message that is due is dropped instead.
        """
        times_max = self._settings.max_reconsume_times
        is_exhausted = times_max is not None and message.reconsume_times >= times_max
        if delay_level != DEAD_LETTER_LEVEL and not is_exhausted:
            return False
        return await send_back_or_drop(message, DEAD_LETTER_LEVEL, self._send_back, self._settings.model)
