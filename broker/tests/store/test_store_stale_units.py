"""A start after a crash zeroes what lies after the end of a queue, and does not read what was never written there.

Before a power loss the kernel may have written later pages of a queue before earlier ones. Units that are left after
the end would be taken for messages after the next crash, when the queue has grown up to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gantry_broker.ports import real_disk as real_disk_module
from gantry_broker.ports.real_disk import RealFile
from gantry_store_files import UNIT
from gantry_testing.killable_disk import KillableDisk
from gantry_testing.store_world import TINY, StoreWorld

QUEUE_FILE_BYTES = 6_000_000
"""The size of queue files by default."""
INDEX_ENTRIES_MAX = 250_000
SETTINGS = replace(
    TINY,
    mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
    consume_queue_reserve_bytes=1 << 16,
    max_index_num=INDEX_ENTRIES_MAX,
)
NAME = "consumequeue/orders/0/00000000000000000000"
STALE = UNIT.pack(77, 100, 0)
IN_BLOCKS, IN_HOLE = 40_000, 4_000_000
"""Positions in blocks that the queue has allocated, and after them."""


def write(path: str, position: int) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.pwrite(descriptor, STALE, position)
    os.close(descriptor)


def write_durably(path: str, position: int) -> None:
    """Leave a unit on the disk that is not in the page cache, as a power loss does."""
    write(path, position)
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreWorld:
    """Return a store whose process was killed after a recovery point with a queue and an index."""
    monkeypatch.setattr(real_disk_module, "_file_system_magic", lambda _: 0xEF53)
    made = StoreWorld(KillableDisk(), str(tmp_path / "store"), SETTINGS)
    made.open()
    made.send("orders", 3)
    made.close()
    made.open()
    made.send("orders", 3)
    made.kill()
    return made


def has_stale_units(world: StoreWorld) -> bool:
    return STALE in world.disk.read_file(world.path(NAME))


@pytest.mark.parametrize("position", [IN_BLOCKS, IN_HOLE, QUEUE_FILE_BYTES - 20])
@pytest.mark.parametrize("leave", [write, write_durably])
def test_units_after_the_end_are_zeroed(world: StoreWorld, leave: Callable[[str, int], None], position: int) -> None:
    """A unit far after the end of the queue is zeroed, in the page cache or only on the disk."""
    leave(world.path(NAME), position)

    world.open()

    assert not has_stale_units(world)
    assert world.bodies("orders") == world.sent_bodies("orders")


def test_units_are_left_if_data_is_skipped(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: on a file system that took written pages for a hole, the unit would be left."""
    write(world.path(NAME), IN_HOLE)
    monkeypatch.setattr(RealFile, "next_data", lambda file, position: file.size)

    world.open()

    assert has_stale_units(world)


def bytes_read_by_a_start(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many bytes a start reads from files of queues and index by calls."""
    read = 0
    pread = RealFile.pread

    def count(file: RealFile, length: int, position: int) -> bytes:
        nonlocal read
        data = pread(file, length, position)
        read += 0 if "/commitlog/" in file.path else len(data)
        return data

    monkeypatch.setattr(RealFile, "pread", count)
    world.open()
    return read


def test_holes_are_not_read(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start after a kill reads neither the rest of a queue file nor that of an index file."""
    assert bytes_read_by_a_start(world, monkeypatch) < 500_000


def test_without_skipping_all_is_read(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: where holes are not trusted, queue and index are read to their ends."""
    monkeypatch.setattr(real_disk_module, "_file_system_magic", lambda _: 0)

    assert bytes_read_by_a_start(world, monkeypatch) > QUEUE_FILE_BYTES + INDEX_ENTRIES_MAX * 20 - 100_000
