"""Runs recoveries: fill, kill, and then three times recover, kill. Every store is removed afterwards.

A disk without enough room is refused before anything is written. A page cache without enough room is reported, because
a recovery from the cache would read the disk, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.recovery import (
    WAYS,
    FillPlan,
    FillReport,
    Peak,
    RecoverPlan,
    RecoverReport,
    RecoveryCell,
    Way,
    size_text,
)
from gantry_bench.scale import BODY_BYTES, MEBIBYTE, Scale

STORE_PROCESS: Final = Path(__file__).resolve().parent.parent / "store_process.py"
TIMEOUT_SECONDS: Final = 1800
SAMPLE_SECONDS: Final = 0.05
RECOVERY_POINT: Final = "recovery-point.json"
ROOM_FACTOR: Final = 1.15
"""The factor for queues and index in addition to the log; preallocated files are added to that."""
INDEX_BYTES: Final = 512 << 20
UNFLUSHED_BYTES_MAX: Final = 512 * MEBIBYTE

ReportType = TypeVar("ReportType", FillReport, RecoverReport)


def bytes_needed(plan: FillPlan) -> int:
    """Return the maximum disk space of a run."""
    return int(plan.log_bytes * ROOM_FACTOR) + 2 * plan.segment_bytes + INDEX_BYTES


def log_bytes_needed(scale: Scale) -> int:
    """Return the maximum disk space of the recoveries of a scale, of which each removes its store."""
    return max(bytes_needed(fill_plan(Path(), scale, size)) for size in scale.recovery_log_bytes)


def fill_plan(store: Path, scale: Scale, log_bytes: int) -> FillPlan:
    """Return the plan of a log of a scale."""
    return FillPlan(
        store_path=str(store),
        segment_bytes=scale.recovery_segment_bytes,
        log_bytes=log_bytes,
        body_bytes=BODY_BYTES,
        unflushed_bytes_max=UNFLUSHED_BYTES_MAX,
    )


def uncached_note(log_bytes: int, available_bytes: int) -> str:
    """Return a sentence if a log with its queues and index exceeds the free memory; empty if it fits."""
    if log_bytes * ROOM_FACTOR <= available_bytes:
        return ""
    return (
        f"The log of {size_text(log_bytes)} does not fit into the page cache, for which {size_text(available_bytes)} "
        "of memory were available: its recoveries read the disk, too."
    )


def run_recovery(
    plan: FillPlan, ways: Sequence[Way] = WAYS, *, report_progress: Callable[[str], None] = lambda text: None
) -> list[RecoveryCell]:
    """Recover one log in each way, in this order; a way may be repeated."""
    store = Path(plan.store_path)
    free = shutil.disk_usage(store.parent).free
    if free < bytes_needed(plan):
        raise BenchmarkFailed(f"{free >> 20} MiB are free on the disk and {bytes_needed(plan) >> 20} are needed")
    try:
        report_progress("filling")
        filled, _ = run_process("fill", plan, FillReport)
        cells = []
        for way in ways:
            report_progress(way)
            prepare_store(store, way)
            again = RecoverPlan(store_path=plan.store_path, segment_bytes=plan.segment_bytes)
            report, peak = run_process("recover", again, RecoverReport)
            check_report(way, filled, report)
            cells.append(RecoveryCell(log_bytes=plan.log_bytes, way=way, report=report, peak=peak))
        return cells
    finally:
        shutil.rmtree(store, ignore_errors=True)


def prepare_store(store: Path, way: Way) -> None:
    """Put the store into the state that is to be recovered."""
    if way == "as the kill left it":
        return
    (store / RECOVERY_POINT).unlink(missing_ok=True)
    if way == "all of it, from the disk":
        for path in sorted((store / "commitlog").iterdir()):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def check_report(way: Way, filled: FillReport, report: RecoverReport) -> None:
    """Raise BenchmarkFailed if the recovery found or read something else than expected."""
    if report.is_clean or report.end != filled.end:
        raise BenchmarkFailed(f"the recovery {way!r} found a log up to {report.end} of {filled.end}")
    if way != "as the kill left it" and (report.start != 0 or report.records != filled.messages):
        raise BenchmarkFailed(f"the recovery {way!r} read {report.records} messages of {filled.messages}")


def run_process(verb: str, plan: FillPlan | RecoverPlan, kind: type[ReportType]) -> tuple[ReportType, Peak]:
    """Run one process, which kills itself at the end; return its report and its peak memory."""
    command = [sys.executable, str(STORE_PROCESS), verb, msgspec.json.encode(plan).decode()]
    deadline = time.monotonic() + TIMEOUT_SECONDS
    anonymous = files = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise BenchmarkFailed(f"the store process ({verb}) did not end in {TIMEOUT_SECONDS} s")
            now = parse_peak(status.read_text())
            anonymous, files = max(anonymous, now.anonymous_bytes), max(files, now.file_bytes)
            time.sleep(SAMPLE_SECONDS)
        output, errors = process.communicate()
    if process.returncode != -signal.SIGKILL:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise BenchmarkFailed(f"the store process ({verb}) failed: {lines[-1] if lines else 'silently'}")
    return msgspec.json.decode(output, type=kind), Peak(anonymous_bytes=anonymous, file_bytes=files)


def parse_peak(status_text: str) -> Peak:
    """Parse RssAnon and RssFile in /proc/PID/status; a process that is just ending has neither."""
    sizes = {"RssAnon": 0, "RssFile": 0}
    for line in status_text.splitlines():
        name, _, value = line.partition(":")
        if name in sizes:
            sizes[name] = int(value.split()[0]) * 1024
    return Peak(anonymous_bytes=sizes["RssAnon"], file_bytes=sizes["RssFile"])
