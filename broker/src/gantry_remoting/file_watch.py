"""Periodic checks of files that other programs write while this process runs, such as certificates and secrets.

The files are read every few seconds and compared by content, so that a mounted Secret whose link is switched is
detected like an edit. The owner of a file decides how a change is used, and which changes are refused.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 3.0
"""How often the files are read."""


@final
class FileWatch:
    """Calls ``check`` every few seconds between ``start`` and ``close``. Owned by the event loop."""

    def __init__(self, name: str, check: Callable[[], Awaitable[object]]) -> None:
        """Create a watch. An exception of ``check`` is logged, and does not end the watch."""
        self._name: Final = name
        self._check: Final = check
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None, "a watch is started only once"
        self._task = asyncio.create_task(self._run(), name=f"watch {self._name}")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self._check()
            except Exception:  # after an exception the file must still be watched
                log.exception("unexpected error while checking a file", extra={"file": self._name})
