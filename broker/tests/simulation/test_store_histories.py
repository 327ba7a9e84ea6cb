"""A slice of what ``run_histories.py`` does, and always the same histories: whatever breaks one is new.

It runs as a program of its own, since Hypothesis also draws numbers that it finds in the modules that are loaded: among
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
    "died in recovery", "converged after a death in recovery", "recovered twice", "set aside", "the log failed",
)  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "histories"),
    [(1, 25), pytest.param(1, 100, marks=pytest.mark.verify), pytest.param(2, 100, marks=pytest.mark.slow)],
)
def test_whatever_happens_the_store_keeps_what_its_mode_promises_and_nothing_cut_returns(
    seed: int, histories: int
) -> None:
    """What was promised is there byte for byte, what was cut never is, recovery converges; and it was in danger."""
    command = [sys.executable, str(PROGRAM), "--seed", str(seed), "--histories", str(histories), "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{histories} histories held" in done.stdout
    met = dict(re.findall(r"^  (\S.*?) +([\d,]+)$", done.stdout, re.MULTILINE))
    assert [what for what in FREQUENT if met.get(what, "0") == "0"] == [] or histories < 100
