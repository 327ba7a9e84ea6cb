"""The parts of a consumer without connections: which offset may be committed, and which member reads which queue."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_client import MessageQueue, ReceivedMessage
from gantry_client.backlog import Backlog, BacklogLimits
from gantry_client.group_consumer import allocate_averagely

QUEUE = MessageQueue(topic="t", broker_name="b", queue_id=0)
WIDE_LIMITS = BacklogLimits(messages_max=1000, bytes_max=1 << 30, span_max=10_000)


def message(offset: int, body: bytes = b"x") -> ReceivedMessage:
    return ReceivedMessage(topic="t", queue=QUEUE, queue_offset=offset, stored_body=body, properties={})


@given(
    gaps=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    data=st.data(),
)
def test_only_a_contiguous_prefix_is_committed(gaps: list[int], data: st.DataObject) -> None:
    """For any order of completion, everything below the commit offset is done, and the message at it is not."""
    offsets = [sum(gaps[:index]) for index in range(1, len(gaps) + 1)]
    backlog = Backlog(0)
    backlog.add([message(offset) for offset in offsets], offsets[-1] + 1)

    undone = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        assert backlog.commit_offset == min(undone)
        backlog.mark_done(offset)
        undone.discard(offset)

    assert backlog.commit_offset == offsets[-1] + 1 == backlog.next_offset
    assert (backlog.messages, backlog.bytes) == (0, 0)


def test_filtered_messages_do_not_delay_the_commit() -> None:
    """A fetch without matching messages advances the commit offset."""
    backlog = Backlog(5)

    backlog.add([], 50)

    assert backlog.commit_offset == 50


def test_message_that_is_done_twice_counts_once() -> None:
    """A second outcome of the same message changes nothing."""
    backlog = Backlog(0)
    backlog.add([message(0, b"abc"), message(1, b"de")], 2)

    backlog.mark_done(0)
    backlog.mark_done(0)

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
async def test_fetching_waits_for_room_in_the_backlog(limits: BacklogLimits) -> None:
    """Each limit alone pauses the fetching, and done messages let it continue."""
    backlog = Backlog(0)
    backlog.add([message(0, b"12345"), message(1, b"67890")], 2)
    waiting = asyncio.ensure_future(backlog.wait_for_room(limits))
    await asyncio.wait([waiting], timeout=0.02)
    assert not waiting.done()

    backlog.mark_done(0)

    async with asyncio.timeout(60):
        await waiting


async def test_stuck_message_bounds_redelivery() -> None:
    """Done messages after a stuck one free memory, but not the span: fetching stops before it is far ahead."""
    backlog = Backlog(0)
    backlog.add([message(offset) for offset in range(100)], 100)
    for offset in range(1, 100):
        backlog.mark_done(offset)

    assert backlog.messages == 1
    assert not backlog.has_room(BacklogLimits(messages_max=1000, bytes_max=1 << 30, span_max=100))


async def test_releasing_a_queue_waits_for_running_handlers() -> None:
    """wait_until_idle ends with the last handler, and at once if none is running."""
    backlog = Backlog(0)
    await backlog.wait_until_idle()
    backlog.start_handler()
    backlog.start_handler()
    waiting = asyncio.ensure_future(backlog.wait_until_idle())

    backlog.end_handler()
    await asyncio.wait([waiting], timeout=0.02)
    assert not waiting.done()
    backlog.end_handler()

    async with asyncio.timeout(60):
        await waiting


def queues(*counts: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic="t", broker_name=f"broker-{broker}", queue_id=queue_id)
        for broker, count in enumerate(counts)
        for queue_id in range(count)
    ]


def shares_by_java(queue_count: int, member_count: int, index: int) -> list[int]:
    """Return the positions by RocketMQ's documentation: even shares, the first ones get one more."""
    positions = list(range(queue_count))
    shares = [
        queue_count // member_count + (1 if member < queue_count % member_count else 0)
        for member in range(member_count)
    ]
    start = sum(shares[:index])
    return positions[start : start + shares[index]]


@given(st.integers(0, 40), st.integers(1, 20))
def test_every_queue_has_exactly_one_reader(queue_count: int, member_count: int) -> None:
    """The members together get every queue once, in contiguous ranges whose sizes differ by at most one."""
    all_queues = queues(queue_count)
    ids = [f"10.0.0.{number}@{number}" for number in range(member_count)]

    shares = [list(allocate_averagely(reversed(all_queues), reversed(ids), client_id)) for client_id in sorted(ids)]

    assert [queue for share in shares for queue in share] == all_queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for index, share in enumerate(shares):
        assert [all_queues.index(queue) for queue in share] == shares_by_java(queue_count, member_count, index)


def test_queues_are_sorted_like_in_java() -> None:
    """Queues sort by topic, broker and number, with names compared by UTF-16 unit: an emoji is before U+FF5E."""
    emoji = MessageQueue(topic="t", broker_name="\U0001f600", queue_id=0)
    tilde = MessageQueue(topic="t", broker_name="\uff5e", queue_id=0)
    ten, nine = queues(11)[10], queues(11)[9]

    assert list(allocate_averagely([tilde, emoji], ["a"], "a")) == [emoji, tilde]
    assert list(allocate_averagely([ten, nine], ["a"], "a")) == [nine, ten], "expected an order by number, not by text"


def test_unlisted_client_gets_no_queue() -> None:
    """A client that is not among the members reads no queue."""
    assert list(allocate_averagely(queues(4), ["a", "b"], "c")) == []
