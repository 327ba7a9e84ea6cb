"""Planted leaks: a process of a group that leaks on purpose, so that a test can show that the leak is found.

    python -m ... with the environment of ``leak_environment("thread")``

The environment puts the folder of `planted_leaks` on the path of every Python process. Its `sitecustomize` starts a
thread in the processes of the target, and in no other; the code of the server is the shipped one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LEAKS: Final = ("descriptor", "memory", "table", "thread")
"""The leaks: once a period a descriptor, 1 MB or a thread; or a table of offsets that is never cleaned."""

VARIABLE: Final = "GANTRY_PLANTED_LEAK"
PERIOD_VARIABLE: Final = "GANTRY_PLANTED_LEAK_PERIOD_S"
FOLDER: Final = Path(__file__).with_name("planted_leaks")
PERIOD_S: Final = 60.0


def leak_environment(leak: str | None, period_s: float = PERIOD_S) -> dict[str, str]:
    """Return the variables with which the brokers of a group leak once a period; none without a leak."""
    if leak is None:
        return {}
    if leak not in LEAKS:
        raise ValueError(f"unknown leak {leak}; expected one of {', '.join(LEAKS)}")
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH", ""))))
    return {VARIABLE: leak, PERIOD_VARIABLE: str(period_s), "PYTHONPATH": path}
