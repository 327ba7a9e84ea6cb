"""A streaming query's way along its queues: where the next batch ends, and what is in it.

All decisions of the streaming reader are here, without Spark: `next_offset` says where the next batch ends, `ranges`
what a batch has to read. Both follow from Spark's log, from what brokers say, and from the limits. The rules:

- what an offset says is said for good (see `offsets`); nothing is decided twice;
- a queue that appears during the run is read from its first message;
- a queue whose broker is not there keeps its place until it is back; see `_missing`;
- with Trigger.AvailableNow the ends are fixed when the query starts, and the query reaches them and no more.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import InvalidOption, NoReplica
from pyspark_rocketmq.footing import ADVICE, LOOK_INTERVAL_S, Footing, Looker, advanced
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange
from pyspark_rocketmq.offsets import Mark, StreamOffset, ranges_between
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.planning import limited_bytes, limited_rows

log = logging.getLogger(__name__)

TURNS_MAX: Final = 5
"""How often one batch's end is worked out again because an epoch began meanwhile."""

Lay = Callable[[Sequence[QueueRange], Sequence[QueueRange]], list[QueueRange]]
"""From the ranges that a batch may take, and all that is there, to those that it takes."""


@final
class Follower:
    """One query, in the one driver-side process that Spark asks."""

    def __init__(self, options: ReadOptions, catalog: CatalogPort, clock: Clock, lay: Lay | None = None) -> None:
        """With `lay` batches end at certain places only: the ends that limits gave are laid there."""
        self._options = options
        self._catalog = catalog
        self._clock = clock
        self._looker = Looker(
            catalog, clock, patience_ms=options.settings.patience_ms, is_loss_fatal=options.is_loss_fatal
        )
        self._found: list[QueueId] = []
        self._found_at_s: float | None = None
        self._ends_seen: dict[QueueId, int] = {}
        self._target: dict[QueueId, int] | None = None
        self._restored: set[QueueId] | None = None
        self._last_batch_s = clock.now_s()
        self._planned: StreamOffset | None = None
        self._lay = lay
        self._sizes: dict[QueueId, int] = {}

    @property
    def ends(self) -> Mapping[QueueId, int]:
        """Where each queue ended when it was last looked at."""
        return self._ends_seen

    @property
    def sizes(self) -> Mapping[QueueId, int]:
        """Bytes of a usual message of each queue, where that is known."""
        return self._sizes

    def update_sizes(self, sizes: Mapping[QueueId, int]) -> None:
        """Take what planning a batch has shown of these queues' messages."""
        self._sizes |= sizes

    @property
    def has_target(self) -> bool:
        """Whether the query ends when it has read what was there when it began."""
        return self._target is not None

    def fix_target(self) -> None:
        """From now on nothing is read but what is there now."""
        queues = self._discover(StreamOffset())
        self._target = {queue: one.end for queue, one in self._catalog.bounds(queues).items()}

    def next_offset(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset | None:
        """Where the batch ends that begins at `start`; None when there is none to be made now."""
        for _ in range(TURNS_MAX):
            footing, places, begins = self._footing(start)
            ranges = [
                QueueRange(queue, place, max(place, self._end_of(queue, place, footing.bounds[queue])))
                for queue, place in sorted(places.items())
            ]
            is_first = not start.ends
            taken = self._limited(ranges, is_first=is_first) if is_limited else ranges
            taken = taken if self._lay is None else self._lay(taken, ranges)
            spots = self._catalog.physical({one.queue: one.end - 1 for one in taken if one.count})
            self._sizes = {queue: size for queue, (_, size) in spots.items()} | self._sizes
            logs = self._catalog.logs(sorted(footing.logs))
            if all(logs[broker].epochs == footing.logs[broker].epochs for broker in logs):
                break
        else:
            raise NoReplica(f"{', '.join(sorted(logs))}: epochs began faster than they could be looked at")
        if not any(one.count for one in taken) and not begins and not footing.gaps:
            return None
        marks = self._marks(start, footing, spots)
        self._last_batch_s = self._clock.now_s()
        ends = {**start.ends, **{one.queue: one.end for one in taken}}
        self._planned = StreamOffset(ends, marks, begins, footing.gaps)
        return self._planned

    def ranges(self, start: StreamOffset, end: StreamOffset) -> tuple[tuple[QueueRange, ...], tuple[Gap, ...]]:
        """What the batch `[start, end)` reads, and what it passes over.

        A batch that Spark has planned in an earlier life is looked at again: what was there then may be gone.
        """
        ranges = ranges_between(start, end)
        if end == self._planned or not ranges:
            return ranges, end.gaps
        again = self._looker.look_again(ranges, end.marks)
        kept = [left for one in ranges if (left := _without(one, again.gaps)).count > 0]
        return tuple(kept), (*end.gaps, *again.gaps)

    # -- what is there -------------------------------------------------------------------------------------------------

    def _footing(self, start: StreamOffset) -> tuple[Footing, dict[QueueId, int], dict[QueueId, int]]:
        """What can be read, from where each queue goes on, and which of these places no earlier offset says."""
        found = self._discover(start)
        known = {queue: start.ends[queue] for queue in found if queue in start.ends}
        fresh = tuple(queue for queue in found if queue not in start.ends)
        if self._target is not None:
            fresh = tuple(queue for queue in fresh if queue in self._target)
        footing = self._looker.look(known, start.marks, fresh)
        self._ends_seen |= {queue: one.end for queue, one in footing.bounds.items()}
        if self._target is not None:  # a broker that was away when the target was fixed has its own now
            self._restored = set(start.ends) if self._restored is None else self._restored
            self._target = {one: footing.bounds[one].end for one in known if one in self._restored} | self._target
        places = {queue: footing.place_behind_gaps(queue, place) for queue, place in known.items()}
        bounds = {queue: footing.bounds[queue] for queue in fresh}
        gaps: tuple[Gap, ...] = ()
        if start.ends:
            begins = {queue: one.begin for queue, one in bounds.items()}
        else:
            begins = self._options.start.offsets_in(bounds, self._catalog)
            gaps = self._looker.expired(begins, bounds)
            begins |= {gap.queue: gap.end for gap in gaps}
        moved = {gap.queue: places[gap.queue] for gap in footing.gaps}
        footing = replace(footing, gaps=(*footing.gaps, *gaps))
        return footing, {**places, **begins}, {**moved, **begins}

    def _discover(self, start: StreamOffset) -> list[QueueId]:
        """The queues that are there now; asked anew every few seconds only."""
        now_s = self._clock.now_s()
        interval_s = self._options.discovery_interval_ms / 1000
        is_old = self._found_at_s is None or now_s - self._found_at_s >= interval_s
        if is_old or (self._options.is_loss_fatal and self._missing(start)):
            self._found = self._discovered(start, now_s + self._options.settings.patience_ms / 1000)
            self._found_at_s = self._clock.now_s()
        return self._found

    def _discovered(self, start: StreamOffset, deadline_s: float) -> list[QueueId]:
        while True:
            error: InvalidOption | None = None
            try:
                self._found = self._options.subscription.existing(self._catalog)
            except InvalidOption as raised:
                if not start.ends and not self._found:
                    raise
                error = raised
            missing = self._missing(start)
            if error is None and not missing:
                return self._found
            if self._clock.now_s() >= deadline_s or not self._options.is_loss_fatal:
                break
            self._clock.sleep(LOOK_INTERVAL_S)
        if self._options.is_loss_fatal:
            names = ", ".join(map(str, missing[:3])) or str(error)
            raise NoReplica(f"{names}: was read before, and no name server knows a broker that has it now; {ADVICE}")
        log.warning("queues that were read are not there", extra={"queues": [str(one) for one in missing]})
        return self._found

    def _missing(self, start: StreamOffset) -> list[QueueId]:
        """Queues that were read, that nobody has now, and of which something may be unread.

        One that was read to the end that it had when it was last seen may go: a topic that was deleted, a shard that
        was taken away. Its place stays in the offset, so it goes on from there if it comes back.
        """
        gone = set(start.ends) - set(self._found)
        return sorted(
            queue
            for queue in gone
            if self._options.subscription.wants(queue) and start.ends[queue] != self._ends_seen.get(queue)
        )

    def _marks(
        self, start: StreamOffset, footing: Footing, spots: Mapping[QueueId, tuple[int, int]]
    ) -> dict[str, Mark]:
        """How far each broker's log will have been read. After a fork: what of the new branch, from the fork on."""
        marks = dict(start.marks)
        for fork in footing.forks:
            marks[fork.broker] = Mark(footing.logs[fork.broker].epoch, fork.begin)
        for queue, (at, size) in sorted(spots.items()):
            mark = advanced(marks.get(queue.broker), footing.logs[queue.broker], at + size)
            if mark is not None:
                marks[queue.broker] = mark
        return marks

    # -- how much of it ------------------------------------------------------------------------------------------------

    def _end_of(self, queue: QueueId, place: int, bounds: Bounds) -> int:
        if self._target is None:
            return bounds.end
        return min(bounds.end, self._target.get(queue, place))

    def _limited(self, ranges: Sequence[QueueRange], *, is_first: bool) -> list[QueueRange]:
        limits = self._options.limits
        count = sum(one.count for one in ranges)
        waited_ms = (self._clock.now_s() - self._last_batch_s) * 1000
        if self._target is None and count < limits.rows_min and (is_first or waited_ms < limits.delay_max_ms):
            return [QueueRange(one.queue, one.begin, one.begin) for one in ranges]
        taken = list(ranges)
        if limits.bytes_max is not None:
            self._measure([one for one in taken if one.count])
            taken = limited_bytes(taken, self._sizes, limits.bytes_max)
        if limits.rows_max is not None:
            taken = limited_rows(taken, limits.rows_max)
        return taken

    def _measure(self, ranges: Sequence[QueueRange]) -> None:
        """What a usual message is, by three of each queue."""
        spots = ({one.queue: at(one) for one in ranges} for at in (_first, _middle, _last))
        looks = [self._catalog.physical(offsets) for offsets in spots]
        for one in ranges:
            self._sizes[one.queue] = sum(look[one.queue][1] for look in looks) // len(looks)


def _first(one: QueueRange) -> int:
    return one.begin


def _middle(one: QueueRange) -> int:
    return one.begin + one.count // 2


def _last(one: QueueRange) -> int:
    return one.end - 1


def _without(one: QueueRange, gaps: Sequence[Gap]) -> QueueRange:
    """What is left of a range: the front of it may have expired, the end of it may be cut off."""
    begin, end = one.begin, one.end
    for gap in gaps:
        if gap.queue == one.queue and gap.kind is GapKind.EXPIRED:
            begin = max(begin, gap.end)
        elif gap.queue == one.queue:
            end = min(end, gap.begin)
    return QueueRange(one.queue, begin, max(begin, end))
