"""The state of a broker: the one schema of what a broker reports about its role and its log.

Everything that shows or judges a broker is made of ``BrokerState``: the answer to an order (``orders.HaStatus``), the
report that decisions are made from (``gantry_spec.observed.Report``), and the documents of the sidecar and the command
line. A field is named, explained and typed here and nowhere else.

A number that is not known is None in memory and -1 in JSON, on the control socket and in what programs read. A -1 turns
into None wherever a state is decoded or made, so no caller can take it for an offset; ``document_of`` is the way back.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar, final

import msgspec

UNKNOWN: Final = -1
"""A number that is not known, in JSON."""


class HaRole(StrEnum):
    """What a broker is to its group."""

    UNASSIGNED = "UNASSIGNED"
    """Has a store and no role: registers nowhere, answers sends with 14."""
    COMPARING = "COMPARING"
    """Will be a master once enough slaves have reported that they have nothing more: answers sends with 14."""
    MASTER = "MASTER"
    SLAVE = "SLAVE"


class StatePart(msgspec.Struct, frozen=True, kw_only=True):
    """Root of the state and its parts. Never used itself."""

    def __post_init__(self) -> None:
        for name in optional_numbers(type(self)):
            if getattr(self, name) == UNKNOWN:
                msgspec.structs.force_setattr(self, name, None)


@final
class SlaveState(StatePart, frozen=True, kw_only=True):
    """One slave that follows, as its master sees it."""

    identity: str = ""
    number: int = msgspec.field(name="broker_id")
    address: str = ""
    """Where its clients find it."""
    received: int | None = None
    flushed: int | None = None
    ack_age_ms: int | None = None


@final
class RangeState(StatePart, frozen=True, kw_only=True):
    """A range of the log that is missing, or whose loss was accepted."""

    start: int
    end: int
    cause: str = ""
    """Where it lies: all, head, middle or tail."""
    accepted_ms: int | None = None
    """When an operator accepted its loss, in milliseconds since 1970; not known before."""


class BrokerState(StatePart, frozen=True, kw_only=True):
    """A broker at one moment. Offsets are the log's, numbers of brokers their own."""

    role: HaRole
    epoch: int = 0
    """In which it has its role; 0 before it ever had one."""
    promised_epoch: int = 0
    broker_id: int | None = None
    """Its own number, which it keeps when it is promoted."""
    identity: str = ""
    """The uuid of its store: who has which vote in an election."""
    cluster: str = ""
    broker_name: str = ""
    address: str = ""
    """Where its clients find it."""
    ha_address: str = ""
    """Where its slaves find it: the master's address in the order to follow it, once it is the master."""
    begin: int | None = None
    wrote: int | None = None
    committed: int | None = None
    flushed: int | None = None
    acked: int | None = None
    """Up to where as many slaves have it as are needed; not known before any slave has acknowledged in this epoch."""
    confirmed: int | None = None
    """Up to where its consumers may read. It never lies behind what they were shown."""
    dispatched: int | None = None
    """Up to where its queues are built. A promotion waits for the rest."""
    last_epoch: int = 0
    """Of the last record in its log."""
    electable: tuple[int, ...] = ()
    """S: the slaves of ``epoch`` that may be promoted after it, as it was recorded; never the epoch's master."""
    acks_needed: int | None = None
    """k: how many of them code 0 needs."""
    slaves: tuple[SlaveState, ...] = ()
    """Of a master."""
    master: str = ""
    """Whom it follows, or will follow."""
    master_id: int | None = None
    """The own number of the master of ``epoch``."""
    trouble: str = ""
    """Why it is not as it should be."""
    epoch_start: int | None = None
    """Where ``last_epoch`` begins."""
    heard_ms: int | None = None
    """Time since a slave received anything from the master that it follows."""
    granted_ms: int | None = None
    """For how much longer a grant that it gave may count."""
    peak_bytes_per_s: int | None = None
    """At least what its log has grown by in any second of the last minute."""
    is_whole: bool | None = None
    """Whether everything that it ever acknowledged, to clients or to a master, is in its log. True after a clean stop
    and after a crash that has lost nothing; false after a start that may have lost bytes, until it has followed a
    master again and has all that this one had; null while it is not known."""
    is_crash_safe: bool | None = None
    """Whether what it acknowledges survives its process."""
    is_draining: bool = False
    is_withdrawn: bool = False
    """Whether it has withdrawn its routes, so that clients send nothing here; its log may still grow."""
    may_acknowledge: bool = False
    """Whether it holds a key to answer code 0."""
    may_regain: bool = False
    """Whether it has no role since its process ended, and nothing else: as far as it knows, it may have it again."""
    is_regained: bool = False
    """Whether it is a master that has been another process in the same epoch."""
    missing: tuple[RangeState, ...] = ()
    """Ranges of the log that were on its disk and are gone. While there are any, it takes no sends and is no master for
    others."""
    accepted: tuple[RangeState, ...] = ()
    """Ranges whose loss an operator has accepted."""
    damaged_bytes: int = 0
    """Of its log, known to hold no good record now. Among equals another member is elected."""

    @property
    def missing_bytes(self) -> int:
        """The length of all missing ranges."""
        return sum(lost.end - lost.start for lost in self.missing)

    @property
    def place(self) -> tuple[int, int]:
        """How far its log is: a newer epoch is further than any length."""
        return self.last_epoch, UNKNOWN if self.wrote is None else self.wrote

    @property
    def epochs(self) -> tuple[int, int, int]:
        """All that a new epoch must be greater than."""
        return self.epoch, self.promised_epoch, self.last_epoch


@cache
def optional_numbers(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that are -1 in JSON when they are not known."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.type == int | None)


def document_of(part: StatePart) -> dict[str, Any]:
    """The state as it is sent, and shown to programs."""
    document: dict[str, Any] = msgspec.to_builtins(part)
    for name in optional_numbers(type(part)):
        document[name] = UNKNOWN if document[name] is None else document[name]
    if isinstance(part, BrokerState):
        document |= {name: _documents_of(getattr(part, name)) for name in ("slaves", "missing", "accepted")}
    return document


def _documents_of(parts: Iterable[StatePart]) -> list[dict[str, Any]]:
    return [document_of(part) for part in parts]


S = TypeVar("S", bound=BrokerState)


def view_of(state: BrokerState, kind: type[S], **more: Any) -> S:
    """The same state with what another view of it adds."""
    return kind(**msgspec.structs.asdict(state), **more)
