"""The sizes of `make bench-store`: the full run, the recoveries of `make bench`, and a smoke test of a minute."""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_bench.group_commit import LEVELS
from gantry_bench.loadgen import Timing
from gantry_bench.recovery import CACHED_RUNS, WAYS, Way

MEBIBYTE: Final = 1 << 20
BODY_BYTES: Final = 1024


class Scale(msgspec.Struct, frozen=True):
    """One size of the whole benchmark. The prefix of a field is the part: tail, sync, recovery, resident."""

    name: str
    tail_rounds: int
    tail_seconds: float
    tail_warm_up_seconds: float
    tail_messages_per_second: int
    tail_messages_per_call: int
    tail_flush_interval_ms: int
    tail_segment_bytes: int
    """The size is so small that a run rolls to the next file at least once."""

    buffers_count: int
    sync_levels: tuple[int, ...]
    """The numbers of sends in flight of the part on synchronous flush."""
    sync_repetitions: int
    sync_timing: Timing
    recovery_log_bytes: tuple[int, ...]
    recovery_segment_bytes: int
    recovery_ways: tuple[Way, ...]
    """The recoveries of each log, in this order."""
    resident_segment_bytes: int
    resident_timing: Timing


FULL: Final = Scale(
    name="full",
    tail_rounds=5,
    tail_seconds=12.0,
    tail_warm_up_seconds=1.0,
    tail_messages_per_second=50_000,
    tail_messages_per_call=10,
    tail_flush_interval_ms=10,
    tail_segment_bytes=512 * MEBIBYTE,
    buffers_count=3,
    sync_levels=LEVELS,
    sync_repetitions=3,
    sync_timing=Timing(warm_up_ms=500, duration_ms=2000),
    recovery_log_bytes=(1_000_000_000, 10_000_000_000),
    recovery_segment_bytes=1024 * MEBIBYTE,
    recovery_ways=WAYS,
    resident_segment_bytes=256 * MEBIBYTE,
    resident_timing=Timing(warm_up_ms=500, duration_ms=5000),
)
SHORT: Final = msgspec.structs.replace(
    FULL, name="short", recovery_log_bytes=(10_000_000_000,), recovery_ways=CACHED_RUNS
)
"""Recoveries of the log that the goal of `make bench` is about, three times from the page cache."""
QUICK: Final = Scale(
    name="quick",
    tail_rounds=1,
    tail_seconds=0.4,
    tail_warm_up_seconds=0.1,
    tail_messages_per_second=5_000,
    tail_messages_per_call=10,
    tail_flush_interval_ms=10,
    tail_segment_bytes=2 * MEBIBYTE,
    buffers_count=3,
    sync_levels=(1, 16),
    sync_repetitions=1,
    sync_timing=Timing(warm_up_ms=50, duration_ms=200),
    recovery_log_bytes=(20_000_000,),
    recovery_segment_bytes=16 * MEBIBYTE,
    recovery_ways=WAYS,
    resident_segment_bytes=16 * MEBIBYTE,
    resident_timing=Timing(warm_up_ms=50, duration_ms=300),
)
