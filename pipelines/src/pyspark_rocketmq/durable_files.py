"""Files of this machine that appear whole and durably, or not at all, to readers of their folder and after a crash.

write beside it -> sync the file -> rename -> sync the folder
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Make a file appear, also in the place of another."""
    with replacement_of(path) as beside, beside.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # by the descriptor that wrote: an error of a write is reported to it


@contextmanager
def replacement_of(path: Path) -> Iterator[Path]:
    """Give the path of a file to be written; at the end it takes the place of `path`, whose folder is made.

    If the block fails, `path` stays as it was and nothing is left beside it. After a kill a file may be left whose name
    begins with a point; readers of tables skip such names.
    """
    make_folders(path.parent)
    beside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        yield beside
        sync_file(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """A folder and those above it, durably."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
