"""What can keep an audit from being done."""

from __future__ import annotations

from typing import final


class AuditError(Exception):
    """The root: the audit could not be done, and says nothing about the log."""


@final
class CopyUnreachable(AuditError):
    """A copy does not answer, or refuses us: look at its sidecar, at credentials, and start the audit again."""


@final
class NothingToCompare(AuditError):
    """There is no copy to look at, or no two that have something in common: look at the settings."""


@final
class Expired(AuditError):
    """Retention has taken what was being read: no finding; the next audit begins behind it."""


@final
class Interrupted(AuditError):
    """Somebody asked the audit to end: what it had found until then is not said."""
