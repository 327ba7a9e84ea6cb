"""A part of the histories of ``run_histories.py``, always the same ones, so that a failure is due to a change.

They run in a separate process, since Hypothesis also draws numbers that it finds in the loaded modules: together with
other tests the same seed would give other histories.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("run_histories.py")
FREQUENT = (
    "replayed", "replayed over a roll", "cut", "refilled after a cut", "a refilled cut met another crash",
    "died in recovery", "converged after a crash in recovery", "recovered twice", "set aside", "the log failed",
)  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "histories"),
    [(1, 25), pytest.param(1, 100, marks=pytest.mark.verify), pytest.param(2, 100, marks=pytest.mark.slow)],
)
def test_random_histories_keep_promises_of_their_mode(seed: int, histories: int) -> None:
    """Promised data survives byte for byte, cut data never returns, and an interrupted recovery has the same result.

    In a hundred histories every situation occurs that puts this at risk.
    """
    command = [sys.executable, str(PROGRAM), "--seed", str(seed), "--histories", str(histories), "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{histories} histories held" in done.stdout
    met = dict(re.findall(r"^  (\S.*?) +([\d,]+)$", done.stdout, re.MULTILINE))
    assert [what for what in FREQUENT if met.get(what, "0") == "0"] == [] or histories < 100
