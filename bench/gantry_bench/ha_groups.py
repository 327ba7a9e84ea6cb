"""Control groups with a memory limit, of version 1 or 2, for brokers that run in little memory.

A group counts what its processes touch first: their own memory, and the page cache of the files they read and write.
Neither version can leave out the page cache, and neither counts huge pages. Mapped pages are therefore separated by a
calculation: the limit is the broker's own memory, plus an allowance for mapped pages that is the same in groups that
are compared, and the group's own memory is measured and reported with the figures. A broker starts inside its group, so
that all of its memory is counted there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed

ROOT: Final = Path("/sys/fs/cgroup")
V1: Final = ROOT / "memory"
REMOVE_SECONDS_MAX: Final = 10.0
ENTER_CGROUP_SCRIPT: Final = 'echo $$ > "$0" && exec "$@"'


class MemoryGroup(msgspec.Struct, frozen=True):
    """One control group with a memory limit."""

    path: Path
    is_v1: bool

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the command prefix that runs a program in the group."""
        return ("sh", "-c", ENTER_CGROUP_SCRIPT, str(self.path / "cgroup.procs"))

    def own_bytes(self) -> int:
        """Return the memory that belongs to no file."""
        return own_bytes((self.path / "memory.stat").read_text())

    def limit_hits(self) -> int:
        """Return how often the kernel had to reclaim memory because of the limit."""
        if self.is_v1:
            return int((self.path / "memory.failcnt").read_text())
        events = dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())
        return int(events["max"])


def own_bytes(stat_text: str) -> int:
    """Return the anonymous memory in a memory.stat of either version."""
    fields = dict(line.split() for line in stat_text.splitlines())
    for name in ("total_rss", "anon"):
        if name in fields:
            return int(fields[name])
    raise BenchmarkFailed("memory.stat of a control group has no anonymous memory")


def cgroups_missing_reason() -> str:
    """Return why control groups are unavailable; empty if they are available."""
    if os.geteuid() != 0:
        return "making a control group needs root"
    if V1.is_dir():
        return ""
    given = ROOT / "cgroup.subtree_control"
    if not given.is_file() or "memory" not in given.read_text().split():
        return "no usable memory controller in /sys/fs/cgroup"
    return ""


@contextmanager
def memory_group(name: str, limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a group for the duration of the context; its processes must have ended before its end."""
    is_v1 = V1.is_dir()
    path = (V1 if is_v1 else ROOT) / f"gantry-bench-{os.getpid()}-{name}"
    try:
        path.mkdir()
        (path / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit_bytes))
        if not is_v1:
            (path / "memory.swap.max").write_text("0")
    except OSError as error:
        with suppress(OSError):
            path.rmdir()
        raise BenchmarkFailed(f"cannot make a control group: {error}") from error
    try:
        yield MemoryGroup(path=path, is_v1=is_v1)
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove the group; retry, because a process that has just ended may be counted a moment longer."""
    deadline = time.monotonic() + REMOVE_SECONDS_MAX
    while True:
        try:
            path.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
