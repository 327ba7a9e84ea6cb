"""Everything that is served was verified: consumers and slaves get only records that are exactly what was stored.

*Sums* are checksums in memory, over the records of a queue in their order, which verify a whole pull at once.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from gantry_broker.ha.store_log import MasterStore
from gantry_broker.store.commit_log import blank_record
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.queue_sums import CHUNK, QueueSums, SumsBudget
from gantry_broker.store.reader import ReadStatus
from gantry_testing.log_head import remove_files
from gantry_testing.store_world import TINY, StoreWorld, make_world
from gantry_testing.verifying import flush, locate_record, overwrite_log
from gantry_wire.message import INT, decode_records

PLACES: Final[dict[str, Callable[[int], int]]] = {
    "a flag in the header": lambda size: 17,
    "the queue offset": lambda size: 27,
    "the store time": lambda size: 60,
    "the body": lambda size: 90,
    "the properties": lambda size: size - 40,
    "the seal": lambda size: size - 4,
}
STOPS = ("running", "clean", "killed")
DAMAGED = 100
"""The number of the record that is damaged, counted from 0: it has queue offset 16 in orders/2."""


@pytest.fixture
def world(filled_world: StoreWorld) -> StoreWorld:
    return filled_world


def flip(world: StoreWorld, offset: int) -> None:
    """Change one bit of the log, as another process or the storage may."""
    extent_byte = MasterStore(world.store).read(offset, 1)[0]
    overwrite_log(world, offset, bytes((extent_byte ^ 1,)))


def damage(world: StoreWorld, field: str, stop: str = "running") -> tuple[str, int, int, bytes]:
    """Flip a bit of a record. Return topic, queue, queue offset and body of its message."""
    start, size, name = locate_record(world, DAMAGED)
    body = world.sent[DAMAGED].body
    flush(world)
    flip(world, start + PLACES[field](size))
    if stop == "clean":
        world.close()
        world.open()
    elif stop == "killed":
        world.kill()
        world.open()
    return name.topic, name.queue_id, name.queue_offset, body


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("field", PLACES)
def test_damaged_message_is_never_served_and_its_neighbours_are(world: StoreWorld, field: str, stop: str) -> None:
    """With any wrong bit, before or after a start; the damage is reported once."""
    topic, queue_id, _, body = damage(world, field, stop)

    for _ in range(2):
        served = world.bodies(topic, queue_id)

        assert served == [one for one in world.sent_bodies(topic, queue_id) if one != body]
    assert world.find_altered() is None
    if stop != "killed" or field != "the queue offset":  # damage that recovery finds is reported by it
        assert world.store.guard.damage.counters.found == 1
        assert [one.start for one in world.store.guard.damage.damaged] == [locate_record(world, DAMAGED)[0]]


@pytest.mark.parametrize("field", ["the body", "the properties"])
def test_without_verification_the_altered_message_is_served(world: StoreWorld, field: str) -> None:
    """Without the verification the altered message is served."""
    topic, queue_id, offset, _ = damage(world, field)
    world.store.guard.is_verifying = False

    result = world.store.read(topic, queue_id, offset, count_max=1, bytes_max=1 << 20)

    assert result.status is ReadStatus.FOUND
    assert result.body != world.records[locate_record(world, DAMAGED)[0]]


def test_damage_is_detected_in_messages_that_were_read_before(world: StoreWorld) -> None:
    """A good read proves nothing about the next one, since the file may change between them."""
    topic, queue_id = locate_record(world, DAMAGED)[2][:2]
    assert world.bodies(topic, queue_id) == world.sent_bodies(topic, queue_id)
    world.store.queues.forget_sums()
    assert world.bodies(topic, queue_id) == world.sent_bodies(topic, queue_id)

    _, _, _, body = damage(world, "the body")

    assert body not in world.bodies(topic, queue_id)


def test_damaged_message_is_logged_once_for_repeated_pulls(world: StoreWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The log has its offset and its message once; a consumer that retries must not fill the log."""
    topic, queue_id, offset, _ = damage(world, "the body")

    for _ in range(5):
        world.messages(topic, queue_id)

    [record] = [one for one in caplog.records if one.message == "stored message is damaged"]
    start, size, _ = locate_record(world, DAMAGED)
    facts = vars(record)
    assert (facts["offset"], facts["bytes"]) == (start, size)
    assert (facts["topic"], facts["queue_id"], facts["queue_offset"]) == (topic, queue_id, offset)


def test_filter_never_uses_altered_properties(world: StoreWorld) -> None:
    """Altered properties could hide a wanted message silently, so the damage is reported instead."""
    topic, queue_id, offset, _ = damage(world, "the properties")
    used_properties: list[str] = []

    def want(properties: str) -> bool:
        used_properties.append(properties)
        return True

    world.store.read(topic, queue_id, offset, count_max=1, bytes_max=1 << 20, want=want)

    good = {record.properties_bytes.decode() for raw in world.records.values() for record in decode_records(raw)}
    assert used_properties and set(used_properties) <= good
    assert world.store.guard.damage.counters.found == 1


def test_many_consecutive_damaged_messages_are_skipped(world: StoreWorld) -> None:
    """A pull advances past each of them, to the first good one."""
    world.send("rows", 40)
    flush(world)
    numbers = range(len(world.sent) - 40, len(world.sent))
    for number in numbers[5:35]:
        flip(world, locate_record(world, number)[0] + 90)

    assert world.bodies("rows") == [world.sent[number].body for number in (*numbers[:5], *numbers[35:])]
    assert world.store.guard.damage.counters.found == 30


def test_damage_of_expired_files_is_forgotten(world: StoreWorld) -> None:
    """It takes no place in the table, no reader waits for it, and readers that waited for it are resumed."""
    flush(world)
    table, size = world.store.guard.damage, world.settings.mapped_file_size_commit_log
    table.set_healer(lambda damage: True)
    resumed: list[int] = []
    table.on_resolved.append(lambda: resumed.append(world.store.log.min_physical))
    old, new = locate_record(world, 10)[0], locate_record(world, 150)[0]
    assert old < size < new
    assert table.report(old) is not None
    assert table.report(new) is not None
    assert table.must_wait_before_gap()

    remove_files(world.store, 1)

    assert (old in table, new in table, resumed) == (False, True, [size])
    table.forget(new, new + 1)
    assert not table.is_awaited
    assert not table.must_wait_before_gap()
    assert table.report(old) is None, "expected no damage in a deleted file, which the scrubber may have read before"
    assert table.integrity.damaged_records_found == 2


def test_time_is_never_read_from_a_damaged_message(world: StoreWorld) -> None:
    """A search by time uses the good messages around it."""
    topic, queue_id, offset, _ = damage(world, "the store time")
    store = world.store
    before, after = (store.times.store_time(topic, queue_id, offset + step) for step in (-1, 1))

    assert store.times.store_time(topic, queue_id, offset) == -1
    assert store.times.offset_by_time(topic, queue_id, before) == offset - 1
    assert store.times.offset_by_time(topic, queue_id, after) in (offset, offset + 1)


# -- slaves ------------------------------------------------------------------------------------------------------------


def feed(world: StoreWorld, *, begin: int = 0, bytes_max: int = 4096) -> bytes:
    """Return what a slave gets from ``begin`` on until nothing more comes."""
    data, log = b"", MasterStore(world.store)
    while records := log.read_verified(begin + len(data), bytes_max):
        data += records
    return data


@pytest.mark.parametrize("bytes_max", [1, 700, 4096, 1 << 20])
def test_slave_gets_the_log_byte_for_byte(world: StoreWorld, bytes_max: int) -> None:
    """It gets blanks at the ends of files and everything else, with requests of any size."""
    assert feed(world, bytes_max=bytes_max) == b"".join(
        MasterStore(world.store).read(start, 16 * 1024) for start in range(0, world.store.log.wrote, 16 * 1024)
    )


@pytest.mark.parametrize("bytes_max", [1, 4096, 1 << 20])
@pytest.mark.parametrize("field", PLACES)
def test_slave_never_gets_a_damaged_record(world: StoreWorld, field: str, bytes_max: int) -> None:
    """The stream stops before it: offsets are the same on every member, so nothing can be left out."""
    damage(world, field)
    start = locate_record(world, DAMAGED)[0]

    assert feed(world, bytes_max=bytes_max) == b"".join(
        MasterStore(world.store).read(place, min(16 * 1024, start - place)) for place in range(0, start, 16 * 1024)
    )
    assert [one.start for one in world.store.guard.damage.damaged] == [start]


def test_without_verification_a_slave_gets_the_damaged_record(world: StoreWorld) -> None:
    """Without the verification the damaged record is sent."""
    damage(world, "the body")
    world.store.guard.is_verifying = False

    assert len(feed(world)) > locate_record(world, DAMAGED)[0]


def test_stream_continues_when_the_record_is_healed(world: StoreWorld) -> None:
    """The next read of a stream that waits before a damaged record returns the record when it is healed."""
    damage(world, "the body")
    start = locate_record(world, DAMAGED)[0]
    assert len(feed(world)) == start

    overwrite_log(world, start, world.records[start])

    assert len(feed(world, begin=start)) == world.store.log.wrote - start


# -- sums --------------------------------------------------------------------------------------------------------------


def test_sums_prove_any_range_of_appended_messages() -> None:
    """One chain covers a queue, with any begin and end of a pull."""
    sums, records = QueueSums(SumsBudget()), [bytes((number,)) * (number + 1) for number in range(50)]
    sums.learn(7, [memoryview(record) for record in records])

    assert all(
        sums.matches(7 + start, end - start, b"".join(records[start:end]))
        for start in range(50)
        for end in range(start, 51)
    )
    assert not sums.matches(7, 2, b"".join(records[1:3]))
    assert not sums.matches(6, 1, b"") and not sums.matches(56, 2, b"".join(records[49:]))


def test_sums_are_bounded_by_their_budget() -> None:
    """A long queue keeps the newest sums, and two queues share the budget."""
    budget = SumsBudget(2 * CHUNK)
    one, two = QueueSums(budget), QueueSums(budget)
    record = memoryview(b"record")
    for number in range(5 * CHUNK):
        one.learn(number, [record])
    two.learn(0, [record])

    assert len(one.values) <= 2 * CHUNK and one.end == 5 * CHUNK and one.matches(5 * CHUNK - 9, 9, bytes(record) * 9)
    assert two.limit == 0 and not two.matches(0, 1, bytes(record))
    one.release()
    two.learn(1, [record])
    assert two.matches(1, 1, bytes(record))


def test_changed_byte_after_the_head_of_a_blank_record_is_no_other_history(tmp_path: Path) -> None:
    """Slaves are compared by these bytes: a flipped bit in an unused range must not refuse one."""
    world = make_world("faulty", tmp_path)
    world.open()
    world.append([world.draft(body=bytes(7_000)) for _ in range(3)])
    file_bytes = world.settings.mapped_file_size_commit_log
    before = world.store.guard.read_verified_through(0, file_bytes)
    world.overwrite("commitlog/00000000000000000000", file_bytes - 100, b"\x04")

    assert len(before) == file_bytes
    assert world.store.guard.read_verified_through(0, file_bytes) == before


# -- memory ------------------------------------------------------------------------------------------------------------

CLAIMED_BYTES: Final = 1_500_000


@pytest.fixture
def large_world(tmp_path: Path) -> StoreWorld:
    """A store with almost 2 MiB in one log file: a message with sizes in its body, and others after it."""
    world = make_world("faulty", tmp_path, replace(TINY, mapped_file_size_commit_log=2 << 20))
    world.open()
    world.append([world.draft(body=b"id=" + INT.pack(CLAIMED_BYTES) * 50 + b"end=" + blank_record(CLAIMED_BYTES) * 20)])
    world.append([world.draft(body=bytes(60_000)) for _ in range(30)])
    flush(world)
    return world


def peak_bytes(read: Callable[[], object]) -> int:
    """Return the most memory that ``read`` allocates at once."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mark", [b"id=", b"end="])
def test_offset_inside_a_body_copies_nothing_of_the_size_it_claims(large_world: StoreWorld, mark: bytes) -> None:
    """A client chooses body and offset, so the bytes there must not decide how much of the log is copied."""
    guard, start = large_world.store.guard, locate_record(large_world, 0)[0]
    position = large_world.records[start].index(mark) + len(mark)
    assert guard.size_at(start + position) == CLAIMED_BYTES

    assert peak_bytes(lambda: guard.message_at(start + position)) < 100_000
    assert guard.message_at(start + position) is None
    assert not guard.damage.damaged


READS: Final[dict[str, Callable[[LogGuard, int], object]]] = {
    "slave": lambda guard, start: guard.read_verified(start, 4096),
    "look-up": lambda guard, start: guard.message_at(start, is_known=True),
}


@pytest.mark.parametrize("read", READS)
def test_damaged_size_is_reported_without_a_copy_of_that_size(
    large_world: StoreWorld, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """The size of a damaged record decides nothing, and the damage is reported as any other."""
    guard, start = large_world.store.guard, locate_record(large_world, 1)[0]
    large_world.store.log.files.files[0].view[start : start + INT.size] = INT.pack(CLAIMED_BYTES)
    reported: list[int] = []

    with monkeypatch.context() as patch:  # the search for the next record has its own limit
        patch.setattr(guard.damage, "report", reported.append)
        assert peak_bytes(lambda: READS[read](guard, start)) < 100_000
    assert reported == [start]
    assert not READS[read](guard, start)
    assert [damage.start for damage in guard.damage.damaged] == [start]


def test_slave_gets_a_record_that_is_larger_than_it_asked_for(large_world: StoreWorld) -> None:
    """At least one record is sent, of any size."""
    start, size, _ = locate_record(large_world, 1)

    assert large_world.store.guard.read_verified(start, 4096) == large_world.records[start]
    assert size > 60_000
