"""`verify` compares queues and index with the log, in both directions, and judges small files with their copies."""

from __future__ import annotations

import struct

import pytest

from gantry_broker.store.config_file import ConfigFile
from gantry_broker.store.consume_queue import UNIT
from gantry_broker.store.index_file import ENTRY, SLOT
from gantry_broker.store.inspect.findings import Harm, Kind, Message
from gantry_broker.store.inspect.summary import inspect_store
from gantry_testing.faulty_reading_disk import FaultyReadingDisk
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import QUEUE, flush, kinds, only_finding, verify

SLOTS = TINY.max_hash_slot_num
ENTRIES_START = 40 + SLOTS * SLOT.size


@pytest.fixture
def world(filled_world: StoreWorld) -> StoreWorld:
    return filled_world


# -- queues ------------------------------------------------------------------------------------------------------------


def test_unit_with_wrong_offset_is_derived_damage(world: StoreWorld) -> None:
    """The log has the message: the queue is derived data and can be rebuilt."""
    world.close()
    world.overwrite(QUEUE, 5 * 20, UNIT.pack(17, 100, 0))

    found = only_finding(verify(world))

    facts = (found.kind, found.harm, found.topic, found.queue_id, found.queue_offset)
    assert facts == (Kind.UNIT_WRONG, Harm.DERIVED, "orders", 0, 5)


def test_unit_with_wrong_tags_code_is_reported(world: StoreWorld) -> None:
    """Consumers with a filter would never receive the message."""
    world.close()
    raw = world.files("consumequeue/orders/0")[QUEUE][100:120]
    physical, size, _ = UNIT.unpack(raw)
    world.overwrite(QUEUE, 5 * 20, UNIT.pack(physical, size, 4711))

    found = only_finding(verify(world))

    assert (found.kind, found.queue_offset) == (Kind.UNIT_WRONG, 5)
    assert "wrong tags code" in found.text


def test_a_hole_in_a_queue_is_one_finding_with_a_count(world: StoreWorld) -> None:
    """Consecutive missing units are one finding."""
    world.close()
    world.overwrite(QUEUE, 5 * 20, bytes(7 * 20))

    found = only_finding(verify(world))

    assert (found.kind, found.harm, found.queue_offset, found.count) == (Kind.UNIT_MISSING, Harm.DERIVED, 5, 7)


def test_missing_queue_costs_no_message(world: StoreWorld) -> None:
    """Every message is in the log; the finding counts them."""
    world.close()
    world.disk.remove_tree(world.path("consumequeue/orders/0"))

    report = verify(world)

    assert kinds(report) == {(Kind.UNIT_MISSING, Harm.DERIVED)}
    assert only_finding(report).count == 34
    assert report.findings.lost_messages == 0


def test_units_beyond_the_end_of_a_clean_log_are_lost_messages(world: StoreWorld) -> None:
    """Their records were written and are missing."""
    end = world.store.log.wrote
    world.close()
    world.overwrite(QUEUE, 34 * 20, UNIT.pack(end, 100, 0))

    found = only_finding(verify(world))

    assert (found.kind, found.harm, found.lost) == (Kind.UNIT_BEYOND, Harm.LOST, [Message("orders", 0, 34)])


def test_units_without_a_record_are_stray(world: StoreWorld) -> None:
    """An extra unit that leads into the middle of the log is reported as stray."""
    world.close()
    world.overwrite(QUEUE, 34 * 20, UNIT.pack(170, 100, 0))

    found = only_finding(verify(world))

    assert (found.kind, found.harm, found.queue_offset) == (Kind.UNIT_STRAY, Harm.DERIVED, 34)


def test_a_queue_that_is_behind_after_a_crash_is_unsettled(world: StoreWorld) -> None:
    """The next start writes the units of records after the recovery point again."""
    flush(world)
    world.send("orders", 10)
    world.kill()
    world.overwrite("consumequeue/orders/0/00000000000000000000", 40 * 20, bytes(4 * 20))

    report = verify(world)

    assert kinds(report) == {(Kind.UNIT_MISSING, Harm.UNSETTLED)}
    assert not report.findings.is_damaged


def test_queue_shorter_than_its_recovery_point_is_damage(world: StoreWorld) -> None:
    """Those units were durable, so they are not merely behind."""
    flush(world)
    world.kill()
    world.overwrite(QUEUE, 30 * 20, bytes(4 * 20))

    report = verify(world)

    assert kinds(report) == {(Kind.UNIT_MISSING, Harm.DERIVED), (Kind.QUEUE_END, Harm.DERIVED)}


def test_queue_file_of_wrong_size_is_reported(world: StoreWorld) -> None:
    """The remedy names the directory to delete."""
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


def test_entry_with_wrong_offset_is_stray_and_its_message_is_missing(world: StoreWorld) -> None:
    """In both directions: the entry has no record, and the record has no entry."""
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


def test_entry_with_wrong_hash_is_reported(world: StoreWorld) -> None:
    """The message exists and does not have this key."""
    world.close()
    name = index_name(world)
    position = ENTRIES_START + 50 * 20
    world.overwrite(name, position, struct.pack(">i", 12345))

    report = verify(world)

    assert (Kind.INDEX_STRAY, Harm.DERIVED) in kinds(report)
    assert (Kind.INDEX_CHAIN, Harm.DERIVED) in kinds(report)


@pytest.mark.parametrize(("tag", "is_stray"), [("red", False), ("blue", True), (None, True)])
def test_entry_for_the_tag_of_a_message_is_accepted(world: StoreWorld, tag: str | None, is_stray: bool) -> None:
    """RocketMQ 5.4 and later index the tag of every message, too; an entry for another tag is damage."""
    draft = world.draft("orders", tag=tag)
    world.append([draft._replace(keys=(*draft.keys, "T#red"))])
    world.close()

    report = verify(world)

    assert kinds(report) == ({(Kind.INDEX_STRAY, Harm.DERIVED)} if is_stray else set())


def test_broken_index_chain_is_reported(world: StoreWorld) -> None:
    """All entries are right, but a query would not find some of them."""
    world.close()
    name = index_name(world)
    slot = next(
        position
        for position in range(40, ENTRIES_START, 4)
        if SLOT.unpack(world.disk.read_file(world.path(name))[position : position + 4])[0]
    )
    world.overwrite(name, slot, bytes(4))

    found = only_finding(verify(world))

    assert (found.kind, found.harm, found.count) == (Kind.INDEX_CHAIN, Harm.DERIVED, 1)


def test_invalid_index_file_is_reported(world: StoreWorld) -> None:
    """A truncated or scrambled file is named and costs no message."""
    world.close()
    name = index_name(world)
    world.disk.write_file(world.path(name), b"short")

    report = verify(world)

    assert (Kind.INDEX_FILE, Harm.DERIVED) in kinds(report)
    assert report.findings.lost_messages == 0


def test_missing_index_is_no_finding(world: StoreWorld) -> None:
    """The index may be switched off; otherwise a start builds it."""
    world.close()
    world.disk.remove_tree(world.path("index"))

    report = verify(world)

    assert (report.findings.kept, report.index_files) == ([], 0)


# -- small files -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_ahead_of_the_log_is_a_contradiction(world: StoreWorld) -> None:
    """The checkpoint is written after the messages it describes, so it can never be newer."""
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
    ids=["file-damaged", "both-damaged", "no-object", "copy-damaged", "fastjson"],
)
def test_tables_are_judged_with_their_copies(
    world: StoreWorld, current: bytes, backup: bytes | None, expected: set[tuple[Kind, Harm]]
) -> None:
    """One good copy is enough for a start; a start fails without one."""
    world.close()
    world.disk.make_directory(world.path("config"))
    world.disk.write_file(world.path("config/consumerOffset.json"), current)
    if backup is not None:
        world.disk.write_file(world.path("config/consumerOffset.json.bak"), backup)

    assert kinds(verify(world)) == expected


@pytest.mark.parametrize("name", ["queueLocks", "consumerFilter"])
def test_a_table_that_no_start_needs_is_odd_when_it_is_damaged(world: StoreWorld, name: str) -> None:
    """A broker starts without its queue locks, and never reads a file that only RocketMQ has."""
    world.close()
    world.disk.make_directory(world.path("config"))
    world.disk.write_file(world.path(f"config/{name}.json"), b"{")

    assert kinds(verify(world)) == {(Kind.CONFIG, Harm.ODD)}
    assert "would fail" not in inspect_store(FaultyReadingDisk(world.disk), world.root).next_start


def test_a_table_that_was_rolled_back_is_judged_by_its_newer_copy(world: StoreWorld) -> None:
    """The next start uses the copy, and so do the tools before it."""
    world.close()
    file = ConfigFile(world.disk, world.root, "consumerOffset")
    file.save({"offsetTable": {"orders@billing": {"0": 40}}})
    older = world.disk.read_file(file.path)
    file.save({"offsetTable": {}})
    world.disk.write_file(file.path, older)

    found = only_finding(verify(world))

    assert (found.kind, found.harm) == (Kind.CONFIG, Harm.DERIVED)
    assert "it is older than its copy" in found.text


def test_consumer_offset_beyond_its_queue_is_reported(world: StoreWorld) -> None:
    """The next start sets it back; until then it explains why a group receives nothing."""
    world.close()
    world.disk.make_directory(world.path("config"))
    table = b'{"offsetTable":{"orders@billing":{"0":34,"1":40},"nothing@billing":{"0":5}}}'
    world.disk.write_file(world.path("config/consumerOffset.json"), table)

    found = only_finding(verify(world))

    facts = (found.kind, found.harm, found.topic, found.queue_id, found.queue_offset)
    assert facts == (Kind.CONSUMER_OFFSET, Harm.WRONG, "orders", 1, 40)


def test_unreadable_recovery_point_only_costs_time(world: StoreWorld) -> None:
    """The next start reads the whole log."""
    world.close()
    world.disk.write_file(world.path("recovery-point.json"), b"00000000\n{}")

    found = only_finding(verify(world))

    assert (found.kind, found.harm) == (Kind.RECOVERY_POINT, Harm.DERIVED)


@pytest.mark.parametrize(
    ("names", "harm"),
    [(("store.json",), Harm.DERIVED), (("store.json", "store.json.bak"), Harm.LOST)],
    ids=["one", "both"],
)
def test_identity_is_judged_with_its_backup_copy(world: StoreWorld, names: tuple[str, ...], harm: Harm) -> None:
    """One good copy is enough; without one no start can decide which records need a seal."""
    world.close()
    for name in names:
        world.disk.write_file(world.path(name), b"nonsense")

    assert (Kind.IDENTITY, harm) in kinds(verify(world))
