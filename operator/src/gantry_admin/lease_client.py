"""The port to the shard's Lease: read it, and renew the version that was read. Types only, no I/O.

    read()          -> LeaseSnapshot(record, revision)       the current Lease
    renew(lease)    -> LeaseSnapshot                         only if it has not changed, else `LeaseConflict`

The invariant: **a renewal is a compare-and-swap on everything that was read.** An election in between has changed the
revision, so the old master's renewal fails, and its lease expires.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, final

from gantry_spec.lease import LeaseRecord


class LeaseError(Exception):
    """The base of all errors of a Lease. It is never raised itself."""


@final
class LeaseConflict(LeaseError):
    """The Lease has been changed since it was read. Read it again, and decide again."""


@final
class LeaseUnavailable(LeaseError):
    """The token file was unreadable, or the API server was unreachable, refused, or returned an invalid answer.

    The text has the reason. Try again.
    """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSnapshot:
    """A Lease as it was read."""

    record: LeaseRecord | None
    """The record in the Lease; None if none has been written yet."""

    revision: str
    """The resourceVersion, which every change of the Lease changes, renewals included."""

    document: dict[str, Any] = field(default_factory=dict, repr=False)
    """The whole Lease object of the API server."""


class LeaseClient(Protocol):
    """Kubernetes, or the substitute of a test."""

    async def read(self, *, timeout_s: float) -> LeaseSnapshot:
        """Read the Lease. Raises ``LeaseUnavailable``."""

    async def renew(self, lease: LeaseSnapshot, holder: str, *, timeout_s: float) -> LeaseSnapshot:
        """Renew the Lease for ``holder``. Raises ``LeaseConflict``, or ``LeaseUnavailable`` (outcome unknown)."""
