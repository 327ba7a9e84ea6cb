"""Row D3 of the fault catalogue: a power loss right after a new log file was created and its first record written.

If the name of a file is not durable, a power loss loses every record in it, flushed or not. So file and directory are
synced before the log continues there. The test runs on ext4 and on the in-memory disk, which loses every name whose
directory was not synced; ext4 gives more than it guarantees, so its twin, the same test without the
sync of directories, runs in memory only.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.loop_disk import LoopDisk, loop_disk

from gantry_store_files import segment_name
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.killable_disk import KillableDisk
from gantry_testing.store_world import StoreWorld

ROLLS = 4
LosePower = Callable[[StoreWorld], None]


def on_faulty_disk() -> tuple[StoreWorld, LosePower]:
    return StoreWorld(FaultyDisk(), "/data/store"), StoreWorld.lose_power


def on_loop_disk(disk: LoopDisk) -> tuple[StoreWorld, LosePower]:
    def lose(world: StoreWorld) -> None:
        disk.cut_power()
        world.kill()
        disk.restore()

    return StoreWorld(KillableDisk(), str(disk.path / "store")), lose


@pytest.fixture(
    params=[
        "in-memory",
        pytest.param("ext4", marks=[pytest.mark.needs_root, pytest.mark.needs_loop]),
    ]
)
def powered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[StoreWorld, LosePower]]:
    """Return a store on a disk that can lose its power, and the function that cuts it."""
    if request.param == "in-memory":
        yield on_faulty_disk()
        return
    with loop_disk(tmp_path) as disk:
        world, lose = on_loop_disk(disk)
        yield world, lose
        world.disk.kill()


def log_names(world: StoreWorld) -> list[str]:
    return world.disk.list(world.path("commitlog"))


def roll(world: StoreWorld) -> str:
    """Send until the first record of a new file is written; return the file's name."""
    size = world.settings.mapped_file_size_commit_log
    base = world.store.log.wrote - world.store.log.wrote % size + size
    while world.store.log.wrote <= base:
        world.send()
    return segment_name(base)


def test_new_log_file_is_durable_before_its_first_record(powered: tuple[StoreWorld, LosePower]) -> None:
    """D3: right after a roll a power loss leaves the new file with its name and its size."""
    world, lose = powered
    world.open()
    for _ in range(ROLLS):
        name = roll(world)
        lose(world)

        assert name in log_names(world)
        assert world.disk.file_size(world.path(f"commitlog/{name}")) == world.settings.mapped_file_size_commit_log

        world.forget_after(world.open().end)
        assert world.bodies() == world.sent_bodies()


def test_flushed_messages_in_a_new_file_survive(powered: tuple[StoreWorld, LosePower]) -> None:
    """D3: a flush right after a roll covers the new file, the end of the old one, and both names."""
    world, lose = powered
    world.open()
    for _ in range(ROLLS):
        roll(world)
        end = world.store.flush()
        lose(world)

        assert world.open().end == end
        assert world.bodies() == world.sent_bodies()
        world.store.flush()


def test_without_the_directory_sync_the_new_file_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3's twin: with directories never synced, a flushed record in a new file is lost with the file's name."""
    world, lose = on_faulty_disk()
    world.open()
    monkeypatch.setattr(FaultyDisk, "sync_directory", lambda disk, path: None)
    name = roll(world)
    world.store.flush()
    lose(world)

    assert name not in log_names(world)
