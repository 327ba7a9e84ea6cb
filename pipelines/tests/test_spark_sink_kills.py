"""Kills of driver, worker and broker while Spark writes exactly once; all of them run in `make exactly-once-sink`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent / "sink_kills" / "run_sink_kills.py"
LIMIT_S = 3600


@pytest.mark.needs_spark
@pytest.mark.slow
def test_each_row_is_delivered_once_after_a_kill() -> None:
    """Kills before the marker, after it, between two ends, of a worker in its task, of the broker with a promotion."""
    kills = "driver:halves-known,driver:marker-stored,driver:one-ended:300,worker:chunk-stored,broker:one-ended:100"
    words = [sys.executable, str(PROGRAM), "--rows", "1000", "--batches", "12", "--kills", kills]

    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "12000 rows, 5 kills" in done.stdout
    assert "each row was delivered once" in done.stdout
