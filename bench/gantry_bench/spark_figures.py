"""The evaluation of the Spark benchmark: ways, ratios, goals and the table. Pure.

A figure is rows a second, the median of the repetitions of one way. Ways take turns, so that other work on the machine
affects all of them; goals compare two ways of one run, never times of two machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.measurement import Goal

ALL: Final = "all columns"
HEADERS: Final = "headers only"
TUPLES: Final = "a reader of tuples, all columns"
PARQUET_READ: Final = "Spark reads the same rows from Parquet"
HYBRID: Final = "nine tenths from the archive, the rest from the slave's files"
CEILING: Final = "the same batch again and again, all columns"
ARCHIVE: Final = "archive"
PARQUET_WRITE: Final = "Spark writes the same rows to Parquet"
HTTP: Final = "all columns, from the slave's sidecar"
PULL: Final = "all columns, by RocketMQ's protocol"
SINK: Final = "sink, at least once"
SINK_TRANSACTIONAL: Final = "sink, transactional"

ARCHIVED_SHARE: Final = 0.9
"""The share of the messages that are archived when the archive and the broker are read together."""

ALL_MIN: Final = 1.2
HEADERS_MIN: Final = 3.0
ARCHIVE_MIN: Final = 2.0
HYBRID_MIN: Final = 0.95
SENDS_MAX: Final = 1.2
"""Goals: the four minimums and the maximum of ratios of `spark_goals`."""


class SparkScale(msgspec.Struct, frozen=True):
    """The size of a run."""

    rows: int
    repetitions: int
    sink_rows: int
    turns: int
    """The number of turns of sends without and with a reader."""

    sends: int
    """The number of sends in each turn, one after the other."""


FULL: Final = SparkScale(rows=2_000_000, repetitions=3, sink_rows=200_000, turns=20, sends=500)
QUICK: Final = SparkScale(rows=20_000, repetitions=1, sink_rows=2_000, turns=1, sends=50)


class Way(msgspec.Struct, frozen=True):
    """One way to move rows, and the duration of each repetition."""

    name: str
    rows: int
    seconds: list[float]

    @property
    def rate(self) -> float:
        """Return the rows per second of the median repetition."""
        return self.rows / median(self.seconds)


class SendQuantiles(msgspec.Struct, frozen=True):
    """Quantiles of sequential sends, in milliseconds."""

    reader: str
    """What reads meanwhile: `none`, or Spark."""
    count: int
    p50_ms: float
    p99_ms: float


class SparkReport(msgspec.Struct, frozen=True):
    """The results of a run."""

    bytes_stored: int
    ways: list[Way]
    alone: SendQuantiles
    """Sends while the reader is stopped."""
    beside: SendQuantiles
    """Sends while Spark reads from the slave."""
    archive_bytes: int
    parquet_bytes: int
    rows_wrong: int
    """The number of rows that were missing or too many, over all ways that were counted."""

    other_cores: float
    """CPU use of other programs before and after the measurement, when nothing of the benchmark ran."""

    def way(self, name: str) -> Way:
        """Return the way with this name."""
        return next(one for one in self.ways if one.name == name)


def ratio(report: SparkReport, one: str, other: str) -> float:
    """Return how many times as fast the first way is."""
    return report.way(one).rate / report.way(other).rate


def spark_goals(report: SparkReport, scale: SparkScale) -> Sequence[Goal]:
    """Return the goals with their measured values."""
    return [
        Goal("all columns, against Spark's read of the same rows from Parquet", ALL_MIN,
             ratio(report, ALL, PARQUET_READ), "times as fast", is_floor=True),
        Goal("all columns, nine tenths archived, against Spark's read of the same rows from Parquet", HYBRID_MIN,
             ratio(report, HYBRID, PARQUET_READ), "times as fast", is_floor=True),
        Goal("headers only, against all columns", HEADERS_MIN,
             ratio(report, HEADERS, ALL), "times as fast", is_floor=True),
        Goal("archive, against Spark's writer of Parquet", ARCHIVE_MIN,
             ratio(report, ARCHIVE, PARQUET_WRITE), "times as fast", is_floor=True),
        Goal("p99 of sends to the master while Spark reads from the slave, against sends alone", SENDS_MAX,
             report.beside.p99_ms / report.alone.p99_ms, "times"),
    ]  # fmt: skip


def spark_figures(report: SparkReport, scale: SparkScale) -> Figures:
    """Return a row for each way."""
    tuples = report.way(TUPLES).rate
    return Figures(
        name="spark",
        headings=["way", "rows", "seconds", "rows/s", "MB/s stored", "of tuples"],
        rows=[_row(way, report.bytes_stored / scale.rows, tuples) for way in report.ways],
        notes=[
            f"{scale.rows:,} messages, {report.bytes_stored / 1e9:.2f} GB in the log; medians of"
            f" {scale.repetitions} repetitions, in turns, after one turn that warms up.",
            f"Parquet of the archive {report.archive_bytes / 1e6:,.0f} MB, of Spark's writer"
            f" {report.parquet_bytes / 1e6:,.0f} MB (zstd, both).",
            f"The same batch again and again is {ratio(report, CEILING, PARQUET_READ):.2f} times as fast as Spark's"
            " read of Parquet: about what Spark leaves to a source in Python.",
            f"Sends alone: p50 {report.alone.p50_ms:.3f}, p99 {report.alone.p99_ms:.3f} ms; beside the reader: p50"
            f" {report.beside.p50_ms:.3f}, p99 {report.beside.p99_ms:.3f} ms; {report.alone.count:,} each, in turns.",
            f"Other programs used {report.other_cores:.1f} cores before and after.",
        ],
    )  # fmt: skip


def _row(way: Way, bytes_each: float, tuples: float) -> list[str]:
    return [
        way.name,
        f"{way.rows:,}",
        " ".join(f"{seconds:.1f}" for seconds in way.seconds),
        f"{way.rate:,.0f}",
        f"{way.rate * bytes_each / 1e6:,.0f}",
        f"{way.rate / tuples:.2f}",
    ]
