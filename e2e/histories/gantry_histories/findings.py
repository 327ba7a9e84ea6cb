"""What can be wrong with a history, each by its name, and what a group's mode allows to be lost."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple


class Kind(Enum):
    """A promise that was broken."""

    LOST = "an acknowledged message is gone"
    HOLE = "an acknowledged message is gone that was not in the tail that a failover may take"
    MOVED = "an acknowledged message is not where its reply said"
    DISPLACED = "the place of an acknowledged message holds another one"
    DOUBLED = "a message that was sent once is stored twice"
    INVENTED = "a message is stored that nobody sent"
    ALTERED = "a body is not the one that was sent"
    KEPT = "a message is stored that was refused"
    GAP = "the offsets of a queue are not dense"
    DISORDER = "messages of one producer are not in the order of their sending"
    STALE = "an older master acknowledged what was sent after its successor's first acknowledgement"
    SKIPPED = "a consumer is past a message that it was never shown"
    VANISHED = "a message that a consumer was shown is gone"
    FALSE = "a consumer was shown something that is no message of anybody"
    BEYOND = "a consumer's offset lies beyond the end of its queue"
    DIVERGED = "the logs of two members differ where they are confirmed"


class Finding(NamedTuple):
    """One broken promise, with the evidence."""

    kind: Kind
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.kind.value}: {self.evidence}"


class Loss(StrEnum):
    """What acknowledged messages a fault may cost, by the promise of the group's mode."""

    NOTHING = "nothing"
    """SYNC_MASTER, and whatever else promises to lose nothing by the faults of this run."""

    SUFFIX = "suffix"
    """ASYNC_MASTER: with each failover the end of the old master's log, and nothing else."""


class Mode(NamedTuple):
    """What a group promises."""

    loss: Loss = Loss.NOTHING
