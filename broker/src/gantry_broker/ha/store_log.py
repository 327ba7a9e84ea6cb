"""The store as replication uses it: bytes by offset, positions, and on a slave the changes that a welcome demands."""

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
    """Reads the log in the loop's thread. Results are copies, because buffers are reused at any time."""

    def __init__(self, store: MessageStore) -> None:
        self.store: Final = store

    @property
    def flushed(self) -> int:
        return self.store.log.flushed

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return raw bytes of the log: fewer at the end of a memory region, none outside of the log."""
        return bytes(self.store.log.view(offset)[:bytes_max])

    def read_verified(self, offset: int, bytes_max: int) -> bytes:
        """Return as many whole, verified records of one file as fit, at least one.

        Empty at the end of the log, and where the record at ``offset`` is damaged. The last append is read from memory.
        """
        newest = self.store.log.newest(offset)
        if newest and len(newest) <= bytes_max:
            return newest
        return self.store.guard.read_verified(offset, bytes_max)

    def read_verified_through(self, start: int, end: int) -> bytes:
        """Return good records from ``start`` until one ends at or after ``end``; fewer where one is damaged."""
        return self.store.guard.read_verified_through(start, end)

    def read_verified_range(self, start: int, end: int) -> bytes:
        """Return whole, verified records of ``[start, end)`` from ``start`` on; empty where there are none."""
        return self.store.guard.read_verified_range(start, end)


class TailReceiver(Protocol):
    """Receives a slave's records while this broker compares its log with its slaves."""

    def append(self, data: bytes, offset: int) -> None: ...


@final
class MasterStore(StoreReader):
    """A master's log, for the streams to its slaves."""

    def __init__(self, store: MessageStore, tail: TailReceiver | None = None) -> None:
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
        """Return verified bytes from ``offset`` to the end of its record; empty where a record begins or is damaged."""
        return self.store.guard.rest_of_record(offset)

    def find_record_start(self, offset: int) -> int:
        """Return the start of the record that contains ``offset``, or the end of the record before a damaged one."""
        return self.store.guard.find_record_start(offset)

    def end_of_damage(self, offset: int) -> int:
        """Return where the log is good again after the damage at ``offset``."""
        return self.store.guard.end_of_damage(offset)

    def append_tail(self, data: bytes, offset: int) -> None:
        """Append records that this log has lost, before this broker is the master. Raises ``StreamBroken``."""
        if self._tail is None:
            raise StreamBroken("this master accepts no tail")
        try:
            self._tail.append(data, offset)
        except (StoreError, CopyRefused) as error:
            raise StreamBroken(f"cannot append the slave's tail: {error}") from error


@final
class SlaveStore(StoreReader):
    """A slave's store. Owned by the loop, except for methods that wait for the disk: those have it exclusively.

    They are ``prepare``, ``prepare_copying``, ``promote`` and ``accept_loss``.
    """

    def __init__(self, store: MessageStore, *, is_flush_awaited: bool = False) -> None:
        """``is_flush_awaited``: masters wait until messages are on the disk of this slave."""
        super().__init__(store)
        self._is_flush_awaited: Final = is_flush_awaited
        self.copier: LogCopier | None = None
        """Appends the master's records; None until the store is prepared."""

    @property
    def history(self) -> History:
        """The range of this log, and the epochs that begin in it or at its end; nothing for a log with a hole.

        Later epochs are known from a master, and excluded.
        """
        store = self.store
        if any(not lost.is_at_end for lost in store.losses.record.missing):
            return History([], 0, 0)  # Only a copy of the whole log fills a hole.
        epochs = [epoch for epoch in store.identity.epochs if epoch.start <= store.log.wrote]
        return History(epochs, store.log.min_physical, store.log.wrote)

    @property
    def received(self) -> int:
        """Position up to which the log survives a crash of this process."""
        return self.store.log.wrote if self.store.pools.status.is_crash_safe else self.store.log.committed

    @property
    def is_behind(self) -> bool:
        """Whether confirmed messages wait for room on the disk for queue units, or for the repair of a damaged one."""
        is_waiting_for_repair = self.copier is not None and self.copier.is_waiting_for_repair
        return self.store.dispatcher.is_behind or is_waiting_for_repair

    def append(self, data: bytes, offset: int) -> None:
        """Append records. Raises what ``LogCopier.append`` raises."""
        assert self.copier is not None, "prepare() comes first"
        self.copier.append(data, offset)
        self.store.wake_threads()

    def is_prepared(self, welcome: Welcome) -> bool:
        """Return whether copying can continue without a change of the log or of its history."""
        if welcome.is_restart and any(not lost.is_at_end for lost in self.store.losses.record.missing):
            return False
        is_same = welcome.epochs == self.store.identity.epochs and welcome.cut_to is None
        return self.copier is not None and is_same and not (welcome.is_restart and self._is_discard_needed(welcome))

    def _is_discard_needed(self, welcome: Welcome) -> bool:
        """Return whether discarding the log would change anything: it has bytes, or must begin elsewhere."""
        return self.store.log.wrote > 0 or welcome.start > 0

    def prepare(self, welcome: Welcome) -> None:
        """Remove bytes that the master never had, adopt its history, and get ready to copy. Raises ``StoreFailed``."""
        store = self.store
        self.copier = None
        if welcome.is_restart and self._is_discard_needed(welcome):
            store.discard_log(welcome.start, welcome.epochs)
        elif welcome.cut_to is not None:
            store.truncate(welcome.cut_to, welcome.epochs)
        elif welcome.epochs != store.identity.epochs:
            store.change_epochs(welcome.epochs)
        self._begin_copying()

    def accept_loss(self, by: str) -> None:
        """Continue the log after the missing range. Waits for the disk."""
        self.copier = None
        self.store.accept_loss(by)

    def prepare_copying(self) -> None:
        """Create the copier before a master is known.

        It reads the part of the log that is not visible to consumers yet, so it must not run in the loop's thread.
        """
        if self.copier is None:
            self._begin_copying()

    def _begin_copying(self) -> None:
        self.copier = self.store.start_copying()
        self.store.await_flushes(is_awaited=self._is_flush_awaited)

    def promote(self, epochs: Sequence[Epoch]) -> None:
        """Make this store a master's, whose last epoch in ``epochs`` is the new term's. Waits for the disk.

        Damaged records that are in no queue yet are reported and left out. Raises ``StoreCorrupt`` for one that was
        damaged at this moment; the next call tries again.
        """
        if self.copier is not None:
            for offset in self.copier.find_damage():
                self.store.report_unplaced(offset)
        if list(epochs) != self.store.identity.epochs:
            self.store.change_epochs(epochs)
        if self.copier is not None:
            self.copier.hold_undispatched()
            self.copier = None
        self.store.repair.is_copying = False
        self.store.await_flushes(is_awaited=False)

    def dispatch(self, confirmed: int) -> bool:
        """Make confirmed messages visible to consumers. Return False if more remain."""
        return self.copier is None or self.copier.dispatch(confirmed)

    async def dispatch_all(self, confirmed: int) -> None:
        """Make all confirmed messages visible, in pieces between turns of the loop; fewer without room."""
        while True:
            if self.dispatch(confirmed) or self.is_behind:
                return
            await asyncio.sleep(0)
