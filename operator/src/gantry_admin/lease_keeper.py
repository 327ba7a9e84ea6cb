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
