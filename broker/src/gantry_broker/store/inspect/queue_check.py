"""One consume queue held against the log, both ways, while the log is read once from end to end.

    log      record: this topic, this queue, number 7        there must be unit 7, and it must lead here
    queue    unit 7: physical offset, size, tags             there must be a record, and it must be number 7

Records come in the order of the log, and a queue's numbers rise with it, so the two are merged like sorted lists: the
cursor is the unit that the next record must have. Units that the records jump over lead to no record of this queue;
what they lead to instead (a rotten record, a place before the log begins, nothing) decides what they are.

One thing looks like damage and is not: a topic that was deleted and made again begins at number 0 again. Its older
records have no units any more; they are recognized by units that lead to younger records of the same number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from gantry_broker.store.inspect.findings import Finding, Findings, Harm, Kind, Message
from gantry_store_files.queue_units import EXTENSION_CODE_MAX, NO_UNIT, QueueReader, Unit, is_filler
from gantry_wire.names import SCHEDULE_TOPIC

GAP_LOOK_MAX: Final = 4096
"""How many of the numbers in a gap are looked at one by one."""

IsRecordOf = Callable[[int, str, int, int], bool]
"""Whether a whole record of (topic, queue id, queue offset) begins at this physical offset."""


@dataclass(slots=True, kw_only=True)
class Ground:
    """What all queues share: the log as far as it was read."""

    findings: Findings
    is_record_of: IsRecordOf
    log_start: int
    """Where the log begins."""

    start: int
    """Where reading the log begins. Units that lead before it are none of ours."""

    is_settled: bool
    """Whether queue and log must agree right now."""

    is_in_use: bool
    """Whether a broker may be writing meanwhile."""

    trusted_end: int
    """Units of records before it are durable, whatever happened since."""

    end: int = 0
    """Where the log ends. Known when it was read."""

    rotten: list[tuple[int, int, Finding]] = field(default_factory=list)
    """Damaged ranges of the log, in order, and what was said of them."""

    heads: set[Message] = field(default_factory=set)
    """Messages that rotten records still say they were."""

    def reach(self, end: int) -> None:
        """The log was read up to its ``end``; 0 if more of it follows."""
        self.end = end

    def expire(self, start: int) -> None:
        """What lies before ``start`` has expired meanwhile."""
        self.start = max(self.start, start)

    def rot_at(self, physical: int) -> Finding | None:
        """The finding whose range holds ``physical``."""
        index = bisect_right(self.rotten, physical, key=lambda rot: rot[0]) - 1
        return self.rotten[index][2] if index >= 0 and physical < self.rotten[index][1] else None


@final
class QueueCheck:
    """One queue. ``put`` for every record of it, then ``finish``."""

    def __init__(self, topic: str, queue_id: int, reader: QueueReader | None, ground: Ground) -> None:
        self.records = 0
        self.units = 0
        """Units that lead to their records."""
        self.older = 0
        """Records of an earlier life of the topic."""
        self.orphans = 0
        """Records of a queue that is not there."""
        self._topic: Final = topic
        self._queue_id: Final = queue_id
        self._reader: Final = reader
        self._ground: Final = ground
        self._cursor = 0
        self._next_number = -1
        self._limit = 0
        self._run: tuple[Finding, int] | None = None
        if reader is not None:
            self._limit = reader.limit
            self._cursor = reader.first_from(ground.start, reader.end())

    @property
    def end(self) -> int | None:
        """Behind the last unit; None for a queue without files."""
        return None if self._reader is None else self._reader.end()

    # -- while the log is read -----------------------------------------------------------------------------------------

    def put(self, offset: int, physical: int, size: int, tags_code: int) -> None:
        """A record with number ``offset``."""
        self.records += 1
        reader = self._reader
        if reader is None:
            self.orphans += 1
            return
        unit = reader.unit(offset)
        if unit == (physical, size, tags_code) and offset == self._cursor:
            self.units += 1
            self._cursor = self._next_number = offset + 1
            return
        self._put_unusual(offset, (physical, size, tags_code), unit)

    def _put_unusual(self, offset: int, wanted: Unit, unit: Unit) -> None:
        physical = wanted[0]
        if unit == NO_UNIT and self._ground.is_in_use and self._reader is not None:
            unit = self._reader.unit_again(offset)
        leads_here = unit[:2] == wanted[:2]
        if not leads_here and unit[0] > physical and self._is_mine(unit[0], offset):
            self.older += 1
            return
        if offset < self._cursor:
            self._report(Kind.NUMBERS_MISSING, Harm.WRONG, offset, physical, "has a second message of the same number")
            return
        if self._next_number >= 0 and offset > self._next_number:
            self._report_gap(self._next_number, offset)
        for stray in range(self._cursor, min(offset, self._limit)):
            self._judge_stray(stray)
        self._cursor = self._next_number = offset + 1
        if leads_here:
            self.units += 1
            self._judge_tags(offset, wanted, unit)
        elif unit == NO_UNIT or is_filler(unit):
            self._report_missing(offset, physical)
        else:
            text = f"leads to {unit[0]} ({unit[1]} bytes) instead of {physical} ({wanted[1]} bytes)"
            self._report(Kind.UNIT_WRONG, Harm.DERIVED, offset, physical, text)

    def _judge_tags(self, offset: int, wanted: Unit, unit: Unit) -> None:
        # A delayed message's code is its delivery time, computed with delay levels that the tools do not know.
        is_other = unit[2] != wanted[2] and self._topic != SCHEDULE_TOPIC and unit[2] > EXTENSION_CODE_MAX
        if is_other:
            self._report(Kind.UNIT_WRONG, Harm.DERIVED, offset, wanted[0], "has the code of other tags")

    def _report_gap(self, start: int, end: int) -> None:
        """Numbers that no record has, unless a rotten record has them."""
        looked = range(start, min(end, start + GAP_LOOK_MAX))
        if all(self._is_rotten(offset) for offset in looked):
            return
        if all(is_filler(self._unit(offset)) for offset in looked):
            text = "known to be lost: the queue was built again after that"
            self._add(Kind.NUMBERS_MISSING, Harm.ODD, start, None, f"has no messages {start} to {end - 1}: {text}")
            return
        text = f"has no messages {start} to {end - 1} in the log"
        self._add(Kind.NUMBERS_MISSING, Harm.LOST, start, None, text, count=end - start, lost_count=end - start)

    def _is_rotten(self, offset: int) -> bool:
        message = Message(self._topic, self._queue_id, offset)
        return message in self._ground.heads or self._ground.rot_at(self._unit(offset)[0]) is not None

    def _report_missing(self, offset: int, physical: int) -> None:
        ground = self._ground
        has_vanished = self._reader is not None and self._reader.vanished
        if has_vanished or (not ground.is_settled and physical >= ground.trusted_end):
            text = "is behind the log; the next start catches up, a running broker does so at once"
            self._report(Kind.UNIT_MISSING, Harm.UNSETTLED, offset, physical, text)
        else:
            self._report(Kind.UNIT_MISSING, Harm.DERIVED, offset, physical, "has no unit for a message of the log")

    # -- when the log was read -----------------------------------------------------------------------------------------

    def finish(self, is_known: bool) -> None:
        """Everything behind the cursor leads to no record that was seen. ``is_known``: the topic should have queues."""
        if self._reader is None:
            self._report_absent(is_known)
            return
        while self._cursor < self._limit and self._unit(self._cursor) != NO_UNIT:
            self._judge_stray(self._cursor)
            self._cursor += 1

    def _report_absent(self, is_known: bool) -> None:
        if is_known:
            text = f"{self.orphans} messages are in the log, and the queue has no files"
            self._add(Kind.UNIT_MISSING, Harm.DERIVED, 0, None, f"does not exist: {text}", count=self.orphans)
        else:
            text = f"{self.orphans} messages are in the log, and the topic does not exist (any more)"
            self._add(Kind.TOPIC_UNKNOWN, Harm.ODD, 0, None, f"does not exist: {text}", count=self.orphans)

    def _judge_stray(self, offset: int) -> None:
        """A unit that no record has claimed."""
        unit, ground = self._unit(offset), self._ground
        physical = unit[0]
        if is_filler(unit) or (unit != NO_UNIT and physical < ground.start):
            return
        rot = ground.rot_at(physical)
        if rot is not None and unit != NO_UNIT:
            rot.lose(Message(self._topic, self._queue_id, offset))
        elif unit == NO_UNIT:
            self._report(Kind.UNIT_STRAY, Harm.DERIVED, offset, None, "is empty, and units follow")
        elif ground.end and physical >= ground.end:
            self._report_beyond(offset, physical)
        else:
            self._report(Kind.UNIT_STRAY, Harm.DERIVED, offset, physical, "leads to no message of this queue")

    def _report_beyond(self, offset: int, physical: int) -> None:
        if self._ground.is_settled:
            found = self._report(Kind.UNIT_BEYOND, Harm.LOST, offset, physical, "leads behind the end of the log")
            found.lose(Message(self._topic, self._queue_id, offset))
        else:
            text = "leads behind what the log's files hold: it is in a write buffer, or it is cut at the next start"
            self._report(Kind.UNIT_BEYOND, Harm.UNSETTLED, offset, physical, text)

    def check_ends(self) -> None:
        """Only the first unit and the last: whether they lead to messages of this queue."""
        if self._reader is None:
            return
        end = self._reader.end()
        first = self._reader.first_from(self._ground.log_start, end)
        for offset in sorted({first, end - 1}) if first < end else ():
            unit = self._unit(offset)
            is_checked = is_filler(unit) or unit[0] >= self._ground.start
            if not is_checked and not self._is_mine(unit[0], offset):
                self._report(Kind.UNIT_STRAY, Harm.DERIVED, offset, unit[0], "leads to no message of this queue")

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _unit(self, offset: int) -> Unit:
        return self._reader.unit(offset) if self._reader is not None else NO_UNIT

    def _is_mine(self, physical: int, offset: int) -> bool:
        return self._ground.is_record_of(physical, self._topic, self._queue_id, offset)

    def _report(self, kind: Kind, harm: Harm, offset: int, physical: int | None, text: str) -> Finding:
        """Add to the finding of the unit before if it is of the same kind, or begin a new one."""
        if self._run is not None:
            finding, end = self._run
            if (finding.kind, finding.harm, end) == (kind, harm, offset):
                finding.repeat()
                self._run = finding, offset + 1
                return finding
        finding = self._add(kind, harm, offset, physical, f"unit {offset} {text}")
        self._run = finding, offset + 1
        return finding

    def _add(
        self, kind: Kind, harm: Harm, offset: int, physical: int | None, text: str, *, count: int = 1,
        lost_count: int = 0,
    ) -> Finding:  # fmt: skip
        return self._ground.findings.add(
            Finding(
                kind=kind,
                harm=harm,
                text=f"{self._topic}/{self._queue_id}: {text}",
                offset=physical,
                topic=self._topic,
                queue_id=self._queue_id,
                queue_offset=offset,
                count=count,
                lost_count=lost_count,
            )
        )
