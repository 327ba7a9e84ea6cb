"""Rates of a consumer: how much it fetches and consumes, how long that takes, how often it fails.

Kept by topic, in slices of ten seconds: over the last minute for rates and times, over the last hour for failures, as
RocketMQ's clients report them. The slices of one hour bound the memory.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final, final

from gantry_wire.commands.consumers import ConsumeStatus

SLICE_S: Final = 10
"""The duration of a slice, in seconds."""
MINUTE_S: Final = 60
HOUR_S: Final = 3600


@final
class RateWindow:
    """A count and a sum over the last hour. ``now`` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._started_at = now()
        self._slices: deque[tuple[int, int, float]] = deque()
        """(number of the slice, count, sum), oldest first, without empty slices."""

    def add(self, count: int = 1, amount: float = 0.0) -> None:
        """Add ``count`` events whose amounts sum up to ``amount``."""
        number = int(self._now() // SLICE_S)
        if self._slices and self._slices[-1][0] == number:
            _, before, total = self._slices.pop()
            count, amount = count + before, amount + total
        self._slices.append((number, count, amount))
        while self._slices[0][0] <= number - HOUR_S // SLICE_S:
            self._slices.popleft()

    def total_over(self, seconds: int) -> tuple[int, float]:
        """Return the count and the sum of the last ``seconds``."""
        oldest = int(self._now() // SLICE_S) - seconds // SLICE_S
        counted = [(count, amount) for number, count, amount in self._slices if number > oldest]
        return sum(count for count, _ in counted), sum(amount for _, amount in counted)

    def per_second(self) -> float:
        """Return the rate over the last minute, or since the start if that is shorter."""
        window_s = max(1.0, min(float(MINUTE_S), self._now() - self._started_at))
        return self.total_over(MINUTE_S)[0] / window_s

    def average(self) -> float:
        """Return the average amount of one event over the last minute."""
        count, amount = self.total_over(MINUTE_S)
        return amount / count if count else 0.0


@final
class TopicRates:
    """The rates of one topic."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._pulls = RateWindow(now)
        self._pulled = RateWindow(now)
        self._consumed = RateWindow(now)
        self._failed = RateWindow(now)
        self._handled = RateWindow(now)

    def record_pull(self, messages: int, took_ms: float) -> None:
        """Record a pull that returned ``messages``."""
        self._pulls.add(1, took_ms)
        self._pulled.add(messages)

    def record_handled(self, took_ms: float, *, is_consumed: bool) -> None:
        """Record that a handler has ended, with success or failure."""
        self._handled.add(1, took_ms)
        (self._consumed if is_consumed else self._failed).add()

    def record_skipped(self) -> None:
        """Record a damaged message that was skipped: no handler receives it."""
        self._failed.add()

    def status(self) -> ConsumeStatus:
        return ConsumeStatus(
            pull_rt=self._pulls.average(),
            pull_tps=self._pulled.per_second(),
            consume_rt=self._handled.average(),
            consume_ok_tps=self._consumed.per_second(),
            consume_failed_tps=self._failed.per_second(),
            consume_failed_msgs=self._failed.total_over(HOUR_S)[0],
        )


@final
class ConsumeRates:
    """The rates of one consumer, by topic. Belongs to one event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._topics: dict[str, TopicRates] = defaultdict(lambda: TopicRates(now))

    def __repr__(self) -> str:
        return f"<ConsumeRates topics={len(self._topics)}>"

    def for_topic(self, topic: str) -> TopicRates:
        """Return the rates of the topic of a queue; the retry topic of a group counts as a separate topic."""
        return self._topics[topic]

    def status(self, topic: str) -> ConsumeStatus:
        return self._topics[topic].status() if topic in self._topics else ConsumeStatus()
