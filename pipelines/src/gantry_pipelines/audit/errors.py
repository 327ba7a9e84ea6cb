"""The errors of an audit. All except `Expired` end it without a result: a task turns that one into a note."""

from __future__ import annotations

from typing import final


class AuditError(Exception):
    """The root of these errors. If one ends an audit, there is no result, and nothing is known about the log."""


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
