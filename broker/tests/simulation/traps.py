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

from simulation.tally import met

from gantry_broker.store import crash_points
from gantry_testing.faulty_disk import FaultyDisk

DEATH_OPERATIONS: Final = (
    "any", "create", "write", "sync", "sync_directory", "zero", "remove", "rename", "reserve", "map", "make_directory",
    "remove_tree",
)  # fmt: skip
"""System calls before which a process can end. ``any`` counts all of them."""

ERROR_OPERATIONS: Final = ("create", "write", "sync", "sync_directory", "zero", "reserve", "rename", "remove", "open")
"""System calls that can fail."""


class ProcessEnded(BaseException):
    """The process under test is dead."""


@dataclass
class Death:
    """The process ends before the ``countdown``-th operation or point called ``what``."""

    what: str
    countdown: int
    end: Callable[[str], None]
    """Called with the name of the operation or point to end the process."""

    torn_bytes: int = -1
    """If the operation is a write, how many of its bytes are written before the end; -1 for none of this."""


@dataclass
class Error:
    """An error of the ``countdown``-th operation called ``what``."""

    what: str
    countdown: int
    code: int


@final
class Traps:
    """The armed traps of one disk. At most one death and one error at a time."""

    def __init__(self) -> None:
        self.death: Death | None = None
        self.error: Error | None = None
        self.is_dead = False
        self.errors_met = 0
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
        self.is_dead = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend all traps for the body of a `with`."""
        death, error, is_dead = self.death, self.error, self.is_dead
        self.death = self.error = None
        self.is_dead = False
        try:
            yield
        finally:
            self.death, self.error, self.is_dead = death, error, is_dead

    def disarm(self) -> None:
        """Remove all armed traps of this disk."""
        self.death = self.error = None

    def _operation(self, operation: str, path: str) -> None:
        if self.is_dead:
            raise ProcessEnded
        self._meet_death(operation, is_operation=True)
        error = self.error
        if error is not None and error.what == operation:
            error.countdown -= 1
            if error.countdown <= 0:
                self.error = None
                self.errors_met += 1
                met(f"failed: {operation}")
                raise OSError(error.code, os.strerror(error.code), path)

    def _point(self, _name: str) -> None:
        if self.is_dead:
            raise ProcessEnded
        self._meet_death(_name, is_operation=False)

    def _meet_death(self, name: str, *, is_operation: bool) -> None:
        death = self.death
        if death is None or (death.what != name and not (is_operation and death.what == "any")):
            return
        death.countdown -= 1
        if death.countdown > 0:
            return
        if name == "write" and death.torn_bytes >= 0:
            # This write is torn; the process ends at its next system call, which is the writing of the rest.
            self.disk.short_write(death.torn_bytes)
            death.what, death.countdown, death.torn_bytes = "any", 1, -1
            return
        self.is_dead = True
        self.death = None
        death.end(name)
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
