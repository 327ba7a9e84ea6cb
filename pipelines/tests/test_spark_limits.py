"""How much of what is there one batch takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.planning import limited_bytes, limited_rows, share

QUEUES = [QueueId("orders", "broker-a", number) for number in range(12)]
VOLUMES = st.lists(st.integers(0, 1000), max_size=12)


def ranges(volumes: list[int]) -> list[QueueRange]:
    return [QueueRange(queue, 7, 7 + volume) for queue, volume in zip(QUEUES, volumes, strict=False)]


@given(VOLUMES, st.integers(0, 5000))
def test_shares_give_out_all_that_may_be_given_and_no_more(volumes: list[int], total: int) -> None:
    """The parts are together the limit, or everything, and no part is more than its queue has."""
    parts = share(volumes, total)

    assert sum(parts) == min(total, sum(volumes))
    assert all(0 <= part <= volume for part, volume in zip(parts, volumes, strict=True))


@given(VOLUMES, st.integers(0, 5000))
def test_no_queue_starves_beside_a_busy_one(volumes: list[int], total: int) -> None:
    """With as many messages to give as queues that want some, each of them gets one at least."""
    wanting = [number for number, volume in enumerate(volumes) if volume]
    parts = share(volumes, total)

    if total >= len(wanting):
        assert all(parts[number] >= 1 for number in wanting)
    else:
        assert max(parts, default=0) <= 1


def test_shares_are_in_proportion() -> None:
    """Who has three times as much waiting gets three times as much."""
    assert share([3000, 1000, 0], 400) == [300, 100, 0]
    assert share([1_000_000, 1], 100) == [99, 1]


def test_fewer_messages_than_queues_go_to_the_longest_backlogs() -> None:
    """And the same backlog gives the same answer."""
    assert share([5, 9, 9, 1], 2) == [0, 1, 1, 0]
    assert share([5, 9, 9, 1], 3) == [1, 1, 1, 0]


@given(VOLUMES, st.integers(1, 5000))
def test_limited_ranges_are_the_beginnings_of_theirs(volumes: list[int], total: int) -> None:
    """A limit takes from the end of a range, never from its beginning, and keeps every queue in the list."""
    before, after = ranges(volumes), limited_rows(ranges(volumes), total)

    assert [(one.queue, one.begin) for one in after] == [(one.queue, one.begin) for one in before]
    assert all(cut.end <= whole.end for cut, whole in zip(after, before, strict=True))
    assert sum(one.count for one in after) == min(total, sum(volumes))


@given(VOLUMES, st.integers(1, 100_000), st.integers(1, 4096))
def test_bytes_are_kept_but_for_a_message_of_each_queue(volumes: list[int], total: int, size: int) -> None:
    """No message is cut: a batch may be larger than its limit by one for each queue, and it is never empty."""
    before = ranges(volumes)
    after = limited_bytes(before, {one.queue: size for one in before}, total)

    assert sum(one.count for one in after) * size <= total + size * sum(1 for volume in volumes if volume)
    assert any(one.count for one in after) == any(volumes)
    assert all(cut.end <= whole.end for cut, whole in zip(after, before, strict=True))


@pytest.mark.parametrize(("bytes_max", "counts"), [(10_000, [50, 50]), (1, [1, 0]), (10**9, [500, 500])])
def test_bytes_are_shared_by_volume_in_bytes(bytes_max: int, counts: list[int]) -> None:
    """Two queues with messages of one size and as many of them get the same."""
    before = ranges([500, 500])

    assert [one.count for one in limited_bytes(before, {one.queue: 100 for one in before}, bytes_max)] == counts
