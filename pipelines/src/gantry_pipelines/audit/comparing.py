"""Which bytes differ between copies, by checksums; and what that means, record by record.

    [ ........................ chunk: checksums differ ........................ ]
    [ same ............... ][ differs .............. ]      halved, until the piece is small
                            [ same ..... ][ differs ]

`differing` asks for checksums only. `judge` then looks at the bytes: of a place at which one copy has a whole record,
what do the others have? The copy that proves more is right; where all prove the same, what most have, and at last the
first copy, is what the others differ from. Nobody is called wrong because it is a slave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from gantry_pipelines.audit.copies import Bytes, joined
from gantry_pipelines.audit.model import UNKNOWN, Check, Finding, Kind, Span
from gantry_pipelines.audit.walking import Grade, Record, Walk, displaced, record_at
from gantry_wire.message import BLANK_BYTES

PIECE_BYTES_MIN: Final = 64 << 10
"""Bisection ends here: a smaller range costs an answer, and saves no reading worth it."""

Sum = Callable[[int, int], str | None]
"""The checksum of a range of one copy; None where it cannot be read."""
Ours = tuple[Span, ...] | None


def differing(one: Sum, other: Sum, span: Span, is_known: bool = False) -> list[Span]:
    """The pieces of a span in which two copies differ. `is_known`: that it differs was seen already."""
    if not span.length:
        return []
    if not is_known:
        ours, theirs = one(*span), other(*span)
        if ours is not None and ours == theirs:
            return []
    if span.length <= PIECE_BYTES_MIN:
        return [span]
    middle = span.begin + span.length // 2 // PIECE_BYTES_MIN * PIECE_BYTES_MIN
    if middle == span.begin:
        middle = span.begin + PIECE_BYTES_MIN
    found = differing(one, other, Span(span.begin, middle))
    # One half differs. If it is not the first, it is the second, and need not be asked.
    found += differing(one, other, Span(middle, span.end), is_known=not found)
    return list(joined(found))


@final
@dataclass(frozen=True, slots=True)
class View:
    """One copy's bytes of a range, and what a walk has made of them. Copies that agree share them."""

    data: Bytes
    walk: Walk
    ours: Ours
    end: int
    """What lies behind this is not the copy's yet, and says nothing about it."""

    def slice(self, begin: int, end: int) -> memoryview:
        """Bytes of a range within the data."""
        return memoryview(self.data.data)[begin - self.data.begin : end - self.data.begin]


def judge(broker: str, views: Mapping[int, View], spans: list[Span]) -> Iterator[Finding]:
    """What is wrong in the spans in which copies differ. The first copy is the one that is believed in doubt."""
    covered: list[Span] = []
    for physical in _places(views, spans):
        found = {number: record_at(view.data, physical, view.ours) for number, view in views.items()}
        right, best = _right(views, physical, found)
        if best is None or any(span.overlaps(physical, best.end) for span in covered):
            continue
        covered = [*covered[-8:], Span(physical, best.end)]
        bytes_right = views[right].slice(physical, best.end)
        for number, view in views.items():
            if best.end > view.end or bytes_right == view.slice(physical, best.end):
                continue
            kind, detail = _kind(view, best, found[number])
            if kind is Kind.DIFFERS:
                detail = f"a whole record, and another one than on copy {right}"
            yield _finding(broker, number, kind, best, detail)
    yield from _fillers(broker, views, spans)


def _places(views: Mapping[int, View], spans: list[Span]) -> list[int]:
    """Where a copy has a whole record that lies in one of the spans, at least in part.

    Histories that fork disagree about places, too. So those of other copies count only where the first has no record.
    """
    first, *others = views.values()
    known = within(first.walk.records, spans)
    begins = [record.physical for record in known]
    places = set(begins)
    for walk in {id(view.walk): view.walk for view in others if view.walk is not first.walk}.values():
        for record in within(walk.records, spans):
            at = bisect_left(begins, record.end) - 1
            if at < 0 or known[at].end <= record.physical:
                places.add(record.physical)
    return sorted(places)


def within(records: list[Record], spans: list[Span]) -> list[Record]:
    """The records of which a byte lies in one of the spans; both are in order."""
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


def _right(views: Mapping[int, View], physical: int, found: Mapping[int, Record | None]) -> tuple[int, Record | None]:
    """The copy that is believed about a place, and its record."""
    grade = max((record.grade for record in found.values() if record is not None), default=Grade.BAD)
    whole = {number: record for number, record in found.items() if record is not None and record.grade is grade}
    if not whole:
        return UNKNOWN, None
    texts = {number: bytes(views[number].slice(physical, record.end)) for number, record in whole.items()}
    votes = Counter(texts.values())
    most = max(votes.values())
    number = next(number for number in views if number in texts and votes[texts[number]] == most)
    return number, whole[number]


def _kind(view: View, right: Record, found: Record | None) -> tuple[Kind, str]:
    """What a copy has in the place of a record."""
    data = view.slice(right.physical, right.end)
    if any(hole.overlaps(right.physical, right.end) for hole in view.data.holes):
        return Kind.MISSING, "the file ends before it, or is not there"
    if not any(data):
        return Kind.MISSING, "zeros in its place"
    if found is not None and found.grade >= right.grade:
        return Kind.DIFFERS, ""
    if found is None:
        # Behind the record, too: what lies here may begin in it and end elsewhere.
        others = displaced(view.data, Span(right.physical, min(right.end + right.size, view.data.end)))
        for place, size, claimed in others:
            if place < right.end:
                return Kind.SWAPPED, f"{size} bytes at {place} belong to {claimed}"
        if _is_covered(view.walk, right):
            return Kind.DIFFERS, ""
    trailing = len(data) - len(bytes(data).rstrip(b"\0"))
    if trailing > 256:
        return Kind.CORRUPT, f"zeros from {right.end - trailing} on"
    return Kind.CORRUPT, "no whole record"


def _is_covered(walk: Walk, right: Record) -> bool:
    """Whether a copy has whole records of its own where another has this one: another history, and no damage."""
    return not any(damage.overlaps(right.physical, right.end) for damage in walk.damages) and bool(walk.records)


def _fillers(broker: str, views: Mapping[int, View], spans: list[Span]) -> Iterator[Finding]:
    """The ends of files. No message is in them, and a disk that changes them changes others."""
    blanks = {blank for view in views.values() for blank in view.walk.blanks}
    for blank in sorted(blanks):
        if not any(span.overlaps(*blank) for span in spans):
            continue
        having = [number for number, view in views.items() if blank in view.walk.blanks]
        clean = [number for number in having if not any(views[number].slice(blank.begin + BLANK_BYTES, blank.end))]
        owner = (clean or having)[0]
        for number, view in views.items():
            end = min(blank.end, view.end, views[owner].end)
            if view.slice(blank.begin, end) != views[owner].slice(blank.begin, end) and not within(
                view.walk.records, [blank]
            ):
                yield Finding(broker, number, Check.COPIES, Kind.FILLER, physical=blank.begin, size=blank.length,
                              detail="the unused end of a file of the log")  # fmt: skip


def _finding(broker: str, number: int, kind: Kind, right: Record, detail: str) -> Finding:
    return Finding(
        broker, number, Check.COPIES, kind, right.topic, right.queue, right.offset if right.is_queued else UNKNOWN,
        right.physical, right.size, 1, detail,
    )  # fmt: skip
