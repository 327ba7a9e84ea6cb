"""What one seeded run does: the group's settings, and which faults come over it, one after the other.

One fault at a time: before the next one everybody has caught up, so that each is one that the group's mode covers.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Final, NamedTuple

from gantry_histories.findings import Loss, Mode


class Fault(StrEnum):
    """What happens to the group under load."""

    KILL_MASTER = "kill-master"
    RESTART_MASTER = "restart-master"
    """It is killed, starts again, and nobody has anything that it has not."""
    KILL_SLAVE = "kill-slave"
    PAUSE_MASTER = "pause-master"
    """SIGSTOP, a promotion, SIGCONT: a master that has missed its own end."""
    PAUSE_SLAVE = "pause-slave"
    PART_MASTER = "part-master"
    """No byte between master and slaves, but its clients reach it; a promotion."""
    MUTE_MASTER = "mute-master"
    """What the master says comes to no slave; what slaves say comes to it. A promotion."""
    DEAFEN_MASTER = "deafen-master"
    """The other way round."""
    ISOLATE_MASTER = "isolate-master"
    """It hears nobody, clients neither; a promotion."""
    PART_SLAVE = "part-slave"
    POWER_MASTER = "power-master"
    """The machine of the master loses its power; a promotion."""
    POWER_SLAVE = "power-slave"
    KILL_PROMOTED = "kill-promoted"
    """The master is killed, and so is the one that is just being promoted; both start again."""
    KILL_RETURNING = "kill-returning"
    """A master returns with a tail of its own, and is killed while it cuts that or just after."""
    POWER_RETURNING = "power-returning"
    """The same, and its machine loses its power."""
    LAG_AND_KILL = "lag-and-kill"
    """A slave was cut off for a while and is behind when the master is killed; a promotion."""
    WIPE_SLAVE = "wipe-slave"
    """A slave loses its disk, and is killed while it copies everything."""
    SWITCH = "switch"
    """A promotion while nothing is wrong."""


CUTS: Final = frozenset({
    Fault.PART_MASTER, Fault.MUTE_MASTER, Fault.DEAFEN_MASTER, Fault.ISOLATE_MASTER, Fault.PART_SLAVE,
    Fault.KILL_RETURNING, Fault.POWER_RETURNING, Fault.LAG_AND_KILL,
})  # fmt: skip
POWER: Final = frozenset({Fault.POWER_MASTER, Fault.POWER_SLAVE, Fault.POWER_RETURNING})
KEEPING: Final = frozenset({
    Fault.RESTART_MASTER, Fault.KILL_SLAVE, Fault.PAUSE_SLAVE, Fault.PART_SLAVE, Fault.POWER_SLAVE, Fault.WIPE_SLAVE,
})  # fmt: skip
"""After these the master's log goes on where it was."""
FAULTS_MAX: Final = 3


class Plan(NamedTuple):
    """One run."""

    seed: int
    is_sync: bool
    settings: dict[str, str]
    faults: tuple[Fault, ...]
    has_lease: bool = False
    """Whether the master of an asynchronous group holds a Lease, besides its slaves' grants."""

    has_buffers: bool = False
    """Whether write buffers outlive their process."""

    @property
    def mode(self) -> Mode:
        """What may be lost: of an asynchronous group nothing, either, as long as its log stays with its master."""
        has_buffer = self.settings.get("transientStorePoolEnable") == "true"
        is_lasting = not has_buffer or self.has_buffers or self.settings.get("flushDiskType") == "SYNC_FLUSH"
        is_kept = is_lasting and bool(self.faults) and KEEPING.issuperset(self.faults)
        return Mode(Loss.NOTHING if self.is_sync or is_kept else Loss.SUFFIX)

    @property
    def acks_needed(self) -> int:
        return 1 if self.is_sync else 0

    @property
    def loses_power(self) -> bool:
        return not POWER.isdisjoint(self.faults)

    def __str__(self) -> str:
        kind = "sync" if self.is_sync else "async with a Lease" if self.has_lease else "async"
        kind += ", buffers that outlive their process" if self.has_buffers else ""
        told = " ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"seed {self.seed}: {kind}, {', '.join(self.faults)}; {told}"


def plan_for(seed: int, *, is_root: bool = True) -> Plan:
    """The plan of a seed. Without root nothing is cut and no power is lost."""
    chance = random.Random(f"{seed}/plan")
    is_sync = chance.random() < 0.7
    settings = {
        "brokerRole": "SYNC_MASTER" if is_sync else "ASYNC_MASTER",
        "flushDiskType": chance.choice(["ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"]),
        "transientStorePoolEnable": chance.choice(["false", "true", "true"]),
    }
    has_buffers = settings["transientStorePoolEnable"] == "true" and chance.random() < 0.5
    if is_sync and chance.random() < 0.3:
        settings["haAckLevel"] = "FLUSHED"
    if not is_sync:
        settings["haGrant"] = "1000"
    choice = [fault for fault in Fault if is_root or fault not in CUTS | POWER]
    faults = tuple(chance.choice(choice) for _ in range(chance.randint(1, FAULTS_MAX)))
    has_lease = not is_sync and chance.random() < 0.5
    return Plan(seed, is_sync, settings, faults, has_lease=has_lease, has_buffers=has_buffers)
