"""The store as a replication stream sees it: bytes by offset, from wherever they are, and positions."""

from __future__ import annotations

from typing import Final, Protocol, final

from gantry_broker.errors import StoreError
from gantry_broker.ha.frames import StreamBroken
from gantry_broker.ha.history import History
from gantry_broker.store.copying import CopyRefused
from gantry_broker.store.message_store import MessageStore
from gantry_wire.message import INT


class Tail(Protocol):
    """Where a slave's records go in while this broker compares."""

    def append(self, data: bytes, offset: int) -> None: ...


@final
class StoreLog:
    """Reads in the loop's thread. What it gives is copied: a buffer may go to somebody else at any time."""

    def __init__(self, store: MessageStore, tail: Tail | None = None) -> None:
        self._store: Final = store
        self._tail: Final = tail

    @property
    def history(self) -> History:
        store = self._store
        return History(store.identity.epochs, store.min_physical, store.wrote)

    @property
    def wrote(self) -> int:
        return self._store.wrote

    @property
    def flushed(self) -> int:
        return self._store.flushed

    @property
    def confirmed(self) -> int:
        return self._store.confirmed

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Raw bytes of the log, fewer at the end of a piece of memory, none where there is no log."""
        view = self._store.log_view(offset)
        return bytes(view[:bytes_max])

    def whole_records(self, offset: int, bytes_max: int) -> bytes:
        """As many whole records as fit, at least one, of those that lie in one file. Empty at the log's end."""
        return whole_records(self._store, offset, bytes_max)

    def append_tail(self, data: bytes, offset: int) -> None:
        """Take back what a slave has kept, while this broker is no master yet. Raises ``StreamBroken``."""
        if self._tail is None:
            raise StreamBroken("this log takes no tail")
        try:
            self._tail.append(data, offset)
        except (StoreError, CopyRefused) as error:
            raise StreamBroken(f"the slave's tail cannot be taken: {error}") from error


def whole_records(store: MessageStore, offset: int, bytes_max: int) -> bytes:
    """As many whole records as fit, at least one, of those that lie in one file. Empty at the log's end."""
    newest = store.newest(offset)
    if newest and len(newest) <= bytes_max:
        return newest
    view = store.log_view(offset)
    if len(view) <= bytes_max:
        # Memory ends where a file, a buffer or the log does, and there a record does, too.
        return bytes(view)
    end = 0
    while True:
        size = INT.unpack_from(view, end)[0]
        assert 0 < size <= len(view) - end, f"a log that was checked has no record of {size} bytes at {offset + end}"
        if end and end + size > bytes_max:
            return bytes(view[:end])
        end += size
        if end >= bytes_max:
            return bytes(view[:end])
