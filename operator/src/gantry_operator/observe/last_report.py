"""The last report of a master, kept in an annotation of the shard's Lease, so that it outlives the operator's process.

    gantry.dev/last-report: {"epoch":3000,"boot_id":"...","epoch_start":0,"wrote":73000,"peak":2000,"at":"2026-..."}

Where no acknowledgement waits for slaves, the data that a promotion may lose is estimated from it. So the annotation is
written only there, only when it changes, and at most every ``WRITE_MS``: two calls a minute for a shard under load,
none at rest. A report that is too old makes the estimate larger, never smaller. Its time is the wall clock of the
machine that wrote it; ``SKEW_MS`` is how far two such clocks may be apart.

Earlier versions named the annotation ``gantry.dev/last-word``. It is still read, where the new one is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, final

import msgspec

from gantry_operator.clock import Clock, parse_time
from gantry_spec.lease_annotations import lease_time
from gantry_spec.manifest.group import API_GROUP
from gantry_spec.observed import LastReport

LAST_REPORT: Final = f"{API_GROUP}/last-report"
FORMER_LAST_REPORT: Final = f"{API_GROUP}/last-word"
"""The name of the annotation in earlier versions: read, never written."""

WRITE_MS: Final = 30_000
"""The least time between two writes of the annotation."""

SKEW_MS: Final = 10_000
"""How far the clocks of two machines may be apart."""


@final
class LastReportAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the annotation."""

    epoch: int
    at: str
    """The time of the report on the wall clock of the operator's machine."""

    boot_id: str = ""
    epoch_start: int | None = None
    wrote: int | None = None
    peak: int | None = None
    """``LastReport.peak_bytes_per_s``; None if it is unknown."""


def format_last_report(report: LastReport, clock: Clock) -> str:
    """Return the text of the annotation for a report, with its time on the wall clock."""
    age = timedelta(milliseconds=clock.now_ms() - report.asked_ms)
    document = LastReportAnnotation(
        epoch=report.epoch,
        at=lease_time(clock.wall() - age),
        boot_id=report.boot_id,
        epoch_start=report.epoch_start,
        wrote=report.wrote,
        peak=report.peak_bytes_per_s,
    )
    return msgspec.json.encode(document).decode()


def parse_last_report(annotations: Mapping[str, str], clock: Clock) -> LastReport | None:
    """Return the report in a Lease's annotations, or None if it is missing or damaged.

    Its time is converted to this process's clock, and is never in the future.
    """
    text = annotations.get(LAST_REPORT) or annotations.get(FORMER_LAST_REPORT, "")
    try:
        document = msgspec.json.decode(text, type=LastReportAnnotation)
    except msgspec.DecodeError:
        return None
    at = parse_time(document.at)
    if at is None:
        return None
    age_ms = max(0, int((clock.wall() - at).total_seconds() * 1000))
    return LastReport(
        epoch=document.epoch,
        asked_ms=clock.now_ms() - age_ms - SKEW_MS,
        boot_id=document.boot_id,
        epoch_start=document.epoch_start,
        wrote=document.wrote,
        peak_bytes_per_s=document.peak,
    )


def is_annotation_outdated(report: LastReport, annotations: Mapping[str, str]) -> bool:
    """Return whether the annotation must be written, because it differs from the report in more than the time."""
    try:
        document = msgspec.json.decode(annotations.get(LAST_REPORT, ""), type=LastReportAnnotation)
    except msgspec.DecodeError:
        return True
    written = (document.epoch, document.boot_id, document.epoch_start, document.wrote, document.peak)
    return written != (report.epoch, report.boot_id, report.epoch_start, report.wrote, report.peak_bytes_per_s)
