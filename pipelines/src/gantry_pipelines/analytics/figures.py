"""Compute the figures of the report from the tables: a period, rates by topic, latencies, skew, keys, lags.

Windows are merged until a chart has at most `POINTS_MAX` of them. Rates of merged windows become their mean;
percentiles cannot be averaged, so the worst one is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, final

from gantry_pipelines.analytics.axes import Unit
from gantry_pipelines.analytics.charts import Chart, Series
from gantry_pipelines.analytics.tables import TABLES, Tables

POINTS_MAX: Final = 240
"""The most points of a series in a chart."""
TOPIC_SERIES_MAX: Final = 7
"""Topics that have their own series in a chart. The others share one series, if they are at least two."""
OTHER_TOPICS: Final = "all others"
"""The name of the series of all topics without their own."""
Row = dict[str, Any]
"""A row of a table, by the names of its columns."""


@final
@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one report."""

    begin_ms: int
    end_ms: int
    window_ms: int
    step_ms: int
    """Interval of the charts: one window, or several."""
    messages: int
    """The number of messages in the period."""
    bytes: int
    """The size of these messages as stored."""
    peak_per_second: float
    """The highest rate of all topics together in a window."""
    peak_ms: int
    """The beginning of that window, in milliseconds since 1970."""
    rates: Chart
    """The messages per second, by topic."""
    volumes: Chart
    """The bytes per second, by topic."""
    topics: tuple[Row, ...]
    """Rows with topic, messages, bytes, meanPerSecond, peakPerSecond, p50Ms, p95Ms, p99Ms, maxMs, clockSkewed."""
    latencies: tuple[Chart, ...]
    """One chart for each of the four busiest topics: p50, p95 and p99."""
    queues: tuple[Row, ...]
    """Rows with topic, broker, queue, messages, share, timesEven; the largest timesEven first."""
    keys: tuple[Row, ...]
    """Rows with topic, key, messages, bytes; the most messages first. Only windows in which the key was hot count."""
    lag: Chart | None
    """The lag of each group over time; None with fewer than two samples."""
    lags: tuple[Row, ...]
    """Rows with group, topic, lagMessages, lagSeconds, at the last sample."""


def compute_figures(tables: Tables, begin_ms: int, end_ms: int) -> Figures | None:
    """Compute the figures of the windows in `[begin, end)`; None if there are no windows."""
    rates = _rows(tables, "throughput", begin_ms, end_ms)
    if not rates:
        return None
    window_ms = min(_ms(row["windowEnd"]) - _ms(row["windowBegin"]) for row in rates)
    begin = min(_ms(row["windowBegin"]) for row in rates)
    end = max(_ms(row["windowEnd"]) for row in rates)
    windows = max((end - begin) // window_ms, 1)
    grid = _Grid(begin, end, window_ms * -(-windows // POINTS_MAX))
    by_topic = _sum_rows(rates, ("topic",))
    names = [str(row["topic"]) for row in by_topic]
    totals: dict[int, int] = defaultdict(int)
    for row in rates:
        totals[_ms(row["windowBegin"])] += row["messages"]
    peak_ms = max(totals, key=lambda moment: totals[moment])
    latency = _rows(tables, "latency", begin, end)
    samples = _rows(tables, "consumer_lag", begin, end_ms)
    return Figures(
        begin, end, window_ms, grid.step_ms,
        sum(row["messages"] for row in rates), sum(row["bytes"] for row in rates),
        totals[peak_ms] / (window_ms / 1000), peak_ms,
        _rate_chart("Messages per second", Unit.MESSAGES_PER_SECOND, "messages", rates, names, grid),
        _rate_chart("Bytes per second", Unit.BYTES_PER_SECOND, "bytes", rates, names, grid),
        tuple(_topic_row(row, rates, latency, (end - begin) / 1000, window_ms) for row in by_topic),
        tuple(_latency_chart(name, latency, grid) for name in names[:4]),
        tuple(_hot_queues(_rows(tables, "hot_queues", begin, end))),
        tuple(_sum_rows(_rows(tables, "hot_keys", begin, end), ("topic", "key"))[:15]),
        _lag_chart(samples), tuple(_last_lags(samples)),
    )  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class _Grid:
    """The intervals of a chart."""

    begin: int
    end: int
    step_ms: int

    @property
    def times(self) -> list[int]:
        return list(range(self.begin, self.end, self.step_ms))

    def at(self, moment: int) -> int:
        return (moment - self.begin) // self.step_ms

    def seconds(self, at: int) -> float:
        """Return the length of an interval in seconds; the last one may be shorter."""
        return (min(self.begin + (at + 1) * self.step_ms, self.end) - (self.begin + at * self.step_ms)) / 1000


def _rows(tables: Tables, name: str, begin_ms: int, end_ms: int) -> list[Row]:
    rows: list[Row] = tables.read(TABLES[name], begin_ms, end_ms).to_pylist()
    return rows


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _sum_rows(rows: Iterable[Row], names: tuple[str, ...]) -> list[Row]:
    """Sum messages and bytes by some columns; the most messages first."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        one = found.setdefault(key, {**dict(zip(names, key, strict=True)), "messages": 0, "bytes": 0})
        one["messages"] += row["messages"]
        one["bytes"] += row["bytes"]
    return sorted(found.values(), key=lambda one: (-one["messages"], *(str(one[name]) for name in names)))


def _rate_chart(title: str, unit: Unit, column: str, rows: list[Row], names: list[str], grid: _Grid) -> Chart:
    """Return a chart of rates per second by topic; a window without a row had no messages."""
    shown = names[:TOPIC_SERIES_MAX] if len(names) > TOPIC_SERIES_MAX + 1 else names
    sums: Mapping[str, list[float]] = {name: [0.0] * len(grid.times) for name in (*shown, OTHER_TOPICS)}
    for row in rows:
        name = row["topic"] if row["topic"] in sums else OTHER_TOPICS
        sums[name][grid.at(_ms(row["windowBegin"]))] += row[column]
    kept = shown if len(shown) == len(names) else [*shown, OTHER_TOPICS]
    series = [Series(name, [value / grid.seconds(at) for at, value in enumerate(sums[name])]) for name in kept]
    return Chart(title, unit, grid.times, grid.step_ms, series)


def _topic_row(total: Row, rates: list[Row], latencies: list[Row], seconds: float, window_ms: int) -> Row:
    name = total["topic"]
    by_window: dict[int, int] = defaultdict(int)
    for row in rates:
        if row["topic"] == name:
            by_window[_ms(row["windowBegin"])] += row["messages"]
    topic_rows = [row for row in latencies if row["topic"] == name]
    worst = {
        column: max((row[column] for row in topic_rows if row[column] is not None), default=None)
        for column in ("p50Ms", "p95Ms", "p99Ms", "maxMs")
    }
    return {
        **total, **worst, "meanPerSecond": total["messages"] / seconds,
        "peakPerSecond": max(by_window.values(), default=0) / (window_ms / 1000),
        "clockSkewed": sum(row["clockSkewed"] for row in topic_rows),
    }  # fmt: skip


def _latency_chart(name: str, rows: list[Row], grid: _Grid) -> Chart:
    columns = ("p50Ms", "p95Ms", "p99Ms")
    values: dict[str, list[float | None]] = {column: [None] * len(grid.times) for column in columns}
    for row in rows:
        if row["topic"] != name:
            continue
        at = grid.at(_ms(row["windowBegin"]))
        for column in columns:
            known, new = values[column][at], row[column]
            if new is not None:
                values[column][at] = new if known is None else max(known, new)
    series = [Series(column.removesuffix("Ms"), values[column]) for column in columns]
    return Chart(name, Unit.MILLISECONDS, grid.times, grid.step_ms, series)


def _hot_queues(rows: list[Row]) -> list[Row]:
    """Return the queues of the period with the largest skew, compared with an even share."""
    queues = _sum_rows(rows, ("topic", "broker", "queue"))
    totals = {row["topic"]: (row["messages"], 0) for row in _sum_rows(queues, ("topic",))}
    counts: dict[str, int] = defaultdict(int)
    for row in queues:
        counts[row["topic"]] += 1
    for row in queues:
        row["share"] = row["messages"] / totals[row["topic"]][0]
        row["timesEven"] = row["share"] * counts[row["topic"]]
    return sorted(queues, key=lambda row: (-row["timesEven"], row["topic"], row["broker"], row["queue"]))[:12]


def _lag_chart(samples: list[Row]) -> Chart | None:
    """Return a chart of the lag of each group over all queues; None with fewer than two samples."""
    times = sorted({_ms(row["sampledAt"]) for row in samples})
    if len(times) < 2:
        return None
    step = max(min(later - earlier for earlier, later in pairwise(times)), 1)
    grid = _Grid(times[0], times[-1] + step, max(step, (times[-1] + step - times[0]) // POINTS_MAX + 1))
    by_group: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in samples:
        by_group[row["group"]][_ms(row["sampledAt"])] += row["lagMessages"]
    series: list[Series] = []
    for group, sums in sorted(by_group.items()):
        values: list[float | None] = [None] * len(grid.times)
        for moment, lag in sums.items():
            at = grid.at(moment)
            values[at] = max(values[at] or 0, lag)
        # Values between two samples are interpolated.
        series.append(Series(group, _interpolate(values)))
    return Chart("Messages behind", Unit.MESSAGES, grid.times, grid.step_ms, series)


def _interpolate(values: list[float | None]) -> list[float | None]:
    known = [(at, value) for at, value in enumerate(values) if value is not None]
    for (at, value), (end, last) in pairwise(known):
        for between in range(at + 1, end):
            values[between] = value + (last - value) * (between - at) / (end - at)
    return values


def _last_lags(samples: list[Row]) -> list[Row]:
    """Return the lag by group and topic at the last sample; the largest first."""
    newest = max((row["sampledAt"] for row in samples), default=None)
    found: dict[tuple[str, str], Row] = {}
    for row in samples:
        if row["sampledAt"] != newest:
            continue
        empty: Row = {"group": row["group"], "topic": row["topic"], "lagMessages": 0, "lagSeconds": None}
        one = found.setdefault((row["group"], row["topic"]), empty)
        one["lagMessages"] += row["lagMessages"]
        if row["lagSeconds"] is not None:
            one["lagSeconds"] = max(one["lagSeconds"] or 0.0, row["lagSeconds"])
    return sorted(found.values(), key=lambda one: (-one["lagMessages"], one["group"], one["topic"]))
