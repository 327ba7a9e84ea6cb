"""Reading a store's directory: all that is safe, nothing beyond it, and nothing that is not what it should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from spark_kit.store_files import (
    BROKER,
    page_over,
    places_of,
    ranges_of,
    replicas_of,
    rows_of,
    sent_places,
    settings_of,
    task_of,
    written_store,
)

from gantry_store_files import StoreIdentity, decode_sealed, encode_sealed
from gantry_store_files.store_identity import Epoch
from gantry_testing.store_world import StoreWorld
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.errors import DamagedRecord, DataLost, InvalidOption, NoReplica
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange, TransportKind
from pyspark_rocketmq.replica_view import Gone, NotYet
from pyspark_rocketmq.transport.file import Store, topics_in

ORDERS = QueueId("orders", BROKER, 0)
LOG_FILE_BYTES = 16 * 1024


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    return written_store(tmp_path / "one")


def flip(world: StoreWorld, physical: int, position: int, value: bytes) -> None:
    """Change a record on the disk."""
    base, place = divmod(physical + position, LOG_FILE_BYTES)
    with open(f"{world.root}/commitlog/{base * LOG_FILE_BYTES:020d}", "r+b") as file:
        file.seek(place)
        file.write(value)


def physical_of(world: StoreWorld, queue: QueueId, offset: int) -> int:
    with Catalog(settings_of(world)) as catalog:
        return catalog.physical({queue: offset})[queue][0]


def test_a_store_is_read_by_queue_and_by_chunk(world: StoreWorld) -> None:
    """All that was sent, in the task's order, from a stopped broker's files over several log files."""
    settings = settings_of(world)
    assert len(os.listdir(f"{world.root}/commitlog")) > 1

    assert places_of(rows_of(task_of(world), settings)) == sorted(sent_places(world))
    whole = task_of(world, physical=(0, 1 << 30))
    assert places_of(rows_of(whole, settings)) == sent_places(world)
    bills = task_of(world, ranges=ranges_of(world, "bills"), physical=(0, 1 << 30))
    assert places_of(rows_of(bills, settings)) == sent_places(world, "bills")


def test_a_catalog_of_directories_alone(world: StoreWorld) -> None:
    """Topics, queues, bounds, epochs and places come from files where nobody runs."""
    with Catalog(settings_of(world)) as catalog:
        queues = catalog.queues(catalog.topics())

        assert catalog.topics() == ["bills", "orders"]
        assert queues == [one.queue for one in ranges_of(world)]
        assert catalog.bounds(queues) == {one.queue: Bounds(one.begin, one.end) for one in ranges_of(world)}
        assert [epoch.begin for epoch in catalog.logs([BROKER])[BROKER].epochs] == [0]
        assert catalog.replicas(BROKER) == replicas_of(world)
        with pytest.raises(InvalidOption, match="'nothing' is in none of the directories"):
            catalog.queues(["nothing"])


def test_offsets_in_time_are_the_first_at_that_time_or_later(world: StoreWorld) -> None:
    """By the store time of each record; before all of them 0, behind all of them the end."""
    rows = rows_of(task_of(world, columns=("topic", "queue", "offset", "storeTime")), settings_of(world))
    times = [
        round(row["storeTime"].timestamp() * 1000) for row in rows if (row["topic"], row["queue"]) == ("orders", 0)
    ]
    with Catalog(settings_of(world)) as catalog:
        for offset, time_ms in enumerate(times):
            assert catalog.offsets_at([ORDERS], time_ms) == {ORDERS: offset}
            assert catalog.offsets_at([ORDERS], time_ms + 1) == {ORDERS: offset + 1}
        assert catalog.offsets_at([ORDERS], 0) == {ORDERS: 0}


def test_what_is_written_but_not_confirmed_is_not_read(world: StoreWorld) -> None:
    """min(confirmed, committed) ends everything, whatever the files hold."""
    tenth = physical_of(world, ORDERS, 10)
    for facts in ({"confirmed": tenth, "committed": 1 << 30}, {"confirmed": 1 << 30, "committed": tenth}):
        with page_over(world, min_physical=0, wrote=1 << 30, **facts), Catalog(settings_of(world)) as catalog:
            assert catalog.bounds([ORDERS]) == {ORDERS: Bounds(0, 10)}
            assert catalog.logs([BROKER])[BROKER].end == tenth

            task = task_of(world, ranges=(QueueRange(ORDERS, 0, 10),))
            assert len(rows_of(task, settings_of(world))) == 10
            beyond = task_of(world, ranges=(QueueRange(ORDERS, 0, 11),))
            with pytest.raises(NoReplica, match=r"has \[0, 10\) of orders/broker-a/0, and is asked for \[0, 11\)"):
                rows_of(beyond, settings_of(world))


def test_a_glance_at_a_range_says_what_the_bounds_say(world: StoreWorld) -> None:
    """Two units are looked at in the place of a search; where no page vouches for the log the search decides."""
    third, tenth = physical_of(world, ORDERS, 3), physical_of(world, ORDERS, 10)
    store = Store(world.root)
    assert not store.has(ORDERS, 3, 10), "nobody vouches"
    with page_over(world, min_physical=third, wrote=1 << 30, confirmed=tenth, committed=1 << 30):
        store = Store(world.root)
        assert store.bounds(ORDERS) == Bounds(3, 10)
        for begin in range(13):
            for end in range(begin + 1, 14):
                assert store.has(ORDERS, begin, end) == (begin >= 3 and end <= 10), (begin, end)
        assert not store.has(ORDERS, 1 << 40, (1 << 40) + 1)
        assert not store.has(QueueId("nobody-made", BROKER, 0), 0, 1)


def test_units_of_a_file_that_came_later_are_found(world: StoreWorld) -> None:
    """The list of a queue's files is remembered, and looked at again when something is missing from it."""
    (last,) = Path(f"{world.root}/consumequeue/bills/0").iterdir()
    elsewhere = last.rename(last.parent.parent / "elsewhere")
    store, bills = Store(world.root), QueueId("bills", BROKER, 0)
    with pytest.raises(NotYet):
        store.units(bills, 0, 1)
    elsewhere.rename(last)

    assert len(store.units(bills, 0, 1)) == 1
    elsewhere = last.rename(elsewhere)
    with pytest.raises((Gone, NotYet)):
        store.units(bills, 0, 1)
    elsewhere.rename(last)


def test_a_message_across_the_confirmed_end_is_not_read(world: StoreWorld) -> None:
    """A record of which the last byte is not confirmed is none."""
    eleventh = physical_of(world, ORDERS, 11)
    with (
        page_over(world, min_physical=0, wrote=1 << 30, committed=1 << 30, confirmed=eleventh + 50),
        Catalog(settings_of(world)) as catalog,
    ):
        assert catalog.bounds([ORDERS]) == {ORDERS: Bounds(0, 11)}


def test_a_broker_that_recovers_is_not_read(world: StoreWorld) -> None:
    """While nobody knows how far the log may be read, nothing of it is."""
    with page_over(world), pytest.raises(NoReplica, match="has not said how far to read"):
        rows_of(task_of(world), settings_of(world))


def test_a_torn_end_without_a_page_is_left_out(world: StoreWorld) -> None:
    """Without a page a record counts if it is whole: units beyond the last whole one are none."""
    last = ranges_of(world, "orders")[0].end - 1
    flip(world, physical_of(world, ORDERS, last), 60, bytes(40))

    with Catalog(settings_of(world)) as catalog:
        assert catalog.bounds([ORDERS]) == {ORDERS: Bounds(0, last)}


def test_what_expired_is_lost_by_name(world: StoreWorld) -> None:
    """The beginning moves with the log; a task for what is gone says which messages nobody has any more."""
    os.remove(f"{world.root}/commitlog/{0:020d}")
    with Catalog(settings_of(world)) as catalog:
        begin = catalog.bounds([ORDERS])[ORDERS].begin
    assert begin > 0

    task = task_of(world, ranges=(QueueRange(ORDERS, 0, begin + 1),))
    with pytest.raises(DataLost, match=rf"orders/broker-a/0\[0, {begin + 1}\) can be read from no replica any more"):
        rows_of(task, settings_of(world, patience_ms=60_000))


def test_a_message_that_expires_while_its_time_is_read_counts_as_older(world: StoreWorld) -> None:
    """Retention may delete a log file after the bounds were taken: the search continues in the remaining files."""
    first, second = sorted(Path(world.root, "commitlog").iterdir())[:2]
    store = Store(world.root)
    bounds = store.bounds
    first.unlink()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Store, "bounds", lambda _, queue: Bounds(0, bounds(queue).end))
        found = store.offset_at(ORDERS, 0)

    assert 0 < found == store.bounds(ORDERS).begin
    assert physical_of(world, ORDERS, found) >= int(second.name)


@pytest.fixture
def mended(world: StoreWorld) -> StoreWorld:
    """A store in which eleven messages in the middle of a queue are lost."""
    world.fill_units(10, 21)
    return world


def without_lost(places: list[tuple[str, int, int, bytes]]) -> list[tuple[str, int, int, bytes]]:
    """What was sent, without the messages 10 to 20 of a queue."""
    return [one for one in places if one[:2] != ("orders", 0) or not 10 <= one[2] < 21]


def test_lost_messages_hide_none_before_them(mended: StoreWorld) -> None:
    """Only a filler at the beginning of a queue says that what lies before it is gone; others are passed over."""
    settings = settings_of(mended)
    with Catalog(settings) as catalog:
        queues = [one.queue for one in ranges_of(mended)]
        assert catalog.bounds(queues) == {one.queue: Bounds(one.begin, one.end) for one in ranges_of(mended)}
        assert catalog.physical({ORDERS: 15})[ORDERS] == (catalog.physical({ORDERS: 21})[ORDERS][0], 0)

    whole = task_of(mended, physical=(0, 1 << 30))
    assert places_of(rows_of(task_of(mended), settings)) == sorted(without_lost(sent_places(mended)))
    assert places_of(rows_of(whole, settings)) == without_lost(sent_places(mended))
    nothing_left = task_of(mended, ranges=(QueueRange(ORDERS, 12, 20),))
    assert rows_of(nothing_left, settings) == []


def test_a_filler_is_readable_where_the_message_at_its_place_is(mended: StoreWorld) -> None:
    """A filler before the confirmed end counts, one behind it does not, and one at the beginning always does."""
    place = physical_of(mended, ORDERS, 21)
    for confirmed, end in ((place, 10), (place + 1, 21)):
        with page_over(mended, min_physical=0, wrote=1 << 30, committed=1 << 30, confirmed=confirmed):
            assert Store(mended.root).bounds(ORDERS) == Bounds(0, end)
    mended.fill_units(0, 40, place=0)
    with page_over(mended, min_physical=0, wrote=1 << 30, committed=1 << 30, confirmed=0):
        assert Store(mended.root).bounds(ORDERS) == Bounds(40, 40)


@pytest.mark.parametrize("is_inside", [False, True], ids=["next message", "inside a record"])
def test_offsets_in_time_are_found_before_lost_messages(mended: StoreWorld, is_inside: bool) -> None:
    """A filler has the time of the message at its place, or says nothing: messages before it are found."""
    if is_inside:
        mended.fill_units(10, 21, place=physical_of(mended, ORDERS, 21) - 1)
    rows = rows_of(task_of(mended, columns=("topic", "queue", "offset", "storeTime")), settings_of(mended))
    times = {
        row["offset"]: round(row["storeTime"].timestamp() * 1000)
        for row in rows if (row["topic"], row["queue"]) == ("orders", 0)
    }  # fmt: skip
    with Catalog(settings_of(mended)) as catalog:
        for offset in (0, 4, 9, 22, 39):
            assert catalog.offsets_at([ORDERS], times[offset]) == {ORDERS: offset}
        assert catalog.offsets_at([ORDERS], times[9] + 1) == {ORDERS: 10}


def test_foreign_names_are_no_queues_and_no_segments(world: StoreWorld) -> None:
    """`007` is not queue 7, and a directory with a name of twenty digits is no file of the log."""
    end = Store(world.root).span().end
    for name in ("007", "²", "2147483648"):
        Path(world.root, "consumequeue", "orders", name).mkdir()
    Path(world.root, "commitlog", f"{1 << 40:020d}").mkdir()

    assert topics_in(world.root) == {"bills": (0,), "orders": (0, 1)}
    assert Store(world.root).span().end == end


def test_epochs_are_of_the_newer_copy_of_the_identity(world: StoreWorld) -> None:
    """A `store.json` that was rolled back says less than its twin, and a start would use the twin, too."""
    path = Path(world.root, "store.json")
    newer = decode_sealed(path.read_bytes(), StoreIdentity)
    path.write_bytes(encode_sealed(replace(newer, generation=newer.generation - 1, epochs=[Epoch(0, 0)])))

    assert Store(world.root).epochs() == newer.epochs


def test_a_topic_that_vanishes_while_topics_are_listed_hides_no_other(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may be deleted between the listing of topics and that of its queues: the others are listed."""
    real = os.listdir

    def listdir(folder: Path) -> list[str]:
        if Path(folder).name == "bills":
            raise FileNotFoundError(folder)
        return real(folder)

    monkeypatch.setattr(os, "listdir", listdir)

    assert topics_in(world.root) == {"orders": (0, 1)}


def test_a_range_that_one_replica_has_no_more_comes_from_another(world: StoreWorld, tmp_path: Path) -> None:
    """Gone here is not gone: the next replica is asked for the very same rows."""
    twin = written_store(tmp_path / "two")
    os.remove(f"{world.root}/commitlog/{0:020d}")
    task = task_of(world, twin, ranges=ranges_of(twin))

    assert places_of(rows_of(task, settings_of(world, twin))) == sorted(sent_places(twin))


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (4, b"\0\0\0\0", "magic is unknown"), (0, b"\0\0\0\x5c", "cannot be"), (12, b"\0\0\0\x07", "another queue"),
        (20, b"\0\0\0\0\0\0\0\x63", "another offset"), (28, b"\0\0\0\0\0\0\0\x01", "another place in the log"),
        (84, b"\0\0\x0f\0", "length of its body"), (92, b"~", "does not match its CRC"),
    ],
    ids=["magic", "size", "queue", "offset", "place", "body", "crc"],
)  # fmt: skip
def test_a_damaged_record_comes_from_another_replica_or_is_named(
    world: StoreWorld, tmp_path: Path, position: int, value: bytes, reason: str
) -> None:
    """A record that is not what it has to be never becomes a row; where no replica has a better one, both are named."""
    twin = written_store(tmp_path / "two")
    physical = physical_of(world, ORDERS, 5)
    flip(world, physical, position, value)

    rows = rows_of(task_of(world, twin), settings_of(world, twin))
    assert places_of(rows) == sorted(sent_places(twin))

    with pytest.raises(DamagedRecord, match=rf"{world.root}: .*orders/broker-a/0 at offset 5.*{physical}.*{reason}"):
        rows_of(task_of(world), settings_of(world))


def test_tags_are_filtered_by_index_and_by_record(world: StoreWorld) -> None:
    """Only messages with a wanted tag, in both orders."""
    everything = rows_of(task_of(world), settings_of(world))
    wanted = [row for row in everything if row["tags"] == "red"]
    assert 0 < len(wanted) < len(everything)

    assert rows_of(task_of(world, tags=frozenset({"red"})), settings_of(world)) == wanted
    chunk = task_of(world, tags=frozenset({"red"}), physical=(0, 1 << 30))
    assert sorted(places_of(rows_of(chunk, settings_of(world)))) == places_of(wanted)


def test_one_directory_may_stand_for_any_replica(world: StoreWorld) -> None:
    """A name without a number is a broker's store, whoever's."""
    settings = settings_of(world, directories={BROKER: world.root})
    with Catalog(settings) as catalog:
        assert len(rows_of(task_of(world, ranges=ranges_of(world)), settings)) == len(world.sent)
        assert [replica.directory for replica in catalog.replicas(BROKER)] == [world.root]


def test_a_directory_that_is_no_store_says_so(world: StoreWorld, tmp_path: Path) -> None:
    """A wrong path is named, and never an empty topic."""
    settings = settings_of(world, directories={BROKER: str(tmp_path)}, transport=TransportKind.FILE)

    with Catalog(settings) as catalog, pytest.raises(NoReplica, match="is no store that can be read here"):
        catalog.bounds([ORDERS])
