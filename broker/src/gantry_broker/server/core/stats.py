"""Counters of one broker and their rates, as `brokerStatus` shows them: per second, per append and per day.

    rates         per second over the last 10, 60 and 600 seconds                         `BrokerStats`
    append times  this minute  [0 .. 1 ms) [1 .. 2) ... [9 s .. 10 s) [10 s ..)           `PutTimes`
                  last minute  the same classes; this one is reported
    days          0 ------- yesterday's midnight ------- today's midnight ------- now     `DailyTotals`
                            msg*TotalYesterdayMorning    msg*TotalTodayMorning    msg*TotalTodayNow

Append times are those of passes: a pass is all sends of one turn of the event loop (`send_path`), and each of them
counts with the time of the append of the whole pass. Messages that are appended outside of passes, such as those of
batch sends, are not among them. The wait afterwards (for the disk, for slaves) is reported in `ackWaitsMicros`. Days
are in local time and since this start, as in RocketMQ, whose tools take the differences as the messages of a day;
before the first midnight both are 0.
"""

import time
from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple, final

from gantry_broker.server.core.refusals import Refusals
from gantry_broker.store.message_store import MessageStore

SAMPLE_INTERVAL_S: Final = 1
"""The interval of the samples from which rates are computed."""
SAMPLES_MAX: Final = 601
"""As many samples as the rate over 600 seconds needs."""

WAIT_BUCKETS: Final = 32
"""Bucket `n` counts waits of `[2**(n-1), 2**n)` us; the last one counts all longer waits."""


MINUTE_S: Final = 60.0

BOUNDS_MS: Final = tuple(
    bound
    for start, end, step in (
        (1, 20, 1), (20, 50, 2), (50, 100, 5), (100, 200, 10), (200, 500, 50), (500, 1_000, 100), (1_000, 11_000, 1_000)
    )
    for bound in range(start, end, step)
)  # fmt: skip
"""The lower bounds of the fine classes, except the first, which starts at 0."""

CLASSES: Final = (
    ("[<=0ms]", 1), ("[0~10ms]", 10), ("[10~50ms]", 50), ("[50~100ms]", 100), ("[100~200ms]", 200),
    ("[200~500ms]", 500), ("[500ms~1s]", 1_000), ("[1~2s]", 2_000), ("[2~3s]", 3_000), ("[3~4s]", 4_000),
    ("[4~5s]", 5_000), ("[5~10s]", 10_000), ("[10s~]", 1 << 62),
)  # fmt: skip
"""RocketMQ's names of the coarse classes, and the end of each in milliseconds."""


@final
class PutTimes:
    """The distribution of append times, and its percentiles. Owned by the event loop."""

    def __init__(self) -> None:
        self.max_ms = 0
        """The longest append since this start."""

        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._last = [0] * (len(BOUNDS_MS) + 1)
        self._began = 0.0

    def __repr__(self) -> str:
        return f"<PutTimes {sum(self._counts)} this minute, max={self.max_ms} ms>"

    def record(self, elapsed_s: float, count: int) -> None:
        """Count the messages that were appended in one pass, by its time."""
        if elapsed_s < 0.001:
            self._counts[0] += count
            return
        elapsed_ms = int(elapsed_s * 1000)
        self._counts[bisect_right(BOUNDS_MS, elapsed_ms)] += count
        self.max_ms = max(self.max_ms, elapsed_ms)

    def rotate(self, now: float) -> None:
        """Start a new minute when the last one is over. Called once a second."""
        if now - self._began >= MINUTE_S:
            self._began = now
            self._last, self._counts = self._counts, [0] * len(self._counts)

    def format_distribution(self) -> str:
        """Return the distribution of the last whole minute in RocketMQ's format."""
        found = [0] * len(CLASSES)
        starts = (0, *BOUNDS_MS)
        ends = [end for _, end in CLASSES]
        for start, count in zip(starts, self._last, strict=True):
            found[bisect_right(ends, start)] += count
        return "".join(f"{name}:{count} " for (name, _), count in zip(CLASSES, found, strict=True))

    def percentile_ms(self, share: float) -> float:
        """Return a percentile of the append times of the last minute; ``share`` is 0.99 for the 99th."""
        target_count = int(sum(self._last) * share)
        passed = 0
        starts, ends = (0, *BOUNDS_MS), (*BOUNDS_MS, BOUNDS_MS[-1])
        for start, end, count in zip(starts, ends, self._last, strict=True):
            if target_count <= passed + count:
                return start + (end - start) * (target_count - passed) / count if count else float(start)
            passed += count
        return float(BOUNDS_MS[-1])


class Totals(NamedTuple):
    """The numbers of messages stored and read."""

    put: int = 0
    """Messages stored since the start of the broker."""

    get: int = 0
    """Messages delivered by pulls since the start of the broker."""


@final
class DailyTotals:
    """The totals at the start of today and of yesterday. Owned by the event loop."""

    def __init__(self) -> None:
        self.yesterday_morning = Totals()
        """The totals when yesterday began, by local time."""
        self.today_morning = Totals()
        """The totals when today began, by local time."""
        self._day: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<DailyTotals yesterday={self.yesterday_morning} today={self.today_morning}>"

    def is_new_day(self, wall_ms: int) -> bool:
        """Whether a new day has begun since the last call. False at the first call, and after a clock was set back."""
        now: Final = time.localtime(wall_ms / 1000)
        day, before = (now.tm_year, now.tm_yday), self._day
        if before is not None and day <= before:
            return False
        self._day = day
        return before is not None

    def start_day(self, totals: Totals) -> None:
        """Record the totals at the start of a day."""
        self.yesterday_morning, self.today_morning = self.today_morning, totals


@final
class BrokerStats:
    """The counters of one broker. Owned by the event loop; `sample` is called once a second."""

    def __init__(self) -> None:
        self.put_count = 0
        """Number of messages that were appended."""
        self.put_bytes = 0
        self.get_count = 0
        """Number of messages in answers to pulls."""
        self.get_found = 0
        """Number of pulls that were answered with messages."""
        self.get_missed = 0
        """Number of pulls that found no message."""
        self.get_bytes = 0
        self.get_ms_max = 0
        """The longest time of the read for one pull."""
        self.ack_waits: Final = [0] * WAIT_BUCKETS
        """Acknowledged sends whose answers were held, by their waiting time; counted by `AckGate`."""
        self.put_failures = 0
        """The number of messages of passes that the store has refused."""

        self.refusals: Final = Refusals()
        self.times: Final = PutTimes()
        self.days: Final = DailyTotals()
        self._last_wrote = -1
        self._samples: deque[tuple[float, int, int, int, int]] = deque(maxlen=SAMPLES_MAX)

    def count_put_failures(self, count: int) -> None:
        """Count the messages of a pass that the store has refused."""
        self.put_failures += count

    def count_put(self, count: int, store: MessageStore) -> None:
        """Count appended messages, and the bytes that the log has grown by."""
        self.put_count += count
        wrote = store.log.wrote
        if self._last_wrote >= 0:
            self.put_bytes += wrote - self._last_wrote
        self._last_wrote = wrote

    def start_at(self, wrote: int) -> None:
        """Count appended bytes from this position on: earlier ones are older than the start, or of another broker."""
        self._last_wrote = wrote

    def count_found_pull(self, count: int, size: int, took_ms: int) -> None:
        """Count a pull that was answered with messages, and the time of its read."""
        self.get_ms_max = max(self.get_ms_max, took_ms)
        self.get_count += count
        self.get_bytes += size
        self.get_found += 1

    def count_empty_pull(self) -> None:
        """Count a pull that found no message."""
        self.get_missed += 1

    def sample(self, now: float) -> None:
        self.times.rotate(now)
        self.refusals.end_old_episodes(now)
        self._samples.append((now, self.put_count, self.get_count, self.get_found, self.get_missed))

    def rates(self, column: int) -> str:
        """Return rates per second over the last 10, 60 and 600 seconds in RocketMQ's format.

        The columns are put, get, found and miss.
        """
        return " ".join(f"{self._rate(column, seconds):.2f}" for seconds in (10, 60, 600))

    def pull_rates(self) -> str:
        """Return the same rates for all pulls, with messages or without."""
        both = (self._rate(2, seconds) + self._rate(3, seconds) for seconds in (10, 60, 600))
        return " ".join(f"{rate:.2f}" for rate in both)

    def _rate(self, column: int, seconds: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        newest = self._samples[-1]
        oldest = self._samples[max(0, len(self._samples) - 1 - seconds)]
        elapsed = newest[0] - oldest[0]
        return (newest[column + 1] - oldest[column + 1]) / elapsed if elapsed > 0 else 0.0
