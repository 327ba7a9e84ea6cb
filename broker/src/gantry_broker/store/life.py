"""The life of a store: its parts built, opened in the right order, and closed in the other.

    lock -> small files -> log, queues, index -> write buffers -> recovery -> the next generation -> threads
    threads -> flush -> recovery point -> buffers given back -> `abort` gone -> lock

What may be promised afterwards depends on this order; each step says what it relies on. While it runs the store belongs
to the thread that opens or closes it, before and after that to the loop's. ``MessageStore`` is what others see of it.
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
from gantry_broker.store.checkpoint import Checkpoint, CheckpointFacts
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.committer import Committer
from gantry_broker.store.dispatcher import Dispatcher, QueuesListener
from gantry_broker.store.existing import refuse_other_sizes
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
from gantry_broker.store.identity import Epoch, IdentityFile, StoreIdentity, new_identity
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.log_end import LogEnd, LogEndFile
from gantry_broker.store.loss import (
    LossKeeper,
    find_missing,
    is_brought_back,
    missing_bytes,
    vouched_range,
)
from gantry_broker.store.opening import (
    AbortMarker,
    OpenPools,
    first_unsealed,
    report_missing_files,
    seals_of,
    write_or_keep,
    written_by_others_from,
)
from gantry_broker.store.ownership import own_files
from gantry_broker.store.point_writer import PointWriter
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_taker import Progress
from gantry_broker.store.recover import FoundStore, Recovery
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.removal import HeadRemoval
from gantry_broker.store.replay import Expected
from gantry_broker.store.settings import StoreSettings
from gantry_store_files.segments import segment_name

log = logging.getLogger(__name__)


def _doubted(point: RecoveryPoint | None) -> RecoveryPoint | None:
    """The point, vouching for nothing: all of the log is read, and everything derived is built from it."""
    return None if point is None else msgspec.structs.replace(point, through=-1, tail=-1)


def _with_cuts(identity: StoreIdentity, heads: LogHeads | None, end: int) -> StoreIdentity:
    """The identity, which counts it when this start has cut away, or found lost, the beginning of a file."""
    if heads is None:
        return identity
    is_cut = any(head.base_offset >= end for head in heads.heads)
    return msgspec.structs.replace(identity, cuts=max(identity.cuts, heads.cuts) + is_cut)


@final
class StoreLife:
    """See the module. The parts are here for the facade, which is the only other one to touch them."""

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
        self.identity: StoreIdentity = new_identity(0)
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
        self.is_restarted = False
        """Whether the log was thrown away since this start, and began anew."""
        self.failure: Final = StoreFailure(self.log, self._failure_record, on_fatal)
        self.flusher: Final = Flusher(
            settings.flush, clock, self.log, self.failure, on_progress, lambda: self.points.wake()
        )
        self.losses: Final = LossKeeper(disk, root, self.log, self.flusher.flush)
        self.heads: Final = HeadKeeper(disk, root, self.log)
        self.points: Final = PointWriter(
            settings.flush, clock, self.log, self.dispatcher, self.queues, self.index, self._checkpoint,
            self._point_file, self.flusher, self.failure, self.heads, lambda: self.identity,
        )  # fmt: skip
        self.pools: Final = OpenPools(settings.pool, open_volume, file_size=settings.mapped_file_size_commit_log)
        self.committer: Committer | None = None
        self.removal: Final = HeadRemoval(
            self.log, self.dispatcher, self.queues, self.index, self.points.request_point, self.failure.report,
            self._checkpoint.raise_begin,
        )  # fmt: skip
        """How the oldest files are deleted, for whoever decides it."""
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
        is_tail_hidden: bool = False,
    ) -> RecoveryReport:
        """See ``MessageStore.open``."""
        disk, root = self._disk, self.root
        try:
            make_durable_directory(disk, f"{root}/commitlog")
            try:
                self._lock = disk.lock(f"{root}/lock")
            except BlockingIOError as exc:
                raise StoreLocked(f"another process uses the store in {root}: stop it first") from exc
            on_locked()
            report = self._recover(progress, is_tail_hidden=is_tail_hidden)
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
        """Let the helper threads run."""
        self._is_running = True
        self.flusher.start()
        self.points.start()
        if self.committer is not None:
            self.committer.start()

    def stop_threads(self) -> bool:
        """End the helper threads after their rounds; whether there were any."""
        was_running, self._is_running = self._is_running, False
        if self.committer is not None:
            self.committer.stop()
        self.flusher.stop()
        self.points.stop()
        return was_running

    def _recover(self, progress: Progress | None, *, is_tail_hidden: bool) -> RecoveryReport:
        is_clean = not self._abort.is_present()
        checkpoint = self._checkpoint.read()
        point = self._point_file.read()
        heads = self.heads.read()
        compared = self._compare(heads, checkpoint)
        own = own_files(self._identity_file, point, heads, compared)
        identity, point, heads = own.identity, own.point, own.heads
        self.losses.read()
        report_missing_files(
            self._disk, self.root, identity=identity, point=point, checkpoint=checkpoint, is_clean=is_clean
        )
        refuse_other_sizes(point, self.settings, self._disk, self.root)
        ended = self.log_end.read(identity) if checkpoint.is_ours else None
        set_aside = self._set_foreign_aside(identity, heads, compared, ended)
        self.log.load()
        others_from = written_by_others_from(checkpoint, point, self.log.min_physical)
        self.pools.open(identity)
        self._abort.create()
        is_back = is_brought_back(self.losses.record, self.log.min_physical, self.log.fillers)
        found = FoundStore(
            root=self.root,
            point=_doubted(point) if is_back else point,
            is_clean=is_clean and not is_back,
            sealed_flushed=checkpoint.flushed,
            failed_flushed=self._failure_record.read(),
            buffers=self.pools.found(),
            expected=Expected.of(identity, self.log.file_size, is_clean=is_clean),
            seals=seals_of(identity, others_from),
            written=ended.end if ended is not None else 0,
        )
        recovery = Recovery(
            self._disk, self.settings, self.log, self.queues, self.index, self._point_file, progress
        )  # fmt: skip
        recovered = self._run(recovery, found)
        vouched = vouched_range(point, checkpoint, identity, self.losses.record, written=found.written)
        # Where the newest file is set aside at least its first byte was ours: its offsets must not be used again.
        vouched = vouched._replace(end=max(vouched.end, *(file.base_offset + 1 for file in set_aside), 0))
        missing = find_missing(
            vouched,
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
        report.say()
        if others_from is not None and identity is not None:
            others_from = first_unsealed(self.log, identity, others_from, report.end)
            if others_from is None:
                log.warning("the checkpoint is damaged and not used", extra={"path": f"{self.root}/checkpoint"})
        if identity is None:
            identity = new_identity(report.end, former=own.store)
        self._begin(_with_cuts(identity, heads, report.end), report, others_from)
        self.dispatcher.start_at(report.end, recovery.tail, self.log.last_timestamp_ms)
        if self.settings.flush.is_sync or not self.pools.status.is_crash_safe:
            self.dispatcher.hold()
        if is_tail_hidden:
            self._hide(report.start, recovery.start_tail)
        self.points.finish()
        error = self.failure.error
        if error is not None:
            raise StoreUnusable(f"the store in {self.root} was recovered, but not flushed: {error}") from error
        self._failure_record.remove()
        return report

    def _compare(self, heads: LogHeads | None, checkpoint: CheckpointFacts) -> ComparedHeads:
        """Compare the log's files with their heads. Not where RocketMQ has used the store since: it may cut."""
        return self._compare_named(self._disk.list(self.log.files.directory), heads if checkpoint.is_ours else None)

    def _compare_named(self, names: Sequence[str], heads: LogHeads | None) -> ComparedHeads:
        size = self.settings.mapped_file_size_commit_log
        return compare_heads(self._disk, self.log.files.directory, names, heads, size)

    def _set_foreign_aside(
        self, identity: StoreIdentity | None, heads: LogHeads | None, compared: ComparedHeads, ended: LogEnd | None
    ) -> list[SetAsideFile]:
        """Move files that do not belong there out of the log, where they are missing then.

        The log end has the heads of files that were begun just before a kill.
        """
        foreign = set(compared.misplaced)
        if identity is not None and heads is not None and heads.cuts >= identity.cuts:
            self.heads.believe(heads.heads)
            foreign.update(compared.foreign)
        if identity is not None and ended is not None:
            newest = LogHeads(identity.uuid, identity.cuts, [FileHead(*head) for head in ended.heads.items()])
            names = [segment_name(base) for base in ended.heads]
            foreign.update(self._compare_named(names, newest).foreign)
        return [set_aside_file(self._disk, self.root, file) for file in sorted(foreign)]

    def _hide(self, shown: int, tail: int) -> None:
        """Hide what lies behind ``shown``, since it was perhaps never confirmed, until slaves have it.

        The record that begins at ``tail`` ends at ``shown``. It may be in no queue, as a prepared message is.
        """
        self.dispatcher.hold()
        if shown >= self.dispatcher.dispatched:
            return
        self.cut_derived(shown)
        self.dispatcher.start_at(shown, tail, self.log.last_timestamp_ms)

    def cut_derived(self, end: int) -> None:
        """Let queues and index forget messages that begin at ``end`` or later."""
        for queue in self.queues:
            queue.rewind(queue.end_before(end))
        if self.index is not None:
            self.index.cut(end)

    def _run(self, recovery: Recovery, found: FoundStore) -> RecoveryReport:
        """Recover. A sync that fails now is a failed flush: the next start must rewrite what it was to bring there."""
        try:
            return recovery.run(found)
        except OSError:
            with suppress(OSError):
                self._failure_record.write(recovery.durable_mark)
            raise

    def _begin(self, identity: StoreIdentity, report: RecoveryReport, others_from: int | None) -> None:
        """The next generation: buffers void and ready first, then the identity that new ones are stamped with."""
        is_tail_lost = any(lost.is_at_end for lost in report.missing)
        started = identity.started(report.end, written_by_others_from=others_from, is_tail_lost=is_tail_lost)
        started = self.pools.moved(started)
        self.identity = write_or_keep(self._identity_file, identity, started)
        self.pools.prepare(self.identity)
        pool = self.pools.pool
        if pool is not None:
            self.committer = Committer(
                self.settings.pool, self._clock, self.log, pool, self.failure, self._on_progress
            )  # fmt: skip
            self.log.borrow_from(pool, drained=self.committer.want, returned=self.committer.take)
        self.log.start_at(report.end)
        self._begin_log_end()
        self.log.watch_files(begun=self._file_begun, demand_own=self._demand_own)

    def _begin_log_end(self) -> None:
        """Record how far the log is written, where it outlives the process: with SYNC_FLUSH, how far it is flushed.

        What is not flushed then may be gone, since it was not acknowledged; see ``MessageStore.note_answered``.
        """
        pool = self.pools.pool
        if pool is not None and not pool.is_crash_safe:
            self.log_end.remove()
            return
        self.log_end.begin(self.identity, self.log.wrote)
        if self.settings.flush.is_sync:
            self.log.record_progress(flushed=self.log_end.raise_to)
        else:
            self.log.record_progress(wrote=self.log_end.set)

    def _file_begun(self, base_offset: int, data: bytes) -> None:
        crc = self.heads.begun(base_offset, data)
        if crc is not None:
            self.log_end.note_head(base_offset, crc)

    def _demand_own(self, offset: int) -> None:
        """Check that the log file that holds ``offset`` is still this store's.

        Raises ``StoreFailed``, which is final.
        """
        if self.heads.is_foreign(offset):
            size = self.log.file_size
            base = offset - offset % size
            raise self.failure.report_foreign(f"{self.log.files.directory}/{segment_name(base)}", base, base + size)

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self, advance: Callable[[], object]) -> None:
        """Stop cleanly, and ``advance`` a last time when all is flushed."""
        if not self.is_open:
            return
        self.is_open = False
        self.log.refuse_writes()
        self.stop_threads()
        with suppress(StoreFailed):
            self.flusher.flush()
            advance()
        # What is not shown yet, since slaves lack it, lies behind the recovery point: the next start finds it there.
        if self.points.finish():
            self.return_all()
            try:
                self._abort.remove()
            except OSError as exc:
                # Everything is on the disk already: at worst the next start reads more than it has to.
                log.warning("the mark of an unclean stop could not be removed", extra={"reason": str(exc)})
        self._release()

    def return_all(self) -> None:
        """Everything is in the files: no buffer holds anything any more."""
        self.log.return_all()
        if self.committer is not None:
            self.committer.give_back()

    def adopt_epochs(self, epochs: Sequence[Epoch]) -> None:
        """The log's history is this one. Durable when this returns; no buffer may be in use."""
        self.identity = msgspec.structs.replace(self.identity, epochs=list(epochs), log_end=self.log.flushed)
        self._identity_file.write(self.identity)
        self.pools.rename(self.identity)

    def vouch_for(self, end: int) -> None:
        """Have the store's identity vouch for no more than ``[0, end)`` of the log, before more of it is cut.

        It counts the cut, too: heads of files in a recovery point that was written before are not believed any more.
        """
        self.log_end.lower(end)
        self.heads.forget_from(end)
        identity = self.identity
        self.identity = msgspec.structs.replace(identity, log_end=min(identity.log_end, end), cuts=identity.cuts + 1)
        self._identity_file.write(self.identity)

    def vouch_for_nothing(self, begin: int) -> None:
        """Have no file vouch for anything: the log is going to be thrown away, and to begin anew at ``begin``."""
        self.vouch_for(0)
        self.losses.forget_missing()
        self._checkpoint.vouch_for_nothing(begin)
        self.is_restarted = True

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
