"""Consecutive files of one size, each named by its base offset: the common part of commit log and consume queue.

    [000 ....... )[size ....... )[2*size ....... )         one address space, no gaps

The rules: sizes are equal and names adjacent; otherwise loading refuses a log, and shortens derived files. A gap in a
log is closed by filler files (see ``fillers``), unless it is too large. A file is found by division, not by search. The
list is replaced, never changed in place, so that another thread may iterate over the list that it has read. A new
file's name is made durable by ``sync_directory``, at a moment that the owner chooses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from gantry_broker.errors import LogFileDamaged, StoreMismatch
from gantry_broker.ports.disk import Disk
from gantry_broker.store.mapped_file import MappedFile, translate_disk_full
from gantry_store_files.segments import parse_segment_name, segments_of

log = logging.getLogger(__name__)


def make_durable_directory(disk: Disk, path: str) -> None:
    """Create ``path`` and its parents, and make all created names durable."""
    missing = []
    while not disk.is_directory(path):
        missing.append(path)
        path = path.rpartition("/")[0] or "/"
    for directory in reversed(missing):
        disk.make_directory(directory)
        disk.sync_directory(directory.rpartition("/")[0] or "/")


def _wrong_size(path: str, size: int, expected: int, setting: str) -> str:
    """Return the error text for a log file of a wrong size, with the remedies."""
    what = "was truncated" if size < expected else "has extra bytes at its end"
    return (
        f"commit log file {path} is damaged: it has {size} bytes instead of {expected} and {what}. "
        f"Put back the file of a replica's store or of a backup; or, in a group, move the store away and start empty: "
        f"the broker copies everything from its master. To serve what is left, give the file its size with "
        f"'truncate -s {expected} {path}' and start again: what is missing is reported. "
        f"Only if it was written with that size, set {setting}={size} instead"
    )


def _missing_before(path: str, start: int, end: int, file_size: int) -> str:
    return (
        f"the commit log is damaged: {(end - start) // file_size} files are missing before {path}, which hold "
        f"[{start}, {end}). Put them back from a replica's store or a backup; or, in a group, move the store away and "
        f"start empty: the broker copies everything from its master. To serve what is left, make each missing file "
        f"with 'truncate -s {file_size} NAME' and start again: what is missing is reported"
    )


HOLE_FILES_MAX: Final = 4_096
"""Limit of consecutive missing files that are replaced by fillers. A larger gap means a file of another log."""


@final
class FileQueue:
    """The files of one log or queue. Any thread may read ``files``.

    Only the loop's thread changes it, or the thread that opens, changes or closes the store.
    """

    def __init__(
        self, disk: Disk, directory: str, file_size: int, *, on_shortened: Callable[[int], None] = lambda offset: None
    ) -> None:
        """Create an empty list of files.

        ``on_shortened`` is called, in any thread, with the offset from which the bytes of a file were lost and are
        zeros now.
        """
        self.disk = disk
        self.directory = directory
        self.file_size = file_size
        self.files: tuple[MappedFile, ...] = ()
        """The files in order of their offsets; replaced as a whole, never changed."""
        self.is_directory_dirty = False
        """Whether names of files were added or removed since the last sync."""
        self._is_read_ahead_useful: bool | None = None
        """The last argument of ``set_read_ahead``; None if it was not called."""
        self._on_shortened: Final = on_shortened

    def __repr__(self) -> str:
        return f"<FileQueue {self.directory} files={len(self.files)} file_size={self.file_size}>"

    def load(self, *, setting: str, is_derived: bool, fill: Callable[[int], MappedFile] | None = None) -> None:
        """Open the existing files. ``setting`` is named when sizes differ; ``fill`` creates a missing file in between.

        Derived files may be missing, empty, or of a wrong size: from the first such file on they are unlinked, to be
        rebuilt. In a log only an empty last file is unlinked, because its creation was interrupted. Anything else
        raises ``StoreMismatch`` or ``LogFileDamaged``.
        """
        names = sorted(name for name in self.disk.list(self.directory) if parse_segment_name(name) is not None)
        if not is_derived:
            self._refuse_other_size(names, setting)
        files: list[MappedFile] = []
        for number, name in enumerate(names):
            base, path = int(name), f"{self.directory}/{name}"
            size = -1 if self.disk.is_directory(path) else self.disk.file_size(path)
            is_gap = base % self.file_size != 0 or bool(files and base != files[-1].end_offset)
            if is_derived and (size != self.file_size or is_gap):
                self._remove_unusable(names[number:], "it is not where its predecessor ends" if is_gap else size)
                break
            if size == 0 and number == len(names) - 1:
                self.disk.remove(path)
                self.is_directory_dirty = True
                break
            if base % self.file_size:
                raise StoreMismatch(
                    f"{setting} is {self.file_size}, but {path} cannot begin at {base} then: set {setting} to the size "
                    f"that the store was made with, or move {path} away if it belongs to another store"
                )
            if size != self.file_size:
                raise LogFileDamaged(_wrong_size(path, size, self.file_size, setting))
            is_hole = is_gap and 0 < base - files[-1].end_offset <= HOLE_FILES_MAX * self.file_size
            if is_hole and fill is not None:
                files += [fill(missing) for missing in range(files[-1].end_offset, base, self.file_size)]
            elif is_gap:
                raise LogFileDamaged(_missing_before(path, files[-1].end_offset, base, self.file_size))
            files.append(MappedFile(self.disk.open(path), base))
        self.files = tuple(files)

    def _refuse_other_size(self, names: list[str], setting: str) -> None:
        """Raise ``StoreMismatch`` if all files have one other size: then the setting is wrong, not the files."""
        sizes = {segment.size for segment in segments_of(self.disk, self.directory)} - {0}
        if len(names) > 1 and len(sizes) == 1 and self.file_size not in sizes:
            size = sizes.pop()
            if all(int(name) == int(names[0]) + number * size for number, name in enumerate(names)):
                raise StoreMismatch(
                    f"{setting} is {self.file_size}, but all {len(names)} files in {self.directory} have {size} bytes: "
                    f"set {setting}={size}"
                )

    def _remove_unusable(self, names: list[str], fault: str | int) -> None:
        """Unlink derived files from the first unusable one on: they are rebuilt from the log."""
        if isinstance(fault, int):
            fault = f"it has {fault} bytes instead of {self.file_size}" if fault >= 0 else "it is a directory"
        extra = {"path": f"{self.directory}/{names[0]}", "reason": fault, "files": len(names)}
        log.warning("derived files are unusable; rebuilding them from the commit log", extra=extra)
        for name in names:
            path = f"{self.directory}/{name}"
            if self.disk.is_directory(path):
                self.disk.remove_tree(path)
            else:
                self.disk.remove(path)
        self.is_directory_dirty = True

    @property
    def base_offset(self) -> int:
        """Where the first file begins; 0 without files."""
        return self.files[0].base_offset if self.files else 0

    @property
    def end_offset(self) -> int:
        """Where the last file ends; 0 without files."""
        return self.files[-1].end_offset if self.files else 0

    def at(self, offset: int) -> MappedFile | None:
        """Return the file that holds ``offset``, or None."""
        files = self.files
        if not files or offset < files[0].base_offset:
            return None
        index = (offset - files[0].base_offset) // self.file_size
        return files[index] if index < len(files) else None

    def mapped_at(self, offset: int) -> MappedFile | None:
        """Return the file that holds ``offset``, with a view that is safe to touch: see ``regrow_if_shortened``."""
        file = self.at(offset)
        if file is not None:
            end = file.file.regrow()
            if end is not None:
                self._report_shortened(file, end)
        return file

    def regrow_if_shortened(self, file: MappedFile) -> None:
        """Restore the size of ``file`` if another process has shortened it, and report that. Any thread may call it.

        Touching the lost part of its map would end this process (SIGBUS). The lost part is zeros afterwards.
        """
        end = file.file.regrow()
        if end is not None:
            self._report_shortened(file, end)

    def _report_shortened(self, file: MappedFile, end: int) -> None:
        extra = {"path": file.path, "bytes": end, "expected_bytes": file.size}
        log.error("derived file was shortened by another process; rebuilding it from the commit log", extra=extra)
        self._on_shortened(file.base_offset + end)

    def create(self, base_offset: int, *, reserve: int) -> MappedFile:
        """Create a file, with blocks up to ``reserve``, that ``adopt`` adds to the list. Any thread may call this."""
        with translate_disk_full(self.directory):
            self.disk.make_directory(self.directory)
        return MappedFile.create(self.disk, self.directory, base_offset, size=self.file_size, reserve=reserve)

    def adopt(self, file: MappedFile, *, is_durable: bool = False) -> None:
        """Append ``file``, which must begin where the last one ends. ``is_durable``: its name is on the disk."""
        assert not self.files or file.base_offset == self.files[-1].end_offset, (self, file)
        if self._is_read_ahead_useful is not None:
            file.set_read_ahead(self._is_read_ahead_useful)
        self.files = (*self.files, file)
        self.is_directory_dirty = not is_durable

    def set_read_ahead(self, is_useful: bool) -> None:
        """Set whether the kernel should read ahead in these files, and in files that are added later."""
        self._is_read_ahead_useful = is_useful
        for file in self.files:
            file.set_read_ahead(is_useful)

    def mark_names_unsynced(self) -> None:
        """Record that names of files may be in the page cache only, so that ``sync_directory`` is due."""
        self.is_directory_dirty = True

    def sync_directory(self) -> None:
        """Make the names of all files durable."""
        self.is_directory_dirty = False
        try:
            self.disk.sync_directory(self.directory)
        except FileNotFoundError:
            pass  # The topic was deleted meanwhile.
        except OSError:
            self.is_directory_dirty = True
            raise

    def remove_from(self, offset: int) -> None:
        """Unlink every file that begins at ``offset`` or later, last one first."""
        while self.files and self.files[-1].base_offset >= offset:
            self._remove(self.files[-1])
            self.files = self.files[:-1]

    def retire_before(self, offset: int) -> tuple[MappedFile, ...]:
        """Remove the files that end at or before ``offset`` from the list, oldest first; the last one always stays.

        They are still open and have their names: the caller unlinks them in this order, and they are closed when no
        thread can use them any more.
        """
        files = self.files
        count = 0
        while count < len(files) - 1 and files[count].end_offset <= offset:
            count += 1
        self.files = files[count:]
        return files[:count]

    def unlink(self, file: MappedFile) -> None:
        """Unlink a retired file, durably. Any thread may call it, but for one file after the other.

        Each name is removed durably before the next one: a power loss then never leaves an older file without its
        successor, which would look like a loss in the middle of the log.
        """
        # The file or the whole directory may be missing, because its topic was deleted meanwhile.
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
