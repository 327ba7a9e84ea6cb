"""Plan the batches of a streaming query: where the next batch ends, and which ranges it reads.

All decisions of the streaming reader are here, without Spark: `next_offset` returns where the next batch ends, `ranges`
which messages a batch reads. Both follow from Spark's log, from what brokers report, and from the limits. The rules:

- what an offset contains is final (see `offsets`); nothing is decided twice;
- a queue that is new after the first batch is read from its first message, also if it appeared between two runs;
- a queue that is not listed any more keeps its position for its return. If it may have unread messages and losses are
  fatal, the query fails after `patience_ms`; else reading continues without the queue (`_find_missing`);
- with Trigger.AvailableNow the ends are fixed when the query starts, and the query reads up to them and no further.
  The end of a queue of the checkpoint whose broker is unavailable then is fixed when the queue is found.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import InvalidOption, NoReplica
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange
from pyspark_rocketmq.offsets import Mark, StreamOffset, ranges_between
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.planning import limit_bytes, limit_rows
from pyspark_rocketmq.position_check import RECHECK_INTERVAL_S, PositionCheck, PositionChecker, advance_mark

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
"""How often the end of one batch is computed at most; again only if an epoch began meanwhile."""

AlignRanges = Callable[[Sequence[QueueRange], Sequence[QueueRange]], list[QueueRange]]
"""A function from the ranges that a batch may take, and all available ranges, to those that it takes."""


@final
class StreamPlanner:
    """Plans the batches of one query, in the one driver-side process that Spark calls."""

    def __init__(
        self, options: ReadOptions, catalog: CatalogPort, clock: Clock, align_ranges: AlignRanges | None = None
    ) -> None:
        """With `align_ranges` batches end at certain offsets only: it moves the ends that the limits gave."""
        self._options = options
        self._catalog = catalog
        self._clock = clock
        self._position_checker = PositionChecker(
            catalog, clock, patience_ms=options.settings.patience_ms, is_loss_fatal=options.is_loss_fatal
        )
        self._queues: list[QueueId] = []
        self._discovered_at_s: float | None = None
        self._last_ends: dict[QueueId, int] = {}
        self._target: dict[QueueId, int] | None = None
        self._target_error: InvalidOption | None = None
        self._checkpoint_queues: set[QueueId] | None = None
        self._last_batch_s = clock.now_s()
        self._planned: StreamOffset | None = None
        self._align_ranges = align_ranges
        self._sizes: dict[QueueId, int] = {}

    @property
    def ends(self) -> Mapping[QueueId, int]:
        """The end of each queue when its bounds were last read."""
        return self._last_ends

    @property
    def sizes(self) -> Mapping[QueueId, int]:
        """Bytes of a typical message of each queue, where it is known."""
        return self._sizes

    def update_sizes(self, sizes: Mapping[QueueId, int]) -> None:
        """Record the message sizes that planning a batch has found."""
        self._sizes |= sizes

    @property
    def has_target(self) -> bool:
        """Whether the query ends when it has read what was stored when it began."""
        return self._target is not None

    def fix_target(self) -> None:
        """Fix the ends of all queues that are found: messages that are stored later are not read.

        A missing topic is an error only before the first batch, which `next_offset` knows.
        """
        queues, self._target_error = self._options.subscription.find_queues(self._catalog)
        self._target = {queue: one.end for queue, one in self._catalog.bounds(queues).items()}

    def next_offset(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset | None:
        """Return the end of the batch that begins at `start`; None if no batch is due now."""
        for _ in range(ATTEMPTS_MAX):
            check_result, positions, begins = self._check_positions(start)
            ranges = [
                QueueRange(
                    queue, position, max(position, self._readable_end(queue, position, check_result.bounds[queue]))
                )
                for queue, position in sorted(positions.items())
            ]
            is_first = not start.ends
            taken = self._apply_limits(ranges, is_first=is_first) if is_limited else ranges
            taken = taken if self._align_ranges is None else self._align_ranges(taken, ranges)
            locations = self._catalog.physical({one.queue: one.end - 1 for one in taken if one.count})
            self._sizes = {queue: size for queue, (_, size) in locations.items()} | self._sizes
            logs = self._catalog.logs(sorted(check_result.logs))
            if all(logs[broker].epochs == check_result.logs[broker].epochs for broker in logs):
                break
        else:
            raise NoReplica(f"{', '.join(sorted(logs))}: new epochs began faster than a batch could be planned")
        if not any(one.count for one in taken) and not begins and not check_result.gaps:
            return None
        marks = self._marks(start, check_result, locations)
        self._last_batch_s = self._clock.now_s()
        ends = {**start.ends, **{one.queue: one.end for one in taken}}
        self._planned = StreamOffset(ends, marks, begins, check_result.gaps)
        return self._planned

    def ranges(self, start: StreamOffset, end: StreamOffset) -> tuple[tuple[QueueRange, ...], tuple[Gap, ...]]:
        """Return the ranges that the batch `[start, end)` reads, and the gaps that it skips.

        A batch that was planned by an earlier process is checked again: some of its messages may have been deleted.
        """
        ranges = ranges_between(start, end)
        if end == self._planned or not ranges:
            return ranges, end.gaps
        recheck = self._position_checker.recheck_planned(ranges, end.marks)
        kept = [left for one in ranges if (left := _subtract_gaps(one, recheck.gaps)).count > 0]
        return tuple(kept), (*end.gaps, *recheck.gaps)

    # -- queues and positions ------------------------------------------------------------------------------------------

    def _check_positions(self, start: StreamOffset) -> tuple[PositionCheck, dict[QueueId, int], dict[QueueId, int]]:
        """Check the positions of all queues, and let new queues begin.

        Returns the check, the position of each queue, and those of them that no earlier offset contains.
        """
        found = self._discover(start)
        known = {queue: start.ends[queue] for queue in found if queue in start.ends}
        new_queues = tuple(queue for queue in found if queue not in start.ends)
        if self._target is not None:
            new_queues = tuple(queue for queue in new_queues if queue in self._target)
        check_result = self._position_checker.check(known, start.marks, new_queues)
        self._last_ends |= {queue: one.end for queue, one in check_result.bounds.items()}
        if self._target is not None:
            # A queue of the checkpoint has no target yet if its broker was unavailable when the target was fixed.
            self._checkpoint_queues = set(start.ends) if self._checkpoint_queues is None else self._checkpoint_queues
            late_ends = {one: check_result.bounds[one].end for one in known if one in self._checkpoint_queues}
            self._target = late_ends | self._target
        positions = {queue: check_result.position_after_gaps(queue, position) for queue, position in known.items()}
        bounds = {queue: check_result.bounds[queue] for queue in new_queues}
        gaps: tuple[Gap, ...] = ()
        if start.ends:
            begins = {queue: one.begin for queue, one in bounds.items()}
        else:
            begins = self._options.start.resolve(bounds, self._catalog)
            gaps = self._position_checker.find_expired(begins, bounds, ends={})
            begins |= {gap.queue: gap.end for gap in gaps}
        moved = {gap.queue: positions[gap.queue] for gap in check_result.gaps}
        check_result = replace(check_result, gaps=(*check_result.gaps, *gaps))
        return check_result, {**positions, **begins}, {**moved, **begins}

    def _discover(self, start: StreamOffset) -> list[QueueId]:
        """Return the queues that exist; discovered again after the discovery interval.

        If losses are fatal and a queue is missing, they are discovered again at once. Before the first batch, raises
        InvalidOption if a topic or queue that the options name is not found.
        """
        if self._target_error is not None and not start.ends:
            raise self._target_error
        now_s = self._clock.now_s()
        interval_s = self._options.discovery_interval_ms / 1000
        is_old = self._discovered_at_s is None or now_s - self._discovered_at_s >= interval_s
        if is_old or (self._options.is_loss_fatal and self._find_missing(start)):
            self._queues = self._discover_until(start, now_s + self._options.settings.patience_ms / 1000)
            self._discovered_at_s = self._clock.now_s()
        return self._queues

    def _discover_until(self, start: StreamOffset, deadline_s: float) -> list[QueueId]:
        """Find the queues, repeatedly while one is missing and losses are fatal, until a deadline."""
        while True:
            found, error = self._options.subscription.find_queues(self._catalog)
            if error is not None and not start.ends and not self._queues:
                raise error
            if error is None or start.ends:
                self._queues = found
            missing = self._find_missing(start)
            # No topic at all may also mean a name server that has just started, and that no broker has reached yet.
            is_complete = error is None or (found and self._options.subscription.covers({*found, *start.ends}))
            if is_complete and not missing:
                return self._queues
            if self._clock.now_s() >= deadline_s or not self._options.is_loss_fatal:
                break
            self._clock.sleep(RECHECK_INTERVAL_S)
        if self._options.is_loss_fatal:
            names = ", ".join(map(str, missing[:3]))
            what = f"queue {names} not found: no name server lists a broker that has it" if missing else str(error)
            raise NoReplica(f"{what}; check the broker, or continue without the queue with failOnDataLoss=false")
        log.warning(
            "queues not found; reading continues without them",
            extra={
                "queues": [str(one) for one in missing],
                "reason": str(error or "no name server lists their broker"),
            },
        )
        return self._queues

    def _find_missing(self, start: StreamOffset) -> list[QueueId]:
        """Return queues that were read before, are missing now, and may have unread messages.

        A queue that was read up to its last known end may disappear: a topic that was deleted, a shard that was
        removed. Its position stays in the offset, so reading continues from there if the queue comes back.
        """
        gone = set(start.ends) - set(self._queues)
        return sorted(
            queue
            for queue in gone
            if self._options.subscription.matches(queue) and start.ends[queue] != self._last_ends.get(queue)
        )

    def _marks(
        self, start: StreamOffset, check_result: PositionCheck, locations: Mapping[QueueId, tuple[int, int]]
    ) -> dict[str, Mark]:
        """Return how far each broker's log will have been read; after a fork, the log of the newer epoch."""
        marks = dict(start.marks)
        for fork in check_result.forks:
            marks[fork.broker] = Mark(check_result.logs[fork.broker].epoch, fork.begin)
        for queue, (at, size) in sorted(locations.items()):
            mark = advance_mark(marks.get(queue.broker), check_result.logs[queue.broker], at + size)
            if mark is not None:
                marks[queue.broker] = mark
        return marks

    # -- limits --------------------------------------------------------------------------------------------------------

    def _readable_end(self, queue: QueueId, position: int, bounds: Bounds) -> int:
        if self._target is None:
            return bounds.end
        return min(bounds.end, self._target.get(queue, position))

    def _apply_limits(self, ranges: Sequence[QueueRange], *, is_first: bool) -> list[QueueRange]:
        """Return the beginnings of these ranges that the limits of a batch allow; empty ones if it must wait."""
        limits = self._options.limits
        count = sum(one.count for one in ranges)
        waited_ms = (self._clock.now_s() - self._last_batch_s) * 1000
        if self._target is None and count < limits.rows_min and (is_first or waited_ms < limits.delay_max_ms):
            return [QueueRange(one.queue, one.begin, one.begin) for one in ranges]
        taken = list(ranges)
        if limits.bytes_max is not None:
            self._sample_sizes([one for one in taken if one.count])
            taken = limit_bytes(taken, self._sizes, limits.bytes_max)
        if limits.rows_max is not None:
            taken = limit_rows(taken, limits.rows_max)
        return taken

    def _sample_sizes(self, ranges: Sequence[QueueRange]) -> None:
        """Estimate the size of a typical message by three messages of each queue."""
        locations = ({one.queue: at(one) for one in ranges} for at in (_first, _middle, _last))
        samples = [self._catalog.physical(offsets) for offsets in locations]
        for one in ranges:
            self._sizes[one.queue] = sum(sample[one.queue][1] for sample in samples) // len(samples)


def _first(one: QueueRange) -> int:
    """Return the first offset of a range, whose message is measured."""
    return one.begin


def _middle(one: QueueRange) -> int:
    """Return the middle offset of a range, whose message is measured."""
    return one.begin + one.count // 2


def _last(one: QueueRange) -> int:
    """Return the last offset of a range, whose message is measured."""
    return one.end - 1


def _subtract_gaps(one: QueueRange, gaps: Sequence[Gap]) -> QueueRange:
    """Return the rest of a range: its beginning may have expired, its end may be cut off."""
    begin, end = one.begin, one.end
    for gap in gaps:
        if gap.queue == one.queue and gap.kind is GapKind.EXPIRED:
            begin = max(begin, gap.end)
        elif gap.queue == one.queue:
            end = min(end, gap.begin)
    return QueueRange(one.queue, begin, max(begin, end))
