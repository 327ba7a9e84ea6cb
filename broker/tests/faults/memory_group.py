"""A control group (v1 or v2) with little memory, for a process that must run out of it.

In such a group the kernel kills with SIGKILL, at any moment, as it does with a container at its memory limit. The group
counts the page cache, too, but reclaims that before it kills.
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
    """A control group for memory. Its processes must have ended before it is removed."""

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
        """Limit the memory of the group from now on, and in v2 disable swap."""
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
