"""Results of a pull: statuses, limits, filters, times.

A *filler* is a unit of a queue that leads to no message, in the place of one that was lost or has expired.
"""

from __future__ import annotations

import pytest

from gantry_broker.store.reader import ReadResult, ReadStatus
from gantry_testing.store_world import StoreWorld
from gantry_wire.hashing import tags_code
from gantry_wire.message import decode_records


def read(world: StoreWorld, offset: int, *, count_max: int = 32, bytes_max: int = 1 << 20) -> ReadResult:
    return world.store.read("orders", 0, offset, count_max=count_max, bytes_max=bytes_max)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, "OFFSET_TOO_SMALL", 0),
        (0, "FOUND", 5),
        (4, "FOUND", 5),
        (5, "OFFSET_OVERFLOW_ONE", 5),
        (6, "OFFSET_OVERFLOW_BADLY", 5),
        (1 << 62, "OFFSET_OVERFLOW_BADLY", 5),
        (-(1 << 62), "OFFSET_TOO_SMALL", 0),
    ],
)
def test_every_offset_has_the_status_of_rocketmq(world: StoreWorld, offset: int, status: str, next_offset: int) -> None:
    """Status and next offset follow from the position of the offset relative to [min, max)."""
    world.send(count=5)

    result = read(world, offset)

    assert (result.status.name, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 5)


def test_missing_and_empty_queues_have_their_own_statuses(world: StoreWorld) -> None:
    """A missing queue and an empty one have different statuses, and both lead to offset 0."""
    assert read(world, 7)[:2] == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    world.store.queues.get_or_create("orders", 0)
    assert read(world, 7)[:2] == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_count_and_bytes_limit_a_read_to_at_least_one_message(world: StoreWorld) -> None:
    """A message larger than the byte limit must not block a consumer forever."""
    world.send(count=10)
    size = world.messages()[0].size

    assert read(world, 0, count_max=3).count == 3
    assert read(world, 2, bytes_max=4 * size + 3).count == 4
    assert read(world, 2, bytes_max=4 * size + 4 * 4).next_offset == 6
    assert read(world, 5, bytes_max=1).count == 1


def test_adjacent_and_scattered_messages_are_returned_as_one_body(world: StoreWorld) -> None:
    """The body is the records in queue order, anywhere in the log."""
    for i in range(200):
        world.send("orders" if i % 5 < 3 else "bills")

    bodies: list[bytes] = []
    offset = 0
    while (result := read(world, offset, count_max=17)).status is ReadStatus.FOUND:
        messages = decode_records(result.body)
        assert len(messages) == result.count
        assert [message.queue_offset for message in messages] == list(range(offset, result.next_offset))
        bodies += [message.body for message in messages]
        offset = result.next_offset

    assert bodies == world.sent_bodies()


@pytest.mark.parametrize("form", ["set", "function"])
def test_filter_returns_only_its_tags_and_advances_over_the_rest(world: StoreWorld, form: str) -> None:
    """Refused messages are skipped; without a match the next offset is after the examined ones."""
    for i in range(20):
        world.append([world.draft(tag="ab"[i % 2])])
    wanted = frozenset({tags_code("b")})
    accept = wanted if form == "set" else (lambda code: code in wanted)

    result = world.store.read("orders", 0, 0, count_max=4, bytes_max=1 << 20, accept=accept)
    nothing = world.store.read("orders", 0, 3, count_max=4, bytes_max=1 << 20, accept=frozenset({1}))

    assert [message.properties["TAGS"] for message in decode_records(result.body)] == ["b"] * 4
    assert result.next_offset == 8
    assert nothing[:2] == (ReadStatus.NO_MATCHED_MESSAGE, 20)


def test_read_examines_a_bounded_number_of_entries(world: StoreWorld) -> None:
    """A filter that refuses everything costs 800 entries a pull, not the whole queue."""
    for _ in range(20):
        world.append([world.draft(body=b"", tag="a") for _ in range(50)])

    result = world.store.read("orders", 0, 0, count_max=4, bytes_max=1 << 20, accept=frozenset({1}))

    assert result.next_offset == 800


def test_queue_that_begins_late_has_fillers_before_its_first_message(world: StoreWorld) -> None:
    """If older messages are gone, the queue begins at its first known offset, after RocketMQ's fillers."""
    queue = world.store.queues.get_or_create("orders", 0)
    world.send("bills")
    queue.put(73, 0, 100, 5)

    assert (queue.min_offset, queue.end) == (73, 74)
    assert read(world, 0)[:2] == (ReadStatus.OFFSET_TOO_SMALL, 73)
    data = world.files("consumequeue/orders/0")["consumequeue/orders/0/00000000000000001000"]
    filler = (0).to_bytes(8, "big") + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8)
    assert data[: 23 * 20] == filler * 23
    assert data[23 * 20 : 24 * 20] == (0).to_bytes(8, "big") + (100).to_bytes(4, "big") + (5).to_bytes(8, "big")


def test_only_verified_records_are_returned_by_physical_offset(world: StoreWorld) -> None:
    """Any physical offset may be requested; only one where a record begins returns a record."""
    world.send(count=3)
    first, second, _ = world.messages()

    assert world.store.guard.message_at(second.physical_offset) is not None
    for offset in (-1, 1, second.physical_offset - 1, second.physical_offset + 1, world.store.log.wrote, 1 << 50):
        assert world.store.guard.message_at(offset) is None
    world.store.log.files.files[0].view[first.physical_offset + 90] ^= 1
    assert world.store.guard.message_at(first.physical_offset) is None


# -- times -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(world: StoreWorld) -> tuple[StoreWorld, int]:
    """Return a store with five messages, three stored at t+10 and two at t+30, and the time t."""
    start = world.clock.wall_ms()
    for delay, count in ((10, 3), (20, 2)):
        world.clock.advance(delay)
        world.append([world.draft() for _ in range(count)])
    return world, start


@pytest.mark.parametrize(
    ("time", "lower", "upper"),
    [(0, 0, 0), (9, 0, 0), (10, 0, 2), (11, 3, 2), (29, 3, 2), (30, 3, 4), (31, 5, 4), (1 << 40, 5, 4)],
)
def test_offsets_are_found_by_time(timed: tuple[StoreWorld, int], time: int, lower: int, upper: int) -> None:
    """LOWER is the first message at or after the time, UPPER the last at or before it."""
    world, start = timed

    assert world.store.times.offset_by_time("orders", 0, start + time) == lower
    assert world.store.times.offset_by_time("orders", 0, start + time, True) == upper


@pytest.mark.parametrize("place_shift", [0, -1], ids=["next message", "inside a record"])
def test_offsets_are_found_by_time_across_fillers(world: StoreWorld, place_shift: int) -> None:
    """Messages before lost ones are found: a filler has the time at its physical offset, or of the next message."""
    start = world.clock.wall_ms()
    for _ in range(100):
        world.append([world.draft()])
        world.clock.advance(1)
    place = world.messages()[80].physical_offset
    world.close()
    world.fill_units(20, 80, place=place + place_shift)
    world.open()

    assert world.store.times.offset_by_time("orders", 0, start + 90) == 90
    assert world.store.times.offset_by_time("orders", 0, start + 7) == 7
    assert world.store.times.offset_by_time("orders", 0, start + 7, True) == 7
    assert world.store.times.offset_by_time("orders", 0, start + 40) == 20
    assert world.store.times.offset_by_time("orders", 0, start + 40, True) == 19
    assert world.store.times.store_time("orders", 0, 40) == -1


def test_store_time_of_missing_message_is_minus_one(timed: tuple[StoreWorld, int]) -> None:
    """The store time of a message is returned, and -1 if there is no message."""
    world, start = timed

    assert world.store.times.earliest_time("orders", 0) == start + 10
    assert world.store.times.store_time("orders", 0, 4) == start + 30
    assert world.store.times.store_time("orders", 0, 5) == -1
    assert world.store.times.store_time("orders", 9, 0) == -1
    assert world.store.times.earliest_time("nothing", 0) == -1
    assert world.store.times.offset_by_time("nothing", 0, start) == 0


@pytest.mark.parametrize("topic", ["../x", "a/b", "", " ", ".", "a" * 300, "a\0b", "..%2f", "tøpic"])
def test_invalid_topic_name_creates_no_path(world: StoreWorld, topic: str) -> None:
    """The table validates names before it makes a path; nothing is created outside or inside."""
    with pytest.raises(ValueError, match="cannot name a file"):
        world.store.queues.get_or_create(topic, 0)

    assert world.disk.list(world.path("consumequeue")) == []


@pytest.mark.parametrize("queue_id", [-1, 1 << 31])
def test_invalid_queue_id_is_refused(world: StoreWorld, queue_id: int) -> None:
    """Queue ids are non-negative 32-bit numbers."""
    with pytest.raises(ValueError, match="is not a queue id"):
        world.store.queues.get_or_create("orders", queue_id)
