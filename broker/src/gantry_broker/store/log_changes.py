"""Changes of the whole log while the store is open: truncate or discard it, accept a loss, void damage, change epochs.

Each change is made at a standstill (``quiesced_log``). Helper threads have ended, everything is flushed, and no write
buffer holds anything: so no buffer can name an epoch that is gone, or restore what is removed.

    [0 ........ end ........ wrote)        what lies after `end` leaves the log, and must never reappear
               `- it is removed durably from everything derived first, then from the log, then from its epochs

A kill at any moment leaves either the old log, with queues that a start rebuilds, or the new one. A file is zeroed from
``end`` to its own end: if only the first header were removed, old records would reappear after new ones of the same
size at the next crash. The functions wait for the disk, in a worker thread; the loop neither appends nor reads
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from gantry_broker.errors import StoreFailed, StoreFull
from gantry_broker.ports.disk import write_fully
from gantry_broker.store.commit_log import CommitLog, blank_record
from gantry_broker.store.identity import Epoch
from gantry_broker.store.lifecycle import StoreLifecycle
from gantry_broker.store.loss import ACCEPTED_KEPT_MAX, AcceptedLoss
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.void_records import set_aside_damage, void_records
from gantry_wire.message import RecordFault, check_record, record_store_timestamp


@contextmanager
def quiesced_log(lifecycle: StoreLifecycle) -> Iterator[CommitLog]:
    """Stop the helper threads, flush everything and empty the write buffers for the body of a `with`.

    Afterwards the threads run again, and appending continues at the end of the log, also if the body raises
    ``StoreFull``. An ``OSError`` is final.
    """
    log = lifecycle.log
    was_running = lifecycle.stop_threads()
    try:
        # No buffer may hold what is removed, and the log must not lack what stays: everything goes to the files first.
        lifecycle.flusher.flush()
        lifecycle.return_all_buffers()
        log.next.drop()
        try:
            yield log
        except StoreFull:
            _continue_log(lifecycle)
            raise
        _continue_log(lifecycle)
    except OSError as exc:
        raise lifecycle.failure.report("changing the log", exc) from exc
    finally:
        if was_running:
            lifecycle.start_threads()


def _continue_log(lifecycle: StoreLifecycle) -> None:
    """Continue appending at the end of the log. If the disk has no space for its file, the next append tries again."""
    log = lifecycle.log
    with suppress(StoreFull):
        log.start_at(log.wrote)
    lifecycle.log_end.set(log.wrote)


def change_epochs(lifecycle: StoreLifecycle, epochs: Sequence[Epoch]) -> None:
    """Make ``epochs`` the history of the log, durably."""
    with quiesced_log(lifecycle):
        lifecycle.adopt_epochs(epochs)


def truncate_log(lifecycle: StoreLifecycle, end: int, epochs: Sequence[Epoch] | None = None) -> int:
    """Truncate the log at ``end``, where a record ends, durably, and return how many bytes were removed.

    Afterwards the log's history is ``epochs``, by default those of its epochs that begin at or before ``end``. Raises
    ``StoreFailed``, which is final.
    """
    log = lifecycle.log
    assert log.min_physical <= end <= log.wrote, (end, log)
    removed_bytes = log.wrote - end
    kept = lifecycle.identity.with_truncated_log(end).epochs if epochs is None else epochs
    if not removed_bytes and kept == lifecycle.identity.epochs:
        return 0
    with quiesced_log(lifecycle):
        if removed_bytes:
            lifecycle.lower_recorded_end(end)
            _truncate_derived(lifecycle, end)
            log.truncate(end)
        lifecycle.adopt_epochs(kept)
    return removed_bytes


def discard_log(lifecycle: StoreLifecycle, begin: int, epochs: Sequence[Epoch]) -> None:
    """Discard log, queues and index, and begin an empty log at ``begin``, where a log file begins.

    Raises ``StoreFailed``.
    """
    assert begin % lifecycle.log.file_size == 0, begin
    with quiesced_log(lifecycle) as log:
        lifecycle.dispatcher.drop_held_batches()
        lifecycle.point_writer.remove_point()
        lifecycle.invalidate_flushed(begin)
        for topic in lifecycle.queues.topics():
            lifecycle.queues.delete_topic(topic, begin)
        if lifecycle.index is not None:
            lifecycle.index.remove_all()
        lifecycle.queues.load_deleted({})
        log.files.remove_from(0)
        log.files.sync_directory()
        _set_end(lifecycle, begin, begin, -1)
        lifecycle.adopt_epochs(epochs)


def accept_loss(lifecycle: StoreLifecycle, by: str, now_ms: int) -> int:
    """Accept that missing data is lost, and continue after the recorded end of the log. Return the new end.

    Offsets of the log and of queues that were in use are never used again: blank records fill the log up to the next
    file after the loss, and filler units the queues. Queues are filled after the loss of a hole, too: a queue may have
    had its last messages there. The queues are made durable first, then the decision. If this is interrupted, a start
    finds the rest still missing, and it must be accepted again. Raises ``StoreFull``, then accept it again with space;
    or ``StoreFailed``.
    """
    record = lifecycle.losses.record
    missing, queues = record.missing, record.queues
    if not missing:
        return lifecycle.log.wrote
    accepted = [AcceptedLoss(lost.start, lost.end, lost.cause, now_ms, by) for lost in missing]
    known = [one for one in record.accepted if (one.start, one.end) not in {(new.start, new.end) for new in accepted}]
    kept = (known + accepted)[-ACCEPTED_KEPT_MAX:]
    at_end = max((lost.end for lost in missing if lost.is_at_end), default=0)
    with quiesced_log(lifecycle) as log:
        assert lifecycle.dispatcher.dispatched == log.wrote, "all messages must be in queues before these are filled"
        lifecycle.queues.fill_to(queues, max(log.wrote - 1, 0))
        _finish_points(lifecycle, "the accepted loss could not be recorded")
        lifecycle.losses.write(msgspec.structs.replace(record, accepted=kept))
        log.fillers.accept_holes()
        if at_end > log.wrote:
            _, last_record, _ = lifecycle.dispatcher.last_dispatched
            end = _fill_log(log, at_end)
            log.set_end(end)
            lifecycle.dispatcher.start_at(end, last_record, log.last_timestamp_ms)
        _finish_points(lifecycle, "the accepted loss could not be recorded")
        lifecycle.adopt_epochs(lifecycle.identity.epochs)
        lifecycle.losses.forget_missing()
    return log.wrote


def prepare_void(lifecycle: StoreLifecycle, start: int, end: int) -> Callable[[], None]:
    """Return a function that durably replaces the damaged bytes ``[start, end)`` by void records, and ends the store.

    The store must be opened again afterwards: all that was derived from the lost records, in memory or in queues, is
    derived from the log again. The damaged bytes are copied to the folder ``set-aside`` first. A crash leaves them or
    the void records. The function raises ``StoreFailed`` only if that fails. Raises ValueError for a range that is too
    small.
    """
    log = lifecycle.log
    data = void_records(start, end, log.file_size, _store_time_after(log, end))

    def void() -> None:
        with quiesced_log(lifecycle):
            file, position = log.files.at(start), start % log.file_size
            assert file is not None and end <= min(log.wrote, file.end_offset), (start, end, log)
            damaged = bytes(file.view[position : position + len(data)])
            path = set_aside_damage(log.files.disk, lifecycle.root, start, damaged)
            if lifecycle.index is not None and start < lifecycle.dispatcher.dispatched:
                lifecycle.index.mark_behind()  # It has the lost messages' keys. The next start rebuilds it.
            if not position:
                # The new head comes first. Until the record follows, the file begins with damage, which is no head.
                lifecycle.log_end.lower(start)
                lifecycle.log_end.set(log.wrote)
                lifecycle.heads.add_head(start, data)
            _finish_points(lifecycle, "the replacement of damage could not be prepared")
            write_fully(file.file, data, position)
            file.file.sync()
        lifecycle.failure.report_void(start, end, path)

    return void


def _store_time_after(log: CommitLog, offset: int) -> int:
    """Return the store time of the next message after ``offset``, so that times do not fall in the log."""
    view = log.view(offset)
    if check_record(view, 0, physical_offset=offset).fault is RecordFault.BLANK:
        offset += log.file_size - offset % log.file_size
        view = log.view(offset)
    is_followed = check_record(view, 0, physical_offset=offset).is_good
    return record_store_timestamp(view) if is_followed else log.last_timestamp_ms


def _fill_log(log: CommitLog, end: int) -> int:
    """Extend the log with blank records, durably, to the first end of a file at or after ``end``, and return that.

    Raises ``StoreFull`` or ``OSError``; it can be called again. After ``StoreFull`` nothing lies after the end of the
    log, where appending continues.
    """
    offset, size = log.wrote, log.file_size
    if offset == log.min_physical:
        # The log is empty: there is nothing to fill, and it begins where the loss ends.
        log.files.remove_from(0)
        log.files.sync_directory()
        return -(-end // size) * size
    try:
        while offset < end:
            file, position = log.files.at(offset), offset % size
            if file is None or position == 0:
                file = log.fillers.accept(offset)
            else:
                write_fully(file.file, blank_record(size - position), position)
                file.file.sync()
            offset = file.end_offset
    except StoreFull:
        log.truncate(log.wrote)
        raise
    return offset


def _truncate_derived(lifecycle: StoreLifecycle, end: int) -> None:
    """Remove from queues and index, durably, what lies after ``end``, where the log will be truncated."""
    lifecycle.dispatcher.drop_held_batches()
    # From here on queues may have holes on the disk: a start after a crash must rebuild them from the log.
    lifecycle.point_writer.remove_point()
    # Messages that are not visible yet are in no queue. They get there when the log is used again.
    visible_end = min(lifecycle.dispatcher.dispatched, end)
    lifecycle.truncate_derived(visible_end)
    _set_end(lifecycle, end, visible_end, find_last_record(lifecycle.log, lifecycle.queues, visible_end))


def _set_end(lifecycle: StoreLifecycle, end: int, visible_end: int, last_record: int) -> None:
    """Set all positions of the log to ``end``, and those of queues and index to ``visible_end``.

    Recovery point and checkpoint are written, so that no start takes the truncation for a loss.
    """
    log = lifecycle.log
    lifecycle.dispatcher.start_at(visible_end, last_record, log.last_timestamp_ms)
    lifecycle.queues.limit_deletions(end)
    log.set_end(end)
    _finish_points(lifecycle, "queues and index could not be truncated with the log")


def _finish_points(lifecycle: StoreLifecycle, what_failed: str) -> None:
    """Make queues and index durable, and write recovery point and checkpoint. Raises ``StoreFailed``."""
    lifecycle.point_writer.finish()
    if lifecycle.failure.error is not None:
        raise StoreFailed(what_failed) from lifecycle.failure.error


def find_last_record(log: CommitLog, queues: QueueTable, end: int) -> int:
    """Return where the record begins that ends at ``end``, the new end of queues and index.

    -1 if that record is the last message of no queue: then the next start reads the whole log.
    """
    for queue in queues:
        unit = queue.unit(queue.readable_end - 1) if queue.readable_end > queue.min_offset else None
        if unit is None or unit[0] + unit[1] != end:
            continue
        check = check_record(log.view(unit[0]), 0, physical_offset=unit[0])
        if check.is_good and check.size == unit[1]:
            return unit[0]
    return -1
