"""The modes of a store, the faults that end its process, and which of them may take what from whom."""

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
"""Everything rolls after a handful of messages."""


class Medium(Enum):
    """Where the write buffers are. The value is ``transientStorePoolPath``."""

    NONE = "none"
    CRASH_SAFE = "/buffers"
    MOVED = "/other-buffers"
    ANONYMOUS = ""

    @property
    def survives_kill(self) -> bool:
        """Whether what was written survives the process."""
        return self is not Medium.ANONYMOUS

    def __repr__(self) -> str:
        return f"Medium.{self.name}"


class Mode(NamedTuple):
    """How a store is opened."""

    medium: Medium = Medium.NONE
    is_sync: bool = False
    is_ahead: bool = False
    """Whether the next log file and its buffer are made ahead of the roll."""

    buffers: int = 3
    is_waiting: bool = False
    """Whether it is a master that waits for slaves."""

    def settings(self) -> StoreSettings:
        """The store's settings."""
        pool = PoolSettings()
        if self.medium is not Medium.NONE:
            pool = PoolSettings(is_enabled=True, buffers_count=self.buffers, path=self.medium.value)
        flush = FlushSettings(is_sync=self.is_sync)
        return dataclasses.replace(SMALL, pool=pool, flush=flush, is_preallocating=self.is_ahead)

    def __str__(self) -> str:
        return f"{'sync' if self.is_sync else 'async'}, {self.medium.name.lower().replace('_', '-')}"


class Fault(Enum):
    """How a process ends."""

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
    """Where a log was when its process ended."""

    wrote: int
    committed: int
    flushed: int


def floor(mode: Mode, fault: Fault, at: Positions) -> int:
    """Before which offset nothing may be missing after ``fault``: the table of promises."""
    if fault in (Fault.KILL, Fault.KILL_COPYING):
        return at.wrote if mode.medium.survives_kill else at.committed
    if fault is Fault.KILL_BUFFERS_GONE:
        return at.committed
    return at.flushed


def covers_shown(mode: Mode, fault: Fault) -> bool:
    """Whether nothing that a consumer has seen may vanish."""
    return mode.is_sync or fault in (Fault.KILL, Fault.KILL_COPYING)


def covers_acknowledged(mode: Mode, fault: Fault) -> bool:
    """Whether no acknowledged message may be lost."""
    return mode.is_sync or (covers_shown(mode, fault) and mode.medium.survives_kill)


def new_volumes() -> dict[str, FaultyVolume]:
    """The memory of one machine, by path."""
    return {
        Medium.CRASH_SAFE.value: FaultyVolume(),
        Medium.MOVED.value: FaultyVolume(),
        Medium.ANONYMOUS.value: FaultyVolume(is_crash_safe=False),
    }
