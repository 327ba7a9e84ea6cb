"""Measure how much slower this machine is now than the idle core for which deadlines were chosen.

    await asyncio.wait_for(answered, patience(5.0))      five seconds there; longer under load, or on a slow core

The factor is the product of two measurements: the processor time of a fixed piece of work, once, compared with that
on the reference core; and the number of runnable processes per processor, as the kernel has counted them over the
last minute. It is never less than 1, which costs nothing on a fast machine.

A deadline detects that an event will never occur. It is not a measurement: performance is measured by a benchmark, in
one run with its reference.

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
"""The processor time of the work on the reference core: one core of a server of 2023."""

BUSY_SAMPLE_S: Final = 2.0


def measure_work_s() -> float:
    """Return the processor seconds of the fixed piece of work: byte code and a little C, like most of our code."""
    began = time.thread_time()
    digest = b""
    for _ in range(ROUNDS):
        digest = sha256(digest).digest()
    return time.thread_time() - began


@cache
def cost() -> float:
    """Return the relative processor time of work on this machine; the best of three, since other programs disturb the
    caches.
    """
    return max(1.0, min(measure_work_s() for _ in range(3)) / REFERENCE_S)


def processes_per_core() -> float:
    """Return the runnable processes per processor, at least the test processes, which the last minute may not yet
    include.
    """
    sharing = int(os.environ.get(SHARING_VARIABLE) or 1)
    return max(1.0, max(sharing, os.getloadavg()[0]) / len(os.sched_getaffinity(0)))


def slowness() -> float:
    """Return the current factor for deadlines."""
    return cost() * processes_per_core()


def patience(seconds: float) -> float:
    """Return how long to wait here for an event that takes less than ``seconds`` on the reference core."""
    return seconds * slowness()


def busy_share(sample_s: float = BUSY_SAMPLE_S) -> float:
    """Return the share of all processors that is in use while this process sleeps for ``sample_s``, from 0 to 1."""
    idle, total = _processor_ticks()
    time.sleep(sample_s)
    idle_later, total_later = _processor_ticks()
    return 1 - (idle_later - idle) / max(1, total_later - total)


def _processor_ticks() -> tuple[int, int]:
    """Return the idle ticks, waiting for a disk included, and all ticks, of all processors since boot."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


if __name__ == "__main__":
    sys.exit(busy_share() > float(sys.argv[1]))
