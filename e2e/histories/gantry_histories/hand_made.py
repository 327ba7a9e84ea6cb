"""Histories that are made by hand: a valid one, and for each rule one that breaks it and no other.

case = Case()               valid: five acknowledged messages, a promotion after the third, one consumer
BROKEN[Kind.LOST][0](case)  the last message is lost
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final as Constant

import msgspec

from gantry_histories.events import (
    Answered,
    CommitAnswered,
    Committed,
    Event,
    History,
    OffsetRead,
    Outcome,
    Queue,
    Read,
    Sent,
    Shown,
    Term,
)
from gantry_histories.final import EpochStart, Final, LogSums, Piece, Stored
from gantry_histories.findings import Kind, Loss, Mode
from gantry_histories.recording import Recording

SYNC: Constant = Mode(Loss.NOTHING)
ASYNC: Constant = Mode(Loss.SUFFIX)
Q: Constant = Queue("T", 0)
OTHER: Constant = Queue("T", 1)


class Case:
    """Master a, then b: five acknowledged messages in one queue, and a consumer that received all of them."""

    def __init__(self) -> None:
        self.history = History()
        self.queues: dict[Queue, list[Stored]] = {Q: [], OTHER: []}
        self.epochs = [EpochStart(1, 0), EpochStart(2, 300)]
        self.logs = [LogSums(member, [Piece(0, 100, 7), Piece(100, 200, 8)]) for member in "ab"]
        self.committed: dict[tuple[str, Queue], int] = {}
        self.other_start = 0
        """The physical offset of the first message in the queue OTHER."""

        self.term(1, "a", 0)
        for number in range(3):
            self.message(f"m{number}", number, 10 + number * 10, "a")
        self.term(2, "b", 100)
        for number in range(3, 5):
            self.message(f"m{number}", number, 80 + number * 10, "b", stream=1)
        self.commit(5, 900)

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
                          physical_offset=self.place(self.history.sent[key].queue, offset)))  # fmt: skip

    def place(self, queue: Queue, offset: int) -> int:
        """Return the physical offset of a message."""
        return offset * 100 + (self.other_start if queue == OTHER else 0)

    def store(self, key: str, offset: int, queue: Queue = Q) -> None:
        """Put a message into a queue of the final log."""
        self.queues[queue].append(Stored(key, f"#{key}", offset, self.place(queue, offset)))

    def show(self, key: str, offset: int, at: int = 800, broker: str = "b") -> None:
        """Add the receipt of a message by the consumer."""
        self.add(Shown(client="c", queue=Q, queue_offset=offset, physical_offset=offset * 100, key=key,
                       digest=f"#{key}", broker=broker, at=at))  # fmt: skip

    def read(self, begin: int, following: int, end: int, *, at: int, count: int = 0, broker: str = "b") -> None:
        """Add the reply to a pull, with the messages that were received last. The connection is as old as the term."""
        self.add(Read(client="c", queue=Q, begin=begin, next=following, end=end, count=count, broker=broker,
                      connected=100, called=at - 1, at=at))  # fmt: skip

    def commit(self, offset: int, at: int, *, is_answered: bool = True) -> None:
        """Add a commit of the consumer, and the confirmation of the master b."""
        self.add(Committed(client="c", queue=Q, offset=offset, at=at))
        if is_answered:
            self.add(CommitAnswered(client="c", queue=Q, offset=offset, broker="b", connected=100, at=at + 2))

    def query_offset(self, offset: int, at: int, *, broker: str = "b", connected: int = 100) -> None:
        """Add a reply with the offset of the consumer's group."""
        self.add(OffsetRead(client="c", queue=Q, offset=offset, broker=broker, connected=connected, called=at - 1,
                            at=at))  # fmt: skip

    def message(self, key: str, offset: int, at: int, broker: str, *, stream: int = 0) -> None:
        """Add a message that is sent, acknowledged, stored and received."""
        self.send(key, at, stream=stream)
        self.ok(key, offset, at + 5, broker)
        self.store(key, offset)
        self.show(key, offset, 800 + 2 * offset)
        self.read(offset, offset + 1, 5, at=800 + 2 * offset, count=1)

    def recording(self, mode: Mode = SYNC) -> Recording:
        """Return the history with its end."""
        return Recording(self.history, Final(self.queues, tuple(self.epochs), self.logs, self.committed), mode)


def lose(case: Case) -> None:
    case.queues[Q].pop()
    case.history.shown.pop()
    case.history.reads.pop()
    case.history.offsets.clear()


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
    case.other_start = 1_000
    case.send("x", 700, queue=OTHER, stream=stream)
    case.send("y", 701, queue=OTHER, stream=stream)
    for key, offset in (("y", 0), ("x", 1)):
        case.ok(key, offset, 720, "b")
        case.store(key, offset, OTHER)


def reorder_over_connections(case: Case) -> None:
    case.other_start = 1_000
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


def store_in_the_term_of_another_master(case: Case) -> None:
    case.epochs[1] = EpochStart(2, 400)


def pass_over_a_message(case: Case) -> None:
    del case.history.shown[2]
    case.history.reads[2] = msgspec.structs.replace(case.history.reads[2], count=0)


def continue_behind_a_message(case: Case) -> None:
    del case.history.shown[2], case.history.reads[2]


def commit_too_much(case: Case) -> None:
    case.history.shown.pop()
    case.history.reads.pop()


def take_back_what_was_shown(case: Case) -> None:
    case.send("x", 700)
    case.show("x", 5, 850)


def show_nonsense(case: Case) -> None:
    case.add(Shown(client="c", queue=Q, queue_offset=4, physical_offset=400, key="m4", digest="#m3", broker="b",
                   at=850))  # fmt: skip


def show_an_old_end(case: Case) -> None:
    case.read(3, 3, 3, at=850)


def forget_a_commit(case: Case) -> None:
    case.commit(4, 850)
    case.query_offset(3, 860)


def forget_every_commit(case: Case) -> None:
    case.query_offset(-1, 910)


def return_an_offset_that_was_never_committed(case: Case) -> None:
    case.query_offset(6, 920, connected=915)


def commit_beyond_the_end(case: Case) -> None:
    case.committed["c", Q] = 6


def let_logs_differ(case: Case) -> None:
    case.logs[1] = LogSums("b", [Piece(0, 100, 7), Piece(100, 200, 9)])


BROKEN: Constant[dict[Kind, list[Callable[[Case], None]]]] = {
    Kind.LOST: [lose],
    Kind.MOVED: [move, store_in_another_queue],
    Kind.DOUBLED: [double],
    Kind.INVENTED: [invent],
    Kind.ALTERED: [change_a_body, break_a_body],
    Kind.KEPT: [keep_what_was_refused],
    Kind.GAP: [leave_a_gap],
    Kind.DISORDER: [acknowledge_in_another_order, reorder_over_connections],
    Kind.STALE: [acknowledge_as_an_old_master],
    Kind.FOREIGN: [store_in_the_term_of_another_master],
    Kind.SKIPPED: [pass_over_a_message, continue_behind_a_message, commit_too_much],
    Kind.VANISHED: [take_back_what_was_shown],
    Kind.FALSE: [show_nonsense],
    Kind.OUTDATED: [show_an_old_end],
    Kind.FORGOTTEN: [forget_a_commit, forget_every_commit, return_an_offset_that_was_never_committed],
    Kind.BEYOND: [commit_beyond_the_end],
    Kind.DIVERGED: [let_logs_differ],
}
"""For each kind of finding the changes of a valid case after which it must be found, and no other."""
