"""Cutting a log's tail while the store is open: for a master of old times that has more than its successor.

    [0 ........ end ........ wrote)        what lies behind `end` was never confirmed, and must never rise again
               `- everything derived forgets it, durably, then the log itself loses it, durably, then its epochs do

A kill at any moment leaves either the old log, with queues that a start completes again, or the cut one. The file is
zeroed from the cut to its end: taking away the first header only would let old records rise behind new ones of the same
size, at the next crash. Waits for the disk, in a thread of its own; nobody appends or reads meanwhile.
"""

from __future__ import annotations

from gantry_broker.errors import FlushFailed
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.life import StoreLife
from gantry_broker.store.queue_table import QueueTable
from gantry_wire.message import check_record


def cut_log(life: StoreLife, end: int) -> int:
    """Let the log end at ``end``, where a record ends; how many bytes were cut. Raises ``FlushFailed``, for good."""
    log = life.log
    assert log.min_physical <= end <= log.wrote, (end, log)
    cut_bytes = log.wrote - end
    if not cut_bytes:
        return 0
    is_running = life.stop_threads()
    try:
        # No buffer may hold what is cut, nor the log miss what is not: all of it goes to the files first.
        life.flusher.flush()
        life.return_all()
        log.drop_next()
        life.dispatcher.drop_held()
        # From here on queues may have holes on the disk: whoever starts meanwhile must build them from the log.
        life.points.forget()
        for queue in life.queues:
            queue.rewind(queue.end_before(end))
        if life.index is not None:
            life.index.cut(end)
        life.dispatcher.tail = (end, _last_record(log, life.queues, end), log.last_timestamp_ms)
        life.dispatcher.dispatched = end
        log.wrote = log.committed = log.flushed = end
        # The point and the checkpoint say the new end first: one that says more would call the cut a loss.
        life.points.finish()
        if life.failure.error is not None:
            raise FlushFailed("what is derived of the log could not be cut") from life.failure.error
        log.cut(end)
        life.forget_epochs(end)
        log.start_at(end)
    except OSError as exc:
        raise life.failure.report("cutting the log", exc) from exc
    finally:
        if is_running:
            life.start_threads()
    return cut_bytes


def _last_record(log: CommitLog, queues: QueueTable, end: int) -> int:
    """Where the record begins that ends at ``end``; -1 if no queue knows: then the next start reads the whole log."""
    for queue in queues:
        unit = queue.unit(queue.readable_end - 1) if queue.readable_end > queue.min_offset else None
        if unit is None or unit[0] + unit[1] != end:
            continue
        extent = log.at(unit[0])
        if extent is not None:
            check = check_record(extent.view, unit[0] - extent.base_offset, physical_offset=unit[0])
            if check.is_good and check.size == unit[1]:
                return unit[0]
    return -1
