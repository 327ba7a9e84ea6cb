"""The port to whoever keeps the shard's Lease: read it, and renew what was read. Values, no I/O.

    read()         -> KeptLease(record, revision)         as it stands there now
    renew(kept)    -> KeptLease                           only if it is still the same, else `LeaseMoved`

The rule it guards: **a renewal is a compare-and-swap on everything that was read.** Whoever took a new epoch in between
has changed the revision, so the renewal that did not know of it fails, and the old master's key runs out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, final

from gantry_spec.lease import LeaseRecord
from gantry_status.orders import HaRole, HaStatus


class LeaseError(Exception):
    """Root of what can go wrong with a Lease. Never raised itself."""


@final
class LeaseMoved(LeaseError):
    """Somebody else has changed it since it was read. Read again, and decide anew."""


@final
class LeaseUnavailable(LeaseError):
    """Whoever keeps it was not reached, refused, or said nothing of use; says which. Try again, while there is time."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLease:
    """A Lease as it was read."""

    record: LeaseRecord | None
    """None if nobody has written one yet."""

    revision: str
    """Changed by every change of it, a renewal too."""

    document: dict[str, Any] = field(default_factory=dict, repr=False)
    """The whole of it, as its keeper has it."""


class LeaseKeeper(Protocol):
    """Kubernetes, or what a test has in its place."""

    async def read(self, *, timeout_s: float) -> KeptLease:
        """As it stands there now. Raises ``LeaseUnavailable``."""

    async def renew(self, kept: KeptLease, holder: str, *, timeout_s: float) -> KeptLease:
        """Say that ``holder`` is alive. Raises ``LeaseMoved`` or ``LeaseUnavailable``; then it may have been done."""


def why_not_asked(word: HaStatus | None) -> str:
    """Why nobody needs to be asked for a broker that said ``word``; empty if it may have a right to the Lease."""
    if word is None:
        return "the broker has not said lately who it is, or stands still"
    return "" if word.role is HaRole.MASTER else "this broker is no master"


def why_not_named(record: LeaseRecord | None, word: HaStatus) -> str:
    """Why the record does not name the master that said ``word``; empty if it does."""
    if record is None:
        return "there is no record in the Lease"
    term = record.newest
    if term is None or not record.is_settled:
        return f"epoch {record.epoch} has no master yet"
    if term.epoch != word.epoch:
        return f"the newest term is of epoch {term.epoch}, this broker is in {word.epoch}"
    if term.master != word.broker_id:
        return f"the master of epoch {term.epoch} is {term.master}, this broker is {word.broker_id}"
    if term.identity != word.identity:
        return f"the master of epoch {term.epoch} has another store"
    return ""
