"""The plan of one seeded run: the group's settings, and the faults, one after the other.

There is one fault at a time: before the next one all members have caught up, so that the group's mode covers each.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Final, NamedTuple

from gantry_histories.findings import Loss, Mode


class Fault(StrEnum):
    """A fault that is injected into the group under load."""

    KILL_MASTER = "kill-master"
    RESTART_MASTER = "restart-master"
    """The master is killed and starts again, while no other member has more than it has."""
    KILL_SLAVE = "kill-slave"
    PAUSE_MASTER = "pause-master"
    """SIGSTOP, a promotion, SIGCONT: the old master has missed the end of its term."""
    PAUSE_SLAVE = "pause-slave"
    """SIGSTOP, and after a while SIGCONT: the slave is suspended for a while."""
    PARTITION_MASTER = "partition-master"
    """No packet passes between the master and its slaves, but clients reach it; a promotion."""
    DROP_FROM_MASTER = "drop-from-master"
    """Packets of the master do not reach the slaves, but theirs reach it; a promotion."""
    DROP_TO_MASTER = "drop-to-master"
    """Packets of the slaves do not reach the master, but its packets reach them; a promotion."""
    ISOLATE_MASTER = "isolate-master"
    """No packet passes between the master and its slaves or clients; a promotion."""
    PARTITION_SLAVE = "partition-slave"
    """No packet passes between the master and one slave for a while."""
    POWER_MASTER = "power-master"
    """The machine of the master loses its power; a promotion."""
    POWER_SLAVE = "power-slave"
    """The machine of a slave loses its power, and starts again."""
    KILL_PROMOTED = "kill-promoted"
    """The master is killed, and during the promotion one of the slaves, perhaps the promoted one; both start again."""
    KILL_RETURNING = "kill-returning"
    """An old master returns with records that no other member has, and is killed while, or after, it cuts them off."""
    POWER_RETURNING = "power-returning"
    """The same as above, and its machine loses its power."""
    LAG_AND_KILL = "lag-and-kill"
    """A slave was cut off for a while and is behind when the master is killed; a promotion."""
    WIPE_SLAVE = "wipe-slave"
    """A slave loses its disk, and is killed while it copies everything."""
    SWITCH = "switch"
    """A promotion without any other fault."""


NETWORK_FAULTS: Final = frozenset({
    Fault.PARTITION_MASTER, Fault.DROP_FROM_MASTER, Fault.DROP_TO_MASTER, Fault.ISOLATE_MASTER, Fault.PARTITION_SLAVE,
    Fault.KILL_RETURNING, Fault.POWER_RETURNING, Fault.LAG_AND_KILL,
})  # fmt: skip
"""Faults that need network namespaces, because packets are dropped."""
POWER_FAULTS: Final = frozenset({Fault.POWER_MASTER, Fault.POWER_SLAVE, Fault.POWER_RETURNING})
"""Faults that need a disk for each broker, because its power is cut."""
FAULTS_KEEPING_MASTER: Final = frozenset({
    Fault.RESTART_MASTER, Fault.KILL_SLAVE, Fault.PAUSE_SLAVE, Fault.PARTITION_SLAVE, Fault.POWER_SLAVE,
    Fault.WIPE_SLAVE,
})  # fmt: skip
"""Faults after which the master's log continues on the same member."""
FAULTS_MAX: Final = 3
"""The largest number of faults of one plan."""


class Plan(NamedTuple):
    """The plan of one run."""

    seed: int
    """The seed of the clients, of the moments of faults, and of the choice of members."""

    is_sync: bool
    """Whether a master waits for the ack of a slave."""

    settings: dict[str, str]
    """Keys of `broker.conf` that differ from those of every group."""

    faults: tuple[Fault, ...]
    """The faults, in the order of their injection."""
    has_lease: bool = False
    """Whether the master of an asynchronous group holds a Lease, besides its slaves' grants."""

    has_buffers: bool = False
    """Whether write buffers survive their process."""

    @property
    def mode(self) -> Mode:
        """What may be lost, and whether a master shows what it has acknowledged.

        An asynchronous group loses nothing, either, if its log stays with its master and no write buffer is lost.
        """
        has_buffer = self.settings.get("transientStorePoolEnable") == "true"
        is_lasting = not has_buffer or self.has_buffers or self.settings.get("flushDiskType") == "SYNC_FLUSH"
        is_kept = is_lasting and bool(self.faults) and FAULTS_KEEPING_MASTER.issuperset(self.faults)
        return Mode(Loss.NOTHING if self.is_sync or is_kept else Loss.SUFFIX, shows_acknowledged=is_lasting)

    @property
    def acks_needed(self) -> int:
        return int(self.settings.get("inSyncReplicas", "2")) - 1 if self.is_sync else 0

    @property
    def loses_power(self) -> bool:
        return not POWER_FAULTS.isdisjoint(self.faults)

    def __str__(self) -> str:
        kind = "sync" if self.is_sync else "async with a Lease" if self.has_lease else "async"
        kind += ", buffers that outlive their process" if self.has_buffers else ""
        text = " ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"seed {self.seed}: {kind}, {', '.join(self.faults)}; {text}"


def plan_for(seed: int, *, is_root: bool = True) -> Plan:
    """Return the plan of a seed. Without root no connection is cut and no power is lost."""
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
    choice = [fault for fault in Fault if is_root or fault not in NETWORK_FAULTS | POWER_FAULTS]
    faults = tuple(chance.choice(choice) for _ in range(chance.randint(1, FAULTS_MAX)))
    has_lease = not is_sync and chance.random() < 0.5
    return Plan(seed, is_sync, settings, faults, has_lease=has_lease, has_buffers=has_buffers)
