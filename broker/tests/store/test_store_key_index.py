"""Messages are found by key, across files, restarts and hash collisions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.errors import IndexRebuilding
from gantry_broker.store import index_file
from gantry_broker.store.draft import Draft
from gantry_broker.store.index_file import ENTRY, HEADER, SLOT, IndexFile, IndexHeader
from gantry_broker.store.inspect.index_reader import IndexReader
from gantry_broker.store.key_hash import (
    MASK,
    TIME_END,
    add_key_pieces,
    key_hash,
    non_negative,
    prefix_hashes,
    seeded_hash,
    suffix_hashes,
)
from gantry_broker.store.key_index import KeyIndex
from gantry_store_files.recovery_point import RECOVERY_POINT_FILE
from gantry_testing.faulty_reading_disk import FaultyReadingDisk
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.hashing import java_string_hash
from gantry_wire.message import decode_record


def found(world: StoreWorld, key: str, topic: str = "orders", *, count_max: int = 64) -> list[bytes]:
    """Return the bodies of the messages that really have the key."""
    records, _, _ = world.store.keys.records(topic, key, count_max, 0, 1 << 60)
    messages = [decode_record(record) for record in records]
    return [m.body for m in messages if key in (m.properties["UNIQ_KEY"], *m.properties.get("KEYS", "").split())]


def test_message_is_found_by_each_of_its_keys_only(world: StoreWorld) -> None:
    """The unique key and every word of KEYS lead to the message; other topics do not."""
    world.append([world.draft(body=b"one", keys="red blue"), world.draft(body=b"two", keys="blue")])
    unique = world.messages()[0].properties["UNIQ_KEY"]

    assert found(world, "red") == [b"one"]
    assert found(world, "blue") == [b"two", b"one"]
    assert found(world, unique) == [b"one"]
    assert found(world, "green") == []
    assert found(world, "red", "bills") == []


def test_query_returns_the_newest_messages_up_to_the_limit(world: StoreWorld) -> None:
    """A limited query returns the newest messages, newest first."""
    for number in range(10):
        world.append([world.draft(body=b"%d" % number, keys="k")])

    assert found(world, "k", count_max=3) == [b"9", b"8", b"7"]


def test_keys_are_found_across_many_files(world: StoreWorld) -> None:
    """An index file has a limited number of keys; older files are searched if the newest has too few matches."""
    for number in range(300):
        world.append([world.draft(body=b"%d" % number, keys=f"k{number % 10}")])
        world.clock.advance(10)

    assert len(world.store._lifecycle.index.files) >= 4 if world.store._lifecycle.index else False
    assert found(world, "k3") == [b"%d" % number for number in range(293, 0, -10)]
    world.close()
    world.open()
    assert found(world, "k3") == [b"%d" % number for number in range(293, 0, -10)]


def test_a_file_with_other_numerals_in_its_name_is_no_index_file(world: StoreWorld) -> None:
    """Only names of ASCII digits are index files: others are ignored, and make the index neither newer nor damaged."""
    world.append([world.draft(body=b"one", keys="k")])
    world.close()
    foreign = world.path("index/2099010112000000²")
    world.disk.create(foreign, world.settings.index_file_size).close()

    report = world.open()

    assert not report.is_index_rebuilt
    world.append([world.draft(body=b"two", keys="k")])
    assert found(world, "k") == [b"two", b"one"]
    assert world.disk.exists(foreign)


def test_time_range_limits_the_matches(world: StoreWorld) -> None:
    """Entries have their time to the second."""
    start = world.clock.wall_ms()
    for number in range(10):
        world.append([world.draft(body=b"%d" % number, keys="k")])
        world.clock.advance(10_000)

    records, _, _ = world.store.keys.records("orders", "k", 64, start + 30_000, start + 60_000)

    assert [decode_record(record).body for record in records] == [b"6", b"5", b"4", b"3"]


def test_result_contains_the_end_of_the_index(world: StoreWorld) -> None:
    """Clients compare it with the log to decide whether to query again."""
    assert world.store.keys.records("orders", "k", 1, 0, 1 << 60) == ([], 0, 0)
    world.send(count=3)

    _, last_ms, last_physical = world.store.keys.records("orders", "k", 1, 0, 1 << 60)

    last = world.messages()[-1]
    assert (last_ms, last_physical) == (last.store_timestamp_ms, last.physical_offset)


def test_rolled_back_messages_are_not_indexed_but_prepared_ones_are(world: StoreWorld) -> None:
    """As in RocketMQ, a half message can be found, and a rollback cannot."""
    world.append([world.draft(keys="prepared", sys_flag=0x4), world.draft(keys="gone", sys_flag=0xC)])

    assert len(found(world, "prepared")) == 1
    assert found(world, "gone") == []


def test_an_index_file_has_rocketmqs_layout(world: StoreWorld) -> None:
    """Header, slot and entry bytes of the first message are computed by hand from RocketMQ's rules."""
    draft = world.draft()._replace(keys=("key",))
    world.append([draft])
    world.send("x", 1)

    (data,) = world.files("index").values()
    settings = world.settings
    assert len(data) == 40 + settings.max_hash_slot_num * 4 + settings.max_index_num * 20
    header = IndexHeader(*HEADER.unpack_from(data, 0))
    first, second = world.messages()[0], world.messages("x")[0]
    assert header == (
        first.store_timestamp_ms, second.store_timestamp_ms, first.physical_offset, second.physical_offset,
        header.slots_used, 3,
    )  # fmt: skip
    value = abs(java_string_hash("orders#key"))
    assert ENTRY.unpack_from(data, 40 + settings.max_hash_slot_num * 4 + 20) == (value, first.physical_offset, 0, 0)
    unique = second.properties["UNIQ_KEY"]
    same_slot = abs(java_string_hash(f"x#{unique}")) % settings.max_hash_slot_num == value % settings.max_hash_slot_num
    assert SLOT.unpack_from(data, 40 + value % settings.max_hash_slot_num * 4)[0] == (2 if same_slot else 1)


def test_a_header_that_is_written_after_a_sync_is_synced_by_the_next(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The syncing thread may run between any two steps of a batch: later writes keep the file marked as dirty."""
    world.append([world.draft(keys="k")])
    assert world.store._lifecycle.index is not None
    file = world.store._lifecycle.index.files[-1]

    class SyncFirst:
        """A header format that syncs the file just before a header is written."""

        def pack_into(self, *fields: Any) -> None:
            file.sync()
            HEADER.pack_into(*fields)

    monkeypatch.setattr(index_file, "HEADER", SyncFirst())

    world.append([world.draft(keys="k")])

    assert file.is_dirty


def test_search_ends_on_a_cyclic_chain(world: StoreWorld) -> None:
    """Numbers must decrease along a chain, so an entry that leads to itself or upward ends the search."""
    world.append([world.draft(keys="k"), world.draft(keys="k")])
    assert world.store._lifecycle.index is not None
    file = world.store._lifecycle.index.files[0]
    for number in range(1, file.header.next_number):
        position = file.entry_position(number) + 16
        file.view[position : position + 4] = (3).to_bytes(4, "big")

    assert len(world.store.keys.matches("orders", "k", 64, 0, 1 << 60).physical_offsets) <= 2
    with pytest.raises(IndexRebuilding):
        world.store.keys.records("orders", "k", 64, 0, 1 << 60)
    world.repair()
    assert len(world.store.keys.records("orders", "k", 64, 0, 1 << 60)[0]) == 2


def test_a_full_disk_stops_indexing_and_no_send(tmp_path: Path) -> None:
    """The index is derived: without space messages are still stored, and the next start catches up."""
    world = make_world("faulty", tmp_path)
    world.settings = dataclasses.replace(world.settings, index_reserve_bytes=20)
    world.open()
    world.append([world.draft(keys="first")])
    world.append([world.draft("orders", i) for i in range(10)])
    used = world.faulty_disk.space("/").used
    world.faulty_disk.capacity = used + 39

    world.append([world.draft(keys="second third fourth")])

    with pytest.raises(IndexRebuilding):
        found(world, "second")
    world.faulty_disk.capacity = 1 << 30
    world.close()
    world.open()
    assert len(found(world, "second")) == len(found(world, "first")) == 1


def test_without_an_index_nothing_is_found_and_nothing_is_written(tmp_path: Path) -> None:
    """messageIndexEnable=false: no files, empty answers; switched on again, the index is built from the log."""
    world = make_world("faulty", tmp_path)
    world.settings = dataclasses.replace(world.settings, is_index_enabled=False)
    world.open()
    world.append([world.draft(keys="k")])

    assert world.store.keys.records("orders", "k", 1, 0, 1 << 60) == ([], 0, 0)
    world.close()
    assert world.files("index") == {}
    world.settings = dataclasses.replace(world.settings, is_index_enabled=True)
    world.open()
    assert len(found(world, "k")) == 1


# -- the hash --------------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_pieces_of_a_hash_add_up_to_javas(topic: str, key: str) -> None:
    """For any characters the seeded hash is Java's hash of ``topic#key``."""
    seed = java_string_hash(f"{topic}#") & MASK

    assert non_negative(seeded_hash(seed, key)) == key_hash(topic, key)


@given(st.text(alphabet=st.characters(min_codepoint=0, max_codepoint=127), min_size=32, max_size=32))
def test_a_unique_key_costs_two_lookups_and_is_the_same_hash(key: str) -> None:
    """The contributions in the tables add up to the plain hash, for new and for known pieces."""
    learned = add_key_pieces(key)

    assert learned & MASK == java_string_hash(key) & MASK
    assert (prefix_hashes[key[:TIME_END]] + suffix_hashes[key[TIME_END:]]) & MASK == java_string_hash(key) & MASK


def test_javas_abs_of_the_smallest_integer_is_zero_here() -> None:
    """Math.abs(Integer.MIN_VALUE) is negative in Java, and RocketMQ takes 0 instead."""
    assert non_negative(-(1 << 31)) == 0
    assert non_negative(-5) == 5
    assert non_negative(0x7FFFFFFF) == 0x7FFFFFFF


# -- between two files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys_before", [199, 198, 197])
def test_header_of_a_full_file_has_the_offset_of_its_last_entry(world: StoreWorld, keys_before: int) -> None:
    """The file is full before, within or after the keys of a message in the middle of a batch; tools accept it."""
    drafts = [world.draft(body=b"%d" % number)._replace(keys=(f"k{number}",)) for number in range(keys_before)]
    drafts.append(world.draft(body=b"split")._replace(keys=("first", "second")))
    world.append(drafts)

    index = world.store._lifecycle.index
    assert index is not None
    for file in index.files:
        last = file.header.next_number - 1
        assert file.header.end_physical == file.entry(last)[1]
        reader = IndexReader(FaultyReadingDisk(world.disk), file.file.path)
        assert reader.fault == ""
        reader.close()


def append_and_crash_between_files(world: StoreWorld, drafts: list[Draft]) -> None:
    """Append a batch, write a recovery point when an index file is full and before there is another, and crash."""
    create, store = KeyIndex._writable_file, world.store

    def write_point_before(index: KeyIndex) -> IndexFile:
        if index.files and index.files[-1].is_full:
            world.clock.advance(60_000)
            store.flush_step()
        return create(index)

    with mock.patch.object(KeyIndex, "_writable_file", write_point_before):
        world.append(drafts)
    world.kill()


@pytest.mark.parametrize("keys_before", [199, 198])
def test_recovery_point_between_two_files_costs_no_key(world: StoreWorld, keys_before: int) -> None:
    """``gantry-point`` may read the header of a full file while the batch continues in the next one."""
    drafts = [
        world.draft(body=b"%d" % number, keys=f"k{number}")._replace(keys=(f"k{number}",))
        for number in range(keys_before)
    ]
    split = world.draft(body=b"split", keys="first second")
    drafts.append(split._replace(keys=("first", "second")))
    append_and_crash_between_files(world, drafts)

    world.open()

    assert [found(world, key) for key in ("k0", "first", "second")] == [[b"0"], [b"split"], [b"split"]]


def count_entries(world: StoreWorld) -> int:
    index = world.store._lifecycle.index
    assert index is not None
    return sum(file.header.next_number - 1 for file in index.files)


@pytest.mark.parametrize("is_point_lost", [True, False])
@pytest.mark.parametrize("keys", ["", "one", "one two", "one two three four"])
def test_start_after_a_clean_stop_adds_no_entry(world: StoreWorld, keys: str, is_point_lost: bool) -> None:
    """Without a recovery point, as after a stop of RocketMQ's broker, too: that returns a message for each entry."""
    drafts = [world.draft(body=b"%d" % number, keys=keys) for number in range(98)]
    world.append(drafts)
    count = sum(len(draft.keys) for draft in drafts)
    assert count_entries(world) == count
    world.close()
    if is_point_lost:
        world.disk.remove(f"{world.root}/{RECOVERY_POINT_FILE}")

    world.open()
    assert count_entries(world) == count
    world.append([world.draft(body=b"new", keys=keys)])

    assert count_entries(world) == count + len(drafts[0].keys)
    assert found(world, "one") == ([b"new", *(b"%d" % number for number in reversed(range(98)))][:64] if keys else [])


@pytest.mark.parametrize("first_keys", ["", "a", "a b", "a b c"])
def test_keys_of_a_message_that_are_split_between_two_files_are_indexed_once(
    world: StoreWorld, first_keys: str
) -> None:
    """A start after a crash continues with the first key that has no entry."""
    drafts = [world.draft(body=b"0", keys=first_keys)]
    drafts += [world.draft(body=b"%d" % number, keys="x") for number in range(1, 98)]
    drafts.append(world.draft(body=b"split", keys="first second third fourth"))
    append_and_crash_between_files(world, drafts)

    world.open()

    assert count_entries(world) == sum(len(draft.keys) for draft in drafts) >= 200
    assert [found(world, key) for key in ("first", "second", "third", "fourth")] == [[b"split"]] * 4
