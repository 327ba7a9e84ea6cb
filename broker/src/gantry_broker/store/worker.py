"""The helper threads of the store: one that runs a step when it is woken, at least once per interval, and some that
share syncs.

The first thread runs while the loop's thread serves requests, and holds the interpreter only between its system calls.
The step is a method of its owner, called ``step``, which tests call directly, without any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar, final

T = TypeVar("T")


@final
class Worker:
    """One helper thread.

    ``start`` and ``stop`` belong to the thread that opens or closes the store, or changes its log while nothing else
    uses the store. Any thread may call ``wake``.
    """

    def __init__(self, name: str, interval_ms: int, step: Callable[[], bool]) -> None:
        """Create the worker. ``step`` returns whether the thread shall continue."""
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
        """Let the next round begin now. Cheap if the thread was woken already."""
        if not self._wake.is_set():
            self._wake.set()

    def clear_wake(self) -> None:
        """Forget earlier calls of ``wake``, because the present round covers them. Called by ``step``."""
        self._wake.clear()

    def pause(self, seconds: float) -> None:
        """Wait until the thread is woken, at most ``seconds``. Called by ``step``."""
        self._wake.wait(seconds)

    def stop(self) -> None:
        """Stop the thread after its present round, and wait for that."""
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


def sync_together(sync: Callable[[T], object], items: Iterable[T], *, threads: int) -> None:
    """Call ``sync`` for all items in this thread and in up to ``threads - 1`` others, which have ended afterwards.

    After an error no further item is begun, and the first error is raised. Without a free thread this one does all.
    """
    left, errors = deque(items), list[BaseException]()

    def run() -> None:
        while left and not errors:
            try:
                item = left.popleft()
            except IndexError:
                return  # Another thread has taken the last item.
            try:
                sync(item)
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                errors.append(error)

    helpers = []
    for _ in range(min(threads, len(left)) - 1):
        helper = threading.Thread(target=run, name="gantry-sync", daemon=True)
        try:
            helper.start()
        except RuntimeError:
            break
        helpers.append(helper)
    run()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
