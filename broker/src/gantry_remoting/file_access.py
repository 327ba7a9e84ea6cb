"""Access to the files of Gantry's processes: **the owner only, unless the owner's group is configured**.

Stores, tables, logs, status pages and sockets hold messages, accounts' names and addresses. Servers, sidecars and
commands restrict all of their files in one step at their start, by their umask, so that no single `open` can omit it,
not even in a library. Jobs that write a user's files keep the user's umask. A broker and a name server also restrict
the files of their stores that an earlier version or another program left open to others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from enum import StrEnum
from typing import Final


class FileAccess(StrEnum):
    """Who may read the files of a process. Only the owner may write."""

    OWNER = "OWNER"
    """Only the user of the process may read them."""

    GROUP = "GROUP"
    """The group of the files may read them, too."""


_UMASKS: Final = {FileAccess.OWNER: 0o077, FileAccess.GROUP: 0o027}


_inherited: list[int] = []
"""The umask with which the process was started, once it was changed."""


def limit_new_files(access: FileAccess = FileAccess.OWNER) -> None:
    """Restrict the files that this process and its children create from now on."""
    _inherited.append(os.umask(_UMASKS[access]))


def inherited_umask() -> int:
    """Return the umask with which this process was started, or -1 if it is unchanged.

    Children that write a user's files are started with it.
    """
    return _inherited[0] if _inherited else -1


def limit_existing_files(root: str | os.PathLike[str], access: FileAccess) -> tuple[int, int]:
    """Remove permissions that ``access`` does not allow from the files below ``root``.

    Return (number of changed files, number of files that could not be changed). No permission is ever added. Files of
    another owner cannot be changed and are counted; links are not followed.
    """
    changed, refused = 0, 0
    for path in _tree(os.fspath(root)):
        try:
            file_status = os.lstat(path)
            mode = stat.S_IMODE(file_status.st_mode)
            if mode & _UMASKS[access] and not stat.S_ISLNK(file_status.st_mode):
                os.chmod(path, mode & ~_UMASKS[access])
                changed += 1
        except FileNotFoundError:
            continue  # there is no store yet, or the file was deleted meanwhile
        except OSError:
            refused += 1
    return changed, refused


def _tree(root: str) -> Iterator[str]:
    yield root
    for folder, folders, files in os.walk(root):
        yield from (f"{folder}/{name}" for name in folders + files)
