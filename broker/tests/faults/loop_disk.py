"""A disk of its own whose power can be cut: an ext4 in a file, mounted through a loop device.

    format -> mount -> a store is used on it -> cut_power -> restore -> the store is opened again

`cut_power` asks ext4 to shut down without writing its journal (EXT4_IOC_SHUTDOWN with NOLOGFLUSH). From that moment no
byte and no name reaches the image, and every write and sync fails with EIO; after `restore` there is what had been
synced before, and whatever the kernel had chosen to write by itself. That is what a power loss leaves on a disk that
honours flushes, without device-mapper. The image's own pages stay in the host's page cache, which plays the disk.

Mounts are made in a mount namespace of our own, which the kernel takes away, with its loop devices, when its last
process has ended: whether a run ends by an exception, by Ctrl-C or by SIGKILL, nothing of it stays behind.

It refuses to know what is stored. Whoever cuts the power first stops the processes that use the disk, since a real
power loss stops them, too, and ends them before `restore`: a mount with open files cannot be taken away.
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
    """From now on what this thread and its children mount is seen by them alone."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace of our own")
    _run("mount", "--make-rprivate", "/")


@final
class LoopDisk:
    """One such disk, below a directory of the test. Used by one thread."""

    def __init__(self, directory: Path, *, size_mib: int = DISK_MIB) -> None:
        self.path: Final = directory / "disk"
        """Where it is mounted."""
        self.image: Final = directory / "disk.img"
        self._size_mib = size_mib
        self._is_mounted = False

    def __repr__(self) -> str:
        return f"<LoopDisk {self.path} {self._size_mib} MiB {'mounted' if self._is_mounted else 'not mounted'}>"

    def format(self) -> None:
        """An empty disk."""
        with self.image.open("wb") as file:
            file.truncate(self._size_mib << 20)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        self.path.mkdir(exist_ok=True)

    def mount(self) -> None:
        """Mount it; ext4 replays its journal where there is something to replay."""
        keep_mounts_private()
        _run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.path))
        self._is_mounted = True

    def unmount(self) -> None:
        """Take it away. Fails while anybody has a file of it open."""
        if self._is_mounted:
            _run("umount", str(self.path))
            self._is_mounted = False

    def cut_power(self) -> None:
        """Nothing reaches the disk any more."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_JOURNAL_FLUSH))
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """The power is back: the disk as it was left."""
        self.unmount()
        self.mount()

    def make_read_only(self) -> None:
        """What a kernel does that has found an error: the file system is read-only, whoever has files of it open.

        An ordinary remount is refused while files are open for writing, so ext4 is told to find an error.
        """
        device = next(line.split()[0] for line in MOUNTS.read_text().splitlines() if line.split()[1] == str(self.path))
        (EXT4_FACTS / os.path.basename(device) / "trigger_fs_error").write_text("1")

    def remount_read_only(self) -> None:
        """The same for a disk that nobody writes to: a mount that came up read-only."""
        _run("mount", "-o", "remount,ro", str(self.path))

    @property
    def free_bytes(self) -> int:
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize

    def fill(self, *, leave_bytes: int) -> Path:
        """Give all blocks but about `leave_bytes` to a file of ours, which is returned."""
        ballast = self.path / "ballast"
        with ballast.open("wb") as file, suppress(OSError):
            while (size := self.free_bytes - leave_bytes) >= BLOCK_BYTES:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), min(size, FILL_BYTES))
        return ballast


@contextmanager
def loop_disk(directory: Path, *, size_mib: int = DISK_MIB) -> Iterator[LoopDisk]:
    """A formatted, mounted disk, taken away at the end whatever happens."""
    disk = LoopDisk(directory, size_mib=size_mib)
    disk.format()
    try:
        disk.mount()
        yield disk
    finally:
        disk.unmount()
