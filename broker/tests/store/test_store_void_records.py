"""Void records take the place of damaged ones that no replica has; the log continues, and every other message stays."""

from __future__ import annotations

import errno

import pytest

from gantry_broker.errors import StoreFailed
from gantry_broker.store.inspect.findings import Kind
from gantry_broker.store.void_records import VOID_BYTES_MAX, VOID_BYTES_MIN, void_records
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import flush, locate_record, overwrite_log, verify
from gantry_wire.message import BLANK_BYTES, BLANK_MAGIC, BLANK_RECORD, RecordFault, check_record, decode_record
from gantry_wire.names import VOID_TOPIC

FILE_BYTES = TINY.mapped_file_size_commit_log


# -- the bytes ---------------------------------------------------------------------------------------------------------


SIZES = [VOID_BYTES_MIN, VOID_BYTES_MIN + 1, 1_000, VOID_BYTES_MAX, VOID_BYTES_MAX + 1, 3_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_range_is_filled_with_sealed_records(size: int) -> None:
    """Each has its own offset and the flag of rolled back messages, and fits into one frame of replication."""
    start = 5_000_000
    data = void_records(start, start + size, 1 << 30, 1_234)

    position = 0
    while position < size:
        check = check_record(data, position, physical_offset=start + position, is_sealed=True)
        record = decode_record(data, position)
        assert check.is_good and check.size <= VOID_BYTES_MAX
        assert (record.topic, record.sys_flag, record.store_timestamp_ms) == (VOID_TOPIC, 0xC, 1_234)
        position += check.size
    assert position == len(data) == size


@pytest.mark.parametrize("size", [BLANK_BYTES, 60, 500])
def test_end_of_a_file_gets_a_blank_record(size: int) -> None:
    """However small it is: the blank record that closes a file may be damaged."""
    data = void_records(FILE_BYTES - size, FILE_BYTES, FILE_BYTES, 0)

    assert data[:BLANK_BYTES] == BLANK_RECORD.pack(size, BLANK_MAGIC)
    assert len(data) == size
    assert check_record(data, 0).fault is RecordFault.BLANK and not any(data[BLANK_BYTES:])


def test_whole_file_does_not_begin_with_a_blank_record() -> None:
    """That would be a filler, which stands for a lost file."""
    data = void_records(FILE_BYTES, 2 * FILE_BYTES, FILE_BYTES, 0)

    check = check_record(data, 0, physical_offset=FILE_BYTES, is_sealed=True)
    assert check.is_good and check_record(data, check.size).fault is RecordFault.BLANK
    assert len(data) == FILE_BYTES


def test_too_small_a_range_is_refused() -> None:
    """No record of a client is so small."""
    with pytest.raises(ValueError, match="has 12"):
        void_records(0, VOID_BYTES_MIN - 1, FILE_BYTES, 0)


# -- in a store --------------------------------------------------------------------------------------------------------


def first_of_a_file(world: StoreWorld) -> int:
    """Return the number of the first message of the second log file."""
    return sorted(world.records).index(FILE_BYTES)


CASES = {
    "one": lambda world: [57],
    "two adjacent": lambda world: [57, 58],
    "first of a file": lambda world: [first_of_a_file(world)],
    "last of a file": lambda world: [first_of_a_file(world) - 1],
    "last of the log": lambda world: [len(world.sent) - 1],
    "first of the log": lambda world: [0],
}


def damage(world: StoreWorld, numbers: list[int]) -> int:
    """Damage messages from their magic on, and return the offset of the first."""
    for number in numbers:
        start, size, _ = locate_record(world, number)
        overwrite_log(world, start + 4, bytes(size - 4))
    return locate_record(world, numbers[0])[0]


@pytest.mark.parametrize("end", ["clean stop", "kill", "loss of power"])
@pytest.mark.parametrize("case", CASES)
def test_store_continues_without_the_lost_messages(case: str, end: str) -> None:
    """They keep their offsets, every other message is served, and nothing is damaged any more."""
    world = StoreWorld(FaultyDisk(), "/node", TINY)
    world.open()
    world.send("orders", 250)
    world.store.flush()
    numbers = CASES[case](world)
    start = damage(world, numbers)
    damaged = world.disk.read_file(world.path(f"commitlog/{start - start % FILE_BYTES:020d}"))[start % FILE_BYTES :]

    world.store.prepare_void(start)()
    assert [str(error) for error in world.fatal] and not world.store.is_writable
    {"clean stop": world.close, "kill": world.kill, "loss of power": world.lose_power}[end]()
    report = world.open()

    assert not report.damaged and not report.lost_flushed_bytes and not report.set_aside
    assert not world.store.losses.record.missing
    sent = world.sent_bodies("orders")
    assert world.bodies("orders") == [body for number, body in enumerate(sent) if number not in numbers]
    assert list(world.store.queues.topics()) == ["orders"], "void records are in no topic"
    world.send("orders", 3)
    assert [message.queue_offset for message in world.messages("orders")][-3:] == [250, 251, 252]
    copy = world.disk.read_file(world.path(f"set-aside/damaged-{start:020d}"))
    assert copy == damaged[: len(copy)] and len(copy) >= len(world.records[start])
    world.store.flush()
    world.close()
    found = {finding.kind for finding in verify(world).findings.kept}
    assert found <= {Kind.NUMBERS_MISSING}, "a queue lacks the lost messages, and nothing else is unusual"


def test_failed_write_leaves_the_damage() -> None:
    """The store fails, as after every failed write, and the next start finds the damage again."""
    world = StoreWorld(FaultyDisk(), "/node", TINY)
    world.open()
    world.send("orders", 250)
    flush(world)
    start = damage(world, [57])
    void = world.store.prepare_void(start)
    world.faulty_disk.fail_next("sync", errno.EIO)

    with pytest.raises(StoreFailed, match="changing the log failed"):
        void()
    world.kill()

    world.open()
    assert len(world.bodies("orders")) == 249
    assert [one.start for one in world.store.guard.damage.damaged] == [start]
