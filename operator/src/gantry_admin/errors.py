"""What can be wrong, as the sidecar says it to whoever starts it or asks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final


class SidecarError(Exception):
    """Root of what this package raises on purpose. Never raised itself."""


@final
class SettingsError(SidecarError):
    """The options contradict each other or promise too much. Start it with others; the text names them."""


@final
class Problem(SidecarError):
    """An answer that is not what was asked for: a status, a reason for people, and facts for programs."""

    def __init__(
        self, status: int, reason: str, *, headers: Mapping[str, str] | None = None, **facts: int | str | None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})
        self.facts = facts

    def document(self) -> dict[str, int | str | None]:
        """The body of the answer."""
        return {"reason": self.reason, **self.facts}
