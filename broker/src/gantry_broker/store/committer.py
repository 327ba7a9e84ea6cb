"""The commit thread: from write buffers into the page cache of the log's files.

    wrote -> pwrite -> committed          a buffer whose file is full and committed -> void -> zero -> free

It looks every interval, and at once when enough pages wait, when a buffer is wanted, or when somebody waits who may see
committed bytes only. A busy log has enough pages again after every append; there it is enough that a round comes every
``ROUND_MS``, for each one takes the interpreter from the loop several times. It never syncs. A failed write is the end
of the log: its bytes are still in the buffer, and the next start replays them.
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
ROUND_BYTES_MAX: Final = 1 << 20


def round_bytes(settings: PoolSettings, committed_bytes: int, elapsed_ms: int) -> int:
    """How much makes the next round begin at once, if the last one took so much after so long a time."""
    paced = committed_bytes * ROUND_MS // max(elapsed_ms, 1)
    return max(max(settings.commit_pages_min, 1) * PAGE_BYTES, min(paced, ROUND_BYTES_MAX))


def is_commit_due(settings: PoolSettings, dirty_bytes: int, age_ms: int, *, is_wanted: bool) -> bool:
    """The policy. ``age_ms`` is the time since the last commit."""
    is_enough = dirty_bytes >= max(settings.commit_pages_min, 1) * PAGE_BYTES
    return dirty_bytes > 0 and (is_wanted or is_enough or age_ms >= settings.commit_thorough_interval_ms)


@final
class Committer:
    """``gantry-commit``. The loop's thread calls ``wake``, ``want`` and ``take``; the rest is the thread's own."""

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
        """Whoever appends wakes the thread when so much is uncommitted. Changed by the thread only."""

        self._settings: Final = settings
        self._clock: Final = clock
        self._log: Final = commit_log
        self._pool: Final = pool
        self._failure: Final = failure
        self._on_progress: Final = on_progress
        self._worker: Final = Worker("gantry-commit", settings.commit_interval_ms, self.step)
        self._returned: Final[deque[WriteBuffer]] = deque()
        self._committed_at_ms = clock.monotonic_ms()
        self._is_wanted = False
        self.start: Final = self._worker.start
        self.stop: Final = self._worker.stop
        self.wake: Final = self._worker.wake

    def want(self) -> None:
        """Somebody waits: commit now, however little it is."""
        self._is_wanted = True
        self._worker.wake()

    def take(self, buffer: WriteBuffer) -> None:
        """A buffer that its file has done with."""
        self._returned.append(buffer)
        self._worker.wake()

    def step(self) -> bool:
        """One round: whatever is due. False after a failure."""
        if self._failure.error is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        is_wanted, self._is_wanted = self._is_wanted, False
        dirty_bytes = self._log.wrote - self._log.committed
        if is_commit_due(self._settings, dirty_bytes, now_ms - self._committed_at_ms, is_wanted=is_wanted):
            self.wake_bytes = round_bytes(self._settings, dirty_bytes, now_ms - self._committed_at_ms)
            self._committed_at_ms = now_ms
            try:
                self._log.commit()
            except OSError as exc:
                self._failure.report("a commit of the write buffer", exc)
                return False
        # Also when the flush thread has committed: somebody must tell the loop.
        if not self._pool.is_crash_safe or self._log.has_returnable:
            self._on_progress()
        self.give_back()
        return True

    def give_back(self) -> None:
        """Make returned buffers free again."""
        while self._returned:
            self._pool.give_back(self._returned.popleft())
