"""`verify` of whole stores, parts, and stores that are written meanwhile finds damage, and reports no false damage."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from gantry_broker.ports.reading import LockHolder
from gantry_broker.store.consume_queue import UNIT
from gantry_broker.store.inspect.findings import Harm, Kind
from gantry_broker.store.inspect.verify import Verifier, VerifyOptions
from gantry_testing.faulty_reading_disk import FaultyReadingDisk
from gantry_testing.log_head import remove_before
from gantry_testing.store_world import TINY, StoreWorld, make_world
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


@pytest.fixture
def world(filled_world: StoreWorld) -> StoreWorld:
    return filled_world


# -- nothing is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["clean", "killed", "open"])
def test_intact_store_has_no_findings(world: StoreWorld, end: str) -> None:
    """Everything is compared without a finding, after every kind of stop."""
    if end == "clean":
        world.close()
    elif end == "killed":
        world.kill()

    report = verify(world)

    assert report.findings.kept == []
    assert not report.findings.is_damaged
    counts = (report.records, report.records_sealed, report.units, report.queues, report.index_entries)
    assert counts == (200, 200, 200, 5, 200)
    assert report.index_files == 2
    assert (report.start, report.end, report.is_full_range) == (0, world.sent[-1].end, True)


def test_an_empty_directory_is_a_store_without_messages(tmp_path: Path) -> None:
    """A directory without files has no findings."""
    world = make_world("real", tmp_path)
    Path(world.root).mkdir()

    report = verify(world)

    assert (report.records, report.end, report.findings.kept) == (0, 0, [])


def test_recreated_topic_has_older_records_and_no_damage(world: StoreWorld) -> None:
    """Records of a deleted topic have no units any more, and queue offsets may have restarted."""
    world.store.delete_topic("orders")
    world.send("orders", 20)
    world.close()

    report = verify(world)

    assert report.findings.kept == []
    assert (report.older_records, report.units) == (100, 120)


def test_offsets_of_invalid_queue_ids_are_ignored(world: StoreWorld) -> None:
    """Any broker may have written the table: a queue id in other numerals, or with too many digits, is ignored."""
    world.close()
    offsets = {"orders@billing": {"0": 1, "²": 5, "1" * 5000: 5}}
    world.disk.make_directory(world.path("config"))
    world.disk.write_file(world.path("config/consumerOffset.json"), json.dumps({"offsetTable": offsets}).encode())

    assert verify(world).findings.kept == []


def test_recreated_topic_is_recognized_without_a_recovery_point(world: StoreWorld) -> None:
    """RocketMQ records no deletions: units of younger records with the same queue offsets prove one."""
    world.store.delete_topic("orders")
    for i in range(100):
        world.send("orders", queue_id=i % 3)
    world.close()
    world.disk.remove(world.path("recovery-point.json"))

    report = verify(world)

    assert report.findings.kept == []
    assert (report.older_records, report.units) == (100, 200)


def test_deleted_topic_is_odd_and_no_damage(world: StoreWorld) -> None:
    """If the table of topics does not list the topic, its missing queues are no damage."""
    world.close()
    world.disk.make_directory(world.path("config"))
    world.disk.write_file(world.path("config/topics.json"), b'{"topicConfigTable":{"bills":{}}}')
    world.disk.remove_tree(world.path("consumequeue/orders"))
    world.disk.remove(world.path("recovery-point.json"))

    report = verify(world)

    assert kinds(report) == {(Kind.TOPIC_UNKNOWN, Harm.ODD)}
    assert sum(finding.count for finding in report.findings.kept) == 100


def test_expired_files_of_the_log_are_no_damage(world: StoreWorld) -> None:
    """Units and entries of messages before the log's first file are not checked."""
    world.store.flush()
    remove_before(world.store, TINY.mapped_file_size_commit_log)
    world.close()

    report = verify(world)

    assert report.findings.kept == []
    assert report.start == TINY.mapped_file_size_commit_log
    assert report.records == report.units < 200


# -- a part of it ------------------------------------------------------------------------------------------------------


def test_part_is_verified_from_the_record_that_holds_its_start(world: StoreWorld) -> None:
    """Nothing before or after the part is reported, and nothing that exists is called missing."""
    first, _, _ = locate_record(world, 50)
    last, _, _ = locate_record(world, 150)
    world.close()

    report = verify(world, VerifyOptions(start=first + 20, end=last))

    assert report.findings.kept == []
    assert (report.start, report.end, report.records, report.units) == (first, last, 100, 100)
    assert not report.is_full_range


def test_verification_of_a_part_finds_only_its_damage(world: StoreWorld) -> None:
    """It also holds for a part that begins in the middle of the damage."""
    inside, size, name = locate_record(world, 130)
    before, _, _ = locate_record(world, 20)
    world.close()
    overwrite_log(world, inside + 90, b"\0\0")
    overwrite_log(world, before + 90, b"\0\0")

    found = only_finding(verify(world, VerifyOptions(start=inside + 5)))

    assert (found.offset, found.length, found.lost) == (inside, size, [name])


def test_quick_verification_reads_the_newest_data_and_the_ends_of_the_rest(world: StoreWorld) -> None:
    """It reads everything after the recovery point; before it the heads of files and both ends of every queue."""
    flush(world)
    world.send("orders", 10)
    middle, _, _ = locate_record(world, 130)
    world.kill()
    overwrite_log(world, middle + 90, b"\0\0")

    quick = verify(world, VerifyOptions(is_quick=True))
    assert (quick.records, quick.findings.kept, quick.is_full_range) == (10, [], False)

    world.overwrite("consumequeue/bills/1/00000000000000000000", 0, UNIT.pack(1, 100, 0))
    overwrite_log(world, TINY.mapped_file_size_commit_log, b"\0\0\0\0\0\0")
    found = verify(world, VerifyOptions(is_quick=True))
    assert kinds(found) == {(Kind.UNIT_STRAY, Harm.DERIVED), (Kind.ROT, Harm.LOST)}


# -- a store in use ----------------------------------------------------------------------------------------------------


def test_concurrent_appends_are_no_error(world: StoreWorld) -> None:
    """The broker appends at each of the first forty reads; at any observed end nothing is called damaged."""
    reading_disk = FaultyReadingDisk(world.disk)
    reading_disk.holder = LockHolder(4711)
    budget = 40

    def write_on(path: str, position: int) -> None:
        nonlocal budget
        if budget:
            budget -= 1
            world.send("orders", 3, queue_id=budget % 3)
            world.send("bills", 2)

    reading_disk.before_read.append(write_on)

    report = Verifier(reading_disk, world.root, ALL).run()

    assert budget == 0
    assert report.is_in_use
    assert not report.findings.is_damaged, report.findings.kept
    assert 200 <= report.records <= 400


def test_partial_record_at_the_moving_end_is_no_error(world: StoreWorld) -> None:
    """A partially visible write is read again, and is the end if it is still partial."""
    end = world.store.log.wrote
    world.kill()
    overwrite_log(world, end, struct.pack(">iii", 170, -626843481, 5))
    reading_disk = FaultyReadingDisk(world.disk)
    reading_disk.holder = LockHolder(0)

    report = Verifier(reading_disk, world.root, ALL).run()

    assert (report.end, report.findings.kept) == (end, [])


def test_damage_is_found_in_a_store_in_use(world: StoreWorld) -> None:
    """Only the moving end is excused, not damage before it."""
    start, size, name = locate_record(world, 130)
    overwrite_log(world, start + 90, b"\0\0")
    reading_disk = FaultyReadingDisk(world.disk)
    reading_disk.holder = LockHolder(4711)

    found = only_finding(Verifier(reading_disk, world.root, ALL).run())

    assert (found.kind, found.offset, found.length, found.lost) == (Kind.ROT, start, size, [name])


def test_concurrently_deleted_files_are_no_error(world: StoreWorld) -> None:
    """A topic may be deleted while its queues are compared."""
    reading_disk = FaultyReadingDisk(world.disk)
    reading_disk.holder = LockHolder(4711)

    def delete(path: str, position: int) -> None:
        if "commitlog" in path and position >= 0:
            reading_disk.before_read.clear()
            world.store.delete_topic("bills")

    verifier = Verifier(reading_disk, world.root, ALL)
    reading_disk.before_read.append(delete)

    report = verifier.run()

    assert not report.findings.is_damaged, report.findings.kept


@pytest.mark.parametrize("moment", [0, 5, 20])
def test_concurrently_expired_messages_are_no_error(world: StoreWorld, moment: int) -> None:
    """Retention may delete the oldest log file before, while or after it is read."""
    reading_disk = FaultyReadingDisk(world.disk)
    reading_disk.holder = LockHolder(4711)
    reads = 0

    def expire(_path: str, _position: int) -> None:
        nonlocal reads
        reads += 1
        if reads == moment + 1:
            world.disk.remove(world.path(LOG))

    reading_disk.before_read.append(expire)

    report = Verifier(reading_disk, world.root, ALL).run()

    assert reads > moment
    assert not report.findings.is_damaged, report.findings.kept
    assert report.records >= 100


def test_ctrl_c_returns_the_findings_so_far(world: StoreWorld) -> None:
    """An interrupted verification still reports its findings."""
    start, _, _ = locate_record(world, 20)
    world.close()
    overwrite_log(world, start + 90, b"\0\0")
    reading_disk = FaultyReadingDisk(world.disk)

    def interrupt(path: str, _: int) -> None:
        if path.endswith(f"{TINY.mapped_file_size_commit_log:020d}"):
            raise KeyboardInterrupt

    verifier = Verifier(reading_disk, world.root, ALL)
    reading_disk.before_read.append(interrupt)

    report = verifier.run()

    assert report.is_interrupted
    assert not report.is_full_range
    assert only_finding(report).offset == start


@pytest.mark.parametrize("place", [0, 1, -1], ids=["oldest", "middle", "newest"])
def test_missing_log_file_is_reported(world: StoreWorld, place: int) -> None:
    """Sealed files prove that it has not expired; after its loss is accepted, it is no damage any more."""
    end = world.store.log.wrote
    world.close()
    names = sorted(world.disk.list(world.path("commitlog")))
    world.disk.remove(world.path(f"commitlog/{names[place]}"))

    missing = [one for one in verify(world).findings.kept if one.kind is Kind.MISSING]

    size = TINY.mapped_file_size_commit_log
    start = int(names[place])
    assert [(one.harm, one.offset, one.length) for one in missing] == [(Harm.LOST, start, min(size, end - start))]
    world.open()
    world.store.accept_loss("a test")
    world.close()
    assert {(one.kind, one.harm) for one in verify(world).findings.kept if one.kind is Kind.MISSING} == {
        (Kind.MISSING, Harm.ODD)
    }


def test_quick_verification_reports_a_filler_as_missing_only(world: StoreWorld) -> None:
    """A filler has no record where its file begins: it is no damage of its own, and its range is reported anyway."""
    world.close()
    names = sorted(world.disk.list(world.path("commitlog")))
    world.disk.remove(world.path(f"commitlog/{names[1]}"))
    world.open()  # creates the filler
    world.close()

    of_log = (Kind.ROT, Kind.MISSING)
    for harm in (Harm.LOST, Harm.ODD):
        quick = kinds(verify(world, VerifyOptions(is_quick=True)))
        assert {one for one in quick if one[0] in of_log} == {(Kind.MISSING, harm)}
        assert {one for one in kinds(verify(world)) if one[0] in of_log} == {(Kind.MISSING, harm)}
        world.open()
        world.store.accept_loss("a test")
        world.close()
