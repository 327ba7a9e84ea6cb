"""Background tasks of the client: each has an owner that awaits it when it closes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, final

from gantry_client.errors import ClientError

log = logging.getLogger(__name__)


@final
class BackgroundTasks:
    """The background tasks of one object. An unexpected error in a task is logged at once."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<BackgroundTasks {self._owner} running={len(self._tasks)}>"

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start `work` as a task that runs until it ends or this object closes."""
        task = asyncio.create_task(work, name=f"gantry-{self._owner}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def repeat(self, interval_ms: int, action: Callable[[], Awaitable[None]], name: str) -> None:
        """Call `action` every `interval_ms`. A ClientError is logged, and the next call is made as usual."""
        self.start(self._repeat(interval_ms, action, name), name)

    async def close(self) -> None:
        """Cancel every task but the calling one, and wait until they have ended."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, interval_ms: int, action: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await action()
            except ClientError as error:
                log.warning(
                    "periodic task failed; retrying at the next interval", extra={"task": name, "reason": str(error)}
                )

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task ended by unexpected error", extra={"task": task.get_name()}, exc_info=error)
