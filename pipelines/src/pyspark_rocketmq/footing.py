"""Whether the place where a read stands is still in the log: the one look that both readers take before they go on.

A queue's *place* is the next offset to be read. It is good while `begin <= place <= end`. What is not good is first
waited for, as long as `patience_ms` allows, because brokers that change their master answer old things for a while;
what is still wrong then is a loss, and named: `LogForked` where epochs prove it, `DataLost` where only offsets show
it. With `failOnDataLoss=false` it becomes a `Gap`, and reading goes on behind it.

A log is written in epochs, one master's term after the other, and each begins where it found the log's end. A new epoch
that begins at or behind the last byte we read continues what we have. One that begins below has replaced some of it:
messages that we handed on are no part of the log any more, and others may have their offsets. Brokers without epochs
(Apache's master and slave) cannot be asked. There only a queue that ends before our place in it is noticed, and not one
that was cut and has grown beyond it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import DataLost, LogForked
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import Bounds, EpochStart, LogState, QueueId, QueueRange
from pyspark_rocketmq.offsets import Mark

LOOK_INTERVAL_S: Final = 0.5
"""Between two looks at brokers that are not where they should be."""

ADVICE: Final = "failOnDataLoss=false goes on behind it and counts what is missing"


@final
@dataclass(frozen=True, slots=True)
class Fork:
    """The bytes `[begin, read)` of a broker's log, which we read, were replaced by those of `epoch`."""

    broker: str
    known_epoch: int
    epoch: int
    begin: int
    read: int

    def __str__(self) -> str:
        return (
            f"the log of {self.broker} forked at {self.begin}: epoch {self.epoch} begins there, and in epoch"
            f" {self.known_epoch} it was read up to {self.read}"
        )


def fork_of(mark: Mark | None, log: LogState) -> Fork | None:
    """The lowest fork of what we read; None while all of it is there, or nobody knows."""
    if mark is None or not log.epochs:
        return None
    below = [one for one in log.epochs if one.epoch > mark.epoch and one.begin < mark.physical]
    if not below:
        return None
    first: EpochStart = min(below, key=lambda one: one.begin)
    return Fork(log.broker, mark.epoch, first.epoch, first.begin, mark.physical)


def is_older(mark: Mark | None, log: LogState) -> bool:
    """Whether this log does not have the epoch yet that we have read from: a replica that is behind."""
    return mark is not None and bool(log.epochs) and log.epoch < mark.epoch


def advanced(mark: Mark | None, log: LogState, physical: int) -> Mark | None:
    """The mark after reading up to `physical`.

    Where epochs are not known now, the old mark stays: it still tells of forks below it. A mark with an epoch that was
    guessed would call the next epoch's beginning a fork.
    """
    if not log.epochs:
        return mark
    return Mark(epoch=log.epoch, physical=max(physical, mark.physical if mark is not None else 0))


@final
@dataclass(frozen=True, slots=True)
class Footing:
    """What was found: the logs, what of each queue can be read, and what has to be passed over."""

    logs: Mapping[str, LogState]
    bounds: Mapping[QueueId, Bounds]
    forks: tuple[Fork, ...] = ()
    gaps: tuple[Gap, ...] = ()

    def place_behind_gaps(self, queue: QueueId, place: int) -> int:
        """Where reading goes on."""
        for gap in self.gaps:
            if gap.queue == queue:
                return gap.end if gap.kind is GapKind.EXPIRED else gap.begin
        return place


@final
class Looker:
    """Takes the look, and waits."""

    def __init__(self, catalog: CatalogPort, clock: Clock, *, patience_ms: int, is_loss_fatal: bool) -> None:
        self._catalog = catalog
        self._clock = clock
        self._patience_s = patience_ms / 1000
        self._is_loss_fatal = is_loss_fatal

    def look(self, places: Mapping[QueueId, int], marks: Mapping[str, Mark], more: Sequence[QueueId] = ()) -> Footing:
        """Before a batch: is it all there below these places, and what is behind them? Raises LogForked and
        DataLost."""
        footing = self._settled(places, marks, more)
        gaps = self._forked(footing, places, {})
        forked = {gap.queue for gap in gaps}
        for queue in sorted(set(places) - forked):
            place, bounds = places[queue], footing.bounds[queue]
            if place < bounds.begin:
                gaps.append(self._expired(Gap(queue, place, bounds.begin, GapKind.EXPIRED)))
            elif place > bounds.end:
                gaps.append(self._rewound(Gap(queue, bounds.end, place, GapKind.REWOUND)))
        return Footing(footing.logs, footing.bounds, footing.forks, tuple(gaps))

    def look_again(self, ranges: Sequence[QueueRange], marks: Mapping[str, Mark]) -> Footing:
        """Before a batch that was planned long ago: is what it reads still there? Raises LogForked and DataLost."""
        ends = {one.queue: one.end for one in ranges}
        footing = self._settled(ends, marks, ())
        gaps = self._forked(footing, ends, {one.queue: one.begin for one in ranges})
        forked = {gap.queue for gap in gaps}
        for one in ranges:
            bounds = footing.bounds[one.queue]
            if one.begin < bounds.begin:
                gaps.append(self._expired(Gap(one.queue, one.begin, min(bounds.begin, one.end), GapKind.EXPIRED)))
            if one.end > bounds.end and one.queue not in forked:
                gaps.append(self._rewound(Gap(one.queue, max(bounds.end, one.begin), one.end, GapKind.REWOUND)))
        return Footing(footing.logs, footing.bounds, footing.forks, tuple(gaps))

    def expired(self, places: Mapping[QueueId, int], bounds: Mapping[QueueId, Bounds]) -> tuple[Gap, ...]:
        """Places that were asked for and are gone already. Raises DataLost."""
        gone = [queue for queue in sorted(places) if places[queue] < bounds[queue].begin]
        return tuple(self._expired(Gap(queue, places[queue], bounds[queue].begin, GapKind.EXPIRED)) for queue in gone)

    def _settled(self, places: Mapping[QueueId, int], marks: Mapping[str, Mark], more: Sequence[QueueId]) -> Footing:
        """As it is when all have caught up with what was seen before, or when patience ends, or at a fork."""
        queues = sorted({*places, *more})
        deadline = self._clock.now_s() + self._patience_s
        while True:
            logs = self._catalog.logs(sorted({queue.broker for queue in queues}))
            forks = [fork for broker, log in sorted(logs.items()) if (fork := fork_of(marks.get(broker), log))]
            bounds = self._catalog.bounds(queues)
            is_behind = any(bounds[queue].end < place for queue, place in places.items())
            is_behind = is_behind or any(is_older(marks.get(broker), log) for broker, log in logs.items())
            if forks or not is_behind or self._clock.now_s() >= deadline:
                return Footing(logs, bounds, tuple(forks))
            self._clock.sleep(LOOK_INTERVAL_S)

    def _forked(self, footing: Footing, places: Mapping[QueueId, int], begins: Mapping[QueueId, int]) -> list[Gap]:
        """What of `[begins, places)` the forks took; from each queue's first message on where no begin is given."""
        gaps: list[Gap] = []
        for fork in footing.forks:
            of_fork: list[Gap] = []
            for queue, place in sorted(places.items()):
                if queue.broker == fork.broker:
                    bounds = footing.bounds[queue]
                    low = max(bounds.begin, begins.get(queue, 0))
                    begin = first_at_or_behind(self._catalog, queue, fork.begin, low, min(place, bounds.end))
                    of_fork += [Gap(queue, begin, place, GapKind.FORKED)] if begin < place else []
            if of_fork and self._is_loss_fatal:
                rows = sum(gap.count for gap in of_fork)
                ranges = ", ".join(f"{gap.queue}[{gap.begin}, {gap.end})" for gap in of_fork)
                raise LogForked(
                    f"{fork}: {rows} messages that were read are no part of it any more: {ranges}; {ADVICE}"
                )
            gaps += of_fork
        return gaps

    def _expired(self, gap: Gap) -> Gap:
        if self._is_loss_fatal:
            text = (
                f"{gap.queue} was to be read from {gap.begin} on, and does not have what lies below {gap.end} any more"
            )
            raise DataLost(f"{text}: {gap.count} messages are gone; {ADVICE}")
        return gap

    def _rewound(self, gap: Gap) -> Gap:
        if self._is_loss_fatal:
            text = f"{gap.queue} was read up to {gap.end}, and ends at {gap.begin} now"
            raise DataLost(f"{text}: {gap.count} messages are gone; {ADVICE}")
        return gap


def first_at_or_behind(catalog: CatalogPort, queue: QueueId, physical: int, begin: int, end: int) -> int:
    """The first offset in `[begin, end)` whose message lies at `physical` or behind it; `end` when none does."""
    while begin < end:
        middle = (begin + end) // 2
        if catalog.physical({queue: middle})[queue][0] >= physical:
            end = middle
        else:
            begin = middle + 1
    return begin
