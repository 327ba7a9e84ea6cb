"""Small files that are replaced as a whole, each with one good predecessor.

    write `name.tmp`, fsync it -> link the present file as `name.bak` -> rename `name.tmp` to `name` -> fsync the folder

The present name is never missing: a crash at any moment leaves the old file or the new one. These calls wait for the
disk, so they run in a thread, never on the event loop.
"""

import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the durable content of `path`. Raises OSError; the old content stands then."""
    temporary, backup = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".bak")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_candidates(path: Path) -> list[tuple[Path, bytes]]:
    """The file and its predecessor, newest first, as far as they exist."""
    found: list[tuple[Path, bytes]] = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            found.append((candidate, candidate.read_bytes()))
        except FileNotFoundError:
            continue
    return found
