"""Every measure of a soak, and how much it may grow. Pure.

The bounds are far below what one leak a minute adds (60 descriptors, 60 threads or 60 MiB an hour), and above what a
process needs until its caches are full. A table has the bound of a descriptor. Latencies and disk use may grow by a
share, since the machine and the place of the last file decide about them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, final

import msgspec

from gantry_soak.records import Run, Sample
from gantry_soak.trends import Bound, Point, Trend, find_trend, usable_points

MIB: Final = 1 << 20
WARM_UP_S: Final = 240.0
WARM_UP_SHARE: Final = 0.15
"""The warm-up of a process in a short run, as a share of the run."""

SETTLE_S: Final = 20.0
SETTLE_SHARE: Final = 0.02

PROCESS_BOUNDS: Final[dict[str, Bound]] = {
    "anonymous": Bound(per_hour=20.0, noise=6.0),
    "proportional": Bound(per_hour=60.0, noise=16.0),
    "descriptors": Bound(per_hour=12.0, noise=3.0),
    "threads": Bound(per_hour=6.0, noise=2.0),
    "mappings": Bound(per_hour=120.0, share_per_hour=0.3, noise=20.0, noise_share=0.1),
}
"""By the field of a sample; memory in MiB."""

PROCESS_TITLES: Final = {
    "anonymous": "own memory", "proportional": "memory with mapped files", "descriptors": "descriptors",
    "threads": "threads", "mappings": "mappings",
}  # fmt: skip
UNITS: Final = {"anonymous": "MiB", "proportional": "MiB"}
TABLE: Final = Bound(per_hour=15.0, share_per_hour=0.2, noise=5.0, noise_share=0.15)
BACKLOG: Final = Bound(per_hour=100.0, share_per_hour=0.5, noise=100.0)
"""For tables whose length follows the speed of the clients; a leak of one message in a hundred exceeds it."""

BACKLOGS: Final = frozenset(
    {"held sends", "pop inflight messages", "pop checkpoints", "pop unflushed offsets", "proxy messages in flight"}
)
BYTES_TABLE: Final = Bound(per_hour=65_536.0, share_per_hour=0.3, noise=16_384.0)
DISK: Final = Bound(per_hour=8.0, share_per_hour=0.3, noise=4.0, noise_share=0.3)
LOGS: Final = Bound(per_hour=40.0, noise=4.0)
"""Logs grow with the events of faults; a line for each message would be several hundred MiB an hour."""

SET_ASIDE: Final = Bound(per_hour=40.0, noise=4.0)
"""A store keeps a copy of what a fault damaged until an operator deletes it; one of each log file would be more."""

DISK_BY_KIND: Final = {"logs": LOGS, "damage set aside": SET_ASIDE}

LATENCY: Final = Bound(per_hour=5.0, share_per_hour=1.0, noise=5.0, noise_share=0.5)
P99: Final = Bound(per_hour=100.0, share_per_hour=2.0, noise=50.0, noise_share=1.0)
OTHER_CORES_MAX: Final = 0.5
"""Latencies of an interval in which other programs used more cores are left out: they say nothing about the group."""

RUN: Final = "run"
"""The life of measures that survive the restart of a process."""


@final
class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of one process, with all its values and its bound."""

    group: str
    """The kind of measure, which is a picture."""
    name: str
    """What has it: a process, a table, a kind of file, an operation."""
    unit: str
    bound: Bound
    points: list[Point]


@final
class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A measure and its trend."""

    measure: Measure
    trend: Trend


def measures_of(samples: Sequence[Sample]) -> list[Measure]:
    """Return all measures of the samples."""
    found: dict[tuple[str, str], Measure] = {}
    for sample in samples:
        for group, name, unit, bound, value, life in _values(sample):
            measure = found.get((group, name))
            if measure is None:
                measure = found[group, name] = Measure(group=group, name=name, unit=unit, bound=bound, points=[])
            measure.points.append(Point(sample.at_s, value, life))
    return list(found.values())


def _values(sample: Sample) -> Iterator[tuple[str, str, str, Bound, float, str]]:
    for process in sample.processes:
        for field, bound in PROCESS_BOUNDS.items():
            unit = UNITS.get(field, "")
            value = getattr(process, field) / (MIB if unit else 1)
            yield PROCESS_TITLES[field], process.name, unit, bound, value, process.life
    lives = {process.name: process.life for process in sample.processes}
    for name, length in sample.tables.items():
        process_name, _, table = name.partition("/")
        bound = BYTES_TABLE if name.endswith("bytes") else BACKLOG if table in BACKLOGS else TABLE
        is_stored = table in ("topics", "groups", "offset tables", "offsets", "queues")
        yield "tables", name, "", bound, length, RUN if is_stored else lives.get(process_name, RUN)
    for name, size in sample.disk.items():
        yield "disk", name, "MiB", DISK_BY_KIND.get(name.rpartition("/")[2], DISK), size / MIB, RUN
    for latency in sample.latencies if sample.other_cores <= OTHER_CORES_MAX else ():
        yield "p50", latency.name, "ms", LATENCY, latency.p50_ms, RUN
        yield "p99", latency.name, "ms", P99, latency.p99_ms, RUN


def judge(run: Run) -> list[Judged]:
    """Return the trend of every measure of a run."""
    length_s = run.samples[-1].at_s if run.samples else 0.0
    faults = [(fault.start_s, fault.end_s) for fault in run.faults]
    warm_up_s, settle_s = min(WARM_UP_S, WARM_UP_SHARE * length_s), min(SETTLE_S, SETTLE_SHARE * length_s)
    return [
        Judged(
            measure=measure,
            trend=find_trend(
                usable_points(measure.points, faults=faults, warm_up_s=warm_up_s, settle_s=settle_s), measure.bound
            ),
        )
        for measure in measures_of(run.samples)
    ]
