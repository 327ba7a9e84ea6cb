"""The thread that writes the status page, and the log handler that keeps the newest error.

The event loop puts a snapshot into one slot, where the newest wins, and never waits: a write to a file may wait for the
disk. So while the disk hangs, snapshots are dropped, not queued, and the page correctly ages.

A failure to write the page never stops a broker: it is logged once and retried. Only at the start is an unusable path
an error, so that the administrator notices it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, final

from gantry_broker.errors import BrokerError, is_disk_full
from gantry_remoting.logs import KeyValueFormatter
from gantry_status import Origin, PageInUse, Status

log = logging.getLogger(__name__)

RETRY_INTERVAL_S: Final = 1.0
"""The pause after a failed write of the page."""


@final
class PageUnusable(BrokerError):
    """The status page cannot be created at `statusPagePath`. Correct the reason in the text, and start again."""


class Page(Protocol):
    """A status page that exists."""

    def publish(self, status: Status) -> None: ...
    def close(self) -> None: ...


OpenPage = Callable[[str, Origin, Status], Page]
"""Creates a page with a first status. Raises ``OSError`` or ``PageInUse``."""


@final
class PageThread:
    """The thread ``gantry-status``. Any thread may call ``open`` and ``end`` once each; ``put`` is the event loop's."""

    def __init__(self, path: str, origin: Origin, open_page: OpenPage) -> None:
        self._path: Final = path
        self._origin: Final = origin
        self._open_page: Final = open_page
        self._page: Page | None = None
        self._thread: threading.Thread | None = None
        self._wake: Final = threading.Condition()
        self._next: Status | None = None
        self._is_ending = False
        self._is_failing = False

    def open(self, first: Status) -> None:
        """Create the page. Raises ``PageUnusable``, except for a full disk, which may be temporary."""
        try:
            self._page = self._open_page(self._path, self._origin, first)
        except PageInUse as error:
            raise PageUnusable(f"statusPagePath: {error}") from error
        except OSError as error:
            if not is_disk_full(error):
                raise PageUnusable(f"statusPagePath: {self._path} cannot be created: {error.strerror}") from error
            self._log_failure(error)
        self._thread = threading.Thread(target=self._run, name="gantry-status", daemon=True)
        self._thread.start()

    def put(self, status: Status) -> None:
        """Write this status next, instead of one that is not written yet."""
        if self._thread is not None:
            with self._wake:
                self._next = status
                self._wake.notify()

    def end(self, timeout_s: float) -> None:
        """Write the last status and close the page. Waits for at most ``timeout_s``, since the disk may hang."""
        thread, self._thread = self._thread, None
        if thread is not None:
            with self._wake:
                self._is_ending = True
                self._wake.notify()
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._next is None and not self._is_ending:
                    self._wake.wait()
                status, self._next = self._next, None
                is_ending = self._is_ending
            if status is not None:
                self._write(status)
            if is_ending:
                if self._page is not None:
                    self._page.close()
                return

    def _write(self, status: Status) -> None:
        try:
            if self._page is None:
                self._page = self._open_page(self._path, self._origin, status)
            else:
                self._page.publish(status)
        except (OSError, PageInUse) as error:
            self._log_failure(error)
            if not self._is_ending:
                time.sleep(RETRY_INTERVAL_S)
        else:
            if self._is_failing:
                log.info("status page writable again", extra={"path": self._path})
            self._is_failing = False

    def _log_failure(self, error: OSError | PageInUse) -> None:
        if not self._is_failing:
            reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
            log.warning("failed to write status page; will retry", extra={"path": self._path, "reason": reason})
        self._is_failing = True


@final
class LastError(logging.Handler):
    """Keeps the newest error of the log with its time. Any thread may log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.setFormatter(KeyValueFormatter("%(message)s"))
        self.text = ""
        """The newest error line of the log; empty without one."""
        self.wall_ms: int | None = None
        """When that line was logged; None without one."""

    def emit(self, record: logging.LogRecord) -> None:
        self.note(self.format(record).partition("\n")[0])

    def note(self, text: str) -> None:
        self.text, self.wall_ms = text, time.time_ns() // 1_000_000
