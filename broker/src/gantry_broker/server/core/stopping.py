"""The last minute of a broker: everything committed and flushed, within a bound, and said while it goes on.

    [0 ........ flushed ........ committed ........ wrote)
                       <---- left, once a second --->

The rule it guards: **a stop is either clean or says that it is not.** What waits for a disk waits in a thread of its
own that nobody joins, since a call that hangs in the kernel cannot be taken back. When the time is over the store is
left as it is, `abort` marker included, so the next start recovers; what was not on the disk by then is named.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final, final

from gantry_broker.errors import BrokerError
from gantry_broker.store.commit_log import CommitLog

log = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 1.0


@final
class StopTimeout(BrokerError):
    """The store could not be closed in time. End the process with a non-zero code; join nothing, it may hang."""


async def finish_within(work: Callable[[], object], positions: CommitLog, timeout_s: float) -> None:
    """Run ``work``, which waits for the disk, and say once a second what is left. Raises ``StopTimeout``."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    end = began + timeout_s
    working = _in_thread(work, loop)
    while not working.done():
        log.info("stopping: flushing", extra={**left(positions), "waited_s": round(loop.time() - began, 1)})
        await asyncio.wait([working], timeout=min(REPORT_INTERVAL_S, max(0.0, end - loop.time())))
        if not working.done() and loop.time() >= end:
            facts = left(positions)
            log.critical("the stop is not clean: not everything is flushed", extra={**facts, "timeout_s": timeout_s})
            raise StopTimeout(f"not flushed in {timeout_s:g} s: {facts['unflushed']}, {facts['left_bytes']} bytes")
    working.result()


def left(positions: CommitLog) -> dict[str, int | str]:
    """What is not on the disk yet, and what is not even in the file."""
    wrote, committed, flushed = positions.wrote, positions.committed, positions.flushed
    return {
        "left_bytes": wrote - flushed,
        "unflushed": f"[{flushed}, {wrote})",
        "uncommitted_bytes": wrote - committed,
    }


def _in_thread(work: Callable[[], object], loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Run ``work`` in a thread that does not keep the process from ending."""
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - handed over to whoever waits
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="gantry-close", daemon=True).start()
    return done
