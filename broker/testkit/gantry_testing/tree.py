"""The source tree that tests run from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
"""The top folder of the repository."""

SOURCES: Final = tuple(ROOT / folder for folder in ("broker/src", "broker/testkit", "operator/src", "pipelines/src"))
"""Folders of import packages."""

PYTHON_PATH: Final = ":".join(map(str, SOURCES))
"""PYTHONPATH of a process that runs the code of this tree, whatever is installed."""
