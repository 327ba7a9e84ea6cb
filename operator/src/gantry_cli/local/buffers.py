"""Places the write buffers of a local group: on hugetlbfs if enough pages are free, else on tmpfs.

    spec.writeBuffer.medium   HugePages-2Mi   a mounted hugetlbfs with enough free pages; else tmpfs, with a note
                              Memory          tmpfs
                              Off             none

A mapped buffer without memory behind it would end in SIGBUS in the middle of a message. So a group that needs more
memory than is free is refused, with both numbers, before anything starts. Buffers outlive their processes; they are
deleted after their broker has stopped with nothing in them.
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
from gantry_status.text import bytes_text

TMPFS: Final = Path("/dev/shm")
SPARE_PERCENT: Final = 10
"""The share of the free memory that is left to other processes. Huge pages are reserved already: all may be used."""


class Mount(NamedTuple):
    """A file system that can hold write buffers."""

    path: Path
    free_bytes: int
    """The bytes that can still be used on it."""


class BufferPlacement(NamedTuple):
    """The place chosen for a group's write buffers."""

    root: Path | None
    """The mount, or None for a group without write buffers."""

    note: str = ""
    """A line that is shown at the start, such as why tmpfs is used."""


def choose_placement(spec: Spec, needed: int, huge: Iterable[Mount], memory: Mount) -> BufferPlacement:
    """Choose a mount with room for ``needed`` more bytes. Pure. Raises CliError when none has enough."""
    medium = spec.write_buffer.medium
    if medium is Medium.OFF:
        return BufferPlacement(None)
    mounts = sorted(huge, key=lambda one: -one.free_bytes)
    if medium is Medium.HUGE_PAGES and mounts and mounts[0].free_bytes >= needed:
        return BufferPlacement(mounts[0].path, f"write buffers: {bytes_text(needed)} of huge pages in {mounts[0].path}")
    why = ""
    if medium is Medium.HUGE_PAGES:
        why = f"only {bytes_text(mounts[0].free_bytes)} of huge pages are free" if mounts else "no hugetlbfs is mounted"
    require_room(needed, memory, SPARE_PERCENT, why)
    note = f"write buffers: {memory.path}" + (f", since {why}" if why else "")
    return BufferPlacement(memory.path, note)


def require_room(needed: int, mount: Mount, spare_percent: int = 0, why: str = "") -> None:
    """Raise CliError unless ``needed`` more bytes fit into a mount, apart from a share that stays free. Pure.

    ``why`` is the reason for this mount, for the message.
    """
    room = mount.free_bytes * (100 - spare_percent) // 100
    if needed > room:
        what = f"the write buffers need {bytes_text(needed)}, but {mount.path} has room for {bytes_text(room)}"
        remedy = "lower spec.writeBuffer.buffers or segmentSize, or set medium: Off"
        raise CliError(f"{what}{'; ' + why if why else ''}", remedy)


def buffer_folder(root: Path, state: Path, name: str) -> Path:
    """Return the folder of one member's buffers. No two groups of this machine share one."""
    group = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
    return root / f"gantry-{os.getuid()}-{group}" / name


def buffers_size(spec: Spec) -> int:
    """Return the size of one broker's buffers in bytes."""
    return spec.write_buffer.buffers * int(spec.write_buffer.segment_size)


def huge_mounts(mounts: Path = Path("/proc/mounts")) -> Iterator[Mount]:
    """Yield every writable hugetlbfs with pages of 2 MiB."""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, path, kind, options, *_ = line.split(" ")
        is_other = any(one.startswith("pagesize=") and one != "pagesize=2M" for one in options.split(","))
        if kind == "hugetlbfs" and not is_other and os.access(path, os.W_OK | os.X_OK):
            found = os.statvfs(path)
            yield Mount(Path(path), found.f_bavail * found.f_frsize)


def memory_mount(path: Path = TMPFS, info: Path = Path("/proc/meminfo")) -> Mount:
    """Return the tmpfs, with the part of its free space that free memory can back."""
    found = os.statvfs(path)
    lines = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    available = int(lines["MemAvailable"].split()[0]) * 1024
    return Mount(path, min(found.f_bavail * found.f_frsize, available))


def remove_folder(folder: Path) -> None:
    """Delete a folder of buffers, which frees their memory. A missing folder is not an error."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()  # the group's folder, once no member has buffers in it
