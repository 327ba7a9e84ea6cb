"""Reading a store directory: everything that is confirmed, nothing beyond it, and no damaged record."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
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

from gantry_status.layout import MAGIC, MAJOR
from gantry_store_files import StoreIdentity, decode_sealed, encode_sealed
from gantry_store_files.store_identity import Epoch
from gantry_testing.store_world import StoreWorld
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.errors import DamagedRecord, DataLost, InvalidOption, NoReplica
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange, TransportKind
from pyspark_rocketmq.replica_view import NotYetAvailable, RangeDeleted
from pyspark_rocketmq.transport.file import Store, topics_in

ORDERS = QueueId("orders", BROKER, 0)
LOG_FILE_BYTES = 16 * 1024


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    return written_store(tmp_path / "one")


def flip(world: StoreWorld, physical: int, position: int, value: bytes) -> None:
    """Change bytes of a record on the disk."""
    base, place = divmod(physical + position, LOG_FILE_BYTES)
    with open(f"{world.root}/commitlog/{base * LOG_FILE_BYTES:020d}", "r+b") as file:
        file.seek(place)
        file.write(value)


def physical_of(world: StoreWorld, queue: QueueId, offset: int) -> int:
    with Catalog(settings_of(world)) as catalog:
        return catalog.physical({queue: offset})[queue][0]


def test_store_is_read_by_queue_and_by_chunk(world: StoreWorld) -> None:
    """All messages are read in the task's order from a stopped broker's files, across several log files."""
    settings = settings_of(world)
    assert len(os.listdir(f"{world.root}/commitlog")) > 1

    assert places_of(rows_of(task_of(world), settings)) == sorted(sent_places(world))
    whole = task_of(world, physical=(0, 1 << 30))
    assert places_of(rows_of(whole, settings)) == sent_places(world)
    bills = task_of(world, ranges=ranges_of(world, "bills"), physical=(0, 1 << 30))
    assert places_of(rows_of(bills, settings)) == sent_places(world, "bills")


def test_catalog_works_with_directories_alone(world: StoreWorld) -> None:
    """Topics, queues, bounds, epochs and locations come from files while no broker runs."""
    with Catalog(settings_of(world)) as catalog:
        queues = catalog.queues(catalog.topics())

        assert catalog.topics() == ["bills", "orders"]
        assert queues == [one.queue for one in ranges_of(world)]
        assert catalog.bounds(queues) == {one.queue: Bounds(one.begin, one.end) for one in ranges_of(world)}
        assert [epoch.begin for epoch in catalog.logs([BROKER])[BROKER].epochs] == [0]
        assert catalog.replicas(BROKER) == replicas_of(world)
        with pytest.raises(InvalidOption, match="'nothing' not found in any of the directories"):
            catalog.queues(["nothing"])


def test_offset_at_a_time_is_the_first_message_stored_then_or_later(world: StoreWorld) -> None:
    """Store times decide: a time before all messages gives 0, one after all messages the end."""
    rows = rows_of(task_of(world, columns=("topic", "queue", "offset", "storeTime")), settings_of(world))
    times = [
        round(row["storeTime"].timestamp() * 1000) for row in rows if (row["topic"], row["queue"]) == ("orders", 0)
    ]
    with Catalog(settings_of(world)) as catalog:
        for offset, time_ms in enumerate(times):
            assert catalog.offsets_at([ORDERS], time_ms) == {ORDERS: offset}
            assert catalog.offsets_at([ORDERS], time_ms + 1) == {ORDERS: offset + 1}
        assert catalog.offsets_at([ORDERS], 0) == {ORDERS: 0}


def test_unconfirmed_messages_are_not_read(world: StoreWorld) -> None:
    """min(confirmed, committed) ends every read, even if the files contain more."""
    tenth = physical_of(world, ORDERS, 10)
    for facts in ({"confirmed": tenth, "committed": 1 << 30}, {"confirmed": 1 << 30, "committed": tenth}):
        with page_over(world, min_physical=0, wrote=1 << 30, **facts), Catalog(settings_of(world)) as catalog:
            assert catalog.bounds([ORDERS]) == {ORDERS: Bounds(0, 10)}
            assert catalog.logs([BROKER])[BROKER].end == tenth

            task = task_of(world, ranges=(QueueRange(ORDERS, 0, 10),))
            assert len(rows_of(task, settings_of(world))) == 10
            beyond = task_of(world, ranges=(QueueRange(ORDERS, 0, 11),))
            with pytest.raises(NoReplica, match=r"has \[0, 10\) of orders/broker-a/0, but \[0, 11\) was requested"):
                rows_of(beyond, settings_of(world))


def test_quick_range_check_agrees_with_the_bounds(world: StoreWorld) -> None:
    """Two units are checked instead of a search; without a status page the search decides."""
    third, tenth = physical_of(world, ORDERS, 3), physical_of(world, ORDERS, 10)
    store = Store(world.root)
    assert not store.has_units(ORDERS, 3, 10), "expected a search if no status page has the end of the log"
    with page_over(world, min_physical=third, wrote=1 << 30, confirmed=tenth, committed=1 << 30):
        store = Store(world.root)
        assert store.bounds(ORDERS) == Bounds(3, 10)
        for begin in range(13):
            for end in range(begin + 1, 14):
                assert store.has_units(ORDERS, begin, end) == (begin >= 3 and end <= 10), (begin, end)
        assert not store.has_units(ORDERS, 1 << 40, (1 << 40) + 1)
        assert not store.has_units(QueueId("not-created", BROKER, 0), 0, 1)


def test_units_of_a_later_file_are_found(world: StoreWorld) -> None:
    """The list of a queue's files is cached, and read again when a file is missing from it."""
    (last,) = Path(f"{world.root}/consumequeue/bills/0").iterdir()
    other_store = last.rename(last.parent.parent / "other_store")
    store, bills = Store(world.root), QueueId("bills", BROKER, 0)
    with pytest.raises(NotYetAvailable):
        store.units(bills, 0, 1)
    other_store.rename(last)

    assert len(store.units(bills, 0, 1)) == 1
    other_store = last.rename(other_store)
    with pytest.raises((RangeDeleted, NotYetAvailable)):
        store.units(bills, 0, 1)
    other_store.rename(last)


def test_message_across_the_confirmed_end_is_not_read(world: StoreWorld) -> None:
    """A record whose last byte is not confirmed is not returned."""
    eleventh = physical_of(world, ORDERS, 11)
    with (
        page_over(world, min_physical=0, wrote=1 << 30, committed=1 << 30, confirmed=eleventh + 50),
        Catalog(settings_of(world)) as catalog,
    ):
        assert catalog.bounds([ORDERS]) == {ORDERS: Bounds(0, 11)}


def test_recovering_broker_is_not_read(world: StoreWorld) -> None:
    """While the readable end of the log is unknown, nothing is read."""
    with page_over(world), pytest.raises(NoReplica, match="has not reported how far to read"):
        rows_of(task_of(world), settings_of(world))


def open_refusing_status_pages(path: str, flags: int, real: Callable[[str, int], int] = os.open) -> int:
    """Open a file as a user without permission to read the status page: tests may run as root."""
    if Path(path).name == "status":
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return real(path, flags)


@pytest.mark.parametrize("case", ["newer layout", "foreign", "no file", "refused"])
def test_store_with_an_unreadable_status_page_is_not_read(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Such a page may limit the read: only a store without a page is read by its whole records."""
    tenth, page = physical_of(world, ORDERS, 10), Path(f"{world.root}/status")
    with page_over(world, min_physical=0, wrote=1 << 30, committed=1 << 30, confirmed=tenth):
        data = bytearray(page.read_bytes())
    data[len(MAGIC) : len(MAGIC) + 2] = (MAJOR + 1).to_bytes(2)
    page.unlink()
    if case == "no file":
        page.mkdir()
    else:
        page.write_bytes(b"another program's" if case == "foreign" else bytes(data))
    if case == "refused":
        monkeypatch.setattr("gantry_status.reader.os.open", open_refusing_status_pages)

    with pytest.raises(NoReplica, match=r"status.*make it readable, or remove it if no broker uses this directory"):
        rows_of(task_of(world), settings_of(world))


def test_torn_end_without_a_status_page_is_left_out(world: StoreWorld) -> None:
    """Without a status page only whole records count: units after the last whole one are ignored."""
    last = ranges_of(world, "orders")[0].end - 1
    flip(world, physical_of(world, ORDERS, last), 60, bytes(40))

    with Catalog(settings_of(world)) as catalog:
        assert catalog.bounds([ORDERS]) == {ORDERS: Bounds(0, last)}


def test_expired_messages_are_named_as_lost(world: StoreWorld) -> None:
    """The queue begins where the log begins; a task for deleted messages names them in its error."""
    os.remove(f"{world.root}/commitlog/{0:020d}")
    with Catalog(settings_of(world)) as catalog:
        begin = catalog.bounds([ORDERS])[ORDERS].begin
    assert begin > 0

    task = task_of(world, ranges=(QueueRange(ORDERS, 0, begin + 1),))
    with pytest.raises(DataLost, match=rf"orders/broker-a/0\[0, {begin + 1}\) were deleted on all replicas"):
        rows_of(task, settings_of(world, patience_ms=60_000))


def test_message_that_expires_during_a_time_search_counts_as_older(world: StoreWorld) -> None:
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
def store_with_lost_messages(world: StoreWorld) -> StoreWorld:
    """Return a store in which eleven messages in the middle of a queue are lost."""
    world.fill_units(10, 21)
    return world


def without_lost(places: list[tuple[str, int, int, bytes]]) -> list[tuple[str, int, int, bytes]]:
    """Return the sent messages without the messages 10 to 20 of a queue."""
    return [one for one in places if one[:2] != ("orders", 0) or not 10 <= one[2] < 21]


def test_lost_messages_do_not_hide_earlier_ones(store_with_lost_messages: StoreWorld) -> None:
    """Only a filler at the beginning of a queue means that earlier messages expired; other fillers are skipped."""
    settings = settings_of(store_with_lost_messages)
    with Catalog(settings) as catalog:
        queues = [one.queue for one in ranges_of(store_with_lost_messages)]
        assert catalog.bounds(queues) == {
            one.queue: Bounds(one.begin, one.end) for one in ranges_of(store_with_lost_messages)
        }
        assert catalog.physical({ORDERS: 15})[ORDERS] == (catalog.physical({ORDERS: 21})[ORDERS][0], 0)

    whole = task_of(store_with_lost_messages, physical=(0, 1 << 30))
    assert places_of(rows_of(task_of(store_with_lost_messages), settings)) == sorted(
        without_lost(sent_places(store_with_lost_messages))
    )
    assert places_of(rows_of(whole, settings)) == without_lost(sent_places(store_with_lost_messages))
    nothing_left = task_of(store_with_lost_messages, ranges=(QueueRange(ORDERS, 12, 20),))
    assert rows_of(nothing_left, settings) == []


def test_filler_is_readable_up_to_the_confirmed_end(store_with_lost_messages: StoreWorld) -> None:
    """A filler before the confirmed end counts, one after it does not, and one at the beginning always does."""
    place = physical_of(store_with_lost_messages, ORDERS, 21)
    for confirmed, end in ((place, 10), (place + 1, 21)):
        with page_over(store_with_lost_messages, min_physical=0, wrote=1 << 30, committed=1 << 30, confirmed=confirmed):
            assert Store(store_with_lost_messages.root).bounds(ORDERS) == Bounds(0, end)
    store_with_lost_messages.fill_units(0, 40, place=0)
    with page_over(store_with_lost_messages, min_physical=0, wrote=1 << 30, committed=1 << 30, confirmed=0):
        assert Store(store_with_lost_messages.root).bounds(ORDERS) == Bounds(40, 40)


@pytest.mark.parametrize("is_inside", [False, True], ids=["next message", "inside a record"])
def test_time_search_finds_messages_before_lost_ones(store_with_lost_messages: StoreWorld, is_inside: bool) -> None:
    """A filler has the time of the message at its position, or none: earlier messages are found."""
    if is_inside:
        store_with_lost_messages.fill_units(10, 21, place=physical_of(store_with_lost_messages, ORDERS, 21) - 1)
    rows = rows_of(
        task_of(store_with_lost_messages, columns=("topic", "queue", "offset", "storeTime")),
        settings_of(store_with_lost_messages),
    )
    times = {
        row["offset"]: round(row["storeTime"].timestamp() * 1000)
        for row in rows if (row["topic"], row["queue"]) == ("orders", 0)
    }  # fmt: skip
    with Catalog(settings_of(store_with_lost_messages)) as catalog:
        for offset in (0, 4, 9, 22, 39):
            assert catalog.offsets_at([ORDERS], times[offset]) == {ORDERS: offset}
        assert catalog.offsets_at([ORDERS], times[9] + 1) == {ORDERS: 10}


def test_foreign_names_are_neither_queues_nor_segments(world: StoreWorld) -> None:
    """`007` is not queue 7, and a directory with a name of twenty digits is not a file of the log."""
    end = Store(world.root).span().end
    for name in ("007", "²", "2147483648"):
        Path(world.root, "consumequeue", "orders", name).mkdir()
    Path(world.root, "commitlog", f"{1 << 40:020d}").mkdir()

    assert topics_in(world.root) == {"bills": (0,), "orders": (0, 1)}
    assert Store(world.root).span().end == end


def test_epochs_come_from_the_newer_copy_of_the_identity(world: StoreWorld) -> None:
    """A `store.json` that was rolled back is older than its backup, which a start would use, too."""
    path = Path(world.root, "store.json")
    newer = decode_sealed(path.read_bytes(), StoreIdentity)
    path.write_bytes(encode_sealed(replace(newer, generation=newer.generation - 1, epochs=[Epoch(0, 0)])))

    assert Store(world.root).epochs() == newer.epochs


def test_topic_deleted_during_listing_hides_no_other(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may be deleted between the listing of topics and that of its queues: the others are listed."""
    real = os.listdir

    def listdir(folder: Path) -> list[str]:
        if Path(folder).name == "bills":
            raise FileNotFoundError(folder)
        return real(folder)

    monkeypatch.setattr(os, "listdir", listdir)

    assert topics_in(world.root) == {"orders": (0, 1)}


def test_range_deleted_on_one_replica_is_read_from_another(world: StoreWorld, tmp_path: Path) -> None:
    """The next replica returns exactly the same rows."""
    second = written_store(tmp_path / "two")
    os.remove(f"{world.root}/commitlog/{0:020d}")
    task = task_of(world, second, ranges=ranges_of(second))

    assert places_of(rows_of(task, settings_of(world, second))) == sorted(sent_places(second))


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (4, b"\0\0\0\0", "magic is unknown"), (0, b"\0\0\0\x5c", "is invalid"), (12, b"\0\0\0\x07", "another queue"),
        (20, b"\0\0\0\0\0\0\0\x63", "another offset"), (28, b"\0\0\0\0\0\0\0\x01", "another physical offset"),
        (84, b"\0\0\x0f\0", "length of its body"), (92, b"~", "does not match its CRC"),
    ],
    ids=["magic", "size", "queue", "offset", "place", "body", "crc"],
)  # fmt: skip
def test_damaged_record_is_read_from_another_replica_or_named(
    world: StoreWorld, tmp_path: Path, position: int, value: bytes, reason: str
) -> None:
    """A damaged record never becomes a row; if no replica has a good copy, the error names record and replica."""
    second = written_store(tmp_path / "two")
    physical = physical_of(world, ORDERS, 5)
    flip(world, physical, position, value)

    rows = rows_of(task_of(world, second), settings_of(world, second))
    assert places_of(rows) == sorted(sent_places(second))

    with pytest.raises(DamagedRecord, match=rf"{world.root}: .*orders/broker-a/0 at offset 5.*{physical}.*{reason}"):
        rows_of(task_of(world), settings_of(world))


def test_tags_are_filtered_by_index_and_by_record(world: StoreWorld) -> None:
    """Only messages with a requested tag are returned, in both orders."""
    everything = rows_of(task_of(world), settings_of(world))
    wanted = [row for row in everything if row["tags"] == "red"]
    assert 0 < len(wanted) < len(everything)

    assert rows_of(task_of(world, tags=frozenset({"red"})), settings_of(world)) == wanted
    chunk = task_of(world, tags=frozenset({"red"}), physical=(0, 1 << 30))
    assert sorted(places_of(rows_of(chunk, settings_of(world)))) == places_of(wanted)


def test_directory_without_number_serves_any_replica(world: StoreWorld) -> None:
    """A name without a broker id is a store of any replica of the broker."""
    settings = settings_of(world, directories={BROKER: world.root})
    with Catalog(settings) as catalog:
        assert len(rows_of(task_of(world, ranges=ranges_of(world)), settings)) == len(world.sent)
        assert [replica.directory for replica in catalog.replicas(BROKER)] == [world.root]


def test_directory_without_a_store_is_an_error(world: StoreWorld, tmp_path: Path) -> None:
    """A wrong path is named, and never read as an empty topic."""
    settings = settings_of(world, directories={BROKER: str(tmp_path)}, transport=TransportKind.FILE)

    with Catalog(settings) as catalog, pytest.raises(NoReplica, match="is not a readable store"):
        catalog.bounds([ORDERS])
