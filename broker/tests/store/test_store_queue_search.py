"""One damaged unit of a consume queue misleads no search by physical offset: no message is skipped or shown early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from gantry_broker.store import queue_search
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.identity import OwnershipRange
from gantry_broker.store.queue_search import QueueSearch
from gantry_broker.store.recovery import no_seals
from gantry_broker.store.time_search import TimeSearch
from gantry_store_files import UNIT, UNIT_BYTES, segment_name
from gantry_store_files.queue_units import FILLER_SIZE, Unit, has_expired
from gantry_testing.log_head import remove_files, write_recovery_point
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire import message as wire
from gantry_wire.message import record_store_timestamp

COUNT: Final = 60
"""How many messages each of two queues has before the recovery point."""
NEW: Final = 10
"""How many more messages each has after it."""
QUEUE_FILE_BYTES: Final = 50 * UNIT_BYTES

DAMAGES: Final[dict[str, Callable[[Unit], Unit]]] = {
    "far": lambda unit: (unit[0] | 1 << 35, *unit[1:]),
    "after the log": lambda unit: (unit[0] + 9_000, *unit[1:]),
    "a later record": lambda unit: (unit[0] + 2 * unit[1], *unit[1:]),
    "zeros": lambda unit: (0, 0, 0),
    "near the beginning": lambda unit: (unit[0] & 0xFF, *unit[1:]),
    "an earlier record": lambda unit: (max(0, unit[0] - 2 * unit[1]), *unit[1:]),
    "negative": lambda unit: (-unit[0] - 1, *unit[1:]),
}


def place_of(offset: int) -> tuple[str, int]:
    """Return the file and the position in it of a unit of the queue ``orders/0``."""
    position = offset * UNIT_BYTES % QUEUE_FILE_BYTES
    return f"consumequeue/orders/0/{segment_name(offset * UNIT_BYTES - position)}", position


def damage(world: StoreWorld, offset: int, kind: str) -> None:
    """Damage one unit in the file of a stopped or running store."""
    name, position = place_of(offset)
    unit = UNIT.unpack_from(world.disk.read_file(world.path(name)), position)
    world.overwrite(name, position, UNIT.pack(*DAMAGES[kind](unit)))


def queue_of(world: StoreWorld) -> ConsumeQueue:
    queue = world.store.queues.get("orders", 0)
    assert queue is not None
    return queue


def send(world: StoreWorld, count: int) -> None:
    for _ in range(count):
        world.send("orders")
        world.send("bills")


def is_complete(world: StoreWorld) -> bool:
    """Return whether consumers get every message that the log still has, at its own queue offset."""
    begin = world.store.log.min_physical
    return all(
        [(message.queue_offset, message.body) for message in world.messages(topic)]
        == [(sent.queue_offset, sent.body) for sent in world.sent if sent.topic == topic and sent.end > begin]
        for topic in ("orders", "bills")
    )


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    """A store in memory with two queues whose messages alternate in the log, and a recovery point."""
    made = make_world("faulty", tmp_path)
    made.open()
    send(made, COUNT)
    write_recovery_point(made)
    return made


@pytest.fixture
def trimmed(tmp_path: Path) -> StoreWorld:
    """A store whose queues have lost their first messages with log files, and whose recovery point is older."""
    made = make_world("faulty", tmp_path)
    made.open()
    send(made, 300)
    write_recovery_point(made)
    remove_files(made.store, 2)
    return made


def believe_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the guard off: bisect over the units, and believe them."""

    def end_before(_: QueueSearch, queue: ConsumeQueue, physical: int, seals: object) -> int:
        return queue.end_before(physical)

    def min_offset_at(_: QueueSearch, queue: ConsumeQueue, begin: int) -> int:
        return find_start(_, queue, queue.min_offset, queue.readable_end, begin)

    def find_start(search: QueueSearch, queue: ConsumeQueue, first: int, end: int, begin: int = 0) -> int:
        begin = begin or search._log.min_physical
        return queue.partition(first, end, lambda unit: has_expired(unit[0], unit[1], begin))

    monkeypatch.setattr(QueueSearch, "end_before", end_before)
    monkeypatch.setattr(QueueSearch, "min_offset_at", min_offset_at)
    monkeypatch.setattr(QueueSearch, "find_start", find_start)


# -- the end of a queue ------------------------------------------------------------------------------------------------


def start_hidden(world: StoreWorld) -> None:
    """Start as a broker whose slaves confirm messages: what lies after the recovery point is hidden until they do."""
    store = world.make_store()
    store.open(is_flushing=False, is_unconfirmed_hidden=True)
    world.adopt(store)
    store.start_copying().hold_undispatched()
    store.dispatcher.release(store.log.wrote)


@pytest.mark.parametrize("offset", [0, 29, COUNT - 2, COUNT - 1, COUNT, COUNT + NEW - 1])
@pytest.mark.parametrize("kind", DAMAGES)
def test_start_that_hides_messages_skips_none(world: StoreWorld, kind: str, offset: int) -> None:
    """After a kill and a confirmation all messages are served, whichever unit was damaged."""
    send(world, NEW)
    world.kill()
    damage(world, offset, kind)

    start_hidden(world)

    assert is_complete(world)


@pytest.mark.parametrize("kind", ["far", "after the log"])
def test_start_that_believes_units_skips_messages(
    world: StoreWorld, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the last unit but one, which points too far, ends its queue."""
    believe_units(monkeypatch)
    send(world, NEW)
    world.kill()
    damage(world, COUNT - 2, kind)

    start_hidden(world)

    assert not is_complete(world)


@pytest.mark.parametrize("offset", [29, COUNT - 3, COUNT - 2, COUNT - 1, COUNT])
@pytest.mark.parametrize("kind", DAMAGES)
def test_truncation_of_the_log_removes_only_its_messages(world: StoreWorld, kind: str, offset: int) -> None:
    """A former master truncates its log: messages before the cut stay in their queues, and none after it does."""
    end = world.sent[-1].end
    send(world, NEW)
    damage(world, offset, kind)

    world.store.truncate(end)
    world.forget_after(end)

    assert queue_of(world).readable_end == COUNT
    assert is_complete(world)


def test_truncation_that_believes_units_skips_messages(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a damaged unit just before the cut is removed."""
    believe_units(monkeypatch)
    with pytest.raises(AssertionError):
        test_truncation_of_the_log_removes_only_its_messages(world, "far", COUNT - 1)


def end_at(world: StoreWorld, number: int) -> int:
    """Return the end that a search finds for a log that ends before the message ``number``."""
    physical = next(one.end for one in world.sent if one.topic == "bills" and one.queue_offset == number - 1)
    seals = world.store.identity.ownership_at
    return QueueSearch(world.store.log, world.store.queues).end_before(queue_of(world), physical, seals)


def test_every_damaged_unit_leaves_every_end(world: StoreWorld) -> None:
    """For each unit of the newest file and each damage, the end before each of the last messages is the same."""
    for kind in DAMAGES:
        for offset in range(50, COUNT):
            name, position = place_of(offset)
            whole = world.disk.read_file(world.path(name))[position : position + UNIT_BYTES]
            damage(world, offset, kind)
            assert [end_at(world, number) for number in (51, 58, 59, 60)] == [51, 58, 59, 60], (kind, offset)
            world.overwrite(name, position, whole)


def test_damaged_file_of_units_leaves_the_end(world: StoreWorld) -> None:
    """If all units near the end are damaged, the log decides."""
    world.overwrite(place_of(50)[0], 0, bytes(QUEUE_FILE_BYTES))

    assert [end_at(world, number) for number in (45, 51, 58, 60)] == [45, 51, 58, 60]


def test_unit_of_a_damaged_record_stays(world: StoreWorld) -> None:
    """A record that is damaged in the log proves nothing, and its unit may be right: the message can be healed."""
    for number in (57, 58, 59):
        physical, size, _ = queue_of(world).stored_unit(number)
        file = world.store.log.files.at(physical)
        assert file is not None
        whole = bytes(file.view[physical - file.base_offset :][:size])
        file.view[physical - file.base_offset :][:size] = b"\xff" * size
        assert [end_at(world, one) for one in (57, 58, 59, 60)] == [57, 58, 59, 60], number
        file.view[physical - file.base_offset :][:size] = whole


def test_fillers_at_the_end_stay(world: StoreWorld) -> None:
    """They stand for lost messages, whose queue offsets must not be used again."""
    last = queue_of(world).stored_unit(COUNT - 4)
    for offset in range(COUNT - 3, COUNT):
        world.overwrite(*place_of(offset), UNIT.pack(last[0] + 1, FILLER_SIZE, 0))

    assert end_at(world, COUNT) == COUNT


@pytest.mark.parametrize("number", [1, 20, 50, COUNT])
def test_intact_queue_costs_two_records(world: StoreWorld, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with thousands of queues reads no more of the log for a search."""
    checked: list[int] = []
    check_record = wire.check_record

    def count(*args: object, physical_offset: int, **options: bool) -> object:
        checked.append(physical_offset)
        return check_record(*args, physical_offset=physical_offset, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_search, "check_record", count)
    monkeypatch.delattr(queue_search, "LogScan")

    assert end_at(world, number) == number
    assert len(checked) <= 2


def test_unit_of_a_deleted_topic_proves_nothing(world: StoreWorld) -> None:
    """After a topic was deleted and created again, old records have the same topic, queue and queue offset."""
    old = queue_of(world).stored_unit(2)
    world.store.delete_topic("orders")
    world.sent[:] = [one for one in world.sent if one.topic != "orders"]
    world.send("orders", 4)
    end, queue = world.sent[-1].end, queue_of(world)
    world.store.flush()
    queue.replace_unit(2, UNIT.pack(*old))
    search = QueueSearch(world.store.log, world.store.queues)

    assert search.end_before(queue, world.sent[-2].end, lambda _: OwnershipRange(True, 1 << 62)) == 3
    assert search.end_before(queue, world.sent[-3].end, no_seals) == 2
    assert search.end_before(queue, end, no_seals) == 4


# -- the beginning of a queue ------------------------------------------------------------------------------------------


OFFSETS: Final = (97, 98, 99, 104, 112, 113, 150, 299)
"""The first offset of a trimmed queue, others near it, and some that a bisection reads."""


@pytest.mark.parametrize("kind", DAMAGES)
def test_deletion_of_log_files_skips_no_message(tmp_path: Path, kind: str) -> None:
    """Retention trims each queue to the new beginning of the log, and not further."""
    for offset in OFFSETS:
        world = make_world("faulty", tmp_path)
        world.open()
        send(world, 300)
        write_recovery_point(world)
        damage(world, offset, kind)
        remove_files(world.store, 2)
        assert queue_of(world).min_offset == 97
        assert is_complete(world), offset
        remove_files(world.store, 1)
        assert is_complete(world), offset


@pytest.mark.parametrize("kind", ["zeros", "near the beginning", "an earlier record", "negative"])
def test_deletion_that_believes_units_skips_messages(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a damaged unit that points before the new beginning takes live messages with it."""
    believe_units(monkeypatch)
    with pytest.raises(AssertionError):
        test_deletion_of_log_files_skips_no_message(tmp_path, kind)


@pytest.mark.parametrize("kind", DAMAGES)
def test_start_after_a_deletion_skips_no_message(tmp_path: Path, kind: str) -> None:
    """The recovery point is older than the deletion, so that only the units show where a queue begins."""
    for offset in OFFSETS:
        world = make_world("faulty", tmp_path)
        world.open()
        send(world, 300)
        write_recovery_point(world)
        remove_files(world.store, 2)
        assert queue_of(world).min_offset == 97
        world.kill()
        damage(world, offset, kind)
        world.open()
        assert is_complete(world), offset


@pytest.mark.parametrize("kind", ["zeros", "near the beginning", "an earlier record", "negative"])
def test_start_that_believes_units_after_a_deletion_skips_messages(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: messages before a damaged unit count as expired."""
    believe_units(monkeypatch)
    monkeypatch.setattr("gantry_broker.store.derived.DerivedFiles._has_expired_before", lambda *_: True)
    with pytest.raises(AssertionError):
        test_start_after_a_deletion_skips_no_message(tmp_path, kind)


def test_intact_queues_are_not_rebuilt_after_a_deletion(trimmed: StoreWorld) -> None:
    """Expired units have no records that could prove them; that is no reason to read the whole log."""
    begin = queue_of(trimmed).min_offset
    trimmed.kill()

    assert trimmed.open().queues_rebuilt == []
    assert queue_of(trimmed).min_offset == begin


def test_single_expired_unit_is_believed(tmp_path: Path) -> None:
    """A queue whose first message alone has expired is intact, although no neighbour confirms that."""
    world = make_world("faulty", tmp_path)
    world.open()
    world.send("orders")
    world.send("bills", 200)
    world.send("orders", 5)
    write_recovery_point(world)
    remove_files(world.store, 1)
    world.kill()

    assert world.open().queues_rebuilt == []
    assert queue_of(world).min_offset == 1
    assert is_complete(world)


def test_single_first_unit_that_points_before_the_recovery_point_is_wrong(tmp_path: Path) -> None:
    """When the recovery point was written, the unit's message was in the log, which began later."""
    world = make_world("faulty", tmp_path)
    world.open()
    world.send("bills", 200)
    world.store.flush()
    remove_files(world.store, 1)
    world.send("orders")
    world.send("bills", 200)
    world.send("orders", 5)
    write_recovery_point(world)
    remove_files(world.store, 1)
    world.kill()
    damage(world, 0, "near the beginning")

    assert world.open().queues_rebuilt == [("orders", 0)]
    assert is_complete(world)


# -- store times -------------------------------------------------------------------------------------------------------


def wrong_offsets(world: StoreWorld, kind: str) -> list[tuple[int, int, int]]:
    """Return (damaged unit, message, offset) where the search for a message's time finds a later one.

    The offset of the message before is right if that one or the message itself has the damaged unit.
    """
    found: list[tuple[int, int, int]] = []
    times = [world.store.times.store_time("orders", 0, number) for number in range(COUNT)]
    for damaged in range(COUNT):
        name, position = place_of(damaged)
        whole = world.disk.read_file(world.path(name))[position : position + UNIT_BYTES]
        damage(world, damaged, kind)
        for number, time_ms in enumerate(times):
            offset = world.store.times.offset_by_time("orders", 0, time_ms)
            if offset != number and not (damaged in (number, number - 1) and offset == number - 1):
                found.append((damaged, number, offset))
        world.overwrite(name, position, whole)
    return found


@pytest.mark.parametrize("kind", DAMAGES)
def test_search_by_time_finds_no_later_message(world: StoreWorld, kind: str) -> None:
    """A group that is reset to a time skips no message, whichever unit is damaged."""
    assert wrong_offsets(world, kind) == []


@pytest.mark.parametrize("kind", DAMAGES)
def test_search_by_time_that_believes_units_skips_messages(
    world: StoreWorld, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the time of any good record counts, and a unit without one has expired."""

    def unit_time(search: TimeSearch, queue: ConsumeQueue, offset: int, unit: Unit) -> int | None:
        record = search._log.slice(unit[0], unit[1])
        return record_store_timestamp(record) if record and search._guard.is_good(record, 0, unit[0]) else -1

    monkeypatch.setattr(TimeSearch, "_unit_time", unit_time)

    assert wrong_offsets(world, kind)
