"""The flush thread: from the page cache to the disk, behind everybody's back or while they wait.

    wrote -> (commit) -> fdatasync -> flushed

Asynchronous: flush when enough pages are dirty, or when it has been too long; ``is_flush_due`` is the whole policy.
Synchronous: flush as soon as anything was appended. That is group commit without any group: while one ``fdatasync``
runs, sends go on being appended, and the next one covers all of them; whoever waits is answered when ``flushed``
has passed it. On a slow disk the next one waits a moment for those who were just answered; see
``Gathering``. With a write buffer the flush commits first, so no send waits for the commit thread's tick.

Nothing here is waited for by a request. One failure is the end; see ``failure``.

``Gathering`` decides, as a pure function of what was appended, whether a group commit waits for senders. Senders that
wait for the disk come again when they are answered. Without a pause the first of them starts the next sync alone, and
everybody behind it waits for that one and for another:

    sync of all but one | sync of one | sync of all but one | ...        half of them in a sync, on average
    sync of all | pause | sync of all | pause | ...                      nearly all, for the price of the pause

So after a sync that took time, the next one waits until nearly as much has been appended as was waiting when it ended,
but at most three quarters as long as it took: a slow disk gains a whole sync, and one that answers in less than a
millisecond is not waited for at all. Senders that come at their own pace, whether they were answered or not, gain
nothing by a pause; one that brings less than ``WORTH_SHARE`` of the missing is followed by ``REST_SYNCS`` without any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from gantry_broker.ports.clock import Clock
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.failure import StoreFailure
from gantry_broker.store.settings import PAGE_BYTES, FlushSettings
from gantry_broker.store.worker import Worker

PATIENCE_MS_MAX: Final = 10.0
"""However slow the disk is: by then whoever is alive has sent again."""
PATIENCE_SHARE: Final = 0.75
"""Of what the last sync took."""
EXPECTED_SHARE: Final = 0.9
"""Of what was waiting: somebody is always late, and the next bodies are somewhat smaller."""
WORTH_SHARE: Final = 0.6
"""Of what was missing. Senders at their own pace bring more to the first pause, which expects too little, and half to
the second; a broker that is short of CPU time still gets as much from those who were answered."""
REST_SYNCS: Final = 16


@final
class Gathering:
    """Owned by the thread that syncs."""

    def __init__(self) -> None:
        self._expected_bytes = 0
        self.patience_ms = 0.0
        """How long the pause may be."""
        self._rest = 0

    def __repr__(self) -> str:
        return f"<Gathering expected={self._expected_bytes} patience_ms={self.patience_ms} rest={self._rest}>"

    def synced(self, waiting_bytes: int, took_ms: int) -> None:
        """A sync has ended: so much was appended and not flushed until then, counting what it flushed."""
        self._expected_bytes = int(waiting_bytes * EXPECTED_SHARE)
        self.patience_ms = min(took_ms * PATIENCE_SHARE, PATIENCE_MS_MAX)

    def wanted(self, dirty_bytes: int) -> int:
        """Up to how many unflushed bytes to wait; 0 to sync at once. Asked once before each sync."""
        if self._rest > 0:
            self._rest -= 1
            return 0
        is_worth_it = self.patience_ms > 0 and 0 < dirty_bytes < self._expected_bytes
        return self._expected_bytes if is_worth_it else 0

    def waited(self, dirty_before: int, dirty_after: int) -> None:
        """A pause has ended."""
        if dirty_after - dirty_before < (self._expected_bytes - dirty_before) * WORTH_SHARE:
            self._rest = REST_SYNCS


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
        on_new_file: Callable[[], None],
    ) -> None:
        """``on_new_file`` is called when a flush has covered the beginning of another log file."""
        self.flushed_timestamp_ms = 0
        """The newest store time that is flushed."""
        self.wake_bytes = 1 if settings.is_sync else settings.flush_pages_min * PAGE_BYTES
        """Whoever appends wakes the thread when so much is unflushed. Changed by the thread only."""
        self._gathering: Final = Gathering()
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

    def step(self) -> bool:
        """One round: whatever is due. False after a failure."""
        if self._failure.error is not None:
            return False
        if self._settings.is_sync:
            self._gather()
        now_ms = self._clock.monotonic_ms()
        if is_flush_due(self._settings, self._log.wrote - self._log.flushed, now_ms - self._flushed_at_ms):
            self._flushed_at_ms = now_ms
            try:
                self._flush()
            except OSError as exc:
                self._failure.report("a flush", exc)
                return False
        return True

    def _gather(self) -> None:
        """Wait for those who are on their way, if that is worth it."""
        log = self._log
        dirty_bytes = log.wrote - log.flushed
        wanted = self._gathering.wanted(dirty_bytes)
        if not wanted:
            return
        self.wake_bytes = wanted
        self._worker.forget()
        if log.wrote - log.flushed < wanted:
            self._worker.pause(self._gathering.patience_ms / 1000)
        self.wake_bytes = 1
        self._gathering.waited(dirty_bytes, log.wrote - log.flushed)

    def flush(self) -> int:
        """Flush the log now, in the caller's thread, and say up to where. Raises ``StoreFailed``, for good."""
        if self._failure.error is not None:
            raise self._failure.error
        try:
            return self._flush()
        except OSError as exc:
            raise self._failure.report("a flush", exc) from exc

    def _flush(self) -> int:
        timestamp_ms, flushed, began_ms = self._log.last_timestamp_ms, self._log.flushed, self._clock.monotonic_ms()
        self._log.commit()
        end = self._log.sync()
        self.flushed_timestamp_ms = timestamp_ms
        self._gathering.synced(self._log.wrote - flushed, self._clock.monotonic_ms() - began_ms)
        if self._settings.is_sync:
            self._on_progress()
        if end // self._log.file_size != flushed // self._log.file_size:
            self._on_new_file()
        return end
