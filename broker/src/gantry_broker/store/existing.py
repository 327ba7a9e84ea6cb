"""What a store that is already there decides: the size of its files.

Sizes are part of the file format and differ between RocketMQ installations. A setting that somebody wrote down must
agree with the files (`StoreMismatch` names both numbers); one that nobody wrote down is taken from the recovery point,
which Gantry writes, or else from what most files say and their names allow: one truncated file must not decide.
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
from gantry_store_files.queue_units import queue_places
from gantry_store_files.segments import segments_of

LOG_SIZE_KEY: Final = "mappedFileSizeCommitLog"
QUEUE_SIZE_KEY: Final = "mappedFileSizeConsumeQueue"
PAGE_BYTES: Final = 4096


def settings_of_store(root: str, settings: StoreSettings, given: Collection[str], disk: Disk) -> StoreSettings:
    """``settings`` with the file sizes of the store under ``root`` wherever ``given`` does not name the key."""
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


def refuse_other_sizes(point: RecoveryPoint | None, settings: StoreSettings, disk: Disk, root: str) -> None:
    """Raise ``StoreMismatch`` where the recovery point knows that the files were made with other sizes."""
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
    """The size of each file, by where it begins; empty ones were being created when their process died."""
    return {segment.base_offset: segment.size for segment in segments_of(disk, directory) if segment.size}


def _log_file_size(disk: Disk, directory: str) -> int:
    """The size that the names allow and most files have; 0 where nothing says it.

    Files begin at multiples of their size, so a truncated one does not pass for the rule. A single file that begins at
    0 and is cut inside a page says nothing either.
    """
    sizes = _sizes(disk, directory)
    step = gcd(*sizes)
    counts = Counter(size for size in sizes.values() if (step % size == 0 if step else size % PAGE_BYTES == 0))
    if not counts:
        return step
    # Of two that are as frequent the larger: a file is truncated more easily than it grows.
    return max(counts, key=lambda size: (counts[size], size))


def _queue_file_size(disk: Disk, root: str) -> int:
    counts: Counter[int] = Counter()
    for place in queue_places(disk, root):
        counts.update(_sizes(disk, place.directory).values())
    whole = [size for size in counts if size % CONSUME_UNIT_BYTES == 0]
    return max(whole, key=lambda size: (counts[size], size), default=0)
