"""The plan of a history: the group's mode, and faults that overlap in time, drawn from a seed.

Which loss a history may have depends on the mode *and* on the faults, since several members fail at once:

| guarantee | mode | faults | acknowledged messages |
|---|---|---|---|
| ``DURABLE`` | synchronous flush, acks of slaves that have flushed | all | none is lost: two disks have each |
| ``ACKED_ON_DISK`` | asynchronous flush, acks of slaves that have flushed | no bit rot of a log | none is lost |
| ``IN_MEMORY`` | asynchronous flush, acks of slaves that have received | the same | a failover may lose the end |
| ``ASYNC`` | asynchronous replication, by a Lease | the same | the same |
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from gantry_histories.findings import Loss, Mode

from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import (
    AckLevel,
    Failover,
    Flush,
    FlushMode,
    Replication,
    ReplicationMode,
)
from gantry_spec.manifest.quantities import Duration, Size

MEMBERS: Final = 3
WARM_UP_S: Final = 1.0
"""The first fault comes at least this long after the beginning of the load."""
LOAD_MIN_S: Final = 8.0
LOAD_MAX_S: Final = 18.0
"""How long clients send while faults are injected."""
ALL_KINDS_SHARE: Final = 0.2
"""The share of histories that have every required kind of fault."""
KIND_SHARE: Final = 0.55
"""The probability of each kind in the other histories."""


class Fault(StrEnum):
    """A kind of fault that is injected into a group."""

    BIT_ROT = "bit-rot"
    """Bits of files of one member flip, always of the same member: in the log or in the queues."""
    DOUBLE_POWER_CUT = "double-power-cut"
    """Two machines, or all three, lose their power within a moment."""
    PAUSE = "pause"
    """A broker is suspended, and continues."""
    CLOCK_JUMP = "clock-jump"
    """The wall clock of a machine is set forward or backward, by up to two hours."""
    SLOW_DISK = "slow-disk"
    """Each sync of a machine takes up to two seconds longer, for a while."""
    PARTITION = "partition"
    """No packets pass between some machines, in one direction or both, for a while."""
    POWER_CUT_AT_OPERATION = "power-cut-at-operation"
    """A machine loses its power at the n-th operation of its disk, perhaps in a start, and then again."""
    KILL_AT_OPERATION = "kill-at-operation"
    """A broker is killed at the n-th operation of its disk, perhaps in a start, and then again."""
    KILL = "kill"
    """A broker is killed."""
    SUSPEND = "suspend"
    """A machine is suspended: its monotonic clock stands still, its boot clock does not."""
    LOSS = "packet-loss"
    """Packets to and from a machine are lost and delayed, for a while."""
    RESET = "reset"
    """All connections between two places are reset."""
    OPERATOR = "operator-restart"
    """The operator is killed, and another one begins after a while."""


REQUIRED: Final = (
    Fault.BIT_ROT, Fault.DOUBLE_POWER_CUT, Fault.PAUSE, Fault.CLOCK_JUMP, Fault.SLOW_DISK, Fault.PARTITION,
)  # fmt: skip
"""The kinds that a history with all of them has."""


class Guarantee(StrEnum):
    """What must hold for acknowledged messages; see the module's docstring."""

    DURABLE = "durable"
    ACKED_ON_DISK = "acked-on-disk"
    IN_MEMORY = "in-memory"
    ASYNC = "async"


GUARANTEE_WEIGHTS: Final = {
    Guarantee.DURABLE: 6, Guarantee.ACKED_ON_DISK: 2, Guarantee.IN_MEMORY: 1, Guarantee.ASYNC: 1,
}  # fmt: skip


class PlannedFault(NamedTuple):
    """One fault with its time after the beginning of the load."""

    at_s: float
    kind: Fault


class Plan(NamedTuple):
    """The plan of one history."""

    seed: int
    guarantee: Guarantee
    has_buffer: bool
    """Whether brokers append to write buffers in anonymous memory."""
    rotten: int
    """The member whose files rot."""
    load_s: float
    faults: tuple[PlannedFault, ...]

    @property
    def kinds(self) -> frozenset[Fault]:
        return frozenset(fault.kind for fault in self.faults)

    @property
    def is_log_rotting(self) -> bool:
        """Whether bits of the log may flip, and not only those of queues."""
        return self.guarantee is Guarantee.DURABLE

    @property
    def mode(self) -> Mode:
        """What the judges accept as lost."""
        is_kept = self.guarantee in (Guarantee.DURABLE, Guarantee.ACKED_ON_DISK)
        shows_acknowledged = not self.has_buffer or self.guarantee is Guarantee.DURABLE
        return Mode(Loss.NOTHING if is_kept else Loss.SUFFIX, shows_acknowledged=shows_acknowledged)

    @property
    def spec(self) -> Spec:
        """The spec of the group, as in its manifest."""
        is_sync = self.guarantee is not Guarantee.ASYNC
        is_flushed = self.guarantee in (Guarantee.DURABLE, Guarantee.ACKED_ON_DISK)
        return Spec(
            slaves=MEMBERS - 1,
            replication=Replication(
                mode=ReplicationMode.SYNC if is_sync else ReplicationMode.ASYNC,
                ack=AckLevel.FLUSHED if is_flushed else AckLevel.RECEIVED,
                ack_timeout=Duration(1_000),
            ),
            flush=Flush(mode=FlushMode.SYNC if self.guarantee is Guarantee.DURABLE else FlushMode.ASYNC),
            failover=Failover(after=Duration(1_500), max_data_loss_bytes=Size(0 if is_sync else 64 << 20)),
            broker=self.broker_settings,
        )

    @property
    def broker_settings(self) -> dict[str, str]:
        """Additional settings of every broker: small files, so that a short load rolls them."""
        settings = {
            "mappedFileSizeCommitLog": str(128 << 10),
            "mappedFileSizeConsumeQueue": str(20 * 200),
            "maxMessageSize": str(32 << 10),
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            "flushConsumerOffsetInterval": "500",
            "waitTimeMillsInSendQueue": "60000",
            "fastListenPort": "-1",
        }
        if self.has_buffer:
            settings |= {"transientStorePoolEnable": "true", "transientStorePoolSize": "3"}
        return settings

    def __str__(self) -> str:
        faults = ", ".join(f"{fault.at_s:.1f} {fault.kind}" for fault in self.faults)
        buffer = ", with write buffers" if self.has_buffer else ""
        return f"seed {self.seed}: {self.guarantee}{buffer}, load for {self.load_s:.1f} s; {faults}"


def plan_for(seed: int, *, kinds: Sequence[Fault] = tuple(Fault)) -> Plan:
    """Return the plan of a seed, with faults of these kinds only."""
    chance = random.Random(f"{seed}/plan of mixed faults")
    guarantee = chance.choices(list(GUARANTEE_WEIGHTS), list(GUARANTEE_WEIGHTS.values()))[0]
    load_s = chance.uniform(LOAD_MIN_S, LOAD_MAX_S)
    has_all = chance.random() < ALL_KINDS_SHARE
    drawn = [kind for kind in Fault if (has_all and kind in REQUIRED) or chance.random() < KIND_SHARE]
    faults = [
        PlannedFault(chance.uniform(WARM_UP_S, load_s), kind)
        for kind in drawn
        for _ in range(chance.choice([1, 1, 2]))
        if kind in kinds
    ]
    return Plan(
        seed=seed, guarantee=guarantee, has_buffer=chance.random() < 0.25, rotten=chance.randint(1, MEMBERS),
        load_s=load_s, faults=tuple(sorted(faults)),
    )  # fmt: skip
