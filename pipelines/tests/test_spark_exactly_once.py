"""The exactly-once run with few messages and a real Spark, and what it says of an archive that is not right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("run_exactly_once.py")


@pytest.mark.slow
@pytest.mark.needs_spark
def test_a_short_run_finds_nothing() -> None:
    """20,000 messages, five lives killed, two failovers, three compactions killed: each once, for every reader."""
    words = [sys.executable, str(PROGRAM), "--messages", "20000", "--kills", "5", "--seed", "11"]

    result = subprocess.run(words, capture_output=True, text=True, timeout=7200, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("each message once, for every reader\n")
