"""Remedies that refusals name, executed as a user would do. Nothing else is executed.

Put back the file of ... a backup                      the file as it was before it was damaged
in a group, move the store away and start empty        the other member is there, and has everything
'truncate -s SIZE FILE'                                what is left is served, what is missing is reported
remove, delete or move FILE                            the file or the directory is removed
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from damage.file_kinds import STORE

_TRUNCATE: Final = re.compile(r"'truncate -s (\d+) ([^' ]+)'")
_RANGE: Final = re.compile(r"\[(\d+), (\d+)\)")
_REMOVE: Final = re.compile(r"\b(?:remove|delete|move) ((?:\S+/)+\S*[^\s.,;:'])")
_PUT_BACK: Final = re.compile(r"[Pp]ut (?:back|them back)")
_START_EMPTY: Final = "in a group, move the store away and start empty"

Remedy = Callable[[], str]


def remedies_of(
    reason: str, folder: Path, member: int, *, file: str, backup: Path | None, is_grouped: bool
) -> list[Remedy]:
    """Return the remedies in the reason of a refused start that are possible here; each returns what it did.

    ``folder`` contains the members' folders, ``backup`` is a good copy of this member's, if there is one.
    """
    found: list[Remedy] = []
    if is_grouped and _START_EMPTY in reason:
        found.append(lambda: _start_empty(folder, member))
    if backup is not None and _PUT_BACK.search(reason):
        found.append(lambda: _put_back(backup, folder / str(member), file))
    if match := _TRUNCATE.search(reason):
        size, name = int(match[1]), match[2]
        found.append(lambda: _give_size(folder, member, reason, size, name))
    for removed in _REMOVE.findall(reason):
        if (folder / removed).exists() and (folder / removed).is_relative_to(folder / str(member)):
            found.append(lambda path=removed: _remove(folder, path))  # type: ignore[misc]
    return found


def apply_remedy(remedies: list[Remedy], rng: random.Random) -> str | None:
    """Execute one of the remedies; return None if there is none."""
    return rng.choice(remedies)() if remedies else None


def _start_empty(folder: Path, member: int) -> str:
    (folder / f"away-{member}").mkdir()
    (folder / str(member)).rename(folder / f"away-{member}" / "store")
    return f"the store of member {member} was moved away"


def _put_back(backup: Path, member: Path, file: str) -> str:
    (member / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(backup / file, member / file)
    return f"{file} was put back from a backup"


def _give_size(folder: Path, member: int, reason: str, size: int, name: str) -> str:
    names = [name]
    if name == "NAME":
        ranges = _RANGE.findall(reason)
        assert ranges, reason
        start, end = (int(one) for one in ranges[0])
        names = [f"{member}/{STORE}/commitlog/{base:020d}" for base in range(start, end, size)]
    for one in names:
        with (folder / one).open("ab"):
            os.truncate(folder / one, size)
    return f"{', '.join(names)} truncated to {size} bytes"


def _remove(folder: Path, name: str) -> str:
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return f"{name} was removed"
