"""How the reader of a hint can call this command: by its name where that finds it, else by its path."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAME = "gantry"


def own_name(program: str | None = None) -> str:
    """`gantry` when the shell finds this very program by that name, else a path to it, relative if that is shorter."""
    path = Path(sys.argv[0] if program is None else program)
    if path.name != NAME:
        return f"{sys.executable} -m gantry_cli"
    found = shutil.which(NAME)
    if found is not None and Path(found).resolve() == path.resolve():
        return NAME
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
