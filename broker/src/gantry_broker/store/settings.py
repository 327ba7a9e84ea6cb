"""Settings of the store. The defaults fit RocketMQ's files.

Docstrings of settings that a ``broker.conf`` may have begin with the key, which is RocketMQ's where it has one. The
sizes of log and queue files are taken from the files if there are files; a setting that contradicts them prevents the
start, with both numbers in the error (``existing_sizes`` has the exception). An index of other sizes is rebuilt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PAGE_BYTES: Final = 4096
"""The size of the page that RocketMQ's settings count in."""
CONSUME_UNIT_BYTES: Final = 20
"""The size of a queue unit."""
INDEX_HEADER_BYTES: Final = 40
"""The size of the header of an index file."""
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's default of `messageDelayLevel`: the delays of levels 1 to 18."""
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Parse RocketMQ's notation of delay levels into milliseconds. Raises ValueError for anything else."""
    levels = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not (word[:-1].isascii() and word[:-1].isdigit()):
            raise ValueError(f"{word!r} is not a delay level: expected a number and one of s, m, h, d, such as 10s")
        levels.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    return tuple(levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """When the log is flushed from the page cache to the disk."""

    is_sync: bool = False
    """flushDiskType: SYNC_FLUSH answers a send when it is on the disk, ASYNC_FLUSH before."""

    is_timed: bool = True
    """flushCommitLogTimed: flush by interval only. False: flush as soon as enough pages are dirty, too."""

    flush_interval_ms: int = 500
    """flushIntervalCommitLog. The interval of the flush thread. Limits what a power loss destroys under load."""

    flush_pages_min: int = 4
    """flushCommitLogLeastPages. Fewer dirty 4 KiB pages than this wait for the thorough interval."""

    flush_thorough_interval_ms: int = 10_000
    """flushCommitLogThoroughInterval. At least this often everything is flushed, even a single page."""

    recovery_point_interval_ms: int = 10_000
    """How often queues and index are flushed, too, and a recovery point is written, from which a recovery reads."""

    checkpoint_interval_ms: int = 1_000
    """How often the checkpoint file is written, always after the data that it describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The write buffers: memory that takes the appends and is committed to the log file later."""

    is_enabled: bool = False
    """transientStorePoolEnable: append into buffers, so that no append ever waits for the page cache."""

    buffers_count: int = 5
    """transientStorePoolSize: buffers of the size of a log file, at least 2. All are allocated at the start."""

    path: str = ""
    """transientStorePoolPath: a directory on hugetlbfs or tmpfs, for write buffers that survive the process.

    Empty: anonymous memory; `kill -9` destroys what was not committed yet.
    """

    commit_interval_ms: int = 200
    """commitIntervalCommitLog: how often the commit thread checks whether a commit is due, if nothing wakes it."""

    commit_pages_min: int = 4
    """commitCommitLogLeastPages: as many uncommitted 4 KiB pages start a commit; a busy log is committed about every
    10 ms."""

    commit_thorough_interval_ms: int = 200
    """commitCommitLogThoroughInterval: at least this often everything is committed, even a single page."""

    def __post_init__(self) -> None:
        if self.is_enabled and self.buffers_count < 2:
            raise ValueError(
                f"transientStorePoolSize is {self.buffers_count}, but must be at least 2: a roll needs one buffer "
                "while another is committed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long messages are kept, and what is done when the disk fills up."""

    reserved_hours: int = 72
    """fileReservedTime, hours: a log file whose newest message is older is deleted at the next delete hour."""

    delete_hours: tuple[int, ...] = (4,)
    """deleteWhen: hours of the local day at which expired files are deleted, separated by semicolons."""

    used_percent_max: int = 75
    """diskMaxUsedSpaceRatio: above it expired files are deleted at any hour."""

    forced_percent: int = 85
    """diskSpaceCleanForciblyRatio: above it the oldest files consumed by all groups are deleted, expired or not."""

    full_percent: int = 90
    """diskSpaceWarningLevelRatio: above it sends are refused with code 14 until there is space. Reads continue."""

    is_unconsumed_deleted: bool = False
    """deleteUnconsumed: above the forced level delete unconsumed messages, too. Off: refuse sends instead."""

    interval_ms: int = 10_000
    """cleanResourceInterval: how often the store looks for expired files; disk space is checked once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Sizes, switches and intervals of one store."""

    mapped_file_size_commit_log: int = 1 << 30
    """mappedFileSizeCommitLog, bytes. It must be equal on a slave and its master; existing files decide."""

    mapped_file_size_consume_queue: int = 300_000 * CONSUME_UNIT_BYTES
    """mappedFileSizeConsumeQueue, bytes, a multiple of 20."""

    consume_queue_reserve_bytes: int = 64 * 1024
    """How much of a consume queue file is allocated at a time. So thousands of idle queues need little disk space."""

    is_index_enabled: bool = True
    """messageIndexEnable. Off: no query by key."""

    max_hash_slot_num: int = 5_000_000
    """maxHashSlotNum, hash slots of an index file."""

    max_index_num: int = 20_000_000
    """maxIndexNum, entries of an index file."""

    index_reserve_bytes: int = 1 << 20
    """How many bytes of an index file's entries are allocated at a time."""

    is_preallocating: bool = True
    """Create the next log file in a helper thread when the current one is half full, so that a roll costs nothing."""

    space_retry_interval_ms: int = 1_000
    """How long sends are refused after the disk was full, before the next attempt to create a file."""

    delay_levels_ms: tuple[int, ...] = field(default_factory=lambda: parse_delay_levels(DEFAULT_DELAY_LEVELS))
    """messageDelayLevel: the delays of the levels, by default those of RocketMQ (1s 5s 10s ... 2h). Recovery computes
    delivery times of delayed messages with it."""

    scrub_bytes_per_second: int = 4 << 20
    """scrubBytesPerSecond: how fast the whole log is read, again and again, to find damage before a message is needed.

    100 GB take seven hours, and the event loop gives it less than 1 %. 0 switches it off.
    """

    heal_wait_ms: int = 10_000
    """healWait: how long readers wait at a damaged message for a replica to heal it. Then it is skipped.

    A connected replica answers within milliseconds; one that restarts, or whose master restarts, is back within
    seconds. The default is long enough for that, and short enough that a message that no replica has does not stop a
    queue for long. Readers wait once for each message. 0 never waits.
    """

    flush: FlushSettings = field(default_factory=FlushSettings)
    """When the log is flushed."""

    pool: PoolSettings = field(default_factory=PoolSettings)
    """The write buffers."""

    retention: RetentionSettings = field(default_factory=RetentionSettings)
    """How long messages are kept."""

    def __post_init__(self) -> None:
        if self.mapped_file_size_consume_queue % CONSUME_UNIT_BYTES:
            raise ValueError(
                f"mappedFileSizeConsumeQueue is {self.mapped_file_size_consume_queue}, but must be a multiple of "
                f"{CONSUME_UNIT_BYTES}, the size of an entry"
            )
        if self.mapped_file_size_commit_log < PAGE_BYTES:
            raise ValueError(
                f"mappedFileSizeCommitLog is {self.mapped_file_size_commit_log}, but must be at least {PAGE_BYTES}"
            )
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise ValueError(
                f"maxHashSlotNum is {self.max_hash_slot_num} and maxIndexNum {self.max_index_num}, but they must be at "
                "least 1 and 2"
            )

    @property
    def index_file_size(self) -> int:
        return INDEX_HEADER_BYTES + self.max_hash_slot_num * 4 + self.max_index_num * 20
