"""The source tree from which tests run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
"""The root folder of the repository."""

SOURCES: Final = tuple(ROOT / folder for folder in ("broker/src", "broker/testkit", "operator/src", "pipelines/src"))
"""The folders of import packages."""

PYTHON_PATH: Final = ":".join(map(str, SOURCES))
"""The PYTHONPATH of a process that runs the code of this tree, independently of installed packages."""
