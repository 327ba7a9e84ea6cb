"""The exactly-once run with few messages and a real Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("run_exactly_once.py")


@pytest.mark.slow
@pytest.mark.needs_spark
def test_short_run_reads_each_message_once() -> None:
    """20,000 messages with kills of runs, brokers and compactions: every reader sees each message once."""
    words = [sys.executable, str(PROGRAM), "--messages", "20000", "--kills", "5", "--seed", "11"]

    result = subprocess.run(words, capture_output=True, text=True, timeout=7200, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("each message once, for every reader\n")
