"""Missing small files are reported if they must have existed, and only then."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest

from gantry_broker.store.checkpoint import CheckpointContent, encode_checkpoint
from gantry_broker.store.data_completeness import DataCompleteness
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import StoreWorld, make_world

IDENTITY = ("store.json", "store.json.bak")
OURS = (*IDENTITY, "recovery-point.json")


class Killed(BaseException):
    """The process has ended here."""


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    made = make_world("faulty", tmp_path)
    made.open()
    made.send(count=100)
    return made


def remove(world: StoreWorld, *names: str) -> None:
    for name in names:
        world.disk.remove(world.path(name))


def report_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return level and path of each report of a missing file."""
    return [
        (record.levelname, str(record.__dict__["path"]).rpartition("/")[2])
        for record in caplog.records
        if record.levelno >= logging.WARNING and "missing" in record.getMessage()
    ]


@pytest.mark.parametrize("is_clean", [True, False])
def test_missing_identity_and_copy_is_an_error(
    world: StoreWorld, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Recovery point and checkpoint prove that it was written. All messages are served nevertheless."""
    world.store.flush()
    world.clock.advance(1 << 20)
    world.store.flush_step()
    if is_clean:
        world.close()
    else:
        world.kill()
    remove(world, *IDENTITY)

    world.open()

    assert report_lines(caplog) == [("ERROR", "store.json")]
    assert world.bodies() == world.sent_bodies()
    caplog.clear()
    world.close()
    world.open()
    assert not report_lines(caplog), "expected no report about the new identity"


@pytest.mark.parametrize("name", ["recovery-point.json", "checkpoint"])
def test_missing_file_of_clean_stop_is_a_warning(
    world: StoreWorld, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The start warns and loses nothing. Without the recovery point it reads the whole log."""
    world.close()
    remove(world, name)

    world.open()

    assert report_lines(caplog) == [("WARNING", name)]
    assert world.bodies() == world.sent_bodies()


def test_store_of_rocketmq_has_no_missing_files(world: StoreWorld, caplog: pytest.LogCaptureFixture) -> None:
    """It has a checkpoint without a seal, and none of Gantry's files."""
    world.close()
    remove(world, *OURS)
    facts = encode_checkpoint(CheckpointContent(1, 2, 3, 4, 5))
    world.disk.write_file(world.path("checkpoint"), facts[:256] + bytes(4096 - 256))

    world.open()

    assert not report_lines(caplog)


def test_interrupted_start_has_no_missing_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """First start and stop are killed before each operation on the disk, every second time with a power loss."""
    for count in itertools.count():
        disk = FaultyDisk()
        world, left = StoreWorld(disk, "/data/store"), count

        def operate(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        disk.on_operation = operate
        try:
            world.open()
            world.send()
            world.close()
        except Killed:
            is_done = False
        else:
            is_done = True
        disk.on_operation = lambda operation, path: None
        disk.kill()
        if count % 2:
            disk.lose_unsynced()
        caplog.clear()
        StoreWorld(disk, "/data/store").open()
        assert not report_lines(caplog), count
        if is_done:
            assert count > 20
            return


@pytest.mark.parametrize(
    ("files", "is_reported"),
    [(["store.json", "role.json"], True), (["retention-clock.json"], True), (["store.json"], False), ([], False)],
)
def test_missing_record_of_completeness_is_reported(
    files: list[str], is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker writes completeness.json before role.json and retention-clock.json; tools and RocketMQ write neither."""
    world = make_world("faulty", Path("/"))
    report = world.open()
    world.send()
    world.close()
    report = world.open()
    for name in files:
        world.disk.write_file(world.path(name), b"{}")
    known = DataCompleteness(world.disk, world.root, "machine")
    known.load()

    known.record_start(report, world.store.pools.status)

    assert known.is_complete is None
    reported = [
        record.__dict__["path"]
        for record in caplog.records
        if record.getMessage().startswith("data completeness is unknown")
    ]
    assert reported == [world.path("completeness.json")] * is_reported
