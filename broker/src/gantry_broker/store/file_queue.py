"""Consecutive files of one size, each named by the offset it begins at: what a commit log and a consume queue share.

    [000 ....... )[size ....... )[2*size ....... )         one address space, no gaps

The rules: sizes are equal and names adjacent, or loading refuses; a file is found by division, not by search; the
list is replaced, never changed in place, so that the flush thread may walk the one it took. A new file's name is made
durable by ``sync_directory``, at a moment that the owner chooses.
"""

from __future__ import annotations

from contextlib import suppress
from typing import final

from gantry_broker.errors import StoreMismatch
from gantry_broker.ports.disk import Disk
from gantry_broker.store.mapped_file import MappedFile, full_disk_is_store_full, parse_file_name


def make_durable_directory(disk: Disk, path: str) -> None:
    """Create ``path`` and its parents, and make every name that was missing durable."""
    missing = []
    while not disk.is_directory(path):
        missing.append(path)
        path = path.rpartition("/")[0] or "/"
    for directory in reversed(missing):
        disk.make_directory(directory)
        disk.sync_directory(directory.rpartition("/")[0] or "/")


@final
class FileQueue:
    """The files of one log or queue. Changed by the loop's thread only; ``files`` may be read by any thread."""

    def __init__(self, disk: Disk, directory: str, file_size: int) -> None:
        self.disk = disk
        self.directory = directory
        self.file_size = file_size
        self.files: tuple[MappedFile, ...] = ()
        self.is_directory_dirty = False
        self._is_read_in_order: bool | None = None
        """What somebody said, if anybody has."""

    def __repr__(self) -> str:
        return f"<FileQueue {self.directory} files={len(self.files)} file_size={self.file_size}>"

    def load(self, *, setting: str, is_derived: bool) -> None:
        """Open what is there. ``setting`` is named when sizes differ.

        Derived files may be missing or empty after a power loss: from the first such place on they are unlinked, to be
        made again. Of a log only an empty last file is: it was being created. Anything else refuses.
        """
        names = sorted(name for name in self.disk.list(self.directory) if parse_file_name(name) is not None)
        files: list[MappedFile] = []
        for number, name in enumerate(names):
            base, path = int(name), f"{self.directory}/{name}"
            size = self.disk.file_size(path)
            is_gap = base % self.file_size != 0 or bool(files and base != files[-1].end_offset)
            if (size == 0 and (is_derived or number == len(names) - 1)) or (is_gap and is_derived):
                for unwanted in names[number:]:
                    self.disk.remove(f"{self.directory}/{unwanted}")
                self.is_directory_dirty = True
                break
            if size != self.file_size:
                raise StoreMismatch(f"{setting} is {self.file_size}, but {path} has {size} bytes")
            if is_gap:
                raise StoreMismatch(f"{path} does not follow its predecessor: a file is missing before it")
            files.append(MappedFile(self.disk.open(path), base))
        self.files = tuple(files)

    @property
    def base_offset(self) -> int:
        """Where the first file begins; 0 without files."""
        return self.files[0].base_offset if self.files else 0

    @property
    def end_offset(self) -> int:
        """Where the last file ends; 0 without files."""
        return self.files[-1].end_offset if self.files else 0

    def at(self, offset: int) -> MappedFile | None:
        """The file that holds ``offset``, or None."""
        files = self.files
        if not files or offset < files[0].base_offset:
            return None
        index = (offset - files[0].base_offset) // self.file_size
        return files[index] if index < len(files) else None

    def create(self, base_offset: int, *, reserve: int) -> MappedFile:
        """A new file that is not in the list yet; ``adopt`` puts it there. Any thread may call this."""
        with full_disk_is_store_full(self.directory):
            self.disk.make_directory(self.directory)
        return MappedFile.create(self.disk, self.directory, base_offset, size=self.file_size, reserve=reserve)

    def adopt(self, file: MappedFile) -> None:
        """Append ``file``, which must begin where the last one ends."""
        assert not self.files or file.base_offset == self.files[-1].end_offset, (self, file)
        if self._is_read_in_order is not None:
            file.read_in_order(self._is_read_in_order)
        self.files = (*self.files, file)
        self.is_directory_dirty = True

    def read_in_order(self, is_expected: bool) -> None:
        """Whether reading ahead is worth while in these files, and in those to come."""
        self._is_read_in_order = is_expected
        for file in self.files:
            file.read_in_order(is_expected)

    def sync_directory(self) -> None:
        """Make the names of all files durable."""
        self.is_directory_dirty = False
        try:
            self.disk.sync_directory(self.directory)
        except FileNotFoundError:
            pass  # its topic was deleted meanwhile
        except OSError:
            self.is_directory_dirty = True
            raise

    def remove_from(self, offset: int) -> None:
        """Unlink every file that begins at ``offset`` or later, last one first."""
        while self.files and self.files[-1].base_offset >= offset:
            self._remove(self.files[-1])
            self.files = self.files[:-1]

    def retire_before(self, offset: int) -> tuple[MappedFile, ...]:
        """Take the files that end at or before ``offset`` out of the list, oldest first; the last one always stays.

        They are still open and have their names: the caller unlinks them in this order, and somebody closes them when
        no thread can be at work on them any more.
        """
        files = self.files
        count = 0
        while count < len(files) - 1 and files[count].end_offset <= offset:
            count += 1
        self.files = files[count:]
        return files[:count]

    def unlink(self, file: MappedFile) -> None:
        """Take away the name of a retired file, durably. Any thread, but one file after the other.

        Each name is gone for good before the next one goes: a power loss then never leaves an older file without the
        one behind it, which would look like a loss in the middle.
        """
        # The name or the whole directory may be gone: its topic was deleted meanwhile.
        with suppress(FileNotFoundError):
            self.disk.remove(file.path)
        with suppress(FileNotFoundError):
            self.disk.sync_directory(self.directory)

    def _remove(self, file: MappedFile) -> None:
        file.close()
        self.disk.remove(file.path)
        self.is_directory_dirty = True

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files = ()
