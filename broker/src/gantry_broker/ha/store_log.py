"""The store as a replication stream sees it: bytes by offset, from wherever they are, and positions."""

from __future__ import annotations

from typing import Final, Protocol, final

from gantry_broker.errors import StoreError
from gantry_broker.ha.frames import StreamBroken
from gantry_broker.ha.history import History
from gantry_broker.store.copying import CopyRefused
from gantry_broker.store.message_store import MessageStore


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

    def rest_of_record(self, offset: int) -> bytes:
        """Verified bytes from ``offset`` to the end of the record that it lies in the middle of; empty at its begin."""
        return self._store.guard.rest_of_record(offset)

    def record_around(self, offset: int) -> int:
        """Where the record begins that ``offset`` lies in or at; if that is damaged, where the one before it ends."""
        return self._store.guard.record_around(offset)

    def records_through(self, start: int, end: int) -> bytes:
        """Good records from ``start`` on until one ends at or behind ``end``; fewer where one is damaged."""
        return self._store.guard.records_through(start, end)

    def end_of_damage(self, offset: int) -> int:
        """Where the log is good again behind the damage at ``offset``."""
        return self._store.guard.end_of_damage(offset)

    def healthy_records(self, start: int, end: int) -> bytes:
        """Whole, verified records of ``[start, end)`` from ``start`` on; empty where there are none."""
        return self._store.guard.healthy_records(start, end)

    def append_tail(self, data: bytes, offset: int) -> None:
        """Take back what a slave has kept, while this broker is no master yet. Raises ``StreamBroken``."""
        if self._tail is None:
            raise StreamBroken("this log takes no tail")
        try:
            self._tail.append(data, offset)
        except (StoreError, CopyRefused) as error:
            raise StreamBroken(f"the slave's tail cannot be taken: {error}") from error


def whole_records(store: MessageStore, offset: int, bytes_max: int) -> bytes:
    """As many whole, verified records as fit, at least one, of those that lie in one file.

    Empty at the log's end, and where the record at ``offset`` is damaged. What was appended last is still in memory.
    """
    newest = store.newest(offset)
    if newest and len(newest) <= bytes_max:
        return newest
    return store.whole_records(offset, bytes_max)
