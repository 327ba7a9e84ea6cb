"""How far a consumer may see, and how far a sender may be told "stored": two pure functions of positions and modes.

    mode                        acknowledged up to        shown up to
    ASYNC_FLUSH, ASYNC_MASTER   wrote                     wrote; with an anonymous buffer, committed
    SYNC_FLUSH,  ASYNC_MASTER   flushed                   flushed
    ASYNC_FLUSH, SYNC_MASTER    acked                     acked; with an anonymous buffer, the smaller with committed
    SYNC_FLUSH,  SYNC_MASTER    the smaller of the two    the smaller of the two

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
    acked: int | None = None
    """Up to where enough slaves have it; None where nobody waits for slaves."""


def promised_offset(positions: Positions, *, is_sync_flush: bool) -> int:
    """Records that end at or before it may be acknowledged."""
    return _and_acked(positions.flushed if is_sync_flush else positions.wrote, positions)


def confirmed_offset(positions: Positions, *, is_sync_flush: bool, is_crash_safe: bool) -> int:
    """Records that end at or before it may be shown to consumers."""
    if is_sync_flush:
        return _and_acked(positions.flushed, positions)
    return _and_acked(positions.wrote if is_crash_safe else positions.committed, positions)


def _and_acked(offset: int, positions: Positions) -> int:
    return offset if positions.acked is None else max(0, min(offset, positions.acked))
