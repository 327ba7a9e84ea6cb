"""Blocking calls of the event loop, in threads that nothing waits for at the end of the process.

``asyncio.to_thread`` would let Ctrl-C wait for a request to an API server that does not answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], *, discard: Callable[[T], None] = lambda result: None) -> T:
    """Return the result of ``work``, or raise its exception.

    ``discard`` gets a result that arrives after this task was cancelled. The thread is not stopped then, so ``work``
    must have its own time limits.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if error is not None:
            if not future.cancelled():
                future.set_exception(error)
        elif future.cancelled():
            discard(result)  # type: ignore[arg-type]  # a result of T, which may be None
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001  # passed to the waiting task
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop has been closed
            if error is None:
                discard(result)  # type: ignore[arg-type]

    threading.Thread(target=run, name="gantry-console", daemon=True).start()
    return await future
