"""How many bytes went to each slave, or came from the master, in the last second."""

from collections.abc import Callable
from typing import Final, final

from gantry_broker.ha.server import MasterStream
from gantry_broker.server.roles.replication import Replication
from gantry_broker.store.message_store import MessageStore


@final
class StreamSpeeds:
    """Owned by the loop; ``look`` is called about once a second."""

    def __init__(self, replication: Replication, store: MessageStore, now: Callable[[], float]) -> None:
        self.now: Final = now
        self.own = 0
        """Of a slave's log."""

        self._replication: Final = replication
        self._store: Final = store
        self._sent: dict[MasterStream, int] = {}
        self._speeds: dict[MasterStream, int] = {}
        self._wrote = -1
        self._looked_at = now()

    def __repr__(self) -> str:
        return f"<StreamSpeeds slaves={len(self._speeds)} own={self.own}>"

    def of(self, stream: MasterStream) -> int:
        """0 before there were two looks."""
        return self._speeds.get(stream, 0)

    def look(self) -> None:
        now = self.now()
        elapsed_s = now - self._looked_at
        if elapsed_s <= 0:
            return
        server = self._replication.server
        streams = () if server is None else tuple(server.streams)
        sent = {stream: stream.session.sent for stream in streams if stream.session is not None}
        self._speeds = {
            stream: int(max(0, position - self._sent.get(stream, position)) / elapsed_s)
            for stream, position in sent.items()
        }
        wrote = self._store.wrote
        self.own = int(max(0, wrote - self._wrote) / elapsed_s) if self._wrote >= 0 else 0
        self._sent, self._wrote, self._looked_at = sent, wrote, now
