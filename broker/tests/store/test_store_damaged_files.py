"""Missing files, files of a wrong size, and directories in their place: derived files are rebuilt, log files named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gantry_broker.errors import LogFileDamaged, StoreMismatch
from gantry_broker.ports import RealDisk
from gantry_broker.store.existing_sizes import with_existing_file_sizes
from gantry_broker.store.settings import StoreSettings
from gantry_testing.store_world import TINY, StoreWorld, make_world

COUNT = 240


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """Return a store with several files of each kind."""
    made = make_world(request.param, tmp_path)
    made.open()
    for number in range(COUNT):
        made.append([made.draft("orders" if number % 2 else "bills", keys=f"key-{number}")])
        made.clock.advance(1)
    made.store.flush()
    made.clock.advance(60_000)
    made.store.flush_step()
    return made


def stop(world: StoreWorld, *, is_clean: bool) -> None:
    if is_clean:
        world.close()
    else:
        world.store.flush()
        world.kill()


def resize(world: StoreWorld, path: str, size: int) -> None:
    """Truncate a file, or append foreign bytes to it."""
    data = world.disk.read_file(path)[:size].ljust(size, b"\x5a")
    world.disk.remove(path)
    file = world.disk.create(path, size, reserve=size)
    if size:
        file.pwrite(data, 0)
    file.sync()
    file.close()


def fill(world: StoreWorld, path: str, size: int) -> None:
    """Set the size of a file as ``truncate -s`` does, with zeros after its bytes."""
    data = world.disk.read_file(path)[:size] if world.disk.exists(path) else b""
    if world.disk.exists(path):
        world.disk.remove(path)
    file = world.disk.create(path, size, reserve=size)
    if data:
        file.pwrite(data, 0)
    file.sync()
    file.close()


def truncate(world: StoreWorld, path: str) -> None:
    resize(world, path, world.disk.file_size(path) // 3)


def empty(world: StoreWorld, path: str) -> None:
    resize(world, path, 0)


def enlarge(world: StoreWorld, path: str) -> None:
    resize(world, path, world.disk.file_size(path) + 100)


def put_a_directory(world: StoreWorld, path: str) -> None:
    world.disk.remove(path)
    world.disk.make_directory(path)


def truncate_between_records(world: StoreWorld, path: str) -> None:
    base = int(path.rpartition("/")[2])
    resize(world, path, next(message.end for message in world.sent if message.end > base + 5000) - base)


DAMAGES: list[Callable[[StoreWorld, str], None]] = [truncate, empty, enlarge, put_a_directory]


def files_of(world: StoreWorld, part: str) -> list[str]:
    return [world.path(name) for name in sorted(world.files(part))]


def assert_all_messages_served(world: StoreWorld) -> None:
    for topic in ("orders", "bills"):
        assert world.bodies(topic) == world.sent_bodies(topic)
    for number in range(0, COUNT, 7):
        topic = "orders" if number % 2 else "bills"
        assert len(world.store.keys.records(topic, f"key-{number}", 64, 0, 1 << 60)[0]) == 1, number


@pytest.mark.verify(quick=26)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("part", ["consumequeue/orders/0", "index"])
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "second", "last"])
def test_a_derived_file_of_a_wrong_size_is_rebuilt(
    world: StoreWorld, part: str, damage: Callable[[StoreWorld, str], None], number: int, *, is_clean: bool
) -> None:
    """The start succeeds, every message is at its offset and found by its key, and sends work."""
    stop(world, is_clean=is_clean)
    damage(world, files_of(world, part)[number])

    report = world.open()

    assert report.queues_rebuilt == ([("orders", 0)] if part != "index" else []) or not is_clean
    assert_all_messages_served(world)
    world.send("orders", 3)
    assert_all_messages_served(world)
    world.close()
    assert world.open().queues_rebuilt == []


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("part", ["consumequeue/orders/0", "index"])
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "second", "last"])
def test_missing_derived_file_is_rebuilt(world: StoreWorld, part: str, number: int, *, is_clean: bool) -> None:
    """The recovery point lists all index files, so the absence of an older one is noticed, too."""
    stop(world, is_clean=is_clean)
    world.disk.remove(files_of(world, part)[number])

    world.open()

    assert_all_messages_served(world)


@pytest.mark.parametrize("place", ["consumequeue/orders", "consumequeue/orders/0", "consumequeue", "index"])
def test_file_in_place_of_a_directory_does_not_prevent_a_start(world: StoreWorld, place: str) -> None:
    """A start rebuilds the derived data of a directory whose place a foreign file has taken."""
    stop(world, is_clean=True)
    world.disk.remove_tree(world.path(place))
    file = world.disk.create(world.path(place), 10, reserve=10)
    file.close()

    world.open()

    assert_all_messages_served(world)


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", [truncate_between_records, enlarge, empty], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_a_damaged_log_file_is_named_and_the_remedy_works(
    world: StoreWorld,
    damage: Callable[[StoreWorld, str], None],
    number: int,
    caplog: pytest.LogCaptureFixture,
    *,
    is_clean: bool,
) -> None:
    """The error names the file, its size, the expected size and the remedies; afterwards the rest is served."""
    stop(world, is_clean=is_clean)
    path = files_of(world, "commitlog")[number]
    damage(world, path)
    size = world.disk.file_size(path)

    with pytest.raises(LogFileDamaged) as caught:
        world.open()

    text = str(caught.value)
    assert f"{path} is damaged: it has {size} bytes instead of 16384" in text
    assert f"truncate -s 16384 {path}" in text and "replica" in text
    fill(world, path, 16384)
    report = world.open()
    for topic in ("orders", "bills"):
        sent, found = world.sent_bodies(topic), world.bodies(topic)
        assert [body for body in sent if body in set(found)] == found
        assert (found == sent) == (damage is enlarge)
        lost = [vars(record)["queue_offset"] for record in caplog.records if is_loss(record, topic)]
        missing = [body for body in sent if body not in set(found)]
        assert [sent[offset] for offset in lost] == missing or (missing and report.damaged)


def is_loss(record: logging.LogRecord, topic: str) -> bool:
    return record.getMessage() == "stored message is damaged and was skipped" and vars(record)["topic"] == topic


def test_a_missing_log_file_in_the_middle_is_named(world: StoreWorld) -> None:
    """The report names its range, and the rest is served; see `test_store_loss`."""
    stop(world, is_clean=True)
    path = files_of(world, "commitlog")[1]
    world.disk.remove(path)

    assert [str(lost) for lost in world.open().missing] == ["[16384, 32768)"]
    assert 0 < len(world.bodies()) < len(world.sent_bodies())


def test_far_away_log_file_is_no_hole(world: StoreWorld) -> None:
    """A gap larger than any loss is an error with the range, and no filler is created."""
    stop(world, is_clean=True)
    names = files_of(world, "commitlog")
    far = f"{world.path('commitlog')}/{1 << 50:020d}"
    world.disk.create(far, 16384, reserve=16384).close()

    with pytest.raises(LogFileDamaged, match=f"files are missing before .*{far}"):
        world.open()

    assert files_of(world, "commitlog") == [*names, far]


@pytest.mark.parametrize("has_point", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_truncated_file_does_not_decide_the_size_of_all(tmp_path: Path, number: int, *, has_point: bool) -> None:
    """Without a setting the size comes from the recovery point, or from the majority of the files."""
    world = make_world("real", tmp_path)
    world.open()
    world.send(count=COUNT)
    world.close()
    if not has_point:
        world.disk.remove(world.path("recovery-point.json"))
    truncate(world, files_of(world, "commitlog")[number])
    truncate(world, files_of(world, "consumequeue")[number])

    settings = with_existing_file_sizes(world.root, StoreSettings(), (), RealDisk())

    assert settings.mapped_file_size_commit_log == TINY.mapped_file_size_commit_log
    assert settings.mapped_file_size_consume_queue == TINY.mapped_file_size_consume_queue


def test_a_single_truncated_file_does_not_decide_either(tmp_path: Path) -> None:
    """The recovery point has the size; without one a size that is not a multiple of a page is ignored."""
    world = make_world("real", tmp_path)
    world.open()
    world.send(count=3)
    world.close()
    truncate(world, files_of(world, "commitlog")[0])

    assert with_existing_file_sizes(world.root, StoreSettings(), (), RealDisk()).mapped_file_size_commit_log == 16384
    world.disk.remove(world.path("recovery-point.json"))
    assert with_existing_file_sizes(world.root, StoreSettings(), (), RealDisk()) == replace(
        StoreSettings(), mapped_file_size_consume_queue=1000
    )


@pytest.mark.parametrize("has_point", [True, False])
def test_setting_that_contradicts_intact_files_is_named(world: StoreWorld, *, has_point: bool) -> None:
    """Files of one size are right: nothing is rebuilt or called damaged because of a wrong setting."""
    stop(world, is_clean=True)
    if not has_point:
        world.disk.remove(world.path("recovery-point.json"))
    before = world.files("consumequeue")

    world.settings = replace(TINY, mapped_file_size_commit_log=32 * 1024)
    with pytest.raises(StoreMismatch, match=r"mappedFileSizeCommitLog is 32768.*set mappedFileSizeCommitLog=16384"):
        world.open()
    world.settings = replace(TINY, mapped_file_size_consume_queue=2000)
    with pytest.raises(StoreMismatch, match=r"mappedFileSizeConsumeQueue is 2000.*set mappedFileSizeConsumeQueue=1000"):
        world.open()
    assert world.files("consumequeue") == before
    world.settings = TINY
    world.open()
    assert_all_messages_served(world)
