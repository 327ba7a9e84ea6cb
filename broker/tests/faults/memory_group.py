"""A control group with little memory, of either version, for a process that is to run out of it.

The kernel kills in such a group with SIGKILL, in the middle of whatever the process does; that is what happens to a
container at its memory limit. The group counts the page cache, too, but gives that back before it kills.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

ROOT: Final = Path("/sys/fs/cgroup")
V1: Final = ROOT / "memory"


@final
class MemoryGroup:
    """One group; its processes must have ended before it is removed."""

    def __init__(self) -> None:
        self._is_v1 = V1.is_dir()
        self._path = (V1 if self._is_v1 else ROOT) / f"gantry-{os.getpid()}"

    def make(self) -> None:
        self._path.mkdir()

    def remove(self) -> None:
        self._path.rmdir()

    def add(self, pid: int) -> None:
        (self._path / "cgroup.procs").write_text(str(pid))

    def limit(self, memory_bytes: int) -> None:
        """From now on no more than this, and no swap."""
        name = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        (self._path / name).write_text(str(memory_bytes))
        if not self._is_v1:
            (self._path / "memory.swap.max").write_text("0")


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    group = MemoryGroup()
    group.make()
    try:
        yield group
    finally:
        group.remove()
