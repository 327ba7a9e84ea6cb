"""Compare copies of a log: find the bytes that differ by checksums, then judge them record by record.

    [ ........................ chunk: checksums differ ........................ ]
    [ same ............... ][ differs .............. ]      halved, until the piece is small
                            [ same ..... ][ differs ]

`find_differing_spans` reads checksums only. `judge` compares bytes that were read before (`View`): at each offset where
a copy has a whole record, with what the other copies have. The record with the highest grade, by its checksums
(`walking`), is right; of records with
the same grade the most frequent one, then that of the first copy. A slave is never wrong only because it is a slave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from gantry_pipelines.audit.copies import Bytes, merge_spans
from gantry_pipelines.audit.model import UNKNOWN, Check, Finding, FindingKind, Span
from gantry_pipelines.audit.walking import Grade, Record, Walk, find_displaced_records, record_at
from gantry_wire.message import BLANK_BYTES

PIECE_BYTES_MIN: Final = 64 << 10
"""Smallest piece of the bisection: halving it would cost another request and save little reading."""

RangeChecksum = Callable[[int, int], str | None]
"""Returns the checksum of a range of one copy; None if it cannot be read."""
SealedSpans = tuple[Span, ...] | None
"""Where every record must have a seal; None if this is unknown."""


def find_differing_spans(one: RangeChecksum, other: RangeChecksum, span: Span, is_known: bool = False) -> list[Span]:
    """Return the pieces of a span in which two copies differ. `is_known`: the span is known to differ."""
    if not span.length:
        return []
    if not is_known:
        first, second = one(*span), other(*span)
        if first is not None and first == second:
            return []
    if span.length <= PIECE_BYTES_MIN:
        return [span]
    middle = span.begin + span.length // 2 // PIECE_BYTES_MIN * PIECE_BYTES_MIN
    if middle == span.begin:
        middle = span.begin + PIECE_BYTES_MIN
    found = find_differing_spans(one, other, Span(span.begin, middle))
    # At least one half differs. If the first does not, the second does, and needs no checksum.
    found += find_differing_spans(one, other, Span(middle, span.end), is_known=not found)
    return list(merge_spans(found))


@final
@dataclass(frozen=True, slots=True)
class View:
    """One copy's bytes of a range, and the records that were found in them (`walking`). Equal copies share one view."""

    data: Bytes
    walk: Walk
    sealed_spans: SealedSpans
    end: int
    """End of the copy's final data; bytes after it are not compared."""

    def slice(self, begin: int, end: int) -> memoryview:
        """Return the bytes of a range within the data."""
        return memoryview(self.data.data)[begin - self.data.begin : end - self.data.begin]


def judge(broker: str, views: Mapping[int, View], spans: list[Span]) -> Iterator[Finding]:
    """Yield the findings in the spans in which copies differ. In doubt the first copy is trusted."""
    covered: list[Span] = []
    for physical in _record_positions(views, spans):
        found = {number: record_at(view.data, physical, view.sealed_spans) for number, view in views.items()}
        trusted, best = _trusted_copy(views, physical, found)
        if best is None or any(span.overlaps(physical, best.end) for span in covered):
            continue
        covered = [*covered[-8:], Span(physical, best.end)]
        trusted_bytes = views[trusted].slice(physical, best.end)
        for number, view in views.items():
            if best.end > view.end or trusted_bytes == view.slice(physical, best.end):
                continue
            kind, detail = _classify(view, best, found[number])
            if kind is FindingKind.DIFFERS:
                detail = f"a whole record, but another one than on copy {trusted}"
            yield _finding(broker, number, kind, best, detail)
    yield from _report_fillers(broker, views, spans)


def _record_positions(views: Mapping[int, View], spans: list[Span]) -> list[int]:
    """Return the positions of whole records that overlap one of the spans.

    Forked logs have records at different positions. So a record of another copy counts only where the first copy has
    no record.
    """
    first, *others = views.values()
    known = records_within(first.walk.records, spans)
    begins = [record.physical for record in known]
    positions = set(begins)
    for walk in {id(view.walk): view.walk for view in others if view.walk is not first.walk}.values():
        for record in records_within(walk.records, spans):
            at = bisect_left(begins, record.end) - 1
            if at < 0 or known[at].end <= record.physical:
                positions.add(record.physical)
    return sorted(positions)


def records_within(records: list[Record], spans: list[Span]) -> list[Record]:
    """Return the records that overlap one of the spans; both are sorted."""
    found: list[Record] = []
    at = 0
    for record in records:
        while at < len(spans) and spans[at].end <= record.physical:
            at += 1
        if at == len(spans):
            break
        if spans[at].overlaps(record.physical, record.end):
            found.append(record)
    return found


def _trusted_copy(
    views: Mapping[int, View], physical: int, found: Mapping[int, Record | None]
) -> tuple[int, Record | None]:
    """Return the copy that is trusted for a position, and its record there."""
    grade = max((record.grade for record in found.values() if record is not None), default=Grade.BAD)
    whole = {number: record for number, record in found.items() if record is not None and record.grade is grade}
    if not whole:
        return UNKNOWN, None
    texts = {number: bytes(views[number].slice(physical, record.end)) for number, record in whole.items()}
    votes = Counter(texts.values())
    most = max(votes.values())
    number = next(number for number in views if number in texts and votes[texts[number]] == most)
    return number, whole[number]


def _classify(view: View, expected: Record, found: Record | None) -> tuple[FindingKind, str]:
    """Classify what a copy has instead of the expected record."""
    data = view.slice(expected.physical, expected.end)
    if any(hole.overlaps(expected.physical, expected.end) for hole in view.data.holes):
        return FindingKind.MISSING, "its file is too short or missing"
    if not any(data):
        return FindingKind.MISSING, "zeros in its place"
    if found is not None and found.grade >= expected.grade:
        return FindingKind.DIFFERS, ""
    if found is None:
        # The search extends beyond the record, because a displaced record may begin in it and end after it.
        others = find_displaced_records(
            view.data, Span(expected.physical, min(expected.end + expected.size, view.data.end))
        )
        for position, size, claimed in others:
            if position < expected.end:
                return FindingKind.SWAPPED, f"{size} bytes at {position} belong to {claimed}"
        if _is_covered(view.walk, expected):
            return FindingKind.DIFFERS, ""
    trailing = len(data) - len(bytes(data).rstrip(b"\0"))
    if trailing > 256:
        return FindingKind.CORRUPT, f"zeros from {expected.end - trailing} on"
    return FindingKind.CORRUPT, "no whole record"


def _is_covered(walk: Walk, expected: Record) -> bool:
    """Return whether a copy has other whole records here, that is a forked log and no damage."""
    return not any(damage.overlaps(expected.physical, expected.end) for damage in walk.damages) and bool(walk.records)


def _report_fillers(broker: str, views: Mapping[int, View], spans: list[Span]) -> Iterator[Finding]:
    """Yield findings for differing fillers, the unused ends of files.

    No message is damaged, but the disk may be faulty.
    """
    blanks = {blank for view in views.values() for blank in view.walk.blanks}
    for blank in sorted(blanks):
        if not any(span.overlaps(*blank) for span in spans):
            continue
        holders = [number for number, view in views.items() if blank in view.walk.blanks]
        clean = [number for number in holders if not any(views[number].slice(blank.begin + BLANK_BYTES, blank.end))]
        owner = (clean or holders)[0]
        for number, view in views.items():
            end = min(blank.end, view.end, views[owner].end)
            if view.slice(blank.begin, end) != views[owner].slice(blank.begin, end) and not records_within(
                view.walk.records, [blank]
            ):
                yield Finding(broker, number, Check.COPIES, FindingKind.FILLER, physical=blank.begin, size=blank.length,
                              detail="the unused end of a file of the log")  # fmt: skip


def _finding(broker: str, number: int, kind: FindingKind, expected: Record, detail: str) -> Finding:
    return Finding(
        broker, number, Check.COPIES, kind, expected.topic, expected.queue,
        expected.offset if expected.is_queued else UNKNOWN, expected.physical, expected.size, 1, detail,
    )  # fmt: skip
