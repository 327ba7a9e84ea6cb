"""What no chunk can see alone: whether the numbers of a queue have no gap, and whether a unit leads nowhere.

    records   [ chunk 1: 0..99 ][ chunk 2: 100..180 ][ chunk 3: 183..250 ]        181 and 182 have no record
    units     0 ...... 99 100 ........ 180 181 182 183 ........ 250 251 252        and what do 251 and 252 lead to?

A number that is missing because its record is damaged on every copy is no second fault: its unit says which record that
was, and the finding gets the name that the damage has taken from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final, final

from gantry_pipelines.audit.copies import CopyState, LogCopy
from gantry_pipelines.audit.model import BY_HEAD, UNKNOWN, Check, Finding, Kind, QueueRun, Span
from gantry_store_files import UNIT, UNIT_BYTES, Unit, is_empty, is_filler

UNITS_AT_ONCE: Final = 1 << 15
NAMED_MAX: Final = 10_000
"""How many of the messages in one gap are looked at one by one."""
_DAMAGE: Final = frozenset({Kind.MISSING, Kind.CORRUPT, Kind.SWAPPED})

Queue = tuple[str, int]


@final
class Conclusion:
    """Of one broker. Made when all of its chunks are done; used once."""

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
        self._names: Final[dict[Finding, list[Finding]]] = {}
        self.notes: Final[list[str]] = []

    def findings(self) -> list[Finding]:
        """All of them: those of the chunks, with the names that units give them, and those that only show here."""
        more: list[Finding] = []
        for key, runs in sorted(self._runs.items()):
            more += self._gaps(key, runs)
        for number, copy in self._copies.items():
            seen = sorted({*self._runs, *copy.queues()})
            for key in seen:
                more += self._strays(number, copy, key)
        self._findings[:] = [one for one in self._findings if not self._is_of_an_older_life(one)]
        all_of_them = [name for one in self._findings for name in self._renamed(one)]
        return sorted(dict.fromkeys([*all_of_them, *more]), key=_place)

    def _is_of_an_older_life(self, one: Finding) -> bool:
        """A record whose topic was deleted since has no unit, and is not missed; nor if the topic was made again."""
        if one.kind is not Kind.UNIT_MISSING:
            return False
        runs = self._runs.get((one.topic, one.queue), [])
        if any(run.physical > one.physical and run.begin < one.offset + one.count for run in runs if run.begin == 0):
            return True
        if self._copies[one.replica].knows_topic(one.topic) is not False:
            return False
        note = f"{self._broker}:{one.replica}: the topic {one.topic} does not exist any more; its records have no units"
        if note not in self.notes:
            self.notes.append(note)
        return True

    # -- numbers -------------------------------------------------------------------------------------------------------

    def _gaps(self, key: Queue, runs: list[QueueRun]) -> Iterator[Finding]:
        for earlier, later in pairwise(runs):
            if later.begin < earlier.end and later.begin > 0:
                count = earlier.end - later.begin
                yield Finding(self._broker, next(iter(self._copies)), Check.INDEX, Kind.TWICE, *key, later.begin,
                              later.physical, 0, count, f"its queue had reached number {earlier.end}")  # fmt: skip
            elif later.begin > earlier.end:
                yield from self._gap(key, earlier.end, later.begin)

    def _gap(self, key: Queue, begin: int, end: int) -> Iterator[Finding]:
        """Numbers without a record: damage took them, a start has given them up, or they are lost."""
        explained: set[int] = set()
        given_up = True
        for number, copy in self._copies.items():
            units = _units(copy, key, begin, min(end, begin + NAMED_MAX))
            given_up = given_up and all(is_filler(unit) for _, unit in units)
            for offset, unit in units:
                if not is_empty(unit) and self._named(number, key, offset, unit):
                    explained.add(offset)
        heads = {one.offset for one in self._findings if (one.topic, one.queue) == key and one.kind in _DAMAGE}
        lost = [offset for offset in range(begin, min(end, begin + NAMED_MAX)) if offset not in explained | heads]
        if lost and given_up:
            self.notes.append(f"{self._broker}: {key[0]}/{key[1]} [{begin}, {end}) was given up by an earlier start")
        elif lost:
            count = len(lost) if end - begin <= NAMED_MAX else end - begin
            yield Finding(self._broker, next(iter(self._copies)), Check.INDEX, Kind.GAP, *key, lost[0], UNKNOWN, 0,
                          count, "no record of the log has these numbers")  # fmt: skip

    def _named(self, number: int, key: Queue, offset: int, unit: Unit) -> bool:
        """Whether a unit leads into damage; the record that was there then gets its name back."""
        is_known = False
        for one in self._damages:
            if not Span(one.physical, one.physical + max(one.size, 1)).overlaps(unit[0], unit[0] + unit[1]):
                continue
            is_known = True
            if one.replica == number and (not one.topic or one.detail.endswith(BY_HEAD)):
                name = replace(one, topic=key[0], queue=key[1], offset=offset, physical=unit[0], size=unit[1],
                               detail=one.detail.removesuffix(BY_HEAD))  # fmt: skip
                self._names.setdefault(one, []).append(name)
        return is_known

    def _renamed(self, one: Finding) -> list[Finding]:
        """Damage, as the records that were there. What no unit tells of stays as it is."""
        names = list(dict.fromkeys(self._names.get(one, ())))
        if sum(name.size for name in names) < one.size:
            names.append(one)
        return names

    # -- units that lead nowhere ---------------------------------------------------------------------------------------

    def _strays(self, number: int, copy: LogCopy, key: Queue) -> Iterator[Finding]:
        """Units that no record of a chunk has claimed."""
        runs = self._runs.get(key, [])
        first, end = copy.queue_end(*key)
        begin = runs[0].begin if runs else end
        # Of a topic that was made again only its newest life has units.
        for earlier, later in pairwise(runs):
            begin = 0 if later.begin == 0 < earlier.end else begin
        last = runs[-1].end if runs else begin
        holes = [(a.end, b.begin) for a, b in pairwise(runs) if a.end < b.begin and a.end >= begin]
        for low, high in ((first, min(begin, end)), *holes, (max(last, first), end)):
            yield from self._stray(number, copy, key, low, min(high, end))

    def _stray(self, number: int, copy: LogCopy, key: Queue, begin: int, end: int) -> Iterator[Finding]:
        state = self._states[number]
        low, high = max(self._begin, state.span.begin), state.span.end
        born = state.deleted.get(key[0], 0)
        is_left_over = born > 0 and self._is_left_over(copy, key, born)
        for start in range(begin, end, UNITS_AT_ONCE):
            for offset, unit in _units(copy, key, start, min(start + UNITS_AT_ONCE, end)):
                if is_empty(unit) or unit[0] < low or (unit[0] >= high and state.is_live):
                    continue
                if (is_left_over and unit[0] < born) or self._named(number, key, offset, unit):
                    continue
                text = f"leads to {unit[0]} ({unit[1]} bytes), and no record of this queue with this number is there"
                yield Finding(self._broker, number, Check.INDEX, Kind.UNIT_STRAY, *key, offset, unit[0], unit[1], 1,
                              text)  # fmt: skip

    @staticmethod
    def _is_left_over(copy: LogCopy, key: Queue, born: int) -> bool:
        """Whether a queue's files are those of an earlier life: a crash may bring them back, until a start clears them.

        A queue of the newest life has no unit that leads to before it: such a one is a stray.
        """
        first, end = copy.queue_end(*key)
        found = (unit for _, unit in _units(copy, key, first, min(end, first + UNITS_AT_ONCE)) if not is_empty(unit))
        return next(found, (born, 0, 0))[0] < born


def _units(copy: LogCopy, key: Queue, begin: int, end: int) -> list[tuple[int, Unit]]:
    data = copy.units(*key, begin, end - begin) if end > begin else b""
    return [(begin + at, UNIT.unpack_from(data, at * UNIT_BYTES)) for at in range(len(data) // UNIT_BYTES)]


def _place(one: Finding) -> tuple[int, int, str, int, int]:
    return one.physical if one.physical >= 0 else 1 << 62, one.replica, one.topic, one.queue, one.offset
