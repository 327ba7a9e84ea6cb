"""The checker of histories: each rule is broken once by hand, and a model that keeps its guarantees has no findings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gantry_histories.bodies import digest_of, make_body, read_key
from gantry_histories.check import check
from gantry_histories.events import (
    Answered,
    Committed,
    Event,
    History,
    Journal,
    Outcome,
    Queue,
    Sent,
    Shown,
    Term,
    load_history,
    outcome_of,
)
from gantry_histories.final import EpochStart, Final, LogSums, Piece, Stored
from gantry_histories.findings import Kind, Loss, Mode
from gantry_histories.ideal import IdealGroup
from hypothesis import given, settings
from hypothesis import strategies as st

SYNC, ASYNC = Mode(Loss.NOTHING), Mode(Loss.SUFFIX)
Q = Queue("T", 0)
OTHER = Queue("T", 1)


class Case:
    """Master a, then b: five acknowledged messages in one queue, and a consumer that received all of them."""

    def __init__(self) -> None:
        self.history = History()
        self.queues: dict[Queue, list[Stored]] = {Q: [], OTHER: []}
        self.epochs = [EpochStart(1, 0), EpochStart(2, 300)]
        self.logs = [LogSums(member, [Piece(0, 100, 7), Piece(100, 200, 8)]) for member in "ab"]
        self.committed: dict[tuple[str, Queue], int] = {}
        self.term(1, "a", 0)
        for number in range(3):
            self.message(f"m{number}", number, 10 + number * 10, "a")
        self.term(2, "b", 100)
        for number in range(3, 5):
            self.message(f"m{number}", number, 80 + number * 10, "b", stream=1)
        self.add(Committed(client="c", queue=Q, offset=5, at=900))

    def add(self, event: Event) -> None:
        """Append an event to the history."""
        self.history.add(event)

    def term(self, epoch: int, broker: str, at: int) -> None:
        """Add the beginning of an epoch at a broker."""
        self.add(Term(epoch=epoch, broker=broker, at=at))

    def send(self, key: str, at: int, *, queue: Queue = Q, stream: int = 0) -> None:
        """Add the send of a message."""
        self.add(Sent(client="p", stream=stream, key=key, queue=queue, digest=f"#{key}", at=at))

    def ok(self, key: str, offset: int, at: int, broker: str) -> None:
        """Add an acknowledgement with the queue offset of the message."""
        self.add(Answered(key=key, outcome=Outcome.OK, broker=broker, at=at, queue_offset=offset,
                          physical_offset=offset * 100))  # fmt: skip

    def store(self, key: str, offset: int, queue: Queue = Q) -> None:
        """Put a message into a queue of the final log."""
        self.queues[queue].append(Stored(key, f"#{key}", offset, offset * 100))

    def show(self, key: str, offset: int, at: int = 800, broker: str = "b") -> None:
        """Add the receipt of a message by the consumer."""
        self.add(Shown(client="c", queue=Q, queue_offset=offset, physical_offset=offset * 100, key=key,
                       digest=f"#{key}", broker=broker, at=at))  # fmt: skip

    def message(self, key: str, offset: int, at: int, broker: str, *, stream: int = 0) -> None:
        """Add a message that is sent, acknowledged, stored and received."""
        self.send(key, at, stream=stream)
        self.ok(key, offset, at + 5, broker)
        self.store(key, offset)
        self.show(key, offset)

    def kinds(self, mode: Mode = SYNC) -> list[Kind]:
        """Return the kinds of findings of the checker."""
        final = Final(self.queues, self.epochs, self.logs, self.committed)
        return [finding.kind for finding in check(self.history, final, mode)]


def lose(case: Case) -> None:
    case.queues[Q].pop()
    case.history.shown.pop()
    case.history.committed.clear()


def lose_and_give_the_place_away(case: Case) -> None:
    lose(case)
    case.send("x", 700)
    case.store("x", 4)


def move(case: Case) -> None:
    case.queues[Q][4] = Stored("m4", "#m4", 4, 999)


def store_in_another_queue(case: Case) -> None:
    case.send("x", 700)
    case.store("x", 0, OTHER)


def double(case: Case) -> None:
    case.send("x", 700, queue=OTHER)
    case.store("x", 0, OTHER)
    case.store("x", 1, OTHER)


def invent(case: Case) -> None:
    case.store("invented", 0, OTHER)


def change_a_body(case: Case) -> None:
    case.send("x", 700, queue=OTHER)
    case.queues[OTHER].append(Stored("x", "#y", 0, 0))


def break_a_body(case: Case) -> None:
    case.queues[OTHER].append(Stored(None, "", 0, 0))


def keep_what_was_refused(case: Case) -> None:
    case.send("x", 700, queue=OTHER)
    case.add(Answered(key="x", outcome=Outcome.REFUSED, code=14, broker="b", at=710))
    case.store("x", 0, OTHER)


def leave_a_gap(case: Case) -> None:
    for key, offset in (("x", 0), ("y", 2)):
        case.send(key, 700, queue=OTHER)
        case.store(key, offset, OTHER)


def acknowledge_in_another_order(case: Case, stream: int = 5) -> None:
    case.send("x", 700, queue=OTHER, stream=stream)
    case.send("y", 701, queue=OTHER, stream=stream)
    for key, offset in (("y", 0), ("x", 1)):
        case.ok(key, offset, 720, "b")
        case.store(key, offset, OTHER)


def reorder_over_connections(case: Case) -> None:
    case.send("x", 700, queue=OTHER, stream=7)
    case.ok("x", 1, 710, "b")
    case.send("y", 720, queue=OTHER, stream=8)
    case.ok("y", 0, 730, "b")
    case.store("y", 0, OTHER)
    case.store("x", 1, OTHER)


def acknowledge_as_an_old_master(case: Case) -> None:
    case.send("x", 116, queue=OTHER)
    case.ok("x", 0, 130, "a")
    case.store("x", 0, OTHER)


def pass_over_a_message(case: Case) -> None:
    del case.history.shown[2]


def commit_too_much(case: Case) -> None:
    case.history.shown.pop()


def take_back_what_was_shown(case: Case) -> None:
    case.send("x", 700)
    case.show("x", 5)


def show_nonsense(case: Case) -> None:
    case.add(Shown(client="c", queue=Q, queue_offset=4, physical_offset=400, key="m4", digest="#m3", broker="b",
                   at=800))  # fmt: skip


def commit_beyond_the_end(case: Case) -> None:
    case.committed["c", Q] = 6


def let_logs_differ(case: Case) -> None:
    case.logs[1] = LogSums("b", [Piece(0, 100, 7), Piece(100, 200, 9)])


BROKEN: dict[Kind, list[Callable[[Case], None]]] = {
    Kind.LOST: [lose],
    Kind.MOVED: [move, store_in_another_queue],
    Kind.DOUBLED: [double],
    Kind.INVENTED: [invent],
    Kind.ALTERED: [change_a_body, break_a_body],
    Kind.KEPT: [keep_what_was_refused],
    Kind.GAP: [leave_a_gap],
    Kind.DISORDER: [acknowledge_in_another_order, reorder_over_connections],
    Kind.STALE: [acknowledge_as_an_old_master],
    Kind.SKIPPED: [pass_over_a_message, commit_too_much],
    Kind.VANISHED: [take_back_what_was_shown],
    Kind.FALSE: [show_nonsense],
    Kind.BEYOND: [commit_beyond_the_end],
    Kind.DIVERGED: [let_logs_differ],
}


def test_valid_history_has_no_findings() -> None:
    """This holds in both modes, so every finding of the tests below comes from their change."""
    assert Case().kinds(SYNC) == Case().kinds(ASYNC) == []


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [(kind, spoil) for kind, spoils in BROKEN.items() for spoil in spoils],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_broken_guarantee_is_found_by_its_kind(kind: Kind, spoil: Callable[[Case], None]) -> None:
    """Each rule has a history that breaks it and no other."""
    case = Case()
    spoil(case)

    assert case.kinds() == [kind]


def test_reassigned_offset_of_a_lost_message_is_found() -> None:
    """A message is lost, and another one has its queue offset: both are reported."""
    case = Case()
    lose_and_give_the_place_away(case)

    assert case.kinds() == [Kind.LOST, Kind.DISPLACED]


def test_every_rule_is_broken_by_some_test() -> None:
    """Every kind of finding occurs in a test."""
    assert set(BROKEN) | {Kind.HOLE, Kind.DISPLACED} == set(Kind)


def test_asynchronous_group_may_lose_the_end_of_the_old_log() -> None:
    """Messages after the new epoch's start may be lost, acknowledged or received; the consumer may be past their
    offset."""
    case = Case()
    case.send("x", 60)
    case.ok("x", 3, 65, "a")
    case.show("x", 3, 90, "a")
    del case.history.shown[3]  # m3, whose place x had

    assert case.kinds(ASYNC) == []
    assert Kind.LOST in case.kinds(SYNC)


@pytest.mark.parametrize(("offset", "broker", "at"), [(2, "a", 60), (4, "b", 160)], ids=["before-it", "last-epoch"])
def test_asynchronous_group_may_lose_nothing_else(offset: int, broker: str, at: int) -> None:
    """Neither messages that the new master had, nor those after the last failover."""
    case = Case()
    case.send("x", at, stream=9)
    case.ok("x", offset, at + 5, broker)

    assert case.kinds(ASYNC) == [Kind.HOLE, Kind.DISPLACED]


def test_old_master_may_still_answer_earlier_sends() -> None:
    """Only sends that start after the new epoch's first acknowledgement must not be acknowledged by it."""
    case = Case()
    case.send("x", 114, queue=OTHER)
    case.ok("x", 0, 500, "a")
    case.store("x", 0, OTHER)

    assert case.kinds() == []


def test_late_answer_of_an_earlier_term_begins_no_epoch() -> None:
    """A broker that is master again may send an answer of its first term, which is no first acknowledgement of the new
    one.
    """
    case = Case()
    case.send("x", 50, queue=OTHER)
    case.term(3, "a", 130)
    case.ok("x", 0, 131, "a")
    case.send("y", 132, queue=OTHER, stream=1)
    case.ok("y", 1, 140, "b")
    case.store("x", 0, OTHER)
    case.store("y", 1, OTHER)

    assert case.kinds() == []


def test_expired_messages_are_not_missed() -> None:
    """A log may begin later than it did; messages before its begin are no loss."""
    case = Case()
    del case.queues[Q][:2]
    final = Final(case.queues, case.epochs, case.logs, case.committed, begin=200)

    assert check(case.history, final, SYNC) == []
    assert Kind.LOST in case.kinds()


def test_consumer_may_be_at_the_end_of_an_empty_queue() -> None:
    """Only a broker knows the end of an empty queue; an offset beyond it is still an error."""
    case = Case()
    del case.queues[Q][:]
    final = Final(case.queues, case.epochs, case.logs, case.committed, begin=1 << 40, ends={Q: 5})

    assert check(case.history, final, SYNC) == []
    case.committed["c", Q] = 6
    assert [finding.kind for finding in check(case.history, final, SYNC)] == [Kind.BEYOND]


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
    events: list[Event] = [*history.sent.values(), *history.answered.values(), *history.shown, *history.committed]
    path = tmp_path / "history.jsonl"
    with path.open("wb") as file:
        journal = Journal(file)
        for event in [*events, *history.terms]:
            journal.add(event)
        file.write(b'{"event":"sent","cli')

    assert load_history(path) == history == journal.history


def test_body_has_its_key_and_detects_corruption() -> None:
    """Any changed byte makes it invalid."""
    body = make_body("p-1", b"padding")

    assert read_key(body) == "p-1"
    assert len(digest_of(body)) == 32
    for position in range(len(body)):
        changed = bytearray(body)
        changed[position] ^= 1
        assert read_key(bytes(changed)) is None
