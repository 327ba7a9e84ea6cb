"""The store as a slave's session sees it, and what a welcome asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from gantry_broker.ha.frames import Welcome
from gantry_broker.ha.history import History
from gantry_broker.ha.store_log import whole_records
from gantry_broker.store.copying import LogCopier
from gantry_broker.store.identity import Epoch
from gantry_broker.store.message_store import MessageStore


@final
class SlaveStore:
    """Owned by the loop, but for ``prepare``, which waits for the disk while nobody else uses the store."""

    def __init__(self, store: MessageStore) -> None:
        self.store: Final = store
        self.copier: LogCopier | None = None

    @property
    def history(self) -> History:
        """Epochs that begin behind the end are known from a master, and nothing of them is here yet."""
        store = self.store
        if any(not lost.is_at_end for lost in store.loss.missing):
            return History([], 0, 0)  # a hole is filled by getting all of the log anew
        epochs = [epoch for epoch in store.identity.epochs if epoch.start <= store.wrote]
        return History(epochs, store.min_physical, store.wrote)

    @property
    def received(self) -> int:
        """Up to where the log survives this process."""
        return self.store.wrote if self.store.pool_status.is_crash_safe else self.store.committed

    @property
    def flushed(self) -> int:
        return self.store.flushed

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Raw bytes of the log, fewer at the end of a piece of memory, none where there is no log."""
        return bytes(self.store.log_view(offset)[:bytes_max])

    def whole_records(self, offset: int, bytes_max: int) -> bytes:
        """As many whole records as fit, at least one, of those that lie in one file. Empty at the log's end."""
        return whole_records(self.store, offset, bytes_max)

    def records_through(self, start: int, end: int) -> bytes:
        """Good records from ``start`` on until one ends at or behind ``end``; fewer where one is damaged."""
        return self.store.guard.records_through(start, end)

    def healthy_records(self, start: int, end: int) -> bytes:
        """Whole, verified records of ``[start, end)`` from ``start`` on; empty where there are none."""
        return self.store.guard.healthy_records(start, end)

    @property
    def is_behind(self) -> bool:
        """Whether confirmed messages could not be shown for want of room."""
        return self.store.is_behind

    def append(self, data: bytes, offset: int) -> None:
        """Raises what ``LogCopier.append`` raises."""
        assert self.copier is not None, "prepare() comes first"
        self.copier.append(data, offset)
        self.store.appended_elsewhere()

    def is_prepared(self, welcome: Welcome) -> bool:
        """Whether copying goes on where it was: nothing has to be cut or changed."""
        if welcome.is_restart and any(not lost.is_at_end for lost in self.store.loss.missing):
            return False
        is_same = welcome.epochs == self.store.identity.epochs and welcome.cut_to is None
        return self.copier is not None and is_same and not (welcome.is_restart and self._has_more(welcome))

    def _has_more(self, welcome: Welcome) -> bool:
        """Whether a new beginning would change anything."""
        return self.store.wrote > 0 or welcome.start > 0

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
        """Be ready to copy, from nobody yet. Reads the log from where consumers see it: not for the loop."""
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
