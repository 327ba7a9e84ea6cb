"""How much longer things take on this machine now than on an idle core like those the deadlines were chosen on.

    await asyncio.wait_for(answered, patience(5.0))      five seconds there; longer beside others, or on a slow core

The factor is the product of two measurements: the processor time of a fixed piece of work, once, against what it took
there; and the processes that want to run against the processors there are, as the kernel has counted them over the
last minute. It is never less than 1: a fast machine may wait as long, and does not when it need not.

A deadline decides that an event will never come. It is no measurement: performance is measured by a benchmark, in one
run with what it is compared with.

    python -m gantry_testing.slowness 0.5         exit code 1 if other programs use over half of the processors
"""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

ROUNDS: Final = 20_000
SHARING_VARIABLE: Final = "PYTEST_XDIST_WORKER_COUNT"
REFERENCE_S: Final = 0.007
"""Processor time of the work, where the deadlines were chosen: one core of a server of 2023."""

BUSY_SAMPLE_S: Final = 2.0


def work() -> float:
    """Processor seconds of the fixed piece of work: byte code and a little C, as everything here."""
    began = time.thread_time()
    digest = b""
    for _ in range(ROUNDS):
        digest = sha256(digest).digest()
    return time.thread_time() - began


@cache
def cost() -> float:
    """How much more processor time anything takes here; the best of three, since others disturb the caches."""
    return max(1.0, min(work() for _ in range(3)) / REFERENCE_S)


def crowd() -> float:
    """How many processes want each processor; at least those that share the tests, which a minute may not show yet."""
    sharing = int(os.environ.get(SHARING_VARIABLE) or 1)
    return max(1.0, max(sharing, os.getloadavg()[0]) / len(os.sched_getaffinity(0)))


def slowness() -> float:
    """The factor, as of now."""
    return cost() * crowd()


def patience(seconds: float) -> float:
    """How long to wait here for what takes less than ``seconds`` there."""
    return seconds * slowness()


def busy_share(sample_s: float = BUSY_SAMPLE_S) -> float:
    """Which share of all processors is in use while this process sleeps for ``sample_s``, from 0 to 1."""
    idle, total = _processor_ticks()
    time.sleep(sample_s)
    idle_later, total_later = _processor_ticks()
    return 1 - (idle_later - idle) / max(1, total_later - total)


def _processor_ticks() -> tuple[int, int]:
    """The ticks without work, waiting for a disk included, and all ticks, of all processors since the boot."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


if __name__ == "__main__":
    sys.exit(busy_share() > float(sys.argv[1]))
