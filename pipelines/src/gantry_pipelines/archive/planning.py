"""From the ranges of a batch to tasks: each writes whole pieces, so no file is written by two.

Pieces are put together as they lie in the log. Where most of a stretch of it is wanted a task reads that stretch once,
for all its pieces; else each piece is read by its own queue. A broker that gives queues only is read by queues.

    log     | a b c a c b a b c ... c a b | a c b ...
    pieces    a: [---------------------)    [-----      those of one row of the grid lie in one another
              b:  [---------------------)     [---      and from a sidecar come once, for one task
              c:   [-----------------)       [----

What the archive has already is left out: a batch that is done again, or a run that begins anew, reads nothing twice.
Pure, but for the questions of where in the log a piece lies.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gantry_pipelines.archive.errors import RangesDoNotMeet
from gantry_pipelines.archive.grid import pieces
from gantry_pipelines.archive.layout import Place
from gantry_pipelines.archive.manifest import ArchivedFile, Kind
from pyspark_rocketmq.errors import LogForked
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import QueueId, QueueRange, Replica, Task, TransportKind
from pyspark_rocketmq.planning import BYTES_WORTHWHILE, Cut, Extent, can_chunk, is_dense

BYTES_TARGET: Final = 256 << 20
"""A task's bytes, at most about."""
ROW_FACTOR: Final = 4
"""A task may have so many times as many where they are a row of the grid, which would cross the network again else."""


def pieces_to_write(ranges: Iterable[QueueRange], archived: Mapping[QueueId, int], grid_rows: int) -> list[QueueRange]:
    """What of these ranges is not there yet, cut on the grid. Raises RangesDoNotMeet for a gap."""
    found: list[QueueRange] = []
    for one in ranges:
        begin = archived.get(one.queue, one.begin)
        if begin < one.begin:
            raise RangesDoNotMeet(
                f"the archive has {one.queue} up to {begin}, and the checkpoint begins at {one.begin}:"
                " delete the checkpoint, and the run goes on where the archive ends"
            )
        if begin < one.end:
            found += pieces(QueueRange(one.queue, begin, one.end), grid_rows)
    return found


def lost_ranges(gaps: Iterable[Gap], archived: Mapping[QueueId, int]) -> list[ArchivedFile]:
    """What the archive has to say of messages that were gone before they were read. Raises LogForked.

    A queue of which nothing is archived yet begins behind them. Messages that were archived and are no part of the log
    any more are another matter: their offsets have other messages now, and no archive can have both.
    """
    found: list[ArchivedFile] = []
    for gap in sorted(gaps):
        end = archived.get(gap.queue)
        if gap.kind is not GapKind.EXPIRED:
            raise LogForked(
                f"{gap}: the log has other messages there than the archive: begin another archive, and keep this one"
            )
        if end is not None and end < gap.end:
            lost = QueueRange(gap.queue, end, gap.end)
            found.append(ArchivedFile(Place(lost, ""), 0, 0, "", kind=Kind.LOST))
    return found


def rounds(found: Sequence[QueueRange]) -> list[list[QueueRange]]:
    """Pieces in groups that have at most one of each queue: so many may be asked for at once."""
    groups: list[list[QueueRange]] = []
    seen: Counter[QueueId] = Counter()
    for piece in found:
        number = seen[piece.queue]
        seen[piece.queue] += 1
        if number == len(groups):
            groups.append([])
        groups[number].append(piece)
    return groups


def tasks(extents: Sequence[Extent], replicas: Mapping[str, tuple[Replica, ...]], cut: Cut) -> list[Task]:
    """Pieces, and where they lie, as tasks."""
    wanted = sum(extent.wanted for extent in extents)
    share = max(wanted // max(cut.cores, cut.partitions_min), BYTES_WORTHWHILE)
    target = min(cut.bytes_target, math.ceil(share))
    found: list[Task] = []
    for broker in sorted({extent.range.queue.broker for extent in extents}):
        those = [extent for extent in extents if extent.range.queue.broker == broker]
        groups = _groups(those, target, target)
        if not _is_mapped(replicas[broker], cut.transport):
            rows = _groups(those, target, ROW_FACTOR * cut.bytes_target)
            groups = rows if len(rows) >= min(cut.cores, len(groups)) else groups  # no core is idle for it
        found += [_task(broker, group, replicas[broker], cut) for group in groups]
    return found


def _groups(extents: Iterable[Extent], target: int, row_bytes_max: int) -> list[list[Extent]]:
    """As they lie in the log, each about as large as wanted, or up to `row_bytes_max` with what it reads anyway."""
    groups: list[list[Extent]] = []
    filled = middle = 0
    for extent in sorted(extents, key=lambda one: (one.begin, one.range)):
        limit = row_bytes_max if extent.begin < middle else target
        if not groups or filled + extent.wanted > limit:
            groups.append([])
            filled, middle = 0, (extent.begin + extent.end) // 2
        groups[-1].append(extent)
        filled += extent.wanted
    return groups


def _is_mapped(replicas: Iterable[Replica], transport: TransportKind) -> bool:
    """Whether bytes come out of files of this machine: a stretch that is looked at twice costs nothing there."""
    offers = (TransportKind.FILE, TransportKind.AUTO)
    return transport in offers and any(replica.directory is not None for replica in replicas)


def _task(broker: str, extents: list[Extent], replicas: tuple[Replica, ...], cut: Cut) -> Task:
    is_chunk = can_chunk(replicas, cut.transport) and is_dense(extents)
    begin, end = min(one.begin for one in extents), max(one.end for one in extents)
    ranges = tuple(sorted(one.range for one in extents))
    size = sum(one.wanted for one in extents)
    return cut.task(broker, replicas, ranges, size, (begin, end) if is_chunk else None)
