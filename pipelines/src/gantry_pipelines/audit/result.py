"""The result of an audit: a text for people, and a document for a resource's status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from gantry_pipelines.audit.model import UNKNOWN, Check, Finding, Span
from gantry_pipelines.outcome import EXIT_DONE, EXIT_FAILED
from gantry_pipelines.reporting import utc_text

SHOWN_MAX: Final = 30
"""How many findings of a broker or archive the report lists."""

FIRST_MAX: Final = 5
"""How many findings the document lists."""

NOTES_MAX: Final = 2
"""How many notes of a broker or archive the document lists."""

BROKERS_MAX: Final = 3
"""How many brokers the document describes."""

COPIES_MAX: Final = 8
"""How many copies the document names, those with the most findings."""

TEXT_MAX: Final = 120
"""Characters of a text in the document, which is part of the container's termination message of at most 4096 bytes."""


@final
@dataclass(frozen=True, slots=True)
class BrokerResult:
    """The result for one broker and all of its copies."""

    broker: str
    compared: Span
    """The span that was compared between copies; empty if they were not compared."""
    copies: tuple[int, ...]
    """The numbers of the replicas that were read."""
    records: int
    """The number of records that were found."""
    units: int
    """The number of queue units that were compared with records."""
    bytes_compared: int
    """The bytes that were compared, summed over copies."""
    bytes_decoded: int
    """The bytes that were read record by record."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What could not be checked, and why."""


@final
@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The result of comparing an archive with the log."""

    files: int
    rows: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result for all brokers, and for an archive if it was checked."""

    began_s: float
    """When the audit began, in seconds since 1970."""

    ended_s: float
    brokers: tuple[BrokerResult, ...]
    archive: ArchiveResult | None = None

    @property
    def findings(self) -> list[Finding]:
        """The findings of all brokers and of the archive."""
        found = [one for broker in self.brokers for one in broker.findings]
        return found + list(self.archive.findings if self.archive is not None else ())

    @property
    def exit_code(self) -> int:
        """0 without findings, else 1."""
        return EXIT_FAILED if self.findings else EXIT_DONE

    def text(self) -> str:
        """Return the report for people."""
        return "\n".join(self._lines()) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the document for a status: bounded in size, and without contents of messages."""
        findings = self.findings
        return {
            "verdict": "Findings" if findings else "Clean",
            "exitCode": self.exit_code,
            "began": utc_text(self.began_s),
            "ended": utc_text(self.ended_s),
            "findings": len(findings),
            "byKind": dict(sorted(Counter(one.kind.value for one in findings).items())),
            "byCopy": dict(Counter(f"{one.broker}:{one.replica}" for one in findings).most_common(COPIES_MAX)),
            "first": [finding_text(one)[:TEXT_MAX] for one in findings[:FIRST_MAX]],
            "brokers": [
                {
                    "broker": one.broker, "copies": list(one.copies), "comparedFrom": one.compared.begin,
                    "comparedTo": one.compared.end, "records": one.records, "units": one.units,
                    "bytesDecoded": one.bytes_decoded, "findings": len(one.findings),
                    "notes": [note[:TEXT_MAX] for note in one.notes[:NOTES_MAX]],
                }
                for one in self.brokers[:BROKERS_MAX]
            ],
            "archive": None if self.archive is None else {
                "files": self.archive.files, "rows": self.archive.rows, "findings": len(self.archive.findings),
                "notes": [note[:TEXT_MAX] for note in self.archive.notes[:NOTES_MAX]],
            },
        }  # fmt: skip

    def _lines(self) -> Iterator[str]:
        for one in self.brokers:
            copies = ", ".join(map(str, one.copies))
            span = one.compared
            compared = f"compared [{span.begin}, {span.end})" if span.length else "not compared"
            yield (
                f"{one.broker}: copies {copies}, {compared}, "
                f"{one.records} records and {one.units} units, {one.bytes_decoded} bytes read as records"
            )
            for note in one.notes:
                yield f"  note: {note}"
            counts = Counter((finding.replica, finding.kind.value) for finding in one.findings)
            for (replica, kind), count in sorted(counts.items()):
                yield f"  {one.broker}:{replica}: {count} {kind}"
            for finding in one.findings[:SHOWN_MAX]:
                yield f"    {finding_text(finding)}"
            if len(one.findings) > SHOWN_MAX:
                yield f"    and {len(one.findings) - SHOWN_MAX} more; see the table of findings"
        if self.archive is not None:
            yield f"archive: {self.archive.files} files, {self.archive.rows} rows compared with the log"
            yield from (f"  note: {note}" for note in self.archive.notes)
            yield from (f"    {finding_text(finding)}" for finding in self.archive.findings[:SHOWN_MAX])
        total = len(self.findings)
        seconds = self.ended_s - self.began_s
        verdict = "clean: no findings" if not total else f"{total} finding{'s' if total > 1 else ''}"
        yield f"{verdict} ({seconds:.1f} s)"


def finding_text(one: Finding) -> str:
    """Describe one finding in a line."""
    message = f"{one.topic}/{one.queue}" if one.topic else "an unknown queue"
    if one.check is Check.ARCHIVE:
        offsets = f" offsets {one.offset} to {one.offset + one.count - 1}" if one.offset != UNKNOWN else ""
        return f"{one.kind.value}: {message if one.topic else 'the archive'}{offsets}: {one.detail}"
    offset = f" offset {one.offset}" if one.offset != UNKNOWN else ""
    offset += f" and {one.count - 1} more" if one.count > 1 else ""
    at = f" at {one.physical}" if one.physical != UNKNOWN else ""
    return f"{one.broker}:{one.replica} {one.kind.value}: {message}{offset}{at} ({one.size} bytes): {one.detail}"
