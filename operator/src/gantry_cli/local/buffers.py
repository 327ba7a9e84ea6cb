"""Where the write buffers of a local group lie: on hugetlbfs while there are pages, else on tmpfs, and never on more
memory than there is.

    spec.writeBuffer.medium   HugePages-2Mi   a mounted hugetlbfs with enough free pages; else tmpfs, which is said
                              Memory          tmpfs
                              Off             none

A buffer that is promised and not there would be a SIGBUS in the middle of a message, so whoever has too little memory
is refused with both numbers before anything starts. Buffers outlive their processes; they are taken away when their
broker has ended with nothing in them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gantry_cli.errors import CliError
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import Medium
from gantry_spec.manifest.quantities import bytes_text

TMPFS: Final = Path("/dev/shm")
SPARE_PERCENT: Final = 10
"""Of the free memory that is left to everybody else."""


class Mount(NamedTuple):
    """Somewhere to put buffers."""

    path: Path
    free_bytes: int


class Choice(NamedTuple):
    """Where they go."""

    root: Path | None
    """None if there are none."""

    note: str = ""
    """What a person should know."""


def choose(spec: Spec, needed: int, huge: Iterable[Mount], memory: Mount) -> Choice:
    """Pure. ``needed`` bytes are not there yet. Raises CliError when there is no room."""
    medium = spec.write_buffer.medium
    if medium is Medium.OFF:
        return Choice(None)
    mounts = sorted(huge, key=lambda one: -one.free_bytes)
    if medium is Medium.HUGE_PAGES and mounts and mounts[0].free_bytes >= needed:
        return Choice(mounts[0].path, f"write buffers: {bytes_text(needed)} more of huge pages in {mounts[0].path}")
    why = ""
    if medium is Medium.HUGE_PAGES:
        why = f"only {bytes_text(mounts[0].free_bytes)} of huge pages are free" if mounts else "no huge pages are here"
    room = memory.free_bytes * (100 - SPARE_PERCENT) // 100
    if needed > room:
        what = f"the write buffers need {bytes_text(needed)}, and {memory.path} has room for {bytes_text(room)}"
        remedy = "lower spec.writeBuffer.buffers or segmentSize, or say medium: Off"
        raise CliError(f"{what}{'; ' + why if why else ''}", remedy)
    note = f"write buffers: {memory.path}" + (f", since {why}" if why else "")
    return Choice(memory.path, note)


def folder_of(root: Path, state: Path, name: str) -> Path:
    """Of one member: no two groups of this machine share one."""
    group = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
    return root / f"gantry-{os.getuid()}-{group}" / name


def size_of(spec: Spec) -> int:
    """The buffers of one broker."""
    return spec.write_buffer.buffers * int(spec.write_buffer.segment_size)


def huge_mounts(mounts: Path = Path("/proc/mounts")) -> Iterator[Mount]:
    """Every hugetlbfs that we may write to and that has pages of 2 MiB."""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, path, kind, options, *_ = line.split(" ")
        is_other = any(one.startswith("pagesize=") and one != "pagesize=2M" for one in options.split(","))
        if kind == "hugetlbfs" and not is_other and os.access(path, os.W_OK | os.X_OK):
            found = os.statvfs(path)
            yield Mount(Path(path), found.f_bavail * found.f_frsize)


def memory_mount(path: Path = TMPFS, info: Path = Path("/proc/meminfo")) -> Mount:
    """The tmpfs, and how much of it is backed by memory that is free."""
    found = os.statvfs(path)
    lines = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    available = int(lines["MemAvailable"].split()[0]) * 1024
    return Mount(path, min(found.f_bavail * found.f_frsize, available))


def remove(folder: Path) -> None:
    """Give the memory back; a folder that is not there is no error."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()  # the group's own, once it is empty
