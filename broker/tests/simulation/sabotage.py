"""Context managers that remove one safeguard from all stores, to prove that the histories detect it.

Each replaces the functions of the store on which one guarantee depends. One also removes a check of the histories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from simulation import process
from simulation.checks import log_files
from simulation.model import Model

from gantry_broker.ports.disk import DiskFile
from gantry_broker.store import commit_log, positions, recovery, recovery_execution, replay
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.copying import LogCopier
from gantry_broker.store.derived import DerivedFiles
from gantry_broker.store.lifecycle import StoreLifecycle
from gantry_broker.store.opening import WritePools
from gantry_broker.store.positions import Positions, confirmed_offset
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.replay import ExpectedHeader, FoundBuffer
from gantry_testing.faulty_disk import FaultyDisk, FaultyFile
from gantry_wire.message import RecordCheck, check_record
from gantry_wire.plain_records import PlainRecord


@contextmanager
def cut_without_zeroing() -> Iterator[None]:
    """Let recovery remove only the first header of what it cuts, and leave the rest in place."""

    def zero_header(file: FaultyFile, start: int, end: int) -> None:
        file.pwrite(bytes(min(8, end - start)), start)

    with patch.object(FaultyFile, "zero", zero_header):
        yield


@contextmanager
def cut_without_zeroing_unseen() -> Iterator[None]:
    """Cut without zeroing, and let histories not check the bytes after the end: they must find records that return."""

    def check_up_to_the_end(disk: FaultyDisk, model: Model) -> None:
        for base, data in log_files(disk).items():
            end = max(0, min(model.end - base, model.file_size))
            assert data[:end] == model.file(base)[:end], "an altered byte of the log"

    with cut_without_zeroing(), patch.object(process, "check_log", check_up_to_the_end):
        yield


@contextmanager
def any_buffer_trusted() -> Iterator[None]:
    """Let recovery replay buffers of any store, even if they do not continue the log."""

    def say_yes(*_: object) -> bool:
        return True

    def contradict_nothing(*_: object) -> None:
        return

    with patch.object(replay, "_rejection_reason", contradict_nothing), patch.object(replay, "_is_same", say_yes):
        yield


@contextmanager
def no_replay() -> Iterator[None]:
    """Let recovery find no write buffers."""

    def find_nothing(_: WritePools) -> Sequence[FoundBuffer]:
        return []

    with patch.object(WritePools, "find_leftover", find_nothing):
        yield


@contextmanager
def shown_when_written() -> Iterator[None]:
    """Let consumers read everything that is written, in every mode."""

    def confirm_all(now: Positions, *, is_sync_flush: bool, is_crash_safe: bool) -> int:
        return now.wrote

    with patch.object(positions, "confirmed_offset", confirm_all):
        yield


@contextmanager
def shown_after_a_start() -> Iterator[None]:
    """Let a start make everything visible that it finds, whether or not slaves have it."""

    def hide_nothing(lifecycle: StoreLifecycle, _shown: int, _tail: int) -> None:
        lifecycle.dispatcher.hold()

    with patch.object(StoreLifecycle, "_hide_unconfirmed", hide_nothing):
        yield


@contextmanager
def hidden_for_ever() -> Iterator[None]:
    """Let messages that a start has hidden stay hidden."""

    def forget(copier: LogCopier) -> None:
        copier.pieces.clear()

    with patch.object(LogCopier, "hold_undispatched", forget):
        yield


@contextmanager
def slaves_not_waited_for() -> Iterator[None]:
    """Let consumers read what this store can keep by itself, regardless of slaves' acknowledgements."""

    def confirm_alone(now: Positions, *, is_sync_flush: bool, is_crash_safe: bool) -> int:
        return confirmed_offset(now._replace(acked=None), is_sync_flush=is_sync_flush, is_crash_safe=is_crash_safe)

    with patch.object(positions, "confirmed_offset", confirm_alone):
        yield


@contextmanager
def damaged_queues_stay_in_recovery_point() -> Iterator[None]:
    """Let a start rebuild wrong queues while the recovery point still lists them as durable."""

    def forget(_derived: DerivedFiles, point: RecoveryPoint | None) -> RecoveryPoint | None:
        return point

    with patch.object(DerivedFiles, "_stop_trusting", forget):
        yield


@contextmanager
def recorded_ends_ignored() -> Iterator[None]:
    """Let a start begin every queue without files at 0."""

    def restore_nothing(_derived: DerivedFiles, _point: RecoveryPoint | None, *, is_trusted: bool) -> None:
        return

    with patch.object(DerivedFiles, "restore_ends", restore_nothing):
        yield


@contextmanager
def acknowledged_when_written() -> Iterator[None]:
    """Acknowledge messages before the flush that the mode requires."""

    def promise_all(now: Positions, *, is_sync_flush: bool) -> int:
        return now.wrote

    with patch.object(positions, "promised_offset", promise_all):
        yield


@contextmanager
def checksums_ignored() -> Iterator[None]:
    """Let recovery accept every record that has a valid head."""

    def check_head(view: memoryview, position: int, *, physical_offset: int, is_sealed: bool) -> RecordCheck:
        return check_record(view, position, physical_offset=physical_offset, verify_crc=False)

    def find_none(*_: object, **__: object) -> Iterator[PlainRecord]:
        return iter(())

    with patch.object(recovery, "check_record", check_head), patch.object(recovery, "PlainRun", find_none):
        yield


@contextmanager
def nothing_rewritten() -> Iterator[None]:
    """Let recovery sync what it reads after a failed flush, without rewriting it."""

    def leave(_file: DiskFile, _start: int, _end: int) -> None:
        return

    with patch.object(recovery_execution, "rewrite", leave):
        yield


@contextmanager
def flushed_before_the_sync() -> Iterator[None]:
    """Advance ``flushed`` without any sync."""

    def sync_nothing(log: CommitLog) -> int:
        log.flushed = log.committed
        return log.flushed

    with patch.object(CommitLog, "sync", sync_nothing):
        yield


@contextmanager
def later_commit_counted() -> Iterator[None]:
    """Count everything that is committed when a sync returns as flushed."""
    synced = CommitLog.sync

    def sync_and_count_all(log: CommitLog) -> int:
        end = synced(log)
        log.flushed = max(end, log.committed)
        return log.flushed

    with patch.object(CommitLog, "sync", sync_and_count_all):
        yield


@contextmanager
def buffer_of_any_start_trusted() -> Iterator[None]:
    """Let recovery replay buffers of earlier starts, if they continue the log."""
    reject = replay._rejection_reason

    def reject_of_the_same_start(buffer: FoundBuffer, expected: ExpectedHeader) -> str | None:
        return reject(buffer._replace(generation=expected.generation), expected)

    with patch.object(replay, "_rejection_reason", reject_of_the_same_start):
        yield


@contextmanager
def short_writes_not_continued() -> Iterator[None]:
    """Drop the rest of a short write."""

    def write_once(file: DiskFile, data: bytes | memoryview, position: int) -> None:
        file.pwrite(data, position)

    with patch.object(commit_log, "write_fully", write_once):
        yield
