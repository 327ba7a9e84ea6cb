"""A start on a full disk serves reads and later sends, or is refused with a remedy; a missing table is reported."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from gantry_broker.errors import StoreError, StoreFull, StoreUnusable, describe_disk_error
from gantry_broker.ports import RealDisk
from gantry_broker.store.draft import Draft
from gantry_store_files import segment_name
from gantry_testing.local import running_broker
from gantry_testing.store_world import BORN_HOST, StoreWorld, make_world

COUNT = 240


def stopped(*, is_clean: bool) -> StoreWorld:
    world = make_world("faulty", Path())
    world.open()
    for number in range(COUNT):
        world.append([world.draft("orders", number % 3, keys=f"key-{number}")])
        world.clock.advance(1)
        if number == COUNT // 2:
            world.clock.advance(60_000)
            world.store.flush_step()
    world.store.flush()
    if is_clean:
        world.close()
    else:
        world.kill()
    return world


def append_until_full(world: StoreWorld) -> None:
    for number in range(1000):
        world.append([world.draft("orders", number % 3)])


@pytest.mark.parametrize(
    ("is_clean", "missing"),
    [(True, None), (True, "checkpoint"), (True, "recovery-point.json"), (True, "index"), (False, None),
     (False, "checkpoint"), (False, "recovery-point.json")],
)  # fmt: skip
def test_full_disk_does_not_prevent_a_start(*, is_clean: bool, missing: str | None) -> None:
    """Everything is readable; sends are refused without space, and accepted without a restart when there is some."""
    world = stopped(is_clean=is_clean)
    if missing == "index":
        world.disk.remove_tree(world.path("index"))
    elif missing is not None and world.disk.exists(world.path(missing)):
        world.disk.remove(world.path(missing))
    world.faulty_disk.capacity = world.faulty_disk.space("/").used

    world.open()

    for queue_id in range(3):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)
    with pytest.raises(StoreFull):
        append_until_full(world)
    world.faulty_disk.capacity = 1 << 30
    world.clock.advance(60_000)
    world.append([world.draft("orders", 0)])
    world.store.flush()
    world.repair()
    for queue_id in range(3):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)
    for number in range(0, COUNT, 17):
        assert len(world.store.keys.records("orders", f"key-{number}", 64, 0, 1 << 60)[0]) == 1


async def test_a_table_that_is_missing_after_a_clean_stop_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A clean stop writes every table; a missing one would silently start empty, including consumer offsets."""
    async with running_broker(tmp_path) as broker:
        queue = broker.store.queues.get_or_create("orders", 0)
        broker.store.append([Draft(queue, b"x", b"", 0, 0, 0, BORN_HOST, 0, 0, 0, 0, ())])
    (tmp_path / "config" / "consumerOffset.json").unlink()
    (tmp_path / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)

    with caplog.at_level(logging.ERROR):
        async with running_broker(tmp_path):
            pass
    [line] = [record for record in caplog.records if "is missing" in record.getMessage()]
    assert vars(line)["path"].endswith("consumerOffset.json")

    caplog.clear()
    async with running_broker(tmp_path):
        pass
    assert not [record for record in caplog.records if "is missing" in record.getMessage()]


REMEDIES: Final = {errno.ENOSPC: "make room on its file system", errno.EROFS: "mount it for writing"}


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("code", REMEDIES, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("is_clean", [True, False, None])
def test_a_start_that_is_refused_names_the_file_and_the_remedy(code: int, is_clean: bool | None) -> None:
    """For each write that the disk refuses first, the error helps an administrator, and its remedy works."""
    refused = 0
    for count in range(200):
        world = make_world("faulty", Path()) if is_clean is None else stopped(is_clean=is_clean)
        left = count

        def operate(operation: str, path: str) -> None:
            nonlocal left
            if operation in ("read", "open", "map"):
                return
            left -= 1
            if left < 0:
                raise OSError(code, os.strerror(code), path)

        world.faulty_disk.on_operation = operate
        try:
            world.open()
        except StoreError as error:
            refused += 1
            assert "/data/store" in str(error), (count, error)
            if isinstance(error, StoreUnusable):
                assert REMEDIES[code] in str(error), (count, error)
            world.faulty_disk.on_operation = lambda operation, path: None
            world.kill()
            world.open()
            for queue_id in range(3):
                assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)
        if left >= 0:
            break
    else:
        pytest.fail("a start does more than 200 operations: not each of them was refused")
    assert refused > 3


@pytest.mark.parametrize("call", ["write", "fsync", "posix_fallocate", "ftruncate", "fdatasync", "pwrite"])
def test_an_error_of_the_real_disk_names_the_file(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of calls on a descriptor have no path: one would only read "No space left on device"."""
    disk, path = RealDisk(), str(tmp_path / "file")
    file = disk.create(f"{path}-open", 4_096)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, refuse)
    uses: dict[str, Callable[[], object]] = {
        "write": lambda: disk.write_file(path, b"x"),
        "fsync": lambda: disk.write_file(path, b"x"),
        "posix_fallocate": lambda: disk.create(path, 4_096, reserve=4_096),
        "ftruncate": lambda: disk.create(path, 4_096),
        "fdatasync": file.sync,
        "pwrite": lambda: file.pwrite(b"x", 0),
    }
    with pytest.raises(OSError, match=re.escape(path)) as caught:
        uses[call]()

    assert (caught.value.errno, REMEDIES[errno.ENOSPC] in describe_disk_error(caught.value)) == (errno.ENOSPC, True)


def refuse_file(world: StoreWorld, name: str) -> None:
    """Let the disk refuse to create a file, as one on which other programs use all free space."""

    def operate(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    world.faulty_disk.on_operation = operate


SECOND_FILE: Final = "/consumequeue/orders/0/00000000000000001000"
"""The second file of the queue ``orders``, from queue offset 50 on."""


def store_with_damaged_end(count: int, *, point_at: int) -> StoreWorld:
    """Return a killed store whose log lost a queue's messages after the recovery point; a later message is intact."""
    world = make_world("faulty", Path())
    world.open()
    world.send("orders", point_at)
    world.store.flush()
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send("orders", count - point_at)
    starts = list(world.records)[point_at:count]
    world.send("bills", 1)
    world.store.flush()
    world.kill()
    flip_bodies(world, starts)
    return world


def flip_bodies(world: StoreWorld, starts: list[int]) -> None:
    size = world.settings.mapped_file_size_commit_log
    for start in starts:
        world.faulty_disk.flip(world.path(f"commitlog/{segment_name(start - start % size)}"), start % size + 90)


@pytest.mark.parametrize(("count", "point_at"), [(65, 45), (17, 5)], ids=["next file", "next blocks"])
def test_offsets_of_lost_messages_are_not_reused_after_a_start_on_a_full_disk(count: int, point_at: int) -> None:
    """The start needs no space to keep offsets that only the queue's files know, since these have their blocks."""
    world = store_with_damaged_end(count, point_at=point_at)
    world.faulty_disk.capacity = world.faulty_disk.space("/").used
    refuse_file(world, SECOND_FILE)

    assert world.open().damaged

    world.faulty_disk.on_operation = lambda operation, path: None
    world.faulty_disk.capacity = 1 << 30
    _, [offset] = world.append([world.draft("orders")])
    assert offset == count


def test_start_without_room_for_offsets_of_lost_messages_is_refused() -> None:
    """A queue that is rebuilt without its last messages needs new blocks; without them its offsets would be reused."""
    world = make_world("faulty", Path())
    world.open()
    world.send("orders", 65)
    starts = list(world.records)[45:]
    world.send("bills", 1)
    world.close()
    flip_bodies(world, starts)
    world.faulty_disk.remove_tree(world.path("consumequeue/orders"))
    refuse_file(world, SECOND_FILE)

    for _ in range(2):
        with pytest.raises(StoreFull, match=SECOND_FILE):
            world.open()
        world.kill()
    world.faulty_disk.on_operation = lambda operation, path: None
    world.open()

    _, [offset] = world.append([world.draft("orders")])
    assert offset == 65
