"""What a status page says: who publishes, and one publication. Values only; their bytes are in ``layout``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import IntEnum
from typing import final


class Phase(IntEnum):
    """Where a broker is in its life."""

    UNKNOWN = 0
    STARTING = 1
    """The store is ours; nothing has been read."""
    RECOVERING = 2
    """Log, queues and index are read; `recovery_*` says how far."""
    SERVING = 3
    DRAINING = 4
    """Stopping: out of the routes, then the ports, then everything committed and flushed."""
    STOPPED = 5
    """Ended cleanly. The last word."""
    FAILED = 6
    """Could not go on, or could not stop cleanly; `last_error` says why. The last word."""

    @property
    def is_final(self) -> bool:
        """Whether nothing will be published after it."""
        return self in (Phase.STOPPED, Phase.FAILED)


class Role(IntEnum):
    """What a broker is in its group."""

    UNKNOWN = 0
    UNASSIGNED = 1
    MASTER = 2
    SLAVE = 3


class RefusalReason(IntEnum):
    """Why a broker refuses requests that are right in themselves. The number is the place of its counter."""

    QUEUE_TIMEOUT = 0
    """Sends arrive faster than they are stored, and have done so for a while: `[TIMEOUT_CLEAN_QUEUE]`."""
    PAGE_CACHE_BUSY = 1
    """An append took longer than `osPageCacheBusyTimeOutMills`: `[PCBUSY_CLEAN_QUEUE]`."""
    WAITING_FULL = 2
    """`sendThreadPoolQueueCapacity` sends wait for the disk or a slave: `[OVERLOAD]`."""
    HELD_PULLS_FULL = 3
    """As many long polls are held as may be: `[OVERLOAD]`."""
    NO_WRITE_BUFFER = 4
    """The write buffer pool is used up: `[REJECTREQUEST]`."""
    DISK_FULL = 5
    DISK_TOO_SLOW = 6
    """The next file of the log could not be made in time."""
    LOG_READ_ONLY = 7
    """A flush failed, or the broker stops."""
    NOT_MASTER = 8
    """A slave, or a master that hands over."""
    DRAINING = 9
    """A master that takes nothing more from clients."""
    NOT_SERVING = 10
    """A broker without a role."""
    STORE_FAILED = 11
    """An unexpected error of the store; the log has its traceback."""
    QUESTIONS_FULL = 12
    """As many requests to consumers wait for their answers as may be: `[OVERLOAD]`."""
    REBUILDING = 13
    """A consume queue or the index is being rebuilt from the log."""
    UNKNOWN_REQUEST = 14
    """A request code that this broker, or this port of it, does not serve: code 3."""
    PROPERTY_FILTER = 15
    """A filter over properties while `enablePropertyFilter` is false."""

    @property
    def label(self) -> str:
        """Its name in logs and metrics."""
        return self.name.lower()


class Medium(IntEnum):
    """Where the write buffer lies."""

    UNKNOWN = 0
    NONE = 1
    ANONYMOUS = 2
    TMPFS = 3
    HUGETLBFS = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who publishes: what stays the same from the start of a broker to its end."""

    boot_id: uuid.UUID
    """Random, of this start. Another one means that the broker was started again."""
    machine_boot_id: uuid.UUID | None
    """The kernel's. With another one, boot-time clocks cannot be compared."""
    started_wall_ms: int
    started_boottime_ns: int
    pid: int
    """In the broker's own pid namespace."""
    broker_name: str
    version: str
    """The broker's, not the page's."""
    minor: int
    """The page's minor version, as the writer knew it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveStatus:
    """One slave as its master sees it."""

    slave_id: int
    received: int | None
    flushed: int | None
    last_seen_boottime_ns: int | None


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
    """One publication. A number that is not known is None."""

    published_boottime_ns: int
    """CLOCK_BOOTTIME of the moment at which the event loop looked: goes on while the machine sleeps."""
    published_wall_ms: int
    phase: Phase
    role: Role = Role.UNKNOWN
    wrote: int | None = None
    committed: int | None = None
    flushed: int | None = None
    confirmed: int | None = None
    min_physical: int | None = None
    epoch: int | None = None
    generation: int | None = None
    store_uuid: uuid.UUID | None = None
    pool_medium: Medium = Medium.UNKNOWN
    pool_buffers_total: int | None = None
    pool_buffers_free: int | None = None
    is_crash_safe: bool = False
    """Whether what is only in the write buffer survives `kill -9`."""
    disk_total_bytes: int | None = None
    disk_used_bytes: int | None = None
    is_refusing_sends: bool = False
    recovery_done_bytes: int | None = None
    recovery_total_bytes: int | None = None
    connections: int | None = None
    queues: int | None = None
    parked_sends: int | None = None
    """Sends that wait for the disk or a slave to be answered."""
    last_error: str = ""
    last_error_wall_ms: int | None = None
    slaves: tuple[SlaveStatus, ...] = ()
    """The first 16."""
    certificate_ends_wall_ms: int | None = None
    """When the first of the broker's TLS certificates ends; since layout 1.1."""
    queues_rebuilding: int | None = None
    """Consume queues that are being rebuilt from the log now, since layout 1.2; None for none as well."""
    queue_units_rebuilt: int | None = None
    """Units of consume queues that were found wrong and rebuilt since the start."""
    index_rebuilds: int | None = None
    """How often the key index was found wrong, or without room, and rebuilt since the start."""
    refused_requests: tuple[int, ...] = ()
    """Since the start, at the place of each `RefusalReason`; since layout 1.2. Empty: none, or not known."""
    damaged_records: int | None = None
    """Stored records that are known to be damaged now; this and what follows since layout 1.2."""
    damaged_bytes: int | None = None
    damaged_records_found: int | None = None
    """Since the start, as the next two."""
    healed_records: int | None = None
    lost_records: int | None = None
    """Damaged ones that no replica could give."""
    scrub_position: int | None = None
    """The log is scrubbed up to there in this pass."""
    scrubbed_bytes: int | None = None
    """Since the start."""
    scrub_pass_ended_wall_ms: int | None = None
    """When the scrubber came to the log's end last; 0 before the first time."""
    log_missing_bytes: int | None = None
    """Of the log, durable once and gone, and not accepted as lost; None for nothing; since layout 1.2."""
    log_accepted_loss_bytes: int | None = None
    """Of the log, accepted as lost by an operator; None for nothing; since layout 1.2."""
    log_missing_ranges: tuple[LogRange, ...] = ()
    """The first four of the ranges that ``log_missing_bytes`` adds up; since layout 1.2."""

    @property
    def readable(self) -> LogRange | None:
        """What of the log may be read: ``[oldest, min(confirmed, committed))``; None until the broker knows it."""
        if self.confirmed is None or self.committed is None or self.min_physical is None:
            return None
        end = readable_end(self.confirmed, self.committed)
        return LogRange(min(self.min_physical, end), end)


def readable_end(confirmed: int, committed: int) -> int:
    """Return up to where a reader of the log's files may read: nothing that a covered fault can take back."""
    return min(confirmed, committed)
