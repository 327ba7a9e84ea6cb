"""The two pure hearts of a consumer: what may be committed, and who reads which queue."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_client import MessageQueue, ReceivedMessage
from gantry_client.backlog import Backlog, BacklogLimits
from gantry_client.group_member import allocate_averagely

QUEUE = MessageQueue(topic="t", broker_name="b", queue_id=0)
WIDE = BacklogLimits(messages_max=1000, bytes_max=1 << 30, span_max=10_000)


def message(offset: int, body: bytes = b"x") -> ReceivedMessage:
    return ReceivedMessage(topic="t", queue=QUEUE, queue_offset=offset, stored_body=body, properties={})


@given(
    gaps=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    data=st.data(),
)
def test_only_a_contiguous_prefix_is_committed(gaps: list[int], data: st.DataObject) -> None:
    """After any messages are done in any order, everything below the commit offset is done and nothing more could be
    said: the message at it is not done."""
    offsets = [sum(gaps[:index]) for index in range(1, len(gaps) + 1)]
    backlog = Backlog(0)
    backlog.add([message(offset) for offset in offsets], offsets[-1] + 1)

    undone = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        assert backlog.commit_offset == min(undone)
        backlog.done(offset)
        undone.discard(offset)

    assert backlog.commit_offset == offsets[-1] + 1 == backlog.next_offset
    assert (backlog.messages, backlog.bytes) == (0, 0)


def test_messages_that_were_filtered_out_do_not_hold_the_commit_back() -> None:
    """A fetch that found nothing moves the commit with it."""
    backlog = Backlog(5)

    backlog.add([], 50)

    assert backlog.commit_offset == 50


def test_a_message_that_is_done_twice_counts_once() -> None:
    """A late second outcome changes nothing."""
    backlog = Backlog(0)
    backlog.add([message(0, b"abc"), message(1, b"de")], 2)

    backlog.done(0)
    backlog.done(0)

    assert (backlog.messages, backlog.bytes, backlog.commit_offset) == (1, 2, 1)


@pytest.mark.parametrize(
    "limits",
    [
        BacklogLimits(messages_max=2, bytes_max=1 << 30, span_max=10_000),
        BacklogLimits(messages_max=1000, bytes_max=10, span_max=10_000),
        BacklogLimits(messages_max=1000, bytes_max=1 << 30, span_max=2),
    ],
    ids=["messages", "bytes", "span"],
)
async def test_fetching_waits_until_there_is_room(limits: BacklogLimits) -> None:
    """Each limit alone stops the fetching, and finishing messages lets it go on."""
    backlog = Backlog(0)
    backlog.add([message(0, b"12345"), message(1, b"67890")], 2)
    waiting = asyncio.ensure_future(backlog.wait_for_room(limits))
    await asyncio.wait([waiting], timeout=0.02)
    assert not waiting.done()

    backlog.done(0)

    async with asyncio.timeout(60):
        await waiting


async def test_one_stuck_message_bounds_what_comes_again() -> None:
    """Messages done behind a stuck one free memory, but not the span: fetching stops before it is far ahead."""
    backlog = Backlog(0)
    backlog.add([message(offset) for offset in range(100)], 100)
    for offset in range(1, 100):
        backlog.done(offset)

    assert backlog.messages == 1
    assert not backlog.has_room(BacklogLimits(messages_max=1000, bytes_max=1 << 30, span_max=100))


async def test_giving_a_queue_up_waits_for_running_handlers() -> None:
    """wait_until_idle ends when the last handler has ended, and at once when none runs."""
    backlog = Backlog(0)
    await backlog.wait_until_idle()
    backlog.begin()
    backlog.begin()
    waiting = asyncio.ensure_future(backlog.wait_until_idle())

    backlog.end()
    await asyncio.wait([waiting], timeout=0.02)
    assert not waiting.done()
    backlog.end()

    async with asyncio.timeout(60):
        await waiting


def queues(*counts: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic="t", broker_name=f"broker-{broker}", queue_id=queue_id)
        for broker, count in enumerate(counts)
        for queue_id in range(count)
    ]


def java_averagely(queue_count: int, member_count: int, index: int) -> list[int]:
    """The positions that RocketMQ's documentation gives: even shares, the first ones get one more."""
    positions = list(range(queue_count))
    shares = [
        queue_count // member_count + (1 if member < queue_count % member_count else 0)
        for member in range(member_count)
    ]
    start = sum(shares[:index])
    return positions[start : start + shares[index]]


@given(st.integers(0, 40), st.integers(1, 20))
def test_every_queue_has_exactly_one_reader(queue_count: int, member_count: int) -> None:
    """All members together get every queue once, as neighbours, and no share is more than one larger than another."""
    all_queues = queues(queue_count)
    ids = [f"10.0.0.{number}@{number}" for number in range(member_count)]

    shares = [list(allocate_averagely(reversed(all_queues), reversed(ids), client_id)) for client_id in sorted(ids)]

    assert [queue for share in shares for queue in share] == all_queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for index, share in enumerate(shares):
        assert [all_queues.index(queue) for queue in share] == java_averagely(queue_count, member_count, index)


def test_queues_are_ordered_as_java_orders_them() -> None:
    """By topic, broker name and number, names compared by UTF-16 unit: an emoji sorts before U+FF5E there."""
    emoji = MessageQueue(topic="t", broker_name="\U0001f600", queue_id=0)
    tilde = MessageQueue(topic="t", broker_name="\uff5e", queue_id=0)
    ten, nine = queues(11)[10], queues(11)[9]

    assert list(allocate_averagely([tilde, emoji], ["a"], "a")) == [emoji, tilde]
    assert list(allocate_averagely([ten, nine], ["a"], "a")) == [nine, ten], "numbers, not texts"


def test_a_stranger_gets_nothing() -> None:
    """A client that is not among the members reads no queue."""
    assert list(allocate_averagely(queues(4), ["a", "b"], "c")) == []
