"""The errors because of which an audit cannot be done."""

from __future__ import annotations

from typing import final


class AuditError(Exception):
    """The root of these errors: the audit failed, and its result says nothing about the log."""


@final
class CopyUnreachable(AuditError):
    """A copy is unavailable or denies access: check its sidecar and the credentials, and run the audit again."""


@final
class NothingToCompare(AuditError):
    """No copy was found: check the configuration."""


@final
class Expired(AuditError):
    """Retention deleted a range while it was read. This is no finding; the next audit begins after the range."""


@final
class Interrupted(AuditError):
    """The audit was stopped on request; its findings so far are discarded."""
