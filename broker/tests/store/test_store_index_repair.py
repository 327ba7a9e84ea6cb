"""A running store rebuilds damage in its key index: no query calls an existing message missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.errors import IndexRebuilding
from gantry_broker.store import sliced_scan
from gantry_broker.store.derived_repair import RETRY_INTERVAL_MS
from gantry_broker.store.index_file import ENTRY, IndexFile
from gantry_broker.store.key_hash import key_hash
from gantry_broker.store.recovery_point import RecoveryPointFile
from gantry_broker.store.settings import INDEX_HEADER_BYTES
from gantry_testing.store_world import StoreWorld, make_world
from gantry_testing.verifying import overwrite_log

COUNT = 150


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """Return a store with two full index files and a third one."""
    made = make_world(request.param, tmp_path)
    made.open()
    for number in range(COUNT):
        made.append([made.draft("orders", keys=f"key-{number} more-{number}")])
        made.clock.advance(1)
    made.store.flush()
    made.store.flush_step()
    assert len(files(made)) == 3
    return made


def files(world: StoreWorld) -> tuple[IndexFile, ...]:
    index = world.store._lifecycle.index
    assert index is not None
    return index.files


def found(world: StoreWorld, number: int) -> list[bytes]:
    return world.store.keys.records("orders", f"key-{number}", 64, 0, 1 << 60)[0]


def file_of(world: StoreWorld, number: int) -> tuple[IndexFile, int]:
    """Return the file and the entry's number of ``key-<number>``."""
    value = key_hash("orders", f"key-{number}")
    physical = world.messages()[number].physical_offset
    for file in files(world):
        for entry in range(1, file.header.next_number):
            entry_hash, place, _, _ = ENTRY.unpack_from(file.view, file.entry_position(entry))
            if (entry_hash, place) == (value, physical):
                return file, entry
    raise AssertionError(f"key-{number} is not indexed")


def assert_indexed(world: StoreWorld) -> None:
    for number in range(COUNT):
        assert [len(found(world, number))] == [1], number


def damage_slot(world: StoreWorld, number: int) -> None:
    file, _ = file_of(world, number)
    slot = key_hash("orders", f"key-{number}") % file.slots
    other = next(
        one for one in range(1, file.header.next_number)
        if ENTRY.unpack_from(file.view, file.entry_position(one))[0] % file.slots != slot
    )  # fmt: skip
    place = INDEX_HEADER_BYTES + slot * 4
    file.view[place : place + 4] = other.to_bytes(4, "big")


def damage_slot_far(world: StoreWorld, number: int) -> None:
    file, _ = file_of(world, number)
    place = INDEX_HEADER_BYTES + key_hash("orders", f"key-{number}") % file.slots * 4
    file.view[place] ^= 0x40


def damage_hash(world: StoreWorld, number: int) -> None:
    file, entry = file_of(world, number)
    file.view[file.entry_position(entry) + 2] ^= 0x08


def damage_place(world: StoreWorld, number: int) -> None:
    file, entry = file_of(world, number)
    file.view[file.entry_position(entry) + 4 + 7] ^= 0x01


def damage_place_far(world: StoreWorld, number: int) -> None:
    file, entry = file_of(world, number)
    file.view[file.entry_position(entry) + 4] ^= 0x10


DAMAGES = [damage_slot, damage_slot_far, damage_hash, damage_place, damage_place_far]


@pytest.mark.parametrize("number", [3, 70, COUNT - 1])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_wrong_slot_or_entry_is_rebuilt(world: StoreWorld, damage: object, number: int) -> None:
    """The query that finds it is answered with a retry; afterwards every message is found by its keys, once."""
    assert callable(damage)
    damage(world, number)

    with pytest.raises(IndexRebuilding):
        found(world, number)
    world.repair()

    assert_indexed(world)
    assert world.store.repair.index_rebuilds == 1


def test_messages_appended_during_a_rebuild_are_indexed_once(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New messages follow those that are read again, in order, and none is indexed twice."""
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    damage_hash(world, 3)
    with pytest.raises(IndexRebuilding):
        found(world, 3)

    sent = 0
    while world.store.repair.step():
        if sent < 5:
            world.append([world.draft("orders", keys=f"key-{COUNT + sent}")])
            sent += 1

    assert_indexed(world)
    for number in range(COUNT, COUNT + sent):
        assert len(found(world, number)) == 1
    assert sent == 5


def test_recovery_point_excludes_an_index_during_its_rebuild(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash in the middle the next start rebuilds the index; a completed rebuild is durable."""
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    damage_hash(world, 70)
    with pytest.raises(IndexRebuilding):
        found(world, 70)
    world.store.repair.step()
    world.store.flush_step()
    point = RecoveryPointFile(world.disk, world.root).read()
    assert point is not None and not point.is_indexed
    half = world.disk.list(world.path("index"))

    world.repair()
    world.store.flush_step()
    point = RecoveryPointFile(world.disk, world.root).read()
    assert point is not None and point.is_indexed
    assert len(half) < 4, "expected dropped files to be unlinked"
    world.close()
    assert not world.open().is_index_rebuilt
    assert_indexed(world)


def test_a_crash_during_a_rebuild_costs_another_rebuild(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not trust an incompletely rebuilt index."""
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    damage_hash(world, 3)
    with pytest.raises(IndexRebuilding):
        found(world, 3)
    world.store.repair.step()
    world.store.flush_step()
    world.kill()

    assert world.open().is_index_rebuilt
    assert_indexed(world)


def test_an_index_that_had_no_room_catches_up_without_a_restart() -> None:
    """A full disk stops indexing, and never a send; with space the index catches up."""
    world = make_world("faulty", Path())
    world.open()
    for number in range(60):
        world.append([world.draft("orders", keys=f"key-{number} more-{number}")])
    index = world.store._lifecycle.index
    assert index is not None
    world.store.flush()
    world.faulty_disk.fail_next("create", 28)
    for number in range(60, COUNT):
        world.append([world.draft("orders", keys=f"key-{number} more-{number}")])
        if world.store._lifecycle.index is not None and world.store._lifecycle.index.is_behind:
            break
    assert index.is_behind
    for more in range(number + 1, COUNT):
        world.append([world.draft("orders", keys=f"key-{more} more-{more}")])

    world.clock.advance(RETRY_INTERVAL_MS)
    world.repair()

    assert_indexed(world)


# -- records that were damaged and are healed -------------------------------------------------------------------------


def heal(world: StoreWorld, number: int) -> None:
    """Write the former bytes of a message again, as a replica's are written."""
    start = sorted(world.records)[number]
    overwrite_log(world, start, world.records[start])
    world.store.guard.damage.mark_good(start, start + len(world.records[start]))


@pytest.mark.parametrize("is_queue_lost", [False, True], ids=["index lost", "queues lost, too"])
@pytest.mark.parametrize("numbers", [(0,), (70,), (COUNT - 2,), (0, 70, 71, 5, COUNT - 2)], ids=str)
def test_message_that_a_start_has_skipped_is_indexed_when_it_is_healed(
    world: StoreWorld, numbers: tuple[int, ...], is_queue_lost: bool
) -> None:
    """A start that rebuilds the index skips damage; a message that is healed later is found by its keys again."""
    world.close()
    for number in numbers:
        overwrite_log(world, sorted(world.records)[number] + 90, b"\xee")
    world.disk.remove_tree(world.path("index"))
    if is_queue_lost:
        world.disk.remove_tree(world.path("consumequeue"))
        world.disk.remove(world.path("recovery-point.json"))
        world.disk.remove(world.path("checkpoint"))
    world.open()
    noticed: list[bool] = []
    world.store.repair.on_damage.append(lambda: noticed.append(True))
    assert [found(world, number) for number in numbers] == [[] for _ in numbers]

    for number in numbers:
        heal(world, number)
        world.store.repair.step()  # A rebuild may have begun when the next message is healed.
    world.repair()

    assert noticed
    assert_indexed(world)


def test_healed_message_with_entries_costs_no_rebuild(world: StoreWorld) -> None:
    """A message that was damaged after it was indexed is still in the index."""
    start = sorted(world.records)[70]
    overwrite_log(world, start + 90, b"\xee")
    assert world.store.guard.message_at(start) is None

    heal(world, 70)

    assert not world.store.repair.step()
    assert world.store.repair.index_rebuilds == 0
    assert_indexed(world)
