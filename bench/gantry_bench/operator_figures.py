"""The evaluation of the operator's benchmark: quantiles, calls, goals and the table. Pure.

Three figures do not come from the operator itself: API calls are counted from the API server's audit log; memory and
CPU time are reported by the kernel. Only the operator can measure how long a round of a group takes; its histogram
gives quantiles as exact as its buckets are narrow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.measurement import Goal
from gantry_operator.metrics import BUCKETS

CALLS_MAX: Final = 2.0
"""The limit of calls per group and minute, at rest."""

MEBIBYTE: Final = 1 << 20
RESIDENT_MAX: Final = 200 * MEBIBYTE

Buckets = Mapping[float, float]
"""The number of rounds that took at most so many seconds."""


class OperatorScale(msgspec.Struct, frozen=True):
    """The size of a run."""

    groups: int
    settle_s: float
    """The pause between the last group that became Ready and the measured rest."""

    rest_s: float
    """The duration of the measured rest, in which no group changes."""
    ready_s_max: float
    """The time after which a group that is not Ready fails the run."""


FULL: Final = OperatorScale(groups=50, settle_s=30.0, rest_s=300.0, ready_s_max=300.0)
"""Within 300 s the operator lists all objects once again, so that this is among the calls."""

QUICK: Final = OperatorScale(groups=3, settle_s=1.0, rest_s=5.0, ready_s_max=120.0)


class Calls(msgspec.Struct, frozen=True):
    """The number of calls of one kind, from the API server's audit log."""

    verb: str
    resource: str
    count: int


class Phase(msgspec.Struct, frozen=True):
    """One phase of the measurement."""

    name: str
    seconds: float
    rounds: int
    """The rounds of all groups: observe, decide, execute."""

    p50_ms: float
    p95_ms: float
    calls: list[Calls]
    own_calls: int
    """The operator's own count of calls, without its watches and its leader's Lease."""

    call_ms: float
    """The mean duration of a call, by the operator's own clock."""

    core_share: float
    """The CPU use of the operator, as a share of one core."""
    resident_bytes: int
    """The resident memory at the end of the phase."""

    @property
    def calls_count(self) -> int:
        """The number of calls of all kinds."""
        return sum(one.count for one in self.calls)


class OperatorReport(msgspec.Struct, frozen=True):
    """The results of a run."""

    groups: int
    pods: int
    ready_p50_s: float
    """The median time until a group was Ready, from the creation of all groups."""

    ready_max_s: float
    creation: Phase
    rest: Phase
    peak_bytes: int
    renewals: int
    """The renewals of shards' Leases at rest by the stand-ins of sidecars."""

    unexpected_errors: int
    """The operator's unexpected errors since its start."""

    not_ready: int
    """The groups that were not Ready at the end."""

    other_cores: float


# -- metrics -----------------------------------------------------------------------------------------------------------


def quantile(before: Buckets, after: Buckets, share: float) -> float:
    """Return a quantile of what was added between two samples, in seconds, assuming evenly filled buckets."""
    bounds = sorted(after)
    counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    wanted, low, below = share * counts[-1], 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= wanted > 0 and count > below:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return 0.0


def calls_between(lines: Iterable[str], began: datetime, ended: datetime) -> list[Calls]:
    """Count the requests in an audit log that arrived in ``[began, ended)``, the most frequent first.

    A request that is logged at several stages counts once.
    """
    seen: set[str] = set()
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        event = json.loads(line)
        if event["auditID"] in seen or not began <= datetime.fromisoformat(event["requestReceivedTimestamp"]) < ended:
            continue
        seen.add(event["auditID"])
        counts[event["verb"], resource_of(event)] += 1
    return [Calls(verb, resource, count) for (verb, resource), count in counts.most_common()]


def resource_of(event: Mapping[str, dict[str, str] | str]) -> str:
    """Return the resource of a request."""
    reference = event.get("objectRef")
    if not isinstance(reference, dict):
        return "other"
    name, part = reference.get("resource", "other"), reference.get("subresource", "")
    is_leader = name == "leases" and reference.get("namespace") == "gantry-system"
    return "leader's lease" if is_leader else f"{name}/{part}" if part else name


# -- summary ------------------------------------------------------------------------------------------------


def calls_per_group(phase: Phase, groups: int) -> float:
    """Return the calls per group and minute."""
    return phase.calls_count / groups / (phase.seconds / 60)


def operator_goals(report: OperatorReport, scale: OperatorScale) -> Sequence[Goal]:
    """Return the goals with their measured values."""
    return [
        Goal(
            f"API calls of the operator at rest, {report.groups} groups", CALLS_MAX,
            calls_per_group(report.rest, report.groups), "per group and minute",
        ),
        Goal(
            f"resident memory of the operator, peak, {report.groups} groups", RESIDENT_MAX / MEBIBYTE,
            report.peak_bytes / MEBIBYTE, "MiB",
        ),
    ]  # fmt: skip


def operator_figures(report: OperatorReport, scale: OperatorScale) -> Figures:
    """Return a row for each phase."""
    return Figures(
        name="operator",
        headings=["phase", "seconds", "rounds", "reconcile p50 / p95 ms", "API calls", "ms each",
                  "per group and minute", "of a core", "resident MiB"],
        rows=[_row(phase, report.groups) for phase in (report.creation, report.rest)],
        notes=[
            f"{report.groups} groups with {report.pods} pods, all created at once: Ready after "
            f"{report.ready_p50_s:.1f} s (median), the last after {report.ready_max_s:.1f} s. Peak of memory: "
            f"{report.peak_bytes / MEBIBYTE:.0f} MiB.",
            f"Calls at rest: {', '.join(f'{one.verb} {one.resource} {one.count}' for one in report.rest.calls)}. "
            f"Beside them, and not counted, {report.renewals} renewals of shards' Leases by sidecars.",
            f"Other programs used {report.other_cores:.1f} cores meanwhile.",
        ],
    )  # fmt: skip


def _row(phase: Phase, groups: int) -> list[str]:
    return [
        phase.name,
        f"{phase.seconds:.0f}",
        f"{phase.rounds:,}",
        f"{_format_bounded(phase.p50_ms)} / {_format_bounded(phase.p95_ms)}",
        f"{phase.calls_count:,}",
        f"{phase.call_ms:.0f}",
        f"{calls_per_group(phase, groups):.2f}",
        f"{phase.core_share:.2f}",
        f"{phase.resident_bytes / MEBIBYTE:.0f}",
    ]


def _format_bounded(value_ms: float) -> str:
    """Format a value; the last bucket of the histogram has no upper bound."""
    last_ms = BUCKETS[-1] * 1000
    return f"over {last_ms:,.0f}" if value_ms >= last_ms else f"{value_ms:.0f}"
