"""How far a consumer may see, and how far a sender may be told "stored": two pure functions of positions and modes.

    mode                     acknowledged up to    shown up to
    ASYNC_FLUSH              wrote                 wrote
    ASYNC_FLUSH, anonymous   wrote                 committed
    SYNC_FLUSH               flushed               flushed

A consumer must never see what a fault that the mode covers can take back: it would go on behind it, and the messages
that come to stand there later would be skipped.
"""

from __future__ import annotations

from typing import NamedTuple


class Positions(NamedTuple):
    """Where the log is."""

    wrote: int
    committed: int
    flushed: int


def promised_offset(positions: Positions, *, is_sync_flush: bool) -> int:
    """Records that end at or before it may be acknowledged."""
    return positions.flushed if is_sync_flush else positions.wrote


def confirmed_offset(positions: Positions, *, is_sync_flush: bool, is_crash_safe: bool) -> int:
    """Records that end at or before it may be shown to consumers."""
    if is_sync_flush:
        return positions.flushed
    return positions.wrote if is_crash_safe else positions.committed
