"""Atomic and durable replacement of files: after a crash at any moment the old file exists, or the new one.

    write a temporary file, fsync -> link the present file as `name.bak` -> rename over `name` -> fsync the folder
                                     (if the predecessor is kept)

The file is synced through the descriptor that wrote it, because a write error is reported to that descriptor. A kill
can leave a temporary file whose name begins with a dot and ends with `.tmp`; readers of a folder skip such names.

These calls wait for the disk, so on an event loop call them in a thread. Only `replace_file` without `is_durable` in an
existing folder does not sync.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_file(
    path: Path, data: bytes, *, mode: int = 0o666, keeps_predecessor: bool = False, is_durable: bool = True
) -> None:
    """Replace the content of `path` by `data`; if `is_durable`, it survives a power loss.

    Raises OSError, and the old content stays. If only the sync of the folder failed, after the replacement, then the
    old content is restored from the predecessor if the disk allows that, and only a power loss may bring the new one
    back; if no predecessor is kept, the new content stays. The folder is created. `mode` is that of the new file, less
    the umask.
    """
    make_folders(path.parent)
    temporary = _temporary_path(path)
    is_first = not path.exists()
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        if keeps_predecessor and not is_first:
            predecessor = _predecessor(path)
            predecessor.unlink(missing_ok=True)
            os.link(path, predecessor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    try:
        if is_durable:
            sync_folder(path.parent)
    except OSError:
        if keeps_predecessor:
            _restore(path, is_first=is_first)
        raise


def _restore(path: Path, *, is_first: bool) -> None:
    """Undo a replacement, as far as the disk allows: restore the predecessor, or remove the first file."""
    with suppress(OSError):
        if is_first:
            path.unlink()
            return
        temporary = _temporary_path(path)
        os.link(_predecessor(path), temporary)
        os.replace(temporary, path)


@contextmanager
def replacement_of(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which durably replaces `path` at the end of the block. The folder is created.

    If the block fails, `path` is unchanged and the temporary file is removed.
    """
    make_folders(path.parent)
    temporary = _temporary_path(path)
    try:
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_candidates(path: Path) -> list[tuple[Path, bytes]]:
    """Read the file and its predecessor, newest first, as far as they exist."""
    found: list[tuple[Path, bytes]] = []
    for candidate in (path, _predecessor(path)):
        try:
            found.append((candidate, candidate.read_bytes()))
        except FileNotFoundError:
            continue
    return found


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, durably."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Flush a file's bytes to the disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def _predecessor(path: Path) -> Path:
    return path.with_name(path.name + ".bak")
