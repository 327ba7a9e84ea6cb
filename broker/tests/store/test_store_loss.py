"""Missing durable log files are reported, their offsets are not reused, and retention is never taken for a loss.

Sealed files (``store.json``, recovery point, checkpoint) record which range of the log must exist. A start puts a
*filler* in the place of a missing file: one blank record of its size, which readers skip. In a consume queue, fillers
are units that lead to no message.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from zlib import crc32

import pytest

from gantry_broker.errors import StoreFull
from gantry_broker.ha.store_log import StoreReader
from gantry_broker.store import crash_points
from gantry_broker.store.checkpoint import CheckpointContent, decode_checkpoint, encode_checkpoint
from gantry_broker.store.copying import CopyRefused
from gantry_broker.store.fillers import filler_head
from gantry_broker.store.identity import Epoch
from gantry_broker.store.loss import (
    AcceptedLoss,
    LossCause,
    LossRecord,
    LostRange,
    RecordedRange,
    describe_missing,
    find_missing,
    missing_bytes,
    recorded_range,
)
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.settings import PoolSettings
from gantry_testing.log_head import remove_before as remove_head
from gantry_testing.store_world import StoreWorld, make_world

SIZE = 16 * 1024
"""The size of a log file in bytes."""


def segments(world: StoreWorld) -> list[str]:
    """Return the names of all log files, the oldest first."""
    return sorted(world.disk.list(world.path("commitlog")))


def delete(world: StoreWorld, names: list[str]) -> None:
    for name in names:
        world.disk.remove(world.path(f"commitlog/{name}"))
    world.disk.sync_directory(world.path("commitlog"))


def filled_store(kind: str, tmp_path: Path, *, pool: bool = False) -> StoreWorld:
    """Create a store whose log has four files, the last one partly filled."""
    world = make_world(kind, tmp_path)
    if pool:
        world.settings = dataclasses.replace(
            world.settings, pool=PoolSettings(is_enabled=True, path="/dev/shm/pool", buffers_count=6)
        )
    world.open()
    while world.store.log.wrote < 3 * SIZE + SIZE // 2:
        world.send("orders", queue_id=len(world.sent) // 2 % 2)
        world.send("bills")
        world.store.commit_step()
    world.store.flush()
    world.clock.advance(60_000)
    world.store.flush_step()
    return world


def stop(world: StoreWorld, *, is_clean: bool) -> None:
    """Stop the store cleanly, or kill its process."""
    world.close() if is_clean else world.kill()


TORN_TAIL = "commit log had a torn tail, which was cut off"
CASES: dict[str, tuple[Callable[[list[str]], list[str]], LossCause]] = {
    "newest": (lambda names: names[-1:], LossCause.TAIL),
    "two newest": (lambda names: names[-2:], LossCause.TAIL),
    "all": (lambda names: names, LossCause.ALL),
    "first": (lambda names: names[:1], LossCause.HEAD),
    "two first": (lambda names: names[:2], LossCause.HEAD),
    "middle": (lambda names: names[1:2], LossCause.MIDDLE),
}


@pytest.mark.verify(quick=14)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("pool", [False, True], ids=["files", "pool"])
@pytest.mark.parametrize("case", CASES)
def test_lost_log_files_are_reported_and_their_offsets_never_reused(
    kind: str, tmp_path: Path, case: str, pool: bool, is_clean: bool
) -> None:
    """Missing ranges are reported until they are accepted; then log and queues continue after used offsets."""
    world = filled_store(kind, tmp_path, pool=pool)
    end, epochs = world.store.log.wrote, world.store.identity.epochs
    ends = {
        (t, q): world.store.queues.get_or_create(t, q).end for t, qs in world.store.queues.topics().items() for q in qs
    }
    stop(world, is_clean=is_clean)
    if pool and not is_clean:
        world.volume.pieces.clear()  # the memory of the buffers is lost
    pick, cause = CASES[case]
    gone = pick(segments(world))
    delete(world, gone)

    for _ in range(2):  # a second start must report the same as the first
        report = world.open()
        assert [lost.cause for lost in report.missing] == [cause], report
        lost = report.missing[0]
        assert lost.start <= int(gone[0]) and min(int(gone[-1]) + SIZE, end) == lost.end
        assert lost.start == 0 if case == "all" else lost.start == int(gone[0])
        assert report.lost_flushed_bytes >= lost.bytes_count
        assert world.store.identity.epochs == epochs
        for body in world.bodies("bills"):
            assert body in world.sent_bodies("bills")
        world.close()
    world.open()
    world.store.accept_loss("a test")
    assert world.store.losses.record.missing == []
    assert [(one.start, one.end) for one in world.store.losses.record.accepted] == [(lost.start, lost.end)]
    assert world.store.log.wrote >= end
    before = set(world.bodies("bills"))
    physical, offsets = world.append([world.draft("bills", 0), world.draft("orders", 1)])
    assert min(physical) >= end
    assert offsets[0] >= ends["bills", 0] and offsets[1] >= ends["orders", 1]
    assert set(world.bodies("bills")) > before

    for is_next_clean in (True, False, True):
        stop(world, is_clean=is_next_clean)
        report = world.open()
        assert report.missing == [] and report.damaged == []
        assert world.messages("bills")[-1].queue_offset == offsets[0]
        assert set(world.bodies("bills")) > before


@pytest.mark.parametrize("point", [None, crash_points.MID_POINT])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_offsets_of_queue_that_ended_in_accepted_hole_are_never_reused(
    kind: str, tmp_path: Path, point: str | None, is_clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest used file is missing and the preallocated one exists, so the loss is a hole in the middle."""
    world = filled_store(kind, tmp_path)
    ends = {
        queue: world.store.queues.get_or_create(*queue).end for queue in (("bills", 0), ("orders", 0), ("orders", 1))
    }
    world.close()
    names = segments(world)
    delete(world, names[3:])
    file = world.disk.create(world.path(f"commitlog/{4 * SIZE:020d}"), SIZE)
    file.close()

    for _ in range(2):  # the second start has less in the recovery point than the first
        assert [lost.cause for lost in world.open().missing] == [LossCause.MIDDLE]
        stop(world, is_clean=is_clean)
    world.open()

    def end_at_point(name: str) -> None:
        if name == point:
            raise ProcessEnded(name)

    monkeypatch.setattr(crash_points, "hit", end_at_point)
    try:
        world.store.accept_loss("a test")
    except ProcessEnded:
        assert point is not None
    else:
        assert point is None, "the crash point was not reached"
    monkeypatch.undo()
    stop(world, is_clean=is_clean) if point is None else world.kill()
    world.open()
    world.store.accept_loss("a test")

    assert world.store.losses.record.missing == []
    for (topic, queue_id), end in ends.items():
        _, [offset] = world.append([world.draft(topic, queue_id)])
        assert offset >= end, (topic, queue_id)
    assert world.messages("bills")[-1].queue_offset >= ends["bills", 0]


@pytest.mark.parametrize("pool", [False, True], ids=["files", "pool"])
@pytest.mark.parametrize(
    ("refused", "is_accepted"),
    [("consumequeue", False), (f"commitlog/{3 * SIZE:020d}", False), (f"commitlog/{4 * SIZE:020d}", True)],
    ids=["queue fillers", "log filler", "next file"],
)
def test_log_can_be_appended_to_after_acceptance_found_a_full_disk(
    tmp_path: Path, refused: str, is_accepted: bool, pool: bool
) -> None:
    """Appends succeed as soon as there is space for them, where the log ends, whether the loss was accepted or not."""
    world = filled_store("faulty", tmp_path, pool=pool)
    world.close()
    delete(world, segments(world)[2:])
    world.open()
    wrote = world.store.log.wrote

    def operate(operation: str, path: str) -> None:
        if operation in ("create", "reserve") and refused in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    world.faulty_disk.on_operation = operate
    with nullcontext() if is_accepted else pytest.raises(StoreFull):
        world.store.accept_loss("a test")
    if is_accepted:
        with pytest.raises(StoreFull):
            world.send("rest")
    world.faulty_disk.on_operation = lambda operation, path: None
    world.clock.advance(world.settings.space_retry_interval_ms)

    world.send("rest", 150)
    assert world.store.log.wrote > wrote + SIZE
    assert world.bodies("rest") == world.sent_bodies("rest")
    world.store.flush()
    world.kill()
    world.open()
    assert world.bodies("rest") == world.sent_bodies("rest")


@pytest.mark.parametrize("names", [slice(3, None), slice(2, 3), slice(2, None)], ids=["newest", "middle", "two"])
def test_offsets_after_the_last_recovery_point_are_never_reused(kind: str, tmp_path: Path, names: slice) -> None:
    """After a kill the queue files have more offsets than the recovery point, and the log lost the messages."""
    world = make_world(kind, tmp_path)
    world.open()
    world.send("bills", 3)
    world.store.flush()
    world.clock.advance(60_000)
    world.store.flush_step()
    while world.store.log.wrote < 3 * SIZE - 2_000:
        world.send("bills")
        world.send("orders", queue_id=len(world.sent) // 2 % 2)
    while world.store.log.wrote < 3 * SIZE + SIZE // 2:
        world.send("rest")
    world.store.flush()
    ends = {
        queue: world.store.queues.get_or_create(*queue).end
        for queue in (("bills", 0), ("orders", 0), ("orders", 1), ("rest", 0))
    }
    # The recovery point is not renewed; the checkpoint records that more was durable.
    checkpoint = decode_checkpoint(world.disk.read_file(world.path("checkpoint")))
    facts = checkpoint._replace(flushed=world.store.log.wrote, confirmed=world.store.log.wrote)
    world.kill()
    world.disk.write_file(world.path("checkpoint"), encode_checkpoint(facts))
    delete(world, segments(world)[names])

    for _ in range(2):
        assert world.open().missing != []
        world.close()
    world.open()
    world.store.accept_loss("a test")

    for (topic, queue_id), end in ends.items():
        _, [offset] = world.append([world.draft(topic, queue_id)])
        assert offset >= end, (topic, queue_id)


@pytest.mark.parametrize("case", CASES)
def test_queues_rebuilt_from_log_with_accepted_hole_are_identical(tmp_path: Path, case: str) -> None:
    """The fillers of lost messages in a queue can be derived from the log, too."""
    world = filled_store("faulty", tmp_path)
    world.close()
    delete(world, CASES[case][0](segments(world)))
    world.open()
    world.store.accept_loss("a test")
    world.send("bills", 3)
    world.send("orders", 3)
    expected = {queue: world.bodies("orders", queue) for queue in (0, 1)}, world.bodies("bills")
    world.kill()
    for name in world.disk.list(world.path("consumequeue/bills")):
        world.disk.remove_tree(world.path(f"consumequeue/bills/{name}"))

    world.open()

    assert ({queue: world.bodies("orders", queue) for queue in (0, 1)}, world.bodies("bills")) == expected


def test_older_copy_of_the_newest_file_is_a_loss(tmp_path: Path) -> None:
    """A volume that was rolled back ends in the middle of a file, which is a loss."""
    world = filled_store("faulty", tmp_path)
    name = segments(world)[-1]
    old = world.disk.read_file(world.path(f"commitlog/{name}"))
    earlier = world.store.log.wrote
    world.send("bills", 5)
    end = world.store.log.wrote
    world.close()
    world.overwrite(f"commitlog/{name}", 0, old)

    report = world.open()

    assert report.missing == [LostRange(earlier, end, LossCause.TAIL)]
    assert world.store.accept_loss("a test") == 4 * SIZE


@pytest.mark.parametrize("case", CASES)
def test_lost_log_file_is_not_logged_as_a_torn_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """The warning about a torn tail has administrators check the disk; a lost file has a message of its own."""
    world = filled_store("faulty", tmp_path)
    world.close()
    delete(world, CASES[case][0](segments(world)))

    world.open()

    messages = [record.message for record in caplog.records]
    assert "durable log data is missing" in messages
    assert TORN_TAIL not in messages


@pytest.mark.parametrize(
    ("cut_bytes", "lost_flushed_bytes", "has_missing", "is_logged"),
    [(0, 0, False, False), (9, 0, False, True), (0, 9, False, True), (9, 9, True, True), (0, 9, True, False)],
)
def test_torn_tail_is_logged_when_bytes_were_cut_off_or_lost_without_a_range(
    caplog: pytest.LogCaptureFixture, cut_bytes: int, lost_flushed_bytes: int, has_missing: bool, is_logged: bool
) -> None:
    """A start logs each kind of loss once."""
    missing = [LostRange(0, 9, LossCause.HEAD)] if has_missing else []

    RecoveryReport(
        is_clean=False, start=0, cut_bytes=cut_bytes, lost_flushed_bytes=lost_flushed_bytes, missing=missing
    ).log_summary()

    assert (TORN_TAIL in [record.message for record in caplog.records]) is is_logged


def test_emptied_newest_file_is_a_loss(tmp_path: Path) -> None:
    """A file without bytes looks like one that was being created; the sealed files prove the loss."""
    world = filled_store("faulty", tmp_path)
    end = world.store.log.wrote
    world.close()
    name = segments(world)[-1]
    delete(world, [name])
    world.disk.create(world.path(f"commitlog/{name}"), 0).close()

    assert world.open().missing == [LostRange(3 * SIZE, end, LossCause.TAIL)]


@pytest.mark.parametrize("name", ["recovery-point.json", "checkpoint"])
def test_one_sealed_file_proves_a_loss(tmp_path: Path, name: str) -> None:
    """If one of the small files is deleted together with the log, the others still prove the loss."""
    world = filled_store("faulty", tmp_path)
    end = world.store.log.wrote
    world.close()
    world.disk.remove(world.path(name))
    delete(world, segments(world)[-1:])

    assert [lost.end for lost in world.open().missing] == [end]


def test_restored_file_ends_the_loss(kind: str, tmp_path: Path) -> None:
    """A restored file fits, since at most a filler was created in its place."""
    for case in ("newest", "middle", "first", "two first"):
        world = filled_store(kind, tmp_path / case)
        world.close()
        gone = CASES[case][0](segments(world))
        kept = {name: world.disk.read_file(world.path(f"commitlog/{name}")) for name in gone}
        delete(world, gone)
        assert world.open().missing
        for topic, queues in world.store.queues.topics().items():
            for queue_id in queues:
                world.messages(topic, queue_id)  # reading detects units that lead to no message
        world.repair()
        world.close()

        for name, data in kept.items():
            if name in segments(world):
                delete(world, [name])
            file = world.disk.create(world.path(f"commitlog/{name}"), len(data), reserve=len(data))
            file.pwrite(data, 0)
            file.sync()
            file.close()
        report = world.open()

        assert report.missing == [] and world.store.losses.record == LossRecord()
        assert world.bodies("bills") == world.sent_bodies("bills")
        assert world.bodies("orders", 1) == world.sent_bodies("orders", 1)
        assert len(world.store.keys.records("bills", unique_key(world, 0), 10, 0, 1 << 60)[0]) == 1


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_loss_that_retention_passed_can_be_accepted(kind: str, tmp_path: Path, is_clean: bool) -> None:
    """The filler of a lost file expires before the acceptance: it is not created again before the log's begin."""
    world = filled_store(kind, tmp_path)
    world.close()
    delete(world, segments(world)[1:2])
    assert [lost.cause for lost in world.open().missing] == [LossCause.MIDDLE]
    remove_head(world.store, 2 * SIZE)
    assert segments(world)[0] == f"{2 * SIZE:020d}"

    world.store.accept_loss("a test")

    assert segments(world)[0] == f"{2 * SIZE:020d}"
    world.send("bills")
    stop(world, is_clean=is_clean)
    report = world.open()
    assert report.missing == [] and world.store.losses.record.missing == []
    assert world.bodies("bills")[-1] == world.sent_bodies("bills")[-1]


def unique_key(world: StoreWorld, number: int) -> str:
    """Return the unique key of the message of `bills` with this number."""
    return world.messages("bills")[number].properties["UNIQ_KEY"]


def test_new_loss_must_be_accepted_again(tmp_path: Path) -> None:
    """An acceptance is valid for the ranges that were missing then, and for no later loss."""
    world = filled_store("faulty", tmp_path)
    world.close()
    delete(world, segments(world)[-1:])
    world.open()
    world.store.accept_loss("a test")
    world.send("bills", 5)
    end = world.store.log.wrote
    world.close()
    delete(world, segments(world)[-1:])

    report = world.open()

    assert report.missing == [LostRange(4 * SIZE, end, LossCause.TAIL)]
    assert len(world.store.losses.record.accepted) == 1


# -- no false alarms ---------------------------------------------------------------------------------------------------


class ProcessEnded(Exception):
    """The process has ended at a crash point."""


@pytest.mark.parametrize(
    "point", [crash_points.BEFORE_UNLINK, crash_points.MID_UNLINK, crash_points.MID_POINT, crash_points.MID_CHECKPOINT]
)
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
def test_retention_is_never_taken_for_a_loss(
    tmp_path: Path, point: str, power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a death at any crash point of the deletion of the oldest files, a start reports no loss."""
    world = filled_store("faulty", tmp_path)

    def end_at_point(name: str) -> None:
        if name == point:
            raise ProcessEnded(name)

    monkeypatch.setattr(crash_points, "hit", end_at_point)
    try:
        remove_head(world.store, 2 * SIZE)
        world.clock.advance(60_000)
        world.store.flush_step()
    except ProcessEnded:
        pass
    else:
        pytest.fail("the crash point was not reached")
    monkeypatch.undo()
    world.lose_power() if power else world.kill()

    report = world.open()

    assert report.missing == [] and report.lost_flushed_bytes == 0
    assert world.bodies("bills")[-1] == world.sent_bodies("bills")[-1]


def test_without_the_record_before_the_deletion_retention_looks_like_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the record in the checkpoint a crash right after the deletion is a false alarm."""
    world = filled_store("faulty", tmp_path)
    monkeypatch.setattr(type(world.store.removal), "_record_begin", lambda removal, begin: None)
    remove_head(world.store, 2 * SIZE)
    world.kill()

    assert [lost.cause for lost in world.open().missing] == [LossCause.HEAD]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_restart_reports_no_loss(kind: str, tmp_path: Path, is_clean: bool) -> None:
    """Neither the first start after a stop nor the next one reports a loss."""
    world = filled_store(kind, tmp_path)
    for _ in range(3):
        stop(world, is_clean=is_clean)
        assert world.open().missing == []
        world.send("bills", 5)
    assert not world.disk.exists(world.path("loss.json"))


@pytest.mark.parametrize(
    "point", [None, crash_points.MID_POINT, crash_points.MID_CHECKPOINT, crash_points.MID_TRUNCATION]
)
def test_cut_is_never_taken_for_a_loss(tmp_path: Path, point: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slave cuts off was never confirmed, so a death at any point of the cut is no loss."""
    world = filled_store("faulty", tmp_path)
    cut = world.messages("bills")[20].physical_offset

    def end_at_point(name: str) -> None:
        if name == point:
            raise ProcessEnded(name)

    monkeypatch.setattr(crash_points, "hit", end_at_point)
    try:
        world.store.truncate(cut)
    except ProcessEnded:
        assert point is not None
    else:
        assert point is None, "the crash point was not reached"
    monkeypatch.undo()
    world.kill()

    assert world.open().missing == []


def discard_log_and_end(world: StoreWorld, last: int) -> bool:
    """Restart the log in a process that ends at its operation number ``last``. Return whether it finished."""
    count = 0

    def end_process(operation: str, path: str) -> None:
        nonlocal count
        count += 1
        if count >= last:
            raise ProcessEnded(operation)

    world.faulty_disk.on_operation = end_process
    try:
        world.store.discard_log(8 * SIZE, [Epoch(7, 0)])
    except ProcessEnded:
        return False
    finally:
        world.faulty_disk.on_operation = lambda operation, path: None
    return True


def test_restarted_log_is_never_taken_for_a_loss(tmp_path: Path) -> None:
    """After a death at any disk operation of the restart of the log, a start reports no loss."""
    for last in range(1, 400):
        world = filled_store("faulty", tmp_path)
        is_over = discard_log_and_end(world, last)
        world.kill()
        assert world.open().missing == [], f"after {last} operations"
        if is_over:
            return
    pytest.fail("it never came to its end")


def test_store_of_an_earlier_version_raises_no_alarm(tmp_path: Path) -> None:
    """Its small files record less, and nothing is reported as missing."""
    world = filled_store("faulty", tmp_path)
    remove_head(world.store, SIZE)
    world.close()
    path = world.path("checkpoint")
    facts = decode_checkpoint(world.disk.read_file(path))
    world.disk.write_file(path, encode_checkpoint(facts._replace(begin=None)))
    for name in ("store.json", "store.json.bak"):
        body = json.loads(world.disk.read_file(world.path(name)).partition(b"\n")[2])
        del body["log_end"]
        data = json.dumps(body).encode()
        world.disk.write_file(world.path(name), b"%08x\n" % crc32(data) + data)

    assert world.open().missing == []
    assert world.bodies("bills") == world.sent_bodies("bills")[-len(world.bodies("bills")) :]


def test_store_of_rocketmq_raises_no_alarm(tmp_path: Path) -> None:
    """A store of RocketMQ has none of Gantry's sealed files, and its log may begin anywhere."""
    world = filled_store("faulty", tmp_path)
    world.close()
    for name in ("store.json", "store.json.bak", "recovery-point.json"):
        world.disk.remove(world.path(name))
    facts = encode_checkpoint(CheckpointContent(1, 2, 3, 4, 5))
    world.disk.write_file(world.path("checkpoint"), facts[:256] + bytes(4096 - 256))
    delete(world, segments(world)[:1])

    assert world.open().missing == []


# -- the pure part -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "begin", "end", "expected"),
    [
        (RecordedRange(0, 100), 0, 100, []),
        (RecordedRange(0, 100), 0, 130, []),
        (RecordedRange(40, 100), 0, 100, []),
        (RecordedRange(None, 100), 60, 100, []),
        (RecordedRange(0, 100), 40, 100, [LostRange(0, 40, LossCause.HEAD)]),
        (RecordedRange(0, 100), 0, 80, [LostRange(80, 100, LossCause.TAIL)]),
        (RecordedRange(0, 100), 40, 80, [LostRange(0, 40, LossCause.HEAD), LostRange(80, 100, LossCause.TAIL)]),
        (RecordedRange(20, 100), 0, 0, [LostRange(20, 100, LossCause.ALL)]),
        (RecordedRange(None, 100), 0, 0, [LostRange(0, 100, LossCause.ALL)]),
        (RecordedRange(100, 100), 0, 0, []),
        (RecordedRange(0, 0), 0, 0, []),
    ],
)
def test_missing_ranges_follow_from_the_recorded_range(
    recorded: RecordedRange, begin: int, end: int, expected: list[LostRange]
) -> None:
    """The log must have at least the range that sealed files have recorded."""
    assert find_missing(recorded, begin=begin, end=end) == expected
    assert missing_bytes(expected) == sum(lost.end - lost.start for lost in expected)


def test_accepted_hole_is_not_missing() -> None:
    """An accepted hole is not reported as missing, and another hole is."""
    record = LossRecord(accepted=[AcceptedLoss(0, 40, LossCause.HEAD, 1)])

    assert find_missing(RecordedRange(0, 100), begin=40, end=100, record=record) == []
    assert find_missing(RecordedRange(0, 100), begin=60, end=100, record=record) == [LostRange(0, 60, LossCause.HEAD)]


def test_recorded_loss_keeps_its_range_expected() -> None:
    """loss.json keeps the range, since a start overwrites every other file that recorded it."""
    record = LossRecord(missing=[LostRange(0, 40, LossCause.HEAD), LostRange(80, 100, LossCause.TAIL)])
    checkpoint = CheckpointContent(flushed=80, begin=40)

    assert recorded_range(None, checkpoint, None, record) == RecordedRange(0, 100)
    assert "60 bytes" in describe_missing(record.missing)


def test_begin_of_the_log_is_sealed_in_the_checkpoint() -> None:
    """A change of RocketMQ's five numbers breaks both seals."""
    facts = CheckpointContent(1, 2, 3, 4, 5, 600, True, 70)
    data = encode_checkpoint(facts)

    assert decode_checkpoint(data) == facts
    changed = decode_checkpoint(b"\x00" * 7 + b"\x09" + data[8:])
    assert (changed.flushed, changed.begin, changed.is_ours) == (0, None, False)
    assert decode_checkpoint(encode_checkpoint(facts._replace(begin=None))).begin is None


# -- slaves ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["newest", "two newest", "middle"])
@pytest.mark.parametrize("bytes_max", [1, 5_000, 1 << 20], ids=["tiny", "parts", "whole"])
@pytest.mark.parametrize("ending", ["runs", "reconnects", "killed", "promoted"])
def test_accepted_hole_is_copied_to_slaves(tmp_path: Path, case: str, bytes_max: int, ending: str) -> None:
    """It is sent in parts, since it may be as large as a file, and the copy equals the master's log byte for byte."""
    master = filled_store("faulty", tmp_path)
    master.close()
    delete(master, CASES[case][0](segments(master)))
    master.open()
    master.store.accept_loss("a test")
    master.send("bills", 3)
    slave = make_world("faulty", tmp_path)
    slave.open()
    slave.store.discard_log(0, master.store.identity.epochs)
    copier = slave.store.start_copying()
    shown = part = 0
    while (offset := slave.store.log.wrote) < master.store.log.wrote:
        copier.append(StoreReader(master.store).read_verified(offset, bytes_max), offset)
        part += 1
        if part % 7 == 0:
            shown = slave.store.log.wrote
        while not copier.dispatch(shown):
            pass
        if ending == "reconnects" and part % 3 == 0:
            copier = slave.store.start_copying()
        if ending == "killed" and part % 5 == 0:
            slave.kill()
            assert slave.open().missing == []
            copier = slave.store.start_copying()
    if ending == "promoted":
        copier.hold_undispatched()
        slave.store.dispatcher.release(slave.store.log.wrote, keep_holding=False)
    while ending != "promoted" and not copier.dispatch(slave.store.log.wrote):
        pass

    assert slave.bodies("bills") == master.bodies("bills")
    assert {q: slave.bodies("orders", q) for q in (0, 1)} == {q: master.bodies("orders", q) for q in (0, 1)}
    slave.close()
    master.close()
    logs = [world.files("commitlog") for world in (master, slave)]
    assert all(logs[0].get(name, bytes(SIZE)) == data for name, data in logs[1].items())
    assert slave.open().missing == []


def test_invalid_parts_of_a_blank_record_are_refused(tmp_path: Path) -> None:
    """Bytes after the head of a large blank record must be zeros, and no more of them than its file has."""
    slave = make_world("faulty", tmp_path)
    slave.open()
    slave.store.discard_log(0, [Epoch(7, 0)])
    copier = slave.store.start_copying()
    head = filler_head(SIZE, is_accepted=True)
    copier.append(head + bytes(100), 0)
    at = slave.store.log.wrote

    for data in (b"\0" * 50 + b"x", bytes(SIZE)):
        with pytest.raises(CopyRefused):
            copier.append(data, at)
    assert copier.append(bytes(SIZE - at), at) == SIZE
