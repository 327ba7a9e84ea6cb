"""The archived ranges of each queue, by broker, topic and number, as they are at one moment of the manifest."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, final

from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind
from gantry_wire.commands.archive import ArchivedRange, ArchivedRanges
from pyspark_rocketmq.model import QueueId

US_PER_MS: Final = 1000
_begin_of = attrgetter("range.begin")


@final
@dataclass(frozen=True, slots=True)
class ArchivedQueue:
    """The files of one queue, by offset, and its archived range."""

    files: tuple[ArchivedFile, ...]
    """The files with messages. Between two of them there may be a range that was lost."""

    end: int
    """The end of the archived offsets, also of ranges that are lost or expired."""

    known: ArchivedFile | None
    """The last range whose messages were archived, though they may have expired."""

    def find(self, offset: int) -> ArchivedFile | None:
        """Return the file with this offset, or the first one after it; None if there is none."""
        index = bisect_right(self.files, offset, key=_begin_of)
        if index and self.files[index - 1].range.end > offset:
            return self.files[index - 1]
        return self.files[index] if index < len(self.files) else None

    def find_by_time(self, time_us: int) -> ArchivedFile | None:
        """Return the first file with a message that was stored at or after a time; None if there is none."""
        return next((file for file in self.files if file.last_time_us >= time_us), None)

    def to_range(self, number: int) -> ArchivedRange:
        """Return the range as brokers get it."""
        begin, first_us = self.end, 0
        if self.files:
            begin, first_us = self.files[0].range.begin, self.files[0].first_time_us
        if self.known is None:
            return ArchivedRange(number, begin, self.end, first_us // US_PER_MS)
        return ArchivedRange(
            number, begin, self.end, first_us // US_PER_MS, self.known.range.end - 1,
            self.known.first_time_us // US_PER_MS, self.known.last_time_us // US_PER_MS,
        )  # fmt: skip


@final
class ArchivedQueues:
    """All queues of an archive at one moment. Immutable."""

    def __init__(self, version: str = "", identity: str = "", ranges: Iterable[ArchivedFile] = ()) -> None:
        """Arrange ``ranges``, which are ordered by queue and offset."""
        self.version: Final = version
        self.identity: Final = identity
        by_queue: dict[QueueId, list[ArchivedFile]] = {}
        for one in ranges:
            by_queue.setdefault(one.range.queue, []).append(one)
        self._queues: Final = {
            queue: ArchivedQueue(
                tuple(file for file in files if file.kind is RangeKind.DATA),
                max(file.range.end for file in files),
                next((file for file in reversed(files) if file.last_time_us), None),
            )
            for queue, files in by_queue.items()
        }

    def __repr__(self) -> str:
        return f"<ArchivedQueues version={self.version} count={len(self._queues)}>"

    def find(self, broker: str, topic: str, number: int) -> ArchivedQueue | None:
        """Return a queue; None if nothing of it is archived."""
        return self._queues.get(QueueId(topic, broker, number))

    def ranges_of(self, broker: str, topics_pattern: str) -> ArchivedRanges:
        """Return the ranges of a broker's queues."""
        ranges: dict[str, list[ArchivedRange]] = {}
        for queue, archived in self._queues.items():
            if queue.broker == broker:
                ranges.setdefault(queue.topic, []).append(archived.to_range(queue.number))
        return ArchivedRanges(self.version, self.identity, topics_pattern, ranges)
