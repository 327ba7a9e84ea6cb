"""The sizes of `make bench-ha`: the full run, one with shorter loads, and a smoke test."""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_bench.ha_cells import PLAIN, SETUPS, SYNC_BUFFERED, SYNC_PLAIN, Setup
from gantry_bench.ha_slow import BOUND_LEVEL, SATURATION_LEVEL
from gantry_bench.ha_table import LEVELS
from gantry_bench.loadgen import Timing
from gantry_bench.scale import MEBIBYTE


class HaScale(msgspec.Struct, frozen=True):
    """One size of the whole benchmark."""

    name: str
    setups: tuple[Setup, ...]
    levels: tuple[int, ...]
    """The numbers of sends in flight; the same for the other fields of levels, by the part of the benchmark."""
    repetitions: int
    timing: Timing
    first_load_ms: int
    """The duration of the first load in the parts ``table`` and ``producer``, in which Java compiles its hot code."""

    segment_bytes: int
    """The size of a log file, and of a write buffer."""
    buffers_count: int
    producer_setups: tuple[Setup, ...]
    producer_levels: tuple[int, ...]
    producer_reports: int
    """The number of reports: one per second, the first after ten; the last one covers the last ten seconds."""

    memory_setups: tuple[Setup, ...]
    memory_levels: tuple[int, ...]
    memory_repetitions: int
    slow_levels: tuple[int, ...]
    both_levels: tuple[int, ...]
    """The levels of the part in which the slave's acks and the master's disk are slow."""
    slow_repetitions: int
    free_bytes_needed: int
    """The stores of one setup, both masters and slaves, which are removed before the next setup starts."""


FULL: Final = HaScale(
    name="full",
    setups=SETUPS,
    levels=LEVELS,
    repetitions=3,
    timing=Timing(warm_up_ms=500, duration_ms=2000),
    first_load_ms=8000,
    segment_bytes=512 * MEBIBYTE,
    buffers_count=3,
    producer_setups=SETUPS,
    producer_levels=LEVELS,
    producer_reports=3,
    memory_setups=tuple(setup for setup in SETUPS if setup.replication == "sync"),
    memory_levels=LEVELS,
    memory_repetitions=3,
    slow_levels=(BOUND_LEVEL, SATURATION_LEVEL),
    both_levels=(1, 64),
    slow_repetitions=5,
    free_bytes_needed=40 << 30,
)
SHORT: Final = msgspec.structs.replace(
    FULL,
    name="short",
    timing=Timing(warm_up_ms=300, duration_ms=1200),
    first_load_ms=5000,
    producer_reports=1,
    free_bytes_needed=16 << 30,
)
"""The cells of the full run with shorter loads and without the part `memory`, for `make bench`, which has an hour for
everything. A setup gets 23 s of load on each system: at 100,000 messages a second master and slave store 6 GiB, and
Apache's, which are slower, at most as much."""
QUICK: Final = HaScale(
    name="quick",
    setups=(PLAIN, SYNC_PLAIN, SYNC_BUFFERED),
    levels=(1, 64),
    repetitions=1,
    timing=Timing(warm_up_ms=100, duration_ms=300),
    first_load_ms=300,
    segment_bytes=16 * MEBIBYTE,
    buffers_count=3,
    producer_setups=(SYNC_BUFFERED,),
    producer_levels=(1,),
    producer_reports=1,
    memory_setups=(SYNC_BUFFERED,),
    memory_levels=(64,),
    memory_repetitions=1,
    slow_levels=(BOUND_LEVEL, SATURATION_LEVEL),
    both_levels=(1,),
    slow_repetitions=1,
    free_bytes_needed=2 << 30,
)
