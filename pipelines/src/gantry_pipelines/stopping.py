"""How a run is asked to end: Ctrl-C, a SIGTERM from Kubernetes, or somebody in the program.

A signal's handler runs in the main thread between two steps of whatever it does, which often is a call to the JVM on a
socket that must not be used twice at once. So the handler only leaves a note, and a thread of its own acts on it: it
marks the run as stopping, and calls whoever wanted to be called (a query's ``stop``, say). A second signal ends the
process at once. Spark puts its own handler in place when a session begins, hence ``Stop.arm`` may be called again.
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
class Stop:
    """Whether this run shall end, and who is to be told. Used from any thread; armed in the main one."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._notes: SimpleQueue[int] = SimpleQueue()
        self.signal_number = 0
        """Of the signal that asked; 0: none did."""

    @property
    def is_asked(self) -> bool:
        """Whether it shall end."""
        return self._asked.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until it shall end, at most so long; whether it shall."""
        return self._asked.wait(timeout_seconds)

    def ask(self) -> None:
        """Have the run end. Nothing happens twice."""
        with self._lock:
            if self._asked.is_set():
                return
            self._asked.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            _call(callback)

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Call this, in a thread of ours, when the run shall end; at once, if it shall already."""
        with self._lock:
            self._callbacks.append(callback)
            is_late = self._asked.is_set()
        if is_late:
            _call(callback)

    def arm(self) -> None:
        """Take the signals, again after somebody else has taken them. Only in the main thread; elsewhere nothing."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    @contextlib.contextmanager
    def armed(self) -> Iterator[Stop]:
        """With the signals ours for as long as this lasts."""
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        watcher = threading.Thread(target=self._watch, name="pipeline-stop", daemon=True)
        watcher.start()
        self.arm()
        try:
            yield self
        finally:
            self._notes.put(0)
            watcher.join()
            for number, handler in before.items() if is_main else ():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._notes.put(number)  # is made for handlers: it may interrupt itself

    def _watch(self) -> None:
        asking: threading.Thread | None = None
        while number := self._notes.get():
            if self.signal_number:
                print("interrupted twice: ending at once", file=sys.stderr, flush=True)
                os._exit(128 + number)
            self.signal_number = number
            asking = threading.Thread(target=self.ask, name="pipeline-stopping", daemon=True)
            asking.start()  # a stop that hangs must not keep the second signal from us


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        log.warning("what should have stopped the run failed", exc_info=True)
