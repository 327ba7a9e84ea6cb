"""Fillers: log files that stand for ones that are lost, so that the log has no gap and every reader steps over it.

    | blank record: size of the whole file 4, magic 4 | mark 8 | state 1 | zeros ...... |

A file of ours or of RocketMQ's never begins with a blank record, since every record fits into an empty file. Readers of
both go from a blank record to the next file, whatever follows it. The mark tells people and programs what it is, and
the state whether an operator has accepted the loss. It is copied to slaves like any other bytes, so that a replica of
a log with an accepted hole has the same accepted hole.
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.ports.disk import write_fully
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.mapped_file import MappedFile
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD

FILLER_MARK: Final = b"GANTRYLO"
_MISSING: Final = b"m"
_ACCEPTED: Final = b"a"
FILLER_HEAD_BYTES: Final = BLANK_RECORD.size + len(FILLER_MARK) + 1


def filler_head(file_size: int, *, is_accepted: bool) -> bytes:
    """The first bytes of a filler; the others are zero."""
    return BLANK_RECORD.pack(file_size, BLANK_MAGIC) + FILLER_MARK + (_ACCEPTED if is_accepted else _MISSING)


def is_filler(head: bytes | memoryview, file_size: int) -> bool:
    """Whether a log file that begins with ``head`` is a filler."""
    return bytes(head[: FILLER_HEAD_BYTES - 1]) == filler_head(file_size, is_accepted=True)[:-1]


def is_accepted_filler(head: bytes | memoryview, file_size: int) -> bool:
    """Whether it is one for a loss that was accepted."""
    return bytes(head[:FILLER_HEAD_BYTES]) == filler_head(file_size, is_accepted=True)


@final
class LogFillers:
    """The fillers of one log. Owned by the thread that owns the log."""

    def __init__(self, files: FileQueue) -> None:
        self._files: Final = files
        self._is_accepted: dict[int, bool] = {}
        """Where fillers begin, and whether an operator has accepted the loss."""

    def __repr__(self) -> str:
        return f"<LogFillers {self._is_accepted}>"

    def __contains__(self, base_offset: object) -> bool:
        """Whether the file that begins there is a filler."""
        return base_offset in self._is_accepted

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Where whole files are lost, and no operator has accepted it."""
        size = self._files.file_size
        return [(base, base + size) for base, is_accepted in self._is_accepted.items() if not is_accepted]

    def find(self) -> None:
        """Look for them among the log's files."""
        self._is_accepted = {}
        for file in self._files.files:
            head = file.file.pread(FILLER_HEAD_BYTES, 0)
            if is_filler(head, file.size):
                self._is_accepted[file.base_offset] = is_accepted_filler(head, file.size)

    def create(self, base_offset: int, *, is_accepted: bool = False) -> MappedFile:
        """A filler for the file that began there, durably. Raises ``StoreFull``."""
        file = self._files.create(base_offset, reserve=FILLER_HEAD_BYTES)
        self._mark(file, is_accepted=is_accepted)
        self._files.disk.sync_directory(self._files.directory)
        return file

    def _mark(self, file: MappedFile, *, is_accepted: bool) -> None:
        file.reserve(FILLER_HEAD_BYTES)
        write_fully(file.file, filler_head(file.size, is_accepted=is_accepted), 0)
        file.file.sync()

    def accept(self, base_offset: int) -> MappedFile:
        """Have a filler there, durably, whose loss was accepted: of a file without a record, or of none at the end."""
        file = self._files.at(base_offset)
        if file is None:
            file = self.create(base_offset, is_accepted=True)
            self._files.adopt(file)
        else:
            self._mark(file, is_accepted=True)
        self._is_accepted[base_offset] = True
        return file

    def accept_holes(self) -> None:
        """An operator has accepted that whole files are lost: have it in their fillers, durably.

        Retention may have deleted a filler meanwhile; none is made below where the log begins now.
        """
        for base, _ in self.holes:
            file = self._files.at(base)
            if file is None:
                self.forget(base)
            else:
                self._mark(file, is_accepted=True)
                self._is_accepted[base] = True

    def forget(self, base_offset: int) -> None:
        """What the filler that begins there stood for is in the file again."""
        self._is_accepted.pop(base_offset, None)

    def forget_from(self, end: int) -> None:
        """The log ends at ``end`` now."""
        self._is_accepted = {base: is_accepted for base, is_accepted in self._is_accepted.items() if base < end}
