"""Audit one chunk: one range of one broker's log, on all copies that have it.

    checksums of all copies --- the same ---> one copy is read, once ------------.
            |                                                                    +--> records --> units of each copy
            `-- differ --> bisect --> every copy is read, where it differs --> judge

A *view* is one copy's bytes with the records that were found in them (`comparing.View`). The *coverage* of a chunk is
how much of it was checked.

Without the check of copies there are no checksums: one copy is read, and damage is reported for this copy only.

A record belongs to the chunk in which it begins. If a chunk begins in the middle of a record, its walk (`walking`)
begins at the next one; damage at the end is followed beyond the chunk's end. So every byte is checked by at least one
chunk, and findings of two chunks about the same bytes are equal and counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, final

from gantry_pipelines.audit.comparing import View, find_differing_spans, judge, records_within
from gantry_pipelines.audit.copies import Algorithm, Bytes, CopyState, LogCopy, merge_spans
from gantry_pipelines.audit.indexing import check_units, group_by_queue, queue_runs
from gantry_pipelines.audit.model import BY_HEAD, Check, Chunk, Coverage, Finding, FindingKind, Row, Span
from gantry_pipelines.audit.walking import (
    Grade,
    Record,
    Walk,
    find_displaced_records,
    next_record,
    walk,
)
from gantry_wire.message import RECORD_BYTES_MAX, StoredMessage, check_record, decode_record

TAIL_BYTES: Final = 128 << 10
"""Bytes read after a chunk at first, for the end of its last record."""
LOOKBACK_BYTES: Final = 5 << 20
"""Bytes read before a chunk for the beginning of a record that extends into it, if its copies differ or no record
begins in it; a body has at most 4 MiB by default."""
ONLY_COPY_READ: Final = "the only copy that was read"
"""The detail of damage where no other copy was read."""


@final
class ChunkAudit:
    """Audits one chunk. Used once, by one thread."""

    def __init__(
        self, chunk: Chunk, copies: Mapping[int, LogCopy], states: Mapping[int, CopyState],
        checks: frozenset[Check], algorithm: Algorithm,
    ) -> None:  # fmt: skip
        self._chunk: Final = chunk
        self._copies: Final = {number: copies[number] for number in chunk.copies}
        self._states: Final = {number: states[number] for number in chunk.copies}
        self._checks: Final = checks
        self._algorithm: Final = algorithm
        self._has_compared_copies: Final = Check.COPIES in checks and len(self._copies) > 1
        self._decoded = 0

    def run(self) -> Iterator[Row]:
        """Yield all findings, then the chunk's queue runs (consecutive offsets of a queue), then its coverage."""
        spans = self._find_differing_spans(self._chunk.span) if Check.COPIES in self._checks else {}
        records: list[Record] = []
        units = 0
        if spans or Check.INDEX in self._checks or len(self._copies) == 1:
            spans, views = self._compare_and_read(spans)
            yield from self._report_damage(views, spans)
            records = self._best_records(views)
        if Check.INDEX in self._checks:
            queues = group_by_queue(records)
            for number, copy in self._copies.items():
                units += sum(map(len, queues.values()))
                yield from check_units(self._chunk.broker, number, copy, self._states[number], queues)
            yield from queue_runs(self._chunk.broker, queues)
        compared = self._chunk.span.length * len(self._copies) if self._has_compared_copies else 0
        yield Coverage(self._chunk.broker, self._chunk.span, len(records), units, compared, self._decoded)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _compare_and_read(self, spans: dict[int, list[Span]]) -> tuple[dict[int, list[Span]], dict[int, View]]:
        """Return where copies differ, and the view of each copy.

        Damage may extend beyond the chunk, where the copies have not been compared: they are compared there, too,
        before damage is reported for all of them.
        """
        compared = self._chunk.span.end
        comparable = min(state.span.end for state in self._states.values())
        while True:
            views = self._views(spans)
            damage_end = max((one.end for view in views.values() for one in view.walk.damages), default=0)
            damage_end = min(damage_end, comparable)
            if not self._has_compared_copies or damage_end <= compared:
                return spans, views
            more_spans = self._find_differing_spans(Span(compared, damage_end))
            compared = damage_end
            spans = {number: spans.get(number, []) + more_spans.get(number, []) for number in {*spans, *more_spans}}

    def _find_differing_spans(self, span: Span) -> dict[int, list[Span]]:
        """Return the differing spans of each copy that differs from the first one."""
        first, *others = self._copies
        found: dict[int, list[Span]] = {}
        for number in others:
            spans = find_differing_spans(self._checksum_reader(first), self._checksum_reader(number), span)
            if spans:
                found[number] = spans
        return found

    def _checksum_reader(self, number: int) -> partial[str | None]:
        return partial(self._copies[number].checksum, algorithm=self._algorithm)

    def _views(self, spans: Mapping[int, list[Span]]) -> dict[int, View]:
        """Return the view of each copy. Equal copies share one view, which is read once."""
        chunk = self._chunk
        begin = max(chunk.span.begin - LOOKBACK_BYTES, chunk.log_begin) if spans else chunk.span.begin
        reader = self._reader(spans)
        views = {number: self._view(number, begin) for number in (reader, *spans)}
        # Each copy must be read as far as the last whole record of any copy.
        need = max((one.end for view in views.values() for one in view.walk.records[-1:]), default=0)
        for number, view in views.items():
            if view.data.end < min(need, view.end):
                views[number] = self._view(number, begin, need)
        return {number: views.get(number, views[reader]) for number in self._copies}

    def _reader(self, spans: Mapping[int, list[Span]]) -> int:
        """Return the copy that is read for all copies without differing spans."""
        agreeing = [number for number in self._copies if number not in spans]
        return max(agreeing, key=lambda number: self._states[number].span.end)

    def _view(self, number: int, begin: int, need: int = 0) -> View:
        """Read a copy's bytes, beyond the chunk up to the end of its last record or damage."""
        copy, state, stop = self._copies[number], self._states[number], self._chunk.span.end
        limit = state.span.end
        begin = max(begin, state.span.begin)
        end = min(max(stop + TAIL_BYTES, need), limit)
        while True:
            data = copy.read(begin, end)
            found = self._walk(data, copy, state, is_all=end >= limit)
            needed_end = found.needed_end or (
                end + (end - begin) if found.damages and found.damages[-1].end == end else 0
            )
            if end >= limit or not end < needed_end <= stop + RECORD_BYTES_MAX:
                break
            end = min(needed_end, limit)
        self._decoded += len(data.data)
        return View(data, found, state.sealed_spans, limit)

    def _walk(self, data: Bytes, copy: LogCopy, state: CopyState, *, is_all: bool) -> Walk:
        begin, stop = data.begin, self._chunk.span.end
        start = begin if begin == state.span.begin else next_record(data, begin, state.sealed_spans)
        if start >= stop:
            return self._walk_without_start(data, copy, state)
        found = walk(data, start, stop, state.sealed_spans, is_all=is_all)
        if found.needed_end and is_all and not state.is_live:
            # A store that was stopped cleanly ends with a whole record.
            found.damages.append(Span(found.end, data.end))
        if not found.needed_end and found.end < data.end:
            # A damaged record that begins here is skipped by the next chunk, so it belongs to this one.
            found.append_walk(walk(data, found.end, found.end + 1, state.sealed_spans, is_all=is_all))
        return found

    def _walk_without_start(self, data: Bytes, copy: LogCopy, state: CopyState) -> Walk:
        """Walk a chunk in which no record begins: either one record covers it, or all of it is damaged."""
        span = self._chunk.span
        before = copy.read(max(span.begin - LOOKBACK_BYTES, state.span.begin), data.end)
        found = walk(before, next_record(before, before.begin, state.sealed_spans), span.begin, state.sealed_spans)
        ends = [one.end for one in found.records[-1:]] + [one.end for one in found.blanks[-1:]]
        covered = max(ends, default=span.begin)
        return Walk(damages=[Span(span.begin, span.end)] if covered <= span.begin else [], end=span.end)

    # -- findings ------------------------------------------------------------------------------------------------------

    def _report_damage(self, views: dict[int, View], spans: Mapping[int, list[Span]]) -> Iterator[Finding]:
        if spans:
            union = [span for one in spans.values() for span in one]
            yield from judge(self._chunk.broker, views, list(merge_spans(union)))
        if Check.INDEX not in self._checks and len(self._copies) > 1:
            return
        # Copies that were not compared share the view of one copy, whose damage they may not have.
        for number in self._copies if self._has_compared_copies else (self._reader(spans),):
            for damage in views[number].walk.damages:
                if not self._is_judged(damage, number, views):
                    yield from self._report_common_damage(number, views[number], damage)

    def _is_judged(self, damage: Span, number: int, views: Mapping[int, View]) -> bool:
        """Return whether another copy is undamaged here; then `judge` has already reported this damage."""
        if damage.begin < self._chunk.span.begin and self._chunk.span.begin > self._chunk.log_begin:
            return True  # the previous chunk has reported it
        mine = views[number].data
        return any(
            view.data is not mine
            and (
                records_within(view.walk.records, [damage])
                or any(damage.overlaps(*blank) for blank in view.walk.blanks)
            )
            for view in views.values()
        )

    def _report_common_damage(self, number: int, view: View, damage: Span) -> Iterator[Finding]:
        """Report damage that every copy has, or the only one that was read.

        Only the record's own header or its unit can identify the message.
        """
        data = view.slice(damage.begin, min(damage.end, view.data.end))
        is_every_copy_known = self._has_compared_copies or len(self._copies) == 1
        others = find_displaced_records(view.data, damage)
        if not any(data):
            kind, detail = FindingKind.MISSING, "zeros on " + ("all copies" if is_every_copy_known else ONLY_COPY_READ)
        elif others:
            kind, detail = FindingKind.SWAPPED, f"{others[0][1]} bytes at {others[0][0]} belong to {others[0][2]}"
        else:
            kind = FindingKind.CORRUPT
            detail = "no whole record on " + ("any copy" if is_every_copy_known else ONLY_COPY_READ)
        claimed = self._claimed_message(view, damage.begin)
        size = claimed.size if claimed is not None else 0
        if claimed is not None:
            yield Finding(self._chunk.broker, number, Check.COPIES, kind, claimed.topic, claimed.queue_id,
                          claimed.queue_offset, damage.begin, size, 1, detail + BY_HEAD)  # fmt: skip
        if size < damage.length:
            yield Finding(self._chunk.broker, number, Check.COPIES, kind, physical=damage.begin + size,
                          size=damage.length - size, detail=detail)  # fmt: skip

    @staticmethod
    def _claimed_message(view: View, physical: int) -> StoredMessage | None:
        """Decode the header of a damaged record; None if its lengths do not match."""
        data = memoryview(view.data.data)
        position = physical - view.data.begin
        if not check_record(data, position, physical_offset=physical, verify_crc=False).is_good:
            return None
        return decode_record(data, position, verify_crc=False)

    def _best_records(self, views: Mapping[int, View]) -> list[Record]:
        """Return the records that begin in the chunk, each from a copy on which it has the highest grade."""
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
