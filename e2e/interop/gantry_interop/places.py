"""Where the harness finds its parts and leaves its traces.

Everything a run writes lies under `.gantry/interop/` at the top of the clone; a run's own directory also serves as the
home directory of its Java processes, which otherwise log and keep offsets in the user's.
"""

from __future__ import annotations

import time
from pathlib import Path

INTEROP = Path(__file__).resolve().parents[1]
ROOT = INTEROP.parents[1]
RUNS = ROOT / ".gantry" / "interop"


def new_run_directory(purpose: str) -> Path:
    """A fresh directory for the logs, stores and homes of one run."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        directory = RUNS / (f"{purpose}-{stamp}" + (f"-{attempt}" if attempt else ""))
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise RuntimeError(f"no free name for a run directory like {directory}")
