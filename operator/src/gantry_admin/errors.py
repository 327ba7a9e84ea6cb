"""The errors of the sidecar, for its start and for its callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final


class SidecarError(Exception):
    """The base of ``SettingsError`` and ``Problem``. It is never raised itself."""


@final
class SettingsError(SidecarError):
    """The options are invalid or contradict each other. Start with other options; the text names them."""


@final
class Problem(SidecarError):
    """An error answer: an HTTP status, a reason for people, and facts for programs."""

    def __init__(
        self, status: int, reason: str, *, headers: Mapping[str, str] | None = None, **facts: int | str | None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})
        self.facts = facts

    def document(self) -> dict[str, int | str | None]:
        """Return the body of the error answer."""
        return {"reason": self.reason, **self.facts}
