"""How fast a start reads a log after a kill: the runs and their summary. Pure.

One store is filled and killed, then recovered three times, and killed again each time: first as it is, from its
recovery point if there was time to write one; then without a recovery point, so that the whole log is read and all
queues and the index are written again, with the log in the page cache, as after a kill; then the same with the log on
the disk only, as after a reboot. `make bench` repeats the second way instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from gantry_bench.figures import Figures

Way = Literal["as the kill left it", "all of it, cached", "all of it, from the disk"]

WAYS: Final[tuple[Way, ...]] = ("as the kill left it", "all of it, cached", "all of it, from the disk")
CACHED_RUNS: Final[tuple[Way, ...]] = ("all of it, cached",) * 3
"""The recovery that the goal of `make bench` is about, repeated for a median."""


class FillPlan(msgspec.Struct, frozen=True):
    """The parameters of the log to write."""

    store_path: str
    segment_bytes: int
    log_bytes: int
    body_bytes: int
    unflushed_bytes_max: int
    """The filler waits for the disk above this limit, because a page cache full of dirty pages is not typical."""


class FillReport(msgspec.Struct, frozen=True):
    """The log that was written."""

    end: int
    messages: int
    seconds: float


class RecoverPlan(msgspec.Struct, frozen=True):
    """The parameters of the store to open."""

    store_path: str
    segment_bytes: int


class RecoverReport(msgspec.Struct, frozen=True):
    """The report of the process that recovered."""

    is_clean: bool
    start: int
    end: int
    records: int
    seconds: float
    cpu_seconds: float


class Peak(msgspec.Struct, frozen=True):
    """The peak memory of a process, sampled: its own memory, and pages of files."""

    anonymous_bytes: int
    file_bytes: int


class RecoveryCell(msgspec.Struct, frozen=True):
    """The figures of one recovery."""

    log_bytes: int
    way: Way
    report: RecoverReport
    peak: Peak

    @property
    def read_bytes(self) -> int:
        return self.report.end - self.report.start

    @property
    def bytes_per_second(self) -> float:
        return self.read_bytes / self.report.seconds


def size_text(size: int) -> str:
    """Return a size in decimal units, like those of disks."""
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def runs_text(ways: Sequence[Way]) -> str:
    """Describe how often a log is recovered in each way."""
    count = max(ways.count(way) for way in ways)
    return "one run each" if count == 1 else f"{count} runs each"


def recovery_figures(cells: Sequence[RecoveryCell], conditions: list[str]) -> Figures:
    """Return a row for each recovery. Megabytes of memory are binary."""
    rows = [
        [
            size_text(cell.log_bytes), cell.way, size_text(cell.read_bytes), f"{cell.report.records:,}",
            f"{cell.report.seconds:.2f}", f"{cell.bytes_per_second / 1e9:.2f}",
            f"{cell.report.cpu_seconds:.2f}", f"{cell.peak.anonymous_bytes >> 20}", f"{cell.peak.file_bytes >> 20}",
        ]
        for cell in cells
    ]  # fmt: skip
    return Figures(
        name="recovery",
        headings=[
            "log", "what is read", "read", "messages", "seconds", "GB/s", "CPU seconds", "own memory, peak MiB",
            "mapped files, peak MiB",
        ],
        rows=rows,
        notes=conditions,
    )  # fmt: skip
