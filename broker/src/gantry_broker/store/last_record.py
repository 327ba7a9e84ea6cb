"""Where the record begins that ends at an offset: asked when positions go back to a place that no append has left."""

from __future__ import annotations

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.queue_table import QueueTable
from gantry_wire.message import check_record


def last_record(log: CommitLog, queues: QueueTable, end: int) -> int:
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
