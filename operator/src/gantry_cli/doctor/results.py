"""The results of checks: what was found, what it means, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, final

import msgspec


class Outcome(StrEnum):
    """The outcome of a check, or of one finding."""

    OK = "ok"
    """Everything that the check covers was observed, and has no fault."""
    FAULT = "fault"
    """Something does not work, or will not."""
    WARNING = "warning"
    """Something works now, and needs attention."""
    SKIPPED = "skipped"
    """It could not be checked. A check is never ok because an observation failed."""


SEVERITY: Final = (Outcome.FAULT, Outcome.WARNING, Outcome.SKIPPED, Outcome.OK)
"""The outcomes of findings in the order in which they decide that of their check."""


@final
class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found about one server, shard or consumer group."""

    outcome: Outcome
    subject: str
    """What it is about: an address, a broker, a shard, a consumer group."""
    found: str
    """The observed values."""
    meaning: str = ""
    """The consequence; empty if the outcome is ok."""
    remedy: str = ""
    """The command or the setting that removes the fault; empty if none is needed."""


@final
class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    id: str
    title: str
    outcome: Outcome
    findings: tuple[Finding, ...]


@final
class DoctorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`gantry doctor`: the results of all checks that were run."""

    at_ms: int
    """The time on the wall clock."""
    target: str
    """What was examined: name servers, or a group in a Kubernetes cluster."""
    version: str
    """The version of this command."""
    faults: int
    """The number of findings that are faults; with any, the exit code is 1."""
    warnings: int
    checks: tuple[CheckResult, ...]


def ok(subject: str, found: str) -> Finding:
    return Finding(outcome=Outcome.OK, subject=subject, found=found)


def fault(subject: str, found: str, meaning: str, remedy: str) -> Finding:
    return Finding(outcome=Outcome.FAULT, subject=subject, found=found, meaning=meaning, remedy=remedy)


def warning(subject: str, found: str, meaning: str, remedy: str) -> Finding:
    return Finding(outcome=Outcome.WARNING, subject=subject, found=found, meaning=meaning, remedy=remedy)


def skipped(subject: str, reason: str, remedy: str = "") -> Finding:
    return Finding(outcome=Outcome.SKIPPED, subject=subject, found=reason, remedy=remedy)


def result_of(check_id: str, title: str, findings: Iterable[Finding]) -> CheckResult:
    """Return the result of a check, whose outcome is the most severe one of its findings; skipped without any."""
    found = tuple(findings) or (skipped("-", "there is nothing to check"),)
    outcomes = {finding.outcome for finding in found}
    outcome = next(one for one in SEVERITY if one in outcomes)
    return CheckResult(id=check_id, title=title, outcome=outcome, findings=found)


def count(results: Iterable[CheckResult], outcome: Outcome) -> int:
    """Return the number of findings with this outcome."""
    return sum(finding.outcome is outcome for result in results for finding in result.findings)
