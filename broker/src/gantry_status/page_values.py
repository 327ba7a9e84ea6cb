"""The values of a status page: its origin and one publication. Their encoding is in ``layout``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import IntEnum
from typing import final


class Phase(IntEnum):
    """The phase in the life of a broker."""

    UNKNOWN = 0
    """A phase that only a later version knows."""

    STARTING = 1
    """The store is locked; nothing has been read yet."""
    RECOVERING = 2
    """Log, queues and index are being read; `recovery_*` has the progress."""
    SERVING = 3
    """The broker answers requests, as far as its role allows."""

    STOPPING = 4
    """The broker is stopping: it withdraws its routes, closes its ports, then commits and flushes everything."""
    STOPPED = 5
    """The broker has stopped cleanly. This phase is final."""
    FAILED = 6
    """The broker failed, or could not stop cleanly; `last_error` has the reason. This phase is final."""

    @property
    def is_final(self) -> bool:
        """Return whether nothing is published after this phase."""
        return self in (Phase.STOPPED, Phase.FAILED)


class Role(IntEnum):
    """The role of a broker in its shard."""

    UNKNOWN = 0
    UNASSIGNED = 1
    """The broker has no role, or compares its log, or waits until the loss of log data is accepted."""
    MASTER = 2
    SLAVE = 3


class RefusalReason(IntEnum):
    """The reason why a broker refuses a valid request. The number is the position of its counter."""

    QUEUE_TIMEOUT = 0
    """Sends have arrived faster than they are stored for some time: `[TIMEOUT_CLEAN_QUEUE]`."""
    PAGE_CACHE_BUSY = 1
    """An append took longer than `osPageCacheBusyTimeOutMills`: `[PCBUSY_CLEAN_QUEUE]`."""
    WAITING_FULL = 2
    """`sendThreadPoolQueueCapacity` sends wait for the disk or a slave: `[OVERLOAD]`."""
    HELD_PULLS_FULL = 3
    """The maximum number of pulls of the broker, or of one connection, is held: `[OVERLOAD]`."""
    NO_WRITE_BUFFER = 4
    """The write buffer pool is used up: `[REJECTREQUEST]`."""
    DISK_FULL = 5
    """The disk has no room, or only the space that is kept for queues and tables."""

    DISK_TOO_SLOW = 6
    """The next file of the log could not be created in time."""
    LOG_READ_ONLY = 7
    """A write or a flush of the log failed, or the broker is stopping."""
    NOT_MASTER = 8
    """The broker is a slave, or lacks log data and waits until the loss is accepted."""
    DRAINING = 9
    """The broker is a master that is drained or withdrawn, for a switchover, a restart, a fence or scaling in."""
    NOT_SERVING = 10
    """The broker has no role, or is starting, comparing its log, or changing its role or its log."""
    STORE_FAILED = 11
    """The store raised an unexpected error; the broker's log has its traceback."""
    CONSUMER_CALLS_FULL = 12
    """The maximum number of requests to consumers wait for their answers: `[OVERLOAD]`."""
    REBUILDING = 13
    """A consume queue or the index is being rebuilt from the log."""
    UNKNOWN_REQUEST = 14
    """This broker, or this port of it, does not support the request code: code 3."""
    PROPERTY_FILTER = 15
    """A subscription filters by properties while `enablePropertyFilter` is false."""
    OUT_OF_DESCRIPTORS = 16
    """No file of the store can be opened, because the limit of open files is reached."""

    @property
    def label(self) -> str:
        """Return the name used in logs and metrics."""
        return self.name.lower()


class Medium(IntEnum):
    """The memory that holds the write buffer."""

    UNKNOWN = 0
    NONE = 1
    """There is no write buffer."""

    ANONYMOUS = 2
    """Memory of the process, which is lost with it."""

    TMPFS = 3
    HUGETLBFS = 4


class HotPath(IntEnum):
    """Which implementation of the functions that run for each message a broker uses."""

    UNKNOWN = 0
    PYTHON = 1
    COMPILED = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The publisher of a page: the values that stay the same from the start of a broker to its end."""

    boot_id: uuid.UUID
    """A random id of this start. It changes when the broker is started again."""
    machine_boot_id: uuid.UUID | None
    """The kernel's boot id. Boot-time clocks of different boots cannot be compared."""
    started_wall_ms: int
    started_boottime_ns: int
    """When the broker started, by CLOCK_BOOTTIME."""

    pid: int
    """The process id in the broker's own pid namespace."""
    broker_name: str
    version: str
    """The version of the broker, not of the page."""
    minor: int
    """The page's minor version that the writer implements."""
    hot_path: HotPath = HotPath.UNKNOWN
    """The implementation that the broker uses; unknown for a writer of a minor version before 3."""

    hot_path_reason: str = ""
    """Why the broker uses the Python path; empty for the compiled one."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveStatus:
    """One slave as its master sees it."""

    slave_id: int
    """The slave's broker id; negative for a slave of RocketMQ's."""

    received: int | None
    """The end of what the slave has received."""

    flushed: int | None
    """The end of what the slave has flushed to its disk."""

    last_seen_boottime_ns: int | None
    """When the slave's last ack arrived, by CLOCK_BOOTTIME."""


@final
@dataclass(frozen=True, slots=True)
class LogRange:
    """The bytes ``[start, end)`` of the log."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One publication. An unknown number is None."""

    published_boottime_ns: int
    """The CLOCK_BOOTTIME at which the event loop took the snapshot; this clock also advances during sleep."""
    published_wall_ms: int
    phase: Phase
    role: Role = Role.UNKNOWN
    wrote: int | None = None
    """The end of the log: all bytes up to here are in the write buffer or in the page cache."""

    committed: int | None = None
    """The end of the bytes that are in the page cache of the log's files."""

    flushed: int | None = None
    """The end of the bytes that are on the disk."""

    confirmed: int | None = None
    """The offset up to which consumers may read."""

    min_physical: int | None = None
    """The first offset that the log still has."""

    epoch: int | None = None
    """The newest epoch of the log."""

    generation: int | None = None
    """How often a broker has started on this store."""
    store_uuid: uuid.UUID | None = None
    pool_medium: Medium = Medium.UNKNOWN
    """The memory that holds the write buffer."""

    pool_buffers_total: int | None = None
    pool_buffers_free: int | None = None
    """How many write buffers can be borrowed now."""

    is_crash_safe: bool = False
    """Whether data that is only in the write buffer survives `kill -9`."""
    disk_total_bytes: int | None = None
    disk_used_bytes: int | None = None
    is_refusing_sends: bool = False
    """Whether sends are refused for lack of disk space."""

    recovery_done_bytes: int | None = None
    """How far recovery has read the log, from the log's start."""

    recovery_total_bytes: int | None = None
    """How far recovery has to read the log, from the log's start."""

    connections: int | None = None
    queues: int | None = None
    held_sends: int | None = None
    """The number of sends whose answers wait for the disk or a slave."""
    last_error: str = ""
    """The newest error in the broker's log, shortened; empty without one."""

    last_error_wall_ms: int | None = None
    slaves: tuple[SlaveStatus, ...] = ()
    """The first 16 slaves of a master."""
    certificate_ends_wall_ms: int | None = None
    """When the first of the broker's TLS certificates expires; since layout 1.1."""
    queues_rebuilding: int | None = None
    """The number of consume queues being rebuilt from the log now; None also for zero; since layout 1.2."""
    queue_units_rebuilt: int | None = None
    """The number of wrong units of consume queues that were rebuilt since the start; None also for zero."""
    index_rebuilds: int | None = None
    """How often the key index was rebuilt since the start, because it was wrong or full; None also for zero."""
    refused_requests: tuple[int, ...] = ()
    """Refused requests since the start, at the position of each `RefusalReason`; since layout 1.2. Empty: none, or
    unknown."""
    damaged_records: int | None = None
    """The number of stored records known to be damaged now; this and the following fields since layout 1.2."""
    damaged_bytes: int | None = None
    damaged_records_found: int | None = None
    """The number of damaged records found since the start."""
    healed_records: int | None = None
    """The number of damaged records that were restored from a replica since the start."""
    lost_records: int | None = None
    """The number of damaged records that no replica could restore since the start."""
    scrub_position: int | None = None
    """The offset up to which the scrubber has come in its present reading of the log."""
    scrubbed_bytes: int | None = None
    """The number of bytes scrubbed since the start."""
    scrub_pass_ended_wall_ms: int | None = None
    """When the scrubber last reached the log's end; 0 before the first time."""
    log_missing_bytes: int | None = None
    """Bytes of the log that were durable, are missing, and are not accepted as lost; None also for zero; since layout
    1.2."""
    log_accepted_loss_bytes: int | None = None
    """Bytes of the log whose loss a person has accepted; None also for zero; since layout 1.2."""
    log_missing_ranges: tuple[LogRange, ...] = ()
    """The first four of the ranges that ``log_missing_bytes`` sums up; since layout 1.2."""

    @property
    def readable(self) -> LogRange | None:
        """The readable part of the log, ``[oldest, min(confirmed, committed))``; None until the broker knows it."""
        if self.confirmed is None or self.committed is None or self.min_physical is None:
            return None
        end = readable_end(self.confirmed, self.committed)
        return LogRange(min(self.min_physical, end), end)


def readable_end(confirmed: int, committed: int) -> int:
    """Return the end of the readable part of a log's files. No fault that the mode covers removes data before it."""
    return min(confirmed, committed)
