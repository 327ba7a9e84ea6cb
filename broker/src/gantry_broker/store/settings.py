"""What can be set about the store, with defaults that open RocketMQ's files.

Sizes that are part of the file format keep RocketMQ's names in their docstrings. They are taken from the files when
there are files; a setting that contradicts them refuses to start and names both numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PAGE_BYTES: Final = 4096
CONSUME_UNIT_BYTES: Final = 20
INDEX_HEADER_BYTES: Final = 40
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds of delay level 1, 2, ... from RocketMQ's notation. Raises ValueError for anything else."""
    levels = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not (word[:-1].isascii() and word[:-1].isdigit()):
            raise ValueError(f"{word!r} is not a delay level: a number and one of s, m, h, d")
        levels.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    return tuple(levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """When bytes go from the page cache to the disk."""

    is_sync: bool = False
    """flushDiskType: SYNC_FLUSH answers a send when it is on the disk, ASYNC_FLUSH before."""

    is_timed: bool = True
    """flushCommitLogTimed: look every interval only. False: look as soon as enough pages are dirty, too."""

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
class PoolSettings:
    """The write buffer: memory that takes the appends, and is committed to the log file behind them."""

    is_enabled: bool = False
    """transientStorePoolEnable: append into buffers, so that no append ever waits for the page cache."""

    buffers_count: int = 5
    """transientStorePoolSize: buffers of the size of a log file, at least 2. All are allocated at the start."""

    path: str = ""
    """transientStorePoolPath: a directory on hugetlbfs or tmpfs that outlives the process, for buffers that survive it.

    Empty: anonymous memory, which `kill -9` takes with what was not committed yet.
    """

    commit_interval_ms: int = 200
    """commitIntervalCommitLog: how often the buffer is committed when nobody waits and little is in it."""

    commit_pages_min: int = 4
    """commitCommitLogLeastPages: so many 4 KiB pages are committed at once."""

    commit_thorough_interval_ms: int = 200
    """commitCommitLogThoroughInterval: at least this often everything is committed, however little it is."""

    def __post_init__(self) -> None:
        if self.is_enabled and self.buffers_count < 2:
            raise ValueError("transientStorePoolSize must be at least 2: a roll needs one while another is committed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long messages are kept, and what happens when the disk fills up."""

    reserved_hours: int = 72
    """fileReservedTime, hours: a log file whose newest message is older is deleted at the next delete hour."""

    delete_hours: tuple[int, ...] = (4,)
    """deleteWhen: hours of the local day at which expired files are deleted, separated by semicolons."""

    used_percent_max: int = 75
    """diskMaxUsedSpaceRatio: above it expired files are deleted at any hour."""

    forced_percent: int = 85
    """diskSpaceCleanForciblyRatio: above it the oldest files that every group has consumed go, expired or not."""

    full_percent: int = 90
    """diskSpaceWarningLevelRatio: above it sends are refused with code 14, and come back by themselves. Reads go on."""

    is_unconsumed_deleted: bool = False
    """deleteUnconsumed: above the forced level delete what was not consumed, too. Off: refuse sends instead."""

    interval_ms: int = 10_000
    """cleanResourceInterval: how often expired files are looked for; the disk's space is looked at once a second."""


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

    scrub_bytes_per_second: int = 4 << 20
    """scrubBytesPerSecond: how fast all of the log is read again and again to find damage before it is needed.

    100 GB take seven hours, and the event loop gives it less than 1 %. 0 switches it off.
    """

    heal_wait_ms: int = 10_000
    """healWait: how long readers wait before a damaged message until a replica gives it. Then it is passed over.

    A replica that is connected answers within milliseconds; one that is restarted, or whose master is, comes back
    within seconds. Long enough for that, and short enough that a message that no replica has does not stop a queue
    for long. Readers wait once for each message. 0 never waits.
    """

    flush: FlushSettings = field(default_factory=FlushSettings)
    """When bytes go to the disk."""

    pool: PoolSettings = field(default_factory=PoolSettings)
    """The write buffer."""

    retention: RetentionSettings = field(default_factory=RetentionSettings)
    """What is deleted, and when."""

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
