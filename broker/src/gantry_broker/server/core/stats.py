"""Counters of one broker and the rates over the last seconds and minutes, as `brokerStatus` shows them."""

from collections import deque
from typing import Final, Protocol, final

from gantry_broker.server.core.daily_totals import DailyTotals
from gantry_broker.server.core.put_times import PutTimes
from gantry_broker.server.core.refusals import Refusals

SAMPLE_INTERVAL_S: Final = 1
SAMPLES_MAX: Final = 601

WAIT_BUCKETS: Final = 32
"""Bucket `n` counts waits of `[2**(n-1), 2**n)` us, the last one everything longer."""


class Positions(Protocol):
    """What the counters read of the store."""

    @property
    def wrote(self) -> int: ...


@final
class BrokerStats:
    """Owned by the event loop; `sample` is called once a second."""

    def __init__(self) -> None:
        self.put_count = 0
        self.put_bytes = 0
        self.get_count = 0
        self.get_found = 0
        self.get_missed = 0
        self.get_bytes = 0
        self.get_ms_max = 0
        self.ack_waits: Final = [0] * WAIT_BUCKETS
        """Acknowledged sends by the time that their answers waited; `AckGate` counts them."""
        self.put_failures = 0
        """Messages that were refused by the store."""

        self.refusals: Final = Refusals()
        self.times: Final = PutTimes()
        self.days: Final = DailyTotals()
        self._last_wrote = -1
        self._samples: deque[tuple[float, int, int, int, int]] = deque(maxlen=SAMPLES_MAX)

    def put(self, count: int, store: Positions) -> None:
        """So many messages were appended."""
        self.put_count += count
        wrote = store.wrote
        if self._last_wrote >= 0:
            self.put_bytes += wrote - self._last_wrote
        self._last_wrote = wrote

    def start_at(self, wrote: int) -> None:
        """Where the log ended when the broker started."""
        self._last_wrote = wrote

    def found(self, count: int, size: int, took_ms: int) -> None:
        """A pull was answered with messages, and looking for them took so long."""
        self.get_ms_max = max(self.get_ms_max, took_ms)
        self.get_count += count
        self.get_bytes += size
        self.get_found += 1

    def missed(self) -> None:
        """A pull found nothing."""
        self.get_missed += 1

    def sample(self, now: float) -> None:
        self.times.turn(now)
        self.refusals.sample(now)
        self._samples.append((now, self.put_count, self.get_count, self.get_found, self.get_missed))

    def rates(self, column: int) -> str:
        """Per second over the last 10, 60 and 600 seconds, as RocketMQ prints them. Columns: put, get, found, miss."""
        return " ".join(f"{self._rate(column, seconds):.2f}" for seconds in (10, 60, 600))

    def pull_rates(self) -> str:
        """The same of all pulls, with messages or without."""
        both = (self._rate(2, seconds) + self._rate(3, seconds) for seconds in (10, 60, 600))
        return " ".join(f"{rate:.2f}" for rate in both)

    def _rate(self, column: int, seconds: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        newest = self._samples[-1]
        oldest = self._samples[max(0, len(self._samples) - 1 - seconds)]
        elapsed = newest[0] - oldest[0]
        return (newest[column + 1] - oldest[column + 1]) / elapsed if elapsed > 0 else 0.0
