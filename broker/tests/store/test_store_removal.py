"""Deletion of the head of the log: queues and index follow, readers keep working, and a crash anywhere converges."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gantry_broker.ports import RealDisk
from gantry_broker.store.queue_search import QueueSearch
from gantry_broker.store.reader import ReadStatus
from gantry_broker.store.removal import newest_store_time
from gantry_broker.store.settings import PoolSettings
from gantry_testing.log_head import remove_before, remove_files, write_recovery_point
from gantry_testing.store_world import TINY, StoreWorld, make_world
from gantry_wire.message import decode_records

FILE_BYTES = TINY.mapped_file_size_commit_log


@pytest.fixture
def faulty(tmp_path: Path) -> StoreWorld:
    made = make_world("faulty", tmp_path)
    made.open()
    return made


def fill(world: StoreWorld, files: int) -> None:
    """Send messages to three queues until so many files are full, and flush everything."""
    number = 0
    while world.store.log.wrote < files * FILE_BYTES + FILE_BYTES // 4:
        world.send("orders", queue_id=number % 2)
        world.send("bills")
        number += 1
    world.store.flush()


def remaining_bodies(world: StoreWorld, topic: str, queue_id: int) -> list[bytes]:
    """Return what was sent to a queue and does not lie before the log's beginning."""
    return [
        body
        for end, sent_topic, sent_queue, _, body in world.sent
        if (sent_topic, sent_queue) == (topic, queue_id) and end > world.store.log.min_physical
    ]


def assert_rest_is_complete(world: StoreWorld) -> None:
    """Check that every queue begins with the log's first message of it, and lacks none from there on."""
    for topic, queue_id in (("orders", 0), ("orders", 1), ("bills", 0)):
        messages = world.messages(topic, queue_id)
        expected = remaining_bodies(world, topic, queue_id)
        queue = world.store.queues.get(topic, queue_id)
        assert queue is not None
        assert [message.body for message in messages] == expected
        assert [message.queue_offset for message in messages] == list(range(queue.min_offset, queue.end))
        assert queue.end == len(world.sent_bodies(topic, queue_id))


def assert_no_idle_files(world: StoreWorld) -> None:
    """Check that no queue keeps a file of only expired units, except its last."""
    for topic, queue_ids in world.store.queues.topics().items():
        for queue_id in queue_ids:
            queue = world.store.queues.get(topic, queue_id)
            assert queue is not None
            names = [int(name) for name in world.disk.list(queue.files.directory)]
            assert names == [file.base_offset for file in queue.files.files]
            assert all(file.end_offset > queue.min_offset * 20 for file in queue.files.files[:-1])


def log_names(world: StoreWorld) -> list[int]:
    return [int(name) for name in world.disk.list(world.path("commitlog"))]


# -- deleted and kept files ------------------------------------------------------------------------------------------


def test_deleted_head_takes_queue_files_with_it(world: StoreWorld) -> None:
    """Log files, the units of their messages and whole queue files are deleted; the rest is served."""
    fill(world, 5)

    begin = remove_files(world.store, 3)

    assert begin == world.store.log.min_physical == 3 * FILE_BYTES
    assert log_names(world)[0] == begin
    assert_rest_is_complete(world)
    assert_no_idle_files(world)
    queue = world.store.queues.get("bills", 0)
    assert queue is not None
    assert queue.files.base_offset > 0


def test_readers_below_the_beginning_get_the_first_offset(world: StoreWorld) -> None:
    """A deleted offset is answered with the first one that exists."""
    fill(world, 4)

    remove_files(world.store, 2)

    result = world.store.read("bills", 0, 3, count_max=32, bytes_max=65536)
    assert result.status is ReadStatus.OFFSET_TOO_SMALL
    assert result.next_offset == result.min_offset > 3
    first = world.store.read("bills", 0, result.next_offset, count_max=1, bytes_max=65536)
    assert [message.body for message in decode_records(first.body)] == remaining_bodies(world, "bills", 0)[:1]
    assert world.store.guard.message_at(0) is None
    assert world.store.times.earliest_time("bills", 0) > 0


def test_current_and_unflushed_files_are_never_deleted(world: StoreWorld) -> None:
    """Only flushed files before the current one are removable, and retiring any other is refused."""
    world.send(count=400)
    assert world.store.log.wrote > 2 * FILE_BYTES
    assert [file.is_removable for file in world.store.removal.describe_oldest_files()] == [False] * len(
        log_names(world)
    )

    world.store.flush()

    facts = world.store.removal.describe_oldest_files()
    assert [file.is_removable for file in facts] == [True] * (len(facts) - 1) + [False]
    with pytest.raises(AssertionError):
        world.store.removal.retire(facts[-1].end_offset, {})


def test_file_with_hidden_messages_is_kept(world: StoreWorld) -> None:
    """A file with messages that are not visible yet is in use, even if it is flushed."""
    world.send(count=20)
    world.store.dispatcher.hold()
    world.send(count=400)
    world.store.flush()

    assert not any(file.is_removable for file in world.store.removal.describe_oldest_files())
    world.store.dispatcher.release(world.store.log.wrote)
    assert world.store.removal.describe_oldest_files()[0].is_removable


def test_preallocated_file_is_kept(world: StoreWorld) -> None:
    """The next, preallocated file is never removable."""
    fill(world, 2)
    world.store.log.file_after(world.store.log.base_offset)

    facts = world.store.removal.describe_oldest_files()

    assert [file.is_removable for file in facts] == [True, True, False, False]


def test_file_with_a_write_buffer_is_kept(tmp_path: Path) -> None:
    """A file is in use until its buffer is given back, even if all of it is committed and flushed."""
    pooled = replace(TINY, pool=PoolSettings(is_enabled=True, buffers_count=4))
    world = make_world("faulty", tmp_path, pooled)
    world.open()
    while world.store.log.wrote < 3 * FILE_BYTES:
        world.send()
    world.store.log.commit()
    world.store.flush()
    world.store.dispatcher.release(world.store.log.wrote)
    assert [file.is_removable for file in world.store.removal.describe_oldest_files()] == [False] * 4

    world.store.advance()

    assert [file.is_removable for file in world.store.removal.describe_oldest_files()] == [True] * 3 + [False]
    remove_files(world.store, 3)
    world.send(count=10)
    assert world.bodies() == remaining_bodies(world, "orders", 0)
    world.kill()
    world.open()
    assert world.bodies() == remaining_bodies(world, "orders", 0)


def test_index_files_of_deleted_messages_are_deleted(world: StoreWorld) -> None:
    """An index file whose messages are all deleted is unlinked; the others still find theirs."""
    keys: list[str] = []
    while world.store.log.wrote < 6 * FILE_BYTES:
        keys.append(f"key{len(keys)}")
        world.append([world.draft(keys=keys[-1])])
    world.store.flush()
    before = world.disk.list(world.path("index"))

    remove_files(world.store, 5)

    after = world.disk.list(world.path("index"))
    assert after == before[-len(after) :]
    assert len(after) < len(before)
    assert len(world.store.keys.records("orders", keys[-1], 10, 0, 1 << 62)[0]) == 1
    assert world.store.keys.records("orders", keys[0], 10, 0, 1 << 62)[0] == []


def test_topic_deleted_during_a_round_is_skipped(world: StoreWorld) -> None:
    """A topic that is deleted between two steps of a round leaves nothing behind and breaks nothing."""
    fill(world, 4)
    removal = world.store.removal
    trims = removal.measure(3 * FILE_BYTES)
    world.store.delete_topic("orders")

    removal.retire(3 * FILE_BYTES, trims)
    world.store.delete_topic("bills")
    removal.unlink()
    world.store.flush_step()

    assert world.disk.list(world.path("consumequeue")) == []
    assert removal.waiting_count == 0


# -- ages of files ---------------------------------------------------------------------------------------------------


def test_age_of_a_file_is_that_of_its_newest_message(world: StoreWorld) -> None:
    """The first message and the next file do not count: a day without messages before the roll has no effect."""
    last = {}
    while world.store.log.wrote < 3 * FILE_BYTES:
        position = world.store.log.wrote
        _, offsets = world.append([world.draft()])
        message = world.messages()[-1]
        last[message.physical_offset // FILE_BYTES] = message.store_timestamp_ms
        assert offsets and position <= message.physical_offset
        world.clock.advance(1_000)
        if (world.store.log.wrote + 200) // FILE_BYTES > position // FILE_BYTES:
            world.clock.advance(86_400_000)
    world.store.flush()

    assert [file.newest_ms for file in world.store.removal.describe_oldest_files()[:3]] == [last[0], last[1], last[2]]


@pytest.mark.parametrize("body_bytes", [1, 9_000], ids=["small", "nearly-a-file"])
def test_newest_message_of_any_size_is_found(world: StoreWorld, body_bytes: int) -> None:
    """A file of one large message is as old as that message."""
    for _ in range(3):
        world.append([world.draft(body=b"\xda\xa3\x20\xa7" * (body_bytes // 4 + 1))])
        world.clock.advance(5_000)
    fill(world, 3)
    files = world.store.log.files.files

    found = newest_store_time(files, 0, log_newest_ms=-1)

    messages = world.messages("orders", 0) + world.messages("orders", 1) + world.messages("bills")
    assert found == max(m.store_timestamp_ms for m in messages if m.physical_offset < FILE_BYTES)


def test_damaged_end_makes_a_file_younger_never_older(world: StoreWorld) -> None:
    """If the last record cannot be read, the next file's first message counts, or the newest of the log."""
    fill(world, 2)
    first_after = min(m.store_timestamp_ms for m in world.messages("bills") if m.physical_offset >= FILE_BYTES)
    files = world.store.log.files.files
    tail = bytes(files[0].view[-400:])
    world.overwrite("commitlog/" + "0" * 20, FILE_BYTES - 400, b"\xff" * 400)

    assert first_after - 1 <= newest_store_time(files, 0, log_newest_ms=-1) <= first_after

    world.overwrite("commitlog/" + "0" * 20, FILE_BYTES - 400, tail)
    for file in files[1:]:
        world.overwrite(file.path.removeprefix(world.root + "/"), 0, bytes(80))
        world.overwrite(file.path.removeprefix(world.root + "/"), FILE_BYTES - 400, b"\xff" * 400)
    assert newest_store_time(files, 1, log_newest_ms=1234) == 1234


# -- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["clean", "killed", "killed-after-a-point", "no-point"])
def test_log_without_its_head_is_opened(world: StoreWorld, ending: str) -> None:
    """After any end of the last run queues begin where the log does, and appending continues."""
    fill(world, 5)
    if ending == "killed-after-a-point":
        write_recovery_point(world)
    remove_files(world.store, 3)
    if ending == "clean":
        world.close()
    else:
        world.kill()
    if ending == "no-point":
        world.disk.remove(world.path("recovery-point.json"))

    report = world.open()

    assert report.damaged == []
    assert world.store.log.min_physical == 3 * FILE_BYTES
    assert_rest_is_complete(world)
    assert_no_idle_files(world)
    fill(world, 6)
    remove_files(world.store, 3)
    assert_rest_is_complete(world)


@pytest.mark.parametrize("ending", ["clean", "killed", "no-point"])
@pytest.mark.parametrize("count", [37, 50], ids=["in-a-file", "at-a-file's-end"])
def test_queue_without_remaining_messages_keeps_its_next_offset(world: StoreWorld, ending: str, count: int) -> None:
    """Later consumers must not meet offsets that were used before."""
    world.send("quiet", count)
    fill(world, 4)
    remove_files(world.store, 3)
    queue = world.store.queues.get("quiet", 0)
    assert queue is not None
    assert (queue.min_offset, queue.end) == (count, count)
    assert world.messages("quiet") == []
    if ending == "clean":
        world.close()
    else:
        world.kill()
    if ending == "no-point":
        world.disk.remove(world.path("recovery-point.json"))

    world.open()

    _, offsets = world.append([world.draft("quiet")])
    assert offsets == [count]
    assert [message.queue_offset for message in world.messages("quiet")] == [count]


def test_unproved_recovery_point_still_has_next_offsets_of_queues_without_files(
    world: StoreWorld,
) -> None:
    """If the record before the recovery point is damaged, the whole log is read, and no offset is reused."""
    world.send("quiet", 37)
    fill(world, 4)
    remove_files(world.store, 3)
    world.close()
    world.disk.remove_tree(world.path("consumequeue/quiet"))
    world.open()
    last = world.messages("bills")[-1].physical_offset
    world.close()
    world.overwrite(f"commitlog/{last // FILE_BYTES * FILE_BYTES:020d}", last % FILE_BYTES + 4, b"\x00")

    report = world.open()

    assert report.start == world.store.log.min_physical
    _, offsets = world.append([world.draft("quiet")])
    assert offsets == [37]


def test_rebuilt_queue_begins_where_the_log_does(world: StoreWorld) -> None:
    """A queue that is lost after its head expired is rebuilt with the same offsets."""
    fill(world, 5)
    remove_files(world.store, 3)
    world.close()
    world.disk.remove_tree(world.path("consumequeue/bills"))

    report = world.open()

    assert report.queues_rebuilt == [("bills", 0)]
    assert_rest_is_complete(world)


@pytest.mark.parametrize("unlinked", [0, 1, 2, 3])
def test_crash_between_log_files_and_queues_converges(world: StoreWorld, unlinked: int) -> None:
    """If log files are deleted and no queue was trimmed, the next start trims the queues."""
    fill(world, 5)
    world.kill()
    for base in range(unlinked):
        world.disk.remove(world.path(f"commitlog/{base * FILE_BYTES:020d}"))

    world.open()

    assert world.store.log.min_physical == unlinked * FILE_BYTES
    assert_rest_is_complete(world)
    assert_no_idle_files(world)


@pytest.mark.parametrize("seed", range(40))
def test_power_loss_while_deleting_leaves_no_gap(faulty: StoreWorld, seed: int) -> None:
    """With any surviving files, the log begins at a file, has no gap, and the queues match."""
    fill(faulty, 6)
    if seed % 2:
        write_recovery_point(faulty)
    operations = 0

    def cut(operation: str, path: str) -> None:
        nonlocal operations
        if operation in ("remove", "sync_directory"):
            operations += 1
            if operations > seed % 12:
                raise OSError(errno.EIO, "the power is gone", path)

    faulty.faulty_disk.meet_fault = cut  # type: ignore[method-assign]
    store = faulty.store
    trims = store.removal.measure(5 * FILE_BYTES)
    store.removal.retire(5 * FILE_BYTES, trims)
    with pytest.raises(OSError, match="power"):
        store.removal.unlink()
    del faulty.faulty_disk.meet_fault
    faulty.lose_power(seed)

    report = faulty.open()

    names = log_names(faulty)
    assert names == list(range(names[0], names[-1] + 1, FILE_BYTES))
    assert seed % 2 == 0 or report.queues_rebuilt == []
    assert_rest_is_complete(faulty)


def test_failed_unlink_is_retried_in_order(faulty: StoreWorld) -> None:
    """An error stops the unlinking at that file; a later call continues with it, so that there is no gap."""
    fill(faulty, 4)
    faulty.faulty_disk.fail_next("remove", errno.EROFS)

    with pytest.raises(OSError, match="Read-only"):
        remove_files(faulty.store, 3)

    assert faulty.store.log.min_physical == 3 * FILE_BYTES, "expected readers to use the new begin at once"
    assert log_names(faulty)[0] == 0
    assert faulty.store.removal.waiting_count > 0
    faulty.store.removal.unlink()
    assert log_names(faulty)[0] == 3 * FILE_BYTES
    assert faulty.store.removal.waiting_count == 0
    assert_rest_is_complete(faulty)


# -- concurrent work ---------------------------------------------------------------------------------------------------


def test_reader_keeps_the_bytes_it_holds(tmp_path: Path) -> None:
    """Bytes of a deleted file stay readable for their readers: no SIGBUS, no BufferError, no other bytes."""
    world = make_world("real", tmp_path)
    world.open()
    fill(world, 4)
    held = world.store.log.slice(0, 100)
    assert held is not None
    before = bytes(held)
    wrong = threading.Event()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            if bytes(held) != before:
                wrong.set()

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    remove_files(world.store, 3)
    fill(world, 6)
    remove_files(world.store, 2)
    stop.set()
    for reader in readers:
        reader.join()

    assert not wrong.is_set()
    held.release()
    world.close()


def test_files_that_are_being_synced_are_closed_by_the_syncing_thread(faulty: StoreWorld) -> None:
    """A queue file that is deleted during its sync stays open until that sync has ended."""
    fill(faulty, 5)
    queue = faulty.store.queues.get("bills", 0)
    assert queue is not None
    first = queue.files.files[0]
    in_sync, may_go_on = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    real_fault = faulty.faulty_disk.meet_fault

    def slow(operation: str, path: str) -> None:
        if operation == "sync" and path == first.path:
            in_sync.set()
            may_go_on.wait(30)
        real_fault(operation, path)

    def flush() -> None:
        try:
            write_recovery_point(faulty)
        except BaseException as error:  # noqa: BLE001 - the test must report any error
            failures.append(error)

    faulty.faulty_disk.meet_fault = slow  # type: ignore[method-assign]
    flusher = threading.Thread(target=flush)
    flusher.start()
    assert in_sync.wait(30)

    remove_files(faulty.store, 4)
    assert first not in queue.files.files
    assert first.file.pread(1, 0) is not None, "expected the file to be open during its sync"
    may_go_on.set()
    flusher.join()

    assert failures == []
    assert faulty.fatal == []
    write_recovery_point(faulty)
    with pytest.raises(OSError, match="closed"):
        first.file.pread(1, 0)
    faulty.close()


def test_recovery_point_is_written_while_queues_are_trimmed(faulty: StoreWorld) -> None:
    """With dispatch held the thread ``gantry-point`` searches the queues itself, and their heads may be gone."""
    fill(faulty, 5)
    faulty.store.dispatcher.hold()
    faulty.send("bills", 3)
    queue = faulty.store.queues.get("bills", 0)
    assert queue is not None
    min_offset = queue.min_offset
    remove_files(faulty.store, 4)
    assert queue.min_offset > min_offset

    # This simulates that the thread has read the old beginning just before.
    trimmed, queue.min_offset = queue.min_offset, min_offset
    end = queue.end_before(faulty.store.log.flushed)
    queue.min_offset = trimmed

    assert end == queue.readable_end


def test_no_descriptor_of_a_deleted_file_is_kept(tmp_path: Path) -> None:
    """The space is free only when everything that was unlinked is closed, too."""

    def deleted() -> list[str]:
        links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
        return [link for link in links if link.startswith(str(tmp_path)) and link.endswith("(deleted)")]

    world = StoreWorld(RealDisk(), str(tmp_path / "store"))  # type: ignore[arg-type]
    world.open()
    for round_number in range(2, 12):
        fill(world, round_number)
        remove_files(world.store, len(log_names(world)) - 1)
        world.store.flush_step()
        assert deleted() == []
    world.close()


def test_removing_nothing_changes_nothing(world: StoreWorld) -> None:
    """A round without anything to delete leaves every file as it is."""
    fill(world, 3)
    before = world.files("commitlog") | world.files("consumequeue") | world.files("index")

    assert remove_before(world.store, world.store.log.min_physical) == 0

    assert world.files("commitlog") | world.files("consumequeue") | world.files("index") == before


def test_queue_deleted_while_it_is_measured_is_skipped(tmp_path: Path) -> None:
    """Its files are closed by the thread that syncs queues, so a worker may find none while it searches."""
    world = make_world("real", tmp_path)
    world.open()
    world.send("orders", 30)
    queue = world.store.queues.get_or_create("orders", 0)
    world.store.delete_topic("orders")
    world.store.flush_step()
    world.clock.advance(60_000)
    world.store.flush_step()

    assert queue.files.files == ()
    search = QueueSearch(world.store.log, world.store.queues)
    assert search.min_offset_at(queue, world.store.log.wrote) == queue.min_offset
    assert queue.end_before(1) == queue.min_offset
