"""The request to stop a run: by Ctrl-C, by SIGTERM from Kubernetes, or by a call from the program.

A signal handler runs in the main thread, which often is in the middle of a call to the JVM on a socket that must not
be used twice at once. So the handler only queues the signal. One thread waits for it, and starts another one that marks
the run as stopping and calls the registered callbacks, for example a query's ``stop``: so a second signal ends the
process at once, even if a callback hangs. Spark installs its own handler when a session starts;
``StopRequest.install_handlers`` is called again after that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import FrameType
from typing import Final, final

log = logging.getLogger(__name__)

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@final
class StopRequest:
    """Whether a run was asked to stop, and the callbacks for that event.

    Its methods may be called from any thread, but signal handlers are installed in the main thread only.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._signals: SimpleQueue[int] = SimpleQueue()
        self.signal_number = 0
        """Number of the signal that requested the stop; 0: no signal did."""

    @property
    def is_requested(self) -> bool:
        """Whether a stop was requested."""
        return self._requested.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until a stop is requested or the timeout has passed; return whether a stop was requested."""
        return self._requested.wait(timeout_seconds)

    def request(self) -> None:
        """Request the stop and call the callbacks; further calls have no effect."""
        with self._lock:
            if self._requested.is_set():
                return
            self._requested.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            _call(callback)

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Call a function when a stop is requested: in the thread that requests it, or at once in the calling thread if
        a stop was requested before.
        """
        with self._lock:
            self._callbacks.append(callback)
            is_late = self._requested.is_set()
        if is_late:
            _call(callback)

    def install_handlers(self) -> None:
        """Install the signal handlers, also after another library replaced them. No effect outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._record_signal)

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[StopRequest]:
        """Handle signals inside of the `with` block, and restore the previous handlers after it."""
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        watcher = threading.Thread(target=self._watch_signals, name="pipeline-stop", daemon=True)
        watcher.start()
        self.install_handlers()
        try:
            yield self
        finally:
            self._signals.put(0)
            watcher.join()
            for number, handler in before.items() if is_main else ():
                signal.signal(number, handler)

    def _record_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.put(number)  # SimpleQueue.put is reentrant, hence safe in a signal handler

    def _watch_signals(self) -> None:
        requesting: threading.Thread | None = None
        while number := self._signals.get():
            if self.signal_number:
                print("interrupted twice; exiting at once", file=sys.stderr, flush=True)
                os._exit(128 + number)
            self.signal_number = number
            requesting = threading.Thread(target=self.request, name="pipeline-stopping", daemon=True)
            requesting.start()  # a callback that hangs must not block the second signal


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        log.warning("stop callback failed; the run may continue until a second signal", exc_info=True)
