"""An event loop in a thread of its own, for tests that have no loop.

At the end every remaining task is cancelled before the loop closes, so a connection that was accepted at that
moment does not stay open until the garbage collector finds it, in another test.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

T = TypeVar("T")


@final
class LoopThread:
    """A running event loop. Use it inside ``with``. Objects of the loop may be changed only through ``run``."""

    def __init__(self, name: str) -> None:
        self._thread: Final = threading.Thread(target=lambda: asyncio.run(self._main()), name=name)
        self._is_ready: Final = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(60), "the loop did not start within 60 s"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = 120.0) -> T:
        """Run ``work`` on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _main(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._is_ready.set()
        await self._ended.wait()
