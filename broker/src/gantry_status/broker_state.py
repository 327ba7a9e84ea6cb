"""The state of a broker: the single schema for what a broker reports about its role and its log.

Everything that shows or evaluates a broker derives from ``BrokerState``: the answer to an order (``orders.HaStatus``),
the report on which decisions are based (``gantry_spec.observed.Report``), and the documents of the sidecar and the
command line. Each field is named, described and typed here only.

An unknown number is None in memory and -1 in JSON, on the control socket and for programs. A -1 becomes None whenever a
state is decoded or created, so that no caller can take it for an offset; ``document_of`` does the reverse.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar, final

import msgspec

UNKNOWN: Final = -1
"""An unknown number in JSON."""


class HaRole(StrEnum):
    """A broker's role in its shard."""

    UNASSIGNED = "UNASSIGNED"
    """The broker has a store and no role: it does not register, and answers sends with code 14."""
    COMPARING = "COMPARING"
    """The broker waits, and answers sends with code 14: until its log has been compared with those of enough slaves,
    after which it becomes the master, or until a person has accepted the loss of log data that it lacks."""
    MASTER = "MASTER"
    """The broker is the master of its shard."""

    SLAVE = "SLAVE"
    """The broker follows a master, or waits until one is known."""


class StatePart(msgspec.Struct, frozen=True, kw_only=True):
    """The base class of the state and its parts. It is not used itself."""

    def __post_init__(self) -> None:
        for name in optional_numbers(type(self)):
            if getattr(self, name) == UNKNOWN:
                msgspec.structs.force_setattr(self, name, None)


@final
class SlaveState(StatePart, frozen=True, kw_only=True):
    """One connected slave, as its master sees it."""

    identity: str = ""
    """The uuid of the slave's store; for a slave of RocketMQ's, the address of its connection."""

    number: int = msgspec.field(name="broker_id")
    """The slave's broker id; -2 or less for a slave of RocketMQ's, which reports none."""

    address: str = ""
    """The slave's address for clients."""
    received: int | None = None
    """The end of what the slave has received; unknown before its first ack."""

    flushed: int | None = None
    """The end of what the slave has flushed to its disk."""

    ack_age_ms: int | None = None
    """The time since its last ack, or before that since it joined."""


@final
class RangeState(StatePart, frozen=True, kw_only=True):
    """A range of the log that is missing, or whose loss was accepted."""

    start: int
    """The offset at which the range begins."""

    end: int
    """The offset before which the range ends."""

    cause: str = ""
    """Which part of the log the range is: all, head, middle or tail."""
    accepted_ms: int | None = None
    """When a person accepted the loss, in milliseconds since 1970; unknown before that."""


class BrokerState(StatePart, frozen=True, kw_only=True):
    """The state of a broker at one moment. Offsets are those of the log, broker numbers those of the members."""

    role: HaRole
    epoch: int = 0
    """The epoch in which it has its role; 0 before its first role."""
    promised_epoch: int = 0
    """The epoch below which it has promised to follow no master, nor be one."""

    broker_id: int | None = None
    """Its own number, which it keeps when it is promoted."""
    identity: str = ""
    """The uuid of its store, which identifies a voter in an election."""
    cluster: str = ""
    broker_name: str = ""
    """The name of its shard, which all members have."""

    address: str = ""
    """The broker's address for its clients."""
    ha_address: str = ""
    """Its replication address. The order to follow this broker, once it is the master, contains it."""
    begin: int | None = None
    """The first offset that its log still has."""

    wrote: int | None = None
    """The end of its log: all bytes up to here are in the write buffer or in the page cache."""

    committed: int | None = None
    """The end of the bytes that are in the page cache of the log's files."""

    flushed: int | None = None
    """The end of the bytes that are on the disk."""

    acked: int | None = None
    """The offset up to which the required number of slaves have the log; unknown until so many have acknowledged in
    this epoch, and while sends wait for no slave."""
    confirmed: int | None = None
    """The offset up to which its consumers may read. It is never lower than what consumers have already read."""
    dispatched: int | None = None
    """The offset up to which its queues are built. A promotion waits for the rest."""
    last_epoch: int = 0
    """The epoch of the last record in its log."""
    electable: tuple[int, ...] = ()
    """S: the slaves of ``epoch`` that may be promoted after it, as recorded; never the epoch's master."""
    acks_needed: int | None = None
    """k: the number of these slaves that must acknowledge before code 0 is answered."""
    slaves: tuple[SlaveState, ...] = ()
    """The slaves of a master."""
    master: str = ""
    """The address of the master that it follows, or will follow."""
    master_id: int | None = None
    """The master's own number in ``epoch``."""
    problem: str = ""
    """The reason for a deviation from its normal state; empty without one."""
    epoch_start: int | None = None
    """The offset at which ``last_epoch`` begins."""
    heartbeat_age_ms: int | None = None
    """The time since a slave last received data or a heartbeat from its master."""
    granted_ms: int | None = None
    """The remaining time for which a grant that it gave may be valid."""
    peak_bytes_per_s: int | None = None
    """At least the growth of its log in any second of the last minute: an upper bound, which may be twice as high."""
    is_complete: bool | None = None
    """Whether its log has everything that it ever acknowledged to clients or to a master. A clean stop, or a crash
    without loss, leaves it as it was. False after a start that may have lost bytes, until it has followed a Gantry
    master again and has all of its log, or is promoted; where a start found damage, not until that is healed, or no
    other member has the message, either; where the last start found missing files, set a file aside, or followed a
    failed sync, not until it has copied the whole log again. False while a broker without electable slaves has
    damage; null while unknown."""
    is_crash_safe: bool | None = None
    """Whether what it acknowledges survives a crash of its process."""
    is_draining: bool = False
    """Whether a drain is in effect: it refuses sends, and flushes and replicates its log."""

    is_withdrawn: bool = False
    """Whether it has withdrawn its routes, so that clients do not send to it; its log may still grow."""
    may_acknowledge: bool = False
    """Whether it is a master that may answer code 0 as far as grants and the Lease decide; sends may wait for acks."""
    may_regain: bool = False
    """Whether its role ended only because its process ended, so that it may get the role back, as far as it knows."""
    is_regained: bool = False
    """Whether it is a master whose process was restarted in the same epoch."""
    missing: tuple[RangeState, ...] = ()
    """Ranges of the log that were on its disk and are missing. While there are any, it refuses sends and serves no
    slaves."""
    accepted: tuple[RangeState, ...] = ()
    """Ranges whose loss a person has accepted."""
    damaged_bytes: int = 0
    """The bytes of its log without a good record, as known now. Among equal candidates an undamaged member is
    elected."""

    @property
    def missing_bytes(self) -> int:
        """Return the total length of all missing ranges."""
        return sum(lost.end - lost.start for lost in self.missing)

    @property
    def log_position(self) -> tuple[int, int]:
        """Return the key by which logs are compared: the epoch of the last record first, then the end of the log."""
        return self.last_epoch, UNKNOWN if self.wrote is None else self.wrote

    @property
    def epochs(self) -> tuple[int, int, int]:
        """Return the three epochs that a new epoch must exceed."""
        return self.epoch, self.promised_epoch, self.last_epoch


@cache
def optional_numbers(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the fields that are -1 in JSON when they are unknown."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.type == int | None)


def document_of(part: StatePart) -> dict[str, Any]:
    """Return the state as it is sent, and shown to programs."""
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
    """Return the same state as a subclass, with the fields that the subclass adds."""
    return kind(**msgspec.structs.asdict(state), **more)
