"""Why a command's output differs, where it does."""

from __future__ import annotations

from typing import Final

REASONS: Final[dict[str, str]] = {}
