"""The store as replication sees it: bytes by offset and positions; for a slave, what a welcome asks of it, too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, final

from gantry_broker.errors import StoreError
from gantry_broker.ha.frames import StreamBroken, Welcome
from gantry_broker.ha.history import History
from gantry_broker.store.copying import CopyRefused, LogCopier
from gantry_broker.store.identity import Epoch
from gantry_broker.store.message_store import MessageStore


class StoreReader:
    """Reads in the loop's thread. What it gives is copied: a buffer may be used for something else at any time."""

    def __init__(self, store: MessageStore) -> None:
        self.store: Final = store

    @property
    def flushed(self) -> int:
        return self.store.log.flushed

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Raw bytes of the log, fewer at the end of a piece of memory, none where there is no log."""
        return bytes(self.store.log.view(offset)[:bytes_max])

    def whole_records(self, offset: int, bytes_max: int) -> bytes:
        """As many whole, verified records as fit, at least one, of those that lie in one file.

        Empty at the end of the log, and where the record at ``offset`` is damaged. What was appended last is in memory.
        """
        newest = self.store.log.newest(offset)
        if newest and len(newest) <= bytes_max:
            return newest
        return self.store.guard.whole_records(offset, bytes_max)

    def records_through(self, start: int, end: int) -> bytes:
        """Good records from ``start`` on until one ends at or behind ``end``; fewer where one is damaged."""
        return self.store.guard.records_through(start, end)

    def healthy_records(self, start: int, end: int) -> bytes:
        """Whole, verified records of ``[start, end)`` from ``start`` on; empty where there are none."""
        return self.store.guard.healthy_records(start, end)


class Tail(Protocol):
    """Where a slave's records go in while this broker compares."""

    def append(self, data: bytes, offset: int) -> None: ...


@final
class StoreLog(StoreReader):
    """A master's log, for the streams to its slaves."""

    def __init__(self, store: MessageStore, tail: Tail | None = None) -> None:
        super().__init__(store)
        self._tail: Final = tail

    @property
    def history(self) -> History:
        store = self.store
        return History(store.identity.epochs, store.log.min_physical, store.log.wrote)

    @property
    def wrote(self) -> int:
        return self.store.log.wrote

    @property
    def confirmed(self) -> int:
        return self.store.positions.confirmed

    def rest_of_record(self, offset: int) -> bytes:
        """Verified bytes from ``offset`` to the end of the record that it lies in the middle of; empty at its begin."""
        return self.store.guard.rest_of_record(offset)

    def record_around(self, offset: int) -> int:
        """Where the record begins that ``offset`` lies in or at; if that is damaged, where the one before it ends."""
        return self.store.guard.record_around(offset)

    def end_of_damage(self, offset: int) -> int:
        """Where the log is good again behind the damage at ``offset``."""
        return self.store.guard.end_of_damage(offset)

    def append_tail(self, data: bytes, offset: int) -> None:
        """Take back what a slave has kept, while this broker is no master yet. Raises ``StreamBroken``."""
        if self._tail is None:
            raise StreamBroken("this log takes no tail")
        try:
            self._tail.append(data, offset)
        except (StoreError, CopyRefused) as error:
            raise StreamBroken(f"the slave's tail cannot be taken: {error}") from error


@final
class SlaveStore(StoreReader):
    """Owned by the loop, but for ``prepare``, which waits for the disk while nothing else uses the store."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store)
        self.copier: LogCopier | None = None

    @property
    def history(self) -> History:
        """Epochs that begin behind the end are known from a master, and nothing of them is here yet."""
        store = self.store
        if any(not lost.is_at_end for lost in store.losses.record.missing):
            return History([], 0, 0)  # a hole is filled by getting all of the log anew
        epochs = [epoch for epoch in store.identity.epochs if epoch.start <= store.log.wrote]
        return History(epochs, store.log.min_physical, store.log.wrote)

    @property
    def received(self) -> int:
        """Up to where the log survives this process."""
        return self.store.log.wrote if self.store.pools.status.is_crash_safe else self.store.log.committed

    @property
    def is_behind(self) -> bool:
        """Whether confirmed messages could not be shown for want of room."""
        return self.store.dispatcher.is_behind

    def append(self, data: bytes, offset: int) -> None:
        """Raises what ``LogCopier.append`` raises."""
        assert self.copier is not None, "prepare() comes first"
        self.copier.append(data, offset)
        self.store.wake_threads()

    def is_prepared(self, welcome: Welcome) -> bool:
        """Whether copying continues where it was: nothing has to be cut or changed."""
        if welcome.is_restart and any(not lost.is_at_end for lost in self.store.losses.record.missing):
            return False
        is_same = welcome.epochs == self.store.identity.epochs and welcome.cut_to is None
        return self.copier is not None and is_same and not (welcome.is_restart and self._has_more(welcome))

    def _has_more(self, welcome: Welcome) -> bool:
        """Whether a new beginning would change anything."""
        return self.store.log.wrote > 0 or welcome.start > 0

    def prepare(self, welcome: Welcome) -> None:
        """Cut what the master never had, take its history over, and be ready to copy. Raises ``StoreFailed``."""
        store = self.store
        self.copier = None
        if welcome.is_restart and self._has_more(welcome):
            store.restart(welcome.start, welcome.epochs)
        elif welcome.cut_to is not None:
            store.cut(welcome.cut_to, welcome.epochs)
        elif welcome.epochs != store.identity.epochs:
            store.change_epochs(welcome.epochs)
        self.copier = store.start_copying()

    def accept_loss(self, by: str) -> None:
        """Go on behind what is missing. Waits for the disk."""
        self.copier = None
        self.store.accept_loss(by)

    def copy(self) -> None:
        """Be ready to copy, from no master yet. Reads the log from where consumers read it: not for the loop."""
        if self.copier is None:
            self.copier = self.store.start_copying()

    def promote(self, epochs: Sequence[Epoch]) -> None:
        """This store is a master's from now on, with a history that ends in its own epoch. Waits for the disk."""
        copier, self.copier = self.copier, None
        if list(epochs) != self.store.identity.epochs:
            self.store.change_epochs(epochs)
        if copier is not None:
            copier.hand_over()

    def dispatch(self, confirmed: int) -> bool:
        """Show consumers what is confirmed. False if there is more to show."""
        return self.copier is None or self.copier.dispatch(confirmed)

    async def dispatch_all(self, confirmed: int) -> None:
        """Show consumers all that is confirmed, a piece in each turn of the loop; less if there is no room for it."""
        while True:
            if self.dispatch(confirmed) or self.is_behind:
                return
            await asyncio.sleep(0)
