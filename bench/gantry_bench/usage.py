"""What a server process has used: CPU time by thread and by mode, and page faults; and its use at rest.

The scheduler counts a thread's CPU time in nanoseconds; only the split into user and kernel is in ticks of 10 ms. The
first thread of a broker is its event loop, and all others write, sync or wait for it.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.machine import CLOCK_TICKS_PER_SECOND, OtherWork

NANOSECONDS: Final = 1e9
SPARE_FILES: Final = 512
"""Descriptors for everything but connections and queues."""

CLOSING_S: Final = 60.0
"""How long a server may take to close the connections that its clients have closed."""


class Usage(msgspec.Struct, frozen=True):
    """The totals of one process since its start."""

    loop_seconds: float
    """CPU time of the first thread."""
    other_seconds: float
    """CPU time of all other threads that still run."""
    user_seconds: float
    kernel_seconds: float
    faults: int
    """Page faults without reading from the disk."""

    @property
    def cpu_seconds(self) -> float:
        return self.loop_seconds + self.other_seconds

    def since(self, earlier: Usage) -> Usage:
        """Return what was used after an earlier reading."""
        return Usage(
            loop_seconds=self.loop_seconds - earlier.loop_seconds,
            other_seconds=self.other_seconds - earlier.other_seconds,
            user_seconds=self.user_seconds - earlier.user_seconds,
            kernel_seconds=self.kernel_seconds - earlier.kernel_seconds,
            faults=self.faults - earlier.faults,
        )

    def each_us(self, count: int) -> dict[str, float]:
        """Return microseconds for each of so many messages: in all, and by thread and mode; and page faults."""
        scale = 1e6 / max(count, 1)
        ticks = self.user_seconds + self.kernel_seconds
        kernel_share = self.kernel_seconds / ticks if ticks else 0.0
        return {
            "cpu_us": self.cpu_seconds * scale,
            "loop_us": self.loop_seconds * scale,
            "threads_us": self.other_seconds * scale,
            "kernel_us": self.cpu_seconds * kernel_share * scale,
            "faults": self.faults / max(count, 1),
        }


class Rest(msgspec.Struct, frozen=True):
    """The CPU use of a process without work."""

    percent: float
    """Of one core."""
    other_cores: float


def parse_stat(text: str) -> tuple[float, float, int]:
    """Return user and kernel seconds and minor page faults from /proc/PID/stat."""
    fields = text[text.rindex(")") + 1 :].split()
    return int(fields[11]) / CLOCK_TICKS_PER_SECOND, int(fields[12]) / CLOCK_TICKS_PER_SECOND, int(fields[7])


def read_usage(process_id: int) -> Usage:
    """Read the totals of a process. Raises BenchmarkFailed if it has ended."""
    loop = other = 0.0
    try:
        user, kernel, faults = parse_stat(Path(f"/proc/{process_id}/stat").read_text())
        for thread in os.listdir(f"/proc/{process_id}/task"):
            try:
                seconds = int(Path(f"/proc/{process_id}/task/{thread}/schedstat").read_text().split()[0]) / NANOSECONDS
            except OSError:
                continue  # the thread ended between the listing and the reading
            if int(thread) == process_id:
                loop = seconds
            else:
                other += seconds
    except OSError as error:
        raise BenchmarkFailed(f"the server process {process_id} has ended: {error.strerror}") from error
    return Usage(loop, other, user, kernel, faults)


def measure_rest(process_id: int, seconds: float) -> Rest:
    """Wait, and return which share of a core the process used meanwhile."""
    with OtherWork(process_id) as others:
        before, began = read_usage(process_id), time.monotonic()
        time.sleep(seconds)
        used, elapsed = read_usage(process_id).since(before), time.monotonic() - began
    return Rest(percent=100 * used.cpu_seconds / elapsed, other_cores=others.cores)


def count_files(process_id: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{process_id}/fd"))


def count_sockets(process_id: int) -> int:
    """Return how many of a process's descriptors are sockets."""
    count = 0
    for descriptor in os.scandir(f"/proc/{process_id}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(descriptor.path).startswith("socket:")
    return count


def wait_for_closed_sockets(process_id: int, count: int) -> None:
    """Wait until a process has at most so many sockets: a server closes its connections after its clients.

    Raises BenchmarkFailed.
    """
    deadline = time.monotonic() + CLOSING_S
    while (sockets := count_sockets(process_id)) > count:
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"the broker still has {sockets} sockets, expected at most {count}")
        time.sleep(0.05)


def raise_file_limit(count: int) -> str:
    """Allow this process and its children so many descriptors and some more; return why not, or an empty text."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SPARE_FILES
    if soft >= needed:
        return ""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(hard, needed)))
    except (ValueError, OSError):
        return f"{needed:,} descriptors are needed and {hard:,} are allowed: raise the hard limit (ulimit -Hn)"
    return ""
