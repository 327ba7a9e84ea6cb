"""The checker of the crash run detects every kind of broken promise, and none where all were kept."""

from collections.abc import Callable
from pathlib import Path

import pytest
from crash.checker import FaultKind, check, stored_marks
from crash.history import History, Outcome, Sent, load_history
from crash.log_walk import Queue, messages_by_queue, walk_log
from crash.payload import Mark, digest, make_body, read_body
from crash.sabotage import Sabotage, damage_log
from msgspec.structs import replace

from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, StoredMessage, encode_record

RUN = b"run-0001"
"""The eight bytes with which every body of the run begins."""
TOPIC = "CrashA"
Stored = dict[Queue, list[StoredMessage]]


def body_of(mark: Mark) -> bytes:
    return make_body(RUN, mark, b"x" * 40)


def unique_id_of(mark: Mark) -> str:
    """Return the property `UNIQ_KEY` of the message with this mark (producer and sequence number)."""
    return f"{mark.producer:04X}{mark.sequence:028X}"


def small_world() -> tuple[History, Stored]:
    """Two producers with five acknowledged messages each in two queues, and all of them stored as promised."""
    history = History(RUN)
    stored: Stored = {}
    physical_offset = 0
    for sequence in range(5):
        for producer in range(2):
            mark = Mark(producer, sequence)
            messages = stored.setdefault((TOPIC, sequence % 2), [])
            history.record_sent(Sent(mark, TOPIC, sequence % 2, digest(body_of(mark)).hex(), unique_id_of(mark)))
            history.record_acked(mark, len(messages), physical_offset)
            messages.append(
                StoredMessage(
                    topic=TOPIC, queue_id=sequence % 2, body=body_of(mark), queue_offset=len(messages),
                    physical_offset=physical_offset,
                    properties_bytes=f"UNIQ_KEY\x01{unique_id_of(mark)}\x02".encode(),
                )
            )  # fmt: skip
            physical_offset += 500
    return history, stored


def shorten(history: History, stored: Stored) -> None:
    stored[TOPIC, 0].pop()


def drop_from_the_middle(history: History, stored: Stored) -> None:
    del stored[TOPIC, 0][1]


def alter_body(history: History, stored: Stored) -> None:
    first = stored[TOPIC, 0][0]
    stored[TOPIC, 0][0] = replace(first, body=first.body[:-1] + bytes((first.body[-1] ^ 1,)))


def move_in_the_log(history: History, stored: Stored) -> None:
    stored[TOPIC, 0][0] = replace(stored[TOPIC, 0][0], physical_offset=7)


def exchange_neighbours(history: History, stored: Stored) -> None:
    """Two messages of different producers change places: dense, in order for each, and not where they should be."""
    first, second = stored[TOPIC, 0][:2]
    stored[TOPIC, 0][0] = replace(second, queue_offset=0)
    stored[TOPIC, 0][1] = replace(first, queue_offset=1)


def store_in_another_queue(history: History, stored: Stored) -> None:
    moved = stored[TOPIC, 0].pop()
    stored[TOPIC, 7] = [replace(moved, queue_id=7, queue_offset=0)]


def invent(history: History, stored: Stored) -> None:
    last = stored[TOPIC, 0][-1]
    body = make_body(RUN, Mark(0, 99), b"")
    stored[TOPIC, 0].append(replace(last, body=body, queue_offset=last.queue_offset + 1))


def store_twice(history: History, stored: Stored) -> None:
    last = stored[TOPIC, 0][-1]
    stored[TOPIC, 0].append(replace(last, queue_offset=last.queue_offset + 1, physical_offset=9999))


def refuse(history: History, stored: Stored) -> None:
    history.record_refused(Mark(0, 0), 2)


def reverse(history: History, stored: Stored) -> None:
    messages = stored[TOPIC, 0]
    stored[TOPIC, 0] = [replace(message, queue_offset=offset) for offset, message in enumerate(reversed(messages))]


def change_the_unique_id(history: History, stored: Stored) -> None:
    stored[TOPIC, 0][0] = replace(stored[TOPIC, 0][0], properties_bytes=b"UNIQ_KEY\x01other\x02")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (shorten, FaultKind.LOST),
        (drop_from_the_middle, FaultKind.LOST),
        (drop_from_the_middle, FaultKind.GAP),
        (alter_body, FaultKind.ALTERED),
        (alter_body, FaultKind.LOST),
        (change_the_unique_id, FaultKind.ALTERED),
        (move_in_the_log, FaultKind.MOVED),
        (exchange_neighbours, FaultKind.MOVED),
        (store_in_another_queue, FaultKind.MOVED),
        (invent, FaultKind.INVENTED),
        (store_twice, FaultKind.DOUBLED),
        (refuse, FaultKind.REFUSED),
        (reverse, FaultKind.DISORDER),
    ],
)
def test_every_broken_promise_is_detected(change: Callable[[History, Stored], None], kind: FaultKind) -> None:
    """Each change of a correct store is reported as a fault of its kind."""
    history, stored = small_world()
    assert check(history, stored) == []

    change(history, stored)

    assert kind in {fault.kind for fault in check(history, stored)}


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_message_of_unknown_outcome_may_be_stored_or_not(is_stored: bool) -> None:
    """A message without a reply may be stored or not; both keep the promise."""
    history, stored = small_world()
    history.sent[Mark(1, 4)].outcome = Outcome.UNKNOWN
    if not is_stored:
        stored[TOPIC, 0].pop()

    assert check(history, stored) == []


def test_history_file_reads_back_as_written(tmp_path: Path) -> None:
    """The file of a failed run contains the same history as its memory."""
    with (tmp_path / "history.jsonl").open("w") as file:
        history = History(RUN, file)
        for sequence in range(3):
            mark = Mark(4, sequence)
            history.record_sent(Sent(mark, TOPIC, 1, "00", unique_id_of(mark)))
        history.record_acked(Mark(4, 0), 7, 700)
        history.record_refused(Mark(4, 1), 2)
        history.flush()

        assert load_history(tmp_path / "history.jsonl").sent == history.sent


def test_body_of_another_run_or_damaged_body_has_no_mark() -> None:
    """A body of another run and a truncated body have no mark."""
    body = body_of(Mark(1, 2))

    assert read_body(RUN, body) == Mark(1, 2)
    assert read_body(b"run-0002", body) is None
    assert [read_body(RUN, body[:size]) for size in (0, 10, 35, len(body) - 1)] == [None] * 4


def write_log(store: Path, stored: Stored, file_bytes: int) -> None:
    """Write the messages as commit log files of `file_bytes`, with a blank record where one did not fit."""
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    data = bytearray(file_bytes)
    base, position = 0, 0
    for queue in stored.values():
        for at, message in enumerate(queue):
            size = len(encode_record(message))
            if position + size + BLANK_RECORD.size > file_bytes:
                BLANK_RECORD.pack_into(data, position, file_bytes - position, BLANK_MAGIC)
                (folder / f"{base:020d}").write_bytes(data)
                data, base, position = bytearray(file_bytes), base + file_bytes, 0
            queue[at] = replace(message, physical_offset=base + position)
            data[position : position + size] = encode_record(queue[at])
            position += size
    (folder / f"{base:020d}").write_bytes(data)


def test_log_is_read_across_file_ends(tmp_path: Path) -> None:
    """Messages of several files are read in order, with their offsets."""
    _, stored = small_world()
    write_log(tmp_path, stored, file_bytes=700)

    walked = messages_by_queue(walk_log(tmp_path))

    assert len(list((tmp_path / "commitlog").iterdir())) > 2
    assert [(m.body, m.queue_offset, m.physical_offset) for queue in walked.values() for m in queue] == [
        (m.body, m.queue_offset, m.physical_offset) for queue in stored.values() for m in queue
    ]


@pytest.mark.parametrize("sabotage", [Sabotage.CUT_TAIL, Sabotage.FLIP_BIT])
def test_sabotaged_log_files_are_reported_as_loss(tmp_path: Path, sabotage: Sabotage) -> None:
    """A log that was cut, or has one bit changed, no longer holds what was acknowledged."""
    history, stored = small_world()
    write_log(tmp_path, stored, file_bytes=700)
    for queue in stored.values():
        for message in queue:
            mark = read_body(RUN, message.body)
            assert mark is not None
            history.record_acked(mark, message.queue_offset, message.physical_offset)
    assert check(history, messages_by_queue(walk_log(tmp_path))) == []

    damage_log(tmp_path, sabotage)

    assert FaultKind.LOST in {fault.kind for fault in check(history, messages_by_queue(walk_log(tmp_path)))}


def test_only_tail_may_be_lost_where_mode_allows_it() -> None:
    """The loss of the newest message is no fault then; that of an earlier one is a HOLE."""
    history, stored = small_world()
    last = max((message for queue in stored.values() for message in queue), key=lambda one: one.physical_offset)
    stored[TOPIC, last.queue_id].remove(last)
    assert {fault.kind for fault in check(history, stored)} == {FaultKind.LOST}
    assert check(history, stored, may_lose_tail=True) == []

    drop_from_the_middle(history, stored)

    assert FaultKind.HOLE in {fault.kind for fault in check(history, stored, may_lose_tail=True)}


def test_settled_outcomes_never_change() -> None:
    """An unknown message that was stored must stay in its place; an acknowledged one that was lost never returns."""
    history, stored = small_world()
    there, gone = Mark(0, 0), Mark(1, 4)
    whole = {queue: list(messages) for queue, messages in stored.items()}
    history.sent[there].outcome = Outcome.UNKNOWN
    stored[TOPIC, 0].pop()
    history.settle(stored_marks(RUN, stored))
    assert check(history, stored) == []

    del stored[TOPIC, 0][0]

    assert FaultKind.LOST in {fault.kind for fault in check(history, stored)}
    assert [fault.kind for fault in check(history, whole)] == [FaultKind.RETURNED]
    assert (history.sent[there].outcome, history.sent[gone].outcome) == (Outcome.ACKED, Outcome.GONE)


def test_offsets_of_lost_messages_may_be_reused() -> None:
    """After a loss that the mode allows, the next message gets the place and the offset, and both are promised."""
    history, stored = small_world()
    gone = stored[TOPIC, 0].pop()
    history.settle(stored_marks(RUN, stored))
    mark = Mark(1, 5)
    history.record_sent(Sent(mark, TOPIC, 0, digest(body_of(mark)).hex(), unique_id_of(mark)))
    history.record_acked(mark, gone.queue_offset, gone.physical_offset)

    properties = f"UNIQ_KEY\x01{unique_id_of(mark)}\x02".encode()
    stored[TOPIC, 0].append(replace(gone, body=body_of(mark), properties_bytes=properties))

    assert check(history, stored) == []
