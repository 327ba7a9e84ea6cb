"""The modes in which a fault is tried: when bytes go to the disk, and through what memory they come."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

SHARED_MEMORY: Final = Path("/dev/shm")
BUFFERS: Final = 4


class Medium(Enum):
    """Where an append goes first."""

    OFF = "no buffer"
    TMPFS = "tmpfs"
    ANONYMOUS = "anonymous"


class Mode(NamedTuple):
    """One cell of the table."""

    is_sync: bool
    medium: Medium

    def __str__(self) -> str:
        return f"{'sync' if self.is_sync else 'async'}-{self.medium.value.replace(' ', '-')}"

    @property
    def may_lose_tail(self) -> bool:
        """Whether the end of the process alone may take what was acknowledged last: never without saying so."""
        return self == Mode(False, Medium.ANONYMOUS)

    def settings(self, buffers: Path) -> dict[str, str]:
        """The keys of broker.conf; `buffers` is where buffers lie that survive their process."""
        keys = {"flushDiskType": "SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH"}
        if self.medium is not Medium.OFF:
            keys |= {"transientStorePoolEnable": "true", "transientStorePoolSize": str(BUFFERS)}
        if self.medium is Medium.TMPFS:
            keys["transientStorePoolPath"] = str(buffers)
        return keys


MODES: Final = tuple(Mode(is_sync, medium) for is_sync in (False, True) for medium in Medium)


@contextmanager
def buffer_directory() -> Iterator[Path]:
    """An empty directory in memory, gone at the end."""
    made = Path(tempfile.mkdtemp(prefix="gantry-buffers-", dir=SHARED_MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def lose_buffers(buffers: Path) -> None:
    """What a power loss does to memory."""
    for path in buffers.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
