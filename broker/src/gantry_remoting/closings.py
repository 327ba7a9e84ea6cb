"""Why connections are closed: counted by reason, and logged so that no peer can fill a log.

A peer can have its connections closed as often as it likes, with bytes that are no frame, resets, or a bug of ours that
it has found. Each kind of line is written a few times a second at most; what was left out is counted, and the number
stands in the next line of its kind. A bug leaves one traceback for each place that it was raised at, so that it can be
found, and one line like any other for each time after that.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Final, final

LINES_MAX: Final = 5
"""Of one kind in one interval: enough to see who it is, too little to fill a disk."""
INTERVAL_S: Final = 1.0
KINDS_MAX: Final = 256
"""Kinds that are told apart; more share one line, since a kind may hold what a peer has sent."""


class CloseReason(StrEnum):
    """Why a connection was closed by this end: the label of its counter."""

    PROTOCOL = "protocol"
    """It sent what is no frame."""
    TLS = "tls"
    IDLE = "idle"
    FRAME_TIMEOUT = "frame_timeout"
    """A frame or a TLS handshake did not end in time."""
    READER_TIMEOUT = "reader_timeout"
    """It did not read its replies in time."""
    REPLY_LIMIT = "reply_limit"
    """It had more unread replies than one connection may have."""
    FRAME_BUDGET = "frame_budget"
    """The port's unfinished frames were too much, and its was the most costly."""
    UNAUTHENTICATED_BUDGET = "unauthenticated_budget"
    """The same among connections that had not authenticated."""
    REPLY_BUDGET = "reply_budget"
    """The port's unread replies were too much, and its were the most costly."""
    HANDSHAKES = "handshakes"
    """Its TLS handshake was the oldest of too many."""
    CONNECTIONS = "connections"
    """It was one too many for the port."""
    ADDRESS = "address"
    """It was one too many for its address."""
    RESET = "reset"
    """It was gone before it could be accepted."""
    CALLBACK = "callback"
    """An exception in a callback: a bug."""
    SERVICE = "service"
    """The service asked for it, or the server stops."""


CLOSE_TEXTS: Final = {
    CloseReason.READER_TIMEOUT: "does not read its replies",
    CloseReason.FRAME_TIMEOUT: "did not finish a frame in time",
    CloseReason.IDLE: "was idle too long",
    CloseReason.FRAME_BUDGET: "the port's unfinished frames are over budget, and its costs most",
    CloseReason.UNAUTHENTICATED_BUDGET: "frames of unauthenticated peers are over budget, and its costs most",
    CloseReason.REPLY_BUDGET: "the port's unread replies are over budget, and its cost most",
}
"""The text in the log for the reasons that need no detail."""


@final
class LimitedLog:
    """Lines of a log, few of each kind in a second. Not thread-safe: owned by the event loop."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log: Final = log
        self._now = now
        self._interval_began = now()
        self._written: Counter[Hashable] = Counter()
        self._suppressed: Counter[Hashable] = Counter()
        self._traced: set[Hashable] = set()

    def write(
        self,
        level: int,
        message: str,
        extra: Mapping[str, object],
        *,
        kind: Hashable = None,
        error: BaseException | None = None,
    ) -> None:
        """Write a line of a kind, or only count it. ``error`` adds its traceback."""
        now = self._now()
        if now - self._interval_began >= INTERVAL_S:
            self._interval_began = now
            self._written.clear()
        kind = (message, kind)
        if kind not in self._suppressed and len(self._suppressed) >= KINDS_MAX:
            kind = (message, "others")
        self._written[kind] += 1
        if self._written[kind] > LINES_MAX and error is None:
            self._suppressed[kind] += 1
            return
        suppressed = self._suppressed[kind]
        self._suppressed[kind] = 0
        fields = {**extra, "suppressed": suppressed} if suppressed else dict(extra)
        self._log.log(level, message, extra=fields, exc_info=error)

    def callback_failed(self, peer: str, callback: str, error: Exception) -> None:
        """A callback of a connection raised what it should not have, and its connection is closed for it."""
        place = _place(error)
        kind = (callback, type(error).__name__, place)
        extra = {"peer": peer, "callback": callback, "reason": f"{type(error).__name__}: {error}"[:500], "at": place}
        is_new = kind not in self._traced and len(self._traced) < KINDS_MAX
        if is_new:
            self._traced.add(kind)
        self.write(
            logging.ERROR, "connection closed: a callback failed", extra, kind=kind, error=error if is_new else None
        )


@final
class Closings:
    """The connections that one port has closed, by reason. Owned by the event loop."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self.counts: Final[Counter[CloseReason]] = Counter()
        self._log: Final = LimitedLog(log, now)

    def record(self, peer: str, reason: CloseReason, text: str) -> None:
        """A connection is being closed."""
        self.counts[reason] += 1
        level = logging.WARNING if reason in _OVER_BUDGET else logging.INFO
        self._log.write(level, "connection closed", {"peer": peer, "reason": text}, kind=reason)

    def callback_failed(self, peer: str, callback: str, error: Exception) -> None:
        """A connection is being closed for a bug."""
        self.counts[CloseReason.CALLBACK] += 1
        self._log.callback_failed(peer, callback, error)


_OVER_BUDGET: Final = frozenset(
    {CloseReason.FRAME_BUDGET, CloseReason.UNAUTHENTICATED_BUDGET, CloseReason.REPLY_BUDGET}
)
"""Reasons that an operator should see: an attack, or a budget that is too small for the clients."""


def _place(error: BaseException) -> str:
    """Where an exception was raised."""
    traceback = error.__traceback__
    if traceback is None:
        return "?"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno}"
