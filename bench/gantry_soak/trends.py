"""Whether a measure grows: a robust slope of its values, and a bound for it. Pure.

The slope is the median of the slopes of pairs of points (Theil-Sen), so that neither peaks nor a noisy end decide.
Only points of one *life* make a pair: a process that was killed begins with new memory, and a slave that has become the
master has other work. Points of the warm-up of a life and of faults are left out (``usable_points``).

A measure grows if all of these hold:

- the slope exceeds the bound for an hour;
- the growth over the longest life exceeds what the measure fluctuates by anyway (``noise``);
- at least ``RISING_SHARE`` of the pairs rise. A measure that moves up and down has about half.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, final

import msgspec

HOUR_S: Final = 3600.0
POINTS_MIN: Final = 8
"""With fewer points in a life no pair of it counts."""

POINTS_PAIRED_MAX: Final = 400
"""A life with more points is thinned out to this many: the number of pairs grows with the square."""

SPAN_SHARE_MIN: Final = 0.25
"""Pairs that are closer than this share of their life are left out: their slopes are noise."""

RISING_SHARE: Final = 0.75


@final
class Point(msgspec.Struct, frozen=True):
    """One value of a measure, and the life to which it belongs."""

    at_s: float
    value: float
    life: str = ""


@final
class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How much a measure may grow."""

    per_hour: float
    """The slope that is allowed, in units for an hour."""

    share_per_hour: float = 0.0
    """The slope that is allowed as a share of the median; the larger of the two counts."""

    noise: float
    """Growth over a life that counts as noise, in units."""

    noise_share: float = 0.0
    """The same as a share of the median; the larger of the two counts."""


@final
class Verdict(Enum):
    """The outcome for one measure."""

    FLAT = "flat"
    GROWS = "grows"
    TOO_SHORT = "too short"
    """No life has enough usable points."""


@final
class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The trend of one measure."""

    verdict: Verdict
    median: float = 0.0
    per_hour: float = 0.0
    allowed_per_hour: float = 0.0
    span_s: float = 0.0
    """The longest life without its warm-up."""
    rising_share: float = 0.0


def usable_points(
    points: Iterable[Point], *, faults: Sequence[tuple[float, float]], warm_up_s: float, settle_s: float
) -> list[Point]:
    """Return the points outside of the warm-up of their life, and of faults with ``settle_s`` after each."""
    begins: dict[str, float] = {}
    kept = []
    for point in sorted(points, key=lambda one: one.at_s):
        began_s = begins.setdefault(point.life, point.at_s)
        is_in_fault = any(start_s <= point.at_s <= end_s + settle_s for start_s, end_s in faults)
        if point.at_s - began_s >= warm_up_s and not is_in_fault:
            kept.append(point)
    return kept


def find_trend(points: Sequence[Point], bound: Bound) -> Trend:
    """Return the trend of usable points, and whether it exceeds its bound."""
    lives: dict[str, list[Point]] = {}
    for point in points:
        lives.setdefault(point.life, []).append(point)
    judged = [thin_out(life) for life in lives.values() if len(life) >= POINTS_MIN]
    slopes = [slope for life in judged for slope in pair_slopes(life)]
    if not slopes:
        return Trend(verdict=Verdict.TOO_SHORT)
    median = statistics.median(point.value for life in judged for point in life)
    span_s = max(life[-1].at_s - life[0].at_s for life in judged)
    per_hour = statistics.median(slopes) * HOUR_S
    rising_share = sum(slope > 0 for slope in slopes) / len(slopes)
    allowed = max(bound.per_hour, bound.share_per_hour * median)
    noise = max(bound.noise, bound.noise_share * median)
    grows = per_hour > allowed and per_hour * span_s / HOUR_S > noise and rising_share >= RISING_SHARE
    return Trend(
        verdict=Verdict.GROWS if grows else Verdict.FLAT,
        median=median,
        per_hour=per_hour,
        allowed_per_hour=allowed,
        span_s=span_s,
        rising_share=rising_share,
    )


def thin_out(life: Sequence[Point]) -> list[Point]:
    """Return at most ``POINTS_PAIRED_MAX`` points, evenly distributed, with the first and the last."""
    if len(life) <= POINTS_PAIRED_MAX:
        return list(life)
    step = (len(life) - 1) / (POINTS_PAIRED_MAX - 1)
    return [life[round(number * step)] for number in range(POINTS_PAIRED_MAX)]


def pair_slopes(life: Sequence[Point]) -> list[float]:
    """Return the slopes, in units per second, of all pairs that are far enough apart."""
    least_s = (life[-1].at_s - life[0].at_s) * SPAN_SHARE_MIN
    return [
        (later.value - earlier.value) / (later.at_s - earlier.at_s)
        for number, earlier in enumerate(life)
        for later in life[number + 1 :]
        if later.at_s - earlier.at_s >= least_s and later.at_s > earlier.at_s
    ]
