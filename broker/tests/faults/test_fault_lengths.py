"""Rows D10 and D11 of the fault catalogue: wrong lengths, misplaced blank records, old records at other offsets.

Recovery reads bytes that may be damaged in any way. It always ends, takes limited memory, and accepts no record that
contains another offset. A twin is the same test without one guard: it must find the damage.
"""

import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.fields import field_ranges

from gantry_broker.store import recovery
from gantry_store_files import segment_name
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, RecordCheck, check_record

SENT, FLUSHED = 60, 40
"""How many messages are sent, and how many of them are flushed."""
MIDDLE, TAIL = 20, 50
"""The numbers of the messages that are damaged: one is flushed, and one is not."""
FILE_BYTES = 16 * 1024
MEMORY_BYTES_MAX = 4 << 20
CHECKS_MAX = 20_000
"""How much memory and how many checks of records a recovery of this store may need."""
LENGTHS = {
    "zero": 0, "one": 1, "minus-one": -1, "smallest": -(1 << 31), "largest": (1 << 31) - 1, "a-file": FILE_BYTES,
    "beyond-the-file": FILE_BYTES + 1, "beyond-any-message": 64 << 20, "short-of-a-record": 90,
}  # fmt: skip
BLANKS = {"zero": 0, "seven": 7, "eight": 8, "minus-one": -1, "smallest": -(1 << 31), "beyond-the-file": FILE_BYTES + 1}
IN_MIDDLE_AND_TAIL = pytest.mark.parametrize("number", [MIDDLE, TAIL], ids=["middle", "tail"])


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.slow), "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    """Return a killed store with sixty messages, forty of them flushed, and without a recovery point."""
    made = make_world(request.param, tmp_path)
    made.open()
    for number in range(SENT):
        if number == FLUSHED:
            made.clock.advance(20_000)
            made.store.flush_step()
        made.send()
    made.kill()
    made.disk.remove(made.path("recovery-point.json"))
    yield made
    made.disk.kill()


def start_of(world: StoreWorld, number: int) -> int:
    return sorted(world.records)[number]


def write(world: StoreWorld, offset: int, data: bytes) -> None:
    """Write bytes at an offset of the log, past the broker."""
    world.overwrite(f"commitlog/{segment_name(offset - offset % FILE_BYTES)}", offset % FILE_BYTES, data)


def open_in_bounds(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the store, and check that the number of record checks and the memory are limited."""
    checks = 0

    def counting(*arguments: object, **options: object) -> RecordCheck:
        nonlocal checks
        checks += 1
        assert checks < CHECKS_MAX, "recovery does not end"
        return check_record(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "check_record", counting)
    tracemalloc.start()
    try:
        world.open()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX, "something was allocated because a length asked for it"


def expect_one_lost(world: StoreWorld, number: int) -> None:
    """Expect that one message is lost, even in the tail, since only the process was killed."""
    bodies = world.sent_bodies()
    assert world.bodies() == bodies[:number] + bodies[number + 1 :]
    world.send()
    assert world.bodies()[-1] == world.sent[-1].body


@IN_MIDDLE_AND_TAIL
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("field", ["total", "body-length"])
def test_wrong_record_length_is_detected(
    world: StoreWorld, field: str, length: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: recovery ends within bounds for any length, and loses no more than damage at that place must cost."""
    start = start_of(world, number)
    first, _ = field_ranges(world.records[start])[field]
    write(world, start + first, struct.pack(">i", length))

    open_in_bounds(world, monkeypatch)

    expect_one_lost(world, number)


@IN_MIDDLE_AND_TAIL
@pytest.mark.parametrize("length", [0, 1, 127, 255])
@pytest.mark.parametrize("field", ["topic-length", "properties-length"])
def test_wrong_inner_length_is_detected(
    world: StoreWorld, field: str, length: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: the lengths inside a record are checked as strictly as its own."""
    start = start_of(world, number)
    first, end = field_ranges(world.records[start])[field]
    write(world, start + first, length.to_bytes(end - first, "big"))

    open_in_bounds(world, monkeypatch)

    expect_one_lost(world, number)


@IN_MIDDLE_AND_TAIL
@pytest.mark.parametrize("length", BLANKS.values(), ids=BLANKS.keys())
def test_a_blank_in_the_middle_of_a_file_hides_nothing(
    world: StoreWorld, length: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: a blank record is valid only if it extends exactly to the end of its file."""
    write(world, start_of(world, number), BLANK_RECORD.pack(length, BLANK_MAGIC))

    open_in_bounds(world, monkeypatch)

    expect_one_lost(world, number)


def write_old_records(world: StoreWorld, target: int, numbers: range) -> None:
    """Write copies of the earlier records with these numbers, whole and valid, one after the other at `target`."""
    starts = sorted(world.records)
    data = b"".join(world.records[starts[number]] for number in numbers)
    assert target % FILE_BYTES + len(data) <= FILE_BYTES
    write(world, target, data)


def test_old_records_after_the_end_of_the_log_are_ignored(world: StoreWorld) -> None:
    """D11: older content of the same file after the last record is whole and valid, and no message."""
    end = world.sent[-1].end
    write_old_records(world, end, range(10))

    assert world.open().end == end
    assert world.bodies() == world.sent_bodies()


def test_reused_file_with_old_records_is_treated_as_empty(world: StoreWorld) -> None:
    """D11: a reused file with nothing but old records is an empty one, once the log reaches it."""
    end = world.sent[-1].end
    base = end - end % FILE_BYTES + FILE_BYTES
    old = world.files("commitlog")[f"commitlog/{segment_name(0)}"]
    made = world.disk.create(world.path(f"commitlog/{segment_name(base)}"), FILE_BYTES, reserve=FILE_BYTES)
    made.pwrite(old, 0)
    made.sync()
    made.close()

    assert world.open().end == end
    while world.store.log.wrote < base + 1000:
        world.send()
    world.kill()
    assert world.open().end == world.sent[-1].end
    assert world.bodies() == world.sent_bodies()


def test_old_records_over_newer_ones_cost_only_those(world: StoreWorld) -> None:
    """D11: a misdirected write in the flushed middle costs the overwritten messages; old ones are not served twice."""
    starts = sorted(world.records)
    assert len(world.records[starts[12]]) == len(world.records[starts[MIDDLE]])
    write_old_records(world, starts[MIDDLE], range(12, 13))

    report = world.open()

    assert report.damaged == [(starts[MIDDLE], starts[MIDDLE + 1])]
    expect_one_lost(world, MIDDLE)


def test_without_the_offset_check_old_records_would_be_served(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11's twin: a scan that does not compare a record's own offset takes the old records for new ones."""

    def anywhere(*arguments: object, **options: object) -> RecordCheck:
        return check_record(*arguments, **(options | {"physical_offset": None}))  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "check_record", anywhere)
    end = world.sent[-1].end
    write_old_records(world, end, range(10))

    assert world.open().end > end
