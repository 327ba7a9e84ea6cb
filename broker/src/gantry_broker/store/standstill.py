"""What changes a store as a whole while it is open: a cut of its log's tail, a new beginning, another epoch.

All of it needs a standstill. Helper threads have ended, everything is flushed, and no write buffer holds anything: so
none can name an epoch that is no more, and none can bring back what is cut.

    [0 ........ end ........ wrote)        what lies behind `end` was never confirmed, and must never rise again
               `- everything derived forgets it, durably, then the log itself loses it, durably, then its epochs do

A kill at any moment leaves either the old log, with queues that a start builds again, or the new one. A file is zeroed
from the cut to its end: taking away the first header only would let old records rise behind new ones of the same size,
at the next crash. Waits for the disk, in a thread of its own; nobody appends or reads meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from gantry_broker.errors import StoreFailed
from gantry_broker.ports.disk import write_fully
from gantry_broker.store.commit_log import CommitLog, blank_record
from gantry_broker.store.identity import Epoch
from gantry_broker.store.life import StoreLife
from gantry_broker.store.loss import ACCEPTED_KEPT_MAX, AcceptedLoss
from gantry_broker.store.queue_table import QueueTable
from gantry_wire.message import check_record


@contextmanager
def standstill(life: StoreLife) -> Iterator[CommitLog]:
    """Nothing moves in the body of a `with`; then appending goes on where the log ends. An ``OSError`` is final."""
    log = life.log
    was_running = life.stop_threads()
    try:
        # No buffer may hold what is cut, nor the log miss what is not: all of it goes to the files first.
        life.flusher.flush()
        life.return_all()
        log.next.drop()
        yield log
        log.start_at(log.wrote)
        life.log_end.set(log.wrote)
    except OSError as exc:
        raise life.failure.report("changing the log", exc) from exc
    finally:
        if was_running:
            life.start_threads()


def change_epochs(life: StoreLife, epochs: Sequence[Epoch]) -> None:
    """From now on the log has this history, on the disk, too."""
    with standstill(life):
        life.adopt_epochs(epochs)


def cut_log(life: StoreLife, end: int, epochs: Sequence[Epoch] | None = None) -> int:
    """Let the log end at ``end``, where a record ends; how many bytes were cut. Raises ``StoreFailed``, for good.

    Its history is ``epochs`` then, by default what is left of its own.
    """
    log = life.log
    assert log.min_physical <= end <= log.wrote, (end, log)
    cut_bytes = log.wrote - end
    kept = life.identity.truncated(end).epochs if epochs is None else epochs
    if not cut_bytes and kept == life.identity.epochs:
        return 0
    with standstill(life):
        if cut_bytes:
            life.vouch_for(end)
            _forget_derived(life, end)
            log.cut(end)
        life.adopt_epochs(kept)
    return cut_bytes


def restart_log(life: StoreLife, begin: int, epochs: Sequence[Epoch]) -> None:
    """Throw everything away; the log begins anew at ``begin``, where a file of it begins. Raises ``StoreFailed``."""
    assert begin % life.log.file_size == 0, begin
    with standstill(life) as log:
        life.dispatcher.drop_held()
        life.points.forget()
        life.vouch_for_nothing(begin)
        for topic in life.queues.topics():
            life.queues.delete_topic(topic, begin)
        if life.index is not None:
            life.index.remove_all()
        life.queues.load_deleted({})
        log.files.remove_from(0)
        log.files.sync_directory()
        _move_to(life, begin, begin, -1)
        life.adopt_epochs(epochs)


def accept_loss(life: StoreLife, by: str, now_ms: int) -> int:
    """Go on without what is missing, behind the vouched end; where the log ends then. Raises ``StoreFailed``.

    Offsets of the log and of queues that were in use are never used again: blank records fill the log up to the next
    file behind what is lost, and units without a message fill the queues. They do so for a hole, too: a queue may have
    had its last messages there. The queues are durable first, then the decision. When it is cut off half way, a start
    finds the rest still missing and asks again.
    """
    record = life.losses.record
    missing, queues = record.missing, record.queues
    if not missing:
        return life.log.wrote
    accepted = [AcceptedLoss(lost.start, lost.end, lost.cause, now_ms, by) for lost in missing]
    known = [one for one in record.accepted if (one.start, one.end) not in {(new.start, new.end) for new in accepted}]
    kept = (known + accepted)[-ACCEPTED_KEPT_MAX:]
    at_end = max((lost.end for lost in missing if lost.is_at_end), default=0)
    with standstill(life) as log:
        assert life.dispatcher.dispatched == log.wrote, "what is here is in queues before their numbers go on"
        life.queues.fill_to(queues, max(log.wrote - 1, 0))
        _finish_points(life, "the accepted loss could not be recorded")
        life.losses.write(msgspec.structs.replace(record, accepted=kept))
        log.fillers.accept_holes()
        if at_end > log.wrote:
            _, tail, _ = life.dispatcher.tail
            end = _fill_log(log, at_end)
            log.move_to(end)
            life.dispatcher.start_at(end, tail, log.last_timestamp_ms)
        _finish_points(life, "the accepted loss could not be recorded")
        life.adopt_epochs(life.identity.epochs)
        life.losses.forget_missing()
    return log.wrote


def _fill_log(log: CommitLog, end: int) -> int:
    """Let the log reach ``end`` with blank records only, durably; where the file ends that holds it.

    Raises ``StoreFull`` or ``OSError``; it can be called again.
    """
    offset, size = log.wrote, log.file_size
    if offset == log.min_physical:
        # Not a byte is left: there is nothing to step over, and the log begins where the loss ends.
        log.files.remove_from(0)
        log.files.sync_directory()
        return -(-end // size) * size
    while offset < end:
        file, position = log.files.at(offset), offset % size
        if file is None or position == 0:
            file = log.fillers.accept(offset)
        else:
            write_fully(file.file, blank_record(size - position), position)
            file.file.sync()
        offset = file.end_offset
    return offset


def _forget_derived(life: StoreLife, end: int) -> None:
    """Let queues and index end where the log is going to, durably."""
    life.dispatcher.drop_held()
    # From here on queues may have holes on the disk: whoever starts meanwhile must build them from the log.
    life.points.forget()
    # What was not shown yet is in no queue, and is put there by whoever goes on with this log.
    shown = min(life.dispatcher.dispatched, end)
    life.cut_derived(shown)
    _move_to(life, end, shown, last_record(life.log, life.queues, shown))


def _move_to(life: StoreLife, end: int, shown: int, tail: int) -> None:
    """Every position says ``end``; so do recovery point and checkpoint, or the next start would call a cut a loss."""
    log = life.log
    life.dispatcher.start_at(shown, tail, log.last_timestamp_ms)
    life.queues.cut_deleted(end)
    log.move_to(end)
    _finish_points(life, "what is derived of the log could not be cut")


def _finish_points(life: StoreLife, what_failed: str) -> None:
    """Make queues, index and the points that vouch for them durable. Raises ``StoreFailed``."""
    life.points.finish()
    if life.failure.error is not None:
        raise StoreFailed(what_failed) from life.failure.error


def last_record(log: CommitLog, queues: QueueTable, end: int) -> int:
    """Where the record begins that ends at ``end``, a place that no append has left.

    -1 if no queue knows it: then the next start reads the whole log.
    """
    for queue in queues:
        unit = queue.unit(queue.readable_end - 1) if queue.readable_end > queue.min_offset else None
        if unit is None or unit[0] + unit[1] != end:
            continue
        check = check_record(log.view(unit[0]), 0, physical_offset=unit[0])
        if check.is_good and check.size == unit[1]:
            return unit[0]
    return -1
