"""`repair-plan` describes the next start; the tests compare it with a real start of the same bytes.

A *filler* is a log file without messages, or a unit of a queue that leads to no message, in the place of a lost one. A
buffer that does not continue the log is *set aside*: copied to a directory of the store, with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from gantry_broker.errors import StoreError
from gantry_broker.store.index_file import HEADER
from gantry_broker.store.inspect.repair import RepairPlan, RepairPlanner
from gantry_broker.store.inspect.summary import inspect_store
from gantry_broker.store.loss import LossCause
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_broker.store.settings import PoolSettings, StoreSettings
from gantry_store_files import UNIT
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_reading_disk import FaultyReadingDisk
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import overwrite_log

FILE = TINY.mapped_file_size_commit_log
Damage = Callable[[StoreWorld], None]


POOL = replace(TINY, pool=PoolSettings(is_enabled=True, buffers_count=4, path="/pool"))


def filled(settings: StoreSettings = TINY) -> StoreWorld:
    """Return a store with a recovery point in the middle, unflushed messages after it, and three topics."""
    world = StoreWorld(FaultyDisk(), "/data/store", settings)
    world.open()
    for i in range(100):
        world.send("orders", queue_id=i % 3)
        world.send("bills", queue_id=i % 2)
        world.store.commit_step()
    world.clock.advance(60_000)
    world.store.commit_step()
    world.store.flush_step()
    for i in range(40):
        world.send("orders", queue_id=i % 3)
        world.send("late")
    return world


def plan_next_start(world: StoreWorld) -> RepairPlan:
    disk = FaultyReadingDisk(world.disk, {"/pool": world.volume})
    return RepairPlanner(disk, world.root, boot_id=world.clock.boot_id()).run()


def assert_agreement(plan: RepairPlan, report: RecoveryReport) -> None:
    """Compare the fields that plan and recovery report have in common."""
    assert plan.refusal == ""
    assert (plan.is_clean, plan.read_from, plan.end) == (report.is_clean, report.start, report.end)
    assert plan.records == report.records
    assert (plan.cut_bytes, plan.cut_records) == (report.cut_bytes, report.cut_records)
    assert plan.damaged == report.damaged
    assert plan.lost_flushed_bytes == report.lost_flushed_bytes
    assert plan.missing == report.missing
    assert plan.queues_rebuilt == report.queues_rebuilt
    assert plan.is_index_rebuilt == report.is_index_rebuilt
    replayed = [one for one in plan.buffers if one.action == "replay"]
    assert sum(one.end - one.start for one in replayed) == report.replayed_bytes
    assert sum(one.records for one in replayed) == report.replayed_records
    assert sum(one.action == "set aside" for one in plan.buffers) == len(report.set_aside)


def record(world: StoreWorld, number: int) -> int:
    return sorted(world.records)[number]


def forget_file_sizes(world: StoreWorld) -> None:
    """Rewrite the recovery point as an older version did, without file sizes."""
    path = world.path("recovery-point.json")
    point = read_sealed(world.disk, path, RecoveryPoint)
    assert point is not None
    write_sealed(world.disk, path, msgspec.structs.replace(point, log_file_bytes=0, queue_file_bytes=0))


def roll_back_index(world: StoreWorld) -> None:
    """Let the newest index file of the recovery point have one entry less than when the point was written."""
    point = read_sealed(world.disk, world.path("recovery-point.json"), RecoveryPoint)
    assert point is not None
    assert point.index is not None
    header = point.index.header
    world.overwrite(f"index/{point.index.name}", 0, HEADER.pack(*header._replace(next_number=header.next_number - 1)))


DAMAGES: dict[str, Damage] = {
    "none": lambda world: None,
    "rot-before-the-point": lambda world: overwrite_log(world, record(world, 50) + 90, b"\0\0"),
    "rot-after-the-point": lambda world: overwrite_log(world, record(world, 230) + 90, b"\0\0"),
    "torn-end": lambda world: overwrite_log(world, record(world, 279) + 90, bytes(40)),
    "garbage-after-the-end": lambda world: overwrite_log(world, record(world, 279) + 400, b"garbage"),
    "no-point": lambda world: world.disk.remove(world.path("recovery-point.json")),
    "damaged-point": lambda world: world.disk.write_file(world.path("recovery-point.json"), b"x\n{}"),
    "older-point": forget_file_sizes,
    "no-checkpoint": lambda world: world.disk.remove(world.path("checkpoint")),
    "no-queues": lambda world: world.disk.remove_tree(world.path("consumequeue")),
    "no-queue": lambda world: world.disk.remove_tree(world.path("consumequeue/orders/1")),
    "short-queue": lambda world: world.overwrite("consumequeue/orders/1/00000000000000000000", 400, bytes(600)),
    "wrong-first-unit": lambda world: world.overwrite(
        "consumequeue/bills/0/00000000000000000000", 0, b"\0" * 7 + b"\1"
    ),
    "short-queue-file": lambda world: world.disk.write_file(
        world.path("consumequeue/late/0/00000000000000000000"), b"x"
    ),
    "no-index": lambda world: world.disk.remove_tree(world.path("index")),
    "no-newest-index-file": lambda world: world.disk.remove(
        world.path("index/" + world.disk.list(world.path("index"))[-1])
    ),
    "index-file-older-than-its-point": roll_back_index,
    "no-middle-log-file": lambda world: world.disk.remove(world.path(f"commitlog/{FILE:020d}")),
    "no-newest-log-file": lambda world: world.disk.remove(
        world.path("commitlog/" + world.disk.list(world.path("commitlog"))[-1])
    ),
    "no-oldest-log-file": lambda world: world.disk.remove(world.path(f"commitlog/{0:020d}")),
    "flush-failed": lambda world: world.disk.write_file(world.path("flush-failed"), b"100 00000000\n"),
    "point-not-proved": lambda world: overwrite_log(world, record(world, 199) + 4, b"\0\0"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
@pytest.mark.parametrize("end", ["clean", "killed"])
@pytest.mark.parametrize("settings", [TINY, POOL], ids=["plain", "pool"])
def test_start_does_what_was_planned(settings: StoreSettings, damage: str, end: str) -> None:
    """Plan and start agree on where reading begins, where the log ends, and what is cut, damaged, lost and rebuilt."""
    world = filled(settings)
    if end == "clean":
        world.close()
    else:
        world.kill()
    DAMAGES[damage](world)

    plan = plan_next_start(world)
    report = world.open()

    assert_agreement(plan, report)


def scramble_identity(world: StoreWorld) -> None:
    """Damage both copies of the identity."""
    for name in ("store.json", "store.json.bak"):
        world.disk.write_file(world.path(name), b"x")


def scramble_identity_and_lose_log_files(world: StoreWorld) -> None:
    """Scramble the identity, and remove all but the last log file."""
    scramble_identity(world)
    for name in sorted(world.disk.list(world.path("commitlog")))[:-1]:
        world.disk.remove(world.path(f"commitlog/{name}"))


REFUSALS: dict[str, Damage] = {
    "short-log-file": lambda world: world.disk.write_file(world.path(f"commitlog/{0:020d}"), b"x" * 100),
    "damaged-identity": scramble_identity,
    "damaged-identity-and-lost-log-files": scramble_identity_and_lose_log_files,
}


@pytest.mark.parametrize("damage", REFUSALS, ids=str)
def test_refused_start_is_planned_as_a_refusal(damage: str) -> None:
    """The plan contains the reason of the refusal."""
    world = filled()
    world.kill()
    REFUSALS[damage](world)

    plan = plan_next_start(world)
    summary = inspect_store(FaultyReadingDisk(world.disk), world.root)

    assert plan.refusal and f"The next start would fail: {plan.refusal}." == summary.next_start
    with pytest.raises(StoreError):
        world.open()


@pytest.mark.parametrize("seed", range(80))
def test_start_of_a_randomly_damaged_store_does_what_was_planned(seed: int) -> None:
    """Random damage to random files and buffers: the plan and the start agree, or both refuse."""
    chance = random.Random(seed)
    world = filled(chance.choice((TINY, POOL)))
    if chance.random() < 0.3:
        world.close()
    elif chance.random() < 0.5:
        world.kill()
    else:
        world.lose_power(seed)
    names = sorted(world.files("."))
    for _ in range(chance.randrange(1, 5)):
        name = chance.choice(names)
        size = world.disk.file_size(world.path(name))
        if size and "store.json" not in name and not name.endswith("lock"):
            position = chance.randrange(size)
            world.overwrite(name, position, chance.randbytes(min(chance.choice((1, 4, 30)), size - position)))

    for data in world.volume.pieces.values():
        if chance.random() < 0.3:
            data[chance.randrange(min(chance.choice((100, 1000)), len(data)))] ^= 1 << chance.randrange(8)

    plan = plan_next_start(world)
    try:
        report = world.open()
    except StoreError:
        assert plan.refusal, f"seed {seed}: the start refused, the plan did not"
        return

    assert_agreement(plan, report)


def test_lost_messages_are_counted_from_the_queues() -> None:
    """A damaged record is one message, and so is each message in the cut tail."""
    world = filled()
    world.close()
    overwrite_log(world, record(world, 279) + 90, b"\0\0")
    overwrite_log(world, record(world, 50) + 90, b"\0\0")
    world.disk.remove(world.path("recovery-point.json"))

    plan = plan_next_start(world)

    assert len(plan.damaged) == 1
    assert (plan.lost_messages, plan.cut_records) == (2, 0)
    assert not plan.is_lossless


@pytest.mark.parametrize(("begin", "end"), [(10, 21), (0, 5), (30, 47)], ids=["middle", "first", "before last"])
@pytest.mark.parametrize("is_last", [False, True], ids=["messages follow", "nothing follows"])
def test_fillers_of_lost_messages_do_not_cause_a_queue_rebuild(begin: int, end: int, is_last: bool) -> None:
    """A start trusts a queue whose first or last unit is a filler, and so does the plan."""
    world = filled()
    world.close()
    world.fill_units(begin, end)
    if is_last:
        world.fill_units(47, 48, place=record(world, 250))

    plan = plan_next_start(world)

    assert plan.queues_rebuilt == []
    assert_agreement(plan, world.open())


def test_fillers_of_lost_messages_are_not_counted_as_lost_again() -> None:
    """A filler has the offset of the message after it: only that message is in the damaged range."""
    world = filled()
    world.close()
    world.fill_units(10, 21)
    units = world.files("consumequeue/orders/0")[f"consumequeue/orders/0/{0:020d}"]
    overwrite_log(world, UNIT.unpack_from(units, 21 * UNIT.size)[0] + 90, b"\0\0")
    world.disk.remove(world.path("recovery-point.json"))

    plan = plan_next_start(world)

    assert len(plan.damaged) == 1
    assert plan.lost_messages == 1


def test_plan_for_a_store_in_use_assumes_a_crash_now() -> None:
    """The lock and the abort marker of the running broker are taken as left over: nothing is refused."""
    world = filled()

    plan = plan_next_start(world)

    assert (plan.is_clean, plan.refusal, plan.end) == (False, "", world.store.log.wrote)
    assert plan.records == 80
    assert plan.is_lossless


# -- write buffers -----------------------------------------------------------------------------------------------------


def test_messages_of_lost_buffers_are_planned_as_missing() -> None:
    """Plan and start know the written end of the log, within the same boot of the machine."""
    world = filled(POOL)
    world.kill()
    world.volume.pieces.clear()

    plan = plan_next_start(world)

    assert [lost.cause for lost in plan.missing] == [LossCause.TAIL] and not plan.is_lossless
    assert (
        RepairPlanner(FaultyReadingDisk(world.disk, {"/pool": world.volume}), world.root, boot_id="2").run().missing
        == []
    )
    assert_agreement(plan, world.open())


def test_messages_in_a_buffer_are_planned_to_be_replayed() -> None:
    """Messages that exist only in a buffer are not lost, and the plan names the buffer."""
    world = filled(POOL)
    wrote = world.store.log.wrote
    world.kill()

    plan = plan_next_start(world)

    assert plan.buffers_path == "/pool"
    [replay] = [one for one in plan.buffers if one.action == "replay"]
    assert (replay.end, replay.records) == (wrote, 80)
    assert (plan.end, plan.is_lossless) == (wrote, True)


def test_buffers_of_another_start_are_planned_to_be_set_aside() -> None:
    """An outdated buffer with data that the log lacks is named with the reason."""
    world = filled(POOL)
    world.kill()
    outdated = {name: bytearray(data) for name, data in world.volume.pieces.items()}
    world.volume.pieces = {}
    world.open()
    world.send("orders", 3)
    world.kill()
    world.volume.pieces = outdated

    plan = plan_next_start(world)
    report = world.open()

    assert {one.action for one in plan.buffers} == {"set aside"}
    assert "of generation 1 of the store" in plan.buffers[0].reason
    assert_agreement(plan, report)


def test_buffers_of_a_store_without_an_identity_are_planned_to_be_set_aside() -> None:
    """Their owner is unknown, so a start replays none of them, and the plan agrees."""
    world = filled(POOL)
    world.kill()
    for name in ("store.json", "store.json.bak"):
        world.disk.remove(world.path(name))

    disk = FaultyReadingDisk(world.disk, {"/pool": world.volume})
    plan = RepairPlanner(disk, world.root, boot_id=world.clock.boot_id()).run("/pool")
    report = world.open()

    assert {one.action for one in plan.buffers if one.end > one.start} == {"set aside"}
    assert_agreement(plan, report)


@pytest.mark.parametrize("number", [0, 1], ids=["oldest", "middle"])
def test_log_with_restored_files_is_planned_to_be_read_completely(number: int) -> None:
    """A start without those files may have dropped their units and entries, so the whole log is read."""
    world = filled()
    world.close()
    path = world.path(f"commitlog/{number * FILE:020d}")
    data = world.disk.read_file(path)
    world.disk.remove(path)
    world.open()
    world.close()
    world.disk.write_file(path, data)

    next_start = inspect_store(FaultyReadingDisk(world.disk), world.root).next_start
    plan = plan_next_start(world)
    report = world.open()

    assert plan.is_full and plan.is_lossless
    assert "missing files have reappeared" in next_start
    assert (plan.read_from, plan.end, plan.records) == (report.start, report.end, report.records)
    assert (plan.queues_rebuilt, plan.is_index_rebuilt) == (report.queues_rebuilt, report.is_index_rebuilt)


def test_missing_filler_is_not_a_restored_file() -> None:
    """A start creates the filler again, and trusts what the previous start has built."""
    world = filled()
    world.close()
    path = world.path(f"commitlog/{FILE:020d}")
    for _ in range(2):
        world.disk.remove(path)
        world.open()
        world.close()
    world.disk.remove(path)

    plan = plan_next_start(world)
    report = world.open()

    assert not plan.is_full
    assert_agreement(plan, report)


def test_missing_buffer_directory_is_reported() -> None:
    """Messages in the missing buffers are lost with the directory."""
    world = filled(POOL)
    world.kill()

    plan = RepairPlanner(FaultyReadingDisk(world.disk), world.root).run()

    assert (plan.buffers_path, plan.buffers_fault) == ("/pool", "there is no such directory here")
