"""A helper thread of the store: does its round when it is woken, and at least every interval.

The thread runs while the loop's thread serves requests, and holds the interpreter only between its system calls.
What it does in a round is a method of its owner, called ``step``, which tests call themselves, without any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, final


@final
class Worker:
    """One thread. ``start`` and ``stop`` belong to the thread that opens the store; anybody may ``wake``."""

    def __init__(self, name: str, interval_ms: int, step: Callable[[], bool]) -> None:
        """``step`` says whether the thread shall go on."""
        self._name: Final = name
        self._interval_s: Final = interval_ms / 1000
        self._step: Final = step
        self._wake: Final = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Worker {self._name} {'running' if self._thread is not None else 'stopped'}>"

    def start(self) -> None:
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the next round begin now. Costs next to nothing when it was asked for already."""
        if not self._wake.is_set():
            self._wake.set()

    def forget(self) -> None:
        """For ``step``: whoever has woken the thread until now needs no further round."""
        self._wake.clear()

    def pause(self, seconds: float) -> None:
        """For ``step``: wait until somebody wakes the thread, or so long."""
        self._wake.wait(seconds)

    def stop(self) -> None:
        """End the thread after its round, and wait for that."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            if not self._step():
                return
