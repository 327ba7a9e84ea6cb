"""Recovery after a clean stop, a kill and a power loss."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from gantry_broker.errors import StoreLocked, StoreMismatch
from gantry_broker.store import recovery, recovery_execution, scan_dispatcher
from gantry_broker.store.recovery import ScanResult
from gantry_broker.store.recovery_point import RecoveryPointFile
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.message import MAGIC_POSITION, MESSAGE_MAGIC_V1, PHYSICAL_OFFSET_POSITION, check_record


@pytest.fixture
def powered(tmp_path: Path) -> StoreWorld:
    """A store on a disk that can lose power."""
    made = make_world("faulty", tmp_path)
    made.open()
    return made


def assert_all_messages_present(world: StoreWorld) -> None:
    """Check that everything sent is present, in order, with dense queue offsets."""
    queues = {(topic, queue_id) for _, topic, queue_id, _, _ in world.sent}
    queues |= {(topic, queue_id) for topic, ids in world.store.queues.topics().items() for queue_id in ids}
    for topic, queue_id in sorted(queues):
        messages = world.messages(topic, queue_id)
        assert [m.body for m in messages] == world.sent_bodies(topic, queue_id)
        assert [m.queue_offset for m in messages] == list(range(len(messages)))


def send_mixed(world: StoreWorld, count: int) -> None:
    for i in range(count):
        world.send("orders", queue_id=i % 3)
        world.send("bills", queue_id=i % 2)


# -- clean and killed ------------------------------------------------------------------------------------------------


def test_clean_stop_leaves_nothing_to_recover(world: StoreWorld) -> None:
    """After a clean stop no record is read again, and appending continues at the end of the log."""
    send_mixed(world, 100)
    end = world.store.log.wrote
    world.close()

    report = world.open()

    assert (report.is_clean, report.records, report.start, report.end) == (True, 0, end, end)
    send_mixed(world, 10)
    assert_all_messages_present(world)


def test_everything_written_survives_a_kill(world: StoreWorld) -> None:
    """The page cache survives the process, so a kill loses nothing, flushed or not."""
    send_mixed(world, 100)
    end = world.store.log.wrote
    world.kill()

    report = world.open()

    assert (report.is_clean, report.end) == (False, end)
    assert_all_messages_present(world)
    send_mixed(world, 10)
    world.kill()
    world.open()
    assert_all_messages_present(world)


def test_start_after_a_kill_reads_from_the_recovery_point(world: StoreWorld) -> None:
    """Recovery time is bounded by the age of the recovery point, not by the size of the log."""
    send_mixed(world, 100)
    world.clock.advance(60_000)
    world.store.flush_step()
    through = world.store.log.wrote
    send_mixed(world, 5)
    world.kill()

    report = world.open()

    assert (report.start, report.records) == (through, 10)
    assert_all_messages_present(world)


def test_recovering_twice_gives_the_same_bytes(world: StoreWorld) -> None:
    """Recovery is idempotent: after a kill right after it, the next one finds and leaves the same files."""
    send_mixed(world, 120)
    world.kill()
    world.open()
    world.kill()
    first = world.files("commitlog") | world.files("consumequeue") | world.files("index")
    world.open()
    world.kill()

    assert world.files("commitlog") | world.files("consumequeue") | world.files("index") == first


def test_store_times_never_fall_after_a_restart_with_an_earlier_clock(world: StoreWorld) -> None:
    """The newest store time is kept over clean and unclean stops."""
    world.send(count=3)
    world.close()
    world.clock.jump_wall(-3_600_000)
    world.open()
    world.send(count=3)
    world.kill()
    world.clock.jump_wall(-3_600_000)
    world.open()
    world.send(count=3)

    times = [message.store_timestamp_ms for message in world.messages()]
    assert times == sorted(times)


def test_second_process_on_the_same_directory_is_refused(world: StoreWorld) -> None:
    """One store, one process: the second gets StoreLocked and changes nothing; the first is not affected."""
    world.send(count=3)

    with pytest.raises(StoreLocked):
        world.make_store().open(is_flushing=False)

    world.send(count=3)
    assert_all_messages_present(world)


def test_segment_size_that_contradicts_the_files_is_refused_with_both_sizes(world: StoreWorld) -> None:
    """The size of log files is a property of the store, not of the present settings."""
    world.send()
    world.close()
    world.settings = dataclasses.replace(world.settings, mapped_file_size_commit_log=32 * 1024)

    with pytest.raises(StoreMismatch, match=r"mappedFileSizeCommitLog.*32768.*16384"):
        world.open()


# -- the torn tail ---------------------------------------------------------------------------------------------------


def test_power_loss_keeps_the_flushed_messages(powered: StoreWorld) -> None:
    """If a power loss takes all unsynced bytes, the log ends exactly at the flushed end."""
    send_mixed(powered, 60)
    flushed = powered.store.flush()
    send_mixed(powered, 60)
    powered.lose_power()

    report = powered.open()

    assert report.end == flushed
    powered.forget_after(report.end)
    assert_all_messages_present(powered)


def tear_second_last_record(world: StoreWorld) -> int:
    """Kill the broker, reboot, and damage the second last record of the log. Return where it begins."""
    end = world.sent[-3].end
    world.kill()
    world.clock.reboot(0)
    world.overwrite("commitlog/00000000000000000000", end + 90, b"\xff\xff\xff")
    return end


def test_torn_record_ends_the_log_and_the_rest_is_cut(world: StoreWorld, caplog: pytest.LogCaptureFixture) -> None:
    """After the durable mark, the flushed end, the first bad record ends the log; a warning has the bytes cut."""
    world.send(count=20)
    torn = tear_second_last_record(world)

    report = world.open()

    assert report.end == torn
    assert report.cut_bytes > 0
    assert (report.cut_records, report.is_lossless) == (1, False), "expected the last record, which is whole"
    warnings = [record for record in caplog.records if "cut off" in record.getMessage()]
    assert [(vars(one)["cut_bytes"], vars(one)["cut_records"]) for one in warnings] == [(report.cut_bytes, 1)]
    world.forget_after(torn)
    assert_all_messages_present(world)
    data = world.files("commitlog")["commitlog/00000000000000000000"]
    assert data[torn:] == bytes(len(data) - torn)


def refill_after_a_cut(world: StoreWorld) -> None:
    """Tear the tail, recover, refill the cut with a record of the same size, kill, and open again."""
    world.send(count=20)
    torn = tear_second_last_record(world)
    world.open()
    world.forget_after(torn)
    world._serial = 18
    world.send()
    world.kill()
    world.open()


def test_cut_tail_never_returns(world: StoreWorld) -> None:
    """The old last record begins exactly where the refilled one ends; it must not return at the next crash."""
    refill_after_a_cut(world)

    assert_all_messages_present(world)
    assert world.bodies()[-1] == b"message 19"


def test_without_zeroing_the_cut_tail_would_return(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the zeroing the lost message returns after the new one."""

    def cut_only_the_first_header(self: recovery_execution.Recovery, result: ScanResult, *_: object) -> tuple[int, int]:
        file = self._log.files.at(result.end)
        assert file is not None
        position = result.end - file.base_offset
        file.file.reserve(file.size)
        file.file.pwrite(bytes(8), position)
        return 0, 0

    monkeypatch.setattr(recovery_execution.Recovery, "_zero_tail", cut_only_the_first_header)

    refill_after_a_cut(world)

    assert world.bodies()[-1] == b"message 20"
    assert world.bodies() != world.sent_bodies()


def test_files_after_the_cut_are_unlinked(world: StoreWorld) -> None:
    """If the log ends in an earlier file, later files are deleted from the disk, including their names."""
    world.send(count=250)
    torn = world.sent[10].end
    world.kill()
    world.clock.reboot(0)
    world.overwrite("commitlog/00000000000000000000", torn + 4, b"\x00\x00")

    report = world.open()

    assert report.end == torn
    assert list(world.files("commitlog")) == ["commitlog/00000000000000000000"]
    world.forget_after(torn)
    assert_all_messages_present(world)


def test_stale_records_of_another_offset_are_ignored(world: StoreWorld) -> None:
    """A valid record at an offset that is not its own (as in a reused file) is no record."""
    world.send(count=10)
    first_end = world.sent[0].end
    end = world.store.log.wrote
    world.kill()
    data = world.disk.read_file(world.path("commitlog/00000000000000000000"))
    assert check_record(data, 0).is_good
    world.overwrite("commitlog/00000000000000000000", end, data[:first_end])

    report = world.open()

    assert report.end == end
    assert_all_messages_present(world)


@pytest.mark.parametrize("length", [0, 1, 90, 91, 0x7FFFFFFF, -1, -(1 << 31), 16 * 1024], ids=str)
def test_any_length_field_at_the_tail_ends_the_log(world: StoreWorld, length: int) -> None:
    """Recovery ends and invents nothing, with any value in a torn header's length."""
    world.send(count=10)
    end = world.store.log.wrote
    world.kill()
    data = world.disk.read_file(world.path("commitlog/00000000000000000000"))
    tail = length.to_bytes(4, "big", signed=True) + data[4:91]
    world.overwrite("commitlog/00000000000000000000", end, tail)

    assert world.open().end == end
    assert_all_messages_present(world)


def test_blank_that_does_not_reach_the_file_end_is_no_blank(world: StoreWorld) -> None:
    """Only a blank record that closes its file leads to the next one."""
    world.send(count=10)
    end = world.store.log.wrote
    world.kill()
    world.overwrite("commitlog/00000000000000000000", end, (64).to_bytes(4, "big") + b"\xcb\xd4\x31\x94")

    assert world.open().end == end


# -- rot -------------------------------------------------------------------------------------------------------------


def test_rot_before_the_durable_mark_is_reported_and_skipped(world: StoreWorld) -> None:
    """Damage to flushed bytes is no torn tail: nothing after it is cut, and its neighbours are served."""
    world.send(count=20)
    world.clock.advance(2_000)
    world.store.flush()
    world.store.flush_step()
    start, end = world.sent[9].end, world.sent[10].end
    world.kill()
    world.overwrite("commitlog/00000000000000000000", end - 60, b"\xff")
    world.overwrite("commitlog/00000000000000000000", start + 90, b"\xff\xff")

    report = world.open()

    assert report.damaged == [(start, end)]
    bodies = world.sent_bodies()
    assert world.bodies() == bodies[:10] + bodies[11:]
    assert [m.queue_offset for m in world.messages()] == [*range(10), *range(11, 20)]


def test_rot_after_a_clean_stop_cuts_nothing(world: StoreWorld) -> None:
    """A clean stop has flushed everything, so damage is never a torn tail, even when the whole log is read."""
    world.send(count=20)
    start, end = world.sent[9].end, world.sent[10].end
    world.close()
    world.overwrite("commitlog/00000000000000000000", start + 90, b"\xff\xff")
    world.disk.remove(world.path("recovery-point.json"))

    report = world.open()

    assert report.damaged == [(start, end)]
    assert report.end == world.sent[-1].end


def test_rot_found_by_a_reader_is_skipped(world: StoreWorld) -> None:
    """A record with a damaged head is lost; the consumer gets its neighbours and continues."""
    world.send(count=10)
    view = world.store.log.files.files[0].view
    view[world.sent[3].end + 28] ^= 0x40

    bodies = world.sent_bodies()
    assert world.bodies() == bodies[:4] + bodies[5:]


def test_lost_flushed_bytes_are_counted(powered: StoreWorld) -> None:
    """If the disk lost flushed bytes, recovery reports how many, so that a master can refuse to continue."""
    powered.send(count=20)
    powered.clock.advance(2_000)
    powered.store.flush()
    powered.store.flush_step()
    flushed = powered.store.log.flushed
    cut = powered.sent[14].end
    powered.kill()
    powered.overwrite("commitlog/00000000000000000000", cut, bytes(flushed - cut))

    report = powered.open()

    assert (report.end, report.lost_flushed_bytes) == (cut, flushed - cut)


# -- what is derived -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize(
    "lost",
    [
        ["consumequeue/orders/1"],
        ["consumequeue/orders"],
        ["consumequeue"],
        ["index"],
        ["checkpoint"],
        ["recovery-point.json"],
        ["consumequeue", "index", "checkpoint", "recovery-point.json"],
    ],
    ids=lambda lost: "+".join(lost),
)
def test_deleted_derived_files_are_rebuilt_identical(world: StoreWorld, lost: list[str], how: str) -> None:
    """Queues, index, checkpoint and recovery point are derived: losing one costs a rebuild, never a message."""
    send_mixed(world, 120)
    if how == "clean":
        world.close()
    else:
        world.kill()
    queues = world.files("consumequeue")
    for name in lost:
        if world.disk.is_directory(world.path(name)):
            world.disk.remove_tree(world.path(name))
        elif world.disk.exists(world.path(name)):
            world.disk.remove(world.path(name))

    world.open()

    assert_all_messages_present(world)
    key = world.messages("bills", 1)[0].properties["UNIQ_KEY"]
    records, _, _ = world.store.keys.records("bills", key, 32, 0, 1 << 60)
    assert len(records) == 1
    world.close()
    assert world.files("consumequeue") == queues


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_wrong_queue_is_detected_and_rebuilt(world: StoreWorld, how: str) -> None:
    """A queue whose last entry leads to a message of another queue is not used."""
    send_mixed(world, 60)
    world.clock.advance(60_000)
    world.store.flush_step()
    right = world.files("consumequeue")
    if how == "clean":
        world.close()
    else:
        world.kill()
    name = "consumequeue/orders/1/00000000000000000000"
    foreign = right["consumequeue/orders/2/00000000000000000000"]
    world.overwrite(name, 19 * 20, foreign[19 * 20 : 20 * 20])

    report = world.open()

    assert report.queues_rebuilt == [("orders", 1)]
    assert_all_messages_present(world)
    assert world.files("consumequeue") == right


def test_queue_that_is_wrong_in_its_middle_is_detected_by_reading_and_rebuilt(world: StoreWorld) -> None:
    """Reading never serves a foreign message: it stops before it, and continues when the unit is repaired."""
    send_mixed(world, 40)
    queue = world.store.queues.get_or_create("orders", 1)
    other = world.store.queues.get_or_create("orders", 2)
    queue.view[5 * 20 : 6 * 20] = other.view[5 * 20 : 6 * 20]

    assert world.store.read("orders", 1, 0, count_max=32, bytes_max=1 << 20).next_offset == 5
    assert_all_messages_present(world)
    world.close()
    report = world.open()

    assert report.queues_rebuilt == []
    assert_all_messages_present(world)


def test_torn_queues_and_index_are_repaired_from_the_log(powered: StoreWorld) -> None:
    """Queue pages reach the disk in any order; after a crash every queue equals the log, to the byte."""
    for seed in range(20):
        world = StoreWorld(FaultyDisk(), "/data/store")
        world.open()
        send_mixed(world, 40)
        world.clock.advance(60_000)
        world.store.flush_step()
        send_mixed(world, 60)
        world.store.flush()
        end = world.store.log.wrote
        expected = world.files("consumequeue")
        world.lose_power(seed)

        assert world.open().end == end, seed
        assert_all_messages_present(world)
        assert world.files("consumequeue") == expected, seed
        for message in world.messages("orders", 2):
            records, _, _ = world.store.keys.records("orders", message.properties["UNIQ_KEY"], 32, 0, 1 << 60)
            assert world.store.guard.message_at(message.physical_offset) in records, seed


def test_deleted_topic_stays_deleted_and_its_offsets_restart(world: StoreWorld) -> None:
    """Old messages of a deleted topic are still in the log; a rebuild must not mix them with new ones."""
    world.send("orders", 30)
    world.store.delete_topic("orders")
    world.store.flush_step()
    world.sent.clear()
    world.send("orders", 5)
    world.kill()
    world.disk.remove_tree(world.path("consumequeue"))

    world.open()

    assert_all_messages_present(world)
    assert len(world.bodies()) == 5


@pytest.mark.parametrize("lost", ["index", "consumequeue/bills/0", "commitlog"])
def test_deleted_topic_does_not_reappear_when_the_log_is_read_again(world: StoreWorld, lost: str) -> None:
    """A deleted topic gets no queue, not even one without messages, when files are rebuilt."""
    world.send("bills", 60)
    world.send("orders", 60)
    world.store.delete_topic("orders")
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send("bills")
    world.kill()
    if lost == "commitlog":  # The record at the end of the recovery point is damaged, so the whole log is read.
        point = RecoveryPointFile(world.disk, world.root).read()
        assert point is not None
        position = point.tail % world.settings.mapped_file_size_commit_log
        world.overwrite(f"commitlog/{point.tail - position:020d}", position, bytes(4))
    else:
        world.disk.remove_tree(world.path(lost))

    world.open()

    assert world.store.queues.topics() == {"bills": [0]}


def test_files_of_a_deleted_topic_that_reappear_bring_no_queue_back(world: StoreWorld) -> None:
    """A power loss may bring the files back; they are deleted, and the queue is not in the table."""
    world.send("bills", 5)
    world.send("orders", 5)
    world.clock.advance(60_000)
    world.store.flush_step()
    files = world.files("consumequeue/orders")
    world.store.delete_topic("orders")
    world.clock.advance(60_000)
    world.store.flush_step()
    world.kill()
    world.disk.make_directory(world.path("consumequeue/orders/0"))
    for name, data in files.items():
        world.disk.create(world.path(name), len(data), reserve=len(data)).close()
        world.overwrite(name, 0, data)

    world.open()

    assert world.store.queues.topics() == {"bills": [0]}
    assert not world.disk.exists(world.path("consumequeue/orders/0"))


def test_deleted_topic_is_gone_at_once(world: StoreWorld) -> None:
    """Deleting drops queues and directories; a read returns that there is no queue."""
    world.send("orders", 3)

    assert world.store.delete_topic("orders")

    assert not world.store.delete_topic("orders")
    assert world.store.queues.topics() == {}
    assert not world.disk.exists(world.path("consumequeue/orders"))
    assert world.store.read("orders", 0, 0, count_max=1, bytes_max=1).status.name == "NO_MATCHED_LOGIC_QUEUE"


def test_foreign_names_in_the_queue_directory_are_ignored(world: StoreWorld) -> None:
    """A lost+found or an editor's file is neither opened nor removed, and stops nothing."""
    world.send(count=3)
    world.close()
    for name in ("consumequeue/lost+found", "consumequeue/orders/x", "consumequeue/orders/007"):
        world.disk.make_directory(world.path(name))

    world.open()

    assert_all_messages_present(world)
    assert world.store.queues.topics() == {"orders": [0]}
    assert world.disk.exists(world.path("consumequeue/lost+found"))


def test_progress_is_reported_while_a_long_log_is_read(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is reported during a long start."""
    monkeypatch.setattr(scan_dispatcher, "PROGRESS_RECORDS", 10)
    monkeypatch.setattr(recovery, "READ_AHEAD_BYTES", 512)
    world.send(count=100)
    world.kill()
    seen: list[tuple[int, int]] = []

    store = world.make_store()
    store.open(lambda done, total: seen.append((done, total)), is_flushing=False)

    assert 5 <= len(seen) <= 10
    assert seen == sorted(seen)
    store.close()


@pytest.mark.parametrize("shift", [-60, -36, -28, -7, -1, 0, 1, 100])
@pytest.mark.parametrize("piece", [1, 2])
def test_record_between_zeros_is_found(piece: int, shift: int) -> None:
    """Pieces of the log without anything are skipped; a record that begins before or after their border is found."""
    base, offset = 4096, piece * recovery.SEARCH_BYTES + shift
    view = bytearray(3 * recovery.SEARCH_BYTES)
    magic, own = offset + MAGIC_POSITION, offset + PHYSICAL_OFFSET_POSITION
    view[magic : magic + 4] = MESSAGE_MAGIC_V1.to_bytes(4, "big", signed=True)
    view[own : own + 8] = (base + offset).to_bytes(8, "big")
    file = SimpleNamespace(base_offset=base, end_offset=base + len(view), view=memoryview(view))

    found = list(recovery.record_candidates(file, base, file.end_offset))

    assert found == [base + offset]
