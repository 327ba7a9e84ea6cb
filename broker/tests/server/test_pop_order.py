"""Ordered pop consumption: a queue is blocked until its messages are acked, or until their time is over."""

from __future__ import annotations

import msgspec
import pytest

from gantry_broker.ports import SystemClock
from gantry_broker.server.core.freed_queues import KEPT_MS as FREED_KEPT_MS
from gantry_broker.server.core.freed_queues import TIMES_MAX, FreedQueues
from gantry_broker.server.core.offsets import ConsumerOffsets, OffsetDocument
from gantry_broker.server.pop.order import (
    FREE_TIMES_MIN,
    ILLEGAL,
    KEPT_MS,
    OUTDATED,
    OrderDocument,
    OrderedQueues,
    OrderInfo,
    offset_list_of,
)

KEY = "orders@billing"


def info_of(*offsets: int, pop_time: int = 1000, attempt_id: str | None = None) -> OrderInfo:
    return OrderInfo(
        pop_time=pop_time, invisible_time=500, offset_list=offset_list_of(offsets), last_consumed_ms=pop_time,
        attempt_id=attempt_id,
    )  # fmt: skip


@pytest.fixture
def queues() -> OrderedQueues:
    found = OrderedQueues()
    found.record_pop(KEY, 0, info_of(5, 6, 9, attempt_id="a"))
    return found


def test_queue_is_blocked_until_all_messages_are_visible(queues: OrderedQueues) -> None:
    """Other queues are free; the request of a lost reply may be repeated."""
    assert queues.is_blocked(KEY, 0, None, now_ms=1499)
    assert not queues.is_blocked(KEY, 0, None, now_ms=1500)
    assert not queues.is_blocked(KEY, 1, None, now_ms=1000)
    assert queues.is_blocked(KEY, 0, "b", now_ms=1000)
    assert not queues.is_blocked(KEY, 0, "a", now_ms=1000)


def test_acks_move_the_offset_to_the_first_open_message(queues: OrderedQueues) -> None:
    """The offset stays before a message that is not acked; the last ack frees the queue."""
    assert queues.ack(KEY, 0, 6, 1000, next_offset=5) == 5
    assert queues.ack(KEY, 0, 5, 1000, next_offset=5) == 9
    assert queues.is_blocked(KEY, 0, None, now_ms=1000)
    assert queues.ack(KEY, 0, 9, 1000, next_offset=5) == 10
    assert not queues.is_blocked(KEY, 0, None, now_ms=1000)


def test_acks_of_other_pops_change_nothing(queues: OrderedQueues) -> None:
    """A message that was not popped is illegal, a receipt of an earlier pop is outdated."""
    assert queues.ack(KEY, 0, 7, 1000, next_offset=5) == ILLEGAL
    assert queues.ack(KEY, 0, 5, 999, next_offset=5) == OUTDATED


def test_ack_of_an_unknown_pop_counts_for_the_next_message_only() -> None:
    """A crash has lost the entry: messages before a later one may be unacked, and are not skipped."""
    after_crash = OrderedQueues()

    assert after_crash.ack(KEY, 0, 6, 1000, next_offset=5) == OUTDATED
    assert after_crash.ack(KEY, 0, 5, 1000, next_offset=5) == 6


def test_outdated_times_do_not_accumulate(queues: OrderedQueues) -> None:
    """Each pop and ack changes when a queue is free; only the present times are kept, and each queue is woken."""
    for number in range(3 * FREE_TIMES_MIN):
        queues.record_pop(KEY, number % 3, info_of(number, pop_time=1000 + number))
    assert len(queues._free) <= FREE_TIMES_MIN + 1

    woken = queues.take_free(1_000_000)
    assert set(woken) >= {("orders", number) for number in range(3)}


def test_repeated_messages_have_delivery_counts(queues: OrderedQueues) -> None:
    """A message counts each pop before, except those of one repeated request."""
    assert queues.record_pop(KEY, 0, info_of(6, 9, 10, pop_time=2000, attempt_id="b")) == {6: 1, 9: 1}
    assert queues.record_pop(KEY, 0, info_of(6, 9, 10, pop_time=2100, attempt_id="b")) == {6: 1, 9: 1}
    assert queues.record_pop(KEY, 0, info_of(9, 10, pop_time=3000)) == {9: 2, 10: 1}


def test_changed_time_of_one_message_moves_the_end_of_the_block(queues: OrderedQueues) -> None:
    """The queue is free when the last message that is not acked is visible."""
    queues.change_visible(KEY, 0, 6, 1000, visible_ms=9000)
    assert queues.is_blocked(KEY, 0, None, now_ms=8999)
    queues.change_visible(KEY, 0, 6, 999, visible_ms=20_000)
    assert not queues.is_blocked(KEY, 0, None, now_ms=9000), "a receipt of an earlier pop changes nothing"
    assert queues.take_free(9000) == [("orders", 0), ("orders", 0)]
    assert queues.take_free(9000) == []


def test_table_survives_a_restart_in_rocketmqs_format(queues: OrderedQueues) -> None:
    """The document has RocketMQ's field names, and a queue stays blocked after it is loaded."""
    queues.ack(KEY, 0, 5, 1000, next_offset=5)
    data = msgspec.json.encode(queues.document(1000))
    assert data == (
        b'{"table":{"orders@billing":{"0":{"popTime":1000,"i":500,"o":[5,1,4],"ot":null,"oc":null,"l":1000,"cm":1,'
        b'"a":"a"}}}}'
    )
    again = OrderedQueues()
    again.load(msgspec.json.decode(data, type=OrderDocument), now_ms=1100)
    assert again.is_blocked(KEY, 0, None, now_ms=1499)
    assert again.ack(KEY, 0, 6, 1000, next_offset=5) == 9


def test_no_queue_is_blocked_longer_because_the_clock_was_set_back(queues: OrderedQueues) -> None:
    """After a start before the time of the pop, the block ends after the invisible time."""
    queues.change_visible(KEY, 0, 6, 1000, visible_ms=1700)
    again = OrderedQueues()
    again.load(queues.document(1000), now_ms=10)
    assert again.is_blocked(KEY, 0, None, now_ms=709)
    assert not again.is_blocked(KEY, 0, None, now_ms=710)
    assert again.ack(KEY, 0, 5, 1000, next_offset=5) == 6, "expected the receipt of the pop to stay valid"


def test_wall_times_of_the_table_are_compared_with_deadlines() -> None:
    """A queue is blocked until its deadline, wherever the wall clock is; the difference of the clocks is not stored."""
    queues = OrderedQueues()
    info = info_of(5, 6, pop_time=1_000_100)
    info.wall_lead_ms = 1_000_000
    queues.record_pop(KEY, 0, info)
    assert queues.is_blocked(KEY, 0, None, now_ms=599)
    assert not queues.is_blocked(KEY, 0, None, now_ms=600)
    queues.change_visible(KEY, 0, 6, 1_000_100, visible_ms=800)
    data = msgspec.json.encode(queues.document(1_000_100))
    assert b"1000800" in data and b"ead" not in data
    again = OrderedQueues()
    again.load(msgspec.json.decode(data, type=OrderDocument), now_ms=1_000_400, wall_lead_ms=1_000_390)
    assert again.is_blocked(KEY, 0, None, now_ms=409)
    assert not again.is_blocked(KEY, 0, None, now_ms=410)


def test_unused_and_forgotten_queues_leave_the_table(queues: OrderedQueues) -> None:
    """The entries of a deleted group, and of a queue that is not consumed for a day, are removed."""
    queues.record_pop("others@billing", 0, info_of(1, pop_time=1000))
    queues.record_pop("others@else", 0, info_of(1, pop_time=KEPT_MS))
    assert set(queues.document(KEPT_MS + 1000).table) == {"others@else"}
    queues.forget_keys("others", None, now_ms=1000)
    assert queues.document(1000).table == {}


def freed_queues(times: dict[str, int]) -> FreedQueues:
    freed = FreedQueues()
    freed.join(times)
    return freed


def test_receipts_from_before_a_queue_was_freed_have_no_effect() -> None:
    """A reset, or the deletion of the topic or the group, voids earlier receipts, also after a restart."""
    freed = FreedQueues()
    queues = OrderedQueues(freed)
    queues.record_pop(KEY, 0, info_of(5, 6, 9))
    queues.forget(KEY, 0, now_ms=1500)
    queues.forget_keys("invoices", None, now_ms=1500)
    queues.forget_keys(None, "archive", now_ms=1500)
    again = OrderedQueues(freed_queues(freed.document(1500)))
    again.load(msgspec.json.decode(msgspec.json.encode(queues.document(1500)), type=OrderDocument), now_ms=1600)
    for known in (queues, again):
        for key in (KEY, "invoices@billing", "orders@archive"):
            assert known.ack(key, 0, 5, 1500, next_offset=5) == OUTDATED
            assert known.ack(key, 0, 5, 1501, next_offset=5) == 6
        assert known.ack(KEY, 1, 5, 1000, next_offset=5) == 6


def test_times_that_an_earlier_release_has_stored_are_read() -> None:
    """It stored them with the last pops."""
    queues = OrderedQueues()
    queues.load(OrderDocument(freed={f"{KEY}@0": 1500}), now_ms=1600)
    assert queues.ack(KEY, 0, 5, 1500, next_offset=5) == OUTDATED


def test_times_of_freed_queues_are_stored_with_the_offsets() -> None:
    """A slave gets them with the master's offsets, and keeps its own later ones. RocketMQ's masters send none."""
    master, slave = ConsumerOffsets(SystemClock()), ConsumerOffsets(SystemClock())
    now_ms = SystemClock().wall_ms()
    changes = master.change_count
    master.freed.record_queue(KEY, 0, now_ms)
    assert master.change_count > changes, "expected that slaves get the time"
    slave.freed.record_queue(KEY, 1, now_ms + 5)
    master.freed.record_queue(KEY, 1, now_ms)
    slave.load(msgspec.json.decode(msgspec.json.encode(master.document()), type=OffsetDocument))
    assert (slave.freed.last_ms(KEY, 0), slave.freed.last_ms(KEY, 1)) == (now_ms, now_ms + 5)
    slave.load(OffsetDocument())
    assert slave.freed.last_ms(KEY, 0) == now_ms


def test_receipts_of_the_last_pop_have_no_effect_after_the_wall_clock_was_set_back(queues: OrderedQueues) -> None:
    """The queue is freed at a time before that pop."""
    queues.record_pop("invoices@billing", 0, info_of(5, pop_time=1000))
    queues.forget(KEY, 0, now_ms=10)
    queues.forget_keys("invoices", None, now_ms=10)
    for key in (KEY, "invoices@billing"):
        assert queues.ack(key, 0, 5, 1000, next_offset=5) == OUTDATED


def test_times_of_freed_queues_are_limited_in_age_and_number() -> None:
    """The latest time that was dropped counts for all queues: no receipt becomes valid again."""
    freed = FreedQueues()
    for number in range(TIMES_MAX + 1):
        freed.record_queue(KEY, number, 1000 + number)
    assert len(freed.document(1000)) <= TIMES_MAX // 2 + 1
    assert freed.last_ms(KEY, 0) >= 1000
    assert freed.last_ms("others@billing", 0) >= 1000

    assert len(freed.document(1000 + TIMES_MAX + FREED_KEPT_MS)) == 1
    assert freed.last_ms(KEY, TIMES_MAX) == 1000 + TIMES_MAX


def test_times_of_a_master_are_limited_in_number() -> None:
    """A member that has its own times, too, keeps no more of both."""
    freed = freed_queues({f"{KEY}@{number}": 1000 + number for number in range(TIMES_MAX)})
    freed.join({f"others@billing@{number}": 1000 for number in range(TIMES_MAX)})
    assert len(freed.document(1000)) <= TIMES_MAX
    assert freed.last_ms("others@billing", 0) >= 1000


def test_truncated_log_voids_pops_of_lost_messages(queues: OrderedQueues) -> None:
    """Other messages will be at these offsets, so acks of the last pop count as those of an unknown one."""
    queues.record_pop(KEY, 1, info_of(5, 6))
    queues.forget_beyond(lambda topic, queue_id: 9)
    assert not queues.is_known(KEY, 0)
    assert queues.ack(KEY, 0, 6, 1000, next_offset=5) == OUTDATED
    assert queues.ack(KEY, 1, 5, 1000, next_offset=5) == 6
