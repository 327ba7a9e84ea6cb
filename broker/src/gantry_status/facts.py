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
