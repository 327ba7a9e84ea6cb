"""The judge of the damage trials finds faults that were planted into the results of a trial.

Each kind of fault is planted here but `NOT_SHOWN`, which test_damage_processes.py plants, and those of the trial
itself, `HUNG` and `BROKEN`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from damage.expectations import Expectations, Login, Message, PendingMessage
from damage.file_kinds import FileKind
from damage.judge import Judge
from damage.observed_run import ContinuingConsumer, MemberState, ObservedRun, QueueRead, Reading, Sent
from damage.remedies import Remedy, apply_remedy, remedies_of
from damage.reports import Report, ReportLog
from damage.run_damage import lines_of
from damage.verdict import Case, FaultKind, Outcome, Verdict

FILE_BYTES = 1_000
"""The size of every file of the log."""
RANGE = Report("ERROR", "commit log is damaged; the records around the damage are served", {"offset": 100, "end": 200})
"""A report that names the range of the message with queue offset 1."""
VAGUE = Report("ERROR", "something is wrong somewhere", {"offset": 5, "end": 6})
"""A report that names no file, and a range without a message."""


def message_at(number: int, **changes: object) -> Message:
    """Return the message with this queue offset, with some of its fields changed."""
    message = Message(
        "Busy", 0, number, number * 100, 100, b"body %d" % number, {"UNIQ_KEY": f"U{number}", "TAGS": "red"}
    )
    return msgspec.structs.replace(message, **changes)


EXPECTATIONS = Expectations(
    messages=[message_at(number) for number in range(3)],
    pending=[PendingMessage("Later", 0, "D1", b"late", physical_offset=300)],
    ended=["T1"],
    offsets=[("Readers", "Busy", 0, 2)],
    topics={"Busy": (1, 1)},
    groups={"Readers": 6},
    setting=("maxBatchMessages", "77"),
    queue_ends=[("Busy", 0, 3)],
    wrote=400,
    epochs=[(1, 0), (7, 200)],
)
DELAYED = Message("Later", 0, 0, 400, 100, b"late", {"UNIQ_KEY": "D1"})


def good_reading(**changes: object) -> Reading:
    reading = Reading(
        1, True, True,
        queues=[
            QueueRead("Busy", 0, list(EXPECTATIONS.messages)),
            QueueRead("Busy", 0, list(EXPECTATIONS.messages), tag="red"), QueueRead("Later", 0, [DELAYED]),
        ],
        by_key=[("Busy", "U1", [message_at(1)])], by_id=[(100, message_at(1))], offsets=[("Readers", "Busy", 0, 2)],
        topics={"Busy": (1, 1)}, groups={"Readers": 6}, setting="77",
    )  # fmt: skip
    return msgspec.structs.replace(reading, **changes)


def good_run() -> ObservedRun:
    return ObservedRun(readings=[good_reading()], states=[MemberState(1, True, [(1, 0), (7, 200)])])


def case(
    kind: FileKind = FileKind.LOG_MIDDLE, file: str = "store/commitlog/00000000000000000000", **changes: object
) -> Case:
    words = [file.removeprefix("store/")] if "commitlog" in file else [file.rpartition("/")[2]]
    one = Case(kind, file, 1, "alone", False, FILE_BYTES, words, exactly_once_topics=["Busy"])
    return msgspec.structs.replace(one, **changes)


def verdict(run: ObservedRun, *reports: Report, about: Case | None = None) -> Verdict:
    run.reports = [*run.reports, *reports]
    return Judge(about or case(), EXPECTATIONS, [run]).verdict()


def kinds(found: Verdict) -> set[FaultKind]:
    return {fault.kind for fault in found.faults}


def without(number: int) -> list[Message]:
    return [message for message in EXPECTATIONS.messages if message.queue_offset != number]


def lacking(number: int, *, is_complete: bool | None = False) -> ObservedRun:
    """Return a run in which one message is missing on every path to it."""
    reading = good_reading(
        queues=[
            QueueRead("Busy", 0, without(number)), QueueRead("Busy", 0, without(number), tag="red"),
            QueueRead("Later", 0, [DELAYED]),
        ],
        by_key=[("Busy", f"U{number}", [])], by_id=[(number * 100, None)],
    )  # fmt: skip
    return ObservedRun(readings=[reading], states=[MemberState(1, is_complete, EXPECTATIONS.epochs)])


def test_complete_trial_has_no_fault() -> None:
    """All messages served as sent are complete, with or without reports."""
    assert verdict(good_run()) == Verdict(Outcome.COMPLETE, [])
    assert verdict(good_run(), RANGE).outcome is Outcome.COMPLETE


@pytest.mark.parametrize(
    "wrong",
    [
        message_at(1, body=b"other"), message_at(1, physical_offset=101),
        message_at(1, properties={"UNIQ_KEY": "U1", "TAGS": "blue"}), message_at(1, queue_offset=0),
    ],
    ids=["body", "place", "tag", "number"],
)  # fmt: skip
def test_altered_message_is_a_fault_despite_reports(wrong: Message) -> None:
    """No client may be served altered bytes, in a queue, by key or by id; a report does not excuse it."""
    for changes in (
        {"queues": [QueueRead("Busy", 0, [message_at(0), wrong, message_at(2)]), QueueRead("Later", 0, [DELAYED])]},
        {"by_key": [("Busy", "U1", [wrong, message_at(1)])]},
        {"by_id": [(100, wrong)]},
    ):
        if "queues" not in changes and wrong.queue_offset == 0:
            continue  # Alone it is just the offset of another message.
        found = verdict(ObservedRun(readings=[good_reading(**changes)]), RANGE)
        assert found.outcome is Outcome.FAULT and FaultKind.ALTERED in kinds(found), changes


def test_damaged_record_with_code_0_is_a_fault() -> None:
    """Its checksum exposes it; most clients do not check."""
    queue = QueueRead("Busy", 0, without(1), damaged_records=["pulled at 1: a body that does not match its CRC"])
    found = verdict(ObservedRun(readings=[good_reading(queues=[queue, QueueRead("Later", 0, [DELAYED])])]), RANGE)

    assert FaultKind.DAMAGED_RECORD in kinds(found)


def test_unknown_or_duplicate_message_is_a_fault() -> None:
    """Faults are an unknown message, a second copy of one that is stored once, one of a rolled back transaction."""
    for number, (message, kind) in enumerate(
        (
            (message_at(3, properties={"UNIQ_KEY": "X"}), FaultKind.INVENTED),
            (message_at(3, properties=message_at(1).properties, body=message_at(1).body), FaultKind.DUPLICATE),
            (message_at(3, properties={"UNIQ_KEY": "T1"}), FaultKind.DUPLICATE),
        )
    ):
        queues = [QueueRead("Busy", 0, [*EXPECTATIONS.messages, message]), QueueRead("Later", 0, [DELAYED])]
        found = verdict(ObservedRun(readings=[good_reading(queues=queues)]), RANGE)
        assert kinds(found) == {kind}, number


def test_a_missing_message_without_a_report_is_a_fault() -> None:
    """Silence, or a report that does not name its offset, covers nothing."""
    assert {FaultKind.MISSING, FaultKind.NOT_FOUND} <= kinds(verdict(lacking(1)))
    assert FaultKind.MISSING in kinds(verdict(lacking(1), VAGUE))


@pytest.mark.parametrize(
    "report",
    [
        RANGE,
        Report("WARNING", "cut", {"end": 100, "cut_bytes": 30}),
        Report("ERROR", "lost", {"ranges": [[0, 50], [100, 200]]}),
        Report("ERROR", "lost [100, 300) of the log"),
        Report("ERROR", "stored message is damaged", {"offset": 100}),
        Report("ERROR", "rebuilding", {"topic": "Busy", "queue_id": 0}),
        Report("ERROR", "missing", {"path": "/var/store/commitlog/00000000000000000000"}),
        Report("ERROR", "damaged", {"path": "/var/store/consumequeue/Busy/0/00000000000000000000"}),
    ],
    ids=["range", "tail", "ranges", "text", "offset", "queue", "log-file", "queue-file"],
)
def test_a_report_that_names_its_place_covers_a_missing_message(report: Report) -> None:
    """The report may name a range, an offset, a file or a queue."""
    assert verdict(lacking(1), report) == Verdict(Outcome.REPORTED, [])


@pytest.mark.parametrize(
    "report",
    [
        Report("ERROR", "lost", {"offset": 0, "end": 100}),
        Report("ERROR", "lost", {"end": 200, "cut_bytes": 30}),
        Report("ERROR", "rebuilding", {"topic": "Busy", "queue_id": 1}),
        Report("ERROR", "rebuilding", {"topic": "Later"}),
        Report("ERROR", "missing", {"path": "/var/store/commitlog/00000000000000001000"}),
    ],
)
def test_a_report_of_another_place_covers_nothing(report: Report) -> None:
    """The report of a neighbouring range, file or queue does not count."""
    assert FaultKind.MISSING in kinds(verdict(lacking(1), report))


def test_an_incomplete_store_may_not_call_itself_complete() -> None:
    """An election would trust it."""
    assert kinds(verdict(lacking(1, is_complete=True), RANGE)) == {FaultKind.FALSELY_COMPLETE}


def test_reused_queue_or_physical_offset_is_a_fault() -> None:
    """It is also found if only the served messages show it."""
    good = Sent("Busy", 0, "N1", b"new", 0, "", 3, 500)
    for sent, kind in (
        (good, set()),
        (msgspec.structs.replace(good, queue_offset=2), {FaultKind.REUSED}),
        (msgspec.structs.replace(good, physical_offset=200), {FaultKind.REUSED}),
    ):
        run = good_run()
        run.sends = [sent]
        assert kinds(verdict(run, RANGE)) == kind
    run = good_run()
    run.sends = [good]
    other = message_at(1, properties={"UNIQ_KEY": "N1"}, body=b"new")
    run.readings = [good_reading(queues=[QueueRead("Busy", 0, [other]), QueueRead("Later", 0, [DELAYED])])]
    assert FaultKind.REUSED in kinds(verdict(run, RANGE))


def test_an_acknowledged_send_must_be_served() -> None:
    """A send answered with 0 after the damage counts like every other message."""
    run = good_run()
    run.sends = [Sent("Busy", 0, "N1", b"new", 0, "", 3, 500)]
    run.readings = [good_reading(sends_before=1)]

    assert kinds(verdict(run)) == {FaultKind.MISSING}


def test_a_refused_send_needs_a_report() -> None:
    """The report must name the file or a range."""
    for reports, kind in (((), {FaultKind.SEND_REFUSED}), ((RANGE,), set())):
        run = good_run()
        run.sends = [Sent("Busy", 0, "N1", b"new", 14, "full")]
        assert kinds(verdict(run, *reports)) == kind


@pytest.mark.parametrize(
    ("change", "kind", "file"),
    [
        ({"offsets": [("Readers", "Busy", 0, 1)]}, FaultKind.OFFSET, "consumerOffset.json"),
        ({"offsets": [("Readers", "Busy", 0, None)]}, FaultKind.OFFSET, "consumerOffset.json"),
        ({"topics": {}}, FaultKind.TABLE, "topics.json"),
        ({"groups": {"Readers": 16}}, FaultKind.TABLE, "subscriptionGroup.json"),
        ({"setting": "10000"}, FaultKind.TABLE, "liveSettings.json"),
    ],
)
def test_a_changed_table_needs_a_report_that_names_its_file(
    change: dict[str, object], kind: FaultKind, file: str
) -> None:
    """Changed offsets, groups and settings and lost topics are faults unless a report names the file."""
    about = case(FileKind.CHECKPOINT, "store/checkpoint")
    run = ObservedRun(readings=[good_reading(**change)])

    assert kinds(verdict(run, VAGUE, about=about)) == {kind}
    assert verdict(run, Report("WARNING", "its copy is used", {"path": f"config/{file}"}), about=about).faults == []


def test_message_hidden_from_a_filter_is_a_fault() -> None:
    """It is in the queue, but a subscriber of its tag does not get it."""
    queues = [QueueRead("Busy", 0, list(EXPECTATIONS.messages)), QueueRead("Busy", 0, without(1), tag="red")]
    found = verdict(ObservedRun(readings=[good_reading(queues=[*queues, QueueRead("Later", 0, [DELAYED])])]))

    assert kinds(found) == {FaultKind.HIDDEN}


def test_a_stalled_queue_is_a_fault_on_the_master_alone() -> None:
    """A slave that refuses sends its clients to the master; clients of a master have no other broker."""
    queues = [
        QueueRead("Busy", 0, [message_at(0)], problem="at 1: code 1: the store failed"),
        QueueRead("Later", 0, [DELAYED]),
    ]
    grouped = case(is_grouped=True, setup="async group")
    slave = good_reading(member=2, is_master=False, queues=queues)

    assert FaultKind.STALLED in kinds(verdict(ObservedRun(readings=[good_reading(queues=queues)]), RANGE))
    assert verdict(ObservedRun(readings=[good_reading(), slave]), about=grouped).faults == []


def test_pending_message_must_arrive() -> None:
    """A delayed message, or one of an open transaction, that does not arrive must be reported."""
    reading = good_reading(queues=[QueueRead("Busy", 0, list(EXPECTATIONS.messages))])

    assert kinds(verdict(ObservedRun(readings=[reading]), VAGUE)) == {FaultKind.NOT_DELIVERED}
    damaged = Report("ERROR", "stored message is damaged", {"offset": 300})
    assert verdict(ObservedRun(readings=[reading]), damaged).outcome is Outcome.REPORTED


def test_ended_transaction_is_not_asked_about_again() -> None:
    """A broker that asks about an ended transaction must report damage to the half messages or their ends."""
    asked = msgspec.structs.replace(good_run(), checked_transactions=["T1", "T2"])
    ends_lost = Report("ERROR", "consume queue was damaged", {"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"})

    assert [(one.kind, one.text) for one in verdict(asked, VAGUE).faults] == [(FaultKind.CHECKED_AGAIN, "T1")]
    assert verdict(msgspec.structs.replace(asked, reports=[]), ends_lost).faults == []


MAY = Login("alice", "secret", "Busy", "Readers")
MAY_NOT = Login("bob", "secret", "Busy", "Readers", "it was deleted")


@pytest.mark.parametrize(
    ("logins", "users", "expected"),
    [
        ([(MAY, True), (MAY_NOT, False)], {"alice": "Normal"}, set()),
        ([(MAY, True), (MAY_NOT, True)], {"alice": "Normal"}, {FaultKind.GRANTED}),
        ([(MAY, False), (MAY_NOT, False)], {"alice": "Normal"}, {FaultKind.FORGOTTEN}),
        ([], {}, {FaultKind.FORGOTTEN}),
        ([], {"alice": "Super"}, {FaultKind.FORGOTTEN}),
        ([], {"alice": "Normal", "bob": "Normal"}, {FaultKind.FORGOTTEN}),
        ([], None, set()),
    ],
    ids=["as agreed", "granted", "refused", "forgotten", "altered", "added", "not listed"],
)
def test_no_report_excuses_other_accounts(
    logins: list[tuple[Login, bool]], users: dict[str, str] | None, expected: set[FaultKind]
) -> None:
    """An account has the access that it was given, also if the log reports that the file is damaged."""
    expectations = msgspec.structs.replace(EXPECTATIONS, users={"alice": "Normal"})
    run = ObservedRun(readings=[good_reading(logins=logins, users=users)])
    run.reports = [Report("WARNING", "its copy is used", {"path": "config/accounts.json"})]
    about = case(FileKind.ACCOUNTS, "store/config/accounts.json")

    assert kinds(Judge(about, expectations, [run]).verdict()) == expected


def test_interrupted_reading_shows_what_was_granted() -> None:
    """Access counts even if the process ended during the reading."""
    run = ObservedRun(readings=[good_reading(logins=[(MAY_NOT, True)], is_cut_off=True)])

    assert FaultKind.GRANTED in kinds(verdict(run))


@pytest.mark.parametrize(
    ("promotion", "is_killed", "expected"),
    [
        ("configured", False, {FaultKind.DUPLICATE}),
        ("regained", False, {FaultKind.DUPLICATE}),
        ("failover", False, set()),
        ("configured", True, set()),
    ],
)
def test_timer_is_delivered_again_only_after_a_crash_or_a_failover(
    promotion: str, is_killed: bool, expected: set[FaultKind]
) -> None:
    """The first run has delivered it; a second delivery needs a kill between the runs, or another master."""
    [delayed] = EXPECTATIONS.pending
    expectations = msgspec.structs.replace(EXPECTATIONS, pending=[msgspec.structs.replace(delayed, is_timer=True)])
    first, second = good_run(), good_run()
    first.promotion, second.promotion = "configured", promotion
    again = msgspec.structs.replace(DELAYED, queue_offset=1)
    second.readings[0].queues[-1] = QueueRead("Later", 0, [DELAYED, again])

    assert kinds(Judge(case(is_killed=is_killed), expectations, [first, second]).verdict()) == expected
    assert kinds(Judge(case(), EXPECTATIONS, [first, second]).verdict()) == set(), "a delayed message may come twice"


def test_timer_that_was_settled_before_the_trial_is_not_delivered_again() -> None:
    """Not even after a kill, unless another member becomes the master."""
    earlier = Message("Later", 0, 0, 350, 100, b"early", {"UNIQ_KEY": "E1"})
    expectations = msgspec.structs.replace(
        EXPECTATIONS, messages=[*EXPECTATIONS.messages, earlier], pending=[], delivered_timers=["E1"]
    )
    again = msgspec.structs.replace(earlier, queue_offset=1)
    for promotion, expected in (("configured", {FaultKind.DUPLICATE}), ("failover", set())):
        run = good_run()
        run.promotion = promotion
        run.readings[0].queues[-1] = QueueRead("Later", 0, [earlier, again])
        assert kinds(Judge(case(is_killed=True), expectations, [run]).verdict()) == expected


# The problem that the status of a master reports while deliveries wait until a loss is accepted.
PROBLEM = (
    "100 bytes of the log are missing: [300, 400) (tail); sends are refused, and delayed messages and transactions"
    " wait; bring the files back, or run `gantry ha accept-loss`"
)


def waiting(
    *, problem: str = PROBLEM, line: str = PROBLEM, pending: PendingMessage | None = None
) -> tuple[Verdict, Verdict]:
    """Return the verdicts if a loss is accepted in the second run, and the pending message then comes, or does not."""
    expectations = msgspec.structs.replace(
        EXPECTATIONS, pending=[pending or PendingMessage("Later", 0, "D1", b"late", physical_offset=100)]
    )
    queues = [QueueRead("Busy", 0, list(EXPECTATIONS.messages))]
    found = []
    for later in ([DELAYED], []):
        first = ObservedRun(
            readings=[good_reading(queues=queues)], waiting_problem=problem, reports=[Report("ERROR", line)]
        )
        reading = good_reading(queues=[*queues, QueueRead("Later", 0, later)])
        second = ObservedRun(readings=[reading], waiting_problem=problem, is_accepted=True)
        found.append(Judge(case(), expectations, [first, second]).verdict())
    return found[0], found[1]


def test_pending_message_may_wait_for_an_accepted_loss_if_reported() -> None:
    """Afterwards it must arrive, unless its own record lies in the missing range."""
    came, never_came = waiting()
    assert came.faults == [] and kinds(never_came) == {FaultKind.NOT_DELIVERED}
    assert waiting(pending=PendingMessage("Later", 0, "D1", b"late", physical_offset=300))[1].faults == []

    vague = PROBLEM.replace("delayed messages and transactions wait; ", "")
    for problem, line in ((vague, PROBLEM), (PROBLEM, vague), (PROBLEM.partition(";")[2], PROBLEM)):
        assert kinds(waiting(problem=problem, line=line)[0]) == {FaultKind.NOT_DELIVERED}, (problem, line)


def test_arrived_message_may_be_lost_with_its_own_offset_only() -> None:
    """Delivered in the first run and lost in the second: the reported range must contain the delivered one."""
    queues = [QueueRead("Busy", 0, list(EXPECTATIONS.messages))]
    for text, is_good in (("lost [400, 500)", True), ("lost [300, 400)", False)):
        first = good_run()
        second = ObservedRun(readings=[good_reading(queues=queues)], reports=[Report("ERROR", text)])
        found = kinds(Judge(case(), EXPECTATIONS, [first, second]).verdict())
        assert found == (set() if is_good else {FaultKind.MISSING, FaultKind.NOT_DELIVERED}), text


def test_nothing_waits_and_no_send_is_refused_once_the_loss_is_accepted() -> None:
    """A last run without acceptance excuses nothing either."""
    reading = good_reading(queues=[QueueRead("Busy", 0, list(EXPECTATIONS.messages))])
    unaccepted = ObservedRun(readings=[reading], waiting_problem=PROBLEM)
    refused = Sent("Busy", 0, "N1", b"new", 14, "still refused")

    assert kinds(verdict(unaccepted, Report("ERROR", PROBLEM.replace("300", "350")))) == {FaultKind.NOT_DELIVERED}
    for is_accepted, kind in ((False, set()), (True, {FaultKind.SEND_REFUSED})):
        run = good_run()
        run.sends, run.is_accepted = [refused], is_accepted
        assert kinds(verdict(run, RANGE)) == kind


def test_epochs_stay_where_they_are() -> None:
    """A missing epoch must be reported; one that begins elsewhere is another under the same number."""
    for epochs, reports, kind in (
        ([(1, 0)], (), {FaultKind.EPOCHS}),
        ([(1, 0)], (RANGE,), set()),
        ([(1, 0), (7, 300)], (RANGE,), {FaultKind.EPOCH_REUSED}),
        ([(1, 0), (7, 200), (8, 400)], (), set()),
    ):
        run = good_run()
        run.states = [MemberState(1, True, epochs)]
        assert kinds(verdict(run, *reports)) == kind


def test_a_refused_start_names_the_file_and_has_a_remedy() -> None:
    """With both it is an outcome; without either it is a fault."""
    text = "store/commitlog/00000000000000000000 is missing; run: gantry store recover"
    assert verdict(ObservedRun(refusals=[(1, text)], remedies=["recovered"])).outcome is Outcome.REFUSED
    assert kinds(verdict(ObservedRun(refusals=[(1, "it does not fit")], remedies=["x"]))) == {FaultKind.NOT_NAMED}
    assert kinds(verdict(ObservedRun(refusals=[(1, text)], refused_for_good=[1]))) == {FaultKind.NO_REMEDY}


def test_message_of_a_replica_is_not_lost() -> None:
    """In a group a report does not excuse a message that no member serves in the end."""
    grouped = case(is_grouped=True, setup="sync group")
    slave = good_reading(member=2, is_master=False)

    assert kinds(verdict(lacking(1), RANGE, about=grouped)) == {FaultKind.LOST_WITH_REPLICA}
    run = lacking(1)
    run.readings.append(slave)
    assert verdict(run, RANGE, about=grouped).outcome is Outcome.REPORTED
    run = lacking(1)
    run.readings[0].is_last = False
    run.readings += [good_reading(), slave]
    assert verdict(run, RANGE, about=grouped).outcome is Outcome.HEALED


def test_no_master_at_all_is_a_fault() -> None:
    """A running shard that serves nothing has refused nothing either."""
    assert kinds(verdict(ObservedRun(promotion="no member promises"))) == {FaultKind.NO_MASTER}


@pytest.mark.parametrize(
    ("numbers", "report", "expected"),
    [
        ([0, 1, 2], "", set()),
        ([0, 2], "", {FaultKind.SKIPPED}),
        ([0, 2], "stored message is damaged", {FaultKind.SKIPPED}),
        ([0, 2], "damaged message skipped", set()),
        ([0, 1], "", {FaultKind.SKIPPED}),
    ],
    ids=["all", "one skipped", "damage reported", "skip reported", "the last skipped"],
)
def test_message_skipped_by_a_consumer_and_served_later_is_a_fault(
    numbers: list[int], report: str, expected: set[FaultKind]
) -> None:
    """A report of the damage is not enough: the consumer should have waited for the message."""
    run = good_run()
    run.consumers = [ContinuingConsumer(1, "Busy", 0, 3, numbers)]
    reports = [Report("ERROR", report, {"offset": 100, "bytes": 100})] if report else []
    assert kinds(verdict(run, *reports)) == expected


def test_waiting_consumer_has_skipped_nothing() -> None:
    """Messages from its next offset on may still arrive."""
    run = good_run()
    run.consumers = [ContinuingConsumer(1, "Busy", 0, 1, [0])]
    assert kinds(verdict(run)) == set()


def test_interrupted_reading_is_judged_by_its_results() -> None:
    """A reading that was cut off is judged by what it returned; the next start must return the rest."""
    cut = msgspec.structs.replace(lacking(1).readings[0], is_cut_off=True)
    first = ObservedRun(readings=[cut], ended_by="member 1 itself: commitlog/0 was replaced by a file of another store")
    assert kinds(Judge(case(), EXPECTATIONS, [first, good_run()]).verdict()) == set()
    assert kinds(Judge(case(), EXPECTATIONS, [first, lacking(1)]).verdict()) >= {FaultKind.MISSING}
    cut.queues.append(QueueRead("Busy", 0, [message_at(1, body=b"other")]))
    assert kinds(Judge(case(), EXPECTATIONS, [first, good_run()]).verdict()) == {FaultKind.ALTERED}
    cut.queues.pop()
    assert kinds(Judge(case(), EXPECTATIONS, [good_run(), first]).verdict()) == {FaultKind.ENDED}


def test_a_broker_that_ends_itself_for_any_other_damage_is_a_fault() -> None:
    """Only a log file of another store may make it end itself; a complete next start is no excuse."""
    ended = ObservedRun(readings=good_run().readings, ended_by="member 1 itself: a record is damaged")
    assert kinds(Judge(case(), EXPECTATIONS, [ended, good_run()]).verdict()) == {FaultKind.ENDED}
    ended.ended_by = "signal 7"  # SIGBUS: a file was cut while it was mapped.
    assert kinds(Judge(case(), EXPECTATIONS, [ended, good_run()]).verdict()) == set()


def test_only_warnings_and_worse_are_reports() -> None:
    """Lines below WARNING are no reports; reports can be encoded."""
    kept = ReportLog()
    log = logging.getLogger("damage.judged")
    log.setLevel(logging.INFO)
    log.addHandler(kept)
    tell: list[Callable[..., None]] = [log.info, log.warning]
    for say in tell:
        say("the log is damaged", extra={"offset": 1, "end": 2, "ranges": ((1, 2),)})

    assert [(report.level, report.facts["ranges"]) for report in kept.reports] == [("WARNING", [[1, 2]])]
    assert list(kept.reports[0].ranges()) == [(1, 2), (1, 2)]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept.reports[0]), type=Report) == kept.reports[0]


def test_remedies_are_those_that_the_refusal_names(tmp_path: Path) -> None:
    """Nothing outside the text is executed, and impossible actions are no remedies."""
    store = tmp_path / "1/store/commitlog"
    backup = tmp_path / "backup/store/commitlog"
    name = "00000000000000000000"
    for folder in (store, backup):
        folder.mkdir(parents=True)
        (folder / name).write_bytes(b"whole" if folder is backup else b"")
    text = (
        f"commit log file 1/store/commitlog/{name} is damaged. Put back the file of a backup; or, in a group, move the "
        f"store away and start empty: it copies all. To serve the rest: 'truncate -s 10 1/store/commitlog/{name}'"
    )
    file = f"store/commitlog/{name}"

    def remedies(reason: str, *, has_backup: bool = False, is_grouped: bool = False) -> list[Remedy]:
        copy = tmp_path / "backup" if has_backup else None
        return remedies_of(reason, tmp_path, 1, file=file, backup=copy, is_grouped=is_grouped)

    assert remedies("it is damaged; look into the manual") == [] and apply_remedy([], random.Random(1)) is None
    assert [len(remedies(text)), len(remedies(text, has_backup=True)), len(remedies(text, is_grouped=True))] == [
        1,
        2,
        2,
    ]
    remedies(text)[0]()
    assert (store / name).read_bytes() == bytes(10)
    remedies(text, has_backup=True)[0]()
    assert (store / name).read_bytes() == b"whole"
    gap = "1 files are missing, which hold [10, 30). Make each with 'truncate -s 10 NAME'"
    remedies(gap)[0]()
    assert sorted(path.name for path in store.iterdir())[1:] == [f"{10:020d}", f"{20:020d}"]
    remedies(f"remove 1/store/commitlog/{name}, then start")[0]()
    assert not (store / name).exists()
    remedies(text, is_grouped=True)[0]()
    assert not store.exists()


def test_a_member_that_was_started_empty_may_lack_its_own_settings() -> None:
    """Settings are in no log, so they are lost by that remedy, but by nothing else."""
    reading = good_reading(setting="10000")

    def found(*remedies: str) -> set[FaultKind]:
        return kinds(verdict(ObservedRun(readings=[reading], remedies=list(remedies))))

    assert found("the store of member 1 was moved away") == set()
    assert found() == found("the store of member 2 was moved away") == {FaultKind.TABLE}


def test_output_of_a_process_without_a_file_is_empty(tmp_path: Path) -> None:
    """A process that could not make its output file must not end the run: its trial ends as broken."""
    assert lines_of(tmp_path / "gone/output.log") == []
    (tmp_path / "output.log").write_text("one\ntwo\n")
    assert lines_of(tmp_path / "output.log") == ["one", "two"]
