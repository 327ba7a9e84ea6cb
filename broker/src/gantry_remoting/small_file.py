"""Small files: those that others write and we only read, and those of ours that are replaced as a whole.

Certificates, keys and secrets are written by others. A path in a configuration may lead anywhere. A pipe would hold the
reader for ever, a device or a forgotten log would fill the memory, and a folder is a mistyped name. All of that is an
error at once, in words that say which file it was.

A file of ours is never missing and never half written: a crash at any moment leaves the old one or the new one.

    write `name.tmp`, fsync it -> link the present file as `name.bak` -> rename `name.tmp` to `name` -> fsync the folder
                                  (where the predecessor is kept)

All of these calls wait for the disk, so they run in a thread, never on the event loop.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

BYTES_MAX: Final = 1 << 20


def read_small_file(path: str) -> bytes:
    """Everything in it. Raises OSError with the path, also for what is no plain file or has more than 1 MiB."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # a zero byte in a path
        raise OSError(errno.EINVAL, str(error), path) from error
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        raise OSError(errno.EINVAL, "it is not a file", path)
    with open(descriptor, "rb") as file:
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has {facts.st_size} bytes, and at most {BYTES_MAX} are read", path)
    return data


def replace_file(path: Path, data: bytes, *, keeps_predecessor: bool = False) -> None:
    """Make `data` the durable content of `path`. Raises OSError; the old content stands then."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if keeps_predecessor and path.exists():
        predecessor = _predecessor(path)
        predecessor.unlink(missing_ok=True)
        os.link(path, predecessor)
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_candidates(path: Path) -> list[tuple[Path, bytes]]:
    """The file and its predecessor, newest first, as far as they exist."""
    found: list[tuple[Path, bytes]] = []
    for candidate in (path, _predecessor(path)):
        try:
            found.append((candidate, candidate.read_bytes()))
        except FileNotFoundError:
            continue
    return found


def _predecessor(path: Path) -> Path:
    return path.with_name(path.name + ".bak")
