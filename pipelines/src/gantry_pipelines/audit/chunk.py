"""One task of an audit: one range of one broker's log, on all copies that have it.

    checksums of all copies --- the same ---> one copy is read, once ------------.
            |                                                                    +--> records --> units of each copy
            `-- differ --> bisect --> every copy is read, where it differs --> judge

A record belongs to the chunk in which it begins. Where a chunk begins in the middle of one, its walk begins at the
next; where the walk runs into damage it follows it beyond the chunk's end. So every byte is looked at by one chunk at
least, and what two chunks see is the same and counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, final

from gantry_pipelines.audit.comparing import View, differing, judge, within
from gantry_pipelines.audit.copies import Algorithm, Bytes, CopyState, LogCopy, joined
from gantry_pipelines.audit.indexing import by_queue, check_units, queue_runs
from gantry_pipelines.audit.model import BY_HEAD, Check, Chunk, Finding, Kind, Looked, Row, Span
from gantry_pipelines.audit.walking import (
    Grade,
    Record,
    Walk,
    displaced,
    next_record,
    walk,
)
from gantry_wire.message import RECORD_BYTES_MAX, StoredMessage, check_record, decode_record

TAIL_BYTES: Final = 128 << 10
"""Read behind a chunk at first: the end of its last record."""
LOOKBACK_BYTES: Final = 5 << 20
"""Read before a chunk that differs: the beginning of a record that reaches into it; bodies have 4 MiB by default."""


@final
class ChunkAudit:
    """Looks at one chunk. Used once, by one thread."""

    def __init__(
        self, chunk: Chunk, copies: Mapping[int, LogCopy], states: Mapping[int, CopyState],
        checks: frozenset[Check], algorithm: Algorithm,
    ) -> None:  # fmt: skip
        self._chunk: Final = chunk
        self._copies: Final = {number: copies[number] for number in chunk.copies}
        self._states: Final = {number: states[number] for number in chunk.copies}
        self._checks: Final = checks
        self._algorithm: Final = algorithm
        self._decoded = 0

    def run(self) -> Iterator[Row]:
        """Everything that is wrong, then what queues there are, then how far was looked."""
        spans = self._differing(self._chunk.span) if Check.COPIES in self._checks else {}
        records: list[Record] = []
        units = 0
        if spans or Check.INDEX in self._checks or len(self._copies) == 1:
            spans, views = self._seen(spans)
            yield from self._damage(views, spans)
            records = self._good(views)
        if Check.INDEX in self._checks:
            queues = by_queue(records)
            for number, copy in self._copies.items():
                units += sum(map(len, queues.values()))
                yield from check_units(self._chunk.broker, number, copy, self._states[number], queues)
            yield from queue_runs(self._chunk.broker, queues)
        compared = self._chunk.span.length * len(self._copies) if len(self._copies) > 1 else 0
        yield Looked(self._chunk.broker, self._chunk.span, len(records), units, compared, self._decoded)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _seen(self, spans: dict[int, list[Span]]) -> tuple[dict[int, list[Span]], dict[int, View]]:
        """Where copies differ, and what they have.

        Damage may reach beyond the chunk, where nobody has compared yet: then the copies are compared there, too,
        before it is said of all of them.
        """
        compared = self._chunk.span.end
        comparable = min(state.span.end for state in self._states.values())
        while True:
            views = self._views(spans)
            reached = max((one.end for view in views.values() for one in view.walk.damages), default=0)
            reached = min(reached, comparable)
            if Check.COPIES not in self._checks or len(self._copies) == 1 or reached <= compared:
                return spans, views
            more = self._differing(Span(compared, reached))
            compared = reached
            spans = {number: spans.get(number, []) + more.get(number, []) for number in {*spans, *more}}

    def _differing(self, span: Span) -> dict[int, list[Span]]:
        """For each copy that differs from the first, where."""
        first, *others = self._copies
        found: dict[int, list[Span]] = {}
        for number in others:
            spans = differing(self._sum(first), self._sum(number), span)
            if spans:
                found[number] = spans
        return found

    def _sum(self, number: int) -> partial[str | None]:
        return partial(self._copies[number].checksum, algorithm=self._algorithm)

    def _views(self, spans: Mapping[int, list[Span]]) -> dict[int, View]:
        """Each copy's bytes and records. Copies that agree share one reading."""
        chunk = self._chunk
        begin = max(chunk.span.begin - LOOKBACK_BYTES, chunk.log_begin) if spans else chunk.span.begin
        agreeing = [number for number in self._copies if number not in spans]
        reader = max(agreeing, key=lambda number: self._states[number].span.end)
        views = {number: self._view(number, begin) for number in (reader, *spans)}
        # What one copy has whole the others must have been asked for, too.
        need = max((one.end for view in views.values() for one in view.walk.records[-1:]), default=0)
        for number, view in views.items():
            if view.data.end < min(need, view.end):
                views[number] = self._view(number, begin, need)
        return {number: views.get(number, views[reader]) for number in self._copies}

    def _view(self, number: int, begin: int, need: int = 0) -> View:
        """A copy's bytes, as far beyond the chunk as its last record or a damage goes."""
        copy, state, stop = self._copies[number], self._states[number], self._chunk.span.end
        limit = state.span.end
        begin = max(begin, state.span.begin)
        end = min(max(stop + TAIL_BYTES, need), limit)
        while True:
            data = copy.read(begin, end)
            found = self._walk(data, copy, state, is_all=end >= limit)
            wanted = found.wanted or (end + (end - begin) if found.damages and found.damages[-1].end == end else 0)
            if end >= limit or not end < wanted <= stop + RECORD_BYTES_MAX:
                break
            end = min(wanted, limit)
        self._decoded += len(data.data)
        return View(data, found, state.ours, limit)

    def _walk(self, data: Bytes, copy: LogCopy, state: CopyState, *, is_all: bool) -> Walk:
        begin, stop = data.begin, self._chunk.span.end
        start = begin if begin == state.span.begin else next_record(data, begin, state.ours)
        if start >= stop:
            return self._hollow(data, copy, state)
        found = walk(data, start, stop, state.ours, is_all=is_all)
        if found.wanted and is_all and not state.is_live:
            # What was stopped cleanly ends with a whole record.
            found.damages.append(Span(found.end, data.end))
        if not found.wanted and found.end < data.end:
            # The next chunk begins behind what begins here if that is damaged.
            found.add_records_behind(walk(data, found.end, found.end + 1, state.ours, is_all=is_all))
        return found

    def _hollow(self, data: Bytes, copy: LogCopy, state: CopyState) -> Walk:
        """No record begins in the chunk: either one reaches over all of it, or all of it is damaged."""
        span = self._chunk.span
        before = copy.read(max(span.begin - LOOKBACK_BYTES, state.span.begin), data.end)
        found = walk(before, next_record(before, before.begin, state.ours), span.begin, state.ours)
        ends = [one.end for one in found.records[-1:]] + [one.end for one in found.blanks[-1:]]
        covered = max(ends, default=span.begin)
        return Walk(damages=[Span(span.begin, span.end)] if covered <= span.begin else [], end=span.end)

    # -- what that means -----------------------------------------------------------------------------------------------

    def _damage(self, views: dict[int, View], spans: Mapping[int, list[Span]]) -> Iterator[Finding]:
        if spans:
            union = [span for one in spans.values() for span in one]
            yield from judge(self._chunk.broker, views, list(joined(union)))
        if Check.INDEX not in self._checks and len(self._copies) > 1:
            return
        for number, view in views.items():
            for damage in view.walk.damages:
                if not self._is_known(damage, number, views):
                    yield from self._alone(number, view, damage)

    def _is_known(self, damage: Span, number: int, views: Mapping[int, View]) -> bool:
        """Whether another copy is whole here: then this was judged beside them."""
        if damage.begin < self._chunk.span.begin and self._chunk.span.begin > self._chunk.log_begin:
            return True  # the chunk before this one has seen it
        mine = views[number].data
        return any(
            view.data is not mine
            and (within(view.walk.records, [damage]) or any(damage.overlaps(*blank) for blank in view.walk.blanks))
            for view in views.values()
        )

    def _alone(self, number: int, view: View, damage: Span) -> Iterator[Finding]:
        """Damage on every copy that was asked: who it was only its own head and its queue's unit can say."""
        data = view.slice(damage.begin, min(damage.end, view.data.end))
        others = displaced(view.data, damage)
        if not any(data):
            kind, detail = Kind.MISSING, "zeros, and no copy has more"
        elif others:
            kind, detail = Kind.SWAPPED, f"{others[0][1]} bytes at {others[0][0]} belong to {others[0][2]}"
        else:
            kind, detail = Kind.CORRUPT, "no whole record on any copy"
        named = self._claimed(view, damage.begin)
        size = named.size if named is not None else 0
        if named is not None:
            yield Finding(self._chunk.broker, number, Check.COPIES, kind, named.topic, named.queue_id,
                          named.queue_offset, damage.begin, size, 1, detail + BY_HEAD)  # fmt: skip
        if size < damage.length:
            yield Finding(self._chunk.broker, number, Check.COPIES, kind, physical=damage.begin + size,
                          size=damage.length - size, detail=detail)  # fmt: skip

    @staticmethod
    def _claimed(view: View, physical: int) -> StoredMessage | None:
        """What a spoilt record says that it is, if its lengths still agree."""
        data = memoryview(view.data.data)
        position = physical - view.data.begin
        if not check_record(data, position, physical_offset=physical, verify_crc=False).is_good:
            return None
        return decode_record(data, position, verify_crc=False)

    def _good(self, views: Mapping[int, View]) -> list[Record]:
        """The records that begin in the chunk, each from a copy that proves most of it."""
        span = self._chunk.span
        best: dict[int, Record] = {}
        for view in {id(view.walk): view for view in views.values()}.values():
            for record in view.walk.records:
                if span.begin <= record.physical < span.end and record.grade > self._grade(best, record):
                    best[record.physical] = record
        return [best[physical] for physical in sorted(best)]

    @staticmethod
    def _grade(best: Mapping[int, Record], record: Record) -> Grade:
        known = best.get(record.physical)
        return Grade.BAD if known is None else known.grade
