"""The judge of a trial: compares what clients were served with their expectations and the reports. Pure.

A trial damages one file of a store, and then runs the broker twice. Expectations are what clients have sent and agreed
with the broker before (``expectations``); a report is a line of the log that names lost or damaged data (``reports``).
Wrong bytes, an unknown message and an offset that is used twice are always faults, with or without a report. Data that
is missing, moved or changed must have a report that names it. A trial ends in one of four outcomes, or in
a FAULT.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, final

from damage.expectations import Expectations, Message
from damage.file_kinds import LOG_KINDS
from damage.observed_run import ObservedRun, QueueRead, Reading, Sent
from damage.reports import Report
from damage.verdict import Case, Fault, FaultKind, Outcome, Verdict, shortened

WAITING: Final = "delayed messages and transactions wait"
"""Log text of a broker that delivers nothing until a loss of log data is accepted."""
ACCEPTANCE: Final = "gantry ha accept-loss"
"""The command that accepts a loss, which status and log must name while deliveries wait."""
STARTED_EMPTY: Final = re.compile(r"the store of member (\d+) was moved away")
"""The result text of the remedy *start empty*."""
KEPT_ROLES: Final = ("configured", "regained")
"""How a shard gets its master without a failover."""
SKIP_REPORTS: Final = ("damaged message skipped", "damaged message is lost")
"""Log texts of a broker that lets consumers skip a damaged message, so that a skip has been reported."""
SHOWN_MAX: Final = 5
"""How many skipped offsets of a queue are listed."""
FOREIGN_FILE: Final = "was replaced by a file of another store"
"""Part of the error with which a broker ends if a log file is another store's."""


@final
class Judge:
    """Judges one trial by what was observed in its two runs of the broker."""

    def __init__(self, case: Case, expectations: Expectations, runs: Sequence[ObservedRun]) -> None:
        self._case: Final = case
        self._expectations: Final = expectations
        self._runs: Final = runs
        self._expected_by_place: Final = {message.place: message for message in expectations.messages}
        self._expected_by_key: Final = {message.unique: message for message in expectations.messages}
        self._delivered: Final[dict[str, Message]] = {}
        """Pending messages that arrived in an earlier run: if one is missing, a later report must name where it was."""
        self._arrived: Final[dict[str, Message]] = {}
        """Pending messages that have arrived so far, by unique key."""
        self._pending: Final = {one.unique: one for one in expectations.pending}
        self._faults: list[Fault] = []
        self._notes: list[str] = []
        self._reports: list[Report] = []
        self._sent: dict[str, Sent] = {}
        self._has_failed_over = False
        """Whether another member became the master, in this run or before."""
        self._is_after_crash = False
        """Whether the run before was killed, or ended by itself."""
        self._lacks_member = False
        """Whether a member of a sync group does not start, so that the group can do nothing."""
        self._missing_reported = 0
        self._is_accepted = False
        """Whether a loss was accepted, in this run or before: from then on nothing may wait."""
        self._emptied: Final[set[int]] = set()
        """Members that were started empty, by a remedy: their own settings are lost with their stores."""
        self._missing_last: dict[int, set[tuple[str, int, int]]] = {}
        """The places of the messages that the last reading of each member lacked."""

    def verdict(self) -> Verdict:
        """Return all faults, and the outcome."""
        for number, run in enumerate(self._runs):
            self._reports += run.reports
            self._has_failed_over = self._has_failed_over or run.promotion not in KEPT_ROLES
            self._is_after_crash = number > 0 and (self._case.is_killed or bool(self._runs[number - 1].ended_by))
            self._emptied.update(int(match[1]) for done in run.remedies if (match := STARTED_EMPTY.fullmatch(done)))
            # A sync group without one member shows nothing new: the missing member is the fault.
            self._lacks_member = self._case.setup == "sync group" and bool(run.refused_for_good)
            self._is_accepted = self._is_accepted or run.is_accepted
            self._judge_refusals(run)
            self._judge_sends(run)
            for reading in run.readings:
                self._judge_reading(reading)
            self._judge_consumers(run)
            self._judge_states(run)
            self._judge_pending(run)
            self._delivered.update(self._arrived)
            for text in run.differences:
                self._fault(FaultKind.NOT_SHOWN, text)
        self._judge_replicas()
        return Verdict(self._outcome(), shortened(self._faults), self._notes)

    def _outcome(self) -> Outcome:
        if self._faults:
            return Outcome.FAULT
        if any(run.refusals for run in self._runs):
            return Outcome.REFUSED
        if self._missing_reported:
            is_back = not any(self._missing_last.values())
            return Outcome.HEALED if is_back and self._case.is_grouped else Outcome.REPORTED
        if self._case.is_grouped and self._case.file_kind in LOG_KINDS and self._is_named():
            return Outcome.HEALED
        return Outcome.COMPLETE

    def _is_named(self) -> bool:
        """Return whether a report names the damaged file or a range of the log."""
        return any(report.names(self._case.report_words) or list(report.ranges()) for report in self._reports)

    def _fault(self, kind: FaultKind, text: str) -> None:
        self._faults.append(Fault(kind, text))

    def _is_covered(self, message: Message) -> bool:
        """Return whether a report names the place of this message."""
        return any(report.covers(message, log_file_bytes=self._case.log_file_bytes) for report in self._reports)

    def _is_reported(self, *words: str) -> bool:
        """Return whether a report names the damaged file, or contains one of these words."""
        return any(report.names([*self._case.report_words, *words]) for report in self._reports)

    # -- starts --------------------------------------------------------------------------------------------------------

    def _judge_refusals(self, run: ObservedRun) -> None:
        """Judge refused starts and unplanned ends: each must name what is damaged, and a remedy must work."""
        for member, text in run.refusals:
            report = Report("REFUSED", text)
            if not report.names(self._case.report_words) and not list(report.ranges()):
                self._fault(FaultKind.NOT_NAMED, f"member {member} does not start: {text}")
        for member in run.refused_for_good:
            reasons = [text for number, text in run.refusals if number == member]
            self._fault(FaultKind.NO_REMEDY, f"member {member} does not start: {reasons[-1] if reasons else '?'}")
        if run.ended_by:
            self._notes.append(f"the process was ended by {run.ended_by}")
            # Only a log file of another store may make a broker end itself: all else is repaired, reported or refused.
            # A signal may end the first run: a file that is cut while it is mapped causes a SIGBUS.
            is_expected = " itself" not in run.ended_by or FOREIGN_FILE in run.ended_by
            if not is_expected or run is self._runs[-1]:
                self._fault(FaultKind.ENDED, self._notes[-1])
        if not run.refusals and not any(reading.is_master for reading in run.readings) and not run.ended_by:
            self._fault(FaultKind.NO_MASTER, run.promotion)

    # -- sends ---------------------------------------------------------------------------------------------------------

    def _judge_sends(self, run: ObservedRun) -> None:
        """Judge the trial's own sends: a refusal needs a report, and no offset may be given twice."""
        ends = self._expectations.ends
        for sent in run.sends:
            self._sent[sent.unique] = sent
            if sent.code:
                is_reported = (self._is_reported() or self._has_ranges()) and not self._is_accepted
                if not self._lacks_member and not is_reported:
                    self._fault(FaultKind.SEND_REFUSED, f"{sent.topic}/{sent.queue_id}: code {sent.code} {sent.remark}")
                continue
            if sent.queue_offset < ends.get((sent.topic, sent.queue_id), 0):
                self._fault(
                    FaultKind.REUSED,
                    f"{sent.topic}/{sent.queue_id}: number {sent.queue_offset} was given to another message",
                )
            elif (sent.topic, sent.queue_id, sent.queue_offset) in self._expected_by_place:
                self._fault(
                    FaultKind.REUSED, f"{sent.topic}/{sent.queue_id}: number {sent.queue_offset} was given before"
                )
            if sent.physical_offset < self._expectations.wrote:
                self._fault(
                    FaultKind.REUSED,
                    f"physical offset {sent.physical_offset} is before the log's former end {self._expectations.wrote}",
                )

    def _has_ranges(self) -> bool:
        return any(list(report.ranges()) for report in self._reports)

    # -- readings ------------------------------------------------------------------------------------------------------

    def _expected(self, reading: Reading) -> dict[tuple[str, int, int], Message]:
        """Return the messages that this reading must contain, by place; the trial's own sends are among them."""
        acked = [sent for sent in list(self._sent.values())[: reading.sends_before] if not sent.code]
        own = (
            Message(
                one.topic, one.queue_id, one.queue_offset, one.physical_offset, 0, one.body, {"UNIQ_KEY": one.unique}
            )
            for one in acked
        )
        return {**self._expected_by_place, **{message.place: message for message in own}}

    def _judge_reading(self, reading: Reading) -> None:
        """Judge a reading: its bytes, its stalled queues, and whether a report covers what is missing."""
        expected = self._expected(reading)
        served: set[tuple[str, int, int]] = set()
        for queue in reading.queues:
            self._judge_bytes(reading, queue, expected)
            if queue.tag == "*":
                served.update(message.place for message in queue.messages)
            is_unknown_topic = "code 17:" in queue.problem and self._is_reported("topics.json")
            is_final = reading.is_last and not reading.is_cut_off
            if queue.problem and reading.is_master and is_final and not is_unknown_topic:
                self._fault(FaultKind.STALLED, f"{_where(reading, queue)}: {queue.problem}")
        self._judge_accounts(reading)
        if reading.is_cut_off:
            return
        stalled = {(queue.topic, queue.queue_id) for queue in reading.queues if queue.problem}
        missing = {place for place in expected if place not in served}
        # A client that gets an error retries or asks another member: nothing is missing silently.
        silent = {place for place in missing if place[:2] not in stalled}
        uncovered = [
            place for place in sorted(silent) if not self._lacks_member and not self._is_covered(expected[place])
        ]
        for place in uncovered:
            self._fault(FaultKind.MISSING, f"member {reading.member}: {place} at {expected[place].physical_offset}")
        self._missing_reported += len(missing) - len(uncovered)
        if reading.is_last:
            self._missing_last[reading.member] = missing
        if not self._lacks_member:
            self._judge_filters(reading, missing)
            self._judge_queries(reading, missing)
        if reading.is_master:
            self._judge_tables(reading)
            self._adopt(reading)

    def _judge_accounts(self, reading: Reading) -> None:
        """Check that accounts have the access that they were given, on every member, and no other.

        No report excuses a difference: the undamaged copy of the file has all users and policies.
        """
        for login, has_access in reading.logins:
            if has_access and login.denied:
                self._fault(FaultKind.GRANTED, f"member {reading.member}: {login}, although {login.denied}")
            elif not has_access and not login.denied:
                self._fault(FaultKind.FORGOTTEN, f"member {reading.member}: {login} is refused")
        users = self._expectations.users
        if reading.users is not None and reading.users != users:
            names = sorted(name for name in {*users, *reading.users} if users.get(name) != reading.users.get(name))
            self._fault(FaultKind.FORGOTTEN, f"member {reading.member}: {names}")

    def _judge_consumers(self, run: ObservedRun) -> None:
        """Judge a consumer: it must not have skipped a message that is served later."""
        if any(report.text in SKIP_REPORTS for report in run.reports):
            return
        for one in run.consumers:
            readings = [reading for reading in run.readings if reading.member == one.member]
            if not readings or readings[-1].is_cut_off:
                continue
            queues = [
                queue for queue in readings[-1].queues if (queue.topic, queue.queue_id) == (one.topic, one.queue_id)
            ]
            later = {message.queue_offset for queue in queues if queue.tag == "*" for message in queue.messages}
            missed = sorted(offset for offset in later - set(one.queue_offsets) if offset < one.next_offset)
            if missed:
                text = f"member {one.member} {one.topic}/{one.queue_id}: {missed[:SHOWN_MAX]} of {len(missed)}"
                self._fault(FaultKind.SKIPPED, text)

    def _adopt(self, reading: Reading) -> None:
        """Add pending messages that have arrived to those that must be served from now on."""
        for queue in reading.queues:
            for message in queue.messages:
                if message.place not in self._expected_by_place and message.unique in self._pending:
                    self._judge_arrival(message)
                    self._expected_by_place[message.place] = message
                    self._arrived[message.unique] = message

    def _judge_arrival(self, message: Message) -> None:
        """Judge a pending message that arrives: a timer arrives once, unless a crash or a failover came."""
        first = self._arrived.get(message.unique)
        if first is None or not self._pending[message.unique].is_timer:
            return
        text = f"{message.unique} at {first.place}, and again at {message.place}"
        if self._has_failed_over or self._is_after_crash:
            self._notes.append(f"timer delivered again, which a crash or a failover allows: {text}")
        else:
            self._fault(FaultKind.DUPLICATE, f"timer {text}")

    def _judge_bytes(self, reading: Reading, queue: QueueRead, expected: dict[tuple[str, int, int], Message]) -> None:
        """Judge the messages of a queue: each must be the expected one at its place, in order."""
        for text in queue.damaged_records:
            self._fault(FaultKind.DAMAGED_RECORD, f"{_where(reading, queue)} {text}")
        last = -1
        for message in queue.messages:
            where = f"{_where(reading, queue)} number {message.queue_offset}"
            if message.queue_offset <= last or (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
                self._fault(FaultKind.ALTERED, f"{where}: served as {message.place} after {last}")
            last = message.queue_offset
            self._judge_message(where, message, expected.get(message.place))

    def _judge_message(self, where: str, message: Message, right: Message | None) -> None:
        """Judge a message by the expected one at its place, ``right``; None if none is expected there."""
        unique = message.unique
        if right is not None:
            if unique != right.unique and (
                unique in self._expected_by_key or unique in self._pending or unique in self._sent
            ):
                self._fault(FaultKind.REUSED, f"{where}: {unique} in place of {right.unique}")
            elif not message.is_same(right):
                self._fault(FaultKind.ALTERED, f"{where}: {message.difference_from(right)}")
            return
        if unique in self._expected_by_key:
            if not message.has_content_of(self._expected_by_key[unique]):
                self._fault(FaultKind.ALTERED, f"{where}: a second copy that differs")
            elif self._expected_by_key[unique].topic in self._case.exactly_once_topics or self._is_settled(unique):
                self._fault(FaultKind.DUPLICATE, f"{where}: {unique} again")
            else:
                self._notes.append(f"delivered again, which at least once allows: {where}: {unique}")
        elif unique in self._pending:
            if message.body != self._pending[unique].body:
                self._fault(FaultKind.ALTERED, f"{where}: the pending message {unique} has another body")
        elif unique in self._sent:
            if message.body != self._sent[unique].body:
                self._fault(FaultKind.ALTERED, f"{where}: {unique} has another body")
        elif unique in self._expectations.ended:
            self._fault(FaultKind.DUPLICATE, f"{where}: {unique} of a transaction that was rolled back")
        else:
            self._fault(FaultKind.INVENTED, f"{where}: {unique or message.body[:40]!r}")

    def _is_settled(self, unique: str) -> bool:
        """Whether this message is a timer whose delivery was saved before the trial, on its master."""
        return unique in self._expectations.delivered_timers and not self._has_failed_over

    def _judge_filters(self, reading: Reading, missing: set[tuple[str, int, int]]) -> None:
        """Check that a tag filter returns every message of its tag that the queue has."""
        for queue in reading.queues:
            if queue.tag == "*" or queue.problem:
                continue
            served = {message.place for message in queue.messages}
            for message in self._expectations.messages:
                if (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
                    continue
                is_wanted = message.properties.get("TAGS") == queue.tag
                if is_wanted and message.place not in served and message.place not in missing:
                    if not self._is_covered(message):
                        self._fault(FaultKind.HIDDEN, f"{_where(reading, queue)}: {message.place} with tag {queue.tag}")
                elif not is_wanted and message.place in served:
                    self._notes.append(f"{message.place} was served to a filter for {queue.tag}")

    def _judge_queries(self, reading: Reading, missing: set[tuple[str, int, int]]) -> None:
        """Check that messages are found by key and by id, unaltered."""
        for topic, key, found in reading.by_key:
            places = {message.place for message in found}
            for message in found:
                expected = self._expected_by_place.get(message.place)
                if expected is not None and not message.is_same(expected):
                    self._fault(FaultKind.ALTERED, f"member {reading.member}, by key {key}: {message.place}")
            for message in self._expectations.messages:
                is_meant = message.topic == topic and key in (
                    message.unique,
                    *message.properties.get("KEYS", "").split(),
                )
                if not is_meant or message.place in places or message.place in missing:
                    continue
                if not self._is_covered(message) and not self._is_reported("index"):
                    self._fault(FaultKind.NOT_FOUND, f"member {reading.member}: {message.place} by key {key}")
        for physical_offset, found_one in reading.by_id:
            right = next(
                (message for message in self._expectations.messages if message.physical_offset == physical_offset), None
            )
            if right is None:
                continue
            if found_one is not None and not found_one.is_same(right):
                self._fault(FaultKind.ALTERED, f"member {reading.member}, by id: {right.place}")
            if found_one is None and not self._is_covered(right):
                self._fault(FaultKind.NOT_FOUND, f"member {reading.member}: {right.place} by its id {physical_offset}")

    def _judge_tables(self, reading: Reading) -> None:
        """Check consumer offsets, topics, groups and the changed setting."""
        expectations = self._expectations
        was = {(group, topic, queue): offset for group, topic, queue, offset in expectations.offsets}
        for group, topic, queue, offset in reading.offsets:
            right = was[group, topic, queue]
            if offset != right and not self._is_reported(group, "consumerOffset.json"):
                self._fault(
                    FaultKind.OFFSET, f"member {reading.member}: {group} {topic}/{queue} at {offset}, not at {right}"
                )
        if reading.topics is not None:
            for topic, queues in expectations.topics.items():
                if reading.topics.get(topic) != queues and not self._is_reported("topics.json", topic):
                    self._fault(FaultKind.TABLE, f"topic {topic} has queues {reading.topics.get(topic)}, not {queues}")
        if reading.groups is not None:
            for group, retries in expectations.groups.items():
                if reading.groups.get(group) != retries and not self._is_reported("subscriptionGroup.json"):
                    self._fault(
                        FaultKind.TABLE, f"group {group} has {reading.groups.get(group)} retries, not {retries}"
                    )
        if (
            reading.setting is not None
            and reading.setting != expectations.setting[1]
            and not self._is_reported("liveSettings.json")
            and reading.member not in self._emptied
        ):
            self._fault(FaultKind.TABLE, f"{expectations.setting[0]}={reading.setting}, not {expectations.setting[1]}")

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _judge_states(self, run: ObservedRun) -> None:
        """Check the reported epochs, and that no incomplete store reports itself as complete."""
        expectations = self._expectations
        for state in run.states:
            epochs = dict(state.epochs)
            for epoch, start in expectations.epochs:
                if epoch not in epochs:
                    if not self._is_reported() and not self._has_ranges():
                        self._fault(
                            FaultKind.EPOCHS, f"member {state.member}: {state.epochs}, before {expectations.epochs}"
                        )
                    break
                if epochs[epoch] != start:
                    self._fault(
                        FaultKind.EPOCH_REUSED, f"member {state.member}: {epoch} begins at {epochs[epoch]}, not {start}"
                    )
            lost = {place for place in self._missing_last.get(state.member, set()) if place in self._expected_by_place}
            is_of_log = self._case.file_kind in LOG_KINDS
            is_meant = is_of_log and not self._case.is_grouped and not self._is_accepted
            if lost and state.is_complete is True and is_meant:
                self._fault(FaultKind.FALSELY_COMPLETE, f"member {state.member} lacks {len(lost)} messages")

    def _judge_pending(self, run: ObservedRun) -> None:
        """Check that delayed messages and those of transactions arrive, or that a report covers them."""
        whole = [one for one in run.readings if one.is_master and one.is_last and not one.is_cut_off]
        last = whole[-1] if whole else None
        if last is None or self._lacks_member:
            return
        served = {message.unique for queue in last.queues for message in queue.messages}
        # Nothing is delivered before the loss is accepted. The last run accepts it, so all messages must arrive there.
        is_waiting = bool(run.waiting_problem) and not self._is_accepted and run is not self._runs[-1]
        if is_waiting and not self._is_wait_reported(run):
            self._fault(
                FaultKind.NOT_DELIVERED, f"the broker does not report that deliveries wait: {run.waiting_problem}"
            )
        for one in self._expectations.pending:
            if one.unique in served or is_waiting:
                continue
            place = Message(one.topic, one.queue_id, -1, one.physical_offset, 0, one.body, {})
            delivered = self._delivered.get(one.unique)
            if delivered is None:
                is_covered = self._is_covered(place)
            else:
                is_covered = any(
                    report.covers(delivered, log_file_bytes=self._case.log_file_bytes) for report in run.reports
                )
            system = ("HALF", "OP_HALF") if one.is_half else ("SCHEDULE_TOPIC", "delayOffset")
            if not is_covered and not self._is_reported(*system):
                self._fault(FaultKind.NOT_DELIVERED, f"{one.topic}: {one.unique} of {one.physical_offset}")
            else:
                self._missing_reported += 1
        for unique in set(run.checked_transactions) & set(self._expectations.ended):
            if not self._is_reported("HALF"):
                self._fault(FaultKind.CHECKED_AGAIN, unique)

    def _is_wait_reported(self, run: ObservedRun) -> bool:
        """Return whether status and log report that deliveries wait, for which ranges, and the remedy."""
        lines = [report for report in run.reports if report.names([WAITING]) and report.names([ACCEPTANCE])]
        status = Report("STATUS", run.waiting_problem)
        is_in_status = status.names([WAITING]) and status.names([ACCEPTANCE]) and any(status.ranges())
        return is_in_status and any(any(report.ranges()) for report in lines)

    def _judge_replicas(self) -> None:
        """Check that no message of the undamaged member is lost."""
        if not self._case.is_grouped or self._lacks_member:
            return
        last: dict[int, Reading] = {}
        for run in self._runs[-1:]:
            for reading in run.readings:
                if reading.is_last:
                    last[reading.member] = reading
        if not last:
            return
        served = {message.place for reading in last.values() for queue in reading.queues for message in queue.messages}
        lost = sorted(place for place in self._expected_by_place if place not in served)
        if lost:
            self._fault(FaultKind.LOST_WITH_REPLICA, f"{len(lost)} messages from {lost[0]} on")


def _where(reading: Reading, queue: QueueRead) -> str:
    return f"member {reading.member} {queue.topic}/{queue.queue_id}"
