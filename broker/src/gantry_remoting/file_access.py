"""Who may read what our processes write: **the owner alone, unless the owner's group was asked for**.

Stores, tables, logs, status pages and sockets hold messages, accounts' names and addresses. Each process decides about
all of its files in one step at its start, by its umask: no single `open` can forget it, a library's neither. Files that
an earlier version or another program left open to others are closed then, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from enum import StrEnum
from typing import Final


class FileAccess(StrEnum):
    """Who may read the files of a process; writing is the owner's."""

    OWNER = "OWNER"
    GROUP = "GROUP"


_UMASKS: Final = {FileAccess.OWNER: 0o077, FileAccess.GROUP: 0o027}


_inherited: list[int] = []


def limit_new_files(access: FileAccess = FileAccess.OWNER) -> None:
    """Decide about the files that this process and its children make from now on."""
    _inherited.append(os.umask(_UMASKS[access]))


def inherited_umask() -> int:
    """The umask that this process was started with, for children whose files are the user's; -1 if it still holds."""
    return _inherited[0] if _inherited else -1


def limit_existing_files(root: str | os.PathLike[str], access: FileAccess) -> tuple[int, int]:
    """Take from the files and directories below ``root`` what ``access`` does not allow: (changed, not changeable).

    Nothing is ever opened up. What belongs to somebody else cannot be changed and is counted; links are not followed.
    """
    changed, refused = 0, 0
    for path in _tree(os.fspath(root)):
        try:
            facts = os.lstat(path)
            mode = stat.S_IMODE(facts.st_mode)
            if mode & _UMASKS[access] and not stat.S_ISLNK(facts.st_mode):
                os.chmod(path, mode & ~_UMASKS[access])
                changed += 1
        except FileNotFoundError:
            continue  # no such store yet, or a file that went meanwhile
        except OSError:
            refused += 1
    return changed, refused


def _tree(root: str) -> Iterator[str]:
    yield root
    for folder, folders, files in os.walk(root):
        yield from (f"{folder}/{name}" for name in folders + files)
