"""Plan the tasks of a batch: each task writes whole pieces, so no file is written by two tasks.

A *piece* is a part of a queue's range that crosses no line of the `grid`.

Pieces are grouped by their position in the log. Where most of a stretch of the log is wanted, a task reads the stretch
once for all its pieces; otherwise each piece is read from its queue. A broker that only serves queues is read by queue.

    log     | a b c a c b a b c ... c a b | a c b ...
    pieces    a: [---------------------)    [-----      the pieces of one *row* of the grid, one of each queue,
              b:  [---------------------)     [---      overlap in the log, and are read from a
              c:   [-----------------)       [----      sidecar once, by one task

Archived ranges are left out: neither a repeated batch nor a new run reads a message twice. The functions are pure.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gantry_pipelines.archive.errors import RangesDoNotMeet
from gantry_pipelines.archive.grid import split_on_grid
from gantry_pipelines.archive.layout import Place
from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind
from pyspark_rocketmq.errors import LogForked
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import QueueId, QueueRange, Replica, Task, TransportKind
from pyspark_rocketmq.planning import BYTES_WORTHWHILE, Extent, SplitOptions, can_chunk, is_dense

BYTES_TARGET: Final = 256 << 20
"""Approximate maximum of a task's bytes."""
ROW_FACTOR: Final = 4
"""By this factor a task with a row of the grid may exceed BYTES_TARGET: if the row were split into several tasks,
each of them would read the same bytes of the log."""


def pieces_to_write(ranges: Iterable[QueueRange], archived: Mapping[QueueId, int], grid_rows: int) -> list[QueueRange]:
    """Return the parts of these ranges that are not archived, split on the grid. Raises RangesDoNotMeet for a gap."""
    planned: list[QueueRange] = []
    for queue_range in ranges:
        begin = archived.get(queue_range.queue, queue_range.begin)
        if begin < queue_range.begin:
            raise RangesDoNotMeet(
                f"the archive has {queue_range.queue} up to {begin}, but the checkpoint begins at {queue_range.begin}:"
                " delete the checkpoint; the next run then continues at the end of the archive"
            )
        if begin < queue_range.end:
            planned += split_on_grid(QueueRange(queue_range.queue, begin, queue_range.end), grid_rows)
    return planned


def lost_ranges(gaps: Iterable[Gap], archived: Mapping[QueueId, int]) -> list[ArchivedFile]:
    """Return the ranges to record as lost because their messages expired before they were read. Raises LogForked.

    A queue without archived messages begins after the expired ones. A gap of another kind is an error: messages that
    were archived, or planned, are no longer part of the log; it may have others there, and no archive can have both.
    """
    planned: list[ArchivedFile] = []
    for gap in sorted(gaps):
        end = archived.get(gap.queue)
        if gap.kind is not GapKind.EXPIRED:
            raise LogForked(
                f"{gap}: these messages are no longer part of the log: keep this archive, and start a new one"
            )
        if end is not None and end < gap.end:
            lost = QueueRange(gap.queue, end, gap.end)
            planned.append(ArchivedFile(Place(lost, ""), 0, 0, "", kind=RangeKind.LOST))
    return planned


def split_into_rounds(pieces: Sequence[QueueRange]) -> list[list[QueueRange]]:
    """Group pieces so that a group has at most one piece of each queue; a group can be located in one request."""
    groups: list[list[QueueRange]] = []
    counts: Counter[QueueId] = Counter()
    for piece in pieces:
        number = counts[piece.queue]
        counts[piece.queue] += 1
        if number == len(groups):
            groups.append([])
        groups[number].append(piece)
    return groups


def plan_tasks(
    extents: Sequence[Extent], replicas: Mapping[str, tuple[Replica, ...]], split: SplitOptions
) -> list[Task]:
    """Group pieces with known positions in the log into tasks."""
    wanted_bytes = sum(extent.wanted for extent in extents)
    share = max(wanted_bytes // max(split.cores, split.partitions_min), BYTES_WORTHWHILE)
    target = min(split.bytes_target, math.ceil(share))
    planned: list[Task] = []
    for broker in sorted({extent.range.queue.broker for extent in extents}):
        broker_extents = [extent for extent in extents if extent.range.queue.broker == broker]
        groups = _group_extents(broker_extents, target, target)
        if not _is_mapped(replicas[broker], split.transport):
            row_groups = _group_extents(broker_extents, target, ROW_FACTOR * split.bytes_target)
            if len(row_groups) >= min(split.cores, len(groups)):  # grouping by rows must not leave cores idle
                groups = row_groups
        planned += [_make_task(broker, group, replicas[broker], split) for group in groups]
    return planned


def _group_extents(extents: Iterable[Extent], target: int, row_bytes_max: int) -> list[list[Extent]]:
    """Group extents in log order up to about `target` bytes, or up to `row_bytes_max` while they overlap.

    An extent counts as overlapping if it begins in the first half of the group's first extent.
    """
    groups: list[list[Extent]] = []
    filled = middle = 0
    for extent in sorted(extents, key=lambda extent: (extent.begin, extent.range)):
        limit = row_bytes_max if extent.begin < middle else target
        if not groups or filled + extent.wanted > limit:
            groups.append([])
            filled, middle = 0, (extent.begin + extent.end) // 2
        groups[-1].append(extent)
        filled += extent.wanted
    return groups


def _is_mapped(replicas: Iterable[Replica], transport: TransportKind) -> bool:
    """Return whether the log is read from local files, where reading a stretch twice costs nothing."""
    offers = (TransportKind.FILE, TransportKind.AUTO)
    return transport in offers and any(replica.directory is not None for replica in replicas)


def _make_task(broker: str, extents: list[Extent], replicas: tuple[Replica, ...], split: SplitOptions) -> Task:
    is_chunk = can_chunk(replicas, split.transport) and is_dense(extents)
    begin, end = min(one.begin for one in extents), max(one.end for one in extents)
    ranges = tuple(sorted(one.range for one in extents))
    size = sum(one.wanted for one in extents)
    return split.task(broker, replicas, ranges, size, (begin, end) if is_chunk else None)
