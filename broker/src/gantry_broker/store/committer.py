"""The commit thread, which copies write buffers into the page cache of the log's files.

    wrote -> pwrite -> committed          a buffer whose file is full and committed -> void -> zero -> free

It runs once per interval, and at once when enough pages are uncommitted, when a buffer is needed or returned, or when a
reader waits that may see committed bytes only. On a busy log enough pages are uncommitted after every append. There the
rounds are limited to about one every ``ROUND_MS`` (more if ``ROUND_BYTES_MAX`` are uncommitted sooner), because each
takes the interpreter from the loop several times. The thread never calls fsync. A failed write is final for the log:
its bytes are still in the buffer, and the next start replays them, unless the buffer is anonymous memory. To void a
buffer is to mark its content as invalid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from gantry_broker.ports.clock import Clock
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.failure import StoreFailure
from gantry_broker.store.settings import PAGE_BYTES, PoolSettings
from gantry_broker.store.worker import Worker
from gantry_broker.store.write_buffer import WriteBuffer
from gantry_broker.store.write_pool import WritePool

ROUND_MS: Final = 10
"""The desired interval of the rounds on a busy log, in milliseconds."""
ROUND_BYTES_MAX: Final = 1 << 20
"""As many uncommitted bytes start a round sooner."""


def round_bytes(settings: PoolSettings, committed_bytes: int, elapsed_ms: int) -> int:
    """Return how many uncommitted bytes start the next round at once, given the size and interval of the last one."""
    paced = committed_bytes * ROUND_MS // max(elapsed_ms, 1)
    return max(max(settings.commit_pages_min, 1) * PAGE_BYTES, min(paced, ROUND_BYTES_MAX))


def is_commit_due(settings: PoolSettings, dirty_bytes: int, age_ms: int, *, is_requested: bool) -> bool:
    """Return whether to commit now ``dirty_bytes`` uncommitted bytes. ``age_ms`` is the time since the last commit."""
    is_enough = dirty_bytes >= max(settings.commit_pages_min, 1) * PAGE_BYTES
    return dirty_bytes > 0 and (is_requested or is_enough or age_ms >= settings.commit_thorough_interval_ms)


@final
class Committer:
    """The thread ``gantry-commit``.

    The loop's thread calls ``wake``, ``request_commit`` and ``take_buffer``; the commit thread, while it runs, owns the
    rest. The thread that has stopped it calls ``take_buffer`` and ``free_returned_buffers``.
    """

    def __init__(
        self,
        settings: PoolSettings,
        clock: Clock,
        commit_log: CommitLog,
        pool: WritePool,
        failure: StoreFailure,
        on_progress: Callable[[], None],
    ) -> None:
        self.wake_bytes = round_bytes(settings, 0, 1)
        """Uncommitted bytes at which an append wakes the thread. Changed by the thread only."""

        self._settings: Final = settings
        self._clock: Final = clock
        self._log: Final = commit_log
        self._pool: Final = pool
        self._failure: Final = failure
        self._on_progress: Final = on_progress
        self._worker: Final = Worker("gantry-commit", settings.commit_interval_ms, self.step)
        self._returned: Final[deque[WriteBuffer]] = deque()
        self._committed_at_ms = clock.monotonic_ms()
        self._is_requested = False
        self.start: Final = self._worker.start
        self.stop: Final = self._worker.stop
        self.wake: Final = self._worker.wake

    def request_commit(self) -> None:
        """Wake the thread to commit at once, however few bytes are uncommitted."""
        self._is_requested = True
        self._worker.wake()

    def take_buffer(self, buffer: WriteBuffer) -> None:
        """Take a buffer that its file needs no more, to be zeroed and reused."""
        self._returned.append(buffer)
        self._worker.wake()

    def step(self) -> bool:
        """Run one round: commit if that is due, and free returned buffers. Return False after a failure."""
        if self._failure.error is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        is_requested, self._is_requested = self._is_requested, False
        dirty_bytes = self._log.wrote - self._log.committed
        is_due = is_commit_due(self._settings, dirty_bytes, now_ms - self._committed_at_ms, is_requested=is_requested)
        if is_due:
            self.wake_bytes = round_bytes(self._settings, dirty_bytes, now_ms - self._committed_at_ms)
            self._committed_at_ms = now_ms
            try:
                self._log.commit()
            except OSError as exc:
                self._failure.report("a commit of the write buffer", exc)
                return False
        # The flush thread commits, too, and reports that itself; it does not report buffers.
        if (is_due and not self._pool.is_crash_safe) or self._log.has_returnable_buffer:
            self._on_progress()
        self.free_returned_buffers()
        return True

    def free_returned_buffers(self) -> None:
        """Zero returned buffers and put them back into the pool."""
        while self._returned:
            self._pool.give_back(self._returned.popleft())
