"""Files of ours that are replaced as a whole: after a crash at any moment the old file is there, or the new one.

    write beside it, fsync -> link the present file as `name.bak` -> rename over `name` -> fsync the folder
                              (where the predecessor is kept)

The file is synced through the descriptor that wrote it, because an error of a write is reported to that one. A kill can
leave a file beside it whose name begins with a dot and ends with `.tmp`; readers of a folder skip such names.

All of these calls wait for the disk, so they run in a thread, never on the event loop.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(
    path: Path, data: bytes, *, mode: int = 0o666, keeps_predecessor: bool = False, is_durable: bool = True
) -> None:
    """Make `data` the content of `path`; if `is_durable`, a power cut after that keeps it.

    Raises OSError; the old content stays then. The folder is made. `mode` is that of the new file, less the umask.
    """
    make_folders(path.parent)
    beside = _path_beside(path)
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        if keeps_predecessor and path.exists():
            predecessor = _predecessor(path)
            predecessor.unlink(missing_ok=True)
            os.link(path, predecessor)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if is_durable:
        sync_folder(path.parent)


@contextmanager
def replacement_of(path: Path) -> Iterator[Path]:
    """Give the path of a file to be written; at the end it durably takes the place of `path`, whose folder is made.

    If the block fails, `path` stays as it was and nothing is left beside it.
    """
    make_folders(path.parent)
    beside = _path_beside(path)
    try:
        yield beside
        sync_file(beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
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
    """Make a folder and those above it, durably."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _path_beside(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def _predecessor(path: Path) -> Path:
    return path.with_name(path.name + ".bak")
