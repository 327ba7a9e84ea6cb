"""The contract of the message store: all that the layers above may ask of it. ``MessageStore`` keeps it.

One directory holds the log of all messages, and consume queues and a key index that are derived from it:

    append --> wrote --> committed --> flushed     positions of ``log``
                 |--> promised                     ``positions``: a record that ends there may be acknowledged
                 `--> confirmed                    ``positions``: a record that ends there may be shown to consumers
    queues --> read, ``times``                     index --> ``keys``

Every record that is given away was verified on the very bytes that are given (``guard``). All of it belongs to the
loop's thread, except methods that wait for the disk: those run in a worker thread while nothing else uses the store.
The store's own threads move positions and call ``on_progress``; the loop then calls ``advance``, which acts on it.
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
from gantry_broker.store.opening import OpenPools
from gantry_broker.store.positions import LogPositions
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.reader import Accept, ReadResult, Want
from gantry_broker.store.record_taker import Progress
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.removal import HeadRemoval
from gantry_broker.store.settings import StoreSettings
from gantry_broker.store.time_search import TimeSearch


class StoreContract(Protocol):
    """A store directory in use by this process."""

    root: str
    settings: StoreSettings
    log: CommitLog
    """The log's bytes, and its positions ``min_physical``, ``wrote``, ``committed`` and ``flushed``."""
    queues: QueueTable
    positions: LogPositions
    dispatcher: Dispatcher
    """What is shown to consumers, and what is held back until it is confirmed."""
    has_index: bool
    keys: KeySearch
    """Messages by their keys."""
    times: TimeSearch
    """Store times of messages, and queue offsets by them."""
    guard: LogGuard
    """Verification of all that leaves the log, and the table of its damage."""
    repair: DerivedRepair
    """What rebuilds queues and index where they are found wrong; the server calls its ``step``."""
    removal: HeadRemoval
    """How the oldest files are deleted; retention decides which."""
    pools: OpenPools
    """The write buffers."""
    losses: LossKeeper
    """What is missing in the log and was not accepted, and what was accepted: ``losses.record``."""
    on_appended: list[QueuesListener]
    """Called once for each batch with the queues that have become longer for consumers."""
    on_wrote: list[Callable[[], None]]
    """Called after every append, in the same turn of the loop."""

    # -- life: these wait for the disk

    def open(
        self, progress: Progress | None = None, *, is_flushing: bool = True,
        on_locked: Callable[[], None] = lambda: None, is_tail_hidden: bool = False,
    ) -> RecoveryReport:  # fmt: skip
        """Lock, recover, and be ready. ``progress(done, total)`` is called with bytes read.

        ``on_locked`` is called as soon as the directory is ours, before anything in it is read. Without ``is_flushing``
        no threads run, for tests and tools that call ``commit_step`` and ``flush_step``. With ``is_tail_hidden``
        consumers see only what the recovery point knows as shown, until ``start_copying`` shows more. Raises
        ``StoreLocked``, ``StoreMismatch``, ``StoreFull``, ``ConfigCorrupt`` or ``StoreUnusable``.
        """

    def close(self) -> None:
        """Stop cleanly: commit and flush everything, remove the abort marker, close all files.

        If a flush fails or has failed, the marker stays, and the next start recovers.
        """

    def flush(self) -> int:
        """Wait until everything written is on the disk; up to where. Raises ``StoreFailed``."""

    def advance(self) -> bool:
        """Act on what the threads have done: take buffers back, show consumers what is confirmed now.

        False when there was no room to show all of it: call again, later. Does not wait for the disk.
        """

    @property
    def is_writable(self) -> bool:
        """Whether the store is open, and no write or sync has failed."""

    @property
    def identity(self) -> StoreIdentity:
        """Who this store is, and who wrote which part of its log."""

    @property
    def is_restarted(self) -> bool:
        """Whether the log was thrown away since this start, and copied anew."""

    # -- appending

    def append(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """Append a batch: (physical offsets, queue offsets). All or nothing.

        Raises ``StoreFull``, ``PoolExhausted``, ``LogReadOnly`` or ``MessageTooLarge``.
        """

    def append_contiguous(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """As ``append``, with all records in one file."""

    def note_answered(self) -> None:
        """A sender was answered that did not wait for the flush: all that is written counts as stored."""

    # -- reading

    def read(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int,
        accept: Accept = None, want: Want = None, units_max: int | None = None,
    ) -> ReadResult:  # fmt: skip
        """Messages of a queue from ``offset`` on; see ``reader``.

        Raises ``QueueRebuilding`` while the unit of ``offset`` is rebuilt. Most rebuilds take one step, which is taken
        at once.
        """

    def delete_topic(self, topic: str, before: int | None = None) -> bool:
        """Drop all queues of a topic; its messages stay in the log until they expire. False if it has none.

        A slave learns of it later: messages behind ``before`` are of a topic that was made again.
        """

    # -- a slave's side: the last four wait for the disk, and ``start_copying`` must follow them

    def start_copying(self) -> LogCopier:
        """Become a slave's store: records come from a master now, through what is returned, and in no other way."""

    def wake_threads(self) -> None:
        """A ``LogCopier`` has appended: wake the threads that have work, and the slaves."""

    def cut(self, end: int, epochs: Sequence[Epoch] | None = None) -> int:
        """Let the log end at ``end``, durably; how many bytes were cut. See ``standstill``."""

    def restart(self, begin: int, epochs: Sequence[Epoch]) -> None:
        """Throw everything away, and begin anew at ``begin``, where a log file begins."""

    def change_epochs(self, epochs: Sequence[Epoch]) -> None:
        """From now on the log has this history, on the disk, too."""

    def accept_loss(self, by: str) -> int:
        """Go on without what is missing, behind the vouched end; where the log ends then."""
