"""File sizes of an existing store, which override defaults and must agree with explicit settings.

Sizes are part of the file format and differ between RocketMQ installations. An explicit setting must agree with the
files: the error names both numbers. Queue files of another size are rebuilt instead if neither a recovery point nor
several files of one size contradict the setting. Without a setting the size is taken from the recovery point, which
Gantry writes, or else from the majority of the files, as far as their names allow it: one truncated file must not
decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from math import gcd
from typing import Final

from gantry_broker.errors import StoreMismatch
from gantry_broker.ports.disk import Disk
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.settings import CONSUME_UNIT_BYTES, StoreSettings
from gantry_store_files.queue_units import list_queue_locations
from gantry_store_files.segments import segments_of

LOG_SIZE_KEY: Final = "mappedFileSizeCommitLog"
"""The key of the setting for the size of log files."""
QUEUE_SIZE_KEY: Final = "mappedFileSizeConsumeQueue"
"""The key of the setting for the size of consume queue files."""
PAGE_BYTES: Final = 4096
"""The size of a page of memory."""


def with_existing_file_sizes(root: str, settings: StoreSettings, given: Collection[str], disk: Disk) -> StoreSettings:
    """Return ``settings`` with the file sizes of the store under ``root`` where ``given`` does not name the key."""
    point = RecoveryPointFile(disk, root).read()
    if LOG_SIZE_KEY not in given:
        size = (point.log_file_bytes if point is not None else 0) or _log_file_size(disk, f"{root}/commitlog")
        if size:
            settings = replace(settings, mapped_file_size_commit_log=size)
    if QUEUE_SIZE_KEY not in given:
        size = (point.queue_file_bytes if point is not None else 0) or _queue_file_size(disk, root)
        if size:
            settings = replace(settings, mapped_file_size_consume_queue=size)
    return settings


def raise_on_other_file_sizes(point: RecoveryPoint | None, settings: StoreSettings, disk: Disk, root: str) -> None:
    """Raise ``StoreMismatch`` if the recovery point records other file sizes than ``settings``."""
    if point is None:
        return
    wanted = (
        (LOG_SIZE_KEY, settings.mapped_file_size_commit_log, point.log_file_bytes, "commitlog"),
        (QUEUE_SIZE_KEY, settings.mapped_file_size_consume_queue, point.queue_file_bytes, "consumequeue"),
    )
    for key, size, known, directory in wanted:
        if known not in (0, size) and disk.list(f"{root}/{directory}"):
            remedy = f"set {key}={known}"
            if key == QUEUE_SIZE_KEY:
                remedy += f", or delete {root}/{directory} to have it rebuilt"
            raise StoreMismatch(f"{key} is {size}, but the files in {root}/{directory} have {known} bytes: {remedy}")


def _sizes(disk: Disk, directory: str) -> dict[int, int]:
    """Return the size of each file by its base offset, without empty files, whose creation was interrupted."""
    return {segment.base_offset: segment.size for segment in segments_of(disk, directory) if segment.size}


def _log_file_size(disk: Disk, directory: str) -> int:
    """Return the size that the names allow and most files have; 0 if it cannot be determined.

    Files begin at multiples of their size, so most sizes of truncated files are rejected. If no file has an allowed
    size, the greatest common divisor of the names counts. It is a multiple of the size if there is only one file, so
    a single file that was truncated determines nothing, unless by chance its size is allowed.
    """
    sizes = _sizes(disk, directory)
    step = gcd(*sizes)
    counts = Counter(size for size in sizes.values() if (step % size == 0 if step else size % PAGE_BYTES == 0))
    if not counts:
        return step if len(sizes) > 1 else 0
    # The larger of two equally frequent sizes wins: a file is truncated more easily than it grows.
    return max(counts, key=lambda size: (counts[size], size))


def _queue_file_size(disk: Disk, root: str) -> int:
    counts: Counter[int] = Counter()
    for location in list_queue_locations(disk, root):
        counts.update(_sizes(disk, location.directory).values())
    possible = [size for size in counts if size % CONSUME_UNIT_BYTES == 0]
    return max(possible, key=lambda size: (counts[size], size), default=0)
