"""What a build of the compiled module leaves beside it, and the hash of the sources.

The build hook (`hatch_build.py` at the top of the repository) loads this file by its path, so it imports no other
module of Gantry. `build.txt` has three lines: a fingerprint of everything that the result depends on, the reason if
there is no compiled module, and else its file name, size and SHA-256. It is written by the build and never committed.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Final, NamedTuple

MODULE_SOURCE: Final = "_native.pyx"
RECORD: Final = "build.txt"
_SOURCE_PATTERNS: Final = ("*.pyx", "*.pxd", "*.pxi", "*.h")


class BuildRecord(NamedTuple):
    """The result of the last build, as its record has it."""

    fingerprint: str = ""
    reason: str = ""
    """Why there is no compiled module, in one line; empty if there is one."""

    module: str = ""
    """The compiled module, as `describe_module` returns it."""


def sources_in(folder: Path) -> list[Path]:
    """Return the files from which the compiled module is built, sorted by name."""
    return sorted(path for pattern in _SOURCE_PATTERNS for path in folder.glob(pattern))


def hash_sources(folder: Path) -> str | None:
    """Return a hash of the sources in a folder, or None if they are not there, as in an installed wheel."""
    if not (folder / MODULE_SOURCE).is_file():
        return None
    digest = hashlib.sha256()
    for path in sources_in(folder):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def record_text(record: BuildRecord) -> str:
    """Return the content of `build.txt`."""
    return "".join(f"{' '.join(line.split())}\n" for line in record)


def read_record(folder: Path) -> BuildRecord:
    """Return the record of the last build; all of it is empty if there is no readable one."""
    try:
        fingerprint, reason, module, *_ = (folder / RECORD).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return BuildRecord()
    return BuildRecord(fingerprint, reason, module)


def describe_module(path: Path) -> str:
    """Return file name, size and SHA-256 of a compiled module; empty if there is no readable file."""
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    return f"{path.name} {len(content)} {hashlib.sha256(content).hexdigest()}"


def find_damage(folder: Path) -> str:
    """Return why the module must not be loaded, in one line; empty if its size is that of the last build.

    The loader does not notice a truncated file: the process would end with SIGBUS.
    """
    try:
        name, size, _ = read_record(folder).module.split()
        found = (folder / name).stat().st_size
    except (OSError, ValueError):
        return ""
    return "" if str(found) == size else f"{name} has {found} bytes instead of {size}; run scripts/setup"


def read_reason(folder: Path) -> str:
    """Return why there is no compiled module for this Python, in one line."""
    record = read_record(folder)
    if record.reason:
        return record.reason
    if record.fingerprint:
        return f"not built for Python {sys.version_info.major}.{sys.version_info.minor}; run scripts/setup"
    return "not built; run scripts/setup"
