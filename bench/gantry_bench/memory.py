"""The memory of a process, with the mapped files of its store counted separately.

A mapped log file's pages are page cache: the kernel drops them when it needs memory, and they would be cached whether
mapped or not. Everything else that is resident counts, the interpreter's own code and shared libraries included, so the
figure is an upper bound. The kernel does not count pages of huge page files as Rss; they are added here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed

MAPPING_LINE: Final = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S{4} [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ \d+ *(?P<path>.*)$")
SIZE_LINE: Final = re.compile(r"^(?P<name>Rss|Anonymous|Shared_Hugetlb|Private_Hugetlb): +(?P<kib>\d+) kB$")


class ResidentMemory(msgspec.Struct, frozen=True):
    """Resident bytes: all of them, those of the store's mapped files, and the anonymous ones."""

    total_bytes: int
    store_files_bytes: int
    anonymous_bytes: int

    @property
    def counted_bytes(self) -> int:
        """Return the memory that counts for the goal: without the store's mapped files."""
        return self.total_bytes - self.store_files_bytes


def parse_smaps(text: str, *, store: Path) -> ResidentMemory:
    """Sum up /proc/PID/smaps; files below `store` count as the store's."""
    prefix = f"{store}/"
    is_store_file = False
    total = store_files = anonymous = 0
    for line in text.splitlines():
        if mapping := MAPPING_LINE.match(line):
            is_store_file = mapping["path"].startswith(prefix)
        elif size := SIZE_LINE.match(line):
            size_bytes = int(size["kib"]) * 1024
            if size["name"] == "Anonymous":
                anonymous += size_bytes
                continue
            total += size_bytes
            store_files += size_bytes if is_store_file else 0
    return ResidentMemory(total_bytes=total, store_files_bytes=store_files, anonymous_bytes=anonymous)


def read_resident_memory(process_id: int, *, store: Path) -> ResidentMemory:
    """Read the resident memory of a process of this user."""
    try:
        text = Path(f"/proc/{process_id}/smaps").read_text()
    except OSError as error:
        raise BenchmarkFailed(f"cannot read the memory of process {process_id}: {error.strerror}") from error
    return parse_smaps(text, store=store.resolve())
