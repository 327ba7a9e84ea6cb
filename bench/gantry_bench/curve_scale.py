"""The sizes of `make bench-scale`: the full run, and one of minutes."""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_bench.loadgen import Timing
from gantry_bench.scale import MEBIBYTE


class CurveScale(msgspec.Struct, frozen=True):
    """One size of the whole benchmark."""

    name: str
    topics: tuple[int, ...]
    """The steps of a curve, in rising order; the same for the next four fields."""
    connections: tuple[int, ...]
    consumers: tuple[int, ...]
    shards: tuple[int, ...]
    log_bytes: tuple[int, ...]
    repetitions: int
    """Of each load and each start, of which the median counts."""
    timing: Timing
    rest_seconds: float
    """How long a broker at rest is watched: a full interval of registrations and heartbeats, if the figure matters."""
    deliveries: int
    """The fewest messages that the consumers of a step receive."""
    rounds_min: int
    """The fewest messages that are sent to them."""
    segment_bytes: int
    restart_segment_bytes: int


FULL: Final = CurveScale(
    name="full",
    topics=(1, 10, 100, 1000, 5000, 10_000),
    connections=(1, 10, 100, 1000, 3000, 10_000),
    consumers=(1, 10, 100, 1000),
    shards=(1, 2, 4, 8),
    log_bytes=(1_000_000_000, 10_000_000_000, 30_000_000_000, 100_000_000_000),
    repetitions=3,
    timing=Timing(warm_up_ms=500, duration_ms=2000),
    rest_seconds=31.0,
    deliveries=20_000,
    rounds_min=50,
    segment_bytes=1024 * MEBIBYTE,
    restart_segment_bytes=1024 * MEBIBYTE,
)
QUICK: Final = CurveScale(
    name="quick",
    topics=(1, 10, 100),
    connections=(1, 100),
    consumers=(1, 100),
    shards=(1, 2),
    log_bytes=(20_000_000, 100_000_000),
    repetitions=1,
    timing=Timing(warm_up_ms=100, duration_ms=400),
    rest_seconds=1.0,
    deliveries=1000,
    rounds_min=10,
    segment_bytes=64 * MEBIBYTE,
    restart_segment_bytes=16 * MEBIBYTE,
)
