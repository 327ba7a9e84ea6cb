"""How much of what is there one batch takes, and a read cut into tasks of about the same number of bytes. Pure.

A batch takes of each queue its share, by how much waits in it: the same backlog gives the same batch. Every queue that
has something gets at least one message, as long as there are as many messages to give, so a quiet queue beside a busy
one never starves; with fewer messages than queues those with the longest backlog come first, and the others follow as
theirs grow shorter.

Messages of all queues of a broker lie in one log, one behind the other. Where most of a stretch of it is wanted, the
cheapest way is to read it once from beginning to end, and a task is a *chunk* of it: bytes `[begin, end)`, and of the
records that begin in them those that are in the ranges. Where little is wanted each queue is read by its own units, and
a task has *ranges* of queues.

A task costs some 20 ms whatever it does, so there are about as many as cores, and more only when they would be larger
than `bytes_target`. Sizes are guesses, ranges are not: whatever is guessed, the tasks together have exactly the
messages that were asked for, each once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from pyspark_rocketmq.model import QueueId, QueueRange, Replica, Task, TransportKind

BYTES_TARGET: Final = 128 * 1024 * 1024
"""A task's bytes, at most about; what Spark itself takes of a file."""
BYTES_TARGET_HEADERS: Final = 4 * BYTES_TARGET
"""The same where bodies stay where they are: such a task reads little of its bytes."""
BYTES_WORTHWHILE: Final = 8 * 1024 * 1024
"""Less than this is not cut only because a core is idle: it is read in the time that a task costs."""
DENSITY_MIN: Final = 0.5
"""Wanted bytes in a stretch of the log from which on it is read as a whole."""


# -- how much one batch takes ------------------------------------------------------------------------------------------


def share(volumes: Sequence[int], total: int) -> list[int]:
    """`total` given out over `volumes`: never more than there is, at least one to each that has something."""
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


def limited_rows(ranges: Sequence[QueueRange], rows_max: int) -> list[QueueRange]:
    """The beginnings of these ranges with `rows_max` messages in all."""
    parts = share([one.count for one in ranges], rows_max)
    return [QueueRange(one.queue, one.begin, one.begin + part) for one, part in zip(ranges, parts, strict=True)]


def limited_bytes(ranges: Sequence[QueueRange], sizes: Mapping[QueueId, int], bytes_max: int) -> list[QueueRange]:
    """The beginnings of these ranges with about `bytes_max` in all; `sizes` are those of a queue's usual message.

    A message is never cut, and each queue gives at least one, so the sum may be larger by a message for each queue.
    """
    usual = [max(1, sizes.get(one.queue, 1)) for one in ranges]
    parts = share([one.count * size for one, size in zip(ranges, usual, strict=True)], bytes_max)
    limited: list[QueueRange] = []
    for one, size, part in zip(ranges, usual, parts, strict=True):
        count = min(one.count, max(1, part // size) if part else 0)
        limited.append(QueueRange(one.queue, one.begin, one.begin + count))
    return limited


# -- tasks -------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """A range, and what is known of its bytes."""

    range: QueueRange
    begin: int
    """Where in the log its first message lies, or a place before it."""
    end: int
    """One past its last message."""
    size: int
    """Bytes of a usual message of it."""

    @property
    def wanted(self) -> int:
        """Its bytes, guessed."""
        return self.range.count * max(1, self.size)


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """How a read is to be cut."""

    columns: tuple[str, ...]
    transport: TransportKind = TransportKind.AUTO
    tags: frozenset[str] | None = None
    bytes_target: int = BYTES_TARGET
    partitions_min: int = 1
    cores: int = 1

    def task(
        self, broker: str, replicas: tuple[Replica, ...], ranges: tuple[QueueRange, ...], bytes_estimated: int,
        physical: tuple[int, int] | None = None,
    ) -> Task:  # fmt: skip
        """Return a task of this read."""
        return Task(broker, replicas, self.transport, ranges, self.columns, self.tags, physical, bytes_estimated)


def plan(extents: Sequence[Extent], replicas: Mapping[str, tuple[Replica, ...]], cut: Cut) -> list[Task]:
    """The tasks of a read, broker by broker."""
    wanted = [extent for extent in extents if extent.range.count > 0]
    if not wanted:
        return []
    piece = piece_bytes(sum(extent.wanted for extent in wanted), cut)
    tasks: list[Task] = []
    by_broker: dict[str, list[Extent]] = {}
    for extent in sorted(wanted, key=lambda one: one.range):
        by_broker.setdefault(extent.range.queue.broker, []).append(extent)
    for broker in sorted(by_broker):
        those = by_broker[broker]
        if can_chunk(replicas[broker], cut.transport) and is_dense(those):
            tasks += _chunks(broker, those, replicas[broker], cut, piece)
        else:
            tasks += _queue_tasks(broker, those, replicas[broker], cut, piece)
    return tasks


def piece_bytes(total: int, cut: Cut) -> int:
    """How many bytes a task should have."""
    pieces = max(math.ceil(total / cut.bytes_target), cut.partitions_min, min(cut.cores, total // BYTES_WORTHWHILE), 1)
    return max(1, math.ceil(total / pieces))


def can_chunk(replicas: Sequence[Replica], transport: TransportKind) -> bool:
    """Whether every replica that a task may come to gives bytes of the log; RocketMQ's protocol gives queues only."""
    if transport in (TransportKind.FILE, TransportKind.HTTP):
        return True
    has_bytes = bool(replicas) and all(one.sidecar or one.directory for one in replicas)
    return transport is TransportKind.AUTO and has_bytes


def is_dense(extents: Iterable[Extent]) -> bool:
    """Whether most of the stretch of the log from the first to the last message is wanted."""
    those = list(extents)
    span = max(one.end for one in those) - min(one.begin for one in those)
    return span > 0 and sum(one.wanted for one in those) >= DENSITY_MIN * span


def _chunks(
    broker: str, extents: Sequence[Extent], replicas: tuple[Replica, ...], cut: Cut, piece: int
) -> Iterable[Task]:
    begin, end = min(one.begin for one in extents), max(one.end for one in extents)
    wanted = sum(one.wanted for one in extents)
    count = max(1, min(math.ceil(wanted / piece), sum(one.range.count for one in extents)))
    edges = [begin + (end - begin) * number // count for number in range(count + 1)]
    for low, high in pairwise(edges):
        those = tuple(one.range for one in extents if one.begin < high and one.end > low)
        if those and low < high:
            yield cut.task(broker, replicas, those, high - low, (low, high))


def _queue_tasks(
    broker: str, extents: Sequence[Extent], replicas: tuple[Replica, ...], cut: Cut, piece: int
) -> Iterable[Task]:
    for ranges, size in _filled(extents, piece):
        yield cut.task(broker, replicas, ranges, size)


def _filled(extents: Sequence[Extent], piece: int) -> Iterable[tuple[tuple[QueueRange, ...], int]]:
    """Ranges in their order, cut wherever a task is full."""
    ranges: list[QueueRange] = []
    filled = 0
    for extent in extents:
        size, at = max(1, extent.size), extent.range.begin
        while at < extent.range.end:
            if ranges and piece - filled < size:
                yield tuple(ranges), filled
                ranges, filled = [], 0
            count = min(extent.range.end - at, max(1, (piece - filled) // size))
            ranges.append(QueueRange(extent.range.queue, at, at + count))
            at, filled = at + count, filled + count * size
    if ranges:
        yield tuple(ranges), filled
