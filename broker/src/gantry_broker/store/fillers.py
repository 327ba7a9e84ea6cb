"""Fillers: log files that replace lost ones, so that the log has no gap and every reader skips the lost range.

    | blank record: size of the whole file 4, magic 4 | mark 8 | state 1 | zeros ...... |

A file of Gantry or RocketMQ never begins with a blank record, since every record fits into an empty file. Readers of
both go from a blank record to the next file, regardless of the bytes after it. The mark identifies the file as a
filler, and the state records whether an administrator has accepted the loss. Fillers are copied to slaves like any
other bytes, so that a replica of a log with an accepted hole has the same accepted hole. A unit of a consume queue that
stands for no message is called a filler, too (``gantry_store_files.queue_units``).
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.ports.disk import write_fully
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.mapped_file import MappedFile
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD

FILLER_MARK: Final = b"GANTRYLO"
"""The mark after the blank record by which a filler is recognized."""
_MISSING: Final = b"m"
"""The state of a filler whose loss no administrator has accepted."""
_ACCEPTED: Final = b"a"
"""The state of a filler whose loss an administrator has accepted."""
FILLER_HEAD_BYTES: Final = BLANK_RECORD.size + len(FILLER_MARK) + 1
"""The size of what is not zero in a filler: blank record, mark and state."""


def filler_head(file_size: int, *, is_accepted: bool) -> bytes:
    """Return the first bytes of a filler; all others are zero. ``is_accepted``: whether its loss was accepted."""
    return BLANK_RECORD.pack(file_size, BLANK_MAGIC) + FILLER_MARK + (_ACCEPTED if is_accepted else _MISSING)


def is_log_filler(head: bytes | memoryview, file_size: int) -> bool:
    """Return whether a log file that begins with ``head`` is a filler."""
    return bytes(head[: FILLER_HEAD_BYTES - 1]) == filler_head(file_size, is_accepted=True)[:-1]


def is_accepted_filler(head: bytes | memoryview, file_size: int) -> bool:
    """Return whether a log file that begins with ``head`` is a filler of an accepted loss."""
    return bytes(head[:FILLER_HEAD_BYTES]) == filler_head(file_size, is_accepted=True)


@final
class LogFillers:
    """The fillers of one log. Owned by the loop's thread, as the log is."""

    def __init__(self, files: FileQueue) -> None:
        self._files: Final = files
        self._is_accepted: dict[int, bool] = {}
        """By base offset of a filler: whether an administrator has accepted the loss."""

    def __repr__(self) -> str:
        return f"<LogFillers {self._is_accepted}>"

    def __contains__(self, base_offset: object) -> bool:
        """Return whether the file that begins at ``base_offset`` is a filler."""
        return base_offset in self._is_accepted

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Half-open ranges of lost files whose loss no administrator has accepted."""
        size = self._files.file_size
        return [(base, base + size) for base, is_accepted in self._is_accepted.items() if not is_accepted]

    def find(self) -> None:
        """Find the fillers among the log's files."""
        self._is_accepted = {}
        for file in self._files.files:
            head = file.file.pread(FILLER_HEAD_BYTES, 0)
            if is_log_filler(head, file.size):
                self._is_accepted[file.base_offset] = is_accepted_filler(head, file.size)

    def create(self, base_offset: int, *, is_accepted: bool = False) -> MappedFile:
        """Create a filler for the lost file that began at ``base_offset``, durably. Raises ``StoreFull``.

        With ``is_accepted`` the loss was accepted, so no replica is asked for the file.
        """
        file = self._files.create(base_offset, reserve=FILLER_HEAD_BYTES)
        self._mark(file, is_accepted=is_accepted)
        self._files.disk.sync_directory(self._files.directory)
        return file

    def _mark(self, file: MappedFile, *, is_accepted: bool) -> None:
        file.reserve(FILLER_HEAD_BYTES)
        write_fully(file.file, filler_head(file.size, is_accepted=is_accepted), 0)
        file.file.sync()

    def accept(self, base_offset: int) -> MappedFile:
        """Turn the file at ``base_offset`` into an accepted filler, durably; create it at the end of the log if needed.

        An existing file must not hold a record.
        """
        file = self._files.at(base_offset)
        if file is None:
            file = self.create(base_offset, is_accepted=True)
            self._files.adopt(file)
        else:
            self._mark(file, is_accepted=True)
        self._is_accepted[base_offset] = True
        return file

    def accept_holes(self) -> None:
        """Mark all fillers as accepted, durably, because an administrator has accepted the loss of their files.

        Retention may have deleted a filler meanwhile; none is created before the start of the log.
        """
        for base, _ in self.holes:
            file = self._files.at(base)
            if file is None:
                self.forget(base)
            else:
                self._mark(file, is_accepted=True)
                self._is_accepted[base] = True

    def forget(self, base_offset: int) -> None:
        """Remove a filler from the list, because its file holds the lost records again or was deleted."""
        self._is_accepted.pop(base_offset, None)

    def forget_from(self, end: int) -> None:
        """Remove the fillers after ``end``, the new end of the log."""
        self._is_accepted = {base: is_accepted for base, is_accepted in self._is_accepted.items() if base < end}
