"""Check that the offsets from which a read continues are still in the log.

A stream checks them before each batch. A batch read has no earlier position, and only checks for deleted messages.

A queue's *position* is the next offset to be read. It is valid while `begin <= position <= end`. While it is beyond the
end, the checker polls the brokers for up to `patience_ms`, because during a failover they return old values for a
while. If it is invalid after that, messages are lost: the checker raises `LogForked` if epochs prove it, and `DataLost`
if only offsets show it. With `failOnDataLoss=false` the loss becomes a `Gap`. Reading continues after a gap of expired
messages, and at the begin of any other gap.

A log is written in epochs, one for each master's term, and each begins at the end of the log that its master found. A
new epoch that begins after the last byte that was read continues what was read. One that begins earlier has replaced
some of it: messages that the query has processed are no longer part of the log, and others may have their offsets.
Brokers without epochs (Apache's master and slave), and logs that are read by pulls, cannot be checked in this way.
There only a queue that ends before the position is noticed, and not one that was truncated and has grown beyond it
again.
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

RECHECK_INTERVAL_S: Final = 0.5
"""Seconds between two checks while brokers are behind."""

ADVICE: Final = "set failOnDataLoss=false to skip and count them"
"""The remedy in the errors of lost messages."""


@final
@dataclass(frozen=True, slots=True)
class Fork:
    """The bytes `[begin, read)` of a broker's log were replaced by those of `epoch`.

    The query has read them or, if the batch of an earlier process is repeated, has at least planned to read them.
    """

    broker: str
    known_epoch: int
    """The epoch of the log when these bytes were read."""

    epoch: int
    """The epoch whose master has written others in their place."""

    begin: int
    """The offset in the log at which that epoch begins."""

    read: int
    """The offset in the log up to which the query had read."""

    def __str__(self) -> str:
        return (
            f"the log of {self.broker} forked at {self.begin}: epoch {self.epoch} begins there, and in epoch"
            f" {self.known_epoch} it was read up to {self.read}"
        )


def find_fork(mark: Mark | None, log: LogState) -> Fork | None:
    """Return the lowest fork of what was read; None if there is none, or if the log has no epochs."""
    if mark is None or not log.epochs:
        return None
    below = [one for one in log.epochs if one.epoch > mark.epoch and one.begin < mark.physical]
    if not below:
        return None
    first: EpochStart = min(below, key=lambda one: one.begin)
    return Fork(log.broker, mark.epoch, first.epoch, first.begin, mark.physical)


def is_older(mark: Mark | None, log: LogState) -> bool:
    """Return whether this log lacks the epoch that was read before: the replica is behind."""
    return mark is not None and bool(log.epochs) and log.epoch < mark.epoch


def advance_mark(mark: Mark | None, log: LogState, physical: int) -> Mark | None:
    """Return the mark after reading up to `physical`.

    Without known epochs the old mark stays, since it still detects forks below it. With a guessed epoch, the beginning
    of the next epoch would look like a fork.
    """
    if not log.epochs:
        return mark
    return Mark(epoch=log.epoch, physical=max(physical, mark.physical if mark is not None else 0))


@final
@dataclass(frozen=True, slots=True)
class PositionCheck:
    """The result of a check: the logs, the readable range of each queue, and the gaps to skip."""

    logs: Mapping[str, LogState]
    """The readable range and the epochs of the log of each broker."""

    bounds: Mapping[QueueId, Bounds]
    forks: tuple[Fork, ...] = ()
    gaps: tuple[Gap, ...] = ()
    """The messages to skip, if losses are accepted."""

    def position_after_gaps(self, queue: QueueId, position: int) -> int:
        """Return where reading of a queue continues: after expired messages, or at the begin of another gap."""
        for gap in self.gaps:
            if gap.queue == queue:
                return gap.end if gap.kind is GapKind.EXPIRED else gap.begin
        return position


@final
class PositionChecker:
    """Checks positions, and waits for brokers that are behind."""

    def __init__(self, catalog: CatalogPort, clock: Clock, *, patience_ms: int, is_loss_fatal: bool) -> None:
        self._catalog = catalog
        self._clock = clock
        self._patience_s = patience_ms / 1000
        self._is_loss_fatal = is_loss_fatal

    def check(
        self, positions: Mapping[QueueId, int], marks: Mapping[str, Mark], more: Sequence[QueueId] = ()
    ) -> PositionCheck:
        """Check before a batch that reading can continue at these positions.

        Also returns the readable range of these queues and of `more`. Raises LogForked and DataLost.
        """
        check_result = self._wait_until_caught_up(positions, marks, more)
        gaps = self._find_forked(check_result, positions, {})
        forked = {gap.queue for gap in gaps}
        for queue in sorted(set(positions) - forked):
            position, bounds = positions[queue], check_result.bounds[queue]
            if position < bounds.begin:
                gaps.append(self._accept_expired(Gap(queue, position, bounds.begin, GapKind.EXPIRED)))
            elif position > bounds.end:
                gaps.append(self._accept_rewound(Gap(queue, bounds.end, position, GapKind.REWOUND)))
        return PositionCheck(check_result.logs, check_result.bounds, check_result.forks, tuple(gaps))

    def recheck_planned(self, ranges: Sequence[QueueRange], marks: Mapping[str, Mark]) -> PositionCheck:
        """Check a batch that an earlier process has planned. Raises LogForked and DataLost."""
        ends = {one.queue: one.end for one in ranges}
        check_result = self._wait_until_caught_up(ends, marks, ())
        gaps = self._find_forked(check_result, ends, {one.queue: one.begin for one in ranges})
        forked = {gap.queue for gap in gaps}
        for one in ranges:
            bounds = check_result.bounds[one.queue]
            if one.begin < bounds.begin:
                gaps.append(
                    self._accept_expired(Gap(one.queue, one.begin, min(bounds.begin, one.end), GapKind.EXPIRED))
                )
            if one.end > bounds.end and one.queue not in forked:
                gaps.append(self._accept_rewound(Gap(one.queue, max(bounds.end, one.begin), one.end, GapKind.REWOUND)))
        return PositionCheck(check_result.logs, check_result.bounds, check_result.forks, tuple(gaps))

    def find_expired(
        self, positions: Mapping[QueueId, int], bounds: Mapping[QueueId, Bounds], ends: Mapping[QueueId, int]
    ) -> tuple[Gap, ...]:
        """Return a gap for each requested position that was deleted already. Raises DataLost.

        `ends` has the end of the read for each queue that is read to a fixed end: its gap ends there at the latest.
        """
        deleted = [queue for queue in sorted(positions) if positions[queue] < bounds[queue].begin]
        gap_ends = {queue: min(bounds[queue].begin, ends.get(queue, bounds[queue].begin)) for queue in deleted}
        return tuple(
            self._accept_expired(Gap(queue, positions[queue], gap_ends[queue], GapKind.EXPIRED)) for queue in deleted
        )

    def _wait_until_caught_up(
        self, positions: Mapping[QueueId, int], marks: Mapping[str, Mark], more: Sequence[QueueId]
    ) -> PositionCheck:
        """Return logs and bounds as soon as all brokers have caught up, at a fork, or when patience ends."""
        queues = sorted({*positions, *more})
        deadline = self._clock.now_s() + self._patience_s
        while True:
            logs = self._catalog.logs(sorted({queue.broker for queue in queues}))
            forks = [fork for broker, log in sorted(logs.items()) if (fork := find_fork(marks.get(broker), log))]
            bounds = self._catalog.bounds(queues)
            is_behind = any(bounds[queue].end < position for queue, position in positions.items())
            is_behind = is_behind or any(is_older(marks.get(broker), log) for broker, log in logs.items())
            if forks or not is_behind or self._clock.now_s() >= deadline:
                return PositionCheck(logs, bounds, tuple(forks))
            self._clock.sleep(RECHECK_INTERVAL_S)

    def _find_forked(
        self, check_result: PositionCheck, positions: Mapping[QueueId, int], begins: Mapping[QueueId, int]
    ) -> list[Gap]:
        """Return what the forks took of `[begins, positions)`; of the whole queue where no begin is given."""
        gaps: list[Gap] = []
        for fork in check_result.forks:
            fork_gaps: list[Gap] = []
            for queue, position in sorted(positions.items()):
                if queue.broker == fork.broker:
                    bounds = check_result.bounds[queue]
                    low = max(bounds.begin, begins.get(queue, 0))
                    begin = find_offset_at(self._catalog, queue, fork.begin, low, min(position, bounds.end))
                    fork_gaps += [Gap(queue, begin, position, GapKind.FORKED)] if begin < position else []
            if fork_gaps and self._is_loss_fatal:
                rows = sum(gap.count for gap in fork_gaps)
                ranges = ", ".join(f"{gap.queue}[{gap.begin}, {gap.end})" for gap in fork_gaps)
                raise LogForked(f"{fork}: {rows} messages that were read are no longer part of it: {ranges}; {ADVICE}")
            gaps += fork_gaps
        return gaps

    def _accept_expired(self, gap: Gap) -> Gap:
        """Return the gap if losses are accepted. Raises DataLost."""
        if self._is_loss_fatal:
            text = f"{gap.queue} was to be read from {gap.begin} on, but its messages below {gap.end} were deleted"
            raise DataLost(f"{text}: {gap.count} messages are lost; {ADVICE}")
        return gap

    def _accept_rewound(self, gap: Gap) -> Gap:
        """Return the gap if losses are accepted. Raises DataLost."""
        if self._is_loss_fatal:
            text = f"{gap.queue} was read up to {gap.end}, but now ends at {gap.begin}"
            raise DataLost(f"{text}: {gap.count} messages are lost; {ADVICE}")
        return gap


def find_offset_at(catalog: CatalogPort, queue: QueueId, physical: int, begin: int, end: int) -> int:
    """Return the first offset in `[begin, end)` whose message lies at `physical` or after it, else `end`."""
    while begin < end:
        middle = (begin + end) // 2
        if catalog.physical({queue: middle})[queue][0] >= physical:
            end = middle
        else:
            begin = middle + 1
    return begin
