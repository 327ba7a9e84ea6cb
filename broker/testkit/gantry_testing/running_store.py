"""Copies of a store whose broker still runs: what a kill at that moment would leave."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

ATTEMPTS_MAX: Final = 50


def copy_running_store(store: Path, copy: Path) -> Path:
    """Copy the store to `copy`, and return that; begin again if the broker renames or removes a file meanwhile."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return Path(shutil.copytree(store, copy))
        except shutil.Error as error:
            has_vanished = all(not Path(source).exists() for source, _, _ in error.args[0])
            if not has_vanished or attempt == ATTEMPTS_MAX:
                raise
            shutil.rmtree(copy)
    raise AssertionError("expected a return or an exception")
