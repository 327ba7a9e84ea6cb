"""The flush thread: from the page cache to the disk, behind everybody's back or while they wait.

    wrote -> (commit) -> fdatasync -> flushed

Asynchronous: flush when enough pages are dirty, or when it has been too long; ``is_flush_due`` is the whole policy.
Synchronous: flush as soon as anything was appended. That is group commit without any group: while one ``fdatasync``
runs, sends go on being appended, and the next one covers all of them; whoever waits is answered when ``flushed``
has passed it. With a write buffer the flush commits first, so that nobody ever waits for the commit thread's tick.

Nothing here is waited for by a request. One failure is the end; see ``failure``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from gantry_broker.ports.clock import Clock
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.failure import StoreFailure
from gantry_broker.store.settings import PAGE_BYTES, FlushSettings
from gantry_broker.store.worker import Worker


def is_flush_due(settings: FlushSettings, dirty_bytes: int, age_ms: int) -> bool:
    """The policy. ``age_ms`` is the time since the last flush."""
    if dirty_bytes <= 0:
        return False
    is_enough = dirty_bytes >= settings.flush_pages_min * PAGE_BYTES
    return settings.is_sync or is_enough or age_ms >= settings.flush_thorough_interval_ms


@final
class Flusher:
    """``gantry-flush``. Anybody may ``wake`` it; ``flush`` may be called by any thread that may wait."""

    def __init__(
        self,
        settings: FlushSettings,
        clock: Clock,
        commit_log: CommitLog,
        failure: StoreFailure,
        on_progress: Callable[[], None],
    ) -> None:
        self.flushed_timestamp_ms = 0
        """The newest store time that is flushed."""
        self._settings: Final = settings
        self._clock: Final = clock
        self._log: Final = commit_log
        self._failure: Final = failure
        self._on_progress: Final = on_progress
        self._worker: Final = Worker("gantry-flush", settings.flush_interval_ms, self.step)
        self._flushed_at_ms = clock.monotonic_ms()
        self.start: Final = self._worker.start
        self.stop: Final = self._worker.stop
        self.wake: Final = self._worker.wake

    def step(self) -> bool:
        """One round: whatever is due. False after a failure."""
        if self._failure.error is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        if is_flush_due(self._settings, self._log.wrote - self._log.flushed, now_ms - self._flushed_at_ms):
            self._flushed_at_ms = now_ms
            try:
                self._flush()
            except OSError as exc:
                self._failure.report("a flush", exc)
                return False
        return True

    def flush(self) -> int:
        """Flush the log now, in the caller's thread, and say up to where. Raises ``FlushFailed``, for good."""
        if self._failure.error is not None:
            raise self._failure.error
        try:
            return self._flush()
        except OSError as exc:
            raise self._failure.report("a flush", exc) from exc

    def _flush(self) -> int:
        timestamp_ms = self._log.last_timestamp_ms
        self._log.commit()
        end = self._log.sync()
        self.flushed_timestamp_ms = timestamp_ms
        if self._settings.is_sync:
            self._on_progress()
        return end
