"""Kinds of damage: one function for each, which damages a real file at places that a seed decides.

Swapped and older content replaces the file of a stopped store; under a running broker it is written into the file,
since a broker holds its files open: damage at the same inode is the worst case. All other damage but a removal is
always done in place.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class DamageKind(StrEnum):
    """One way to damage a file; the names are those of the table that a run prints."""

    MISSING = "missing"
    EMPTIED = "emptied"
    TRUNCATED = "truncated"
    FLIPPED = "one bit"
    SWAPPED = "swapped"
    ROLLED_BACK = "rolled back"


class NotPossible(Exception):
    """This file cannot be damaged in this way: it is too short, or no other file or older copy differs from it."""


class Source(NamedTuple):
    """The places from which foreign or older content is taken."""

    older: Sequence[Path]
    """Folders with earlier states of the same member."""

    foreign: Path
    """The folder of a member of another store with a similar history."""

    same_kind: Sequence[str]
    """Other files of the same kind in the same store."""


def damage_file(
    member: Path, name: str, damage: DamageKind, rng: random.Random, source: Source, *, written: int, in_place: bool
) -> str:
    """Damage the file ``name`` in the folder ``member`` and return what was done. Raises ``NotPossible``.

    ``written`` is the end of the used part, in which most bits are flipped and most cuts are made. With ``in_place`` no
    inode is replaced.
    """
    path = member / name
    put = _overwrite if in_place else _replace
    match damage:
        case DamageKind.MISSING:
            path.unlink()
            return "removed"
        case DamageKind.EMPTIED:
            _truncate(path, 0)
            return "cut to 0 bytes"
        case DamageKind.TRUNCATED:
            return _cut(path, rng, written)
        case DamageKind.FLIPPED:
            return _flip(path, rng, written)
        case DamageKind.SWAPPED:
            return _swap(member, name, rng, source, put)
        case DamageKind.ROLLED_BACK:
            return _roll_back(member, name, rng, source, put)


def _truncate(path: Path, size: int) -> None:
    if path.stat().st_size == size:
        raise NotPossible(f"{path.name} has {size} bytes already")
    os.truncate(path, size)


def _cut(path: Path, rng: random.Random, written: int) -> str:
    size = path.stat().st_size
    if size < 2:
        raise NotPossible(f"{path.name} has {size} bytes")
    end = rng.randrange(1, max(2, min(size, written))) if rng.random() < 0.8 else rng.randrange(1, size)
    os.truncate(path, end)
    return f"cut to {end} of {size} bytes"


def _flip(path: Path, rng: random.Random, written: int) -> str:
    size = path.stat().st_size
    if not size:
        raise NotPossible(f"{path.name} is empty")
    # Mostly in the used part: a bit of an unused page is no damage, and is drawn only now and then.
    position = rng.randrange(min(size, written) or size) if rng.random() < 0.9 else rng.randrange(size)
    bit = rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))
    return f"bit {bit} of byte {position} flipped"


def _swap(member: Path, name: str, rng: random.Random, source: Source, put: Callable[[Path, bytes], None]) -> str:
    path, mine = member / name, (member / name).read_bytes()
    others = [other for other in source.same_kind if (member / other).read_bytes() != mine]
    foreign = source.foreign / name
    has_foreign = foreign.exists() and foreign.read_bytes() != mine
    if others and (not has_foreign or rng.random() < 0.5):
        other = rng.choice(others)
        theirs = (member / other).read_bytes()
        put(path, theirs)
        put(member / other, mine)
        return f"swapped with {other}"
    if not has_foreign:
        raise NotPossible(f"nothing that {name} could be swapped with")
    put(path, foreign.read_bytes())
    return "replaced by that of another store"


def _roll_back(member: Path, name: str, rng: random.Random, source: Source, put: Callable[[Path, bytes], None]) -> str:
    path = member / name
    mine = path.read_bytes() if path.exists() else None
    older = [folder / name for folder in source.older if (folder / name).exists()]
    older = [one for one in older if one.read_bytes() != mine]
    if not older:
        raise NotPossible(f"no older copy of {name} differs")
    chosen = rng.choice(older)
    put(path, chosen.read_bytes())
    return f"rolled back to the copy of {chosen.parts[-name.count('/') - 3]}"


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".damage")
    temporary.write_bytes(data)
    temporary.replace(path)


def _overwrite(path: Path, data: bytes) -> None:
    """Overwrite a file in place; a broker that has mapped it reads the new bytes."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(data)
        file.truncate(len(data))


def copy_member(source: Path, target: Path) -> None:
    """Copy a member's folder; of each file only its bytes."""
    shutil.copytree(source, target, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    data = Path(source).read_bytes()
    Path(target).write_bytes(data)
