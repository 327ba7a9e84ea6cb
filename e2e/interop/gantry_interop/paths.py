"""The folders of the harness: its sources and its output.

Everything that a run writes is under `.gantry/interop/` at the root of the clone, except recordings (`record`, and
`--record` of other commands) and temporary files of `record`. A run's own directory is also the
home directory of its Java processes, which otherwise log and keep offsets in the user's.
"""

from __future__ import annotations

import time
from pathlib import Path

INTEROP = Path(__file__).resolve().parents[1]
ROOT = INTEROP.parents[1]
RUNS = ROOT / ".gantry" / "interop"


def new_run_directory(purpose: str) -> Path:
    """Create a directory for the logs, stores and homes of one run."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        directory = RUNS / (f"{purpose}-{stamp}" + (f"-{attempt}" if attempt else ""))
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise RuntimeError(f"no free name for a run directory like {directory}")
