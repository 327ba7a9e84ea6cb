"""An index file that belongs elsewhere is detected, by a start and by a query, and rebuilt from the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gantry_broker.errors import IndexRebuilding
from gantry_broker.store.derived import DerivedFiles
from gantry_broker.store.index_file import HEADER, IndexFile
from gantry_testing.log_head import remove_files, write_recovery_point
from gantry_testing.store_world import StoreWorld, make_world

COUNT = 250


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """Return a store with two full index files and a third one."""
    return fill(make_world(request.param, tmp_path))


def fill(made: StoreWorld) -> StoreWorld:
    made.open()
    for number in range(COUNT):
        made.append([made.draft("orders", keys=f"key-{number}")])
        made.clock.advance(1)
    made.store.flush()
    write_recovery_point(made)
    assert len(files(made)) == 3
    return made


def files(world: StoreWorld) -> tuple[IndexFile, ...]:
    index = world.store._lifecycle.index
    assert index is not None
    return index.files


def found(world: StoreWorld, number: int) -> list[bytes]:
    return world.store.keys.records("orders", f"key-{number}", 64, 0, 1 << 60)[0]


def assert_indexed(world: StoreWorld) -> None:
    missing = [number for number in range(COUNT) if len(found(world, number)) != 1]
    assert not missing


def stop(world: StoreWorld, is_clean: bool) -> None:
    if is_clean:
        world.close()
    else:
        world.kill()


def swap(world: StoreWorld, one: str, other: str) -> None:
    contents = [world.disk.read_file(world.path(name)) for name in (one, other)]
    world.overwrite(one, 0, contents[1])
    world.overwrite(other, 0, contents[0])


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2)])
def test_start_detects_swapped_index_files(
    world: StoreWorld, pair: tuple[int, int], is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Their ends differ from those in the recovery point."""
    names = [f"index/{file.name}" for file in files(world)]
    stop(world, is_clean)
    swap(world, names[pair[0]], names[pair[1]])

    report = world.open()

    assert report.is_index_rebuilt
    assert any("key index is unusable" in line for line in reports(caplog))
    assert_indexed(world)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("is_guarded", [True, False])
def test_start_detects_the_index_file_of_another_store(
    tmp_path: Path, number: int, is_clean: bool, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with the right header its entries do not lead to messages with their keys. The twin accepts it."""
    if not is_guarded:
        monkeypatch.setattr(DerivedFiles, "_is_index_file_of_log", lambda *_: True)
    world, other = make_world("faulty", tmp_path), make_world("faulty", tmp_path / "other")
    other.open()
    for serial in range(COUNT):
        other.append([other.draft("bills", keys=f"other-{serial}")])
        other.clock.advance(1)
    other.store.flush()
    theirs = bytes(files(other)[number].view)
    fill(world)
    name, header = f"index/{files(world)[number].name}", HEADER.pack(*files(world)[number].header)
    stop(world, is_clean)
    world.overwrite(name, 0, header + theirs[HEADER.size :])

    report = world.open()

    assert report.is_index_rebuilt is is_guarded
    if is_guarded:
        assert_indexed(world)


@pytest.mark.parametrize("is_clean", [True, False])
def test_good_index_is_trusted(world: StoreWorld, is_clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Expired messages, several stops, and a damaged message in the log do not matter."""
    begin = remove_files(world.store, 2)
    write_recovery_point(world)
    first = min(place for place in world.records if place >= begin)
    for turn in range(3):
        stop(world, is_clean)
        if turn == 1:
            position = first % world.settings.mapped_file_size_commit_log
            world.overwrite(f"commitlog/{first - position:020d}", position + 100, b"rot")
        caplog.clear()
        report = world.open()
        assert not report.is_index_rebuilt
        assert not any("index" in line for line in reports(caplog))
        world.append([world.draft("orders", keys=f"late-{turn}")])
        assert len(world.store.keys.records("orders", f"late-{turn}", 64, 0, 1 << 60)[0]) == 1
        world.store.flush()
        write_recovery_point(world)


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2)])
def test_query_detects_swapped_index_files(world: StoreWorld, pair: tuple[int, int]) -> None:
    """Under a running broker the header has changed, so an empty slot is no answer."""
    names = [f"index/{file.name}" for file in files(world)]
    swap(world, names[pair[0]], names[pair[1]])

    for number in range(COUNT):
        try:
            count = len(found(world, number))
        except IndexRebuilding:
            world.repair()
            count = len(found(world, number))
        assert count == 1, number
    assert world.store.repair.index_rebuilds >= 1
