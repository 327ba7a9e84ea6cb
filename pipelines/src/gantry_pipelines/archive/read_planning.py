"""Plan a read of topics from an archive and its brokers together: each message once, from one of the two.

    offsets of a queue      0 ........ A ................. E ........ end
    archive                            [ file )[ file )[ f )
    broker                     (deleted) [....................... )
    read from                  missing [ archive           )[ broker )

A message that the archive has is read from there, and any other one from its broker, also one before the first archived
message, or one that the retention of the archive has deleted. What neither has is missing: a gap. The functions are
pure; their input is one state of the manifest and one answer of the brokers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange

LiveRanges = Mapping[QueueId, Sequence[ArchivedFile]]
"""The live ranges of each archived queue, by offset and without a gap."""


@final
@dataclass(frozen=True, slots=True)
class FilePart:
    """The messages `[begin, end)` of an archived file."""

    file: ArchivedFile
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether all messages of the file are read."""
        return (self.begin, self.end) == (self.file.range.begin, self.file.range.end)


@final
@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What is read from where; the three together tile the requested ranges."""

    parts: tuple[FilePart, ...]
    """From the archive."""
    ranges: tuple[QueueRange, ...]
    """From brokers; a queue may have several."""
    missing: tuple[QueueRange, ...]
    """Messages that neither the archive nor a broker has."""


def live_ranges(files: Sequence[ArchivedFile], queues: frozenset[QueueId]) -> dict[QueueId, list[ArchivedFile]]:
    """Return the live ranges of these queues, by offset."""
    found: dict[QueueId, list[ArchivedFile]] = {}
    for file in files:
        if file.range.queue in queues:
            found.setdefault(file.range.queue, []).append(file)
    return {queue: sorted(ranges, key=lambda file: file.range) for queue, ranges in found.items()}


def archived_ends(live: LiveRanges) -> dict[QueueId, int]:
    """Return the end of the archived offsets of each queue."""
    return {queue: files[-1].range.end for queue, files in live.items()}


def available_bounds(live: LiveRanges, bounds: Mapping[QueueId, Bounds]) -> dict[QueueId, Bounds]:
    """Return for each queue its first message that the archive or its broker has, and its end.

    A queue without messages on its broker, whose archived messages have all expired, begins and ends at its end.
    """
    ends = archived_ends(live)
    found: dict[QueueId, Bounds] = {}
    for queue in sorted({*live, *bounds}):
        at_broker = bounds.get(queue)
        end = max(ends.get(queue, 0), at_broker.end if at_broker is not None else 0)
        begins = [file.range.begin for file in live.get(queue, ()) if file.kind is RangeKind.DATA][:1]
        if at_broker is not None and (at_broker.begin < at_broker.end or not begins):
            begins.append(at_broker.begin)
        found[queue] = Bounds(min(begins, default=end), end)
    return found


def plan_read(wanted: Sequence[QueueRange], live: LiveRanges, bounds: Mapping[QueueId, Bounds]) -> ReadPlan:
    """Plan from where each wanted message is read. The ranges of `live` must not overlap."""
    parts: list[FilePart] = []
    ranges: list[QueueRange] = []
    missing: list[QueueRange] = []
    for one in wanted:
        at = one.begin
        for file in live.get(one.queue, ()):
            begin, end = max(at, file.range.begin), min(one.end, file.range.end)
            if file.kind is not RangeKind.DATA or begin >= end:
                continue
            _fill(QueueRange(one.queue, at, begin), bounds.get(one.queue), ranges, missing)
            parts.append(FilePart(file, begin, end))
            at = end
        _fill(QueueRange(one.queue, at, one.end), bounds.get(one.queue), ranges, missing)
    return ReadPlan(tuple(parts), tuple(ranges), tuple(missing))


def _fill(hole: QueueRange, bounds: Bounds | None, ranges: list[QueueRange], missing: list[QueueRange]) -> None:
    """Read from the broker what the archive does not have, as far as the broker has it."""
    begin = end = hole.end
    if bounds is not None:
        begin = min(max(hole.begin, bounds.begin), hole.end)
        end = max(min(hole.end, bounds.end), begin)
    for some, found in (((hole.begin, begin), missing), ((begin, end), ranges), ((end, hole.end), missing)):
        if some[0] < some[1]:
            found.append(QueueRange(hole.queue, *some))
