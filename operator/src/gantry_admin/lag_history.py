"""The lag of consumer groups over the last 24 hours, in memory and as one file.

    now - 24 h ............... one point per 2 min ............... now - 1 h ... one point per 15 s ... now

A series is one group in one topic. A sample is kept as it is for an hour; older ones are thinned to the largest lag and
the longest wait of two minutes, so that no peak disappears. Where nothing was recorded, because the sidecar did not run
or the machine was suspended, there is no point.

The limits: at most ``SERIES_MAX`` series of ``POINTS_MAX`` points of 20 bytes, about 5 MB. Of more series, those with
the longest waits of the last 24 hours are kept, and the others are counted.

The invariant: **the times of a series increase.** If the wall clock is set, all earlier points move by the same step,
so that their ages stay right; the boot-time clock shows the step. Points of a file that are in the future are dropped.

The file is magic, CRC-32 and a compressed MessagePack document, replaced as a whole. A file that is torn, damaged or of
another format raises ``ValueError``.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar, final

import msgspec

from gantry_admin.consumer_lag import TREND_S, TopicLag, Trend, trend_of
from gantry_status.clocks import Moment

SAMPLE_S: Final = 15
"""The interval between two samples: twenty of them make a trend over ``TREND_S``."""
FINE_S: Final = 3_600
"""The age up to which every sample is kept."""
COARSE_S: Final = 120
"""The period of one thinned point."""
HISTORY_S: Final = 86_400
"""The age up to which points are kept."""
SERIES_MAX: Final = 200
"""The most series."""
POINTS_MAX: Final = 2 * FINE_S // SAMPLE_S + HISTORY_S // COARSE_S
"""The most points of a series: samples are at least half of ``SAMPLE_S`` apart."""
CLOCK_STEP_MS_MIN: Final = 1_000
"""A smaller difference between the two clocks is a gradual correction, and moves no points."""
NAME_CHARACTERS_MAX: Final = 255
"""The longest name of a group or topic in a file; RocketMQ's are shorter."""
MAGIC: Final = b"GANTRY LAG 1\n"
DOCUMENT_BYTES_MAX: Final = 8 << 20
"""The longest document that is decompressed from a file: more than ``SERIES_MAX`` series take."""

UNKNOWN: Final = -1.0
"""The wait of a point whose wait is unknown: less than any known one."""

N = TypeVar("N", int, float)

Pair = tuple[str, str]
"""(group, topic)."""


class LagPoint(NamedTuple):
    """The lag at one moment, or the largest of a period that begins there; both are None where nothing was recorded."""

    at_ms: int
    lag: int | None
    wait_s: float | None


@final
class Points:
    """Points by increasing time, in arrays: a point takes 20 bytes instead of more than a hundred."""

    def __init__(self, times: bytes = b"", lags: bytes = b"", waits: bytes = b"") -> None:
        """Raises ValueError for arrays of different lengths, and times that do not increase."""
        self.times: Final = array("q", times)
        self.lags: Final = array("q", lags)
        self.waits: Final = array("f", waits)
        """The waits in seconds; ``UNKNOWN`` if they are unknown."""
        if not len(self.times) == len(self.lags) == len(self.waits) <= POINTS_MAX:
            raise ValueError(f"a series has {len(self.times)} times and {len(self.lags)} lags")
        if any(later <= earlier for earlier, later in pairwise(self.times)):
            raise ValueError("the times of a series do not increase")
        if not all(wait_s >= UNKNOWN for wait_s in self.waits):
            raise ValueError("a wait of a series is not a time")

    def __len__(self) -> int:
        return len(self.times)

    def append(self, at_ms: int, lag: int, wait_s: float) -> None:
        assert not self.times or at_ms > self.times[-1], "the times of a series increase"
        self.times.append(at_ms)
        self.lags.append(lag)
        self.waits.append(wait_s)

    def raise_last(self, lag: int, wait_s: float) -> None:
        """Raise the lag and the wait of the last point to these."""
        self.lags[-1] = max(self.lags[-1], lag)
        self.waits[-1] = max(self.waits[-1], wait_s)

    def delete(self, begin: int, end: int) -> None:
        """Delete the points at these indexes, ``[begin, end)``."""
        for column in (self.times, self.lags, self.waits):
            del column[begin:end]

    def shift(self, step_ms: int) -> None:
        """Move all points in time."""
        for index, at_ms in enumerate(self.times):
            self.times[index] = at_ms + step_ms


@final
class LagSeries:
    """The lag of one group in one topic."""

    def __init__(self, points: Points | None = None) -> None:
        self._fine: Final = Points() if points is None else points
        self._coarse: Final = Points()

    @property
    def newest_ms(self) -> int | None:
        """The time of the newest point; None without points."""
        for points in (self._fine, self._coarse):
            if points:
                return points.times[-1]
        return None

    def add(self, at_ms: int, lag: int, wait_s: float | None) -> None:
        """Add one sample, unless it is too early after the last one."""
        newest_ms = self.newest_ms
        if newest_ms is None or at_ms - newest_ms >= SAMPLE_S * 1000 // 2:
            self._fine.append(at_ms, lag, UNKNOWN if wait_s is None else wait_s)

    def thin(self, now_ms: int) -> None:
        """Merge samples that are older than an hour into coarse points, and delete points older than 24 hours."""
        fine, coarse = self._fine, self._coarse
        old = 0
        while old < len(fine) and fine.times[old] < now_ms - FINE_S * 1000:
            at_ms, lag, wait_s = fine.times[old], fine.lags[old], fine.waits[old]
            if coarse and at_ms - coarse.times[-1] < COARSE_S * 1000:
                coarse.raise_last(lag, wait_s)
            else:
                coarse.append(at_ms, lag, wait_s)
            old += 1
        fine.delete(0, old)
        expired = 0
        while expired < len(coarse) and coarse.times[expired] < now_ms - HISTORY_S * 1000:
            expired += 1
        coarse.delete(0, expired)

    def shift(self, step_ms: int) -> None:
        """Move all points in time, because the wall clock was set."""
        self._fine.shift(step_ms)
        self._coarse.shift(step_ms)

    def drop_after(self, now_ms: int) -> None:
        """Delete the points that are in the future."""
        for points in (self._fine, self._coarse):
            points.delete(bisect_left(points.times, now_ms + 1), len(points))

    def points(self, since_ms: int) -> Iterator[LagPoint]:
        """Yield the points since a time, by time."""
        for points in (self._coarse, self._fine):
            for index in range(bisect_left(points.times, since_ms), len(points)):
                wait_s = points.waits[index]
                yield LagPoint(points.times[index], points.lags[index], None if wait_s == UNKNOWN else wait_s)

    def peak(self) -> tuple[float, int]:
        """Return the longest wait and the largest lag of all points."""
        both = (self._coarse, self._fine)
        return max(max(one.waits, default=0.0) for one in both), max(max(one.lags, default=0) for one in both)

    def to_columns(self) -> tuple[bytes, bytes, bytes]:
        """Return the bytes of the times, lags and waits of all points."""
        times, lags, waits = (
            (getattr(self._coarse, name) + getattr(self._fine, name)).tobytes() for name in ("times", "lags", "waits")
        )
        return times, lags, waits


class _SavedSeries(msgspec.Struct, array_like=True, frozen=True):
    """One series in a file."""

    group: str
    topic: str
    times: bytes
    lags: bytes
    waits: bytes


class _SavedHistory(msgspec.Struct, frozen=True):
    """The document of a file."""

    byte_order: str
    """The byte order of the arrays; that of another machine is not converted."""

    series: list[_SavedSeries]


@final
class LagHistory:
    """The series of one broker. Not thread-safe: owned by the event loop."""

    def __init__(self, *, series_max: int = SERIES_MAX) -> None:
        self.left_out = 0
        """The number of pairs of group and topic in the last sample that have no series."""
        self._series_max: Final = series_max
        self._series: dict[Pair, LagSeries] = {}
        self._trends: dict[Pair, Trend | None] = {}
        self._last: Moment | None = None
        """The time of the last sample on both clocks."""

    def __repr__(self) -> str:
        return f"<LagHistory of {len(self._series)} series, {self.left_out} left out>"

    def record(self, at: Moment, lags: Mapping[Pair, TopicLag]) -> None:
        """Add one sample of all pairs, thin the series, and compute the trends."""
        if self._last is not None:
            elapsed_ms = (at.boottime_ns - self._last.boottime_ns) // 1_000_000
            step_ms = at.wall_ms - self._last.wall_ms - elapsed_ms
            if abs(step_ms) >= CLOCK_STEP_MS_MIN:
                for series in self._series.values():
                    series.shift(step_ms)
        self._last = at
        kept = self._kept(lags)
        self.left_out = sum(pair not in kept for pair in lags)
        for pair in kept:
            series = self._series.setdefault(pair, LagSeries())
            if pair in lags:
                series.add(at.wall_ms, *lags[pair])
            series.thin(at.wall_ms)
        self._series = {pair: self._series[pair] for pair in kept if self._series[pair].newest_ms is not None}
        since_ms = at.wall_ms - int(TREND_S * 1000)
        self._trends = {
            pair: trend_of([(point.at_ms, point.wait_s) for point in series.points(since_ms)])
            for pair, series in self._series.items()
        }

    def _kept(self, lags: Mapping[Pair, TopicLag]) -> set[Pair]:
        """Return the pairs that have a series from now on."""
        pairs = self._series.keys() | lags.keys()
        if len(pairs) <= self._series_max:
            return set(pairs)

        def rank(pair: Pair) -> tuple[float, int, bool, Pair]:
            series, current = self._series.get(pair), lags.get(pair, TopicLag(0, 0.0))
            wait_s, lag = (0.0, 0) if series is None else series.peak()
            return max(wait_s, current.wait_s or 0.0), max(lag, current.lag), series is not None, pair

        return set(sorted(pairs, key=rank, reverse=True)[: self._series_max])

    def trend(self, group: str, topic: str) -> Trend | None:
        """Return the trend of the wait at the last sample; None if it is unknown."""
        return self._trends.get((group, topic))

    def pairs(self, group: str | None, topic: str | None) -> list[Pair]:
        """Return the pairs that have a series, of this group and topic if they are given."""
        return sorted(pair for pair in self._series if group in (None, pair[0]) and topic in (None, pair[1]))

    def window(self, pair: Pair, begin_ms: int, step_ms: int, count: int) -> list[LagPoint]:
        """Return ``count`` points at intervals of ``step_ms``: the largest lag and longest wait of each interval."""
        lags: list[int | None] = [None] * count
        waits: list[float | None] = [None] * count
        series = self._series.get(pair)
        for at_ms, lag, wait_s in () if series is None else series.points(begin_ms):
            index = (at_ms - begin_ms) // step_ms
            if index < count:
                lags[index] = _larger(lags[index], lag)
                waits[index] = _larger(waits[index], wait_s)
        return [LagPoint(begin_ms + index * step_ms, lags[index], waits[index]) for index in range(count)]

    # -- the file ------------------------------------------------------------------------------------------------------

    def to_document(self) -> bytes:
        """Return the document of the file, uncompressed."""
        rows = [_SavedSeries(*pair, *series.to_columns()) for pair, series in self._series.items()]
        return msgspec.msgpack.encode(_SavedHistory(sys.byteorder, rows))

    def restore(self, document: bytes, now_ms: int) -> None:
        """Replace the series by those of a document, without points in the future. Raises ValueError."""
        try:
            saved = msgspec.msgpack.decode(document, type=_SavedHistory)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a document of this version: {error}") from error
        if saved.byte_order != sys.byteorder or len(saved.series) > self._series_max:
            raise ValueError(f"{len(saved.series)} series in byte order {saved.byte_order[:20]}")
        found: dict[Pair, LagSeries] = {}
        for row in saved.series:
            if max(len(row.group), len(row.topic)) > NAME_CHARACTERS_MAX:
                raise ValueError("a name is too long")
            series = found[row.group, row.topic] = LagSeries(Points(row.times, row.lags, row.waits))
            series.drop_after(now_ms)
            series.thin(now_ms)
        self._series = found


def _larger(one: N | None, other: N | None) -> N | None:
    """Return the larger of two values; None only if both are unknown."""
    return other if one is None else one if other is None else max(one, other)


def seal_file(document: bytes) -> bytes:
    """Return the content of the file of a document."""
    body = zlib.compress(document, level=1)
    return MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def open_file(content: bytes) -> bytes:
    """Return the document of a file. Raises ValueError if it is torn, damaged or of another format."""
    if not content.startswith(MAGIC):
        raise ValueError("it does not begin as a history of lag of this version")
    checksum, body = content[len(MAGIC) : len(MAGIC) + 4], content[len(MAGIC) + 4 :]
    if zlib.crc32(body).to_bytes(4, "little") != checksum:
        raise ValueError("its checksum is wrong")
    inflater = zlib.decompressobj()
    try:
        document = inflater.decompress(body, DOCUMENT_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof:
        raise ValueError(f"its document is longer than {DOCUMENT_BYTES_MAX} bytes or not complete")
    return document
