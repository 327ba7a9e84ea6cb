"""The disk port: the guarantees of both implementations, and the faults of the simulated one."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from pathlib import Path

import pytest

from gantry_broker.ports import Disk, RealDisk, write_fully
from gantry_broker.ports import real_disk as real_disk_module
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_testing.faulty_disk import FaultyDisk


@pytest.fixture(params=["real", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = FaultyDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk, "/d"


# -- both implementations --------------------------------------------------------------------------------------------


def test_a_new_file_is_zeros_of_its_full_size(place: tuple[Disk, str]) -> None:
    """A new file has its full size, and blocks as far as requested."""
    disk, root = place

    file = disk.create(f"{root}/f", 10_000, reserve=4_096)

    assert (file.size, file.reserved, disk.file_size(f"{root}/f")) == (10_000, 4_096, 10_000)
    assert file.pread(20_000, 0) == bytes(10_000)
    file.close()


def test_the_view_and_the_calls_see_the_same_bytes(place: tuple[Disk, str]) -> None:
    """A map, pread, pwrite and a second open all look at one file."""
    disk, root = place
    file = disk.create(f"{root}/f", 8_192, reserve=8_192)

    file.view[100:105] = b"hello"
    write_fully(file, b"world", 200)

    assert file.pread(5, 100) == b"hello"
    assert bytes(file.view[200:205]) == b"world"
    again = disk.open(f"{root}/f")
    assert (again.pread(5, 100), again.size, again.reserved) == (b"hello", 8_192, 0)
    again.reserve(8_192)
    assert bytes(again.view[200:205]) == b"world"
    again.close()
    file.close()
    assert disk.read_file(f"{root}/f")[100:105] == b"hello"


def test_zeroing_a_range_zeroes_that_range_only(place: tuple[Disk, str]) -> None:
    """The range is half-open with any bounds, and the view shows it as well."""
    disk, root = place
    file = disk.create(f"{root}/f", 20_000, reserve=20_000)
    file.view[:] = b"x" * 20_000

    file.zero(4_095, 12_289)
    file.zero(5, 5)

    data = bytes(file.view)
    assert data == b"x" * 4_095 + bytes(12_289 - 4_095) + b"x" * (20_000 - 12_289)
    file.close()


def test_no_byte_is_skipped_that_was_written(place: tuple[Disk, str]) -> None:
    """Between a position and the next data are only zeros, wherever and however something was written."""
    disk, root = place
    size = 1 << 20
    file = disk.create(f"{root}/f", size, reserve=1 << 18)
    assert file.next_data(size) == size
    file.view[100_000] = 1
    write_fully(file, b"x", 300_000)
    file.sync()
    file.view[200_000] = 1
    write_fully(file, b"x", size - 1)

    for position in (0, 100_000, 100_001, 200_000, 200_001, 300_000, 300_001, size - 1):
        following = file.next_data(position)
        assert position <= following < size
        assert file.pread(following - position, position).count(0) == following - position
        hole = file.next_hole(following)
        assert following < hole <= size
        after = file.next_data(hole)
        assert file.pread(after - hole, hole).count(0) == after - hole
    file.close()


def test_closing_under_a_live_slice_leaves_the_slice_readable(place: tuple[Disk, str]) -> None:
    """A reader that still holds a slice keeps its bytes; closing neither raises nor unmaps them."""
    disk, root = place
    file = disk.create(f"{root}/f", 4_096, reserve=4_096)
    file.view[:5] = b"hello"
    piece = file.view[:5]

    file.close()
    file.close()

    assert bytes(piece) == b"hello"


def test_creating_twice_is_an_error_and_leaves_the_first(place: tuple[Disk, str]) -> None:
    """Creating a file never truncates an existing one."""
    disk, root = place
    file = disk.create(f"{root}/f", 10, reserve=10)
    file.pwrite(b"x", 0)

    with pytest.raises(FileExistsError):
        disk.create(f"{root}/f", 20)

    assert disk.read_file(f"{root}/f") == b"x" + bytes(9)
    file.close()


def test_directories_and_names(place: tuple[Disk, str]) -> None:
    """Directories and names can be created, listed, renamed and removed."""
    disk, root = place
    disk.make_directory(f"{root}/a/b/c")
    disk.make_directory(f"{root}/a/b/c")
    disk.create(f"{root}/a/b/two", 1).close()
    disk.create(f"{root}/a/b/one", 1).close()

    assert disk.list(f"{root}/a/b") == ["c", "one", "two"]
    assert disk.list(f"{root}/nowhere") == []
    assert (disk.is_directory(f"{root}/a"), disk.is_directory(f"{root}/a/b/one")) == (True, False)
    disk.rename(f"{root}/a/b/one", f"{root}/a/b/two")
    disk.sync_directory(f"{root}/a/b")
    assert disk.list(f"{root}/a/b") == ["c", "two"]
    disk.remove(f"{root}/a/b/two")
    assert not disk.exists(f"{root}/a/b/two")
    disk.remove_tree(f"{root}/a")
    assert not disk.exists(f"{root}/a/b/c")
    for call in (disk.open, disk.remove, disk.read_file, disk.file_size, disk.sync_directory):
        with pytest.raises(FileNotFoundError):
            call(f"{root}/a/b/two")


def test_a_small_file_is_replaced_whole(place: tuple[Disk, str]) -> None:
    """A reader finds the old or the new content, and no temporary file remains."""
    disk, root = place
    disk.write_file(f"{root}/f", b"a much longer text")
    disk.write_file(f"{root}/f", b"short")

    assert disk.read_file(f"{root}/f") == b"short"
    assert disk.list(root) == ["f"]


def test_a_lock_excludes_until_it_is_released(place: tuple[Disk, str]) -> None:
    """The lock is exclusive, does not block, and contains the text that RocketMQ writes."""
    disk, root = place
    lock = disk.lock(f"{root}/lock")

    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock")

    assert disk.read_file(f"{root}/lock") == b"lock"
    lock.release()
    lock.release()
    disk.lock(f"{root}/lock").release()


def test_space_is_reported_in_bytes(place: tuple[Disk, str]) -> None:
    """Total, free and used space add up."""
    disk, root = place

    space = disk.space(root)

    assert 0 < space.free <= space.total
    assert space.used == space.total - space.free


# -- the real one ----------------------------------------------------------------------------------------------------


def test_blocks_kept_for_root_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention and the inspection of a store measure the same space, as df does."""
    facts = os.statvfs_result((4096, 4096, 1000, 400, 350, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: facts)

    spaces = {RealDisk().space(str(tmp_path)), RealReadingDisk().space(str(tmp_path))}

    assert [(space.total, space.free, space.used) for space in spaces] == [(950 * 4096, 350 * 4096, 600 * 4096)]


def test_reserved_ranges_have_blocks(tmp_path: Path) -> None:
    """Reserved ranges are allocated; all others are sparse."""
    disk = RealDisk()
    file = disk.create(str(tmp_path / "f"), 64 << 20, reserve=1 << 20)

    allocated = os.stat(tmp_path / "f").st_blocks * 512

    assert 1 << 20 <= allocated < 8 << 20
    file.close()


def test_zeroing_works_without_the_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system cannot zero a range, zeros are written."""
    monkeypatch.setattr(real_disk_module, "_FALLOCATE", None)
    file = RealDisk().create(str(tmp_path / "f"), 3 << 20, reserve=3 << 20)
    file.view[:] = b"x" * (3 << 20)

    file.zero(10, (3 << 20) - 10)

    assert bytes(file.view) == b"x" * 10 + bytes((3 << 20) - 20) + b"x" * 10
    file.close()


def test_only_trusted_file_systems_skip_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SEEK_DATA may skip written pages, nothing is skipped; elsewhere a file without data is skipped."""
    file = RealDisk().create(str(tmp_path / "f"), 1 << 20, reserve=1 << 18)
    again = RealDisk().open(str(tmp_path / "f"))

    monkeypatch.setattr(real_disk_module, "_file_system_magic", lambda _: 0x2FC12FC1)  # ZFS
    assert file.next_data(5_000) == 5_000
    monkeypatch.setattr(real_disk_module, "_file_system_magic", lambda _: 0xEF53)
    assert again.next_data(5_000) == 1 << 20
    file.close()
    again.close()


def test_the_magic_number_of_a_file_system_is_found() -> None:
    """The first field of statfs identifies the file system: /proc has the same number on every machine."""
    descriptor = os.open("/proc/self", os.O_RDONLY)
    try:
        assert real_disk_module._file_system_magic(descriptor) == 0x9FA0
    finally:
        os.close(descriptor)
    assert real_disk_module._file_system_magic(-1) == 0


def test_a_mapped_file_has_one_descriptor(tmp_path: Path) -> None:
    """A map keeps no descriptor, since their number limits that of queues; ``mmap.mmap``, the twin, keeps one."""

    def descriptors() -> int:
        links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.exists(entry.path)]
        return links.count(str(tmp_path / "f"))

    file = RealDisk().create(str(tmp_path / "f"), 1 << 16, reserve=1 << 16)
    file.view[0] = 1
    assert descriptors() == 1
    file.close()
    assert descriptors() == 0

    descriptor = os.open(tmp_path / "f", os.O_RDWR)
    with mmap.mmap(descriptor, 1 << 16):
        assert descriptors() == 2
    os.close(descriptor)


def test_a_map_is_removed_with_its_last_slice(tmp_path: Path) -> None:
    """A slice keeps the pages after the file was closed; without one the address space is free at once."""

    def is_mapped() -> bool:
        return str(tmp_path / "f") in Path("/proc/self/maps").read_text()

    file = RealDisk().create(str(tmp_path / "f"), 1 << 16, reserve=1 << 16)
    piece = file.view[10:20][2:4]
    piece[:] = b"xy"
    file.close()
    gc.collect()
    assert is_mapped()
    assert bytes(piece) == b"xy"

    del piece
    gc.collect()
    assert not is_mapped()


def test_a_file_that_cannot_be_mapped_names_itself(tmp_path: Path) -> None:
    """The error of a failed map has its number and the path."""
    file = RealDisk().create(str(tmp_path / "f"), 0)

    with pytest.raises(OSError, match=str(tmp_path / "f")) as error:
        _ = file.view

    assert error.value.errno == errno.EINVAL
    file.close()


def test_a_file_that_cannot_be_reserved_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed create there is no file, and no descriptor."""

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="full"):
        RealDisk().create(str(tmp_path / "f"), 4_096, reserve=4_096)

    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


# -- faults on purpose -----------------------------------------------------------------------------------------------


@pytest.fixture
def faulty() -> FaultyDisk:
    disk = FaultyDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def test_unsynced_bytes_are_lost_and_synced_ones_stay(faulty: FaultyDisk) -> None:
    """A power loss keeps exactly the bytes before a completed sync, including mapped writes."""
    file = faulty.create("/d/f", 4_096, reserve=4_096)
    file.view[0:4] = b"kept"
    file.sync()
    faulty.sync_directory("/d")
    file.view[0:4] = b"lost"
    file.pwrite(b"lost", 2_000)

    faulty.lose_unsynced()

    assert faulty.read_file("/d/f") == b"kept" + bytes(4_092)
    with pytest.raises(OSError, match="closed"):
        file.pread(1, 0)


def test_synced_file_with_unsynced_name_is_lost(faulty: FaultyDisk) -> None:
    """Bytes and names are durable separately; so are removal and renaming."""
    for name in ("a", "b"):
        faulty.create(f"/d/{name}", 10, reserve=10).sync()
    faulty.lose_unsynced()
    assert faulty.list("/d") == []

    for name in ("a", "b"):
        faulty.create(f"/d/{name}", 10, reserve=10).sync()
    faulty.sync_directory("/d")
    faulty.remove("/d/a")
    faulty.rename("/d/b", "/d/c")
    faulty.lose_unsynced()
    assert faulty.list("/d") == ["a", "b"]


def test_tearing_keeps_a_random_but_repeatable_subset_of_sectors(faulty: FaultyDisk) -> None:
    """Every sector is old or new, some seeds give mixtures, and a seed always gives the same result."""

    def torn(seed: int) -> list[int]:
        disk = FaultyDisk()
        disk.make_directory("/d")
        disk.sync_directory("/")
        file = disk.create("/d/f", 16 * 512, reserve=16 * 512)
        file.sync()
        disk.sync_directory("/d")
        file.view[:] = b"\x01" * (16 * 512)
        disk.tear(seed)
        data = disk.read_file("/d/f")
        sectors = [data[i * 512 : (i + 1) * 512] for i in range(16)]
        assert all(sector in (bytes(512), b"\x01" * 512) for sector in sectors)
        return [sector[0] for sector in sectors]

    outcomes = [torn(seed) for seed in range(30)]

    assert outcomes == [torn(seed) for seed in range(30)]
    assert any(0 < sum(outcome) < 16 for outcome in outcomes)


def test_a_kill_keeps_the_page_cache_and_frees_the_locks(faulty: FaultyDisk) -> None:
    """The end of a process loses no written bytes."""
    file = faulty.create("/d/f", 10, reserve=10)
    file.view[0:1] = b"x"
    faulty.lock("/d/lock")

    faulty.kill()

    assert faulty.read_file("/d/f")[:1] == b"x"
    faulty.lock("/d/lock").release()


def test_faults_occur_only_when_requested(faulty: FaultyDisk) -> None:
    """Each call fails with one requested errno, in order; later calls succeed."""
    file = faulty.create("/d/f", 100, reserve=100)
    faulty.fail_next("sync", errno.EIO)
    faulty.fail_next("write", errno.EROFS)

    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    with pytest.raises(OSError, match="Read-only"):
        file.pwrite(b"x", 0)
    file.pwrite(b"x", 0)
    file.sync()


def test_a_short_write_is_finished_by_write_fully(faulty: FaultyDisk) -> None:
    """A write may write less than it was given; the helper continues where it stopped."""
    file = faulty.create("/d/f", 100, reserve=100)
    faulty.short_write(3)

    assert file.pwrite(b"hello", 0) == 3
    faulty.short_write(1)
    faulty.short_write(2)
    write_fully(file, b"hello", 10)
    assert file.pread(5, 10) == b"hello"
    faulty.short_write(0)
    with pytest.raises(OSError, match="wrote no bytes"):
        write_fully(file, b"hello", 10)


def test_full_disk_refuses_new_blocks_only(faulty: FaultyDisk) -> None:
    """Reserving raises ENOSPC; writing to existing blocks succeeds."""
    file = faulty.create("/d/f", 1_000, reserve=500)
    faulty.capacity = 600

    with pytest.raises(OSError, match="No space"):
        file.reserve(700)
    with pytest.raises(OSError, match="No space"):
        faulty.create("/d/g", 200, reserve=200)
    assert not faulty.exists("/d/g")
    file.pwrite(b"x", 499)
    file.reserve(600)


def test_flipped_bit_is_durable(faulty: FaultyDisk) -> None:
    """The damage is on the disk, not in the cache only."""
    file = faulty.create("/d/f", 10, reserve=10)
    file.sync()
    faulty.sync_directory("/d")

    faulty.flip("/d/f", 3, 0x80)
    faulty.lose_unsynced()

    assert faulty.read_file("/d/f") == b"\0\0\0\x80" + bytes(6)


def test_write_without_blocks_is_an_assertion(faulty: FaultyDisk) -> None:
    """On a real disk this would be a SIGBUS on a full disk; here it is an assertion."""
    file = faulty.create("/d/f", 1_000, reserve=500)
    file.view[600:601] = b"x"

    with pytest.raises(AssertionError, match="no blocks were reserved"):
        file.sync()
