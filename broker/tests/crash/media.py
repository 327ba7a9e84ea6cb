"""Memory for write buffers, mounted for one run and unmounted after it.

    mounted({HUGETLBFS, TMPFS}, directory, brokers=2)  ->  a folder on each; huge pages as many as are needed
                                                       ->  unmounted, the number of huge pages as it was

Mounting needs root. Without it a folder on `/dev/shm` replaces the tmpfs, and there is no hugetlbfs: `why_unsupported`
returns the reason and the remedy.
"""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

from gantry_broker.ports.real_buffers import file_system_of
from gantry_broker.store.write_buffer import piece_bytes

NR_HUGEPAGES: Final = Path("/proc/sys/vm/nr_hugepages")
MEMORY_INFO: Final = Path("/proc/meminfo")
FILE_SYSTEMS: Final = Path("/proc/filesystems")
SHARED_MEMORY: Final = Path("/dev/shm")
COMMAND_TIMEOUT_S: Final = 180
SEGMENT_BYTES: Final = 1024 * 1024
"""The size of a log file, and of a write buffer."""
BUFFERS: Final = 3
"""The number of write buffers of a broker."""


class Medium(Enum):
    """The memory that appends are written to."""

    HUGETLBFS = "hugetlbfs"
    TMPFS = "tmpfs"
    ANONYMOUS = "anonymous"
    NONE = "none"
    """The page cache: no write buffer."""


def why_unsupported(medium: Medium) -> str | None:
    """Return why this machine does not support the medium, with the remedy; None if it does."""
    if medium is Medium.TMPFS:
        is_there = os.geteuid() == 0 or (SHARED_MEMORY.is_dir() and file_system_of(str(SHARED_MEMORY)) == "tmpfs")
        return None if is_there else "mounting a tmpfs needs root, and /dev/shm is no tmpfs -- run again with sudo"
    if medium is not Medium.HUGETLBFS:
        return None
    if os.geteuid() != 0:
        return "mounting a hugetlbfs needs root -- run again with sudo"
    if "hugetlbfs" not in FILE_SYSTEMS.read_text().split():
        return "this kernel has no hugetlbfs -- use one with CONFIG_HUGETLBFS"
    try:
        with _huge_pages(_huge_pages_needed(1)):
            return None
    except OSError as error:
        return str(error)


@contextmanager
def mounted(media: Collection[Medium], directory: Path, *, brokers: int) -> Iterator[dict[Medium, Path]]:
    """Provide a folder on each of the media that need one, with memory for so many brokers. Raises OSError."""
    folders: dict[Medium, Path] = {}
    with ExitStack() as stack:
        if Medium.HUGETLBFS in media:
            stack.enter_context(_huge_pages(_huge_pages_needed(brokers)))
            folders[Medium.HUGETLBFS] = stack.enter_context(_mount("hugetlbfs", directory))
        if Medium.TMPFS in media and os.geteuid() == 0:
            size = (brokers + 1) * BUFFERS * 2 * SEGMENT_BYTES
            folders[Medium.TMPFS] = stack.enter_context(_mount("tmpfs", directory, f"size={size}"))
        elif Medium.TMPFS in media:
            shared = tempfile.TemporaryDirectory(prefix="gantry-crash-", dir=SHARED_MEMORY)
            folders[Medium.TMPFS] = Path(stack.enter_context(shared))
        yield folders


def _page_bytes() -> int:
    """Return the size of a huge page on this machine."""
    [line] = [line for line in MEMORY_INFO.read_text().splitlines() if line.startswith("Hugepagesize:")]
    return int(line.split()[1]) * 1024


def _huge_pages_needed(brokers: int) -> int:
    """Return how many huge pages the buffers of so many brokers need."""
    return brokers * BUFFERS * (piece_bytes(SEGMENT_BYTES, _page_bytes()) // _page_bytes())


@contextmanager
def _huge_pages(count: int) -> Iterator[None]:
    """Reserve more huge pages, and release them afterwards. Raises OSError if the kernel has no memory for them."""
    _add_huge_pages(count)
    try:
        yield
    finally:
        _add_huge_pages(-count)


def _add_huge_pages(count: int) -> None:
    with NR_HUGEPAGES.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another such run may change the number at the same time
        before = int(file.read())
        file.seek(0)
        file.write(str(before + count))
        file.flush()
        file.seek(0)
        after = int(file.read())
        if after < before + count:
            file.seek(0)
            file.write(str(before))
            raise OSError(
                f"only {after - before} of {count} huge pages available -- free some memory, or reboot with hugepages="
            )


@contextmanager
def _mount(kind: str, directory: Path, options: str = "mode=700") -> Iterator[Path]:
    """Mount a new file system below `directory`."""
    path = directory / kind
    path.mkdir(parents=True)
    _run("mount", "-t", kind, "-o", options, "none", str(path))
    try:
        yield path
    finally:
        _run("umount", str(path))
        path.rmdir()


def _run(*words: str) -> None:
    result = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if result.returncode:
        raise OSError(f"`{' '.join(words)}` exits {result.returncode}: {result.stderr.strip()}")
