"""`verify` finds every kind of damage, says where it is and what it costs, and calls nothing damage that is none."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gantry_broker.ports.reading import LockHolder
from gantry_broker.store.consume_queue import UNIT
from gantry_broker.store.index_file import ENTRY, SLOT
from gantry_broker.store.inspect.findings import Finding, Harm, Kind, Message
from gantry_broker.store.inspect.verify import Verifier, VerifyOrder, VerifyReport
from gantry_broker.testing.reading_twin import ReadingTwin
from gantry_broker.testing.store_world import TINY, StoreWorld, make_world
from gantry_wire.message import decode_record, encode_record
from gantry_wire.seal import SEAL_BYTES

SLOTS = TINY.max_hash_slot_num
ENTRIES_START = 40 + SLOTS * SLOT.size
LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/orders/0/00000000000000000000"


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """Three files of log, five queues, two index files; open."""
    made = make_world(request.param, tmp_path)
    made.open()
    for i in range(100):
        made.send("orders", queue_id=i % 3)
        made.send("bills", queue_id=i % 2)
    return made


ALL = VerifyOrder()


def verify(world: StoreWorld, order: VerifyOrder = ALL) -> VerifyReport:
    return Verifier(ReadingTwin(world.disk), world.root, order).run()


def only(report: VerifyReport) -> Finding:
    """The one finding that there must be."""
    assert len(report.findings.kept) == 1, report.findings.kept
    return report.findings.kept[0]


def kinds(report: VerifyReport) -> set[tuple[Kind, Harm]]:
    return {(finding.kind, finding.harm) for finding in report.findings.kept}


def place(world: StoreWorld, number: int) -> tuple[int, int, Message]:
    """(offset, size, name) of the record that was sent as number ``number``."""
    start = sorted(world.records)[number]
    _, topic, queue_id, queue_offset, _ = world.sent[number]
    return start, len(world.records[start]), Message(topic, queue_id, queue_offset)


def log_byte(world: StoreWorld, offset: int, data: bytes) -> None:
    """Overwrite a place of the log."""
    file_size = TINY.mapped_file_size_commit_log
    world.overwrite(f"commitlog/{offset - offset % file_size:020d}", offset % file_size, data)


# -- nothing is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["clean", "killed", "open"])
def test_a_whole_store_has_no_findings(world: StoreWorld, end: str) -> None:
    """Everything is compared and nothing is said, however the store was left."""
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
    assert (report.start, report.end, report.is_whole) == (0, world.sent[-1][0], True)


def test_an_empty_directory_is_a_store_without_messages(tmp_path: Path) -> None:
    """Nothing to read is nothing wrong."""
    world = make_world("real", tmp_path)
    Path(world.root).mkdir()

    report = verify(world)

    assert (report.records, report.end, report.findings.kept) == (0, 0, [])


def test_a_topic_that_was_made_anew_has_an_earlier_life_and_no_damage(world: StoreWorld) -> None:
    """Records of a deleted topic have no units any more, and their numbers may have begun again."""
    world.store.delete_topic("orders")
    world.send("orders", 20)
    world.close()

    report = verify(world)

    assert report.findings.kept == []
    assert (report.older_records, report.units) == (100, 120)


def test_an_earlier_life_is_known_without_the_recovery_point(world: StoreWorld) -> None:
    """RocketMQ writes down no deletions: units that lead to younger records of the same numbers tell it."""
    world.store.delete_topic("orders")
    for i in range(100):
        world.send("orders", queue_id=i % 3)
    world.close()
    world.disk.remove(world.path("recovery-point.json"))

    report = verify(world)

    assert report.findings.kept == []
    assert (report.older_records, report.units) == (100, 200)


def test_a_topic_that_does_not_exist_any_more_is_odd_and_no_damage(world: StoreWorld) -> None:
    """With a table of topics that does not list it, nobody misses its queues."""
    world.close()
    world.disk.make_directory(world.path("config"))
    world.disk.write_file(world.path("config/topics.json"), b'{"topicConfigTable":{"bills":{}}}')
    world.disk.remove_tree(world.path("consumequeue/orders"))
    world.disk.remove(world.path("recovery-point.json"))

    report = verify(world)

    assert kinds(report) == {(Kind.TOPIC_UNKNOWN, Harm.ODD)}
    assert sum(finding.count for finding in report.findings.kept) == 100


def test_expired_files_of_the_log_are_no_damage(world: StoreWorld) -> None:
    """What lies before the log's first file has expired; units and entries that lead there are not missed."""
    world.close()
    world.disk.remove(world.path(LOG))

    report = verify(world)

    assert report.findings.kept == []
    assert report.start == TINY.mapped_file_size_commit_log
    assert report.records == report.units < 200


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
def test_a_rotten_record_is_found_with_its_place_and_its_name(world: StoreWorld, field: str, end: str) -> None:
    """Whatever field is damaged, the record is named as lost, and everything around it is verified on."""
    world.clock.advance(60_000)
    world.store.flush_step()
    start, size, name = place(world, 130)
    position, data = FIELDS[field](size)
    log_byte(world, start + position, data)
    if end == "clean":
        world.close()
    else:
        world.kill()

    report = verify(world)
    found = only(report)

    assert (found.kind, found.harm, found.offset, found.length) == (Kind.ROT, Harm.LOST, start, size)
    assert (found.lost, found.lost_count) == ([name], 1)
    assert (report.records, report.units, report.index_entries) == (199, 199, 199)
    assert report.findings.is_damaged
    assert report.findings.lost_messages == 1


def test_rot_without_a_queue_is_named_by_its_head(world: StoreWorld) -> None:
    """If no unit says what was there, the record's own head does, as far as only its checksum is wrong."""
    start, _, name = place(world, 130)
    world.close()
    log_byte(world, start + 90, b"\0\0")
    world.disk.remove_tree(world.path("consumequeue"))

    report = verify(world)

    [rot] = [finding for finding in report.findings.kept if finding.kind is Kind.ROT]
    assert (rot.lost, rot.lost_count) == ([name], 1)
    assert report.findings.lost_messages == 1


def test_a_message_that_is_nowhere_is_missed_by_its_number(world: StoreWorld) -> None:
    """Queue offsets are dense: where one has neither record nor reason, a message is gone."""
    end = world.store.find_queue("orders", 0)
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
    """Behind what is known to be flushed, a crash leaves half records; the next start cuts them off."""
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send("orders", 10)
    start, size, _ = place(world, 209)
    world.kill()
    log_byte(world, start + size - 10, bytes(10))

    report = verify(world)

    assert not report.findings.is_damaged
    torn = report.findings.kept[0]
    assert (torn.kind, torn.harm, torn.offset, torn.length) == (Kind.TORN_TAIL, Harm.UNSETTLED, start, size - 10)
    assert kinds(report) == {
        (Kind.TORN_TAIL, Harm.UNSETTLED),
        (Kind.UNIT_BEYOND, Harm.UNSETTLED),
        (Kind.INDEX_STRAY, Harm.UNSETTLED),
    }


def test_whole_records_behind_a_torn_one_are_counted_and_not_believed(world: StoreWorld) -> None:
    """A start cuts them off, since nothing says that they were flushed; so does this account of it."""
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send("orders", 10)
    start, _, _ = place(world, 205)
    world.kill()
    log_byte(world, start + 90, b"\0\0")

    report = verify(world)

    assert report.end == start
    assert report.records == 205
    assert report.findings.kept[0].kind is Kind.TORN_TAIL
    assert "4 whole records follow" in report.findings.kept[0].text
    assert not report.findings.is_damaged


def test_flushed_bytes_that_are_gone_are_lost_and_no_torn_tail(world: StoreWorld) -> None:
    """The same bytes before the durable mark are damage: the disk had them."""
    world.clock.advance(60_000)
    world.store.flush_step()
    start, size, name = place(world, 199)
    world.kill()
    log_byte(world, start, bytes(size))

    report = verify(world)

    [lost] = [finding for finding in report.findings.kept if finding.kind is Kind.LOST_END]
    assert (lost.harm, lost.offset, lost.length) == (Harm.LOST, start, size)
    assert lost.lost == [name]


def test_garbage_behind_a_clean_end_is_lost(world: StoreWorld) -> None:
    """After a clean stop nothing may stand behind the end of the log but zeros."""
    end = world.store.wrote
    world.close()
    log_byte(world, end, b"garbage")

    found = only(verify(world))

    assert (found.kind, found.harm, found.offset, found.length) == (Kind.LOST_END, Harm.LOST, end, 7)


def test_rot_that_a_start_would_take_for_the_end_is_said_to_be_cut(world: StoreWorld) -> None:
    """Without a durable mark (RocketMQ seals none) a start cuts at the first bad record, even a flushed log."""
    world.clock.advance(60_000)
    world.store.flush_step()
    start, size, name = place(world, 130)
    world.kill()
    log_byte(world, start + 90, b"\0\0")
    world.disk.remove(world.path("recovery-point.json"))
    world.overwrite("checkpoint", 256, bytes(100))

    found = only(verify(world))

    assert (found.kind, found.offset, found.length, found.lost) == (Kind.ROT, start, size, [name])
    assert "a start would cut off everything from here on" in found.text


def test_a_page_that_the_disk_cannot_read_costs_its_records_only(world: StoreWorld) -> None:
    """EIO in the middle is reported as such, and what lies behind it is verified."""
    world.close()
    twin = ReadingTwin(world.disk)
    twin.break_page(world.path(LOG), 8192)

    report = Verifier(twin, world.root, VerifyOrder()).run()

    found = only(report)
    touched = [start for start, record in world.records.items() if start < 12288 and start + len(record) > 8192]
    assert (found.kind, found.harm) == (Kind.UNREADABLE, Harm.LOST)
    assert (found.offset, found.lost_count) == (min(touched), len(touched))
    assert report.records == 200 - len(touched)


def test_a_missing_file_of_the_log_is_a_range_that_is_lost(world: StoreWorld) -> None:
    """The files before and behind it are verified all the same."""
    file_size = TINY.mapped_file_size_commit_log
    world.close()
    world.disk.remove(world.path(f"commitlog/{file_size:020d}"))

    report = verify(world)

    lost = [start for start in world.records if file_size <= start < 2 * file_size]
    assert (Kind.LOG_FILE, Harm.LOST) in kinds(report)
    assert report.findings.lost_messages == len(lost)
    assert report.records == 200 - len(lost)


def test_store_times_that_fall_are_said(world: StoreWorld) -> None:
    """In our own records they never do. The seal has to be made again, or it would be what is found."""
    start, size, _ = place(world, 130)
    world.close()
    message = decode_record(world.records[start])
    properties = message.properties_bytes[:-SEAL_BYTES]
    earlier_ms = message.store_timestamp_ms - 5_000
    fallen = encode_record(replace(message, store_timestamp_ms=earlier_ms, properties_bytes=properties), is_sealed=True)
    assert len(fallen) == size
    log_byte(world, start, fallen)

    found = only(verify(world))

    assert (found.kind, found.harm, found.offset) == (Kind.TIME_FALLS, Harm.WRONG, start)
    assert "by 4999 ms" in found.text


# -- queues ------------------------------------------------------------------------------------------------------------


def test_a_unit_that_leads_elsewhere_is_wrong(world: StoreWorld) -> None:
    """The log has the message: the queue is derived and can be built again."""
    world.close()
    world.overwrite(QUEUE, 5 * 20, UNIT.pack(17, 100, 0))

    found = only(verify(world))

    facts = (found.kind, found.harm, found.topic, found.queue_id, found.queue_offset)
    assert facts == (Kind.UNIT_WRONG, Harm.DERIVED, "orders", 0, 5)


def test_a_unit_with_other_tags_is_wrong(world: StoreWorld) -> None:
    """Consumers that filter would never see the message."""
    world.close()
    raw = world.files("consumequeue/orders/0")[QUEUE][100:120]
    physical, size, _ = UNIT.unpack(raw)
    world.overwrite(QUEUE, 5 * 20, UNIT.pack(physical, size, 4711))

    found = only(verify(world))

    assert (found.kind, found.queue_offset) == (Kind.UNIT_WRONG, 5)
    assert "other tags" in found.text


def test_a_hole_in_a_queue_is_one_finding_with_a_count(world: StoreWorld) -> None:
    """Neighbouring units of one kind are one line."""
    world.close()
    world.overwrite(QUEUE, 5 * 20, bytes(7 * 20))

    found = only(verify(world))

    assert (found.kind, found.harm, found.queue_offset, found.count) == (Kind.UNIT_MISSING, Harm.DERIVED, 5, 7)


def test_a_queue_that_is_gone_costs_no_message(world: StoreWorld) -> None:
    """Every message is in the log; the finding counts them."""
    world.close()
    world.disk.remove_tree(world.path("consumequeue/orders/0"))

    report = verify(world)

    assert kinds(report) == {(Kind.UNIT_MISSING, Harm.DERIVED)}
    assert only(report).count == 34
    assert report.findings.lost_messages == 0


def test_units_behind_the_end_of_a_clean_log_are_lost_messages(world: StoreWorld) -> None:
    """They were made for records, and those are not there."""
    end = world.store.wrote
    world.close()
    world.overwrite(QUEUE, 34 * 20, UNIT.pack(end, 100, 0))

    found = only(verify(world))

    assert (found.kind, found.harm, found.lost) == (Kind.UNIT_BEYOND, Harm.LOST, [Message("orders", 0, 34)])


def test_units_without_a_record_are_stray(world: StoreWorld) -> None:
    """A unit too many, which leads into the middle of the log."""
    world.close()
    world.overwrite(QUEUE, 34 * 20, UNIT.pack(170, 100, 0))

    found = only(verify(world))

    assert (found.kind, found.harm, found.queue_offset) == (Kind.UNIT_STRAY, Harm.DERIVED, 34)


def test_a_queue_that_is_behind_after_a_crash_is_unsettled(world: StoreWorld) -> None:
    """Units of records behind the recovery point are put again by the next start."""
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send("orders", 10)
    world.kill()
    world.overwrite("consumequeue/orders/0/00000000000000000000", 40 * 20, bytes(4 * 20))

    report = verify(world)

    assert kinds(report) == {(Kind.UNIT_MISSING, Harm.UNSETTLED)}
    assert not report.findings.is_damaged


def test_a_queue_that_is_short_of_its_recovery_point_is_damage(world: StoreWorld) -> None:
    """Those units were durable, so they are not merely behind."""
    world.clock.advance(60_000)
    world.store.flush_step()
    world.kill()
    world.overwrite(QUEUE, 30 * 20, bytes(4 * 20))

    report = verify(world)

    assert kinds(report) == {(Kind.UNIT_MISSING, Harm.DERIVED), (Kind.QUEUE_END, Harm.DERIVED)}


def test_a_queue_file_of_another_size_is_said(world: StoreWorld) -> None:
    """No broker opens such a store; the remedy names the directory to delete."""
    world.close()
    data = world.disk.read_file(world.path(QUEUE))
    world.disk.write_file(world.path(QUEUE), data[:-20])
    second = "consumequeue/orders/0/00000000000000001000"
    world.disk.write_file(world.path(second), data)

    report = verify(world)

    [found] = [finding for finding in report.findings.kept if finding.kind is Kind.QUEUE_FILE]
    assert found.path.endswith(QUEUE)
    assert "consumequeue/orders/0" in found.remedy


# -- the index ---------------------------------------------------------------------------------------------------------


def index_name(world: StoreWorld) -> str:
    return f"index/{world.disk.list(world.path('index'))[0]}"


def test_an_entry_that_leads_nowhere_is_stray_and_its_message_is_missing(world: StoreWorld) -> None:
    """Both ways: the entry has no record, the record has no entry."""
    world.close()
    name = index_name(world)
    position = ENTRIES_START + 50 * 20
    raw = world.disk.read_file(world.path(name))[position : position + 20]
    key_hash, physical, seconds, previous = ENTRY.unpack(raw)
    world.overwrite(name, position, ENTRY.pack(key_hash, physical + 1, seconds, previous))

    report = verify(world)

    assert kinds(report) == {(Kind.INDEX_MISSING, Harm.DERIVED), (Kind.INDEX_STRAY, Harm.DERIVED)}
    [missing] = [finding for finding in report.findings.kept if finding.kind is Kind.INDEX_MISSING]
    assert missing.offset == physical
    assert report.index_entries == 199


def test_an_entry_with_another_hash_is_found(world: StoreWorld) -> None:
    """The message exists and does not have this key."""
    world.close()
    name = index_name(world)
    position = ENTRIES_START + 50 * 20
    world.overwrite(name, position, struct.pack(">i", 12345))

    report = verify(world)

    assert (Kind.INDEX_STRAY, Harm.DERIVED) in kinds(report)
    assert (Kind.INDEX_CHAIN, Harm.DERIVED) in kinds(report)


def test_a_broken_chain_is_found(world: StoreWorld) -> None:
    """All entries are right, and a query would still not find some of them."""
    world.close()
    name = index_name(world)
    slot = next(
        position
        for position in range(40, ENTRIES_START, 4)
        if SLOT.unpack(world.disk.read_file(world.path(name))[position : position + 4])[0]
    )
    world.overwrite(name, slot, bytes(4))

    found = only(verify(world))

    assert (found.kind, found.harm, found.count) == (Kind.INDEX_CHAIN, Harm.DERIVED, 1)


def test_an_index_file_that_is_none_is_said(world: StoreWorld) -> None:
    """Cut short or scrambled, it is named and costs no message."""
    world.close()
    name = index_name(world)
    world.disk.write_file(world.path(name), b"short")

    report = verify(world)

    assert (Kind.INDEX_FILE, Harm.DERIVED) in kinds(report)
    assert report.findings.lost_messages == 0


def test_no_index_is_no_finding(world: StoreWorld) -> None:
    """It may be switched off; a start builds it when it is not."""
    world.close()
    world.disk.remove_tree(world.path("index"))

    report = verify(world)

    assert (report.findings.kept, report.index_files) == ([], 0)


# -- small files -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_ahead_of_the_log_is_a_contradiction(world: StoreWorld) -> None:
    """It is written after what it describes, so it can never be newer."""
    world.close()
    world.overwrite("checkpoint", 0, struct.pack(">q", world.clock.wall_ms() + 5_000))

    report = verify(world)

    assert (Kind.CHECKPOINT, Harm.WRONG) in kinds(report)


@pytest.mark.parametrize(
    ("current", "backup", "expected"),
    [
        (b"{", b'{"a":1}', {(Kind.CONFIG, Harm.DERIVED)}),
        (b"", b"nonsense", {(Kind.CONFIG, Harm.LOST)}),
        (b"[]", None, {(Kind.CONFIG, Harm.LOST)}),
        (b'{"a":1}', b"nonsense", {(Kind.CONFIG, Harm.ODD)}),
        (b'{"offsetTable":{"t@g":{0:1}}}', None, set()),
    ],
    ids=["predecessor", "both", "no-object", "only-the-predecessor", "fastjson"],
)
def test_tables_are_judged_with_their_predecessors(
    world: StoreWorld, current: bytes, backup: bytes | None, expected: set[tuple[Kind, Harm]]
) -> None:
    """One good copy is enough for a start; none stops it."""
    world.close()
    world.disk.make_directory(world.path("config"))
    world.disk.write_file(world.path("config/consumerOffset.json"), current)
    if backup is not None:
        world.disk.write_file(world.path("config/consumerOffset.json.bak"), backup)

    assert kinds(verify(world)) == expected


def test_a_consumer_offset_beyond_its_queue_is_said(world: StoreWorld) -> None:
    """The next start sets it back; until then it explains why a group sees nothing."""
    world.close()
    world.disk.make_directory(world.path("config"))
    table = b'{"offsetTable":{"orders@billing":{"0":34,"1":40},"nothing@billing":{"0":5}}}'
    world.disk.write_file(world.path("config/consumerOffset.json"), table)

    found = only(verify(world))

    facts = (found.kind, found.harm, found.topic, found.queue_id, found.queue_offset)
    assert facts == (Kind.CONSUMER_OFFSET, Harm.WRONG, "orders", 1, 40)


def test_a_recovery_point_that_cannot_be_read_costs_time_only(world: StoreWorld) -> None:
    """The next start reads the whole log."""
    world.close()
    world.disk.write_file(world.path("recovery-point.json"), b"00000000\n{}")

    found = only(verify(world))

    assert (found.kind, found.harm) == (Kind.RECOVERY_POINT, Harm.DERIVED)


@pytest.mark.parametrize(
    ("names", "harm"),
    [(("store.json",), Harm.DERIVED), (("store.json", "store.json.bak"), Harm.LOST)],
    ids=["one", "both"],
)
def test_the_identity_is_judged_with_its_twin(world: StoreWorld, names: tuple[str, ...], harm: Harm) -> None:
    """With one good copy all is well; with none no start can say which records need a seal."""
    world.close()
    for name in names:
        world.disk.write_file(world.path(name), b"nonsense")

    assert (Kind.IDENTITY, harm) in kinds(verify(world))


# -- a part of it ------------------------------------------------------------------------------------------------------


def test_a_part_is_verified_from_the_record_that_holds_its_start(world: StoreWorld) -> None:
    """Nothing is said of what lies before or behind, and nothing that is there is called missing."""
    first, _, _ = place(world, 50)
    last, _, _ = place(world, 150)
    world.close()

    report = verify(world, VerifyOrder(start=first + 20, end=last))

    assert report.findings.kept == []
    assert (report.start, report.end, report.records, report.units) == (first, last, 100, 100)
    assert not report.is_whole


def test_a_part_finds_the_damage_in_it_and_no_other(world: StoreWorld) -> None:
    """Also when it begins in the middle of what is damaged."""
    inside, size, name = place(world, 130)
    before, _, _ = place(world, 20)
    world.close()
    log_byte(world, inside + 90, b"\0\0")
    log_byte(world, before + 90, b"\0\0")

    found = only(verify(world, VerifyOrder(start=inside + 5)))

    assert (found.offset, found.length, found.lost) == (inside, size, [name])


def test_quick_reads_what_was_written_last_and_the_ends_of_the_rest(world: StoreWorld) -> None:
    """Behind the recovery point everything; before it the heads of files and both ends of every queue."""
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send("orders", 10)
    middle, _, _ = place(world, 130)
    world.kill()
    log_byte(world, middle + 90, b"\0\0")

    quick = verify(world, VerifyOrder(is_quick=True))
    assert (quick.records, quick.findings.kept, quick.is_whole) == (10, [], False)

    world.overwrite("consumequeue/bills/1/00000000000000000000", 0, UNIT.pack(1, 100, 0))
    log_byte(world, TINY.mapped_file_size_commit_log, b"\0\0\0\0\0\0")
    found = verify(world, VerifyOrder(is_quick=True))
    assert kinds(found) == {(Kind.UNIT_STRAY, Harm.DERIVED), (Kind.ROT, Harm.LOST)}


# -- a store in use ----------------------------------------------------------------------------------------------------


def test_a_store_that_is_written_meanwhile_is_no_error(world: StoreWorld) -> None:
    """The broker appends at every read; whatever end is seen, nothing is called damaged."""
    twin = ReadingTwin(world.disk)
    twin.holder = LockHolder(4711)
    budget = 40

    def write_on(path: str, position: int) -> None:
        nonlocal budget
        if budget:
            budget -= 1
            world.send("orders", 3, queue_id=budget % 3)
            world.send("bills", 2)

    twin.before_read.append(write_on)

    report = Verifier(twin, world.root, VerifyOrder()).run()

    assert budget == 0
    assert report.is_in_use
    assert not report.findings.is_damaged, report.findings.kept
    assert 200 <= report.records <= 400


def test_half_a_record_at_the_moving_end_is_no_error(world: StoreWorld) -> None:
    """A write that is half visible is looked at again, and is the end if it is still half."""
    end = world.store.wrote
    world.kill()
    log_byte(world, end, struct.pack(">iii", 170, -626843481, 5))
    twin = ReadingTwin(world.disk)
    twin.holder = LockHolder(0)

    report = Verifier(twin, world.root, VerifyOrder()).run()

    assert (report.end, report.findings.kept) == (end, [])


def test_rot_is_found_in_a_store_that_is_in_use(world: StoreWorld) -> None:
    """A moving end excuses the end only."""
    start, size, name = place(world, 130)
    log_byte(world, start + 90, b"\0\0")
    twin = ReadingTwin(world.disk)
    twin.holder = LockHolder(4711)

    found = only(Verifier(twin, world.root, VerifyOrder()).run())

    assert (found.kind, found.offset, found.length, found.lost) == (Kind.ROT, start, size, [name])


def test_files_that_are_deleted_meanwhile_are_no_error(world: StoreWorld) -> None:
    """A topic may be deleted while its queues are compared."""
    twin = ReadingTwin(world.disk)
    twin.holder = LockHolder(4711)

    def delete(path: str, position: int) -> None:
        if "commitlog" in path and position >= 0:
            twin.before_read.clear()
            world.store.delete_topic("bills")

    twin.before_read.append(delete)

    report = Verifier(twin, world.root, VerifyOrder()).run()

    assert not report.findings.is_damaged, report.findings.kept


def test_ctrl_c_ends_it_with_what_was_found(world: StoreWorld) -> None:
    """Whoever waited long enough still gets what is known so far."""
    start, _, _ = place(world, 20)
    world.close()
    log_byte(world, start + 90, b"\0\0")
    twin = ReadingTwin(world.disk)

    def interrupt(path: str, _: int) -> None:
        if path.endswith(f"{TINY.mapped_file_size_commit_log:020d}"):
            raise KeyboardInterrupt

    twin.before_read.append(interrupt)

    report = Verifier(twin, world.root, VerifyOrder()).run()

    assert report.is_interrupted
    assert not report.is_whole
    assert only(report).offset == start
