"""The storage of an archive: its interface, and the implementation for a folder.

    staged, then published    `finish` makes a file durable under a name that readers ignore; `publish` renames it
    visible at once           an object store has no rename: `finish` uploads the file under its final name

`write` is for small files, which become visible completely and durably, or not at all. `Folder.exchange` swaps two
folders in one step, so that a listing of either shows one of them completely; storage without it is not compacted."""

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
"""The descriptor of the system call that stands for the current folder."""

_RENAME_EXCHANGE: Final = 2
"""The flag of the system call that swaps the two names."""

_NO_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""The errors of a file system that cannot swap names."""


class Storage(Protocol):
    """The storage of one archive. Paths are relative to its root, with slashes.

    It is pickled to workers, so it holds no connection.
    """

    @property
    def is_folder(self) -> bool:
        """Whether files are staged and then renamed; otherwise a file is visible as soon as it is written.

        A folder need not have `exchange`: NFS has none.
        """

    def paths(self, folder: str = "") -> list[str]:
        """Return all files below a folder, sorted; none if the folder does not exist."""

    def read(self, path: str) -> bytes:
        """Read a whole file. Raises FileNotFoundError."""

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for random access. Raises FileNotFoundError."""

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically and durably; it may replace another."""

    def remove(self, path: str) -> None:
        """Delete a file if it exists."""

    def new_file(self) -> Path:
        """Return the path of a new local file for a worker, to be passed to `finish`."""

    def finish(self, local: Path, path: str) -> str:
        """Make a local file durable; return its staged path, or "" if it is already visible at `path`."""

    def publish(self, staged: str, path: str) -> None:
        """Move a staged file to the path at which readers see it."""


@final
@dataclass(frozen=True, slots=True)
class Folder:
    """Storage in a mounted folder: a disk, a volume, NFS."""

    root: str

    def __str__(self) -> str:
        return self.root

    @property
    def is_folder(self) -> bool:
        """True: a folder has rename and links."""
        return True

    def paths(self, folder: str = "") -> list[str]:
        """Return all files below a folder, sorted."""
        top = self._at(folder) if folder else Path(self.root)
        root = Path(self.root)
        return sorted((Path(at) / name).relative_to(root).as_posix() for at, _, names in os.walk(top) for name in names)

    def read(self, path: str) -> bytes:
        """Read a whole file. Raises FileNotFoundError."""
        return self._at(path).read_bytes()

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for random access. Raises FileNotFoundError."""
        return pa.OSFile(str(self._at(path)), "r")

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        try:
            return self._at(path).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically and durably, by a temporary file and a rename."""
        replace_file(self._at(path), data)

    def remove(self, path: str) -> None:
        """Delete a file but not its folder: an empty folder does no harm, and a writer may be about to use it."""
        self._at(path).unlink(missing_ok=True)

    def new_file(self) -> Path:
        """Return a new path in the folder of staged files, which is on the same file system."""
        staged = Path(self.root) / STAGED
        make_folders(staged)
        return staged / f"{secrets.token_hex(16)}{STAGED_SUFFIX}"

    def finish(self, local: Path, path: str) -> str:
        """Sync a staged file where it is, and return its path."""
        sync_file(local)
        sync_folder(local.parent)
        return local.relative_to(self.root).as_posix()

    def publish(self, staged: str, path: str) -> None:
        """Rename a staged file to its final path, durably."""
        at = self._at(path)
        make_folders(at.parent)
        os.replace(self._at(staged), at)
        sync_folder(at.parent)

    def exchange(self, one: str, other: str) -> None:
        """Swap two folders with `renameat2`, which ext4, XFS, Btrfs and tmpfs support, and NFS does not."""
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

    def check_exchange(self) -> None:
        """Try `exchange` with two empty folders: Linux looks the names up before it refuses the flag.

        Raises CannotCompact.
        """
        pair = [f"{STAGED}/try-{secrets.token_hex(8)}" for _ in range(2)]
        try:
            for path in pair:
                make_folders(self._at(path))
            self.exchange(*pair)
        finally:
            for path in pair:
                shutil.rmtree(self._at(path), ignore_errors=True)

    def link(self, source: str, target: str) -> None:
        """Create a hard link to a file."""
        at = self._at(target)
        make_folders(at.parent)
        os.link(self._at(source), at)

    def adopt(self, local: Path, path: str) -> None:
        """Move a durable local file into a folder that readers do not see yet."""
        at = self._at(path)
        make_folders(at.parent)
        os.replace(local, at)

    def remove_folder(self, path: str) -> None:
        """Delete a folder and its contents."""
        shutil.rmtree(self._at(path), ignore_errors=True)

    def sync(self, path: str) -> None:
        """Sync a folder, which makes its entries durable."""
        sync_folder(self._at(path))

    def _at(self, path: str) -> Path:
        parts = path.split("/")
        if not path or path.startswith("/") or ".." in parts:
            raise ArchiveError(f"{path!r} is not a relative path in an archive")
        return Path(self.root, *parts)
