"""The thread that works ahead of a scan of the log, while the thread that opens the store checks and dispatches.

    [0 .. unmapped .. scanned .... mapped by `gantry-ahead` .... read ahead by the kernel .... end)

A scan reads files through their maps. Each first touch of 64 KiB would interrupt it, for a tenth of the time of a
recovery from the page cache. So this thread maps the next pages before the scan needs them; the kernel does the work,
without the lock of the interpreter. Now and then the thread also starts to write what the scan has built, so that less
is left for the syncs at the end. Both are hints: the result of the scan does not depend on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self, final

from gantry_broker.ports.disk import DiskFile
from gantry_broker.store.recovery import LogFile
from gantry_broker.store.worker import Worker

MAPPED_AT_ONCE_BYTES: Final = 4 << 20
"""How much is mapped by one call: the scan waits for a call that is in progress when it unmaps what it has read."""

WRITEBACK_STEPS: Final = 16
"""After so many steps of the scan the writing of queues and index begins: every 512 MiB of the log."""

IDLE_MS: Final = 60_000
"""How long the thread waits at most; the scan wakes it for each step."""


class MappableFile(LogFile, Protocol):
    """A log file whose pages can be mapped before they are read."""

    def map_ahead(self, start: int, end: int) -> None:
        """Map ``[start, end)`` of the log. A hint, never an error."""


@final
class ReadAhead:
    """Maps the files of one scan ahead of it. Used by one thread, as a context; the thread has ended afterwards."""

    def __init__(self, built_files: Callable[[], Iterable[DiskFile]] = tuple) -> None:
        """``built_files`` returns the files that the scan writes. The thread calls it."""
        self._built_files: Final = built_files
        self._ranges: Final[deque[tuple[MappableFile, int, int]]] = deque()
        self._steps = 0
        self._written_steps = 0
        self._is_running = False
        self._has_ended = False
        """Whether the scan has ended: what lies ahead of it is not needed any more."""
        self._worker: Final = Worker("gantry-ahead", IDLE_MS, self.step)

    def __repr__(self) -> str:
        return f"<ReadAhead steps={self._steps} waiting={len(self._ranges)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._has_ended = True
        self._ranges.clear()
        if self._is_running:
            self._worker.stop()

    def wrap(self, files: Sequence[MappableFile]) -> list[LogFile]:
        """Return the files such that the scan's advice about what it reads next reaches the thread."""
        return [_AheadFile(file, self._advance) for file in files]

    def _advance(self, file: MappableFile, start: int, end: int) -> None:
        """Take the next step. The first one starts no thread, since most scans are short."""
        file.advise(start, end)
        self._steps += 1
        if self._steps == 1:
            return
        self._ranges.append((file, start, end))
        if not self._is_running:
            try:
                self._worker.start()
            except RuntimeError:  # no thread can be started: the scan maps its pages itself
                self._ranges.clear()
                return
            self._is_running = True
        self._worker.wake()

    def step(self) -> bool:
        """Do what is due: one round of the thread."""
        while self._ranges:
            try:
                file, start, end = self._ranges.popleft()
            except IndexError:  # the scan has ended, and dropped the rest
                break
            for begin in range(start, end, MAPPED_AT_ONCE_BYTES):
                if self._has_ended:
                    break
                file.map_ahead(begin, min(begin + MAPPED_AT_ONCE_BYTES, end))
        if self._steps - self._written_steps >= WRITEBACK_STEPS:
            self._written_steps = self._steps
            for built in self._built_files():
                built.start_writeback()
        return True


@final
class _AheadFile:
    """A file of a scan, whose advice is passed on."""

    __slots__ = ("_advance", "_file", "base_offset", "end_offset", "view")

    def __init__(self, file: MappableFile, advance: Callable[[MappableFile, int, int], None]) -> None:
        self._file: Final = file
        self._advance: Final = advance
        self.base_offset: Final = file.base_offset
        self.end_offset: Final = file.end_offset
        self.view: Final = file.view

    def advise(self, start: int, end: int) -> None:
        self._advance(self._file, start, min(end, self.end_offset))
