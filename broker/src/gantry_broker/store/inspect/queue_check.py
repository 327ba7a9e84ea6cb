"""Comparison of a consume queue with the log, in both directions, while the log is read once from end to end.

    log      record: this topic, this queue, offset 7        there must be unit 7, and it must point here
    queue    unit 7: physical offset, size, tags             there must be a record, and its queue offset must be 7

Records come in the order of the log, and a queue's offsets rise with it, so the two are merged like sorted lists: the
cursor is the unit that the next record must have. Skipped units point to no record of this queue; their target (a
damaged record, an offset before the start of the log, nothing) decides how they are reported.

One case is no damage: a topic that was deleted and created again begins at queue offset 0 again. Its older records have
no units any more; they are recognized by units that point to younger records of the same queue offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from gantry_broker.store.inspect.findings import Finding, Findings, Harm, Kind, Message
from gantry_store_files.queue_units import EXTENSION_CODE_MAX, NO_UNIT, QueueReader, Unit, is_filler
from gantry_wire.names import SCHEDULE_TOPIC

GAP_CHECKED_MAX: Final = 4096
"""Limit of the queue offsets in a gap that are checked one by one."""

IsRecordOf = Callable[[int, str, int, int], bool]
"""A function that returns whether a record of (topic, queue id, queue offset) begins at a physical offset."""


@dataclass(slots=True, kw_only=True)
class CheckContext:
    """The state that all checks of one verification share: findings, and the range of the log that was read."""

    findings: Findings
    is_record_of: IsRecordOf
    log_start: int
    """The start of the log."""

    start: int
    """Where reading of the log begins. Units that point before it are not checked."""

    is_cleanly_stopped: bool
    """Whether the store was stopped cleanly and no broker runs, so that queue and log must agree."""

    is_in_use: bool
    """Whether a broker may be writing meanwhile."""

    trusted_end: int
    """End of the range of the log whose queue units are known to be durable."""

    end: int = 0
    """The end of the log; 0 until it was read, or if more of it follows."""

    rotten: list[tuple[int, int, Finding]] = field(default_factory=list)
    """Damaged ranges of the log, in order, with their findings."""

    damaged_messages: set[Message] = field(default_factory=set)
    """Messages whose records are damaged, but still name them."""

    def set_end(self, end: int) -> None:
        """Set the end of the log; 0 if more of it follows."""
        self.end = end

    def expire_before(self, start: int) -> None:
        """Record that the log before ``start`` has expired meanwhile."""
        self.start = max(self.start, start)

    def damage_at(self, physical: int) -> Finding | None:
        """Return the finding whose damaged range holds ``physical``, or None."""
        index = bisect_right(self.rotten, physical, key=lambda rot: rot[0]) - 1
        return self.rotten[index][2] if index >= 0 and physical < self.rotten[index][1] else None


@final
class QueueCheck:
    """Checks one queue. Call ``compare_record`` for each of its records, then ``finish``."""

    def __init__(self, topic: str, queue_id: int, reader: QueueReader | None, context: CheckContext) -> None:
        self.records = 0
        self.units = 0
        """Number of units that point to their records."""
        self.older = 0
        """Number of records from before the topic was deleted and created again."""
        self.orphans = 0
        """Number of records of a queue that does not exist."""
        self._topic: Final = topic
        self._queue_id: Final = queue_id
        self._reader: Final = reader
        self._context: Final = context
        self._cursor = 0
        self._next_number = -1
        self._limit = 0
        self._run: tuple[Finding, int] | None = None
        if reader is not None:
            self._limit = reader.limit
            self._cursor = reader.first_from(context.start, reader.end())

    @property
    def end(self) -> int | None:
        """End of the last unit; None for a queue without files."""
        return None if self._reader is None else self._reader.end()

    # -- while the log is read -----------------------------------------------------------------------------------------

    def compare_record(self, offset: int, physical: int, size: int, tags_code: int, offsets: int = 1) -> None:
        """Check the record with queue offset ``offset``. A batch of RocketMQ in one record takes several offsets."""
        self._compare_unit(offset, physical, size, tags_code)
        if offsets > 1 and self._next_number == offset + 1:
            self._next_number = offset + offsets

    def _compare_unit(self, offset: int, physical: int, size: int, tags_code: int) -> None:
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
        self._compare_unusual_record(offset, (physical, size, tags_code), unit)

    def _compare_unusual_record(self, offset: int, wanted: Unit, unit: Unit) -> None:
        physical = wanted[0]
        if unit == NO_UNIT and self._context.is_in_use and self._reader is not None:
            unit = self._reader.reread_unit(offset)
        points_to_record = unit[:2] == wanted[:2]
        if not points_to_record and unit[0] > physical and self._is_record_here(unit[0], offset):
            self.older += 1
            return
        if offset < self._cursor:
            self._report(
                Kind.NUMBERS_MISSING, Harm.WRONG, offset, physical, "has a second message with the same queue offset"
            )
            return
        if self._next_number >= 0 and offset > self._next_number:
            self._report_gap(self._next_number, offset)
        for stray in range(self._cursor, min(offset, self._limit)):
            self._judge_stray(stray)
        self._cursor = self._next_number = offset + 1
        if points_to_record:
            self.units += 1
            self._judge_tags(offset, wanted, unit)
        elif unit == NO_UNIT or is_filler(unit):
            self._report_missing(offset, physical)
        else:
            text = f"points to {unit[0]} ({unit[1]} bytes) instead of {physical} ({wanted[1]} bytes)"
            self._report(Kind.UNIT_WRONG, Harm.DERIVED, offset, physical, text)

    def _judge_tags(self, offset: int, wanted: Unit, unit: Unit) -> None:
        # The tags code of a delayed message is its delivery time, which depends on the delay levels of the broker.
        is_other = unit[2] != wanted[2] and self._topic != SCHEDULE_TOPIC and unit[2] > EXTENSION_CODE_MAX
        if is_other:
            self._report(Kind.UNIT_WRONG, Harm.DERIVED, offset, wanted[0], "has a wrong tags code")

    def _report_gap(self, start: int, end: int) -> None:
        """Report queue offsets without a record, unless damaged records explain them."""
        checked = range(start, min(end, start + GAP_CHECKED_MAX))
        if all(self._is_rotten(offset) for offset in checked):
            return
        if all(is_filler(self._unit(offset)) for offset in checked):
            text = "known to be lost, since the queue was rebuilt afterwards"
            self._add(Kind.NUMBERS_MISSING, Harm.ODD, start, None, f"has no messages {start} to {end - 1}: {text}")
            return
        text = f"has no messages {start} to {end - 1} in the log"
        self._add(Kind.NUMBERS_MISSING, Harm.LOST, start, None, text, count=end - start, lost_count=end - start)

    def _is_rotten(self, offset: int) -> bool:
        message = Message(self._topic, self._queue_id, offset)
        return message in self._context.damaged_messages or self._context.damage_at(self._unit(offset)[0]) is not None

    def _report_missing(self, offset: int, physical: int) -> None:
        context = self._context
        has_vanished = self._reader is not None and self._reader.vanished
        if has_vanished or (not context.is_cleanly_stopped and physical >= context.trusted_end):
            text = "is behind the log; a running broker or the next start catches up"
            self._report(Kind.UNIT_MISSING, Harm.UNSETTLED, offset, physical, text)
        else:
            self._report(
                Kind.UNIT_MISSING, Harm.DERIVED, offset, physical, "is missing although its message is in the log"
            )

    # -- after the log was read ----------------------------------------------------------------------------------------

    def finish(self, is_known: bool) -> None:
        """Check the units after the cursor, which point to no record. ``is_known``: the topic should have queues."""
        if self._reader is None:
            self._report_absent(is_known)
            return
        while self._cursor < self._limit and self._unit(self._cursor) != NO_UNIT:
            self._judge_stray(self._cursor)
            self._cursor += 1

    def _report_absent(self, is_known: bool) -> None:
        if is_known:
            text = f"{self.orphans} messages are in the log, but the queue has no files"
            self._add(Kind.UNIT_MISSING, Harm.DERIVED, 0, None, f"does not exist: {text}", count=self.orphans)
        else:
            text = f"{self.orphans} messages are in the log, but the topic does not exist or was deleted"
            self._add(Kind.TOPIC_UNKNOWN, Harm.ODD, 0, None, f"does not exist: {text}", count=self.orphans)

    def _judge_stray(self, offset: int) -> None:
        """Judge a unit that belongs to no record of the log."""
        unit, context = self._unit(offset), self._context
        physical = unit[0]
        if is_filler(unit) or (unit != NO_UNIT and physical < context.start):
            return
        rot = context.damage_at(physical)
        if rot is not None and unit != NO_UNIT:
            rot.add_lost(Message(self._topic, self._queue_id, offset))
        elif unit == NO_UNIT:
            self._report(Kind.UNIT_STRAY, Harm.DERIVED, offset, None, "is empty, but later units are not")
        elif context.end and physical >= context.end:
            self._report_beyond(offset, physical)
        else:
            self._report(Kind.UNIT_STRAY, Harm.DERIVED, offset, physical, "points to no message of this queue")

    def _report_beyond(self, offset: int, physical: int) -> None:
        if self._context.is_cleanly_stopped:
            found = self._report(Kind.UNIT_BEYOND, Harm.LOST, offset, physical, "points after the end of the log")
            found.add_lost(Message(self._topic, self._queue_id, offset))
        else:
            text = "points after the log's files: to a write buffer, or to a record that the next start removes"
            self._report(Kind.UNIT_BEYOND, Harm.UNSETTLED, offset, physical, text)

    def check_ends(self) -> None:
        """Check that the first and the last unit point to messages of this queue.

        Units that point into the range that was read have been compared already.
        """
        if self._reader is None:
            return
        end = self._reader.end()
        first = self._reader.first_from(self._context.log_start, end)
        for offset in sorted({first, end - 1}) if first < end else ():
            unit = self._unit(offset)
            is_checked = is_filler(unit) or unit[0] >= self._context.start
            if not is_checked and not self._is_record_here(unit[0], offset):
                self._report(Kind.UNIT_STRAY, Harm.DERIVED, offset, unit[0], "points to no message of this queue")

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _unit(self, offset: int) -> Unit:
        return self._reader.unit(offset) if self._reader is not None else NO_UNIT

    def _is_record_here(self, physical: int, offset: int) -> bool:
        return self._context.is_record_of(physical, self._topic, self._queue_id, offset)

    def _report(self, kind: Kind, harm: Harm, offset: int, physical: int | None, text: str) -> Finding:
        """Extend the finding of the previous unit if it is of the same kind, or add a new finding."""
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
        return self._context.findings.add(
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
