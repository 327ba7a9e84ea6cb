"""One file of a log: a fixed size, a base offset that is its name, a map of all its bytes.

    [0 ...... position ...... reserved ...... size)      offset = base_offset + position

The file knows nothing of what is in it and keeps no positions of its own: where a log or a queue ends is known once,
by the log or the queue. What it guards is that a name is its base offset and that errors of the disk arrive as ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from gantry_broker.errors import StoreFull
from gantry_broker.ports.disk import Disk, DiskFile

NAME_DIGITS = 20


def file_name(base_offset: int) -> str:
    """The name of the file that begins at ``base_offset``."""
    return f"{base_offset:0{NAME_DIGITS}d}"


def parse_file_name(name: str) -> int | None:
    """The base offset that ``name`` says, or None for a foreign file."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


@contextmanager
def full_disk_is_store_full(what: str) -> Iterator[None]:
    """Turn what the disk refuses when it is asked for room into ``StoreFull``; our own mistakes pass."""
    try:
        yield
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as exc:
        raise StoreFull(f"no room for {what}: {exc.strerror}") from exc


@final
class MappedFile:
    """An open file of a log. Written by the loop's thread through ``view``, synced by the flush thread."""

    __slots__ = ("base_offset", "end_offset", "file", "size", "view")

    def __init__(self, file: DiskFile, base_offset: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self.size = file.size
        self.end_offset = base_offset + file.size
        self.view = file.view

    def __repr__(self) -> str:
        return f"<MappedFile {file_name(self.base_offset)} size={self.size} reserved={self.file.reserved}>"

    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, *, size: int, reserve: int) -> MappedFile:
        """A new file of zeros. Raises ``StoreFull``; then there is no file."""
        path = f"{directory}/{file_name(base_offset)}"
        with full_disk_is_store_full(path):
            return cls(disk.create(path, size, reserve=reserve), base_offset)

    @property
    def path(self) -> str:
        return self.file.path

    def reserve(self, end: int) -> None:
        """Give blocks to everything before position ``end``. Raises ``StoreFull``."""
        if end > self.file.reserved:
            with full_disk_is_store_full(self.file.path):
                self.file.reserve(end)

    def close(self) -> None:
        self.file.close()
