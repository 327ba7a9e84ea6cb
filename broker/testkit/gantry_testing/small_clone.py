"""A small clone of the repository: some of its scripts and its Python, so that a test can run a script in isolation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REMOVE = 'd=$(dirname -- "$0"); . "$d/common.sh"; rm -rf "$TMPDIR"'
"""Removes the temporary files of a clone's scripts, which are elsewhere if the path of the clone is long."""


@contextmanager
def small_clone(root: Path, place: Path, *scripts: str) -> Iterator[Path]:
    """Copy these scripts of the clone ``root`` to ``place``; remove their temporary files at the end."""
    (place / "scripts").mkdir(parents=True)
    (place / ".venv").symlink_to(sys.prefix)
    for name in ("common.sh", *scripts):
        shutil.copy2(root / "scripts" / name, place / "scripts" / name)
    try:
        yield place
    finally:
        subprocess.run(["sh", "-c", REMOVE, str(place / "scripts/any")], cwd=place, check=True)


def write_script(clone: Path, name: str, body: str) -> None:
    """Replace one of the clone's scripts by a shell script."""
    script = clone / "scripts" / name
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
