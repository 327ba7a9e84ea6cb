"""The lifecycle of a store: its parts are built, opened in a fixed order, and closed in the reverse order.

    open    lock -> small files -> log -> write buffers -> recovery with queues, index -> next generation -> threads
    close   threads stopped -> flush -> recovery point -> buffers given back -> `abort` removed -> lock released

The generation is the number of this start, which is stored in `store.json`. The durability guarantees depend on this
order; each step names what it relies on. While a store is opened or closed it belongs to the thread that does so,
before and after that to the loop's thread. ``MessageStore`` is the public interface.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, final

import msgspec

from gantry_broker.errors import StoreFailed, StoreLocked, StoreUnusable, describe_disk_error
from gantry_broker.ports.buffers import BufferVolume
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk, DiskLock
from gantry_broker.store.checkpoint import Checkpoint, CheckpointContent
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.committer import Committer
from gantry_broker.store.dispatcher import Dispatcher, QueuesListener
from gantry_broker.store.existing_sizes import raise_on_other_file_sizes
from gantry_broker.store.failure import FailureRecord, StoreFailure
from gantry_broker.store.file_heads import (
    ComparedHeads,
    FileHead,
    HeadKeeper,
    LogHeads,
    SetAsideFile,
    compare_heads,
    set_aside_file,
)
from gantry_broker.store.file_queue import make_durable_directory
from gantry_broker.store.flusher import Flusher
from gantry_broker.store.identity import Epoch, IdentityFile, StoreIdentity, create_identity
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.log_end import LogEnd, LogEndFile
from gantry_broker.store.loss import (
    LossKeeper,
    find_missing,
    is_missing_data_restored,
    missing_bytes,
    recorded_range,
)
from gantry_broker.store.opening import (
    AbortMarker,
    WritePools,
    find_first_unsealed,
    find_rocketmq_start,
    report_missing_files,
    seals_of,
    write_identity_or_keep,
)
from gantry_broker.store.ownership import select_own_files
from gantry_broker.store.point_writer import RecoveryPointWriter
from gantry_broker.store.queue_search import QueueSearch
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.recovery_execution import FoundStore, Recovery
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.removal import OldestFilesRemoval
from gantry_broker.store.replay import ExpectedHeader
from gantry_broker.store.scan_dispatcher import Progress
from gantry_broker.store.settings import StoreSettings
from gantry_store_files.segments import segment_name

log = logging.getLogger(__name__)


def _distrust_point(point: RecoveryPoint | None) -> RecoveryPoint | None:
    """Return the point without its positions, so that the whole log is read and all derived files are rebuilt."""
    return None if point is None else msgspec.structs.replace(point, through=-1, tail=-1)


def _count_truncation(identity: StoreIdentity, heads: LogHeads | None, end: int) -> StoreIdentity:
    """Return the identity with one more truncation if this start removed, or lost, the first record of a file."""
    if heads is None:
        return identity
    is_head_lost = any(head.base_offset >= end for head in heads.heads)
    return msgspec.structs.replace(identity, cuts=max(identity.cuts, heads.cuts) + is_head_lost)


@final
class StoreLifecycle:
    """The parts of one store, and the steps in which it opens and closes.

    ``MessageStore`` passes some of the parts on as its own attributes; ``log_changes`` uses the others.
    """

    def __init__(
        self,
        root: str,
        settings: StoreSettings,
        *,
        disk: Disk,
        clock: Clock,
        listeners: list[QueuesListener],
        on_fatal: Callable[[Exception], None],
        on_progress: Callable[[], None],
        open_volume: Callable[[str], BufferVolume],
        memory_scope: str = "",
    ) -> None:
        self.root: Final = root
        self.settings: Final = settings
        self.identity: StoreIdentity = create_identity(0)
        self._disk: Final = disk
        self._clock: Final = clock
        self._on_progress: Final = on_progress
        self.log: Final = CommitLog(disk, f"{root}/commitlog", settings, clock)
        self.queues: Final = QueueTable(disk, f"{root}/consumequeue", settings, on_progress)
        self.index: Final = KeyIndex(disk, f"{root}/index", settings, clock) if settings.is_index_enabled else None
        self.dispatcher: Final = Dispatcher(self.index, listeners)
        self._abort: Final = AbortMarker(disk, root)
        self._checkpoint: Final = Checkpoint(disk, root)
        self._point_file: Final = RecoveryPointFile(disk, root)
        self._identity_file: Final = IdentityFile(disk, root)
        self._failure_record: Final = FailureRecord(disk, root)
        boot_id = clock.boot_id()
        self.log_end: Final = LogEndFile(disk, root, f"{boot_id}/{memory_scope}" if boot_id else "")
        self.is_log_discarded = False
        """Whether the log was discarded, and an empty one begun, since this process opened the store."""
        self.failure: Final = StoreFailure(self.log, self._failure_record, on_fatal)
        self.flusher: Final = Flusher(
            settings.flush, clock, self.log, self.failure, on_progress, lambda: self.point_writer.wake()
        )
        self.losses: Final = LossKeeper(disk, root, self.log, self.flusher.flush)
        self.heads: Final = HeadKeeper(disk, root, self.log)
        self.point_writer: Final = RecoveryPointWriter(
            settings.flush, clock, self.log, self.dispatcher, self.queues, self.index, self._checkpoint,
            self._point_file, self.flusher, self.failure, self.heads, lambda: self.identity,
        )  # fmt: skip
        self.pools: Final = WritePools(settings.pool, open_volume, file_size=settings.mapped_file_size_commit_log)
        self.committer: Committer | None = None
        self.removal: Final = OldestFilesRemoval(
            self.log, self.dispatcher, self.queues, self.index, self.point_writer.request_point, self.failure.report,
            self._checkpoint.raise_begin,
        )  # fmt: skip
        """Deletes the oldest files; retention decides which."""
        self._lock: DiskLock | None = None
        self.is_open = False
        self._is_running = False

    # -- opening -------------------------------------------------------------------------------------------------------

    def open(
        self,
        progress: Progress | None,
        *,
        is_flushing: bool,
        on_locked: Callable[[], None],
        is_unconfirmed_hidden: bool = False,
    ) -> RecoveryReport:
        """Open the store, as ``StoreContract.open`` describes."""
        disk, root = self._disk, self.root
        try:
            make_durable_directory(disk, f"{root}/commitlog")
            try:
                self._lock = disk.lock(f"{root}/lock")
            except BlockingIOError as exc:
                raise StoreLocked(f"another process uses the store in {root}: stop it first") from exc
            on_locked()
            report = self._recover(progress, is_unconfirmed_hidden=is_unconfirmed_hidden)
        except OSError as exc:
            self._release()
            raise StoreUnusable(f"the store in {root} could not be opened: {describe_disk_error(exc)}") from exc
        except BaseException:
            self._release()
            raise
        self.is_open = True
        if is_flushing:
            self.start_threads()
        return report

    def start_threads(self) -> None:
        """Start the flush, recovery point and commit threads."""
        self._is_running = True
        self.flusher.start()
        self.point_writer.start()
        if self.committer is not None:
            self.committer.start()

    def stop_threads(self) -> bool:
        """Stop the helper threads after their current rounds. Return whether they were running."""
        was_running, self._is_running = self._is_running, False
        if self.committer is not None:
            self.committer.stop()
        self.flusher.stop()
        self.point_writer.stop()
        return was_running

    def _recover(self, progress: Progress | None, *, is_unconfirmed_hidden: bool) -> RecoveryReport:
        is_clean = not self._abort.is_present()
        checkpoint = self._checkpoint.read()
        point = self._point_file.read()
        heads = self.heads.read()
        compared = self._compare(heads, checkpoint)
        own = select_own_files(self._identity_file, point, heads, compared)
        identity, point, heads = own.identity, own.point, own.heads
        self.losses.read()
        report_missing_files(
            self._disk, self.root, identity=identity, point=point, checkpoint=checkpoint, is_clean=is_clean
        )
        raise_on_other_file_sizes(point, self.settings, self._disk, self.root)
        log_end_page = self.log_end.read(identity) if checkpoint.is_ours else None
        set_aside = self._set_aside_foreign_files(identity, heads, compared, log_end_page)
        self.log.load()
        rocketmq_start = find_rocketmq_start(checkpoint, point, self.log.min_physical)
        self.pools.open(identity)
        self._abort.create()
        is_restored = is_missing_data_restored(self.losses.record, self.log.min_physical, self.log.fillers)
        found = FoundStore(
            root=self.root,
            point=_distrust_point(point) if is_restored else point,
            is_clean=is_clean and not is_restored,
            sealed_flushed=checkpoint.flushed,
            failed_flushed=self._failure_record.read(),
            buffers=self.pools.find_leftover(),
            expected=ExpectedHeader.of(identity, self.log.file_size, is_clean=is_clean),
            seals=seals_of(identity, rocketmq_start),
            written=log_end_page.end if log_end_page is not None else 0,
        )
        recovery = Recovery(
            self._disk, self.settings, self.log, self.queues, self.index, self._point_file, progress
        )  # fmt: skip
        recovered = self._run_recovery(recovery, found)
        recorded = recorded_range(point, checkpoint, identity, self.losses.record, written=found.written)
        # If the newest file is set aside, at least its first byte was written by this store: its offsets must not be
        # used again.
        recorded = recorded._replace(end=max(recorded.end, *(file.base_offset + 1 for file in set_aside), 0))
        missing = find_missing(
            recorded,
            begin=self.log.min_physical,
            end=recovered.end,
            holes=self.log.fillers.holes,
            record=self.losses.record,
        )
        report = replace(
            recovered,
            set_aside=[file.path for file in set_aside] + recovered.set_aside,
            buffers_present=self.pools.present,
            missing=missing,
            lost_flushed_bytes=max(recovered.lost_flushed_bytes, missing_bytes(missing)),
        )
        self.losses.record_missing(report.missing, point.queues if point is not None else {}, report.queue_ends)
        report.log_summary()
        if rocketmq_start is not None and identity is not None:
            rocketmq_start = find_first_unsealed(self.log, identity, rocketmq_start, report.end)
            if rocketmq_start is None:
                log.warning(
                    "checkpoint is damaged and was not used; this start writes it again",
                    extra={"path": f"{self.root}/checkpoint"},
                )
        if identity is None:
            identity = create_identity(report.end, former=own.store)
        self._begin_generation(_count_truncation(identity, heads, report.end), report, rocketmq_start)
        self.dispatcher.start_at(report.end, recovery.last_record, self.log.last_timestamp_ms)
        if self.settings.flush.is_sync or not self.pools.status.is_crash_safe:
            self.dispatcher.hold()
        if is_unconfirmed_hidden:
            self._hide_unconfirmed(report.start, recovery.start_record)
        self.point_writer.finish()
        error = self.failure.error
        if error is not None:
            raise StoreUnusable(f"the store in {self.root} was recovered, but not flushed: {error}") from error
        self._failure_record.remove()
        return report

    def _compare(self, heads: LogHeads | None, checkpoint: CheckpointContent) -> ComparedHeads:
        """Compare the first records of log files with ``heads``, unless RocketMQ, which may truncate, used it."""
        return self._compare_files(self._disk.list(self.log.files.directory), heads if checkpoint.is_ours else None)

    def _compare_files(self, names: Sequence[str], heads: LogHeads | None) -> ComparedHeads:
        size = self.settings.mapped_file_size_commit_log
        return compare_heads(self._disk, self.log.files.directory, names, heads, size)

    def _set_aside_foreign_files(
        self,
        identity: StoreIdentity | None,
        heads: LogHeads | None,
        compared: ComparedHeads,
        log_end_page: LogEnd | None,
    ) -> list[SetAsideFile]:
        """Move log files of other stores, and misplaced ones, out of the log. Their ranges are missing afterwards.

        The log-end page has the heads (checksums of first records) of files that were begun just before a kill.
        """
        foreign = set(compared.misplaced)
        if identity is not None and heads is not None and heads.cuts >= identity.cuts:
            self.heads.trust_heads(heads.heads)
            foreign.update(compared.foreign)
        if identity is not None and log_end_page is not None:
            newest = LogHeads(identity.uuid, identity.cuts, [FileHead(*head) for head in log_end_page.heads.items()])
            names = [segment_name(base) for base in log_end_page.heads]
            foreign.update(self._compare_files(names, newest).foreign)
        return [set_aside_file(self._disk, self.root, file) for file in sorted(foreign)]

    def _hide_unconfirmed(self, visible_end: int, last_record: int) -> None:
        """Hide messages after ``visible_end`` from consumers until slaves have them.

        Such messages may never have been confirmed. The record that begins at ``last_record`` ends at ``visible_end``.
        It may be in no queue, as a prepared message is.
        """
        self.dispatcher.hold()
        if visible_end < self.dispatcher.dispatched:
            self.truncate_derived(visible_end)
            self.dispatcher.start_at(visible_end, last_record, self.log.last_timestamp_ms)

    def truncate_derived(self, end: int) -> None:
        """Remove messages that begin at ``end`` or later from the queues and the index."""
        search = QueueSearch(self.log, self.queues)
        for queue in self.queues:
            queue.rewind(search.end_before(queue, end, self.identity.ownership_at))
        if self.index is not None:
            self.index.truncate(end)

    def _run_recovery(self, recovery: Recovery, found: FoundStore) -> RecoveryReport:
        """Run recovery. A failed sync counts as a failed flush: the next start must rewrite what was not synced."""
        try:
            return recovery.run(found)
        except OSError:
            with suppress(OSError):
                self._failure_record.write(recovery.durable_mark)
            raise

    def _begin_generation(self, identity: StoreIdentity, report: RecoveryReport, rocketmq_start: int | None) -> None:
        """Start the next generation: invalidate the old buffers, then write the identity that the new ones name."""
        is_end_lost = any(lost.is_at_end for lost in report.missing)
        started = identity.with_new_start(report.end, rocketmq_start=rocketmq_start, is_end_lost=is_end_lost)
        self.pools.void_leftover()
        started = msgspec.structs.replace(started, pool_path=self.pools.path)
        self.identity = write_identity_or_keep(self._identity_file, identity, started)
        self.pools.prepare(self.identity)
        pool = self.pools.pool
        if pool is not None:
            self.committer = Committer(
                self.settings.pool, self._clock, self.log, pool, self.failure, self._on_progress
            )  # fmt: skip
            self.log.use_write_pool(
                pool, on_exhausted=self.committer.request_commit, on_returned=self.committer.take_buffer
            )
        self.log.start_at(report.end)
        self._begin_log_end()
        self.log.set_file_callbacks(on_file_begun=self._record_new_file, require_own_file=self._require_own_file)

    def _begin_log_end(self) -> None:
        """Start to record how far the log is written, if its bytes survive a kill of the process.

        With SYNC_FLUSH, how far it is flushed: the rest may be lost, since it was not acknowledged; see
        ``MessageStore.note_answered``.
        """
        pool = self.pools.pool
        if pool is not None and not pool.is_crash_safe:
            self.log_end.remove()
            return
        self.log_end.begin(self.identity, self.log.wrote)
        if self.settings.flush.is_sync:
            self.log.set_progress_callbacks(on_flushed=self.log_end.raise_to)
        else:
            self.log.set_progress_callbacks(on_wrote=self.log_end.set)

    def _record_new_file(self, base_offset: int, data: bytes) -> None:
        crc = self.heads.add_head(base_offset, data)
        if crc is not None:
            self.log_end.note_head(base_offset, crc)

    def _require_own_file(self, offset: int) -> None:
        """Check that the log file that holds ``offset`` still belongs to this store.

        Raises ``StoreFailed``, which is final.
        """
        if self.heads.is_foreign(offset):
            size = self.log.file_size
            base = offset - offset % size
            raise self.failure.report_foreign(f"{self.log.files.directory}/{segment_name(base)}", base, base + size)

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self, advance: Callable[[], object]) -> None:
        """Stop cleanly, and call ``advance`` a last time when everything is flushed."""
        if not self.is_open:
            return
        self.is_open = False
        self.log.refuse_writes()
        self.stop_threads()
        with suppress(StoreFailed):
            self.flusher.flush()
            advance()
        # Messages that are not visible yet, since slaves lack them, lie after the recovery point: the next start finds
        # them there.
        if self.point_writer.finish():
            self.return_all_buffers()
            try:
                self._abort.remove()
            except OSError as exc:
                # Everything is on the disk already: at worst the next start reads more than it has to.
                log.warning(
                    "could not remove the abort marker; the next start recovers as after a crash",
                    extra={"reason": str(exc)},
                )
        self._release()

    def return_all_buffers(self) -> None:
        """Give all write buffers back to the pool, after everything in them was committed to the log files."""
        self.log.return_all_buffers()
        if self.committer is not None:
            self.committer.free_returned_buffers()

    def adopt_epochs(self, epochs: Sequence[Epoch]) -> None:
        """Make ``epochs`` the log's history. Durable when this returns; no write buffer may be in use."""
        self.identity = msgspec.structs.replace(self.identity, epochs=list(epochs), log_end=self.log.flushed)
        self._identity_file.write(self.identity)
        self.pools.set_identity(self.identity)

    def lower_recorded_end(self, end: int) -> None:
        """Record that the log ends at ``end`` or before, before the log is truncated there.

        The truncation is counted in the store's identity, too, so that ``log-heads.json`` from before it is not used.
        """
        self.log_end.lower(end)
        self.heads.forget_from(end)
        identity = self.identity
        self.identity = msgspec.structs.replace(identity, log_end=min(identity.log_end, end), cuts=identity.cuts + 1)
        self._identity_file.write(self.identity)

    def invalidate_flushed(self, begin: int) -> None:
        """Record in all files that no log data is expected, before the log is discarded and begins at ``begin``."""
        self.lower_recorded_end(0)
        self.losses.forget_missing()
        self._checkpoint.invalidate_flushed(begin)
        self.is_log_discarded = True

    def _release(self) -> None:
        self.removal.close()
        self._checkpoint.close()
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self.log.close()
        self.pools.close()
        self.log_end.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
