"""Commits and flushes everything at the stop of a broker, within a time limit, and logs the progress.

    [0 ........ flushed ........ committed ........ wrote)
                       <--- unflushed, logged once a second --->

Guarantee: **a stop is either clean or reported as not clean.** The wait for the disk happens in a thread of its own
that is never joined, since a call that hangs in the kernel cannot be cancelled. When the time is over, the store is
left as it is, with its `abort` marker, so that the next start recovers; the unflushed range is logged.
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
"""How often the unflushed part of the log is logged."""


@final
class StopTimeout(BrokerError):
    """The store could not be closed in time. Exit with a non-zero code, and join no thread: it may hang."""


async def finish_within(work: Callable[[], object], positions: CommitLog, timeout_s: float) -> None:
    """Run ``work``, which waits for the disk, and log the unflushed range once a second.

    Raises ``StopTimeout``, or the error of ``work``.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    end = began + timeout_s
    working = _run_in_daemon_thread(work, loop)
    while not working.done():
        log.info(
            "stopping: flushing", extra={**measure_unflushed(positions), "waited_s": round(loop.time() - began, 1)}
        )
        await asyncio.wait([working], timeout=min(REPORT_INTERVAL_S, max(0.0, end - loop.time())))
        if not working.done() and loop.time() >= end:
            facts = measure_unflushed(positions)
            log.critical("stop is not clean: commit log not flushed in time", extra={**facts, "timeout_s": timeout_s})
            raise StopTimeout(f"not flushed in {timeout_s:g} s: {facts['unflushed']}, {facts['left_bytes']} bytes")
    working.result()


def measure_unflushed(positions: CommitLog) -> dict[str, int | str]:
    """Return the part of the log that is not flushed, and the bytes that are not even committed."""
    wrote, committed, flushed = positions.wrote, positions.committed, positions.flushed
    return {
        "left_bytes": wrote - flushed,
        "unflushed": f"[{flushed}, {wrote})",
        "uncommitted_bytes": wrote - committed,
    }


def _run_in_daemon_thread(work: Callable[[], object], loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Run ``work`` in a daemon thread, which does not prevent the process from exiting."""
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
        except BaseException as raised:  # noqa: BLE001 - set on the future
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="gantry-close", daemon=True).start()
    return done
