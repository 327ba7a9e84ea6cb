"""`verify` finds damage of the log, reports its place and cost, and tells it from the effects of a crash."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from gantry_broker.store.inspect.findings import Harm, Kind
from gantry_broker.store.inspect.verify import Verifier
from gantry_testing.faulty_reading_disk import FaultyReadingDisk
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import (
    ALL,
    LOG,
    flush,
    kinds,
    locate_record,
    only_finding,
    overwrite_log,
    verify,
)
from gantry_wire.message import decode_record, encode_record
from gantry_wire.seal import SEAL_BYTES


@pytest.fixture
def world(filled_world: StoreWorld) -> StoreWorld:
    return filled_world


# -- the log -----------------------------------------------------------------------------------------------------------


FIELDS: dict[str, Callable[[int], tuple[int, bytes]]] = {
    "length": lambda size: (0, struct.pack(">i", size - 8)),
    "length-zero": lambda _: (0, bytes(4)),
    "length-negative": lambda _: (0, struct.pack(">i", -1)),
    "length-huge": lambda _: (0, struct.pack(">i", 0x7FFFFFFF)),
    "magic": lambda _: (4, b"\0"),
    "blank-magic": lambda _: (4, struct.pack(">i", -875286124)),
    "body-crc": lambda _: (8, b"\x55\x55"),
    "queue-id": lambda _: (12, struct.pack(">i", 99)),
    "queue-offset": lambda _: (20, struct.pack(">q", 7_000)),
    "own-offset": lambda _: (28, struct.pack(">q", 12)),
    "store-time": lambda _: (56, struct.pack(">q", 1)),
    "body-length": lambda _: (84, struct.pack(">i", 1 << 30)),
    "body": lambda _: (90, b"\0\0"),
    "properties": lambda size: (size - 40, b"\0"),
    "seal": lambda size: (size - 4, b"x"),
}


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("end", ["clean", "killed"])
def test_damaged_record_is_found_with_its_offset_and_name(world: StoreWorld, field: str, end: str) -> None:
    """For damage in any field the record is named as lost, and all records around it are verified."""
    flush(world)
    start, size, name = locate_record(world, 130)
    position, data = FIELDS[field](size)
    overwrite_log(world, start + position, data)
    if end == "clean":
        world.close()
    else:
        world.kill()

    report = verify(world)
    found = only_finding(report)

    assert (found.kind, found.harm, found.offset, found.length) == (Kind.ROT, Harm.LOST, start, size)
    assert (found.lost, found.lost_count) == ([name], 1)
    assert (report.records, report.units, report.index_entries) == (199, 199, 199)
    assert report.findings.is_damaged
    assert report.findings.lost_messages == 1


def test_damage_without_a_queue_is_named_by_the_record_head(world: StoreWorld) -> None:
    """Without a queue unit the record's own head names the message, if only its checksum is wrong."""
    start, _, name = locate_record(world, 130)
    world.close()
    overwrite_log(world, start + 90, b"\0\0")
    world.disk.remove_tree(world.path("consumequeue"))

    report = verify(world)

    [rot] = [finding for finding in report.findings.kept if finding.kind is Kind.ROT]
    assert (rot.lost, rot.lost_count) == ([name], 1)
    assert report.findings.lost_messages == 1


def test_missing_message_is_found_by_its_queue_offset(world: StoreWorld) -> None:
    """Queue offsets are dense: an offset with neither a record nor a reason is a lost message."""
    end = world.store.queues.get("orders", 0)
    assert end is not None
    lost_number = end.end
    end.end = end.readable_end = lost_number + 1
    end.seek(lost_number + 1)
    world.send("orders")
    world.close()
    world.overwrite("consumequeue/orders/0/00000000000000000000", lost_number * 20, bytes(20))

    report = verify(world)

    [missing] = [finding for finding in report.findings.kept if finding.kind is Kind.NUMBERS_MISSING]
    assert (missing.harm, missing.queue_offset, missing.count) == (Harm.LOST, lost_number, 1)


def test_a_torn_tail_is_no_damage(world: StoreWorld) -> None:
    """After the flushed end a crash leaves partial records; the next start cuts them off."""
    flush(world)
    world.send("orders", 10)
    start, size, _ = locate_record(world, 209)
    world.kill()
    overwrite_log(world, start + size - 10, bytes(10))

    report = verify(world)

    assert not report.findings.is_damaged
    torn = report.findings.kept[0]
    assert (torn.kind, torn.harm, torn.offset, torn.length) == (Kind.TORN_TAIL, Harm.UNSETTLED, start, size - 10)
    assert kinds(report) == {
        (Kind.TORN_TAIL, Harm.UNSETTLED),
        (Kind.UNIT_BEYOND, Harm.UNSETTLED),
        (Kind.INDEX_STRAY, Harm.UNSETTLED),
    }


def test_whole_records_after_a_torn_one_are_counted_and_cut(world: StoreWorld) -> None:
    """After a reboot they are not known to be on the disk, so a start cuts them off, and verify agrees."""
    flush(world)
    world.send("orders", 10)
    start, _, _ = locate_record(world, 205)
    world.kill()
    overwrite_log(world, start + 90, b"\0\0")

    report = verify(world)

    assert report.end == start
    assert report.records == 205
    assert report.findings.kept[0].kind is Kind.TORN_TAIL
    assert "4 whole records follow" in report.findings.kept[0].text
    assert not report.findings.is_damaged


def test_records_after_damage_are_kept_after_a_kill(world: StoreWorld) -> None:
    """The page cache survived, so all written records exist: a start skips the damage, and verify agrees."""
    flush(world)
    world.send("orders", 10)
    start, _, _ = locate_record(world, 205)
    world.kill()
    overwrite_log(world, start + 90, b"\0\0")

    report = verify(world, replace(ALL, boot_id=world.clock.boot_id()))

    assert report.records == 209
    assert report.findings.is_damaged
    assert [one.offset for one in report.findings.kept if one.kind is Kind.ROT] == [start]


def test_missing_flushed_bytes_are_lost_and_no_torn_tail(world: StoreWorld) -> None:
    """The same bytes before the durable mark are damage, because the disk had them."""
    flush(world)
    start, size, name = locate_record(world, 199)
    world.kill()
    overwrite_log(world, start, bytes(size))

    report = verify(world)

    [lost] = [finding for finding in report.findings.kept if finding.kind is Kind.LOST_END]
    assert (lost.harm, lost.offset, lost.length) == (Harm.LOST, start, size)
    assert lost.lost == [name]


def test_garbage_after_a_clean_end_is_lost(world: StoreWorld) -> None:
    """After a clean stop only zeros may follow the end of the log."""
    end = world.store.log.wrote
    world.close()
    overwrite_log(world, end, b"garbage")

    found = only_finding(verify(world))

    assert (found.kind, found.harm, found.offset, found.length) == (Kind.LOST_END, Harm.LOST, end, 7)


def test_damage_that_a_start_takes_for_the_end_is_reported_as_cut(world: StoreWorld) -> None:
    """Without a durable mark (RocketMQ seals none) a start cuts at the first bad record, even in a flushed log."""
    flush(world)
    start, size, name = locate_record(world, 130)
    world.kill()
    overwrite_log(world, start + 90, b"\0\0")
    world.disk.remove(world.path("recovery-point.json"))
    world.overwrite("checkpoint", 256, bytes(100))

    found = only_finding(verify(world))

    assert (found.kind, found.offset, found.length, found.lost) == (Kind.ROT, start, size, [name])
    assert "a start would cut off everything from here on" in found.text


def test_unreadable_page_costs_only_its_records(world: StoreWorld) -> None:
    """EIO in the middle is reported as such, and the records after it are verified."""
    world.close()
    reading_disk = FaultyReadingDisk(world.disk)
    reading_disk.break_page(world.path(LOG), 8192)

    report = Verifier(reading_disk, world.root, ALL).run()

    found = only_finding(report)
    touched = [start for start, record in world.records.items() if start < 12288 and start + len(record) > 8192]
    assert (found.kind, found.harm) == (Kind.UNREADABLE, Harm.LOST)
    assert (found.offset, found.lost_count) == (min(touched), len(touched))
    assert report.records == 200 - len(touched)


def test_missing_log_file_is_a_lost_range(world: StoreWorld) -> None:
    """The files before and after it are verified all the same."""
    file_size = TINY.mapped_file_size_commit_log
    world.close()
    world.disk.remove(world.path(f"commitlog/{file_size:020d}"))

    report = verify(world)

    lost = [start for start in world.records if file_size <= start < 2 * file_size]
    assert (Kind.LOG_FILE, Harm.LOST) in kinds(report)
    assert report.findings.lost_messages == len(lost)
    assert report.records == 200 - len(lost)


def test_decreasing_store_times_are_reported(world: StoreWorld) -> None:
    """Store times of Gantry's own records never decrease. The changed record gets a valid seal again."""
    start, size, _ = locate_record(world, 130)
    world.close()
    message = decode_record(world.records[start])
    properties = message.properties_bytes[:-SEAL_BYTES]
    earlier_ms = message.store_timestamp_ms - 5_000
    fallen = encode_record(
        msgspec.structs.replace(message, store_timestamp_ms=earlier_ms, properties_bytes=properties), is_sealed=True
    )
    assert len(fallen) == size
    overwrite_log(world, start, fallen)

    found = only_finding(verify(world))

    assert (found.kind, found.harm, found.offset) == (Kind.TIME_FALLS, Harm.WRONG, start)
    assert "by 4999 ms" in found.text
