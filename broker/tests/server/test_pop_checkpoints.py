"""The state of pop consumption follows from the records of the log, however often parts of it are read."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.server.pop import open_records, records
from gantry_broker.server.pop.checkpoints import FOREIGN_GRACE_MS, Checkpoint, PopState
from gantry_broker.server.pop.open_records import COMPACTED_FROM
from gantry_broker.server.pop.records import (
    REVIVE_QUEUES,
    AckRecord,
    CheckpointRecord,
    PopRecord,
    PositionRecord,
    parse_record,
    revive_queue_of,
)
from gantry_broker.server.pop.writer import ack_entry, checkpoint_entry
from gantry_wire import properties as keys
from gantry_wire.message import StoredMessage

TOPIC, GROUP = "orders", "billing"
NUMBER = revive_queue_of(TOPIC, GROUP, 0)


def message_of(tag: str, body: bytes) -> StoredMessage:
    return StoredMessage(topic="r", queue_id=0, body=body, properties_bytes=keys.encode_properties({keys.TAGS: tag}))


def checkpoint_record(start: int, offsets: Sequence[int], pop_time: int = 1000) -> CheckpointRecord:
    return CheckpointRecord(
        start_offset=start, pop_time=pop_time, invisible_time=60_000, queue_id=0, topic=TOPIC, group=GROUP,
        count=len(offsets), distances=[offset - start for offset in offsets],
    )  # fmt: skip


def ack_record(start: int, offsets: list[int], pop_time: int = 1000) -> AckRecord:
    return AckRecord(start_offset=start, pop_time=pop_time, queue_id=0, topic=TOPIC, group=GROUP, several=offsets)


@st.composite
def histories(draw: st.DrawFn) -> list[PopRecord]:
    """Records of one queue of a group, in the order of the log."""
    history: list[PopRecord] = []
    next_offset, pop_time = 0, 0
    popped: list[CheckpointRecord] = []
    for _ in range(draw(st.integers(1, 30))):
        kind = draw(st.sampled_from(["pop", "pop", "ack", "ack", "void", "position"]))
        if kind == "pop":
            start = next_offset
            offsets = sorted(draw(st.sets(st.integers(start, start + 12), min_size=1, max_size=6)))
            pop_time += 1
            popped.append(checkpoint_record(start, offsets, pop_time))
            history.append(popped[-1])
            next_offset = offsets[-1] + 1
        elif kind == "ack" and popped:
            one = draw(st.sampled_from(popped))
            offsets = draw(st.lists(st.sampled_from(list(one.offsets)), min_size=1, max_size=6, unique=True))
            history.append(ack_record(one.start_offset, offsets, one.pop_time))
        elif kind in ("void", "position"):
            next_offset = draw(st.integers(0, 40)) if kind == "void" else next_offset
            popped = [] if kind == "void" else popped
            history.append(
                PositionRecord(offset=next_offset, queue_id=0, topic=TOPIC, group=GROUP, is_void=kind == "void")
            )
    return history


def model(history: list[PopRecord]) -> tuple[int | None, set[tuple[int, int]]]:
    """The next offset, and (pop time, offset) of each open message, by the definition."""
    next_offset: int | None = None
    is_open: set[tuple[int, int]] = set()
    for record in history:
        if isinstance(record, CheckpointRecord):
            is_open |= {(record.pop_time, offset) for offset in record.offsets}
            next_offset = max(next_offset or 0, record.offsets[-1] + 1)
        elif isinstance(record, AckRecord):
            is_open -= {(record.pop_time, offset) for offset in record.offsets}
        else:
            is_open = set() if record.is_void else is_open
            next_offset = record.offset
    return next_offset, is_open


def read(state: PopState, history: list[PopRecord], start: int = 0) -> PopState:
    for offset, record in enumerate(history[start:], start):
        state.apply(record, offset, now_ms=2000)
        state.read_offsets[NUMBER] = offset + 1
    return state


def found(state: PopState) -> tuple[int | None, set[tuple[int, int]]]:
    queue = state.queue(TOPIC, GROUP, 0)
    is_open = {(one.pop_time_ms, offset) for one in queue.open.values() for offset in one.unacked}
    assert queue.inflight_count == state.inflight_count == len(is_open)
    assert state.open_count == len(queue.open)
    return queue.next_offset, is_open


@given(histories())
def test_state_is_that_of_the_records(history: list[PopRecord]) -> None:
    """Next offset and open messages are those that the definition gives."""
    assert found(read(PopState(), history)) == model(history)


@given(histories(), st.data())
def test_restart_from_any_state_record_gives_the_same(history: list[PopRecord], data: st.DataObject) -> None:
    """A start from a summary at any point of the history, and the records after its start, gives the same state."""
    cut = data.draw(st.integers(0, len(history)))
    summary = read(PopState(), history[:cut]).record()
    again = PopState(msgspec.json.decode(msgspec.json.encode(summary), type=type(summary)))
    start = again.read_offsets[NUMBER]
    assert found(read(again, history, start)) == model(history)
    assert start == cut or isinstance(history[start], CheckpointRecord), "expected to start at an open checkpoint"


@given(histories(), st.data())
def test_restart_with_old_checkpoints_gives_the_same(history: list[PopRecord], data: st.DataObject) -> None:
    """Checkpoints that were open at the summary before are in the next one: a start reads no record before that."""
    old_max = data.draw(st.sampled_from([1, 2, open_records.OLD_MAX]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(history)), min_size=2, max_size=5)))
    state, end = PopState(), 0
    with mock.patch.object(open_records, "OLD_MAX", old_max):
        for cut in cuts:
            summary = read_to(state, history, end, cut).record()
            state = restarted(summary) if data.draw(st.booleans()) else state
            end = state.read_offsets[NUMBER]
        again = restarted(summary)
    start = again.read_offsets[NUMBER]
    assert start >= cuts[-2] or len(summary.old[f"{TOPIC}@{GROUP}"][0]) == old_max
    assert found(read(again, history, start)) == model(history)
    earlier = PopState(msgspec.structs.replace(summary, recent_starts=None, old={}))
    assert found(read(earlier, history, earlier.read_offsets[NUMBER])) == model(history), "read by an earlier version"


def read_to(state: PopState, history: list[PopRecord], start: int, end: int) -> PopState:
    return read(state, history[:end], start)


def restarted(summary: records.StateRecord) -> PopState:
    return PopState(records.parse_state(message_of("state", records.encode_state(summary))))


def test_old_checkpoints_keep_what_their_records_and_acks_have() -> None:
    """Acks, times, the broker, a suspended delivery and the revive queue of RocketMQ's checkpoints survive a start."""
    state, foreign = PopState(), (NUMBER + 3) % REVIVE_QUEUES
    own = checkpoint_record(5, [5, 6, 9])
    own.broker_name, own.is_suspended = "broker-a", True
    state.apply(own, 0, now_ms=2000)
    state.apply(ack_record(5, [6]), 1, now_ms=2000)
    state.apply(checkpoint_record(20, [20]), 7, now_ms=2000, foreign_queue=foreign)
    state.read_offsets[NUMBER], state.read_offsets[foreign] = 2, 8
    state.record()
    summary = state.record()
    assert (summary.starts[NUMBER], summary.starts[foreign]) == (0, 7), "RocketMQ starts at the oldest checkpoints"
    assert summary.recent_starts == summary.ends

    again = PopState(summary, now_ms=500, wall_lead_ms=1_500)
    first, second = again.queue(TOPIC, GROUP, 0).open.values()
    assert (first.unacked, first.broker_name, first.is_suspended, first.due_ms) == ([5, 9], "broker-a", True, 59_500)
    assert (second.unacked, second.revive_queue, second.due_ms) == ([20], foreign, 59_500 + FOREIGN_GRACE_MS)
    assert [again.start_of(NUMBER), again.start_of(foreign)] == [0, 7]
    again.apply(PositionRecord(offset=0, queue_id=0, topic=TOPIC, group=GROUP, is_void=True), 2, now_ms=500)
    assert found(again) == (0, {(1000, 20)}), "a checkpoint of RocketMQ ends with acks in its own revive queue"


def test_checkpoints_that_are_done_leave_the_summary() -> None:
    """A checkpoint that was old and is acked is in no later summary, and RocketMQ's start moves on."""
    state = PopState()
    state.apply(checkpoint_record(5, [5]), 0, now_ms=2000)
    state.read_offsets[NUMBER] = 1
    state.record()
    assert state.record().old
    state.apply(ack_record(5, [5]), 1, now_ms=2000)
    state.read_offsets[NUMBER] = 2
    summary = state.record()
    assert (summary.old, summary.starts[NUMBER]) == ({}, 2)


@given(histories(), st.data())
def test_reading_a_part_twice_changes_nothing(history: list[PopRecord], data: st.DataObject) -> None:
    """Applying the last records a second time, as after a summary that is older, changes nothing."""
    first = max((n for n, one in enumerate(history) if isinstance(one, PositionRecord)), default=-1) + 1
    start = data.draw(st.integers(first, len(history)))
    state = read(PopState(), history)
    open_before = found(state)[1]
    for offset, record in enumerate(history[start:], start):
        state.apply(record, offset, now_ms=2000)
    assert found(state)[1] == open_before


@given(st.integers(0, 1 << 40), st.lists(st.integers(0, 500), min_size=1, max_size=32, unique=True), st.data())
def test_entries_are_read_back(start: int, distances: list[int], data: st.DataObject) -> None:
    """A checkpoint and its acks that were encoded for the log are read back with the same messages."""
    offsets = [start + distance for distance in sorted(distances)]
    is_dense = offsets == list(range(start, start + len(offsets)))
    queue = PopState().queue(TOPIC, GROUP, 0)
    checkpoint = Checkpoint(queue, start, 7, 9, range(start, start + len(offsets)) if is_dense else tuple(offsets))
    number, tag, body = checkpoint_entry(checkpoint)
    record = parse_record(message_of(tag, body))
    assert isinstance(record, CheckpointRecord)
    assert (number, list(record.offsets), record.pop_time, record.invisible_time) == (NUMBER, offsets, 7, 9)
    assert (record.distances is None) == is_dense
    chosen = data.draw(st.lists(st.sampled_from(offsets), min_size=1, unique=True))
    _, tag, body = ack_entry(checkpoint, checkpoint.bits_of(chosen))
    ack = parse_record(message_of(tag, body))
    assert isinstance(ack, AckRecord)
    assert sorted(ack.offsets) == sorted(chosen)
    assert tag == (records.ACK_TAG if len(chosen) == 1 else records.BATCH_ACK_TAG)


def test_records_of_rocketmq_are_read() -> None:
    """The bodies are those that RocketMQ's JSON library writes for its classes."""
    body = b'{"bm":2,"bn":"b","c":"billing","d":[0,1,4],"it":60000,"n":3,"pt":1000,"q":0,"ro":0,"so":5,"t":"orders"}'
    state = PopState()
    checkpoint = parse_record(message_of("ck", body))
    assert isinstance(checkpoint, CheckpointRecord)
    state.apply(checkpoint, 0, now_ms=1000)
    assert found(state) == (10, {(1000, 5), (1000, 9)}), "the second message was acked before it was stored"
    ack = parse_record(message_of("ack", b'{"ao":9,"bn":"broker-a","c":"billing","pt":1000,"q":0,"so":5,"t":"orders"}'))
    several = parse_record(
        message_of("bAck", b'{"ao":-1,"aol":[5],"bn":"b","c":"billing","pt":1000,"q":0,"so":5,"t":"orders"}')
    )
    assert ack is not None and several is not None
    state.apply(ack, 1, now_ms=1000)
    state.apply(several, 2, now_ms=1000)
    assert found(state) == (10, set())
    assert parse_record(message_of("other", b"not JSON")) is None
    old = parse_record(message_of("ack", b'{"ackOffset":9,"c":"billing","pt":1000,"q":0,"so":5,"t":"orders"}'))
    assert isinstance(old, AckRecord)
    assert old.offsets == [9]


def test_old_checkpoint_of_rocketmq_has_consecutive_messages() -> None:
    """A checkpoint without distances names messages that follow each other."""
    body = b'{"bm":0,"c":"billing","it":1,"n":3,"pt":1,"q":0,"so":5,"t":"orders"}'
    record = parse_record(message_of("ck", body))
    assert isinstance(record, CheckpointRecord)
    assert list(record.offsets) == [5, 6, 7]


@pytest.mark.parametrize("offsets", [[], [3, 3], [4, 3]], ids=["none", "equal", "falling"])
def test_invalid_checkpoint_is_refused(offsets: list[int]) -> None:
    """A checkpoint without messages, or whose offsets do not grow, is an error, and changes nothing."""
    state = PopState()
    with pytest.raises(ValueError, match="checkpoint"):
        state.apply(checkpoint_record(0, offsets), 0, now_ms=0)
    assert found(state) == (None, set())


def test_checkpoint_is_due_after_its_invisible_time_only() -> None:
    """After a start the time of a checkpoint is over between now and its invisible time from now on."""
    state = PopState()
    state.apply(checkpoint_record(0, [0], pop_time=1_000_000), 0, now_ms=5)  # the wall clock was set back
    assert state.take_due(60_004) is None
    assert state.take_due(60_005) is not None
    late = PopState()
    late.apply(checkpoint_record(0, [0], pop_time=1000), 0, now_ms=9_000_000)
    due = late.take_due(9_000_000)
    assert due is not None
    assert late.take_due(9_000_000) is None, "it is due again only when it is scheduled"
    late.schedule(due, 9_000_001)
    assert late.take_due(9_000_001) is due


def test_done_checkpoints_take_no_memory() -> None:
    """Indexes of checkpoints that are done are freed long before their invisible time is over."""
    state = PopState()
    queue = state.queue(TOPIC, GROUP, 0)
    first = Checkpoint(queue, 0, 0, 1 << 40, range(1))
    state.open(first, 0)
    for number in range(1, 5 * COMPACTED_FROM):
        checkpoint = Checkpoint(queue, number, 0, 1 << 40, range(number, number + 1))
        state.open(checkpoint, number)
        state.ack(checkpoint, 1)
    assert len(state._due) <= COMPACTED_FROM + 4
    assert len(state._records[queue.revive_queue]) <= COMPACTED_FROM + 4
    assert state.start_of(queue.revive_queue) == 0
    assert state.oldest_open() == {(TOPIC, GROUP, 0): 0}


def test_revive_queue_never_changes() -> None:
    """The records of a queue stay in one revive queue for ever, since their order counts; all of them are used."""
    assert [revive_queue_of("orders", "billing", number) for number in range(4)] == [1, 7, 5, 3]
    assert {revive_queue_of("t", "g", number) for number in range(200)} == set(range(REVIVE_QUEUES))


def test_damaged_state_is_refused() -> None:
    """A state that is no JSON, not compressed, or of another number of queues raises ValueError."""
    good = PopState().record()
    assert records.parse_state(message_of("state", records.encode_state(good))) == good
    few = records.StateRecord(starts=[0], ends=[0])
    for body in (b"", b"x", records.encode_state(good)[:-4], records.encode_state(few)):
        with pytest.raises(ValueError, match=r".+"):
            records.parse_state(message_of("state", body))


def test_lag_is_the_time_since_the_oldest_open_checkpoint_was_due() -> None:
    """Checkpoints that are acked, or due again later, do not count; without a due one the lag is zero."""
    state = PopState()
    queue = state.queue(TOPIC, GROUP, 0)
    for number in range(3):
        state.open(Checkpoint(queue, number, 1000 + number * 100, 500, (number,)), number)
    assert [state.overdue_ms(now_ms) for now_ms in (1000, 1500, 1700)] == [0, 0, 200]
    state.ack(queue.open[0, 1000], 1)
    assert state.overdue_ms(1700) == 100
    state.schedule(queue.open[1, 1100], 9000)
    assert state.overdue_ms(1750) == 50
    state.ack(queue.open[2, 1200], 1)
    assert [state.overdue_ms(now_ms) for now_ms in (1750, 9001)] == [0, 1]


def test_checkpoint_of_rocketmq_is_open_until_its_acks_have_come() -> None:
    """It is a timer message of any revive queue that comes late: it moves no offset, and stays open for its acks."""
    state, foreign = PopState(), (NUMBER + 3) % REVIVE_QUEUES
    queue = state.queue(TOPIC, GROUP, 0)
    queue.next_offset = 12
    state.apply(checkpoint_record(20, [20, 21]), 100, now_ms=60_500, foreign_queue=foreign)

    assert queue.next_offset == 12, "the messages 12 to 19 were not popped"
    assert state.take_due(61_000 + FOREIGN_GRACE_MS - 1) is None
    assert state.start_of(foreign) == 100, "a restart must read it again"
    assert state.start_of(NUMBER) == 0
    state.apply(ack_record(20, [20]), 101, now_ms=61_050, foreign_queue=foreign)
    late = state.take_due(61_000 + FOREIGN_GRACE_MS)
    assert late is not None
    assert (late.unacked, ack_entry(late, 2)[0]) == ([21], foreign), "its acks must follow it in its queue"
