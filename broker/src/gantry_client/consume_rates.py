"""How a consumer gets on: how much it fetches and consumes, how long that takes, how often it fails.

Kept by topic, in slices of ten seconds: over the last minute for rates and times, over the last hour for failures, as
RocketMQ's clients say it of themselves. Memory is bounded by an hour's slices, whatever comes.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final, final

from gantry_wire.commands.consumers import ConsumeStatus

SLICE_S: Final = 10
MINUTE_S: Final = 60
HOUR_S: Final = 3600


@final
class Slices:
    """A count and a sum over the last hour. ``now`` counts seconds and never goes back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began_at = now()
        self._slices: deque[tuple[int, int, float]] = deque()
        """(which ten seconds, how many, their sum), oldest first; only those in which something was."""

    def add(self, count: int = 1, amount: float = 0.0) -> None:
        """So many more, with ``amount`` for all of them."""
        number = int(self._now() // SLICE_S)
        if self._slices and self._slices[-1][0] == number:
            _, before, total = self._slices.pop()
            count, amount = count + before, amount + total
        self._slices.append((number, count, amount))
        while self._slices[0][0] <= number - HOUR_S // SLICE_S:
            self._slices.popleft()

    def over(self, seconds: int) -> tuple[int, float]:
        """How many in the last ``seconds``, and their sum."""
        oldest = int(self._now() // SLICE_S) - seconds // SLICE_S
        found = [(count, amount) for number, count, amount in self._slices if number > oldest]
        return sum(count for count, _ in found), sum(amount for _, amount in found)

    def per_second(self) -> float:
        """Over the last minute, or since the start where that is less."""
        lived_s = max(1.0, min(float(MINUTE_S), self._now() - self._began_at))
        return self.over(MINUTE_S)[0] / lived_s

    def average(self) -> float:
        """The amount for one, over the last minute."""
        count, amount = self.over(MINUTE_S)
        return amount / count if count else 0.0


@final
class TopicRates:
    """Of one topic."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._pulls = Slices(now)
        self._pulled = Slices(now)
        self._consumed = Slices(now)
        self._failed = Slices(now)
        self._handled = Slices(now)

    def pulled(self, messages: int, took_ms: float) -> None:
        """A pull brought so many messages."""
        self._pulls.add(1, took_ms)
        self._pulled.add(messages)

    def handled(self, took_ms: float, *, is_consumed: bool) -> None:
        """A handler has ended, well or not."""
        self._handled.add(1, took_ms)
        (self._consumed if is_consumed else self._failed).add()

    def stepped_over(self) -> None:
        """A damaged message was given up: no handler gets it."""
        self._failed.add()

    def status(self) -> ConsumeStatus:
        return ConsumeStatus(
            pull_rt=self._pulls.average(),
            pull_tps=self._pulled.per_second(),
            consume_rt=self._handled.average(),
            consume_ok_tps=self._consumed.per_second(),
            consume_failed_tps=self._failed.per_second(),
            consume_failed_msgs=self._failed.over(HOUR_S)[0],
        )


@final
class ConsumeRates:
    """Of one consumer, by topic. Belongs to one event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._topics: dict[str, TopicRates] = defaultdict(lambda: TopicRates(now))

    def __repr__(self) -> str:
        return f"<ConsumeRates topics={len(self._topics)}>"

    def of(self, topic: str) -> TopicRates:
        """Of the topic that a queue belongs to: a group's retry topic is one of its own."""
        return self._topics[topic]

    def status(self, topic: str) -> ConsumeStatus:
        return self._topics[topic].status() if topic in self._topics else ConsumeStatus()
