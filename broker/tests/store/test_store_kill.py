"""A start after a kill on a running machine: the page cache had all bytes, so missing bytes are lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gantry_broker.store import recovery_execution
from gantry_broker.store.inspect.repair import RepairPlanner
from gantry_broker.store.inspect.verify import Verifier, VerifyOptions
from gantry_broker.store.log_end import LogEndFile
from gantry_broker.store.loss import LossCause, LostRange
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.settings import PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_reading_disk import FaultyReadingDisk
from gantry_testing.store_world import TINY, StoreWorld

FILE = TINY.mapped_file_size_commit_log
POOL = replace(TINY, pool=PoolSettings(is_enabled=True, buffers_count=4, path="/pool"))


def numbers(world: StoreWorld, topic: str = "orders", queue_id: int = 0) -> list[int]:
    return [message.queue_offset for message in world.messages(topic, queue_id)]


def damage_record(world: StoreWorld, start: int) -> None:
    """Flip a bit in the body of the record at ``start``."""
    name, position = f"commitlog/{start - start % FILE:020d}", start % FILE + 90
    byte = world.disk.read_file(world.path(name))[position]
    world.overwrite(name, position, bytes([byte ^ 4]))


def newest(world: StoreWorld) -> str:
    return sorted(world.files("commitlog"))[-1]


def roll_back(world: StoreWorld, count: int) -> int:
    """Send ``count`` messages, kill, restore an older copy of the newest file; return where the log had ended."""
    before, name = world.store.log.wrote, newest(world)
    old = world.disk.read_file(world.path(name))
    world.send(count=count)
    world.kill()
    world.overwrite(name, 0, old)
    return before


# -- holes -----------------------------------------------------------------------------------------------------------


def test_damage_after_the_last_flush_is_skipped_after_a_kill(world: StoreWorld) -> None:
    """Only the process ended, so no write was torn: records after the damage were acknowledged, and are served."""
    world.send(count=250)
    end, (start, stop) = world.store.log.wrote, (world.sent[99].end, world.sent[100].end)
    world.kill()
    damage_record(world, start)

    report = world.open()

    assert (report.end, report.damaged, report.missing) == (end, [(start, stop)], [])
    assert numbers(world) == [*range(100), *range(101, 250)]
    world.send()
    assert numbers(world)[-1] == 250


def test_without_the_rule_messages_after_the_damage_are_cut(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: if damage after the durable mark always ended the log, good messages would be cut with it."""
    monkeypatch.setattr(LogEndFile, "read", lambda *_: None)
    world.send(count=20)
    start = world.sent[9].end
    world.kill()
    damage_record(world, start)

    assert world.open().end == start
    world.send()
    assert numbers(world)[-1] == 10, "expected queue offset 10 to be used again"


@pytest.mark.parametrize("is_another_run", [True, False], ids=["machine", "pod"])
def test_damage_ends_the_log_after_a_reboot(world: StoreWorld, is_another_run: bool) -> None:
    """A power cut may leave holes in the unflushed log; records after a hole are cut without a report of loss."""
    world.send(count=20)
    start = world.sent[9].end
    world.kill()
    if is_another_run:
        world.clock.reboot(0)
    else:
        world.memory_scope = "another pod"
    damage_record(world, start)

    report = world.open()

    assert (report.end, report.damaged, report.missing) == (start, [], [])


def test_damaged_record_never_reappears(world: StoreWorld) -> None:
    """Every later start, clean or not, skips it again."""
    world.send(count=20)
    start, stop = world.sent[9].end, world.sent[10].end
    world.kill()
    damage_record(world, start)
    world.open()
    world.send()
    world.kill()
    assert world.open().damaged in ([], [(start, stop)]), (
        "expected no other damage; a start from the recovery point may not read it"
    )
    world.close()
    world.open()
    assert numbers(world) == [*range(10), *range(11, 21)]


def test_queue_offset_of_a_lost_message_is_not_reused(world: StoreWorld) -> None:
    """The last message of a queue is damaged, and others follow in the log: its queue offset stays reserved."""
    world.send(count=5)
    world.send(count=3, queue_id=1)
    world.send(count=5)
    start = world.sent[7].end - (world.sent[7].end - world.sent[6].end)
    world.kill()
    damage_record(world, start)

    world.open()

    world.send(queue_id=1)
    assert numbers(world, queue_id=1) == [0, 1, 3]
    world.kill()
    world.open()
    assert numbers(world, queue_id=1) == [0, 1, 3]


def test_zeros_in_the_log_are_not_its_end_after_a_kill(world: StoreWorld) -> None:
    """A lost write leaves zeros: after a kill the messages after them are found all the same."""
    world.send(count=20)
    end, start, stop = world.store.log.wrote, world.sent[9].end, world.sent[10].end
    world.kill()
    world.overwrite(newest(world), start, bytes(stop - start))

    report = world.open()

    assert (report.end, report.damaged) == (end, [(start, stop)])


def test_hole_in_the_log_is_filled_from_the_buffer() -> None:
    """The log's file lost a committed range that the buffer has: nothing is lost or reported."""
    world = StoreWorld(FaultyDisk(), "/data/store", POOL)
    world.open()
    world.send(count=20)
    world.store.commit_step()
    start, stop = world.sent[9].end, world.sent[10].end
    world.kill()
    world.overwrite(newest(world), start, bytes(stop - start))

    report = world.open()

    assert (report.damaged, report.missing, report.set_aside) == ([], [], [])
    assert world.bodies() == world.sent_bodies()


@pytest.mark.parametrize("commits", [0, 5, 130], ids=["nothing", "a part", "the file before"])
def test_missing_file_is_restored_from_its_buffer(commits: int) -> None:
    """A preallocated file follows the missing one: the log does not end there, and the buffer restores it."""
    world = StoreWorld(FaultyDisk(), "/data/store", POOL)
    world.open()
    for number in range(150):
        world.send()
        if number < commits:
            world.clock.advance(1_000)
            world.store.commit_step()
    end = world.store.log.wrote
    assert FILE < end < 2 * FILE
    world.kill()
    world.disk.create(world.path(f"commitlog/{2 * FILE:020d}"), FILE, reserve=FILE).close()
    world.disk.remove(world.path(f"commitlog/{FILE:020d}"))
    report = world.open()

    assert (report.end, report.missing, report.damaged, report.set_aside) == (end, [], [], [])
    assert world.bodies() == world.sent_bodies()
    world.send()
    world.kill()
    world.open()
    assert world.bodies() == world.sent_bodies()


def test_missing_file_that_is_not_refilled_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the log would continue in the preallocated file, with no place for the buffer's records."""
    monkeypatch.setattr(recovery_execution, "plan_refills", lambda *_: [])

    with pytest.raises(AssertionError):
        test_missing_file_is_restored_from_its_buffer(5)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "twin"])
def test_slave_continues_past_damage_that_its_start_skipped(is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave shows its master's confirmed records from its own log, where a damaged head has no length."""
    if not is_guarded:
        monkeypatch.setattr(MessageStore, "_unhealed_ranges", lambda _, is_final: [])
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=20)
    end, start = world.store.log.wrote, world.sent[9].end
    world.kill()
    world.overwrite(newest(world), start, b"\xff" * 8)
    store = world.make_store()
    store.open(is_flushing=False, is_unconfirmed_hidden=True)
    world.adopt(store)

    copier = store.start_copying()
    if not is_guarded:
        assert not any(copier.dispatch(end) for _ in range(3)), "expected that it waits at the damage"
        return
    while not copier.dispatch(end):
        pass
    assert numbers(world) == [*range(10), *range(11, 20)]
    assert store.dispatcher.dispatched == end


# -- the end ---------------------------------------------------------------------------------------------------------


def test_an_older_copy_of_the_newest_file_is_a_loss_after_a_kill(world: StoreWorld) -> None:
    """Records written after the last checkpoint count as missing, too, and queue offsets are not reused."""
    world.send(count=20)
    before = roll_back(world, 10)
    end = world.sent[-1].end

    report = world.open()

    assert (report.end, report.missing) == (before, [LostRange(before, end, LossCause.TAIL)])
    assert world.store.losses.record.queues == {"orders": {"0": 30}}
    world.store.accept_loss("a test")
    assert world.store.log.wrote >= end
    world.send()
    assert numbers(world) == [*range(20), 30]


def test_queue_offsets_since_the_recovery_point_are_not_reused(world: StoreWorld) -> None:
    """The point has older queue ends and the units newer ones, even if the log is lost to before both."""
    world.send(count=60)
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send(count=10, queue_id=1)
    world.store.flush()
    world.clock.advance(2_000)
    world.store.flush_step()
    world.send(count=10)
    start = world.sent[29].end
    world.kill()
    world.overwrite(newest(world), start % FILE, bytes(FILE - start % FILE))

    assert [lost.end for lost in world.open().missing] == [world.sent[-1].end]
    world.store.accept_loss("a test")
    world.send()
    world.send(queue_id=1)

    assert (numbers(world)[-1], numbers(world, queue_id=1)[-1]) == (70, 10)


def test_without_the_log_end_an_older_copy_is_not_detected(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: sealed files alone do not know the newest writes, so queue offsets are reused."""
    monkeypatch.setattr(LogEndFile, "read", lambda *_: None)
    world.send(count=20)
    roll_back(world, 10)

    assert world.open().missing == []
    world.send()
    assert numbers(world) == list(range(21))


def test_a_damaged_last_message_is_a_loss_after_a_kill(world: StoreWorld) -> None:
    """No record follows it, so that it resembles the torn end of the log."""
    world.send(count=20)
    start, end = world.sent[-2].end, world.sent[-1].end
    world.kill()
    damage_record(world, start)

    assert world.open().missing == [LostRange(start, end, LossCause.TAIL)]


def test_missing_newest_file_is_missing_to_its_end_after_a_kill(world: StoreWorld) -> None:
    """It holds even without a recovery point that covers it."""
    world.send(count=150)
    end = world.store.log.wrote
    name = newest(world)
    world.kill()
    world.disk.remove(world.path(name))

    report = world.open()

    assert [lost.end for lost in report.missing] == [end]
    assert report.missing[0].is_at_end


def test_an_older_copy_is_no_loss_after_a_power_cut(world: StoreWorld) -> None:
    """After a power cut small files may be newer than the log, so they prove nothing."""
    world.send(count=20)
    before = roll_back(world, 10)
    world.clock.reboot(0)

    report = world.open()

    assert (report.end, report.missing) == (before, [])


def test_messages_only_in_buffers_are_no_loss() -> None:
    """The log continues in the buffers; if they are missing, it is a loss."""
    world = StoreWorld(FaultyDisk(), "/data/store", POOL)
    world.open()
    world.send(count=150)
    end = world.store.log.wrote
    world.kill()
    report = world.open()
    assert (report.end, report.missing, report.damaged) == (end, [], [])
    world.send(count=20)
    lost = world.store.log.wrote
    world.kill()
    world.volume.pieces.clear()

    assert world.open().missing == [LostRange(end, lost, LossCause.TAIL)]


# -- tools -----------------------------------------------------------------------------------------------------------


def test_tools_judge_a_killed_store_as_its_start_does() -> None:
    """Damage and missing ranges are reported before a start."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=20)
    start, stop = world.sent[9].end, world.sent[10].end
    before = roll_back(world, 10)
    damage_record(world, start)
    reading_disk, boot_id = FaultyReadingDisk(world.disk), world.clock.boot_id()

    plan = RepairPlanner(reading_disk, world.root, boot_id=boot_id).run()
    report = Verifier(reading_disk, world.root, VerifyOptions(boot_id=boot_id)).run()

    assert plan.damaged == [(start, stop)]
    assert plan.missing == [LostRange(before, world.sent[-1].end, LossCause.TAIL)]
    texts = [finding.text for finding in report.findings.kept]
    assert any(f"of the log at {start}" in text for text in texts)
    assert any("are lost" in text for text in texts)
    opened = world.open()
    assert (plan.damaged, plan.missing) == (opened.damaged, opened.missing)
