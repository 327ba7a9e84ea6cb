"""Limit how many messages one batch takes, and split a read into tasks of about the same number of bytes. Pure.

A batch takes a share of each queue in proportion to its backlog: the same backlog gives the same batch. Every queue
with messages gets at least one, as long as there are as many messages to give, so that a quiet queue beside a busy one
never starves; with fewer messages than queues those with the longest backlog come first, and the others follow as
the backlogs shrink.

Messages of all queues of a broker lie in one log, one after the other. Where most of a stretch of the log is wanted,
the cheapest way is to read it once from beginning to end, and a task is a *chunk* of it: bytes `[begin, end)`, and of
the records that begin in them those that are in the ranges. Where little is wanted each queue is read by its own units,
and a task has *ranges* of queues.

A task costs some 20 ms in any case, so there are about as many as cores, or fewer for a small read. There are more only
if they would be larger than `bytes_target`, to have `partitions_min`, or because a task reads from one broker: each
broker with messages has at least one. Sizes are estimates, ranges are not: however wrong the estimates, the tasks
together have exactly the requested messages, each once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from pyspark_rocketmq.model import QueueId, QueueRange, Replica, Task, TransportKind

BYTES_TARGET: Final = 128 * 1024 * 1024
"""Bytes of a task, at most approximately; Spark's own value for files."""
BYTES_TARGET_HEADERS: Final = 4 * BYTES_TARGET
"""The same for reads of only `HEADER_COLUMNS`, without a filter by tags: such a task decodes few of its bytes."""
BYTES_WORTHWHILE: Final = 8 * 1024 * 1024
"""A read of fewer bytes is not split to use an idle core: reading it takes no longer than a task costs."""
DENSITY_MIN: Final = 0.5
"""The share of wanted bytes from which on a stretch of the log is read as a whole."""


# -- how much one batch takes ------------------------------------------------------------------------------------------


def distribute(volumes: Sequence[int], total: int) -> list[int]:
    """Distribute `total` over `volumes`: never more than the volume, at least one to each that is not empty.

    If `total` is smaller than the number of these, the largest of them get one each.
    """
    assert total >= 0 and all(volume >= 0 for volume in volumes), (volumes, total)
    if sum(volumes) <= total:
        return list(volumes)
    wanting = [number for number, volume in enumerate(volumes) if volume]
    parts = [0] * len(volumes)
    if total <= len(wanting):
        for number in sorted(wanting, key=lambda one: (-volumes[one], one))[:total]:
            parts[number] = 1
        return parts
    rest, left = total - len(wanting), sum(volumes) - len(wanting)
    remainders: list[tuple[int, int]] = []
    for number in wanting:
        whole, remainder = divmod(rest * (volumes[number] - 1), left)
        parts[number] = 1 + whole
        remainders.append((-remainder, number))
    for _, number in sorted(remainders)[: total - sum(parts)]:
        parts[number] += 1
    return parts


def limit_rows(ranges: Sequence[QueueRange], rows_max: int) -> list[QueueRange]:
    """Return the beginnings of these ranges with at most `rows_max` messages in total."""
    parts = distribute([one.count for one in ranges], rows_max)
    return [QueueRange(one.queue, one.begin, one.begin + part) for one, part in zip(ranges, parts, strict=True)]


def limit_bytes(ranges: Sequence[QueueRange], sizes: Mapping[QueueId, int], bytes_max: int) -> list[QueueRange]:
    """Return the beginnings of these ranges with about `bytes_max` in total.

    `sizes` are the bytes of a typical message of each queue. A message is never cut, and each queue that gets a share
    of `bytes_max` gives at least one, so the total may be larger by a message for each queue.
    """
    usual = [max(1, sizes.get(one.queue, 1)) for one in ranges]
    parts = distribute([one.count * size for one, size in zip(ranges, usual, strict=True)], bytes_max)
    limited: list[QueueRange] = []
    for one, size, part in zip(ranges, usual, parts, strict=True):
        count = min(one.count, max(1, part // size) if part else 0)
        limited.append(QueueRange(one.queue, one.begin, one.begin + count))
    return limited


# -- tasks -------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """A range, and the location and estimated size of its messages."""

    range: QueueRange
    begin: int
    """Physical offset of its first message, or an offset before it."""
    end: int
    """One past its last message."""
    size: int
    """Bytes of a typical message of the range."""

    @property
    def wanted(self) -> int:
        """The estimated bytes of its messages."""
        return self.range.count * max(1, self.size)


@final
@dataclass(frozen=True, slots=True)
class SplitOptions:
    """How a read is to be split into tasks."""

    columns: tuple[str, ...]
    transport: TransportKind = TransportKind.AUTO
    tags: frozenset[str] | None = None
    bytes_target: int = BYTES_TARGET
    """The bytes of a task, approximately at most."""

    partitions_min: int = 1
    """The fewest tasks into which the read is split."""

    cores: int = 1
    """The number of tasks that can run at a time."""

    def task(
        self, broker: str, replicas: tuple[Replica, ...], ranges: tuple[QueueRange, ...], bytes_estimated: int,
        physical: tuple[int, int] | None = None,
    ) -> Task:  # fmt: skip
        """Return a task of this read."""
        return Task(broker, replicas, self.transport, ranges, self.columns, self.tags, physical, bytes_estimated)


def plan_tasks(
    extents: Sequence[Extent], replicas: Mapping[str, tuple[Replica, ...]], split: SplitOptions
) -> list[Task]:
    """Return the tasks of a read, broker by broker."""
    wanted = [extent for extent in extents if extent.range.count > 0]
    if not wanted:
        return []
    bytes_per_task = task_bytes(sum(extent.wanted for extent in wanted), split)
    tasks: list[Task] = []
    by_broker: dict[str, list[Extent]] = {}
    for extent in sorted(wanted, key=lambda one: one.range):
        by_broker.setdefault(extent.range.queue.broker, []).append(extent)
    for broker in sorted(by_broker):
        broker_extents = by_broker[broker]
        if can_chunk(replicas[broker], split.transport) and is_dense(broker_extents):
            tasks += _chunk_tasks(broker, broker_extents, replicas[broker], split, bytes_per_task)
        else:
            tasks += _queue_tasks(broker, broker_extents, replicas[broker], split, bytes_per_task)
    return tasks


def task_bytes(total: int, split: SplitOptions) -> int:
    """Return how many bytes a task should have."""
    count = max(
        math.ceil(total / split.bytes_target), split.partitions_min, min(split.cores, total // BYTES_WORTHWHILE), 1
    )
    return max(1, math.ceil(total / count))


def can_chunk(replicas: Sequence[Replica], transport: TransportKind) -> bool:
    """Return whether every replica of a task can read bytes of the log; RocketMQ's protocol reads queues only."""
    if transport in (TransportKind.FILE, TransportKind.HTTP):
        return True
    has_bytes = bool(replicas) and all(one.sidecar or one.directory for one in replicas)
    return transport is TransportKind.AUTO and has_bytes


def is_dense(extents: Iterable[Extent]) -> bool:
    """Return whether most of the stretch of the log from the first to the last message is wanted."""
    all_extents = list(extents)
    span = max(one.end for one in all_extents) - min(one.begin for one in all_extents)
    return span > 0 and sum(one.wanted for one in all_extents) >= DENSITY_MIN * span


def _chunk_tasks(
    broker: str, extents: Sequence[Extent], replicas: tuple[Replica, ...], split: SplitOptions, bytes_per_task: int
) -> Iterable[Task]:
    """Yield tasks of consecutive bytes of the log (chunks)."""
    begin, end = min(one.begin for one in extents), max(one.end for one in extents)
    wanted = sum(one.wanted for one in extents)
    count = max(1, min(math.ceil(wanted / bytes_per_task), sum(one.range.count for one in extents)))
    edges = [begin + (end - begin) * number // count for number in range(count + 1)]
    for low, high in pairwise(edges):
        chunk_ranges = tuple(one.range for one in extents if one.begin < high and one.end > low)
        if chunk_ranges and low < high:
            yield split.task(broker, replicas, chunk_ranges, high - low, (low, high))


def _queue_tasks(
    broker: str, extents: Sequence[Extent], replicas: tuple[Replica, ...], split: SplitOptions, bytes_per_task: int
) -> Iterable[Task]:
    """Yield tasks of ranges of queues."""
    for ranges, size in _pack_ranges(extents, bytes_per_task):
        yield split.task(broker, replicas, ranges, size)


def _pack_ranges(extents: Sequence[Extent], bytes_per_task: int) -> Iterable[tuple[tuple[QueueRange, ...], int]]:
    """Yield ranges in their order, split wherever a task is full."""
    ranges: list[QueueRange] = []
    filled_bytes = 0
    for extent in extents:
        size, at = max(1, extent.size), extent.range.begin
        while at < extent.range.end:
            if ranges and bytes_per_task - filled_bytes < size:
                yield tuple(ranges), filled_bytes
                ranges, filled_bytes = [], 0
            count = min(extent.range.end - at, max(1, (bytes_per_task - filled_bytes) // size))
            ranges.append(QueueRange(extent.range.queue, at, at + count))
            at, filled_bytes = at + count, filled_bytes + count * size
    if ranges:
        yield tuple(ranges), filled_bytes
