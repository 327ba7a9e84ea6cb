"""Real kills: driver, worker and broker, while Spark writes exactly once. `make exactly-once-sink` has all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent / "sink_kills" / "run_sink_kills.py"
LIMIT_S = 3600


@pytest.mark.needs_spark
@pytest.mark.slow
def test_whoever_is_killed_each_row_is_there_once() -> None:
    """Before the marker, behind it, between two ends, a worker in its task, the broker with a promotion."""
    kills = "driver:halves-known,driver:marker-stored,driver:one-ended:300,worker:chunk-stored,broker:one-ended:100"
    words = [sys.executable, str(PROGRAM), "--rows", "1000", "--batches", "12", "--kills", kills]

    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "12000 rows, 5 kills" in done.stdout
    assert "each row is there once" in done.stdout
