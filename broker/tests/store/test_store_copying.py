"""A slave's store equals its master's byte for byte, shows confirmed messages only, and can become a master's."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.errors import PoolExhausted, StoreCorrupt, StoreFull
from gantry_broker.ha.store_log import SlaveStore
from gantry_broker.store import copying
from gantry_broker.store.copying import CopyRefused, LogCopier
from gantry_broker.store.point_writer import RecoveryPointWriter
from gantry_broker.store.queue_repair import QueueRepair
from gantry_broker.store.settings import FlushSettings, PoolSettings
from gantry_store_files import segment_name
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY, StoreWorld
from gantry_wire.message import StoredMessage, encode_record

POOL = PoolSettings(is_enabled=True, buffers_count=3, path="/buffers")
TOPICS = ("orders", "bills", "%RETRY%group")


def make_pair(*, is_pooled: bool) -> tuple[StoreWorld, StoreWorld, LogCopier]:
    """Create a master and a slave, both empty, with small files."""
    sync_settings = dataclasses.replace(TINY, flush=FlushSettings(is_sync=True))
    master = StoreWorld(FaultyDisk(), "/master", sync_settings)
    slave = StoreWorld(FaultyDisk(), "/slave", dataclasses.replace(TINY, pool=POOL) if is_pooled else TINY)
    master.open()
    slave.open()
    return master, slave, slave.store.start_copying()


def log_bytes(world: StoreWorld, start: int, end: int) -> bytes:
    """Return the bytes of the log that a sender would read."""
    data, log = b"", world.store.log
    while start < end:
        extent = log.at(start)
        assert extent is not None
        stop = min(end, extent.end_offset)
        data += bytes(extent.view[start - extent.base_offset : stop - extent.base_offset])
        start = stop
    return data


def borders(world: StoreWorld) -> list[int]:
    """Return the ends of all records, including blank ones."""
    ends = {start + len(record) for start, record in world.records.items()}
    return sorted({0, *ends, *(end for end in range(0, world.store.log.wrote + 1, TINY.mapped_file_size_commit_log))})


def copy_log(master: StoreWorld, slave: StoreWorld, copier: LogCopier, start: int, cuts: Iterator[int]) -> int:
    """Copy the whole log of the master, in pieces that end at ends of records."""
    ends = [end for end in borders(master) if end > start]
    while ends:
        count = min(next(cuts), len(ends))
        data = log_bytes(master, start, ends[count - 1])
        try:
            start = copier.append(data, start)
        except PoolExhausted:
            assert slave.store.log.wrote == start, "expected that nothing of a refused piece is kept"
            slave.clock.advance(300)
            slave.store.commit_step()
            start = copier.append(data, start)
        del ends[:count]
    return start


def show_all(world: StoreWorld, copier: LogCopier) -> None:
    while not copier.dispatch(world.store.log.wrote):
        pass


def assert_same(master: StoreWorld, slave: StoreWorld) -> None:
    """Check that log, queues and index of both stores are equal."""
    end = master.store.log.wrote
    assert slave.store.log.wrote == end
    assert log_bytes(slave, 0, end) == log_bytes(master, 0, end)
    assert slave.store.queues.topics() == master.store.queues.topics()
    for topic, queue_ids in master.store.queues.topics().items():
        for queue_id in queue_ids:
            assert slave.bodies(topic, queue_id) == master.sent_bodies(topic, queue_id)
            ours, theirs = (
                slave.store.queues.get_or_create(topic, queue_id),
                master.store.queues.get_or_create(topic, queue_id),
            )
            assert (ours.end, ours.readable_end) == (theirs.end, theirs.end)
    key = f"7F0000010A3C18B4AAC2{0:08X}{1:04X}"
    assert slave.store.keys.records("orders", key, 10, 0, 1 << 60)[0] == [master.records[min(master.records)]]


@given(st.data(), st.booleans(), st.sampled_from((0, 20, copying.KEPT_RECORDS_MAX)))
def test_copy_equals_its_master_byte_for_byte(data: st.DataObject, is_pooled: bool, kept_max: int) -> None:
    """Log, queues and key searches are equal for any sizes of pieces, any order of dispatch, and with deletions."""
    with mock.patch.object(copying, "KEPT_RECORDS_MAX", kept_max):
        copy_and_compare(data, is_pooled, kept_max)


def copy_and_compare(data: st.DataObject, is_pooled: bool, kept_max: int) -> None:
    master, slave, copier = make_pair(is_pooled=is_pooled)
    cuts = iter(lambda: data.draw(st.integers(1, 9)), None)
    start = 0
    master.append([master.draft("orders", 0)])
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(1, 30))):
            flags = data.draw(st.sampled_from((0, 0, 0, 4, 8)))
            body = bytes(data.draw(st.sampled_from((1, 50, 50, 700))))
            topic = data.draw(st.sampled_from(TOPICS))
            master.append([master.draft(topic, data.draw(st.integers(0, 1)), body=body, sys_flag=flags, tag="a")])
            master.clock.advance(1)
        start = copy_log(master, slave, copier, start, cuts)
        if data.draw(st.booleans()):
            slave.store.commit_step()
        deleted = data.draw(st.sampled_from((None, None, *TOPICS[1:])))
        if deleted is not None:
            master.store.delete_topic(deleted)
            slave.store.delete_topic(deleted, before=start)
            master.sent[:] = [message for message in master.sent if message.topic != deleted]
        assert sum(len(piece.records or ()) for piece in copier.pieces) <= kept_max
        shown = copier.dispatch(data.draw(st.integers(0, start)))
        if is_pooled and not shown:
            slave.store.flush_step()
    master.store.flush_step()
    show_all(slave, copier)

    assert_same(master, slave)


@pytest.mark.parametrize("ending", ["kill", "close", "power"])
def test_copied_store_is_recovered_like_any_other(ending: str) -> None:
    """Copied and flushed records survive any kind of end, and copying continues after them."""
    master, slave, copier = make_pair(is_pooled=True)
    master.send(count=120)
    end = copy_log(master, slave, copier, 0, iter(lambda: 7, None))
    show_all(slave, copier)
    slave.store.flush_step()
    slave.store.flush()
    if ending == "kill":
        slave.kill()
    elif ending == "power":
        slave.lose_power()
    else:
        slave.close()

    report = slave.open()

    assert (report.end, report.damaged, report.set_aside) == (end, [], [])
    copier = slave.store.start_copying()
    master.send(count=50)
    copy_log(master, slave, copier, end, iter(lambda: 3, None))
    show_all(slave, copier)
    master.store.flush_step()
    assert_same(master, slave)


def test_copied_messages_are_visible_only_when_confirmed() -> None:
    """A piece becomes visible when all of it is confirmed, and a recovery point never lies beyond the visible end."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send(count=9)
    ends = borders(master)
    for start, end in pairwise(ends):
        copier.append(log_bytes(master, start, end), start)

    assert copier.dispatch(ends[4] + 1)
    assert len(slave.bodies()) == 4
    assert slave.store.queues.get_or_create("orders", 0).end == 4
    slave.store.flush_step()
    slave.kill()
    slave.open()
    assert len(slave.bodies()) == 9, "expected that a start makes all messages visible"


def damage_head(world: StoreWorld, start: int) -> Callable[[], None]:
    """Damage the length of the record at ``start``, and return a function that repairs it."""
    size = world.settings.mapped_file_size_commit_log
    path = f"{world.root}/commitlog/{segment_name(start - start % size)}"
    world.faulty_disk.flip(path, start % size, 0x40)
    return lambda: world.faulty_disk.flip(path, start % size, 0x40)


@pytest.mark.parametrize("number", [0, 3, 8], ids=["first", "middle", "last"])
@pytest.mark.parametrize("is_found_late", [True, False], ids=["dispatched", "collected"])
def test_record_that_rots_before_it_is_confirmed_is_awaited(number: int, is_found_late: bool) -> None:
    """Dispatch stops there until the record is repaired, and then shows it in its place."""
    master, slave, copier = make_pair(is_pooled=False)
    slave.store.guard.damage.set_healer(lambda damage: True)
    master.send(count=9)
    with mock.patch.object(copying, "KEPT_RECORDS_MAX", 0):
        copy_log(master, slave, copier, 0, iter(lambda: 1, None))
    start = borders(master)[number]
    repair = damage_head(slave, start)
    if not is_found_late:
        copier = slave.store.start_copying()

    assert not copier.dispatch(slave.store.log.wrote)
    assert copier.is_waiting_for_repair
    [damage] = slave.store.guard.damage.damaged
    assert damage.start == start
    assert len(slave.bodies()) <= number
    repair()
    slave.store.guard.damage.mark_healed(damage)
    show_all(slave, copier)

    assert slave.bodies() == master.sent_bodies()
    assert not copier.is_waiting_for_repair


def test_record_that_rots_before_it_is_confirmed_is_skipped_if_no_replica_has_it() -> None:
    """Later messages become visible when the replicas were asked in vain."""
    master, slave, copier = make_pair(is_pooled=False)
    slave.store.guard.damage.set_healer(lambda damage: True)
    master.send(count=9)
    with mock.patch.object(copying, "KEPT_RECORDS_MAX", 0):
        copy_log(master, slave, copier, 0, iter(lambda: 4, None))
    damage_head(slave, borders(master)[3])
    assert not copier.dispatch(slave.store.log.wrote)
    [damage] = slave.store.guard.damage.damaged
    slave.store.guard.damage.mark_not_healed(damage, "every replica lacks it", is_lost=True)

    show_all(slave, copier)

    bodies = master.sent_bodies()
    assert slave.bodies() == [*bodies[:3], *bodies[4:]]


@pytest.mark.parametrize("number", [0, 3, 7], ids=["first", "middle", "last but one"])
@pytest.mark.parametrize("is_healed_first", [True, False], ids=["healed, then confirmed", "confirmed, then healed"])
def test_message_that_a_promotion_has_left_out_returns_when_it_is_repaired(is_healed_first: bool, number: int) -> None:
    """It has its place then, and the next message gets an offset of its own."""
    master, slave, copier = make_pair(is_pooled=False)
    slave.store.guard.damage.set_healer(lambda damage: True)
    master.send(count=9)
    copy_log(master, slave, copier, 0, iter(lambda: 4, None))
    repair = damage_head(slave, borders(master)[number])
    side = SlaveStore(slave.store)
    side.copier = copier
    side.promote(slave.store.identity.epochs)
    [damage] = slave.store.unplaced_damage

    for _ in range(2):
        if is_healed_first:
            repair()
            slave.store.guard.damage.mark_healed(damage)
        else:
            slave.store.positions.set_acked(slave.store.log.wrote)
            slave.store.advance()
        is_healed_first = not is_healed_first

    assert slave.bodies() == master.sent_bodies()
    assert slave.append([slave.draft("orders", 0, body=b"new")])[1] == [9]


def test_repaired_last_message_of_a_queue_is_shown_without_a_later_one() -> None:
    """Its offset is reserved from its repair on, and its unit is written as soon as all before it is visible."""
    master, slave, copier = make_pair(is_pooled=False)
    slave.store.guard.damage.set_healer(lambda damage: True)
    master.send(count=4)
    master.send("bills", 3)
    copy_log(master, slave, copier, 0, iter(lambda: 3, None))
    repair = damage_head(slave, borders(master)[3])
    side = SlaveStore(slave.store)
    side.copier = copier
    side.promote(slave.store.identity.epochs)
    [damage] = slave.store.unplaced_damage

    repair()
    slave.store.guard.damage.mark_healed(damage)
    assert slave.store.queues.get_or_create("orders", 0).end == 4
    slave.store.positions.set_acked(slave.store.log.wrote)
    slave.store.advance()

    assert slave.bodies() == master.sent_bodies()
    assert slave.bodies("bills") == master.sent_bodies("bills")


@pytest.mark.parametrize("at", [12, 20, 120], ids=["queue id", "queue offset", "topic or body"])
def test_search_finds_damage_in_every_field_of_an_unconfirmed_record(at: int) -> None:
    """A wrong queue or queue offset would be taken for the message's own."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send(count=9)
    copy_log(master, slave, copier, 0, iter(lambda: 4, None))
    assert copier.find_damage() == []
    start = borders(master)[5]
    slave.faulty_disk.flip(f"{slave.root}/commitlog/{segment_name(0)}", start + at, 0x04)

    assert copier.find_damage() == [start]


def test_waiting_for_a_repair_indexes_no_message_again() -> None:
    """What precedes the damaged record becomes visible, and is not read at each attempt."""
    master, slave, copier = make_pair(is_pooled=False)
    slave.store.guard.damage.set_healer(lambda damage: True)
    master.send(count=9)
    with mock.patch.object(copying, "KEPT_RECORDS_MAX", 0):
        copy_log(master, slave, copier, 0, iter(lambda: 4, None))
    damage_head(slave, borders(master)[7])

    for _ in range(5):
        assert not copier.dispatch(slave.store.log.wrote)

    assert slave.bodies() == master.sent_bodies()[:7]
    assert slave.store.dispatcher.dispatched == borders(master)[7]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-1], "no valid record"),
        (lambda data: data + b"\0", "no valid record"),
        (lambda data: data[:90] + b"\xff" + data[91:], "no valid record"),
        (lambda data: data[:28] + (9).to_bytes(8, "big") + data[36:], "no valid record"),
        (lambda data: b"\x7f\xff\xff\xff" + data[4:], "no valid record"),
        (lambda data: bytes(8) + data, "no valid record"),
    ],
    ids=["cut", "longer", "flipped", "elsewhere", "huge", "zeros"],
)
def test_invalid_records_are_refused_completely(change: object, reason: str) -> None:
    """Bytes are checked before any of them is written, including good ones before the bad."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send(count=3)
    first, second = borders(master)[1:3]
    copier.append(log_bytes(master, 0, first), 0)
    good, bad = log_bytes(master, first, second), log_bytes(master, second, master.store.log.wrote)

    with pytest.raises(CopyRefused, match=reason):
        copier.append(good + change(bad), first)  # type: ignore[operator]

    assert slave.store.log.wrote == first
    assert log_bytes(slave, 0, TINY.mapped_file_size_commit_log).count(0, first) >= 1
    assert not any(bytes(slave.store.log.files.files[0].view[first:]))
    copier.append(good + bad, first)
    show_all(slave, copier)
    assert len(slave.bodies()) == 3


@pytest.mark.parametrize("offset", [-1, 1, 1 << 62])
def test_bytes_of_another_offset_are_refused(offset: int) -> None:
    """Gaps, overlaps and nonsense are refused; only bytes that continue the log are accepted."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send()

    with pytest.raises(CopyRefused, match="this log ends at 0"):
        copier.append(log_bytes(master, 0, master.store.log.wrote), offset)

    assert slave.store.log.wrote == 0


def test_full_disk_refuses_a_whole_piece_until_there_is_space() -> None:
    """Even in the middle of a roll nothing of the piece is kept; with space it is accepted."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send(count=150)
    ends = borders(master)
    first = ends[20]
    copier.append(log_bytes(master, 0, first), 0)
    slave.faulty_disk.capacity = slave.faulty_disk.space("/").used

    with pytest.raises(StoreFull):
        copier.append(log_bytes(master, first, master.store.log.wrote), first)
    assert slave.store.log.wrote == first
    slave.faulty_disk.capacity = 1 << 30
    slave.clock.advance(10_000)
    copier.append(log_bytes(master, first, master.store.log.wrote), first)
    show_all(slave, copier)
    master.store.flush_step()

    assert_same(master, slave)


def test_slave_copies_after_its_log_was_discarded_on_a_full_disk() -> None:
    """Without space for the first file of the new log, copying is refused, and succeeds as soon as there is some."""
    master, slave, _ = make_pair(is_pooled=False)
    master.send(count=150)
    begin, end = TINY.mapped_file_size_commit_log, master.store.log.wrote

    def operate(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(f"commitlog/{segment_name(begin)}"):
            raise OSError(errno.ENOSPC, "full", path)

    slave.faulty_disk.on_operation = operate
    slave.store.discard_log(begin, master.store.identity.epochs)
    copier = slave.store.start_copying()
    with pytest.raises(StoreFull):
        copier.append(log_bytes(master, begin, end), begin)
    slave.faulty_disk.on_operation = lambda operation, path: None
    slave.clock.advance(TINY.space_retry_interval_ms)

    copier.append(log_bytes(master, begin, end), begin)

    show_all(slave, copier)
    assert slave.bodies() == master.sent_bodies()[-len(slave.bodies()) :]
    assert log_bytes(slave, begin, end) == log_bytes(master, begin, end)


def test_promoted_slave_continues_all_queue_offsets() -> None:
    """Unconfirmed messages keep their queue offsets and stay invisible; new messages follow them."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send("orders", 10)
    master.send("bills", 5)
    ends = borders(master)
    for start, end in pairwise(ends):
        copier.append(log_bytes(master, start, end), start)
    copier.dispatch(ends[4])

    copier.hold_undispatched()

    assert len(slave.bodies("orders")) == 4
    assert slave.store.queues.get_or_create("orders", 0).end == 10
    assert slave.store.queues.get_or_create("bills", 0).end == 5
    physical, offsets = slave.append([slave.draft("orders", 0, body=b"new"), slave.draft("bills", 0, body=b"newer")])
    assert offsets == [10, 5]
    assert physical[0] == ends[-1]
    slave.store.dispatcher.release(ends[12])
    assert (len(slave.bodies("orders")), len(slave.bodies("bills"))) == (10, 2)
    slave.store.dispatcher.release(slave.store.log.wrote)
    assert slave.bodies("orders") == [*master.sent_bodies("orders"), b"new"]
    assert slave.bodies("bills") == [*master.sent_bodies("bills"), b"newer"]


@pytest.mark.parametrize("is_retired_queue_closed", [False, True])
def test_topic_that_is_created_again_gets_new_queues_on_a_slave(is_retired_queue_closed: bool) -> None:
    """The queue that was deleted while the slave copies gets no more messages."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send("orders", 5)
    deleted_at = copy_log(master, slave, copier, 0, iter(lambda: 4, None))
    show_all(slave, copier)
    deleted = slave.store.queues.get_or_create("orders", 0)
    master.store.delete_topic("orders")
    slave.store.delete_topic("orders", before=deleted_at)
    if is_retired_queue_closed:
        slave.store.queues.sync()
    master.send("orders", 3)
    master.send("bills", 1)

    copy_log(master, slave, copier, deleted_at, iter(lambda: 4, None))
    show_all(slave, copier)

    assert slave.store.queues.get_or_create("orders", 0) is not deleted
    assert slave.bodies("orders") == master.sent_bodies("orders")[-3:]
    assert slave.store.queues.get_or_create("orders", 0).end == 3
    assert slave.bodies("bills") == master.sent_bodies("bills")


@pytest.mark.parametrize(
    ("is_deletion_known", "dispatched"),
    # A slave that has received the deletion applies it before it dispatches what follows it.
    [(False, 0), (False, 2), (False, 5), (False, 6), (True, 0), (True, 2), (True, 5)],
)
def test_promoted_slave_has_the_new_messages_of_a_topic_that_was_created_again(
    is_deletion_known: bool, dispatched: int
) -> None:
    """Whether the slave has heard of the deletion or not, and however many of the old messages are in its queue."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send("orders", 5)
    deleted_at = copy_log(master, slave, copier, 0, iter(lambda: 1, None))
    master.store.delete_topic("orders")
    master.send("orders", 3)
    end = copy_log(master, slave, copier, deleted_at, iter(lambda: 1, None))
    copier.dispatch(borders(master)[dispatched])
    if is_deletion_known:
        slave.store.delete_topic("orders", before=deleted_at)

    copier.hold_undispatched()
    assert slave.store.queues.get_or_create("orders", 0).end == 3
    _, offsets = slave.append([slave.draft("orders", 0, body=b"newer")])
    slave.store.dispatcher.release(end)
    assert slave.bodies("orders") == master.sent_bodies("orders")[-3:]
    slave.store.dispatcher.release(slave.store.log.wrote)

    assert offsets == [3]
    assert slave.bodies("orders") == [*master.sent_bodies("orders")[-3:], b"newer"]
    assert slave.store.queues.get_or_create("orders", 0).end == 4


def test_topic_that_was_deleted_before_its_messages_are_dispatched_stays_deleted() -> None:
    """The slave has its messages in the log only, and no queue of it, when it hears of the deletion."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send("orders", 5)
    end = copy_log(master, slave, copier, 0, iter(lambda: 1, None))

    slave.store.delete_topic("orders", before=end)
    show_all(slave, copier)

    assert slave.store.queues.topics() == {}


def test_demoted_master_shows_held_messages_when_confirmed() -> None:
    """Assigned queue offsets are released until the records are read again."""
    master, slave, copier = make_pair(is_pooled=False)
    master.send("orders", 10)
    copy_log(master, slave, copier, 0, iter(lambda: 4, None))
    now_slave = master.store.start_copying()

    assert master.store.queues.get_or_create("orders", 0).end == 0
    copier.hold_undispatched()
    slave.append([slave.draft("orders", 0, body=b"new")])
    now_slave.append(log_bytes(slave, master.store.log.wrote, slave.store.log.wrote), master.store.log.wrote)
    while not now_slave.dispatch(slave.store.log.wrote):
        pass

    assert master.bodies("orders") == [*master.sent_bodies("orders"), b"new"]
    assert master.store.queues.get_or_create("orders", 0).end == 11


# -- cutting -----------------------------------------------------------------------------------------------------------


def filled(pool: PoolSettings, files: int = 3) -> StoreWorld:
    """Return a store with several log files, whose last messages are not flushed."""
    world = StoreWorld(FaultyDisk(), "/master", dataclasses.replace(TINY, pool=pool))
    world.open()
    while world.store.log.wrote < files * TINY.mapped_file_size_commit_log:
        world.send("orders", 3)
        world.send("bills", 1)
        world.clock.advance(300)
        world.store.commit_step()
    world.store.flush_step()
    world.send("orders", 5)
    return world


def assert_cut(world: StoreWorld, end: int) -> None:
    """Check that nothing after ``end`` exists anywhere, and everything before it exists everywhere."""
    assert world.store.log.wrote == end
    for topic in ("orders", "bills"):
        assert world.bodies(topic) == world.sent_bodies(topic, before=end)
        assert sum(queue.end for queue in world.store.queues if queue.topic == topic) == len(world.bodies(topic))
    disk = world.disk
    for name in disk.list(world.path("commitlog")):
        assert not any(disk.read_file(world.path(f"commitlog/{name}"))[max(0, end - int(name)) :])
    for start, record in world.records.items():
        key = f"7F0000010A3C18B4AAC2{record[record.index(b'AAC2') + 4 : record.index(b'AAC2') + 16].decode()}"
        found = [one for topic in ("orders", "bills") for one in world.store.keys.records(topic, key, 9, 0, 1 << 60)[0]]
        assert (record in found) == (start < end)


@pytest.mark.parametrize("pool", [PoolSettings(), POOL], ids=["files", "buffers"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.64, 0.97, 1.0])
def test_cut_applies_to_log_queues_and_index(pool: PoolSettings, share: float) -> None:
    """It holds at once and after a power loss, and new records directly follow the cut, also after a kill."""
    world = filled(pool)
    ends = borders(world)
    end = ends[int(share * (len(ends) - 1))]
    before = world.store.log.wrote

    assert world.store.truncate(end) == before - end

    assert_cut(world, end)
    world.store.flush()
    world.lose_power()
    report = world.open()
    assert (report.end, report.cut_bytes, report.lost_flushed_bytes, report.set_aside) == (end, 0, 0, [])
    assert_cut(world, end)
    for start in [start for start in world.records if start >= end]:
        del world.records[start]
    world.sent[:] = [message for message in world.sent if message.end <= end]
    world.send("orders", 30)
    world.store.flush_step()
    world.kill()
    world.open()
    assert world.bodies() == world.sent_bodies()


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("ending", ["kill", "power"])
@pytest.mark.parametrize("pool", [PoolSettings(), POOL], ids=["files", "buffers"])
def test_interrupted_cut_leaves_the_old_or_the_new_log(ending: str, pool: PoolSettings) -> None:
    """The process ends before each of its system calls in turn; a start finds one of the two logs.

    A power loss may take the unflushed end of the old log.
    """
    outcomes = list(interrupt_cut(ending, pool))

    assert len(outcomes) > 15
    assert set(outcomes) == {True, False}


def test_cut_must_invalidate_the_recovery_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise queues with a hole would be trusted."""
    monkeypatch.setattr(RecoveryPointWriter, "remove_point", lambda self: None)

    def start(*_: object, **__: object) -> None:
        raise StoreCorrupt(0, "a unit does not lead to its message")

    monkeypatch.setattr(QueueRepair, "request_repair", start)

    with pytest.raises((StoreCorrupt, AssertionError)):
        list(interrupt_cut("power", PoolSettings()))


def interrupt_cut(ending: str, pool: PoolSettings) -> Iterator[bool]:
    """For each system call at which the process can end, return whether the next start finds the cut log."""
    step, is_done = 0, False
    while not is_done:
        step += 1
        world = filled(pool)
        ends = borders(world)
        end, before = ends[len(ends) // 2], world.store.log.wrote
        world.faulty_disk.on_operation = Countdown(step)
        with suppress(ProcessEnded):
            world.store.truncate(end)
            is_done = True
        world.faulty_disk.on_operation = lambda operation, path: None
        if ending == "kill":
            world.kill()
        else:
            world.lose_power()
        report = world.open()
        assert report.lost_flushed_bytes == 0 or ending == "power"
        assert report.end == end or (not is_done and report.end <= before)
        assert_cut(world, report.end)
        yield report.end == end


class Countdown:
    """Ends the process at the n-th system call, and at every later one."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, operation: str, path: str) -> None:
        self.left -= 1
        if self.left <= 0:
            raise ProcessEnded


class ProcessEnded(BaseException):
    """Raised where the process under test would have ended."""


def test_invalid_topic_name_does_not_prevent_a_promotion() -> None:
    """RocketMQ may have stored one: it is copied, is in no queue, and other messages are not affected."""
    _, slave, copier = make_pair(is_pooled=False)
    data = b""
    for number, topic in enumerate(("orders", "../orders", "orders")):
        message = StoredMessage(
            topic=topic, queue_id=0, body=b"%d" % number, queue_offset=number // 2, physical_offset=len(data)
        )
        data += encode_record(message, is_sealed=True)
    copier.append(data, 0)

    copier.hold_undispatched()

    slave.store.dispatcher.release(len(data))
    assert slave.bodies("orders") == [b"0", b"2"]
    assert slave.store.queues.topics() == {"orders": [0]}
