"""Traps that inject a fault at the n-th system call of a kind, or at a crash point of the store.

A trap that ends the process first removes everything that the fault destroys (page cache, memory, locks) and only then
raises ``ProcessEnded``, so that nothing which the dying code does afterwards can reach the disk: every later operation
of that process raises again. ``ProcessEnded`` is no ``Exception``, or the store might handle it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

from simulation.situations import count_situation

from gantry_broker.store import crash_points
from gantry_testing.faulty_disk import FaultyDisk

CRASH_OPERATIONS: Final = (
    "any", "create", "write", "sync", "sync_directory", "zero", "remove", "rename", "reserve", "map", "make_directory",
    "remove_tree",
)  # fmt: skip
"""System calls before which a process can end. ``any`` counts all of them."""

ERROR_OPERATIONS: Final = ("create", "write", "sync", "sync_directory", "zero", "reserve", "rename", "remove", "open")
"""System calls that can fail."""


class ProcessEnded(BaseException):
    """The process under test is dead."""


@dataclass
class ArmedCrash:
    """A trap: the process ends before the ``countdown``-th operation or point called ``what``."""

    what: str
    countdown: int
    end: Callable[[str], None]
    """Called with the name of the operation or point to end the process."""

    torn_bytes: int = -1
    """If the operation is a write, how many of its bytes are written before the end; -1 for none of this."""


@dataclass
class ArmedError:
    """A trap: the ``countdown``-th operation called ``what`` fails with the errno ``code``."""

    what: str
    countdown: int
    code: int


@final
class Traps:
    """The armed traps of one disk. At most one crash and one error at a time."""

    def __init__(self) -> None:
        self.crash: ArmedCrash | None = None
        self.error: ArmedError | None = None
        self.at_sync: Callable[[], None] | None = None
        """What another thread does, once, after a sync of the log and before its bytes count as flushed."""
        self.has_ended = False
        """Whether the process has ended, so that every operation fails until the next one starts."""

        self.errors_met = 0
        """The number of operations that have failed because of a trap."""

        self.disk = FaultyDisk()

    def attach(self, disk: FaultyDisk) -> None:
        """Watch this disk from now on, and the crash points, which belong to the whole process."""
        self.disk = disk
        disk.on_operation = self._operation
        crash_points.hit = self._point

    def detach(self) -> None:
        """Let crash points do nothing again, as in a broker."""
        crash_points.hit = _nothing

    def revive(self) -> None:
        """Start a new process, whose operations succeed again."""
        self.has_ended = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend all traps for the body of a `with`."""
        crash, error, has_ended = self.crash, self.error, self.has_ended
        self.crash = self.error = None
        self.has_ended = False
        try:
            yield
        finally:
            self.crash, self.error, self.has_ended = crash, error, has_ended

    def disarm(self) -> None:
        """Remove all armed traps of this disk."""
        self.crash = self.error = None

    def _operation(self, operation: str, path: str) -> None:
        if self.has_ended:
            raise ProcessEnded
        self._meet_crash(operation, is_operation=True)
        error = self.error
        if error is not None and error.what == operation:
            error.countdown -= 1
            if error.countdown <= 0:
                self.error = None
                self.errors_met += 1
                count_situation(f"failed: {operation}")
                raise OSError(error.code, os.strerror(error.code), path)

    def _point(self, _name: str) -> None:
        if _name == crash_points.AFTER_SYNC and self.at_sync is not None:
            work, self.at_sync = self.at_sync, None
            work()
        if self.has_ended:
            raise ProcessEnded
        self._meet_crash(_name, is_operation=False)

    def _meet_crash(self, name: str, *, is_operation: bool) -> None:
        crash = self.crash
        if crash is None or (crash.what != name and not (is_operation and crash.what == "any")):
            return
        crash.countdown -= 1
        if crash.countdown > 0:
            return
        if name == "write" and crash.torn_bytes >= 0:
            # This write is torn; the process ends at its next system call, which is the writing of the rest.
            self.disk.short_write(crash.torn_bytes)
            crash.what, crash.countdown, crash.torn_bytes = "any", 1, -1
            return
        self.has_ended = True
        self.crash = None
        crash.end(name)
        raise ProcessEnded


def _nothing(_name: str) -> None:
    """Do nothing, as in a broker that is not under test."""


CODES: Final = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


@final
class InlineExecutor(Executor):
    """An executor that runs everything at once in the caller's thread, so that a history has only one order."""

    def __init__(self, _workers: int, _name: str) -> None:
        return

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as exc:  # noqa: BLE001 -- as an executor does it; the end of the process passes
            future.set_exception(exc)
        return future
