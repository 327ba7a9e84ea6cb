"""The reasons for closing connections: counted by reason, and logged at a limited rate.

A peer can cause its connections to be closed as often as it likes, with bytes that are no frame, resets, or a bug that
it has found. Each kind of line is written at most a few times a second; the others are counted, and the number is in
the next line of its kind. A bug leaves one traceback for each place where it is raised, and after that lines of the
same limited rate.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Final, final

LINES_MAX: Final = 5
"""The maximum number of lines of one kind in one interval: enough to identify the peer, too few to fill a disk."""
INTERVAL_S: Final = 1.0
"""The interval in which lines of one kind are counted."""
KINDS_MAX: Final = 256
"""The maximum number of distinct kinds; more share one line, since a kind may contain data from a peer."""


class CloseReason(StrEnum):
    """The reason why this side closed a connection: the label of its counter."""

    PROTOCOL = "protocol"
    """The peer sent bytes that are no frame."""
    TLS = "tls"
    """The TLS handshake failed, or an encrypted record is invalid."""

    IDLE = "idle"
    """The peer sent nothing for `idle_timeout_ms`."""

    FRAME_TIMEOUT = "frame_timeout"
    """A frame or a TLS handshake was not completed in time."""
    READER_TIMEOUT = "reader_timeout"
    """The peer did not read its replies in time."""
    REPLY_LIMIT = "reply_limit"
    """The connection exceeded the limit of unread replies for one connection."""
    FRAME_BUDGET = "frame_budget"
    """The port's unfinished frames exceeded their budget, and this connection's was the most costly."""
    UNAUTHENTICATED_BUDGET = "unauthenticated_budget"
    """As `FRAME_BUDGET`, among connections that had not authenticated."""
    REPLY_BUDGET = "reply_budget"
    """The port's unread replies exceeded their budget, and this connection's were the most costly."""
    HANDSHAKES = "handshakes"
    """The port had too many TLS handshakes, and this connection's was the oldest."""
    CONNECTIONS = "connections"
    """The port had the maximum number of connections."""
    ADDRESS = "address"
    """The peer's address had the maximum number of connections."""
    RESET = "reset"
    """The peer reset the connection before it was accepted."""
    CALLBACK = "callback"
    """A callback raised an exception, which is a bug."""
    SERVICE = "service"
    """The service closed the connection, or the server is stopping."""


CLOSE_TEXTS: Final = {
    CloseReason.READER_TIMEOUT: "does not read its replies",
    CloseReason.FRAME_TIMEOUT: "did not finish a frame or its TLS handshake in time",
    CloseReason.IDLE: "was idle too long",
    CloseReason.FRAME_BUDGET: "the port's unfinished frames are over budget, and this one costs most",
    CloseReason.UNAUTHENTICATED_BUDGET: "frames of unauthenticated peers are over budget, and this one costs most",
    CloseReason.REPLY_BUDGET: "the port's unread replies are over budget, and these cost most",
}
"""The log texts of the reasons that need no details."""


@final
class LimitedLog:
    """A log with a limited rate for each kind of line. If several threads use it, its counts may be a little off."""

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
        """Write a line of a kind, or only count it. ``error`` adds its traceback, and such a line is always written."""
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

    def log_callback_failure(self, peer: str, callback: str, error: Exception) -> None:
        """Log that a callback of a connection raised an exception, for which the connection is closed."""
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
class CloseLog:
    """The counts of closed connections of one port, by reason. Owned by the event loop."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self.counts: Final[Counter[CloseReason]] = Counter()
        self._log: Final = LimitedLog(log, now)

    def record(self, peer: str, reason: CloseReason, text: str) -> None:
        """Count and log that a connection is being closed."""
        self.counts[reason] += 1
        level = logging.WARNING if reason in _OVER_BUDGET else logging.INFO
        self._log.write(level, "connection closed", {"peer": peer, "reason": text}, kind=reason)

    def log_callback_failure(self, peer: str, callback: str, error: Exception) -> None:
        """Count and log that a connection is being closed because of a bug."""
        self.counts[CloseReason.CALLBACK] += 1
        self._log.log_callback_failure(peer, callback, error)


_OVER_BUDGET: Final = frozenset(
    {CloseReason.FRAME_BUDGET, CloseReason.UNAUTHENTICATED_BUDGET, CloseReason.REPLY_BUDGET}
)
"""Reasons that need an administrator's attention: an attack, or a budget that is too small for the clients."""


def _place(error: BaseException) -> str:
    """Return the file and line where an exception was raised."""
    traceback = error.__traceback__
    if traceback is None:
        return "?"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno}"
