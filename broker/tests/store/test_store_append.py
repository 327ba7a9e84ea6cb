"""Appended messages are read back unchanged, in every position of a file."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import msgspec
import pytest

from gantry_broker.errors import LogReadOnly, MessageTooLarge, StoreFull
from gantry_broker.store.message_store import MessageStore
from gantry_testing.store_world import BORN_HOST, STORE_HOST, TINY, StoreWorld, make_world
from gantry_wire.message import (
    BLANK_MAGIC,
    BLANK_RECORD,
    MESSAGE_MAGIC_V2,
    RecordFault,
    StoredMessage,
    check_record,
    decode_record,
    encode_host,
    encode_record,
)


def test_appended_record_equals_the_wire_encoding(world: StoreWorld) -> None:
    """The append loop packs records itself; it must agree with the wire's encoder to the last byte."""
    draft = world.draft("orders", 3, body=b"hello", tag="a", keys="k1 k2")._replace(
        flag=7, reconsume_times=2, prepared_offset=99
    )

    physical, offsets = world.append([draft])

    expected = encode_record(
        StoredMessage(
            topic="orders",
            queue_id=3,
            body=b"hello",
            queue_offset=offsets[0],
            physical_offset=physical[0],
            flag=7,
            born_timestamp_ms=draft.born_timestamp_ms,
            born_host=BORN_HOST,
            store_timestamp_ms=world.clock.wall_ms(),
            store_host=STORE_HOST,
            reconsume_times=2,
            prepared_offset=99,
            properties_bytes=draft.properties,
        ),
        is_sealed=True,
    )
    assert world.store.guard.message_at(physical[0]) == expected


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"a\x01b",
        b"a\x01b\x02",
        b"a\x01" + b"x" * 32743 + b"\x02",
        b"a\x01" + b"x" * 32744 + b"\x02",
        b"a\x01" + b"x" * 32744,
        b"a\x01" + b"x" * 32745,
        b"a\x01" + b"x" * 32764 + b"\x02",
        b"a\x01" + b"x" * 32765,
    ],
    ids=len,
)
@pytest.mark.parametrize("contiguous", [False, True])
def test_a_record_is_sealed_whenever_its_properties_leave_room(properties: bytes, contiguous: bool) -> None:
    """A record has a seal unless its properties, with their last separator, have 32748 bytes or more.

    The wire's encoder, the append loop and the check agree on the limit.
    """
    world = make_world("faulty", Path("/"), dataclasses.replace(TINY, mapped_file_size_commit_log=80_000))
    world.open()
    draft = world.draft(body=b"body")._replace(properties=properties)

    (first, second), _ = world.append([draft, draft], contiguous=contiguous)

    assert second - first == draft.record_bytes(len(STORE_HOST))
    stored = decode_record(world.store.guard.message_at(first) or b"")
    again = encode_record(msgspec.structs.replace(stored, properties_bytes=properties), is_sealed=True)
    assert again == world.store.guard.message_at(first)
    assert check_record(again, 0, physical_offset=first, is_sealed=True).is_good
    ended = properties if len(properties) in (0, 32767) else properties.removesuffix(b"\x02") + b"\x02"
    assert stored.properties_bytes[: len(ended)] == ended
    assert len(stored.properties_bytes) - len(ended) == (20 if len(ended) <= 32747 else 0)


def test_hosts_of_both_families_are_stored(tmp_path: Path) -> None:
    """The flags of a record determine the size of its hosts; all four combinations decode."""
    world = make_world("faulty", tmp_path)
    born_v6 = encode_host("2001:db8::1", 40_000)
    for store_host in (STORE_HOST, encode_host("2001:db8::2", 10_911)):
        store = MessageStore(
            f"/data/{len(store_host)}",
            world.settings,
            disk=world.disk,
            clock=world.clock,
            store_host=store_host,
            on_fatal=world.fatal.append,
        )
        store.open(is_flushing=False)
        world.adopt(store)

        physical, _ = store.append([world.draft(), world.draft(sys_flag=0x10)._replace(born_host=born_v6)])

        first, second = (decode_record(store.guard.message_at(offset) or b"") for offset in physical)
        assert (first.born_host, first.store_host) == (BORN_HOST, store_host)
        assert (second.born_host, second.store_host) == (born_v6, store_host)
        assert physical[1] == physical[0] + first.size


def test_batch_is_read_in_order_from_every_queue(world: StoreWorld) -> None:
    """Messages of one batch keep their order, and their queue offsets are dense in each queue."""
    drafts = [world.draft("orders", i % 3) for i in range(64)]

    _, offsets = world.append(drafts)

    assert offsets == [i // 3 for i in range(64)]
    for queue_id in range(3):
        messages = world.messages("orders", queue_id)
        assert [message.body for message in messages] == world.sent_bodies("orders", queue_id)
        assert [message.queue_offset for message in messages] == list(range(len(messages)))


def test_a_record_that_does_not_fit_closes_the_file_with_a_blank(world: StoreWorld) -> None:
    """A record is never split: the rest of the file is one blank record that leads to the next file."""
    world.send(count=300)

    size = world.settings.mapped_file_size_commit_log
    assert world.store.log.wrote > 2 * size
    for base in (0, size):
        data = world.files("commitlog")[f"commitlog/{base:020d}"]
        position = 0
        while (check := check_record(data, position, physical_offset=base + position)).is_good:
            position += check.size
        assert check.fault is RecordFault.BLANK
        assert BLANK_RECORD.unpack_from(data, position) == (size - position, BLANK_MAGIC)
    assert world.bodies() == world.sent_bodies()


def test_a_record_with_exactly_eight_bytes_to_spare_stays_in_the_file(world: StoreWorld) -> None:
    """RocketMQ rolls when fewer than 8 bytes would be left; with exactly 8 it does not."""
    size = world.settings.mapped_file_size_commit_log
    overhead = len(encode_record(StoredMessage(topic="orders", queue_id=0, body=b""), is_sealed=True))
    exact = world.draft(body=b"")._replace(properties=b"", keys=())

    world.append([exact._replace(body=bytes(size - 8 - overhead))])
    world.append([exact])

    physical = [message.physical_offset for message in world.messages()]
    assert physical == [0, size]


def test_a_batch_that_must_stay_together_is_never_split(world: StoreWorld) -> None:
    """A client's batch is contiguous in one file, even if the file has to be closed early for it."""
    world.send(count=80)
    drafts = [world.draft(body=bytes(500)) for _ in range(20)]

    physical, offsets = world.append(drafts, contiguous=True)

    size = world.settings.mapped_file_size_commit_log
    assert len({offset // size for offset in physical}) == 1
    assert offsets == list(range(80, 100))
    assert world.bodies() == world.sent_bodies()


def test_record_larger_than_a_file_is_refused_without_effect(world: StoreWorld) -> None:
    """A record or batch larger than a file is the sender's error; the store is unchanged."""
    world.send(count=3)
    before = world.store.log.wrote
    huge = world.draft(body=bytes(world.settings.mapped_file_size_commit_log))

    with pytest.raises(MessageTooLarge):
        world.store.append([world.draft(), huge])
    with pytest.raises(MessageTooLarge):
        world.store.append_contiguous([world.draft(body=bytes(9000)), world.draft(body=bytes(9000))])

    assert world.store.log.wrote == before
    world.send(count=2)
    assert [message.queue_offset for message in world.messages()] == [0, 1, 2, 3, 4]


def test_prepared_and_rolled_back_messages_are_in_the_log_but_in_no_queue(world: StoreWorld) -> None:
    """Transaction bits 0x4 and 0xC mean: queue offset 0, no queue entry. A commit (0x8) is an ordinary message."""
    drafts = [world.draft(sys_flag=flag) for flag in (0x4, 0xC, 0x8, 0x0)]

    physical, offsets = world.append(drafts)

    assert offsets == [0, 0, 0, 1]
    assert [message.physical_offset for message in world.messages()] == physical[2:]
    assert all(world.store.guard.message_at(offset) is not None for offset in physical)


def test_a_delayed_message_carries_its_delivery_time_in_the_queue(world: StoreWorld) -> None:
    """The queue unit of a delayed message holds its delivery time: store time plus delay."""
    world.append([world.draft("SCHEDULE_TOPIC_XXXX", 2, delay_ms=10_000)])

    queue = world.store.queues.get_or_create("SCHEDULE_TOPIC_XXXX", 2)
    unit = queue.unit(0)
    assert unit is not None
    assert unit[2] == world.clock.wall_ms() + 10_000


def test_a_long_topic_gets_the_second_magic(world: StoreWorld) -> None:
    """A topic over 127 bytes does not fit a one-byte length, so its records have the v2 layout."""
    topic = "%RETRY%" + "g" * 200

    world.append([world.draft(topic)])

    message = world.messages(topic)[0]
    record = world.store.guard.message_at(message.physical_offset)
    assert record is not None
    assert int.from_bytes(record[4:8], "big", signed=True) == MESSAGE_MAGIC_V2
    assert message.topic == topic


def test_store_times_never_go_backward(world: StoreWorld) -> None:
    """Bisection by time needs it, so a wall clock that jumps back does not move store times back."""
    world.send(count=2)
    world.clock.jump_wall(-3_600_000)
    world.send(count=2)

    times = [message.store_timestamp_ms for message in world.messages()]
    assert times == sorted(times)


def test_listeners_are_called_once_per_batch_with_the_extended_queues(world: StoreWorld) -> None:
    """Held pulls are retried once per batch, for exactly the queues that have new messages."""
    notified: list[set[tuple[str, int, int]]] = []
    world.store.on_appended.append(
        lambda queues: notified.append({(q.topic, q.queue_id, q.readable_end) for q in queues})
    )

    world.append([world.draft("a", 0), world.draft("b", 1), world.draft("a", 0), world.draft("c", 0, sys_flag=0x4)])

    assert notified == [{("a", 0, 2), ("b", 1, 1)}]


def test_full_disk_refuses_sends_and_serves_reads(tmp_path: Path) -> None:
    """The error is StoreFull and nothing of the batch is stored; with free space sends succeed again."""
    world = make_world("faulty", tmp_path)
    world.open()
    world.send(count=50)
    world.faulty_disk.capacity = world.faulty_disk.space("/").used + 100

    sent = 0
    with pytest.raises(StoreFull):
        for _ in range(500):
            world.append([world.draft("orders", i % 2) for i in range(7)])
            sent += 7

    full_at = world.store.log.wrote
    assert len(world.bodies("orders", 0)) + len(world.bodies("orders", 1)) == 50 + sent
    with pytest.raises(StoreFull):
        world.append([world.draft("orders", i % 2) for i in range(70)])
    assert world.store.log.wrote == full_at

    world.faulty_disk.capacity = 1 << 30
    world.clock.advance(world.settings.space_retry_interval_ms)
    world.append([world.draft("orders", i % 2) for i in range(70)])
    for queue_id in range(2):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)
        assert [m.queue_offset for m in world.messages("orders", queue_id)] == list(
            range(len(world.bodies("orders", queue_id)))
        )


def test_a_refused_batch_leaves_no_trace_in_any_queue(tmp_path: Path) -> None:
    """All or nothing: if the last queue of a batch has no room, the new units of the first one are removed, too."""
    world = make_world("faulty", tmp_path)
    world.open()
    world.send("old", 3)
    drafts = [world.draft("old") for _ in range(4)] + [world.draft("new")]
    world.faulty_disk.capacity = world.faulty_disk.space("/").used + 199

    with pytest.raises(StoreFull):
        world.store.append(drafts)

    queue = world.store.queues.get_or_create("old", 0)
    assert (queue.end, queue.readable_end) == (3, 3)
    raw = world.files("consumequeue/old/0")["consumequeue/old/0/00000000000000000000"]
    assert raw[60:] == bytes(len(raw) - 60)


def test_closed_store_refuses_appends(world: StoreWorld) -> None:
    """After close every append raises LogReadOnly."""
    draft = world.draft()
    store = world.store
    world.close()

    with pytest.raises(LogReadOnly):
        store.append([draft])


def test_empty_batch_changes_nothing(world: StoreWorld) -> None:
    """An empty batch has no offsets and changes nothing."""
    assert world.store.append([]) == ([], [])
    assert world.store.log.wrote == 0


def test_next_file_is_created_ahead_by_a_helper(tmp_path: Path) -> None:
    """When the current file is half full the next one is requested, so that it exists at the roll."""
    world = make_world("real", tmp_path)
    world.settings = dataclasses.replace(world.settings, is_preallocating=True)
    world.open()
    size = world.settings.mapped_file_size_commit_log

    while world.store.log.wrote < size // 2 + 200:
        world.send()
    world.close()

    assert world.disk.file_size(world.path(f"commitlog/{size:020d}")) == size
    assert world.open().is_clean
    assert world.bodies() == world.sent_bodies()
    world.close()


@pytest.mark.parametrize("operation", ["create", "reserve", "sync", "sync_directory"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO], ids=errno.errorcode.get)
def test_failed_log_file_creation_is_a_temporary_refusal(tmp_path: Path, operation: str, code: int) -> None:
    """A failed creation leaves nothing behind; sends are refused until the disk recovers."""
    world = make_world("faulty", tmp_path)
    world.open()
    size = world.settings.mapped_file_size_commit_log
    world.send(count=60)
    # A queue that needs blocks requests a whole stride, and then those of one unit.
    world.faulty_disk.fail_next(operation, code, count=4 if operation == "reserve" else 2)

    refused = 0
    for _ in range(150):
        try:
            world.append([world.draft(body=bytes(100))])
        except StoreFull:
            refused += 1
            world.clock.advance(world.settings.space_retry_interval_ms)

    assert refused == 2
    assert world.store.log.wrote > size
    assert world.bodies() == world.sent_bodies()
    assert [m.queue_offset for m in world.messages()] == list(range(len(world.bodies())))
