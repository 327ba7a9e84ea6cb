"""What a build of the compiled module leaves beside it, and the hash of the sources.

The build hook (`hatch_build.py` at the top of the repository) loads this file by its path, so it imports no other
module of Gantry. `build.txt` has two lines: a fingerprint of everything that the result depends on, and the reason if
there is no compiled module. It is written by the build and never committed.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Final

MODULE_SOURCE: Final = "_native.pyx"
RECORD: Final = "build.txt"
_SOURCE_PATTERNS: Final = ("*.pyx", "*.pxd", "*.pxi", "*.h")


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


def record_text(fingerprint: str, reason: str) -> str:
    """Return the content of the record; the reason is empty if the module was compiled."""
    return f"{fingerprint}\n{' '.join(reason.split())}\n"


def read_record(folder: Path) -> tuple[str, str]:
    """Return fingerprint and reason of the last build; both are empty if there is no readable record."""
    try:
        fingerprint, reason, *_ = (folder / RECORD).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return "", ""
    return fingerprint, reason


def read_reason(folder: Path) -> str:
    """Return why there is no compiled module for this Python, in one line."""
    fingerprint, reason = read_record(folder)
    if reason:
        return reason
    if fingerprint:
        return f"not built for Python {sys.version_info.major}.{sys.version_info.minor}; run scripts/setup"
    return "not built; run scripts/setup"
