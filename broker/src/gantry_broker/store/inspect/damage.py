"""Classification of places without a valid record: end of the log, torn tail, rot, or bytes that are being written.

    ... record | record | ??? ......................................... zeros
                          `- only zeros follow                the end of the log
                             a broker runs                    the end of a log that grows: no error
                             no whole record follows          torn tail, unless more is known to be flushed
                             whole records follow             before the durable mark rot, after it a torn tail

A start uses the same durable mark. One case is judged more severely than by a start: RocketMQ seals no flushed offset,
so after a crash of RocketMQ a start takes the first bad record for the end of the log. If RocketMQ's checkpoint records
a later flushed end, this is rot, and the finding names the range that a start would cut off.
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.store.inspect.facts import StoreFacts
from gantry_broker.store.inspect.findings import Finding, Harm, Kind, Message
from gantry_broker.store.inspect.log_reader import LogReader, Stop, StopReason
from gantry_broker.store.inspect.queue_check import CheckContext
from gantry_wire.message import RecordFault, record_store_timestamp

_IDENTIFYING_REASONS: Final = (StopReason.CRC, StopReason.SEAL)
"""After these, the damaged record still identifies its message."""

COPY_REMEDY: Final = "copy the store before you change anything; a replica may still have the messages"
"""What the texts of findings advise where messages may be lost."""


@final
class DamageJudge:
    """Judges every place where a walk through the log stopped. Owned by the verification."""

    def __init__(self, facts: StoreFacts, reader: LogReader, complete_mark: int, context: CheckContext) -> None:
        self.newest_ms = 0
        """The newest store time of the records so far."""
        self._facts: Final = facts
        self._reader: Final = reader
        self._mark: Final = complete_mark
        self._context: Final = context
        self._time_finding: Finding | None = None
        self._damaged_messages: Final[list[tuple[Finding, Message]]] = []
        point, checkpoint = facts.point, facts.checkpoint
        self._known_durable: Final = max(
            point.through if point is not None else 0, checkpoint.flushed if checkpoint is not None else 0
        )

    def note_time(self, physical: int, timestamp_ms: int) -> None:
        """Check the store time of the record at ``physical``, which must not be before that of its predecessor."""
        if timestamp_ms >= self.newest_ms:
            self.newest_ms = timestamp_ms
            return
        if self._time_finding is not None:
            self._time_finding.repeat()
            return
        is_ours = self._facts.ownership_at(physical).is_ours
        fall_ms = self.newest_ms - timestamp_ms
        text = f"store times decrease: at {physical} by {fall_ms} ms; searches by time are inexact there"
        harm = Harm.WRONG if is_ours else Harm.ODD
        self._time_finding = self._context.findings.add(
            Finding(kind=Kind.TIME_FALLS, harm=harm, text=text, offset=physical)
        )

    def judge(self, stop: Stop, end: int) -> int | None:
        """Report the place if it is damaged; return where to continue, or None where the log ends."""
        offset = stop.offset
        if stop.reason is StopReason.NO_FILE:
            return self._step_over_missing(offset)
        after = self._reader.next_record(offset + 1, self._facts.files_end)
        if self._facts.is_in_use:
            found = self._reader.record_at(offset)
            if found is not None and found.check.is_good:
                return offset
        if after is None:
            self._judge_end(stop)
            return None
        if (
            self._facts.is_in_use
            or (offset < self._mark and after <= self._mark)
            or stop.reason is StopReason.UNREADABLE
        ):
            self._add_rot(stop, after, "")
            return after
        if self._was_flushed(after):
            note = "; a start would cut off everything from here on, although RocketMQ had flushed later records"
            self._add_rot(stop, after, note)
            return after
        self._add_torn(offset, after)
        return None

    # -- classification ------------------------------------------------------------------------------------------------

    def _step_over_missing(self, offset: int) -> int | None:
        """Report a missing file. In a store in use its messages have expired meanwhile, with all units of them."""
        after = min((one.base_offset for one in self._reader.segments if one.base_offset > offset), default=None)
        if after is not None and self._facts.is_in_use:
            self._context.expire_before(after)
        elif after is not None:
            finding = self._context.findings.add(
                Finding(
                    kind=Kind.LOG_FILE,
                    harm=Harm.LOST,
                    text=f"{after - offset} bytes of the log are missing: their file does not exist",
                    remedy="restore the file; otherwise the next start refuses sends until you accept the loss",
                    offset=offset,
                    length=after - offset,
                )
            )
            self._context.rotten.append((offset, after, finding))
        return after

    def _was_flushed(self, after: int) -> bool:
        """Return whether the record at ``after`` is on the disk according to RocketMQ's checkpoint."""
        checkpoint = self._facts.checkpoint
        found = self._reader.record_at(after)
        if checkpoint is None or self._mark > 0 or found is None or not found.check.is_good:
            return False
        return record_store_timestamp(found.data) <= checkpoint.log_timestamp_ms

    def _add_rot(self, stop: Stop, after: int, note: str) -> None:
        offset = stop.offset
        is_unread = stop.reason is StopReason.UNREADABLE
        text = f"{after - offset} bytes of the log at {offset}: {stop.reason.value}{note}"
        finding = self._context.findings.add(
            Finding(
                kind=Kind.UNREADABLE if is_unread else Kind.ROT,
                harm=Harm.LOST,
                text=text,
                remedy=COPY_REMEDY,
                offset=offset,
                length=after - offset,
            )
        )
        self._context.rotten.append((offset, after, finding))
        name = self._reader.identify_message(offset) if stop.reason in _IDENTIFYING_REASONS else None
        if name is not None:
            message = Message(*name)
            self._context.damaged_messages.add(message)
            self._damaged_messages.append((finding, message))

    def _add_torn(self, offset: int, after: int) -> None:
        """Report whole records after a bad one, in a range that is not known to be flushed."""
        records = self._reader.count_records(after, self._facts.files_end)
        self._add_tail(offset, f"{records} whole records follow the first bad one, not known to be flushed")

    def _judge_end(self, stop: Stop) -> None:
        """Judge a place that no whole record follows."""
        offset = stop.offset
        if self._facts.is_in_use:
            return
        used = self._reader.find_used_end(offset, self._facts.files_end)
        if stop.reason is StopReason.UNREADABLE:
            self._add_lost_end(offset, used, f"the disk cannot read the log from {offset} on, and no record follows")
        elif used > offset and self._facts.is_clean:
            text = f"{used - offset} bytes at the end of the log are not a record, although the last stop was clean"
            self._add_lost_end(offset, used, f"{text}: {stop.reason.value}")
        elif used > offset and offset >= self._known_durable:
            self._add_tail(offset, "no record follows")

    def _add_tail(self, offset: int, text: str) -> None:
        used = self._reader.find_used_end(offset, self._facts.files_end)
        self._context.findings.add(
            Finding(
                kind=Kind.TORN_TAIL,
                harm=Harm.UNSETTLED,
                text=f"torn tail of {used - offset} bytes at {offset}, where the log ends: {text}",
                remedy="no action needed: the next start cuts it off",
                offset=offset,
                length=used - offset,
            )
        )

    def _add_lost_end(self, offset: int, end: int, text: str) -> None:
        finding = Finding(
            kind=Kind.LOST_END, harm=Harm.LOST, text=text, remedy=COPY_REMEDY, offset=offset, length=end - offset
        )
        self._context.rotten.append((offset, max(end, offset + 1), self._context.findings.add(finding)))

    # -- at the end ----------------------------------------------------------------------------------------------------

    def finish_log(self, end: int) -> None:
        """Check the end of the log against the offset that is known to be flushed."""
        if not self._facts.is_in_use and end < self._known_durable:
            text = f"the log ends at {end}, but it was flushed up to {self._known_durable}"
            self._add_lost_end(end, self._known_durable, text)

    def finish(self) -> None:
        """Add the lost messages that no queue unit has named, as far as their damaged records name them."""
        for finding, message in self._damaged_messages:
            if not finding.lost_count:
                finding.add_lost(message)


def check_file_starts(reader: LogReader, end: int, context: CheckContext) -> None:
    """Check that every file that begins before ``end`` begins with a whole record, or is a filler.

    A filler, the file in place of a lost one, begins with a blank record. Lost ranges are reported elsewhere, with
    whether their loss is accepted.
    """
    for segment in reader.segments:
        found = reader.record_at(segment.base_offset) if segment.base_offset < end else None
        fault = found.check.fault if found is not None else None
        if fault is not None and fault is not RecordFault.BLANK:
            text = f"no whole record at {segment.base_offset}, where a file begins: {fault.value}"
            context.findings.add(
                Finding(kind=Kind.ROT, harm=Harm.LOST, text=text, remedy=COPY_REMEDY, offset=segment.base_offset)
            )
