"""The modes of a store, the faults that end its process, and what each fault may destroy in each mode."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Final, NamedTuple

from gantry_broker.store.settings import FlushSettings, PoolSettings, StoreSettings
from gantry_testing.faulty_volume import FaultyVolume

SMALL: Final = StoreSettings(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=10 * 20,
    consume_queue_reserve_bytes=5 * 20,
    max_hash_slot_num=7,
    max_index_num=40,
    index_reserve_bytes=200,
    is_preallocating=False,
)
"""Settings with which every file rolls after a handful of messages."""


class Medium(Enum):
    """The place of the write buffers. The value is ``transientStorePoolPath``, except for ``NONE``: no buffers."""

    NONE = "none"
    CRASH_SAFE = "/buffers"
    MOVED = "/other-buffers"
    """Another directory than that of ``CRASH_SAFE``, with its own volume."""

    ANONYMOUS = ""

    @property
    def survives_kill(self) -> bool:
        """Whether what was written survives the process."""
        return self is not Medium.ANONYMOUS

    def __repr__(self) -> str:
        return f"Medium.{self.name}"


class Mode(NamedTuple):
    """The settings with which a store is opened."""

    medium: Medium = Medium.NONE
    is_sync: bool = False
    """Whether a message is acknowledged only when it is flushed."""

    is_ahead: bool = False
    """Whether the next log file and its buffer are preallocated."""

    buffers: int = 3
    """The number of write buffers, if there are any."""

    is_waiting: bool = False
    """Whether the store is that of a master that waits for slaves."""

    def settings(self) -> StoreSettings:
        """Return the settings of the store in this mode."""
        pool = PoolSettings()
        if self.medium is not Medium.NONE:
            pool = PoolSettings(is_enabled=True, buffers_count=self.buffers, path=self.medium.value)
        flush = FlushSettings(is_sync=self.is_sync)
        return dataclasses.replace(SMALL, pool=pool, flush=flush, is_preallocating=self.is_ahead)

    def __str__(self) -> str:
        return f"{'sync' if self.is_sync else 'async'}, {self.medium.name.lower().replace('_', '-')}"


class Fault(Enum):
    """The ways in which a process ends."""

    KILL = "kill"
    KILL_COPYING = "kill while an append is being copied into its buffer"
    KILL_BUFFERS_GONE = "kill, and the memory of the buffers is gone, too"
    KILL_COLD = "kill, and pages that a failed sync has left clean are dropped"
    POWER = "power loss"
    POWER_TORN = "power loss after some of the unsynced sectors were written"
    POWER_HOLE = "power loss after all unsynced sectors but some in the middle of the log were written"

    @property
    def is_power(self) -> bool:
        return self in (Fault.POWER, Fault.POWER_TORN, Fault.POWER_HOLE)

    def __repr__(self) -> str:
        return f"Fault.{self.name}"


class Positions(NamedTuple):
    """The positions of a log when its process ended."""

    wrote: int
    committed: int
    flushed: int


def guaranteed_end(mode: Mode, fault: Fault, at: Positions) -> int:
    """Return the offset before which nothing may be missing after ``fault``, of a process with the positions ``at``."""
    if fault in (Fault.KILL, Fault.KILL_COPYING):
        return at.wrote if mode.medium.survives_kill else at.committed
    if fault is Fault.KILL_BUFFERS_GONE:
        return at.committed
    return at.flushed


def covers_shown(mode: Mode, fault: Fault) -> bool:
    """Return whether messages that a consumer has read must survive ``fault``."""
    return mode.is_sync or fault in (Fault.KILL, Fault.KILL_COPYING)


def covers_acknowledged(mode: Mode, fault: Fault) -> bool:
    """Return whether acknowledged messages must survive ``fault``."""
    return mode.is_sync or (covers_shown(mode, fault) and mode.medium.survives_kill)


def new_volumes() -> dict[str, FaultyVolume]:
    """Create the memory volumes of one machine, by path."""
    return {
        Medium.CRASH_SAFE.value: FaultyVolume(),
        Medium.MOVED.value: FaultyVolume(),
        Medium.ANONYMOUS.value: FaultyVolume(is_crash_safe=False),
    }
