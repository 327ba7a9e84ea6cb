"""The contract of the message store: all operations that the layers above may use. ``MessageStore`` implements it.

One directory holds the log of all messages, and consume queues and a key index that are derived from it:

    append --> wrote --> committed --> flushed     positions of ``log``
                 |--> promised                     ``positions``: a record that ends there may be acknowledged
                 `--> confirmed                    ``positions``: a record that ends there is visible to consumers
    queues --> read, ``times``                     index --> ``keys``

Every record that leaves the store was verified on the bytes that are returned (``guard``). Everything belongs to the
loop's thread, except methods that wait for the disk: those run in a worker thread while nothing else uses the store;
only ``flush``, and methods of ``removal`` and ``guard`` that say so, may run while the store is in use. The store's own
threads move positions and call ``on_progress``; the loop then calls ``advance``, which acts on that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.copying import LogCopier
from gantry_broker.store.derived_repair import DerivedRepair
from gantry_broker.store.dispatcher import Dispatcher, QueuesListener
from gantry_broker.store.draft import Draft
from gantry_broker.store.identity import Epoch, StoreIdentity
from gantry_broker.store.key_search import KeySearch
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.loss import LossKeeper
from gantry_broker.store.opening import WritePools
from gantry_broker.store.positions import LogPositions
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.reader import PropertiesFilter, ReadResult, TagsCodeFilter
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.removal import OldestFilesRemoval
from gantry_broker.store.scan_dispatcher import Progress
from gantry_broker.store.settings import StoreSettings
from gantry_broker.store.time_search import TimeSearch


class StoreContract(Protocol):
    """A store directory that this process has open."""

    root: str
    """The directory of the store."""

    settings: StoreSettings
    log: CommitLog
    """The log's bytes, and its positions ``min_physical``, ``wrote``, ``committed`` and ``flushed``."""
    queues: QueueTable
    """All consume queues of the store, by topic and queue id."""

    positions: LogPositions
    """How far the log is promised to producers, and confirmed for consumers."""

    dispatcher: Dispatcher
    """Makes messages visible to consumers, and holds them back until they are confirmed."""
    has_index: bool
    """Whether the store has a key index (``messageIndexEnable``)."""

    keys: KeySearch
    """Finds messages by their keys."""
    times: TimeSearch
    """Finds store times of messages, and queue offsets by store time."""
    guard: LogGuard
    """Verifies everything that leaves the log, and keeps the table of its damage."""
    repair: DerivedRepair
    """Rebuilds queues and index where they are found wrong; the server calls its ``step``."""
    removal: OldestFilesRemoval
    """Deletes the oldest files; retention decides which."""
    pools: WritePools
    """The write buffers and their pools."""
    losses: LossKeeper
    """Keeps the record of missing log data and of accepted losses: ``losses.record``."""
    on_appended: list[QueuesListener]
    """Called with queues that have become longer for consumers, after one batch or several, and with repaired ones."""
    on_wrote: list[Callable[[], None]]
    """Called after every append, in the same turn."""

    # -- opening and closing; ``open``, ``close`` and ``flush`` wait for the disk

    def open(
        self, progress: Progress | None = None, *, is_flushing: bool = True,
        on_locked: Callable[[], None] = lambda: None, is_unconfirmed_hidden: bool = False,
    ) -> RecoveryReport:  # fmt: skip
        """Lock the directory, recover the store and start it. ``progress(done, total)`` counts bytes of the log.

        ``done`` is counted from the start of the log, also if only its end is read. ``on_locked`` is called as soon as
        the directory is locked, before anything in it is read. Without ``is_flushing`` no threads run, for tests and
        tools that call ``commit_step`` and ``flush_step``. With ``is_unconfirmed_hidden`` consumers see only messages
        before the recovery point, or none without a usable one, until the others are made visible by the ``LogCopier``
        of ``start_copying``. Raises ``StoreLocked``, ``StoreMismatch``, ``LogFileDamaged``, ``StoreFull``,
        ``ConfigCorrupt`` or ``StoreUnusable``.
        """

    def close(self) -> None:
        """Stop cleanly: commit and flush everything, remove the abort marker, and close all files.

        If a flush fails or has failed, or the disk has no room for the recovery point, the marker stays, and the next
        start recovers.
        """

    def flush(self) -> int:
        """Wait until everything written is on the disk, and return the flushed end. Raises ``StoreFailed``."""

    def advance(self) -> bool:
        """Act on the progress of the threads: return buffers, and make newly confirmed messages visible.

        Return False if there was no disk space to make all of them visible; call it again later. Does not wait for
        the disk.
        """

    @property
    def is_writable(self) -> bool:
        """Whether the store is open, and no write or sync has failed."""

    @property
    def identity(self) -> StoreIdentity:
        """The identity of this store, and the epochs in which its log was written."""

    @property
    def is_log_discarded(self) -> bool:
        """Whether the log was discarded since this start, to be copied again."""

    # -- appending

    def append(self, drafts: Sequence[Draft]) -> tuple[Sequence[int], Sequence[int]]:
        """Append a batch and return (physical offsets, queue offsets), all or nothing.

        Raises ``StoreFull``, ``PoolExhausted``, ``LogReadOnly`` or ``MessageTooLarge``.
        """

    def append_contiguous(self, drafts: Sequence[Draft]) -> tuple[Sequence[int], Sequence[int]]:
        """Append a batch as ``append`` does, with all records in one file."""

    def note_answered(self) -> None:
        """Record that a sender was answered before a flush, so everything written so far must survive a kill."""

    # -- reading

    def read(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int,
        accept: TagsCodeFilter = None, want: PropertiesFilter = None, units_max: int | None = None,
    ) -> ReadResult:  # fmt: skip
        """Return messages of a queue from ``offset`` on; see ``reader``.

        Raises ``QueueRebuilding`` while the unit of ``offset`` is rebuilt. Most rebuilds need one step, which runs at
        once.
        """

    def delete_topic(self, topic: str, before: int | None = None) -> bool:
        """Delete all queues of a topic; its messages stay in the log until they expire. False if it has no queue.

        A slave receives the deletion later: messages after ``before`` belong to a topic that was created again.
        """

    # -- a slave's side, and changes of the whole log
    #
    # The four methods before ``prepare_void`` wait for the disk, and so do the function that it returns, and
    # ``start_copying``, which reads the part of the log that is in no queue yet. A ``LogCopier`` that was made before
    # the log was truncated or discarded, or before a loss was accepted, must not be used afterwards: call
    # ``start_copying`` again.

    def start_copying(self) -> LogCopier:
        """Switch to the slave role: from now on records are appended only through the returned copier."""

    @property
    def is_flush_awaited(self) -> bool:
        """Whether each append is flushed at once."""

    def await_flushes(self, *, is_awaited: bool) -> None:
        """Flush each append at once, as SYNC_FLUSH does, or no longer, if the settings do not demand it.

        For a slave whose master waits for its disk.
        """

    def wake_threads(self) -> None:
        """Wake the threads that have work, and the slaves, after a ``LogCopier`` has appended."""

    def truncate(self, end: int, epochs: Sequence[Epoch] | None = None) -> int:
        """Truncate the log at ``end``, durably, and return how many bytes were removed. See ``log_changes``."""

    def discard_log(self, begin: int, epochs: Sequence[Epoch]) -> None:
        """Discard the whole log, and begin an empty one at ``begin``, where a log file begins."""

    def change_epochs(self, epochs: Sequence[Epoch]) -> None:
        """Replace the epoch history of the log, durably."""

    def accept_loss(self, by: str) -> int:
        """Accept the loss of missing log data and continue after the recorded end; return the new end of the log.

        Raises ``StoreFull`` or ``StoreFailed``; see ``log_changes``.
        """

    def prepare_void(self, start: int) -> Callable[[], None]:
        """Return a function that durably replaces the damaged records from ``start`` on by void ones.

        No replica has them. The store fails afterwards, since it must be opened again. Raises ValueError for too small
        a range; see ``log_changes``.
        """
