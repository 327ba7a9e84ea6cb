"""The lag of consumer groups in seconds, its trend, and the rule by which a group counts as behind.

The lag of a queue in seconds is the age of its oldest message that the group has not consumed: the time now minus the
time at which the broker stored the message at the group's offset. It is 0 without such a message, and unknown if the
store time cannot be read. For several queues it is the largest.

Everything here is a pure function of values, so that the answers, the metrics and the console follow one rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, Literal, NamedTuple

from gantry_client.documents import longest_wait
from gantry_wire.names import retry_topic

BEHIND_S_MIN: Final = 300.0
"""The wait of the oldest message from which on a group counts as behind, if the wait also grows: a rolling restart of
consumers takes less than five minutes. The alert ``GantryConsumerGroupBehind`` and the console use this rule."""

TREND_S: Final = 300.0
"""The period over which the trend is computed: long enough that one slow message does not decide it."""
TREND_POINTS_MIN: Final = 4
"""The fewest points for a trend: with three, one outlier would decide it."""
TREND_SLOPE_MIN: Final = 0.1
"""By how many seconds per second the wait has to change for a trend. A group that consumes nothing has 1.0; less than
0.1 is within what commits of offsets at intervals of some seconds cause."""

Trend = Literal["grows", "shrinks", "steady"]


class QueueWait(NamedTuple):
    """The consume offset and the lag of a group in one queue, in messages and in seconds."""

    topic: str
    queue_id: int
    consumed: int
    end: int
    lag: int
    lag_s: float | None
    """The lag in seconds; 0 without lag, None if it is unknown."""


class TopicLag(NamedTuple):
    """The lag of a group in one topic."""

    lag: int
    """The number of messages that are not consumed yet."""

    wait_s: float | None
    """The age of the oldest of them in seconds; 0 without any, None if it is unknown."""


def lag_by_topic(queues: Iterable[QueueWait]) -> dict[str, TopicLag]:
    """Return the lag of a group by topic, also of its retry topic, from that of its queues."""
    by_topic: dict[str, list[QueueWait]] = {}
    for one in queues:
        by_topic.setdefault(one.topic, []).append(one)
    return {
        topic: TopicLag(sum(one.lag for one in rows), longest_wait(one.lag_s for one in rows if one.lag > 0))
        for topic, rows in by_topic.items()
    }


def group_wait(topics: Mapping[str, TopicLag], group: str) -> float | None:
    """Return the lag of a group in seconds. Its retry topic does not count, as it does not for the lag in messages."""
    retry = retry_topic(group)
    return longest_wait(one.wait_s for topic, one in topics.items() if topic != retry and one.lag > 0)


def trend_of(points: Sequence[tuple[int, float | None]]) -> Trend | None:
    """Return the trend of ``(time in ms, wait in s)`` over the last ``TREND_S``; None with too few known points.

    It is the median of the slopes between all pairs of points (Theil-Sen), so that a few outliers change nothing.
    """
    if not points:
        return None
    begin_ms = points[-1][0] - TREND_S * 1000
    known = [(at_ms, wait_s) for at_ms, wait_s in points if wait_s is not None and at_ms >= begin_ms]
    if len(known) < TREND_POINTS_MIN:
        return None
    if len({wait_s for _, wait_s in known}) == 1:
        return "steady"
    slope = median(
        (wait_s - earlier_s) * 1000 / (at_ms - earlier_ms)
        for index, (at_ms, wait_s) in enumerate(known)
        for earlier_ms, earlier_s in known[:index]
    )
    return "grows" if slope > TREND_SLOPE_MIN else "shrinks" if slope < -TREND_SLOPE_MIN else "steady"


def is_behind(wait_s: float | None, trend: Trend | None) -> bool:
    """Return whether a group is behind in a topic: its oldest message waits too long, and the wait grows."""
    return wait_s is not None and wait_s > BEHIND_S_MIN and trend == "grows"
