"""The due files: entries of the timer topic by the minute in which they are due, one file for each minute.

    <store>/timers/<minute since 1970>      entries, appended in the order in which they were read
    <store>/timers/position                 sealed: how far the timer topic's queue is in the files, durably

Ten million pending messages are 400 MB of files and need no memory. A file is appended to by a worker thread, synced,
and removed when its minute is over and that is recorded durably. The position is written after the files are synced, so
a crash leaves entries beyond it, which are read from the log again and ignored where they are repeated.

The files are derived. If the position is missing or does not match the log, or an entry is damaged, all files are
removed, and the timer topic is read again from its start. An append that a crash has torn leaves the same damage, so a
file whose size is not a multiple of an entry is padded, and the invalid entry is found when the file is loaded.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Final, final

import msgspec

from gantry_broker.ports import Disk
from gantry_broker.server.timers.entries import ENTRY_BYTES
from gantry_broker.store.sealed_file import read_sealed, write_sealed

log = logging.getLogger(__name__)

MINUTE_MS: Final = 60_000
DIRECTORY: Final = "timers"
POSITION: Final = "position"

READ_BYTES: Final = 8192 * ENTRY_BYTES
"""How much of a file is read at a time: 320 KB."""


class IndexedPosition(msgspec.Struct, frozen=True):
    """How far the queue of the timer topic is in the due files."""

    queue_offset: int = 0
    """The first message that is not in the files."""

    last_physical: int = -1
    """The physical offset of the message before it."""

    last_entry: str = ""
    """The entry of that message, in hex, by which a start recognizes a log that was replaced."""


@final
class DueFiles:
    """The due files of one store.

    ``minutes`` and ``counts`` belong to the event loop. A worker thread calls the methods that wait for the disk,
    one at a time.
    """

    def __init__(self, disk: Disk, store_path: str) -> None:
        self._disk: Final = disk
        self._directory: Final = f"{store_path}/{DIRECTORY}"
        self.minutes: list[int] = []
        """The minutes that have a file, sorted."""
        self.counts: Final[dict[int, int]] = {}
        """The number of entries in the file of each minute."""

    def __repr__(self) -> str:
        return f"<DueFiles {self._directory} minutes={len(self.minutes)}>"

    def open(self) -> IndexedPosition:
        """List the files; return the durable position, at the start of the queue if it is not usable."""
        if not self._disk.exists(self._directory):
            self._disk.make_directory(self._directory)
            self._disk.sync_directory(self._directory.rpartition("/")[0])
        self.minutes = sorted(int(name) for name in self._disk.list(self._directory) if name.isdigit())
        self.counts.update((one, self._disk.file_size(self._path(one)) // ENTRY_BYTES) for one in self.minutes)
        try:
            return read_sealed(self._disk, f"{self._directory}/{POSITION}", IndexedPosition) or IndexedPosition()
        except (OSError, ValueError) as error:
            log.warning("timer position is not usable; reading the timer topic again", extra={"reason": str(error)})
            return IndexedPosition()

    def note_minute(self, minute: int, entries: int) -> None:
        """Record that the minute gets a file, or more entries. Called by the loop before the append."""
        self.counts[minute] = self.counts.get(minute, 0) + entries
        index = bisect.bisect_left(self.minutes, minute)
        if index == len(self.minutes) or self.minutes[index] != minute:
            self.minutes.insert(index, minute)

    def next_minute(self, minute: int) -> int | None:
        """Return the first minute with a file from this one on; None if there is none."""
        index = bisect.bisect_left(self.minutes, minute)
        return self.minutes[index] if index < len(self.minutes) else None

    def append(self, entries: Mapping[int, bytes]) -> None:
        """Append entries to the files of their minutes, durably."""
        for minute, data in entries.items():
            path = self._path(minute)
            rest = self._disk.file_size(path) % ENTRY_BYTES if self._disk.exists(path) else 0
            self._disk.append_file(path, bytes(ENTRY_BYTES - rest) + data if rest else data)
        if entries:
            self._disk.sync_directory(self._directory)

    def save_position(self, position: IndexedPosition) -> None:
        """Record how far the queue is in the files. Their entries must be durable before."""
        write_sealed(self._disk, f"{self._directory}/{POSITION}", position)

    def read(self, minute: int, position: int) -> bytes:
        """Return whole entries of a minute from ``position`` on, at most ``READ_BYTES``; empty at the end."""
        path = self._path(minute)
        if not self._disk.exists(path):
            return b""
        with closing(self._disk.open(path)) as file:
            data = file.pread(READ_BYTES, position)
        return data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]

    def remove(self, minutes: list[int]) -> None:
        """Remove the files of these minutes. A crash may leave some of them, which are removed again later."""
        for minute in minutes:
            with suppress(FileNotFoundError):
                self._disk.remove(self._path(minute))

    def remove_all(self) -> None:
        """Remove all files, because they do not match the log. The position goes first, so that none is believed."""
        self._disk.remove_tree(self._directory)
        self._disk.make_directory(self._directory)
        self._disk.sync_directory(self._directory.rpartition("/")[0])

    def _path(self, minute: int) -> str:
        return f"{self._directory}/{minute:010d}"
