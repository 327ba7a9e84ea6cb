"""What a start believes after a kill on a machine that goes on: the page cache had all of it, so what lacks is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gantry_broker.errors import StoreCorrupt
from gantry_broker.store import recover
from gantry_broker.store.inspect.repair import RepairPlanner
from gantry_broker.store.inspect.verify import Verifier, VerifyOrder
from gantry_broker.store.log_end import LogEndFile
from gantry_broker.store.loss import LossCause, LostRange
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.settings import PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.reading_twin import ReadingTwin
from gantry_testing.store_world import TINY, StoreWorld, make_world

FILE = TINY.mapped_file_size_commit_log
POOL = replace(TINY, pool=PoolSettings(is_enabled=True, buffers_count=4, path="/pool"))


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    made = make_world(request.param, tmp_path)
    made.open()
    return made


def numbers(world: StoreWorld, topic: str = "orders", queue_id: int = 0) -> list[int]:
    return [message.queue_offset for message in world.messages(topic, queue_id)]


def spoil(world: StoreWorld, start: int) -> None:
    """Flip a bit in the body of the record at ``start``."""
    name, position = f"commitlog/{start - start % FILE:020d}", start % FILE + 90
    byte = world.disk.read_file(world.path(name))[position]
    world.overwrite(name, position, bytes([byte ^ 4]))


def newest(world: StoreWorld) -> str:
    return sorted(world.files("commitlog"))[-1]


def roll_back(world: StoreWorld, count: int) -> int:
    """Send ``count`` messages, kill, and put back the newest file as it was before; where the log ended then."""
    before, name = world.store.log.wrote, newest(world)
    old = world.disk.read_file(world.path(name))
    world.send(count=count)
    world.kill()
    world.overwrite(name, 0, old)
    return before


# -- holes -----------------------------------------------------------------------------------------------------------


def test_damage_behind_the_last_flush_is_stepped_over_after_a_kill(world: StoreWorld) -> None:
    """Nothing was torn, since only the process ended: what follows the damage was acknowledged, and is served."""
    world.send(count=250)
    end, (start, stop) = world.store.log.wrote, (world.sent[99][0], world.sent[100][0])
    world.kill()
    spoil(world, start)

    report = world.open()

    assert (report.end, report.damaged, report.missing) == (end, [(start, stop)], [])
    assert numbers(world) == [*range(100), *range(101, 250)]
    world.send()
    assert numbers(world)[-1] == 250


def test_without_the_rule_messages_behind_the_damage_are_cut(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its twin: where damage behind the mark always ends the log, good messages go with it."""
    monkeypatch.setattr(LogEndFile, "read", lambda *_: None)
    world.send(count=20)
    start = world.sent[9][0]
    world.kill()
    spoil(world, start)

    assert world.open().end == start
    world.send()
    assert numbers(world)[-1] == 10, "a number is used again"


@pytest.mark.parametrize("is_another_run", [True, False], ids=["machine", "pod"])
def test_damage_ends_the_log_on_another_run_of_the_machine(world: StoreWorld, is_another_run: bool) -> None:
    """A power cut tears holes; what lies behind them was never promised, and is cut, and nothing else is claimed."""
    world.send(count=20)
    start = world.sent[9][0]
    world.kill()
    if is_another_run:
        world.clock.reboot(0)
    else:
        world.memory_scope = "another pod"
    spoil(world, start)

    report = world.open()

    assert (report.end, report.damaged, report.missing) == (start, [], [])


def test_the_damaged_record_never_rises_again(world: StoreWorld) -> None:
    """Stepped over once, it is stepped over by every later start, clean or not."""
    world.send(count=20)
    start, stop = world.sent[9][0], world.sent[10][0]
    world.kill()
    spoil(world, start)
    world.open()
    world.send()
    world.kill()
    assert world.open().damaged in ([], [(start, stop)]), "it lies before the recovery point now"
    world.close()
    world.open()
    assert numbers(world) == [*range(10), *range(11, 21)]


def test_the_number_of_a_lost_message_is_not_used_again(world: StoreWorld) -> None:
    """The last message of a queue is damaged, and others follow in the log: its number stays its own."""
    world.send(count=5)
    world.send(count=3, queue_id=1)
    world.send(count=5)
    start = world.sent[7][0] - (world.sent[7][0] - world.sent[6][0])
    world.kill()
    spoil(world, start)

    world.open()

    world.send(queue_id=1)
    assert numbers(world, queue_id=1) == [0, 1, 3]
    world.kill()
    world.open()
    assert numbers(world, queue_id=1) == [0, 1, 3]


def test_zeros_in_the_log_are_not_its_end_after_a_kill(world: StoreWorld) -> None:
    """A write that was lost leaves zeros: after a kill the messages behind them are found all the same."""
    world.send(count=20)
    end, start, stop = world.store.log.wrote, world.sent[9][0], world.sent[10][0]
    world.kill()
    world.overwrite(newest(world), start, bytes(stop - start))

    report = world.open()

    assert (report.end, report.damaged) == (end, [(start, stop)])


def test_a_hole_in_what_a_buffer_has_is_filled_from_the_buffer() -> None:
    """The log's file lost what a commit wrote, and the buffer has it: nothing is lost, and nothing is reported."""
    world = StoreWorld(FaultyDisk(), "/data/store", POOL)
    world.open()
    world.send(count=20)
    world.store.commit_step()
    start, stop = world.sent[9][0], world.sent[10][0]
    world.kill()
    world.overwrite(newest(world), start, bytes(stop - start))

    report = world.open()

    assert (report.damaged, report.missing, report.set_aside) == ([], [], [])
    assert world.bodies() == world.sent_bodies()


@pytest.mark.parametrize("commits", [0, 5, 130], ids=["nothing", "a part", "the file before"])
def test_a_file_that_is_gone_comes_back_from_the_buffer_that_has_it(commits: int) -> None:
    """A file made ahead stands behind the one that is gone: the log does not end there, and the buffer is its place."""
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


def test_without_the_buffer_a_file_that_is_gone_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its twin: the log would go on in the file made ahead, and what the buffer holds would have no place in it."""
    monkeypatch.setattr(recover, "plan_refills", lambda *_: [])

    with pytest.raises(AssertionError):
        test_a_file_that_is_gone_comes_back_from_the_buffer_that_has_it(5)


@pytest.mark.parametrize("is_whole_known", [True, False], ids=["guarded", "unguarded, the twin"])
def test_a_copy_goes_on_over_what_its_start_has_stepped_over(
    is_whole_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave shows what its master confirms from its own log, and damage in there has no length."""
    if not is_whole_known:
        monkeypatch.setattr(MessageStore, "_damaged_since_start", lambda _: [])
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=20)
    end, start = world.store.log.wrote, world.sent[9][0]
    world.kill()
    world.overwrite(newest(world), start, b"\xff" * 8)
    store = world.make_store()
    store.open(is_flushing=False, is_tail_hidden=True)
    world.adopt(store)

    if not is_whole_known:
        with pytest.raises(StoreCorrupt):
            store.start_copying()
        return
    copier = store.start_copying()
    while not copier.dispatch(end):
        pass
    assert numbers(world) == [*range(10), *range(11, 20)]
    assert store.dispatcher.dispatched == end


# -- the end ---------------------------------------------------------------------------------------------------------


def test_an_older_copy_of_the_newest_file_is_a_loss_after_a_kill(world: StoreWorld) -> None:
    """What was written after the last checkpoint is missed, too, and numbers are not used again."""
    world.send(count=20)
    before = roll_back(world, 10)
    end = world.sent[-1][0]

    report = world.open()

    assert (report.end, report.missing) == (before, [LostRange(before, end, LossCause.TAIL)])
    assert world.store.losses.record.queues == {"orders": {"0": 30}}
    world.store.accept_loss("a test")
    assert world.store.log.wrote >= end
    world.send()
    assert numbers(world) == [*range(20), 30]


def test_numbers_between_the_recovery_point_and_the_last_flush_are_not_used_again(world: StoreWorld) -> None:
    """The point has the ends of queues of then and units those since, also where the log is lost to before both."""
    world.send(count=60)
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send(count=10, queue_id=1)
    world.store.flush()
    world.clock.advance(2_000)
    world.store.flush_step()
    world.send(count=10)
    start = world.sent[29][0]
    world.kill()
    world.overwrite(newest(world), start % FILE, bytes(FILE - start % FILE))

    assert [lost.end for lost in world.open().missing] == [world.sent[-1][0]]
    world.store.accept_loss("a test")
    world.send()
    world.send(queue_id=1)

    assert (numbers(world)[-1], numbers(world, queue_id=1)[-1]) == (70, 10)


def test_without_the_log_end_an_older_copy_is_not_noticed(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its twin: sealed files alone do not know what was written last, and its numbers are used again."""
    monkeypatch.setattr(LogEndFile, "read", lambda *_: None)
    world.send(count=20)
    roll_back(world, 10)

    assert world.open().missing == []
    world.send()
    assert numbers(world) == list(range(21))


def test_a_damaged_last_message_is_a_loss_after_a_kill(world: StoreWorld) -> None:
    """No record follows it, so that it looks like the torn end of the log."""
    world.send(count=20)
    start, end = world.sent[-2][0], world.sent[-1][0]
    world.kill()
    spoil(world, start)

    assert world.open().missing == [LostRange(start, end, LossCause.TAIL)]


def test_a_newest_file_that_is_gone_is_missed_to_its_end_after_a_kill(world: StoreWorld) -> None:
    """Also without a recovery point that knows of it."""
    world.send(count=150)
    end = world.store.log.wrote
    name = newest(world)
    world.kill()
    world.disk.remove(world.path(name))

    report = world.open()

    assert [lost.end for lost in report.missing] == [end]
    assert report.missing[0].is_at_end


def test_an_older_copy_is_no_loss_after_a_power_cut(world: StoreWorld) -> None:
    """What a power cut leaves of small files may be newer than what it leaves of the log: that proves nothing."""
    world.send(count=20)
    before = roll_back(world, 10)
    world.clock.reboot(0)

    report = world.open()

    assert (report.end, report.missing) == (before, [])


def test_what_only_buffers_hold_is_no_loss() -> None:
    """The log goes on in them; and where they are gone, it is one."""
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
    """What is rot and what is missing, before anybody starts it."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=20)
    start, stop = world.sent[9][0], world.sent[10][0]
    before = roll_back(world, 10)
    spoil(world, start)
    twin, boot_id = ReadingTwin(world.disk), world.clock.boot_id()

    plan = RepairPlanner(twin, world.root, boot_id=boot_id).run()
    report = Verifier(twin, world.root, VerifyOrder(boot_id=boot_id)).run()

    assert plan.rotten == [(start, stop)]
    assert plan.missing == [LostRange(before, world.sent[-1][0], LossCause.TAIL)]
    texts = [finding.text for finding in report.findings.kept]
    assert any(f"of the log at {start}" in text for text in texts)
    assert any("are gone" in text for text in texts)
    opened = world.open()
    assert (plan.rotten, plan.missing) == (opened.damaged, opened.missing)
