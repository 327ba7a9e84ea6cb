"""Checks across chunks: gaps in the offsets of a queue, and units that point to no record.

    records   [ chunk 1: 0..99 ][ chunk 2: 100..180 ][ chunk 3: 183..250 ]        181 and 182 have no record
    units     0 ...... 99 100 ........ 180 181 182 183 ........ 250 251 252        251 and 252 point to no record

An offset without a record is no second fault if the record is damaged on every copy: the unit identifies the record,
and the finding of the damage gets the topic, queue and offset that the damage has destroyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final, final

from gantry_pipelines.audit.copies import CopyState, LogCopy
from gantry_pipelines.audit.model import BY_HEAD, UNKNOWN, Check, Finding, FindingKind, QueueRun, Span
from gantry_store_files import UNIT, UNIT_BYTES, Unit, is_empty, is_filler

UNITS_AT_ONCE: Final = 1 << 15
"""The most units that are read at a time."""
GAP_OFFSETS_EXAMINED_MAX: Final = 10_000
"""Messages of one gap that are examined one by one; a longer gap is reported as a whole."""
_DAMAGE: Final = frozenset({FindingKind.MISSING, FindingKind.CORRUPT, FindingKind.SWAPPED})
"""The kinds of findings that may have destroyed a record's topic, queue and offset."""

Queue = tuple[str, int]
"""The topic and the number of a queue."""


@final
class Conclusion:
    """The final checks of one broker, after all of its chunks. Used once."""

    def __init__(
        self, broker: str, copies: Mapping[int, LogCopy], states: Mapping[int, CopyState], begin: int,
        findings: Iterable[Finding], runs: Iterable[QueueRun],
    ) -> None:  # fmt: skip
        self._broker: Final = broker
        self._copies: Final = copies
        self._states: Final = states
        self._begin: Final = begin
        self._findings: Final = list(dict.fromkeys(findings))
        self._runs: Final[dict[Queue, list[QueueRun]]] = {}
        for run in sorted(runs, key=lambda one: one.physical):
            self._runs.setdefault((run.topic, run.queue), []).append(run)
        self._damages: Final = [
            one for one in self._findings
            if one.check is Check.COPIES and one.kind in _DAMAGE and one.physical != UNKNOWN
        ]  # fmt: skip
        self._attributed: Final[dict[Finding, list[Finding]]] = {}
        self.notes: Final[list[str]] = []

    def findings(self) -> list[Finding]:
        """Return all findings: those of the chunks, attributed by units, and those across chunks."""
        later_findings: list[Finding] = []
        for key, runs in sorted(self._runs.items()):
            later_findings += self._find_gaps(key, runs)
        for number, copy in self._copies.items():
            queue_keys = sorted({*self._runs, *copy.queues()})
            for key in queue_keys:
                later_findings += self._find_stray_units(number, copy, key)
        self._findings[:] = [one for one in self._findings if not self._belongs_to_deleted_topic(one)]
        attributed_findings = [
            attributed_finding for one in self._findings for attributed_finding in self._attributed_findings(one)
        ]
        return sorted(dict.fromkeys([*attributed_findings, *later_findings]), key=_sort_key)

    def _belongs_to_deleted_topic(self, one: Finding) -> bool:
        """Return whether a missing unit is expected, because the topic was deleted, and possibly created again."""
        if one.kind is not FindingKind.UNIT_MISSING:
            return False
        runs = self._runs.get((one.topic, one.queue), [])
        if any(run.physical > one.physical and run.begin < one.offset + one.count for run in runs if run.begin == 0):
            return True
        if self._copies[one.replica].knows_topic(one.topic) is not False:
            return False
        note = f"{self._broker}:{one.replica}: topic {one.topic} no longer exists; its records have no units"
        if note not in self.notes:
            self.notes.append(note)
        return True

    # -- offsets -------------------------------------------------------------------------------------------------------

    def _find_gaps(self, key: Queue, runs: list[QueueRun]) -> Iterator[Finding]:
        for earlier, later in pairwise(runs):
            if later.begin < earlier.end and later.begin > 0:
                count = earlier.end - later.begin
                yield Finding(self._broker, next(iter(self._copies)), Check.INDEX, FindingKind.TWICE, *key, later.begin,
                              later.physical, 0, count, f"the queue had reached offset {earlier.end}")  # fmt: skip
            elif later.begin > earlier.end:
                yield from self._explain_gap(key, earlier.end, later.begin)

    def _explain_gap(self, key: Queue, begin: int, end: int) -> Iterator[Finding]:
        """Explain offsets without a record by damage or by an earlier recovery; yield a finding for the others."""
        explained_offsets: set[int] = set()
        is_filled = True
        for number, copy in self._copies.items():
            units = _read_units(copy, key, begin, min(end, begin + GAP_OFFSETS_EXAMINED_MAX))
            is_filled = is_filled and all(is_filler(unit) for _, unit in units)
            for offset, unit in units:
                if not is_empty(unit) and self._attribute_damage(number, key, offset, unit):
                    explained_offsets.add(offset)
        damaged_offsets = {
            one.offset for one in self._findings if (one.topic, one.queue) == key and one.kind in _DAMAGE
        }
        lost = [
            offset
            for offset in range(begin, min(end, begin + GAP_OFFSETS_EXAMINED_MAX))
            if offset not in explained_offsets | damaged_offsets
        ]
        if lost and is_filled:
            self.notes.append(
                f"{self._broker}: an earlier recovery replaced the lost {key[0]}/{key[1]} [{begin}, {end}) by fillers"
            )
        elif lost:
            count = len(lost) if end - begin <= GAP_OFFSETS_EXAMINED_MAX else end - begin
            yield Finding(self._broker, next(iter(self._copies)), Check.INDEX, FindingKind.GAP, *key, lost[0], UNKNOWN,
                          0, count, "no record of the log has these offsets")  # fmt: skip

    def _attribute_damage(self, number: int, key: Queue, offset: int, unit: Unit) -> bool:
        """Return whether a unit points into damage; the finding of the damage is then attributed to its message."""
        is_known = False
        for one in self._damages:
            if not Span(one.physical, one.physical + max(one.size, 1)).overlaps(unit[0], unit[0] + unit[1]):
                continue
            is_known = True
            if one.replica == number and (not one.topic or one.detail.endswith(BY_HEAD)):
                attributed_finding = replace(one, topic=key[0], queue=key[1], offset=offset, physical=unit[0],
                                             size=unit[1], detail=one.detail.removesuffix(BY_HEAD))  # fmt: skip
                self._attributed.setdefault(one, []).append(attributed_finding)
        return is_known

    def _attributed_findings(self, one: Finding) -> list[Finding]:
        """Return the findings of one damage by message; a part that no unit points to keeps the original finding."""
        findings = list(dict.fromkeys(self._attributed.get(one, ())))
        if sum(finding.size for finding in findings) < one.size:
            findings.append(one)
        return findings

    # -- stray units ---------------------------------------------------------------------------------------------------

    def _find_stray_units(self, number: int, copy: LogCopy, key: Queue) -> Iterator[Finding]:
        """Yield findings for units whose offsets no record of a chunk has."""
        runs = self._runs.get(key, [])
        first, end = copy.queue_end(*key)
        begin = runs[0].begin if runs else end
        # If a topic was deleted and created again, only its newest incarnation has units.
        for earlier, later in pairwise(runs):
            begin = 0 if later.begin == 0 < earlier.end else begin
        last = runs[-1].end if runs else begin
        holes = [(a.end, b.begin) for a, b in pairwise(runs) if a.end < b.begin and a.end >= begin]
        for low, high in ((first, min(begin, end)), *holes, (max(last, first), end)):
            yield from self._stray_units_between(number, copy, key, low, min(high, end))

    def _stray_units_between(self, number: int, copy: LogCopy, key: Queue, begin: int, end: int) -> Iterator[Finding]:
        state = self._states[number]
        low, high = max(self._begin, state.span.begin), state.span.end
        deleted_at = state.deleted.get(key[0], 0)
        is_leftover = deleted_at > 0 and self._is_leftover_queue(copy, key, deleted_at)
        for start in range(begin, end, UNITS_AT_ONCE):
            for offset, unit in _read_units(copy, key, start, min(start + UNITS_AT_ONCE, end)):
                if is_empty(unit) or unit[0] < low or (unit[0] >= high and state.is_live):
                    continue
                if (is_leftover and unit[0] < deleted_at) or self._attribute_damage(number, key, offset, unit):
                    continue
                text = f"points to {unit[0]} ({unit[1]} bytes), where no record of this queue has this offset"
                yield Finding(self._broker, number, Check.INDEX, FindingKind.UNIT_STRAY, *key, offset, unit[0], unit[1],
                              1, text)  # fmt: skip

    @staticmethod
    def _is_leftover_queue(copy: LogCopy, key: Queue, deleted_at: int) -> bool:
        """Return whether a queue's files are leftovers of a deleted topic, which a crash may restore until a start.

        A queue of the newest incarnation has no unit that points to a record before it: such a unit is stray.
        """
        first, end = copy.queue_end(*key)
        found = (
            unit for _, unit in _read_units(copy, key, first, min(end, first + UNITS_AT_ONCE)) if not is_empty(unit)
        )
        return next(found, (deleted_at, 0, 0))[0] < deleted_at


def _read_units(copy: LogCopy, key: Queue, begin: int, end: int) -> list[tuple[int, Unit]]:
    data = copy.units(*key, begin, end - begin) if end > begin else b""
    return [(begin + at, UNIT.unpack_from(data, at * UNIT_BYTES)) for at in range(len(data) // UNIT_BYTES)]


def _sort_key(one: Finding) -> tuple[int, int, str, int, int]:
    return one.physical if one.physical >= 0 else 1 << 62, one.replica, one.topic, one.queue, one.offset
