"""The positions up to which messages may be acknowledged to producers, and be visible to consumers.

    mode                        acknowledged up to        visible up to
    ASYNC_FLUSH, ASYNC_MASTER   wrote                     wrote; with an anonymous buffer, committed
    SYNC_FLUSH,  ASYNC_MASTER   flushed                   flushed
    ASYNC_FLUSH, SYNC_MASTER    acked                     acked; with an anonymous buffer, the smaller with committed
    SYNC_FLUSH,  SYNC_MASTER    the smaller of the two    the smaller of the two

A consumer must never read a message that could be lost in a fault that the mode protects against: it would continue
after it, and would skip the messages that get these offsets later. The two functions are pure; ``LogPositions``
applies them to a store.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.dispatcher import Dispatcher
from gantry_broker.store.opening import WritePools


class Positions(NamedTuple):
    """The positions of the log at one moment."""

    wrote: int
    committed: int
    flushed: int
    acked: int | None = None
    """Up to where enough slaves have the log; None if acknowledgements do not wait for slaves."""


def promised_offset(positions: Positions, *, is_sync_flush: bool) -> int:
    """Return the offset up to which records may be acknowledged."""
    return _limit_to_acked(positions.flushed if is_sync_flush else positions.wrote, positions)


def confirmed_offset(positions: Positions, *, is_sync_flush: bool, is_crash_safe: bool) -> int:
    """Return the offset up to which records may be visible to consumers."""
    if is_sync_flush:
        return _limit_to_acked(positions.flushed, positions)
    return _limit_to_acked(positions.wrote if is_crash_safe else positions.committed, positions)


def _limit_to_acked(offset: int, positions: Positions) -> int:
    return offset if positions.acked is None else max(0, min(offset, positions.acked))


@final
class LogPositions:
    """Computes how far a store's log is promised and confirmed. Owned by the loop's thread."""

    def __init__(
        self, commit_log: CommitLog, dispatcher: Dispatcher, pools: WritePools, *, is_sync_flush: bool
    ) -> None:
        self.acked: int | None = None
        """Up to where enough slaves have the log; None if acknowledgements do not wait for slaves."""

        self._log: Final = commit_log
        self._dispatcher: Final = dispatcher
        self._pools: Final = pools
        self._is_sync_flush: Final = is_sync_flush

    def __repr__(self) -> str:
        return f"<LogPositions promised={self.promised} confirmed={self.confirmed} acked={self.acked}>"

    @property
    def promised(self) -> int:
        """Records that end at or before it may be acknowledged."""
        return promised_offset(self._now, is_sync_flush=self._is_sync_flush)

    @property
    def confirmed(self) -> int:
        """Records that end at or before it may be visible to consumers."""
        is_crash_safe = self._pools.status.is_crash_safe
        return confirmed_offset(self._now, is_sync_flush=self._is_sync_flush, is_crash_safe=is_crash_safe)

    @property
    def _now(self) -> Positions:
        return Positions(self._log.wrote, self._log.committed, self._log.flushed, self.acked)

    def set_acked(self, acked: int) -> None:
        """Limit ``promised`` and ``confirmed`` to ``acked``, up to which enough slaves have the log."""
        self.acked = acked
        self._dispatcher.hold()

    def clear_acked(self) -> None:
        """Remove the limit, and make messages visible that waited only for acks of slaves.

        With SYNC_FLUSH, or with an anonymous buffer, the next ``MessageStore.advance`` makes them visible.
        """
        self.acked = None
        must_hold = self._is_sync_flush or not self._pools.status.is_crash_safe
        if not must_hold and self._dispatcher.release(self._log.wrote):
            self._dispatcher.release(self._log.wrote, keep_holding=False)
