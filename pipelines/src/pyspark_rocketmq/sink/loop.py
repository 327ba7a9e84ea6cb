"""One event loop in a thread of its own, for callers without one: Spark calls the sink from plain threads.

Work that was started here continues while the caller reads its next rows.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

T = TypeVar("T")
STOP_TIMEOUT_S: Final = 5.0
"""How long the end of a block waits for the thread."""


@final
class LoopThread:
    """An event loop in a thread, for use in a `with` block. Work that is pending at its end is cancelled."""

    def __init__(self, name: str = "rocketmq-sink") -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(_cancel_pending())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_TIMEOUT_S)
            if not self._thread.is_alive():
                self._loop.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine. Coroutines run up to their first wait in the order of the calls."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end, and return its result."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _cancel_pending() -> None:
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
