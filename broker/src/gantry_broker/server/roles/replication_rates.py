"""How fast logs and streams grow, by samples that are taken about once a second."""

from __future__ import annotations

from collections import deque
from typing import Final, final

from gantry_broker.ha.server import MasterStream, ReplicationServer
from gantry_broker.store.message_store import MessageStore

WINDOWS: Final = 60


@final
class PeakRate:
    """How much a log has grown in a second lately, at most: what a master may have taken unseen is estimated by it.

    Every second lies in two neighbouring samples, so pairs are counted.
    """

    def __init__(self) -> None:
        self._grown: Final[deque[int]] = deque(maxlen=WINDOWS)
        self._last: int | None = None

    def sample(self, wrote: int) -> None:
        """The log ends there now."""
        if self._last is not None:
            self._grown.append(max(0, wrote - self._last))
        self._last = wrote

    def bytes_per_s(self, wrote: int) -> int | None:
        """At least what was taken in any second since about a minute ago, where the log ends at ``wrote`` now.

        None before the first sample.
        """
        if self._last is None:
            return None
        grown = [*self._grown, max(0, wrote - self._last)]
        return max(one + other for one, other in zip([0, *grown], grown, strict=False))


@final
class StreamSpeeds:
    """How many bytes went to each slave, or came from the master, in the last second. Owned by the loop."""

    def __init__(self, server: ReplicationServer, store: MessageStore) -> None:
        self.own = 0
        """Of a slave's log."""

        self._server: Final = server
        self._store: Final = store
        self._sent: dict[MasterStream, int] = {}
        self._speeds: dict[MasterStream, int] = {}
        self._wrote = 0
        self._sampled_at: float | None = None

    def __repr__(self) -> str:
        return f"<StreamSpeeds slaves={len(self._speeds)} own={self.own}>"

    def of(self, stream: MasterStream) -> int:
        """0 before there were two samples."""
        return self._speeds.get(stream, 0)

    def sample(self, now: float) -> None:
        """Take a sample at loop time ``now``."""
        sampled_at = self._sampled_at
        if sampled_at is not None and now <= sampled_at:
            return
        wrote = self._store.log.wrote
        sent = {stream: stream.session.sent for stream in self._server.streams if stream.session is not None}
        if sampled_at is not None:
            elapsed_s = now - sampled_at
            self._speeds = {
                stream: int(max(0, position - self._sent.get(stream, position)) / elapsed_s)
                for stream, position in sent.items()
            }
            self.own = int(max(0, wrote - self._wrote) / elapsed_s)
        self._sent, self._wrote, self._sampled_at = sent, wrote, now
