"""Stores with one guard taken off, to see the histories find it.

Each takes away exactly what one promise rests on, by putting something in the place of a function of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from simulation import process
from simulation.checks import log_files
from simulation.model import Model

from gantry_broker.ports.disk import DiskFile
from gantry_broker.store import commit_log, positions, recover, recovery, replay
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.copying import LogCopier
from gantry_broker.store.derived import DerivedFiles
from gantry_broker.store.life import StoreLife
from gantry_broker.store.opening import OpenPools
from gantry_broker.store.positions import Positions, confirmed_offset
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.replay import FoundBuffer
from gantry_testing.faulty_disk import FaultyDisk, FaultyFile
from gantry_wire.message import RecordCheck, check_record
from gantry_wire.plain_records import PlainRecord


@contextmanager
def cut_without_zeroing() -> Iterator[None]:
    """Recovery takes away the first header of what it cuts, and leaves the rest where it is."""

    def zero_header(file: FaultyFile, start: int, end: int) -> None:
        file.pwrite(bytes(min(8, end - start)), start)

    with patch.object(FaultyFile, "zero", zero_header):
        yield


@contextmanager
def cut_without_zeroing_unseen() -> Iterator[None]:
    """The same, and nobody looks behind the end of the log: what is found then is that something has returned."""

    def check_up_to_the_end(disk: FaultyDisk, model: Model) -> None:
        for base, data in log_files(disk).items():
            end = max(0, min(model.end - base, model.file_size))
            assert data[:end] == model.file(base)[:end], "an altered byte of the log"

    with cut_without_zeroing(), patch.object(process, "check_log", check_up_to_the_end):
        yield


@contextmanager
def any_buffer_believed() -> Iterator[None]:
    """A buffer is replayed whoever wrote it, and whether or not it goes on where the log ends."""

    def say_yes(*_: object) -> bool:
        return True

    def contradict_nothing(*_: object) -> None:
        return

    with patch.object(replay, "_contradiction", contradict_nothing), patch.object(replay, "_is_same", say_yes):
        yield


@contextmanager
def no_replay() -> Iterator[None]:
    """Recovery finds no buffers."""

    def find_nothing(_: OpenPools) -> Sequence[FoundBuffer]:
        return []

    with patch.object(OpenPools, "found", find_nothing):
        yield


@contextmanager
def shown_when_written() -> Iterator[None]:
    """Consumers see everything, in every mode."""

    def confirm_all(now: Positions, *, is_sync_flush: bool, is_crash_safe: bool) -> int:
        return now.wrote

    with patch.object(positions, "confirmed_offset", confirm_all):
        yield


@contextmanager
def shown_after_a_start() -> Iterator[None]:
    """A start shows everything that it finds, whether or not slaves have it."""

    def hide_nothing(life: StoreLife, _shown: int, _tail: int) -> None:
        life.dispatcher.hold()

    with patch.object(StoreLife, "_hide", hide_nothing):
        yield


@contextmanager
def hidden_for_ever() -> Iterator[None]:
    """What a start has hidden is not taken up again."""

    def forget(copier: LogCopier) -> None:
        copier.pieces.clear()

    with patch.object(LogCopier, "hand_over", forget):
        yield


@contextmanager
def slaves_not_waited_for() -> Iterator[None]:
    """Whatever slaves have said, consumers see what this store can keep by itself."""

    def confirm_alone(now: Positions, *, is_sync_flush: bool, is_crash_safe: bool) -> int:
        return confirmed_offset(now._replace(acked=None), is_sync_flush=is_sync_flush, is_crash_safe=is_crash_safe)

    with patch.object(positions, "confirmed_offset", confirm_alone):
        yield


@contextmanager
def doubt_kept_in_memory() -> Iterator[None]:
    """A start knows which queues are wrong, and builds them again; the recovery point goes on vouching for them."""

    def forget(_derived: DerivedFiles, point: RecoveryPoint | None) -> RecoveryPoint | None:
        return point

    with patch.object(DerivedFiles, "_doubt", forget):
        yield


@contextmanager
def acknowledged_when_written() -> Iterator[None]:
    """Senders are answered before the flush that they ask for."""

    def promise_all(now: Positions, *, is_sync_flush: bool) -> int:
        return now.wrote

    with patch.object(positions, "promised_offset", promise_all):
        yield


@contextmanager
def checksums_ignored() -> Iterator[None]:
    """Recovery believes every record that has a head."""

    def check_head(view: memoryview, position: int, *, physical_offset: int, is_sealed: bool) -> RecordCheck:
        return check_record(view, position, physical_offset=physical_offset, verify_crc=False)

    def find_none(*_: object, is_sealed: bool) -> Iterator[PlainRecord]:
        return iter(())

    with patch.object(recovery, "check_record", check_head), patch.object(recovery, "plain_records", find_none):
        yield


@contextmanager
def nothing_rewritten() -> Iterator[None]:
    """After a failed flush recovery syncs what it reads, and trusts the page cache about it."""

    def leave(_file: DiskFile, _start: int, _end: int) -> None:
        return

    with patch.object(recover, "rewrite", leave):
        yield


@contextmanager
def flushed_before_the_sync() -> Iterator[None]:
    """``flushed`` moves, and then nothing is synced."""

    def sync_nothing(log: CommitLog) -> int:
        log.flushed = log.committed
        return log.flushed

    with patch.object(CommitLog, "sync", sync_nothing):
        yield


@contextmanager
def short_writes_not_continued() -> Iterator[None]:
    """What a short write has not taken is forgotten."""

    def write_once(file: DiskFile, data: bytes | memoryview, position: int) -> None:
        file.pwrite(data, position)

    with patch.object(commit_log, "write_fully", write_once):
        yield
