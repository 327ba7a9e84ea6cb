"""The judge of a trial: compares what clients were served with the ledger and the reports. Pure.

Wrong bytes, an unknown message and an offset that is used twice are always faults, with or without a report. Data that
is missing, moved or changed must have a report that names it (``reports``). A trial ends in one of four outcomes, or in
a FAULT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, final

import msgspec
from damage.kinds import LOG, Kind
from damage.ledger import Known, Ledger
from damage.reports import Report

WAITING: Final = "delayed messages and transactions wait"
"""Log text of a broker that delivers nothing until a loss of log data is accepted."""
ACCEPTANCE: Final = "gantry ha accept-loss"
EMPTIED: Final = re.compile(r"the store of member (\d+) was moved away")
"""The result text of the remedy *start empty*."""
SAMPLES: Final = 4
"""Limit of the faults of one sort that are listed one by one."""


class Outcome(StrEnum):
    """The possible outcomes of a trial."""

    COMPLETE = "complete"
    REPORTED = "reported"
    HEALED = "healed"
    REFUSED = "refused"
    FAULT = "FAULT"


PASSING_REPORTS: Final = ("damaged message skipped", "damaged message is lost")
SHOWN_MAX: Final = 5
FOREIGN_FILE: Final = "was replaced by a file of another store"
"""Part of the error with which a broker ends if a log file is another store's."""


class Sort(StrEnum):
    """The kind of a fault."""

    ALTERED = "altered message"
    ROTTEN = "rotten record served with code 0"
    REUSED = "offset given twice"
    INVENTED = "message that was never sent"
    DUPLICATE = "message stored twice"
    MISSING = "missing without a report"
    HIDDEN = "hidden from a tag filter without a report"
    NOT_FOUND = "not found by key or id without a report"
    STALLED = "queue is stalled"
    NOT_DELIVERED = "owed message does not come, without a report"
    ASKED_AGAIN = "ended transaction is asked about again, without a report"
    OFFSET = "consumer offset moved without a report"
    TABLE = "table changed without a report"
    EPOCHS = "epochs vanished without a report"
    EPOCH_REUSED = "epoch given twice"
    CALLED_COMPLETE = "incomplete store calls itself complete"
    SEND_REFUSED = "sends are refused without a report"
    NO_REMEDY = "refused without a remedy that works"
    NOT_NAMED = "refused without naming what is damaged"
    LOST_WITH_REPLICA = "lost although a replica has it"
    PASSED_OVER = "passed over by a consumer and served later, without a report"
    NO_MASTER = "no master, without a report"
    ENDED = "the process ended by itself, and should not have"
    UNSEEN = "a source of users does not show what the log reports"
    HUNG = "the trial did not end"
    BROKEN = "the trial itself failed"


class Fault(msgspec.Struct, frozen=True):
    """One fault that the judge has found."""

    sort: Sort
    text: str


class QueueRead(msgspec.Struct):
    """The result of reading a queue."""

    topic: str
    queue_id: int
    messages: list[Known]
    problem: str = ""
    tag: str = "*"
    rotten: list[str] = []


class Reading(msgspec.Struct):
    """The results of reading all queues of one member once."""

    member: int
    is_master: bool
    is_last: bool
    """Whether this is the last reading of this member in a life, so that a stalled queue stays stalled."""
    queues: list[QueueRead] = []
    by_key: list[tuple[str, str, list[Known]]] = []
    by_id: list[tuple[int, Known | None]] = []
    offsets: list[tuple[str, str, int, int | None]] = []
    topics: dict[str, tuple[int, int]] | None = None
    groups: dict[str, int] | None = None
    setting: str | None = None
    is_cut_off: bool = False
    """Whether the process ended during the reading."""

    sends_before: int = 0
    """Number of the trial's own sends before the reading, answered or not."""


class Followed(msgspec.Struct):
    """The messages of one consumer that read a queue of one member repeatedly, from where it had stopped."""

    member: int
    topic: str
    queue_id: int
    end: int = 0
    """Queue offset at which the consumer would continue."""

    numbers: list[int] = []


class Sent(msgspec.Struct, frozen=True):
    """A message that the trial sent, with the answer."""

    topic: str
    queue_id: int
    unique: str
    body: bytes
    code: int
    remark: str = ""
    queue_offset: int = -1
    physical: int = -1


class MemberState(msgspec.Struct, frozen=True):
    """The state that a member reports about itself."""

    member: int
    is_complete: bool | None
    epochs: list[tuple[int, int]]
    promised: int = 0


class Phase(msgspec.Struct):
    """The events from one start to the next stop."""

    readings: list[Reading] = []
    followed: list[Followed] = []
    sends: list[Sent] = []
    reports: list[Report] = []
    refusals: list[tuple[int, str]] = []
    remedies: list[str] = []
    """Remedies that were executed for members that had refused to start."""
    refused_for_good: list[int] = []
    """Members that did not start after any remedy."""
    states: list[MemberState] = []
    waits_for: str = ""
    """The problem in the status of a master that appends nothing until a loss of log data is accepted."""
    is_accepted: bool = False
    """Whether the loss was accepted in this life, before its sends and its last readings."""
    asked: list[str] = []
    """Unique keys of the transactions that the broker has checked with a client."""
    leading: str = ""
    """How the shard got its master, or why it has none."""
    ended_by: str = ""
    """The signal, or the member and its error, that ended the process; empty after a planned stop or kill."""
    tracebacks: list[str] = []
    unseen: list[str] = []
    """Differences between status, sidecar or tools and the reports in the log, and commands that do not work."""


class Case(msgspec.Struct, frozen=True):
    """The damaged file, and the facts that the judge needs about it."""

    kind: Kind
    file: str
    member: int
    setup: str
    is_grouped: bool
    file_bytes: int
    words: list[str]
    """Words, of which a report that names the damaged file must contain one."""
    once: list[str] = []
    """Topics whose messages are stored exactly once; others are delivered at least once."""


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of a trial, with its faults."""

    outcome: Outcome
    faults: list[Fault]
    notes: list[str] = []


@final
class Judge:
    """Judges one trial from its phases."""

    def __init__(self, case: Case, ledger: Ledger, phases: Sequence[Phase]) -> None:
        self._case: Final = case
        self._ledger: Final = ledger
        self._phases: Final = phases
        self._known: Final = {message.place: message for message in ledger.known}
        self._uniques: Final = {message.unique: message for message in ledger.known}
        self._delivered: Final[dict[str, Known]] = {}
        """What was owed and came in an earlier phase: if it is missing, a later report must name where it was."""
        self._came: Final[dict[str, Known]] = {}
        self._owed: Final = {one.unique: one for one in ledger.owed}
        self._faults: list[Fault] = []
        self._notes: list[str] = []
        self._reports: list[Report] = []
        self._sent: dict[str, Sent] = {}
        self._is_short = False
        self._missing_reported = 0
        self._is_accepted = False
        """Whether a loss was accepted, in this phase or before: from then on nothing may wait."""
        self._emptied: Final[set[int]] = set()
        """Members that were started empty, by a remedy: their own settings are lost with their stores."""
        self._missing_last: dict[int, set[tuple[str, int, int]]] = {}

    def verdict(self) -> Verdict:
        """Return all faults, and the outcome."""
        for phase in self._phases:
            self._reports += phase.reports
            self._emptied.update(int(match[1]) for done in phase.remedies if (match := EMPTIED.fullmatch(done)))
            # A sync group without one member shows nothing new: the missing member is the fault.
            self._is_short = self._case.setup == "sync group" and bool(phase.refused_for_good)
            self._is_accepted = self._is_accepted or phase.is_accepted
            self._judge_refusals(phase)
            self._judge_sends(phase)
            for reading in phase.readings:
                self._judge_reading(reading)
            self._judge_followed(phase)
            self._judge_states(phase)
            self._judge_owed(phase)
            self._delivered.update(self._came)
            for text in phase.unseen:
                self._fault(Sort.UNSEEN, text)
        self._judge_replicas()
        return Verdict(self._outcome(), _shortened(self._faults), self._notes)

    def _outcome(self) -> Outcome:
        if self._faults:
            return Outcome.FAULT
        if any(phase.refusals for phase in self._phases):
            return Outcome.REFUSED
        if self._missing_reported:
            is_back = not any(self._missing_last.values())
            return Outcome.HEALED if is_back and self._case.is_grouped else Outcome.REPORTED
        if self._case.is_grouped and self._case.kind in LOG and self._is_named():
            return Outcome.HEALED
        return Outcome.COMPLETE

    def _is_named(self) -> bool:
        return any(report.names(self._case.words) or list(report.ranges()) for report in self._reports)

    def _fault(self, sort: Sort, text: str) -> None:
        self._faults.append(Fault(sort, text))

    def _is_covered(self, message: Known) -> bool:
        return any(report.covers(message, file_bytes=self._case.file_bytes) for report in self._reports)

    def _is_reported(self, *words: str) -> bool:
        """Return whether a report names the damaged file, or contains one of these words."""
        return any(report.names([*self._case.words, *words]) for report in self._reports)

    # -- starts --------------------------------------------------------------------------------------------------------

    def _judge_refusals(self, phase: Phase) -> None:
        for member, text in phase.refusals:
            report = Report("REFUSED", text)
            if not report.names(self._case.words) and not list(report.ranges()):
                self._fault(Sort.NOT_NAMED, f"member {member} does not start: {text}")
        for member in phase.refused_for_good:
            reasons = [text for number, text in phase.refusals if number == member]
            self._fault(Sort.NO_REMEDY, f"member {member} does not start: {reasons[-1] if reasons else '?'}")
        if phase.ended_by:
            self._notes.append(f"the process was ended by {phase.ended_by}")
            # Only a log file of another store may make a broker end itself: all else is repaired, reported or refused.
            # A signal may end the first life: a file that is cut while it is mapped causes a SIGBUS.
            is_expected = " itself" not in phase.ended_by or FOREIGN_FILE in phase.ended_by
            if not is_expected or phase is self._phases[-1]:
                self._fault(Sort.ENDED, self._notes[-1])
        if not phase.refusals and not any(reading.is_master for reading in phase.readings) and not phase.ended_by:
            self._fault(Sort.NO_MASTER, phase.leading)

    # -- sends ---------------------------------------------------------------------------------------------------------

    def _judge_sends(self, phase: Phase) -> None:
        ends = self._ledger.ends
        for sent in phase.sends:
            self._sent[sent.unique] = sent
            if sent.code:
                is_reported = (self._is_reported() or self._has_ranges()) and not self._is_accepted
                if not self._is_short and not is_reported:
                    self._fault(Sort.SEND_REFUSED, f"{sent.topic}/{sent.queue_id}: code {sent.code} {sent.remark}")
                continue
            if sent.queue_offset < ends.get((sent.topic, sent.queue_id), 0):
                self._fault(
                    Sort.REUSED,
                    f"{sent.topic}/{sent.queue_id}: number {sent.queue_offset} was given to another message",
                )
            elif (sent.topic, sent.queue_id, sent.queue_offset) in self._known:
                self._fault(Sort.REUSED, f"{sent.topic}/{sent.queue_id}: number {sent.queue_offset} was given before")
            if sent.physical < self._ledger.wrote:
                self._fault(
                    Sort.REUSED,
                    f"physical offset {sent.physical} lies before {self._ledger.wrote}, the log's end before",
                )

    def _has_ranges(self) -> bool:
        return any(list(report.ranges()) for report in self._reports)

    # -- readings ------------------------------------------------------------------------------------------------------

    def _expected(self, reading: Reading) -> dict[tuple[str, int, int], Known]:
        acked = [sent for sent in list(self._sent.values())[: reading.sends_before] if not sent.code]
        own = (
            Known(one.topic, one.queue_id, one.queue_offset, one.physical, 0, one.body, {"UNIQ_KEY": one.unique})
            for one in acked
        )
        return {**self._known, **{message.place: message for message in own}}

    def _judge_reading(self, reading: Reading) -> None:
        expected = self._expected(reading)
        served: set[tuple[str, int, int]] = set()
        for queue in reading.queues:
            self._judge_bytes(reading, queue, expected)
            if queue.tag == "*":
                served.update(message.place for message in queue.messages)
            is_unknown_topic = "code 17:" in queue.problem and self._is_reported("topics.json")
            is_final = reading.is_last and not reading.is_cut_off
            if queue.problem and reading.is_master and is_final and not is_unknown_topic:
                self._fault(Sort.STALLED, f"{_where(reading, queue)}: {queue.problem}")
        if reading.is_cut_off:
            return
        stalled = {(queue.topic, queue.queue_id) for queue in reading.queues if queue.problem}
        missing = {place for place in expected if place not in served}
        # A client that gets an error retries or asks another member: nothing is missing silently.
        silent = {place for place in missing if place[:2] not in stalled}
        uncovered = [place for place in sorted(silent) if not self._is_short and not self._is_covered(expected[place])]
        for place in uncovered:
            self._fault(Sort.MISSING, f"member {reading.member}: {place} at {expected[place].physical}")
        self._missing_reported += len(missing) - len(uncovered)
        if reading.is_last:
            self._missing_last[reading.member] = missing
        if not self._is_short:
            self._judge_filters(reading, missing)
            self._judge_queries(reading, missing)
        if reading.is_master:
            self._judge_tables(reading)
            self._adopt(reading)

    def _judge_followed(self, phase: Phase) -> None:
        """Judge a consumer: it must not have skipped a message that is served later."""
        if any(report.text in PASSING_REPORTS for report in phase.reports):
            return
        for one in phase.followed:
            readings = [reading for reading in phase.readings if reading.member == one.member]
            if not readings or readings[-1].is_cut_off:
                continue
            queues = [
                queue for queue in readings[-1].queues if (queue.topic, queue.queue_id) == (one.topic, one.queue_id)
            ]
            later = {message.queue_offset for queue in queues if queue.tag == "*" for message in queue.messages}
            missed = sorted(number for number in later - set(one.numbers) if number < one.end)
            if missed:
                text = f"member {one.member} {one.topic}/{one.queue_id}: {missed[:SHOWN_MAX]} of {len(missed)}"
                self._fault(Sort.PASSED_OVER, text)

    def _adopt(self, reading: Reading) -> None:
        """Move owed messages that have arrived to the known ones, which must stay."""
        for queue in reading.queues:
            for message in queue.messages:
                if message.place not in self._known and message.unique in self._owed:
                    self._known[message.place] = message
                    self._came[message.unique] = message

    def _judge_bytes(self, reading: Reading, queue: QueueRead, expected: dict[tuple[str, int, int], Known]) -> None:
        for text in queue.rotten:
            self._fault(Sort.ROTTEN, f"{_where(reading, queue)} {text}")
        last = -1
        for message in queue.messages:
            where = f"{_where(reading, queue)} number {message.queue_offset}"
            if message.queue_offset <= last or (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
                self._fault(Sort.ALTERED, f"{where}: served as {message.place} after {last}")
            last = message.queue_offset
            self._judge_message(where, message, expected.get(message.place))

    def _judge_message(self, where: str, message: Known, right: Known | None) -> None:
        unique = message.unique
        if right is not None:
            if unique != right.unique and (unique in self._uniques or unique in self._owed or unique in self._sent):
                self._fault(Sort.REUSED, f"{where}: {unique} in place of {right.unique}")
            elif not _is_same(message, right):
                self._fault(Sort.ALTERED, f"{where}: {_difference(message, right)}")
            return
        if unique in self._uniques:
            if not _is_same_content(message, self._uniques[unique]):
                self._fault(Sort.ALTERED, f"{where}: a second copy that differs")
            elif self._uniques[unique].topic in self._case.once:
                self._fault(Sort.DUPLICATE, f"{where}: {unique} again")
            else:
                self._notes.append(f"delivered again, which at least once allows: {where}: {unique}")
        elif unique in self._owed:
            if message.body != self._owed[unique].body:
                self._fault(Sort.ALTERED, f"{where}: the owed message {unique} has another body")
        elif unique in self._sent:
            if message.body != self._sent[unique].body:
                self._fault(Sort.ALTERED, f"{where}: {unique} has another body")
        elif unique in self._ledger.ended:
            self._fault(Sort.DUPLICATE, f"{where}: {unique} of a transaction that was rolled back")
        else:
            self._fault(Sort.INVENTED, f"{where}: {unique or message.body[:40]!r}")

    def _judge_filters(self, reading: Reading, missing: set[tuple[str, int, int]]) -> None:
        for queue in reading.queues:
            if queue.tag == "*" or queue.problem:
                continue
            served = {message.place for message in queue.messages}
            for message in self._ledger.known:
                if (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
                    continue
                is_wanted = message.properties.get("TAGS") == queue.tag
                if is_wanted and message.place not in served and message.place not in missing:
                    if not self._is_covered(message):
                        self._fault(Sort.HIDDEN, f"{_where(reading, queue)}: {message.place} with tag {queue.tag}")
                elif not is_wanted and message.place in served:
                    self._notes.append(f"{message.place} was served to a filter for {queue.tag}")

    def _judge_queries(self, reading: Reading, missing: set[tuple[str, int, int]]) -> None:
        for topic, key, found in reading.by_key:
            places = {message.place for message in found}
            for message in found:
                if message.place in self._known and not _is_same(message, self._known[message.place]):
                    self._fault(Sort.ALTERED, f"member {reading.member}, by key {key}: {message.place}")
            for message in self._ledger.known:
                is_meant = message.topic == topic and key in (
                    message.unique,
                    *message.properties.get("KEYS", "").split(),
                )
                if not is_meant or message.place in places or message.place in missing:
                    continue
                if not self._is_covered(message) and not self._is_reported("index"):
                    self._fault(Sort.NOT_FOUND, f"member {reading.member}: {message.place} by key {key}")
        for physical, found_one in reading.by_id:
            right = next((message for message in self._ledger.known if message.physical == physical), None)
            if right is None:
                continue
            if found_one is not None and not _is_same(found_one, right):
                self._fault(Sort.ALTERED, f"member {reading.member}, by id: {right.place}")
            if found_one is None and not self._is_covered(right):
                self._fault(Sort.NOT_FOUND, f"member {reading.member}: {right.place} by its id {physical}")

    def _judge_tables(self, reading: Reading) -> None:
        ledger = self._ledger
        was = {(group, topic, queue): offset for group, topic, queue, offset in ledger.offsets}
        for group, topic, queue, offset in reading.offsets:
            right = was[group, topic, queue]
            if offset != right and not self._is_reported(group, "consumerOffset.json"):
                self._fault(
                    Sort.OFFSET, f"member {reading.member}: {group} {topic}/{queue} at {offset}, not at {right}"
                )
        if reading.topics is not None:
            for topic, queues in ledger.topics.items():
                if reading.topics.get(topic) != queues and not self._is_reported("topics.json", topic):
                    self._fault(Sort.TABLE, f"topic {topic} has queues {reading.topics.get(topic)}, not {queues}")
        if reading.groups is not None:
            for group, retries in ledger.groups.items():
                if reading.groups.get(group) != retries and not self._is_reported("subscriptionGroup.json"):
                    self._fault(Sort.TABLE, f"group {group} has {reading.groups.get(group)} retries, not {retries}")
        if (
            reading.setting is not None
            and reading.setting != ledger.setting[1]
            and not self._is_reported("liveSettings.json")
            and reading.member not in self._emptied
        ):
            self._fault(Sort.TABLE, f"{ledger.setting[0]}={reading.setting}, not {ledger.setting[1]}")

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _judge_states(self, phase: Phase) -> None:
        ledger = self._ledger
        for state in phase.states:
            epochs = dict(state.epochs)
            for epoch, start in ledger.epochs:
                if epoch not in epochs:
                    if not self._is_reported() and not self._has_ranges():
                        self._fault(Sort.EPOCHS, f"member {state.member}: {state.epochs}, before {ledger.epochs}")
                    break
                if epochs[epoch] != start:
                    self._fault(
                        Sort.EPOCH_REUSED, f"member {state.member}: {epoch} begins at {epochs[epoch]}, not {start}"
                    )
            lost = {place for place in self._missing_last.get(state.member, set()) if place in self._known}
            is_of_log = self._case.kind in LOG
            is_meant = is_of_log and not self._case.is_grouped and not self._is_accepted
            if lost and state.is_complete is True and is_meant:
                self._fault(Sort.CALLED_COMPLETE, f"member {state.member} lacks {len(lost)} messages")

    def _judge_owed(self, phase: Phase) -> None:
        whole = [one for one in phase.readings if one.is_master and one.is_last and not one.is_cut_off]
        last = whole[-1] if whole else None
        if last is None or self._is_short:
            return
        served = {message.unique for queue in last.queues for message in queue.messages}
        # Nothing is delivered before the loss is accepted. The last life accepts it, so all messages must arrive there.
        is_waiting = bool(phase.waits_for) and not self._is_accepted and phase is not self._phases[-1]
        if is_waiting and not self._is_wait_reported(phase):
            self._fault(Sort.NOT_DELIVERED, f"the broker does not report that deliveries wait: {phase.waits_for}")
        for one in self._ledger.owed:
            if one.unique in served or is_waiting:
                continue
            place = Known(one.topic, one.queue_id, -1, one.physical, 0, one.body, {})
            delivered = self._delivered.get(one.unique)
            if delivered is None:
                is_covered = self._is_covered(place)
            else:
                is_covered = any(report.covers(delivered, file_bytes=self._case.file_bytes) for report in phase.reports)
            system = ("HALF", "OP_HALF") if one.is_half else ("SCHEDULE_TOPIC", "delayOffset")
            if not is_covered and not self._is_reported(*system):
                self._fault(Sort.NOT_DELIVERED, f"{one.topic}: {one.unique} of {one.physical}")
            else:
                self._missing_reported += 1
        for unique in set(phase.asked) & set(self._ledger.ended):
            if not self._is_reported("HALF"):
                self._fault(Sort.ASKED_AGAIN, unique)

    def _is_wait_reported(self, phase: Phase) -> bool:
        """Return whether status and log report that deliveries wait, for which ranges, and the remedy."""
        lines = [report for report in phase.reports if report.names([WAITING]) and report.names([ACCEPTANCE])]
        status = Report("STATUS", phase.waits_for)
        is_in_status = status.names([WAITING]) and status.names([ACCEPTANCE]) and any(status.ranges())
        return is_in_status and any(any(report.ranges()) for report in lines)

    def _judge_replicas(self) -> None:
        """Check that no message of the undamaged member is lost."""
        if not self._case.is_grouped or self._is_short:
            return
        last: dict[int, Reading] = {}
        for phase in self._phases[-1:]:
            for reading in phase.readings:
                if reading.is_last:
                    last[reading.member] = reading
        if not last:
            return
        served = {message.place for reading in last.values() for queue in reading.queues for message in queue.messages}
        lost = sorted(place for place in self._known if place not in served)
        if lost:
            self._fault(Sort.LOST_WITH_REPLICA, f"{len(lost)} messages from {lost[0]} on")


def _is_same_content(message: Known, right: Known) -> bool:
    return message.body == right.body and all(message.properties.get(k) == v for k, v in right.properties.items())


def _is_same(message: Known, right: Known) -> bool:
    return _is_same_content(message, right) and message.physical == right.physical and message.place == right.place


def _difference(message: Known, right: Known) -> str:
    if message.physical != right.physical:
        return f"lies at {message.physical}, not at {right.physical}"
    if message.body != right.body:
        return f"another body: {message.body[:32]!r} in place of {right.body[:32]!r}"
    return f"{message.properties} in place of {right.properties}"


def _where(reading: Reading, queue: QueueRead) -> str:
    return f"member {reading.member} {queue.topic}/{queue.queue_id}"


def _shortened(faults: Sequence[Fault]) -> list[Fault]:
    """Return a few faults of each sort; the last one counts the omitted ones."""
    return list(_shorten(faults))


def _shorten(faults: Sequence[Fault]) -> Iterator[Fault]:
    for sort in Sort:
        same = [fault for fault in faults if fault.sort is sort]
        yield from same[:SAMPLES]
        if len(same) > SAMPLES:
            yield Fault(sort, f"and {len(same) - SAMPLES} more")
