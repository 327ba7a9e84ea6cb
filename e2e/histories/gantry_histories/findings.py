"""The kinds of broken guarantees, and what the mode of a group allows to be lost."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple


class Kind(Enum):
    """A guarantee that was broken."""

    LOST = "an acknowledged message is gone"
    HOLE = "an acknowledged message is gone that was not in the tail that a failover may lose"
    MOVED = "a message is in another queue than it was sent to, or not at the position that its reply named"
    DISPLACED = "the position of an acknowledged message holds another one"
    DOUBLED = "a message that was sent once is stored twice"
    INVENTED = "a message is stored that was never sent"
    ALTERED = "a body is not the one that was sent"
    KEPT = "a refused message is stored"
    GAP = "the offsets of a queue are not dense"
    DISORDER = "messages of one producer are not in the order of their sending"
    STALE = "an older master acknowledged what was sent after its successor's first acknowledgement"
    FOREIGN = "a message is in another master's part of the log than that of the one that acknowledged it"
    SKIPPED = "a consumer skipped a message"
    VANISHED = "a message that a consumer received is gone"
    FALSE = "a consumer received a message that was not sent to this queue, or a corrupt body"
    OUTDATED = "a master did not show a message that it had acknowledged"
    FORGOTTEN = "a group's offset is not the one that was committed last"
    BEYOND = "a consumer's offset lies beyond the end of its queue"
    DIVERGED = "the logs of two members differ before their confirmed positions"
    DISAGREEMENT = "the two judges of the history disagree"
    UNDECIDED = "Porcupine has not decided in time whether the history is linearizable"


class Finding(NamedTuple):
    """A broken guarantee with its evidence."""

    kind: Kind
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.kind.value}: {self.evidence}"


class Loss(StrEnum):
    """Which acknowledged messages a fault may lose in the group's mode."""

    NOTHING = "nothing"
    """SYNC_MASTER, and every other mode that guarantees no loss under the faults of this run."""

    SUFFIX = "suffix"
    """ASYNC_MASTER: a failover may lose the end of the old master's log, and no other message."""


class Mode(NamedTuple):
    """The guarantees of a group."""

    loss: Loss = Loss.NOTHING
    shows_acknowledged: bool = True
    """Whether a master shows a message as soon as it has acknowledged it: not with a buffer in anonymous memory, which
    is shown only when it is committed."""

    keeps_shown: bool = False
    """Whether no message is lost that a consumer has received, even if acknowledged messages may be: with one broker,
    whose consumers see only what survives its process."""
