"""Where an archive lies: what is asked of a destination, and a folder that gives it.

    staged, then seen    `finish` makes a file durable under a name that no reader looks at; `show` renames it
    seen at once         an object store has no rename: `finish` puts it under its own name, in one piece

`write` is for small files that appear whole and durably or not at all. `exchange` swaps two folders in one step, so
that whoever lists either of their names sees one of both whole; where that cannot be, days are not compacted."""

import ctypes
import errno
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, final

import pyarrow as pa

from gantry_pipelines.archive.errors import ArchiveError, CannotCompact
from gantry_pipelines.archive.layout import STAGED, STAGED_SUFFIX
from gantry_remoting.durable_files import make_folders, replace_file, sync_file, sync_folder

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_NO_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class Storage(Protocol):
    """A destination. Paths are from its root, with slashes. It is pickled to workers, so it holds no connection."""

    @property
    def is_folder(self) -> bool:
        """Whether it has rename, links and exchange; else every file is seen as soon as it is there."""

    def paths(self, folder: str = "") -> list[str]:
        """All files below a folder, sorted; none where there is no such folder."""

    def read(self, path: str) -> bytes:
        """A whole file. Raises FileNotFoundError."""

    def open(self, path: str) -> pa.NativeFile:
        """A file to read in places. Raises FileNotFoundError."""

    def size(self, path: str) -> int | None:
        """Its bytes; None where there is no such file."""

    def write(self, path: str, data: bytes) -> None:
        """Make a file appear, whole and durable, also in the place of another."""

    def remove(self, path: str) -> None:
        """Delete a file, if it is there."""

    def new_file(self) -> Path:
        """Where a worker writes a file of this machine, for `finish`."""

    def finish(self, local: Path, path: str) -> str:
        """Make it durable; where it lies staged, or "" when it is seen at `path` already."""

    def show(self, staged: str, path: str) -> None:
        """Give a staged file the name under which it is seen."""

    def exchange(self, one: str, other: str) -> None:
        """Swap two folders in one step. Raises CannotCompact."""


@final
@dataclass(frozen=True, slots=True)
class Folder:
    """A destination that is a folder of this machine: a disk, a volume, NFS."""

    root: str

    def __str__(self) -> str:
        return self.root

    @property
    def is_folder(self) -> bool:
        """It is."""
        return True

    def paths(self, folder: str = "") -> list[str]:
        """All files below a folder."""
        top = self._at(folder) if folder else Path(self.root)
        root = Path(self.root)
        return sorted((Path(at) / name).relative_to(root).as_posix() for at, _, names in os.walk(top) for name in names)

    def read(self, path: str) -> bytes:
        """A whole file."""
        return self._at(path).read_bytes()

    def open(self, path: str) -> pa.NativeFile:
        """A file to read in places."""
        return pa.OSFile(str(self._at(path)), "r")

    def size(self, path: str) -> int | None:
        """Its bytes."""
        try:
            return self._at(path).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """By a file beside it."""
        replace_file(self._at(path), data)

    def remove(self, path: str) -> None:
        """Delete a file, and nothing else: an empty folder does no harm, and somebody may be about to use it."""
        self._at(path).unlink(missing_ok=True)

    def new_file(self) -> Path:
        """In the folder for staged files, which is on the same disk."""
        staged = Path(self.root) / STAGED
        make_folders(staged)
        return staged / f"{secrets.token_hex(16)}{STAGED_SUFFIX}"

    def finish(self, local: Path, path: str) -> str:
        """It stays where it is."""
        sync_file(local)
        sync_folder(local.parent)
        return local.relative_to(self.root).as_posix()

    def show(self, staged: str, path: str) -> None:
        """By one rename."""
        at = self._at(path)
        make_folders(at.parent)
        os.replace(self._at(staged), at)
        sync_folder(at.parent)

    def exchange(self, one: str, other: str) -> None:
        """By `renameat2`, which ext4, XFS, Btrfs and tmpfs have, and NFS has not."""
        names = [os.fsencode(self._at(path)) for path in (one, other)]
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "renameat2"):
            raise CannotCompact("this system's C library has no renameat2")
        if library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
            number = ctypes.get_errno()
            if number in _NO_EXCHANGE:
                raise CannotCompact(f"{self.root}: this file system cannot exchange two folders in one step")
            raise OSError(number, os.strerror(number), one, None, other)
        for path in (one, other):
            sync_folder(self._at(path).parent)

    def can_exchange(self) -> bool:
        """Whether it can, tried with two empty folders."""
        pair = [f"{STAGED}/try-{secrets.token_hex(8)}" for _ in range(2)]
        try:
            for path in pair:
                make_folders(self._at(path))
            self.exchange(*pair)
        except CannotCompact:
            return False
        finally:
            for path in pair:
                shutil.rmtree(self._at(path), ignore_errors=True)
        return True

    def link(self, source: str, target: str) -> None:
        """A second name for a file."""
        at = self._at(target)
        make_folders(at.parent)
        os.link(self._at(source), at)

    def adopt(self, local: Path, path: str) -> None:
        """Give a file that was made durable its name in a folder that is not seen yet."""
        at = self._at(path)
        make_folders(at.parent)
        os.replace(local, at)

    def remove_folder(self, path: str) -> None:
        """Delete a folder and all that is in it."""
        shutil.rmtree(self._at(path), ignore_errors=True)

    def sync(self, path: str) -> None:
        """Make the names in a folder durable."""
        sync_folder(self._at(path))

    def _at(self, path: str) -> Path:
        parts = path.split("/")
        if not path or path.startswith("/") or ".." in parts:
            raise ArchiveError(f"{path!r} is no path in an archive")
        return Path(self.root, *parts)
