"""Counters by topic and group over the last minute, hour and day, as in RocketMQ's brokers (code 315).

    window   reading every   keeps   so it covers
    minute   10 s            7       60 s
    hour     10 min          7       60 min
    day      1 h             25      24 h

The sum of a window is the difference between its newest and its oldest reading. So a counter is empty until the first
reading after it began to count: at most ten seconds, as in RocketMQ.

No work is done for a single message. Stored messages are read from the store's tallies when a reading is due, and
pulled ones from those of `PullTally`, which an answer adds to. A counter without a count for 25 hours is empty in every
window, and is removed, unless it is one of the whole broker: names come from clients, and must not accumulate for ever.

Left out are counters that no tool reads and that cost something for each queue or message (QUEUE_*,
TOPIC_PUT_LATENCY), and those of pop consumption and of RocketMQ's commercial edition. They are answered as counters
that do not exist.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, final

from gantry_broker.ports import Clock
from gantry_broker.server.core.stats import Totals
from gantry_broker.store.consume_queue import Tally

PER_MINUTE: Final = (10_000, 7)
PER_HOUR: Final = (600_000, 7)
PER_DAY: Final = (3_600_000, 25)
"""Milliseconds between two readings, and how many are kept."""

WINDOWS: Final = (PER_MINUTE, PER_HOUR, PER_DAY)
"""The windows, in the order of ``Counter.read``: minute, hour, day."""
IDLE_MS_MAX: Final = 25 * 3_600_000
"""After this time without a count every window of a counter is empty."""

_COLUMNS: Final = 4
"""The numbers of one reading: its time, calls, count and size."""


class Snapshot(NamedTuple):
    """The values of a counter in one window."""

    sum: int = 0
    """The difference between the newest and the oldest reading."""

    tps: float = 0.0
    """The sum divided by the seconds between these readings."""

    avgpt: float = 0.0
    """The sum divided by the number of calls."""


@final
class Counter:
    """The number of calls, and the sum of a count (or milliseconds) and of bytes, with readings in three windows."""

    __slots__ = ("_readings", "calls", "count", "size", "touched_at_ms")

    def __init__(self, now_ms: int) -> None:
        self.calls = 0
        self.count = 0
        self.size = 0
        self.touched_at_ms = now_ms
        self._readings: Final = tuple(array("q") for _ in WINDOWS)

    def __repr__(self) -> str:
        return f"<Counter calls={self.calls} count={self.count} size={self.size}>"

    def add(self, count: int, size: int, calls: int, now_ms: int) -> None:
        self.count += count
        self.size += size
        self.calls += calls
        self.touched_at_ms = now_ms

    def read(self, window: int, now_ms: int) -> None:
        """Take a reading for ``WINDOWS[window]``. The first one is preceded by one of zeros, an interval earlier."""
        interval_ms, kept = WINDOWS[window]
        readings = self._readings[window]
        if not readings:
            readings.extend((now_ms - interval_ms, 0, 0, 0))
        readings.extend((now_ms, self.calls, self.count, self.size))
        if len(readings) > kept * _COLUMNS:
            del readings[:_COLUMNS]

    def snapshot(self, window: int, column: int) -> Snapshot:
        """Return the values of a column, COUNT or SIZE, in a window."""
        readings = self._readings[window]
        if not readings:
            return Snapshot()
        last = len(readings) - _COLUMNS
        total = readings[last + column] - readings[column]
        elapsed_ms = readings[last] - readings[0]
        calls = readings[last + 1] - readings[1]
        return Snapshot(total, total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0, total / calls if calls else 0.0)


COUNT: Final = 2
"""The column of the number of messages in a reading."""
SIZE: Final = 3
"""The column of the bytes in a reading; COUNT is that of the count."""

NAMES: Final[Mapping[str, tuple[str, int]]] = {
    "TOPIC_PUT_NUMS": ("put", COUNT),
    "TOPIC_PUT_SIZE": ("put", SIZE),
    "GROUP_GET_NUMS": ("get", COUNT),
    "GROUP_GET_SIZE": ("get", SIZE),
    "GROUP_GET_LATENCY": ("latency", COUNT),
    "SNDBCK_PUT_NUMS": ("back", COUNT),
    "BROKER_PUT_NUMS": ("broker put", COUNT),
    "BROKER_GET_NUMS": ("broker get", COUNT),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": ("user put", COUNT),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": ("user get", COUNT),
}
"""The table and the column of each of RocketMQ's names."""

PERMANENT_TABLES: Final = frozenset({"broker put", "broker get", "user put", "user get"})
"""Tables of the broker itself, whose counters are never removed."""


@final
class PullTally:
    """The answers with messages to pulls of one queue by one group since the last reading. Owned by the event loop."""

    __slots__ = ("_unread", "calls", "count", "group", "queue_id", "size", "took_ms", "topic")

    def __init__(self, group: str, topic: str, queue_id: int, unread: list[PullTally]) -> None:
        """``unread`` gets the tally at its first answer after each reading."""
        self.group: Final = group
        self.topic: Final = topic
        self.queue_id: Final = queue_id
        self._unread: Final = unread
        self.reset()

    def __repr__(self) -> str:
        return f"<PullTally {self.queue_id}@{self.topic}@{self.group} calls={self.calls} count={self.count}>"

    def reset(self) -> None:
        """Drop all counts, after they were added to the counters."""
        self.calls = self.count = self.size = self.took_ms = 0

    def add(self, count: int, size: int, took_ms: int) -> None:
        """Count an answer, and the time of its read."""
        if not self.calls:
            self._unread.append(self)
        self.calls += 1
        self.count += count
        self.size += size
        self.took_ms += took_ms


@final
class TopicStatistics:
    """The counters of one broker. Owned by the event loop; ``tick`` is called about once a second."""

    def __init__(
        self,
        clock: Clock,
        cluster: str,
        tallies: Callable[[], Mapping[str, Tally]],
        is_system: Callable[[str], bool],
    ) -> None:
        """``tallies`` are those of the store; counters of the whole broker have its cluster's name, as in RocketMQ."""
        self._clock: Final = clock
        self._tallies: Final = tallies
        self._is_system: Final = is_system
        self._cluster: Final = cluster
        self._tables: Final[dict[str, dict[str, Counter]]] = {table: {} for table, _ in NAMES.values()}
        self._last_tallies: Final[dict[str, tuple[Tally, int, int]]] = {}
        """The last tally of each topic, with its count and size at the last reading."""

        self._batched: Final[dict[str, int]] = {}
        """The messages of each topic, without the first of each batch, that came in batches since the last reading."""

        self._unread_pulls: Final[list[PullTally]] = []
        self._due_ms: list[int] | None = None

    def __repr__(self) -> str:
        return f"<TopicStatistics {' '.join(f'{name}={len(table)}' for name, table in self._tables.items())}>"

    # ------- counting

    def new_pull_tally(self, group: str, topic: str, queue_id: int) -> PullTally:
        """Return a tally for the pulls of a queue by a group; there may be several, and they add up."""
        return PullTally(group, topic, queue_id, self._unread_pulls)

    def count_send_back(self, group: str, topic: str) -> None:
        """Count a message of ``topic`` that a consumer has sent back."""
        now_ms = self._clock.monotonic_ms()
        self._counter("back", f"{topic}@{group}", now_ms).add(1, 0, 1, now_ms)

    def count_batch(self, topic: str, count: int) -> None:
        """Count the messages of a batch, which came in one request."""
        self._batched[topic] = self._batched.get(topic, 0) + count - 1

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic."""
        self._collect_pulls()
        self._last_tallies.pop(topic, None)
        self._batched.pop(topic, None)
        self._tables["put"].pop(topic, None)
        for table in ("get", "back"):
            self._drop(table, lambda key: key.startswith(f"{topic}@"))
        self._drop("latency", lambda key: f"@{topic}@" in key)

    def forget_group(self, group: str) -> None:
        """Remove the counters of a deleted group."""
        self._collect_pulls()
        for table in ("get", "back", "latency"):
            self._drop(table, lambda key: key.endswith(f"@{group}"))

    # ------- queries

    def find(self, name: str, key: str) -> tuple[Snapshot, ...] | None:
        """Return the values of a counter over the last minute, hour and day; None if it does not exist."""
        self.collect()
        table, column = NAMES.get(name, ("", 0))
        counter = self._tables.get(table, {}).get(key)
        return None if counter is None else tuple(counter.snapshot(window, column) for window in range(len(WINDOWS)))

    def rate(self, name: str, key: str) -> float:
        """Return the rate per second over the last minute; 0 if the counter does not exist."""
        found = self.find(name, key)
        return 0.0 if found is None else found[0].tps

    def group_rate(self, group: str, topic: str) -> float:
        """Return the messages of a topic that a group receives per second, over the last minute."""
        return self.rate("GROUP_GET_NUMS", f"{topic}@{group}")

    def totals(self) -> Totals:
        """Return the messages of users' topics that were stored and read since this start."""
        self.collect()
        put, get = (self._tables[table].get(self._cluster) for table in ("user put", "user get"))
        return Totals(0 if put is None else put.count, 0 if get is None else get.count)

    # ------- readings

    def tick(self) -> Iterator[None]:
        """Take the readings that are due. A generator, so that the event loop can serve requests between counters."""
        now_ms = self._clock.monotonic_ms()
        if self._due_ms is None:
            self._due_ms = [now_ms] * len(WINDOWS)
        due = [window for window, due_ms in enumerate(self._due_ms) if due_ms <= now_ms]
        if not due:
            return
        for window in due:
            interval_ms = WINDOWS[window][0]
            late = (now_ms - self._due_ms[window]) // interval_ms
            self._due_ms[window] += (late + 1) * interval_ms
        self.collect()
        is_daily = WINDOWS.index(PER_DAY) in due
        for name, counters in self._tables.items():
            for key, counter in list(counters.items()):
                for window in due:
                    counter.read(window, now_ms)
                if is_daily and name not in PERMANENT_TABLES and now_ms - counter.touched_at_ms > IDLE_MS_MAX:
                    counters.pop(key, None)
                yield

    def collect(self) -> None:
        """Add the messages that the store and pulls have counted since the last call."""
        now_ms = self._clock.monotonic_ms()
        self._collect_pulls()
        tallies = dict(self._tallies())
        for topic, tally in tallies.items():
            before, count, size = self._last_tallies.get(topic, (tally, 0, 0))
            if before is not tally:  # the topic was deleted and created again
                self.forget_topic(topic)
                count = size = 0
            if tally.count != count:
                self._put(topic, tally.count - count, tally.size - size, now_ms)
                self._last_tallies[topic] = (tally, tally.count, tally.size)
        if len(self._last_tallies) > len(tallies):
            for topic in self._last_tallies.keys() - tallies.keys():
                self.forget_topic(topic)

    def _put(self, topic: str, count: int, size: int, now_ms: int) -> None:
        calls = max(1, count - self._batched.pop(topic, 0))
        self._counter("put", topic, now_ms).add(count, size, calls, now_ms)
        self._counter("broker put", self._cluster, now_ms).add(count, 0, 0, now_ms)
        if not self._is_system(topic):
            self._counter("user put", self._cluster, now_ms).add(count, 0, 0, now_ms)

    def _collect_pulls(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for tally in self._unread_pulls:
            group, topic = tally.group, tally.topic
            self._counter("get", f"{topic}@{group}", now_ms).add(tally.count, tally.size, tally.calls, now_ms)
            latency = self._counter("latency", f"{tally.queue_id}@{topic}@{group}", now_ms)
            latency.add(tally.took_ms, 0, tally.calls, now_ms)
            self._counter("broker get", self._cluster, now_ms).add(tally.count, 0, 0, now_ms)
            if not self._is_system(topic):
                self._counter("user get", self._cluster, now_ms).add(tally.count, 0, 0, now_ms)
            tally.reset()
        self._unread_pulls.clear()

    def _counter(self, table: str, key: str, now_ms: int) -> Counter:
        counters = self._tables[table]
        counter = counters.get(key)
        if counter is None:
            counter = counters[key] = Counter(now_ms)
        return counter

    def _drop(self, table: str, matches: Callable[[str], bool]) -> None:
        counters = self._tables[table]
        for key in [key for key in counters if matches(key)]:
            del counters[key]
