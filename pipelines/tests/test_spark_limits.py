"""The number of available messages that one batch takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.planning import distribute, limit_bytes, limit_rows

QUEUES = [QueueId("orders", "broker-a", number) for number in range(12)]
VOLUMES = st.lists(st.integers(0, 1000), max_size=12)


def ranges(volumes: list[int]) -> list[QueueRange]:
    return [QueueRange(queue, 7, 7 + volume) for queue, volume in zip(QUEUES, volumes, strict=False)]


@given(VOLUMES, st.integers(0, 5000))
def test_shares_add_up_to_the_limit(volumes: list[int], total: int) -> None:
    """The shares add up to the limit, or to everything, and no share is larger than its queue."""
    parts = distribute(volumes, total)

    assert sum(parts) == min(total, sum(volumes))
    assert all(0 <= part <= volume for part, volume in zip(parts, volumes, strict=True))


@given(VOLUMES, st.integers(0, 5000))
def test_no_queue_starves_beside_a_busy_one(volumes: list[int], total: int) -> None:
    """If the limit is at least the number of queues with messages, each of them gets at least one."""
    wanting = [number for number, volume in enumerate(volumes) if volume]
    parts = distribute(volumes, total)

    if total >= len(wanting):
        assert all(parts[number] >= 1 for number in wanting)
    else:
        assert max(parts, default=0) <= 1


def test_shares_are_proportional_to_the_backlog() -> None:
    """A queue with three times the backlog gets three times as much."""
    assert distribute([3000, 1000, 0], 400) == [300, 100, 0]
    assert distribute([1_000_000, 1], 100) == [99, 1]


def test_fewer_messages_than_queues_go_to_the_longest_backlogs() -> None:
    """The same backlog always gives the same shares."""
    assert distribute([5, 9, 9, 1], 2) == [0, 1, 1, 0]
    assert distribute([5, 9, 9, 1], 3) == [1, 1, 1, 0]


@given(VOLUMES, st.integers(1, 5000))
def test_limited_ranges_are_beginnings_of_the_ranges(volumes: list[int], total: int) -> None:
    """A limit cuts the end of a range, never its beginning, and keeps every queue in the list."""
    before, after = ranges(volumes), limit_rows(ranges(volumes), total)

    assert [(one.queue, one.begin) for one in after] == [(one.queue, one.begin) for one in before]
    assert all(cut.end <= whole.end for cut, whole in zip(after, before, strict=True))
    assert sum(one.count for one in after) == min(total, sum(volumes))


@given(VOLUMES, st.integers(1, 100_000), st.integers(1, 4096))
def test_bytes_limit_is_exceeded_by_at_most_one_message_of_each_queue(
    volumes: list[int], total: int, size: int
) -> None:
    """No message is cut: a batch may exceed its limit by one message for each queue, and is never empty."""
    before = ranges(volumes)
    after = limit_bytes(before, {one.queue: size for one in before}, total)

    assert sum(one.count for one in after) * size <= total + size * sum(1 for volume in volumes if volume)
    assert any(one.count for one in after) == any(volumes)
    assert all(cut.end <= whole.end for cut, whole in zip(after, before, strict=True))


@pytest.mark.parametrize(("bytes_max", "counts"), [(10_000, [50, 50]), (1, [1, 0]), (10**9, [500, 500])])
def test_bytes_are_shared_by_volume_in_bytes(bytes_max: int, counts: list[int]) -> None:
    """Two queues with equally many messages of one size get the same; a limit below one message gives only one."""
    before = ranges([500, 500])

    assert [one.count for one in limit_bytes(before, {one.queue: 100 for one in before}, bytes_max)] == counts
