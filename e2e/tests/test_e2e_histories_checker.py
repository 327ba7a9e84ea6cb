"""The checker of histories: each rule is broken once by hand, and a model that keeps its guarantees has no findings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gantry_histories.bodies import digest_of, make_body, read_key
from gantry_histories.check import check
from gantry_histories.events import Answered, Event, Journal, Outcome, outcome_of
from gantry_histories.final import Final
from gantry_histories.findings import Kind, Loss, Mode
from gantry_histories.hand_made import ASYNC, BROKEN, OTHER, SYNC, Case, Q, lose_and_give_the_place_away
from gantry_histories.ideal import IdealGroup
from gantry_histories.recording import IncompleteRecording, Recording, load_history, load_recording, write_recording
from gantry_histories.voids import find_void_offsets, without_void_offsets
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_event


def kinds(case: Case, mode: Mode = SYNC) -> list[Kind]:
    """Return the kinds of findings of the checker."""
    return [finding.kind for finding in check(*case.recording(mode))]


def test_valid_history_has_no_findings() -> None:
    """This holds in both modes, so every finding of the tests below comes from their change."""
    assert kinds(Case(), SYNC) == kinds(Case(), ASYNC) == []


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [(kind, spoil) for kind, spoils in BROKEN.items() for spoil in spoils],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_broken_guarantee_is_found_by_its_kind(kind: Kind, spoil: Callable[[Case], None]) -> None:
    """Each rule has a history that breaks it and no other."""
    case = Case()
    spoil(case)

    assert set(kinds(case)) == {kind}


def test_reassigned_offset_of_a_lost_message_is_found() -> None:
    """A message is lost, and another one has its queue offset: both are reported."""
    case = Case()
    lose_and_give_the_place_away(case)

    assert kinds(case) == [Kind.LOST, Kind.DISPLACED]


def test_every_rule_is_broken_by_some_test() -> None:
    """Every kind of finding occurs in a test."""
    others = {Kind.HOLE, Kind.DISPLACED, Kind.DISAGREEMENT, Kind.UNDECIDED}
    assert set(BROKEN) | others == set(Kind)


def test_asynchronous_group_may_lose_the_end_of_the_old_log() -> None:
    """Messages after the new epoch's start may be lost, acknowledged or received; the consumer may be past their
    offset."""
    case = Case()
    case.send("x", 60)
    case.ok("x", 3, 65, "a")
    case.show("x", 3, 90, "a")
    del case.history.shown[3], case.history.reads[3]  # of m3, whose place x had

    assert kinds(case, ASYNC) == []
    assert Kind.LOST in kinds(case, SYNC)


@pytest.mark.parametrize(("offset", "broker", "at"), [(2, "a", 60), (4, "b", 160)], ids=["before-it", "last-epoch"])
def test_asynchronous_group_may_lose_nothing_else(offset: int, broker: str, at: int) -> None:
    """Neither messages that the new master had, nor those after the last failover."""
    case = Case()
    case.send("x", at, stream=9)
    case.ok("x", offset, at + 5, broker)

    assert kinds(case, ASYNC) == [Kind.HOLE, Kind.DISPLACED]


def test_old_master_may_still_answer_earlier_sends() -> None:
    """Only sends that start after the new epoch's first acknowledgement must not be acknowledged by it."""
    case = Case()
    case.send("x", 114, queue=OTHER)
    case.ok("x", 0, 500, "a")
    case.store("x", 0, OTHER)

    assert kinds(case) == []


def test_late_answer_of_an_earlier_term_begins_no_epoch() -> None:
    """A broker that is master again may send an answer of its first term, which is no first acknowledgement of the new
    one.
    """
    case = Case()
    case.other_start = 200
    case.send("x", 50, queue=OTHER)
    case.term(3, "a", 130)
    case.ok("x", 0, 131, "a")
    case.send("y", 132, queue=OTHER, stream=1)
    case.ok("y", 1, 140, "b")
    case.store("x", 0, OTHER)
    case.store("y", 1, OTHER)

    assert kinds(case) == []


def test_expired_messages_are_not_missed() -> None:
    """A log may begin later than it did; messages before its begin are no loss."""
    case = Case()
    del case.queues[Q][:2]
    final = Final(case.queues, case.epochs, case.logs, case.committed, begin=200)

    assert check(case.history, final, SYNC) == []
    assert Kind.LOST in kinds(case)


def test_consumer_may_be_at_the_end_of_an_empty_queue() -> None:
    """Only a broker knows the end of an empty queue; an offset beyond it is still an error."""
    case = Case()
    del case.queues[Q][:]
    final = Final(case.queues, case.epochs, case.logs, case.committed, begin=1 << 40, ends={Q: 5})

    assert check(case.history, final, SYNC) == []
    case.committed["c", Q] = 6
    assert [finding.kind for finding in check(case.history, final, SYNC)] == [Kind.BEYOND]


def make_case_with_a_gap(*, void: int) -> tuple[Recording, list[int]]:
    """Return a history whose message 3 is missing, and void records, one of them at this offset of the log."""
    case = Case()
    del case.queues[Q][3], case.history.shown[3], case.history.reads[3], case.history.answered["m3"]
    case.history.offsets.clear()
    case.history.reads[3] = replace_event(case.history.reads[3], begin=3)
    case.commit(5, 900)
    return case.recording(), [150, void]


def test_offset_of_a_void_record_is_no_gap() -> None:
    """A consumer passes it, and commits after it. Offsets after it are judged as if it had never been there."""
    recording, voids = make_case_with_a_gap(void=300)
    lost = find_void_offsets(recording.final, voids)
    judged = without_void_offsets(recording, lost)

    assert {finding.kind for finding in check(*recording)} == {Kind.GAP, Kind.SKIPPED}
    assert lost == {Q: [3]}
    assert check(*judged) == []
    assert [message.queue_offset for message in judged.final.queues[Q]] == [0, 1, 2, 3]


def test_gap_without_a_void_record_is_found() -> None:
    """There is no void record between the messages before and after it."""
    recording, voids = make_case_with_a_gap(void=450)

    assert find_void_offsets(recording.final, voids) == {}


def test_acknowledged_message_is_not_excused_by_a_void_record() -> None:
    """Its acknowledgement names an offset that is another message's then."""
    recording, voids = make_case_with_a_gap(void=300)
    recording.history.add(
        Answered(key="m3", outcome=Outcome.OK, broker="b", at=115, queue_offset=3, physical_offset=300)
    )
    judged = without_void_offsets(recording, find_void_offsets(recording.final, voids))

    assert {finding.kind for finding in check(*judged)} == {Kind.LOST, Kind.DISPLACED}


def test_codes_without_a_guarantee_are_unknown() -> None:
    """10, 11 and 12 are stored or not; 0 is a guarantee; every other code is a refusal."""
    assert [outcome_of(code) for code in (0, 10, 11, 12, 14, 2)] == [
        Outcome.OK, Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.REFUSED, Outcome.REFUSED,
    ]  # fmt: skip


@settings(max_examples=150)
@given(st.integers(0, 1 << 30), st.sampled_from(Loss), st.integers(0, 400))
def test_group_that_keeps_its_guarantees_has_no_findings(seed: int, loss: Loss, steps: int) -> None:
    """Loss, delay, refusals and failovers are legal as far as the mode allows them."""
    group = IdealGroup(random.Random(seed), loss, steps)

    assert check(group.history, group.end(), Mode(loss)) == []


def test_asynchronous_group_breaks_synchronous_guarantees() -> None:
    """The legal histories of the weaker guarantee break the stronger one, or the test above would prove nothing."""
    kinds = set()
    for seed in range(40):
        group = IdealGroup(random.Random(seed), Loss.SUFFIX, 300)
        kinds |= {finding.kind for finding in check(group.history, group.end(), SYNC)}

    assert {Kind.LOST, Kind.VANISHED} <= kinds


@settings(max_examples=60)
@given(st.integers(0, 1 << 30))
def test_any_lost_acknowledged_message_is_found(seed: int) -> None:
    """The message may be in any queue, at any offset."""
    chance = random.Random(seed)
    group = IdealGroup(chance, Loss.NOTHING, 300)
    final = group.end()
    acknowledged = [sent for sent, _ in group.history.acknowledged_sends()]
    if not acknowledged:
        return
    victim = chance.choice(acknowledged)
    kept = [stored for stored in final.queues[victim.queue] if stored.key != victim.key]

    found = check(group.history, replace(final, queues={**final.queues, victim.queue: kept}), SYNC)

    assert Kind.LOST in {finding.kind for finding in found}


def test_history_is_read_back_as_written(tmp_path: Path) -> None:
    """It is read line by line; an incomplete last line is ignored."""
    group = IdealGroup(random.Random(3), Loss.SUFFIX, 200)
    history = group.history
    events: list[Event] = [
        *history.sent.values(), *history.answered.values(), *history.shown, *history.reads, *history.offsets,
        *history.terms,
    ]  # fmt: skip
    path = tmp_path / "history.jsonl"
    with path.open("wb") as file:
        journal = Journal(file)
        for event in events:
            journal.add(event)
        file.write(b'{"event":"sent","cli')

    assert load_history(path) == history == journal.history


def test_recording_is_read_back_as_written(tmp_path: Path) -> None:
    """History, end and mode are those that were written; the file of a run that did not complete has no end."""
    group = IdealGroup(random.Random(3), Loss.SUFFIX, 200)
    recording = Recording(group.history, group.end(), Mode(Loss.SUFFIX, shows_acknowledged=False))
    path = tmp_path / "history.jsonl"
    with path.open("wb") as file:
        write_recording(file, recording)

    read = load_recording(path)

    assert read.mode == recording.mode
    assert read.history.shown == recording.history.shown
    assert read.history.offsets == recording.history.offsets
    assert read.final == replace(
        recording.final,
        queues=dict(recording.final.queues),
        ends={queue: recording.final.end(queue) for queue in recording.final.queues},
    )
    assert check(*read) == []
    path.write_bytes(path.read_bytes().rpartition(b'{"event":"ended"')[0])
    assert load_history(path).sent == read.history.sent
    with pytest.raises(IncompleteRecording, match="did not complete"):
        load_recording(path)


def test_body_has_its_key_and_detects_corruption() -> None:
    """Any changed byte makes it invalid."""
    body = make_body("p-1", b"padding")

    assert read_key(body) == "p-1"
    assert len(digest_of(body)) == 32
    for position in range(len(body)):
        changed = bytearray(body)
        changed[position] ^= 1
        assert read_key(bytes(changed)) is None
