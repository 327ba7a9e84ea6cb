"""What can be set about the store, with defaults that open RocketMQ's files.

Sizes that are part of the file format keep RocketMQ's names in their docstrings. They are taken from the files when
there are files; a setting that contradicts them refuses to start and names both numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

CONSUME_UNIT_BYTES: Final = 20
INDEX_HEADER_BYTES: Final = 40
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds of delay level 1, 2, ... from RocketMQ's notation. Raises ValueError for anything else."""
    levels = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not word[:-1].isdigit():
            raise ValueError(f"{word!r} is not a delay level: a number and one of s, m, h, d")
        levels.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    return tuple(levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """How often bytes go from the page cache to the disk when nobody waits for it."""

    flush_interval_ms: int = 500
    """flushIntervalCommitLog. How often the flusher looks. Bounds what a power loss takes under load."""

    flush_pages_min: int = 4
    """flushCommitLogLeastPages. Fewer dirty 4 KiB pages than this wait for the thorough interval."""

    flush_thorough_interval_ms: int = 10_000
    """flushCommitLogThoroughInterval. At least this often everything is flushed, however little it is."""

    recovery_point_interval_ms: int = 10_000
    """How often queues and index are flushed too and the point is written from which a recovery has to read."""

    checkpoint_interval_ms: int = 1_000
    """How often the checkpoint file is written, after what it describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Sizes and switches of one store."""

    mapped_file_size_commit_log: int = 1 << 30
    """mappedFileSizeCommitLog, bytes. A slave and its master must agree; an existing store decides."""

    mapped_file_size_consume_queue: int = 300_000 * CONSUME_UNIT_BYTES
    """mappedFileSizeConsumeQueue, bytes, a multiple of 20."""

    consume_queue_reserve_bytes: int = 64 * 1024
    """How much of a consume queue file gets blocks at a time. Thousands of idle queues then cost little disk."""

    is_index_enabled: bool = True
    """messageIndexEnable. Off: no query by key."""

    max_hash_slot_num: int = 5_000_000
    """maxHashSlotNum, hash slots of an index file."""

    max_index_num: int = 20_000_000
    """maxIndexNum, entries of an index file."""

    index_reserve_bytes: int = 1 << 20
    """How much of an index file's entries gets blocks at a time."""

    is_preallocating: bool = True
    """Create the next log file in a helper thread when the current one is half full, so that a roll costs nothing."""

    space_retry_interval_ms: int = 1_000
    """After the disk was full, how long sends are refused before another attempt to create a file."""

    delay_levels_ms: tuple[int, ...] = field(default_factory=lambda: parse_delay_levels(DEFAULT_DELAY_LEVELS))
    """messageDelayLevel, parsed. Recovery computes delivery times of delayed messages with it."""

    flush: FlushSettings = field(default_factory=FlushSettings)
    """When the background flush runs."""

    def __post_init__(self) -> None:
        if self.mapped_file_size_consume_queue % CONSUME_UNIT_BYTES:
            raise ValueError("mappedFileSizeConsumeQueue must be a multiple of 20, the size of an entry")
        if self.mapped_file_size_commit_log < 4096:
            raise ValueError("mappedFileSizeCommitLog must be at least 4096")
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise ValueError("maxHashSlotNum must be at least 1 and maxIndexNum at least 2")

    @property
    def index_file_size(self) -> int:
        return INDEX_HEADER_BYTES + self.max_hash_slot_num * 4 + self.max_index_num * 20
