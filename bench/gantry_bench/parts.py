"""The four parts of `make bench-store`: the runs of each, and the notes below its table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, final

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.group_commit import CONNECTIONS_MAX, SLOW_SYNC_MS, SyncRun, summarise_sync, sync_figures, sync_goals
from gantry_bench.loadgen import LoadGenerator, build
from gantry_bench.machine import OtherWork, assign_cores, read_available_bytes
from gantry_bench.measurement import Goal
from gantry_bench.media import PoolMedia, pool_media
from gantry_bench.recovery import RecoveryCell, recovery_figures, runs_text
from gantry_bench.recovery_run import fill_plan, run_recovery, uncached_note
from gantry_bench.resident import ResidentCell, resident_figures, run_resident
from gantry_bench.scale import BODY_BYTES, MEBIBYTE, Scale
from gantry_bench.sync_run import run_sync
from gantry_bench.table import OTHER_CORES_NOTICED
from gantry_bench.tail import LoopPlan, Medium, Round, summarise_tail, tail_figures, tail_goals
from gantry_bench.tail_run import run_round

PartName = Literal["tail", "sync", "recovery", "rss"]

ROOM_FOR_HEADERS_BYTES = 16 * MEBIBYTE
ANONYMOUS_NOTE = (
    "With anonymous memory the call does less: queue and index entries are written later, after the commit. So its "
    "excess can be negative."
)


class Outcome(msgspec.Struct, frozen=True):
    """The results of a part and its runs."""

    figures: Figures
    goals: list[Goal]
    raw: list[Round] | list[SyncRun] | list[RecoveryCell] | list[ResidentCell]
    other_cores: float
    errors: int = 0


@final
class StoreParts:
    """Runs parts, one at a time. ``report_progress`` receives a line about the next step."""

    def __init__(self, scale: Scale, folder: Path, report_progress: Callable[[str], None]) -> None:
        self._scale = scale
        self._folder = folder
        self._report_progress = report_progress
        self._cores = assign_cores(os.sched_getaffinity(0))
        self.by_name: dict[PartName, Callable[[], Outcome]] = {
            "tail": self.measure_tail,
            "sync": self.measure_sync,
            "recovery": self.measure_recovery,
            "rss": self.measure_resident,
        }

    def measure_tail(self) -> Outcome:
        """Measure every medium and the control in several rounds."""
        scale = self._scale
        with self._pool_media(scale.tail_segment_bytes) as media:
            plans = [self._loop_plan(medium, media) for medium in self._order(media)]
            rounds = []
            for number in range(1, scale.tail_rounds + 1):
                report_progress = self._add_prefix(f"append tail, round {number} of {scale.tail_rounds}")
                rounds.append(run_round(plans, folder=self._folder, report_progress=report_progress))
        others = max(one.other_cores for one in rounds)
        conditions = [
            f"{scale.tail_messages_per_second:,} messages of {BODY_BYTES} bytes a second, "
            f"{scale.tail_messages_per_call} in a call, flushed every {scale.tail_flush_interval_ms} ms; "
            f"log files of {scale.tail_segment_bytes // MEBIBYTE} MiB, {scale.buffers_count} buffers; "
            f"{scale.tail_rounds} rounds of {scale.tail_seconds:g} s for each line, interleaved; medians. "
            f"{other_work_note(others)}",
            *([ANONYMOUS_NOTE] if "anonymous" in media.paths else []),
            *missing_notes(media),
        ]
        cells = summarise_tail(rounds)
        return Outcome(tail_figures(cells, conditions), tail_goals(cells), rounds, others)

    def _order(self, media: PoolMedia) -> list[Medium]:
        wanted: tuple[Medium, ...] = ("none", "tmpfs", "control", "hugetlbfs", "anonymous")
        return [medium for medium in wanted if medium in ("none", "control") or medium in media.paths]

    def _loop_plan(self, medium: Medium, media: PoolMedia) -> LoopPlan:
        scale = self._scale
        return LoopPlan(
            medium=medium,
            store_path="",
            pool_path="" if medium in ("none", "control") else media.paths[medium],
            messages_per_second=scale.tail_messages_per_second,
            messages_per_call=scale.tail_messages_per_call,
            body_bytes=BODY_BYTES,
            warm_up_seconds=scale.tail_warm_up_seconds,
            seconds=scale.tail_seconds,
            flush_interval_ms=scale.tail_flush_interval_ms,
            segment_bytes=scale.tail_segment_bytes,
            buffers_count=scale.buffers_count,
        )

    def measure_sync(self) -> Outcome:
        """Measure ASYNC_FLUSH, SYNC_FLUSH, and SYNC_FLUSH on a slow disk, with each number of sends in flight."""
        scale = self._scale
        runs = run_sync(
            self._load(), scale.sync_levels, body_bytes=BODY_BYTES, repetitions=scale.sync_repetitions,
            timing=scale.sync_timing, cores=self._cores, folder=self._folder, report_progress=self._report_progress,
        )  # fmt: skip
        cells, others = summarise_sync(runs), max(run.run.other_cores for run in runs)
        seconds = scale.sync_timing.duration_ms / 1000
        conditions = [
            f"Messages of {BODY_BYTES} bytes over loopback on up to {CONNECTIONS_MAX} connections, each answer "
            f"followed by the next send; no buffer; {scale.sync_repetitions} runs of {seconds:g} s, in turn; medians. "
            f"In the last two columns every fdatasync takes {SLOW_SYNC_MS} ms longer. {other_work_note(others)}"
        ]
        errors = sum(cell.errors for cell in cells)
        return Outcome(sync_figures(cells, conditions), sync_goals(cells), runs, others, errors)

    def measure_recovery(self) -> Outcome:
        """Recover one log of each size."""
        cells: list[RecoveryCell] = []
        uncached: list[str] = []
        scale = self._scale
        with OtherWork() as others:
            for size in scale.recovery_log_bytes:
                plan = fill_plan(self._folder / "recovered", scale, size)
                if note := uncached_note(size, read_available_bytes()):
                    self._report_progress(note)
                    uncached.append(note)
                report_progress = self._add_prefix(f"recovery, {size:,} bytes")
                cells += run_recovery(plan, scale.recovery_ways, report_progress=report_progress)
        conditions = [
            f"Messages of {BODY_BYTES} bytes in four queues, log files of {scale.recovery_segment_bytes // MEBIBYTE} "
            f"MiB, {runs_text(scale.recovery_ways)}, after `kill -9`. A recovery point is written every 10 s. Reading "
            f"includes verifying every byte, rebuilding queues and index, and syncing everything. "
            f"{other_work_note(others.cores)}",
            *uncached,
        ]
        return Outcome(recovery_figures(cells, conditions), [], cells, others.cores)

    def measure_resident(self) -> Outcome:
        """Measure a broker on each medium."""
        scale = self._scale
        seconds = scale.resident_timing.duration_ms / 1000
        with OtherWork() as others, self._pool_media(scale.resident_segment_bytes) as media:
            places: dict[Medium, str] = {"none": "", **media.paths}
            cells = run_resident(
                self._load(), places, segment_bytes=scale.resident_segment_bytes,
                buffers_count=scale.buffers_count, body_bytes=BODY_BYTES, timing=scale.resident_timing,
                cores=self._cores, folder=self._folder, report_progress=self._report_progress,
            )  # fmt: skip
        conditions = [
            f"Log files of {scale.resident_segment_bytes // MEBIBYTE} MiB, {scale.buffers_count} buffers, one "
            f"connection, 64 messages of {BODY_BYTES} bytes in flight, {seconds:g} s. Own memory is the resident "
            f"memory without the store's mapped files and the buffers. {other_work_note(others.cores)}",
            *missing_notes(media),
        ]
        return Outcome(resident_figures(cells, conditions), [], cells, others.cores)

    def _load(self) -> LoadGenerator:
        return LoadGenerator(build(), core=self._cores.load)

    def _add_prefix(self, prefix: str) -> Callable[[str], None]:
        return lambda text: self._report_progress(f"{prefix}, {text}")

    @contextmanager
    def _pool_media(self, segment_bytes: int) -> Iterator[PoolMedia]:
        with pool_media(self._scale.buffers_count * segment_bytes + ROOM_FOR_HEADERS_BYTES) as media:
            yield media


def other_work_note(cores: float) -> str:
    """Return a sentence about other work on the machine."""
    if cores <= OTHER_CORES_NOTICED:
        return "Nothing else ran."
    return f"Other programs used up to {cores:.1f} cores meanwhile."


def missing_notes(media: PoolMedia) -> list[str]:
    """Return a sentence for each missing medium."""
    return [f"Without {medium}: {reason}." for medium, reason in media.missing.items()]
