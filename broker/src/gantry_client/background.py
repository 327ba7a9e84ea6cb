"""Tasks that run beside the caller, each one held by somebody and awaited when its holder closes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, final

from gantry_client.errors import ClientError

log = logging.getLogger(__name__)


@final
class BackgroundTasks:
    """The tasks of one object. A task that dies of a bug says so at once, not when the program ends."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<BackgroundTasks {self._owner} running={len(self._tasks)}>"

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` until it ends or this object closes."""
        task = asyncio.create_task(work, name=f"gantry-{self._owner}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def repeat(self, interval_ms: int, action: Callable[[], Awaitable[None]], name: str) -> None:
        """Do `action` every `interval_ms`. A cluster that is in trouble now is asked again next time."""
        self.start(self._repeat(interval_ms, action, name), name)

    async def close(self) -> None:
        """Cancel every task and wait until it is gone."""
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
                log.warning("a periodic task failed", extra={"task": name, "reason": str(error)})

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task died", extra={"task": task.get_name()}, exc_info=error)
