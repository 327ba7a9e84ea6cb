"""A disk whose power can be cut: an ext4 file system in a file, mounted through a loop device.

    format -> mount -> a store is used on it -> cut_power -> restore -> the store is opened again

`cut_power` shuts ext4 down without writing its journal (EXT4_IOC_SHUTDOWN with NOLOGFLUSH). From that moment no byte
and no name reaches the image, and every write and sync fails with EIO. After `restore` the disk has all synced data and
the data that the kernel had written back by itself. A power loss leaves the same on a disk that honours flushes. No
device-mapper is needed. The image's own pages stay in the host's page cache, which simulates the disk.

Mounts are created in a private mount namespace, which the kernel removes, with its loop devices, when its last process
has ended: after an exception, Ctrl-C or SIGKILL nothing remains.

The module does not depend on the stored data. The caller of `cut_power` first stops the processes that use the disk, as
a real power loss does, and ends them before `restore`: a mount with open files cannot be removed.
"""

import ctypes
import fcntl
import functools
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, final

CLONE_NEWNS: Final = 0x00020000
EXT4_IOC_SHUTDOWN: Final = 0x8004587D
NO_JOURNAL_FLUSH: Final = 2
COMMAND_TIMEOUT_S: Final = 180
DISK_MIB: Final = 96
BLOCK_BYTES: Final = 4096
FILL_BYTES: Final = 1 << 20
MOUNTS: Final = Path("/proc/mounts")
EXT4_FACTS: Final = Path("/sys/fs/ext4")


def _run(*words: str) -> None:
    result = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if result.returncode:
        raise OSError(f"`{' '.join(words)}` exits {result.returncode}: {result.stderr.strip()}")


@functools.cache
def keep_mounts_private() -> None:
    """Make mounts of this thread and its children invisible to all other processes."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace of our own")
    _run("mount", "--make-rprivate", "/")


@final
class LoopDisk:
    """A disk image below a directory of the test, mounted through a loop device. Used by one thread."""

    def __init__(self, directory: Path, *, size_mib: int = DISK_MIB) -> None:
        self.path: Final = directory / "disk"
        """Where it is mounted."""
        self.image: Final = directory / "disk.img"
        self._size_mib = size_mib
        self._is_mounted = False

    def __repr__(self) -> str:
        return f"<LoopDisk {self.path} {self._size_mib} MiB {'mounted' if self._is_mounted else 'not mounted'}>"

    def format(self) -> None:
        """Create an empty ext4 file system."""
        with self.image.open("wb") as file:
            file.truncate(self._size_mib << 20)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        self.path.mkdir(exist_ok=True)

    def mount(self) -> None:
        """Mount the disk; ext4 replays its journal if necessary."""
        keep_mounts_private()
        _run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.path))
        self._is_mounted = True

    def unmount(self) -> None:
        """Unmount the disk. Fails while a process has a file of it open."""
        if self._is_mounted:
            _run("umount", str(self.path))
            self._is_mounted = False

    def cut_power(self) -> None:
        """Cut the power: no later write reaches the disk."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_JOURNAL_FLUSH))
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Restore the power, with the disk as it was at the cut."""
        self.unmount()
        self.mount()

    def make_read_only(self) -> None:
        """Make the file system read-only, as the kernel does after an error, even with open files.

        An ordinary remount is refused while files are open for writing, so an error of ext4 is triggered.
        """
        device = next(line.split()[0] for line in MOUNTS.read_text().splitlines() if line.split()[1] == str(self.path))
        (EXT4_FACTS / os.path.basename(device) / "trigger_fs_error").write_text("1")

    def remount_read_only(self) -> None:
        """Mount the disk read-only, without open files, like a mount that came up read-only."""
        _run("mount", "-o", "remount,ro", str(self.path))

    @property
    def free_bytes(self) -> int:
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize

    def fill(self, *, leave_bytes: int) -> Path:
        """Allocate all blocks but about `leave_bytes` to a file, and return its path."""
        ballast = self.path / "ballast"
        with ballast.open("wb") as file, suppress(OSError):
            while (size := self.free_bytes - leave_bytes) >= BLOCK_BYTES:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), min(size, FILL_BYTES))
        return ballast


@contextmanager
def loop_disk(directory: Path, *, size_mib: int = DISK_MIB) -> Iterator[LoopDisk]:
    """A formatted, mounted disk that is always unmounted at the end."""
    disk = LoopDisk(directory, size_mib=size_mib)
    disk.format()
    try:
        disk.mount()
        yield disk
    finally:
        disk.unmount()
