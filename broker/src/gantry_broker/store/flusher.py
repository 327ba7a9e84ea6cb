"""The flush thread, which writes the page cache of the log to the disk, in the background or while senders wait.

    wrote -> (commit) -> fdatasync -> flushed

Asynchronous flush: flush when enough pages are dirty, or after the thorough interval; ``is_flush_due`` is the policy.
Synchronous flush, and a slave whose disk a master waits for: flush as soon as anything was appended. This is group
commit without explicit groups: while one ``fdatasync`` runs, more messages are appended, and the next one covers all of
them; a waiting sender is answered when ``flushed`` has passed its message. On a slow disk the next fsync is delayed a
little for the senders that were just answered; see ``CommitDelay``. With a write buffer the flush commits first, so no
send waits for the commit thread.

No request blocks this thread. One failure is final; see ``failure``.

``CommitDelay`` decides, from the appended bytes and the duration of the last sync, whether a group commit is delayed,
as PostgreSQL's ``commit_delay`` does. Senders that wait for the disk send again when they are answered. Without a pause
the first of them starts the next sync alone, and all others wait for that one and for another:

    sync of all but one | sync of one | sync of all but one | ...        half of them in a sync, on average
    sync of all | pause | sync of all | pause | ...                      nearly all, for the price of the pause

So after a sync that took time, the next one waits until nearly as many bytes have been appended as were waiting when it
ended, but at most three quarters as long as it took: a slow disk saves a whole sync, and after a sync of less than a
millisecond there is no pause at all. Senders with a rate of their own, which do not wait for answers, gain nothing by a
pause: after one that brings less than ``WORTH_SHARE`` of the missing bytes the next ``REST_SYNCS`` syncs have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from gantry_broker.ports.clock import Clock
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.failure import StoreFailure
from gantry_broker.store.settings import PAGE_BYTES, FlushSettings
from gantry_broker.store.worker import Worker

DELAY_MS_MAX: Final = 10.0
"""Limit of a pause, however slow the disk is: by then every live sender has sent again."""
DELAY_SHARE: Final = 0.75
"""Limit of a pause as a share of the duration of the last sync."""
EXPECTED_SHARE: Final = 0.9
"""Share of the waiting bytes that is expected again: some senders are late, and the next bodies may be smaller."""
WORTH_SHARE: Final = 0.6
"""Share of the missing bytes that must arrive in a pause for the pause to be worth its time.

Senders with a rate of their own bring more than this share to the first pause, since the expectation is still low, and
only half of it to the second. From senders that wait for answers, even a broker that is short of CPU time receives this
share.
"""
REST_SYNCS: Final = 16
"""Number of syncs without a pause after a pause that was not worth its time."""


@final
class CommitDelay:
    """Decides whether a group commit is delayed, and for how many bytes. Owned by the thread ``gantry-flush``.

    Other threads that flush call ``record_sync``, too. A race between them can only change the length of a pause.
    """

    def __init__(self) -> None:
        self._expected_bytes = 0
        self.pause_ms_max = 0.0
        """Limit of the next pause, in milliseconds."""
        self._syncs_without_pause = 0
        """Number of further syncs before which no pause is made."""

    def __repr__(self) -> str:
        return (
            f"<CommitDelay expected={self._expected_bytes} pause_ms_max={self.pause_ms_max} "
            f"without_pause={self._syncs_without_pause}>"
        )

    def record_sync(self, waiting_bytes: int, took_ms: int) -> None:
        """Record the end of a sync of ``took_ms``. ``waiting_bytes`` were unflushed until then, including its own."""
        self._expected_bytes = int(waiting_bytes * EXPECTED_SHARE)
        self.pause_ms_max = min(took_ms * DELAY_SHARE, DELAY_MS_MAX)

    def bytes_to_wait_for(self, dirty_bytes: int) -> int:
        """Return for how many unflushed bytes to wait; 0 to sync at once. Call it once before each sync."""
        if self._syncs_without_pause > 0:
            self._syncs_without_pause -= 1
            return 0
        is_worth_it = self.pause_ms_max > 0 and 0 < dirty_bytes < self._expected_bytes
        return self._expected_bytes if is_worth_it else 0

    def record_pause(self, dirty_before: int, dirty_after: int) -> None:
        """Record the unflushed bytes before and after a pause, and disable pauses if it was not worth it."""
        if dirty_after - dirty_before < (self._expected_bytes - dirty_before) * WORTH_SHARE:
            self._syncs_without_pause = REST_SYNCS


def is_flush_due(settings: FlushSettings, dirty_bytes: int, age_ms: int, *, is_awaited: bool) -> bool:
    """Return whether to flush now ``dirty_bytes`` unflushed bytes.

    ``age_ms`` is the time since the last flush, and ``is_awaited`` whether senders wait for one.
    """
    if dirty_bytes <= 0:
        return False
    is_enough = dirty_bytes >= settings.flush_pages_min * PAGE_BYTES
    return is_awaited or is_enough or age_ms >= settings.flush_thorough_interval_ms


@final
class Flusher:
    """The thread ``gantry-flush``.

    Any thread may ``wake`` it, and any thread that may wait may call ``flush``.
    """

    def __init__(
        self,
        settings: FlushSettings,
        clock: Clock,
        commit_log: CommitLog,
        failure: StoreFailure,
        on_progress: Callable[[], None],
        on_new_file: Callable[[], None],
    ) -> None:
        """Create the thread. ``on_new_file`` is called when a flush has covered the start of another log file."""
        self.flushed_timestamp_ms = 0
        """The store time of the newest flushed message."""
        self.is_awaited = settings.is_sync
        """Whether senders wait for flushes: those of this broker, or of the master whose slave it is."""

        self._pause_bytes = 0
        """For how many unflushed bytes a group commit is delayed; 0 if it is not. Changed by the thread only."""

        self._commit_delay: Final = CommitDelay()
        self._settings: Final = settings
        self._clock: Final = clock
        self._log: Final = commit_log
        self._failure: Final = failure
        self._on_progress: Final = on_progress
        self._on_new_file: Final = on_new_file
        self._worker: Final = Worker("gantry-flush", settings.flush_interval_ms, self.step)
        self._flushed_at_ms = clock.monotonic_ms()
        self.start: Final = self._worker.start
        self.stop: Final = self._worker.stop
        self.wake: Final = self._worker.wake

    @property
    def wake_bytes(self) -> int:
        """Unflushed bytes at which an append wakes the thread."""
        return self._pause_bytes or (1 if self.is_awaited else self._settings.flush_pages_min * PAGE_BYTES)

    def await_flushes(self, *, is_awaited: bool) -> None:
        """Flush as soon as anything is appended, or no longer, if the settings do not demand it."""
        self.is_awaited = is_awaited or self._settings.is_sync
        self.wake()

    def step(self) -> bool:
        """Run one round: flush if that is due. Return False after a failure."""
        if self._failure.error is not None:
            return False
        is_awaited = self.is_awaited
        if is_awaited:
            self._wait_for_more_appends()
        now_ms, dirty_bytes = self._clock.monotonic_ms(), self._log.wrote - self._log.flushed
        if is_flush_due(self._settings, dirty_bytes, now_ms - self._flushed_at_ms, is_awaited=is_awaited):
            self._flushed_at_ms = now_ms
            try:
                self._flush()
            except OSError as exc:
                self._failure.report("a flush", exc)
                return False
        return True

    def _wait_for_more_appends(self) -> None:
        """Wait for senders that were just answered to append again, if that is worth the time."""
        log = self._log
        dirty_bytes = log.wrote - log.flushed
        wanted = self._commit_delay.bytes_to_wait_for(dirty_bytes)
        if not wanted:
            return
        self._pause_bytes = wanted
        self._worker.clear_wake()
        if log.wrote - log.flushed < wanted:
            self._worker.pause(self._commit_delay.pause_ms_max / 1000)
        self._pause_bytes = 0
        self._commit_delay.record_pause(dirty_bytes, log.wrote - log.flushed)

    def flush(self) -> int:
        """Flush the log now, in the caller's thread, and return the flushed end. A ``StoreFailed`` is final."""
        if self._failure.error is not None:
            raise self._failure.error
        try:
            return self._flush()
        except OSError as exc:
            raise self._failure.report("a flush", exc) from exc

    def _flush(self) -> int:
        timestamp_ms, flushed, began_ms = self._log.last_timestamp_ms, self._log.flushed, self._clock.monotonic_ms()
        committed = self._log.committed
        self._log.commit()
        has_committed = self._log.committed > committed
        end = self._log.sync()
        self.flushed_timestamp_ms = timestamp_ms
        self._commit_delay.record_sync(self._log.wrote - flushed, self._clock.monotonic_ms() - began_ms)
        if self.is_awaited or has_committed:
            self._on_progress()
        if end // self._log.file_size != flushed // self._log.file_size:
            self._on_new_file()
        return end
