"""The store as a slave's session sees it, and what a welcome asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from gantry_broker.ha.frames import Welcome
from gantry_broker.ha.history import History
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

    def append(self, data: bytes, offset: int) -> None:
        """Raises what ``LogCopier.append`` raises."""
        assert self.copier is not None, "prepare() comes first"
        self.copier.append(data, offset)
        self.store.appended_elsewhere()

    def prepare(self, welcome: Welcome) -> None:
        """Cut what the master never had, take its history over, and be ready to copy. Raises ``FlushFailed``."""
        store = self.store
        self.copier = None
        if welcome.is_restart and (store.wrote > 0 or welcome.start > 0):
            store.restart(welcome.start, welcome.epochs)
        elif welcome.cut_to is not None:
            store.cut(welcome.cut_to, welcome.epochs)
        elif welcome.epochs != store.identity.epochs:
            store.change_epochs(welcome.epochs)
        self.copier = store.start_copying()

    def promote(self, epochs: Sequence[Epoch]) -> None:
        """This store is a master's from now on, with a history that ends in its own epoch. Waits for the disk."""
        copier, self.copier = self.copier, None
        self.store.change_epochs(epochs)
        if copier is not None:
            copier.hand_over()

    def dispatch(self, confirmed: int) -> bool:
        """Show consumers what is confirmed. False if there is more to show."""
        return self.copier is None or self.copier.dispatch(confirmed)
