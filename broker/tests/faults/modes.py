"""The modes in which a fault is tested: combinations of flush mode and buffer medium."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

SHARED_MEMORY: Final = Path("/dev/shm")
BUFFERS: Final = 4
"""The number of write buffers of a broker."""


class Medium(Enum):
    """The memory to which an append goes first."""

    OFF = "no buffer"
    TMPFS = "tmpfs"
    ANONYMOUS = "anonymous"


class Mode(NamedTuple):
    """A combination of flush mode and buffer medium."""

    is_sync: bool
    medium: Medium

    def __str__(self) -> str:
        return f"{'sync' if self.is_sync else 'async'}-{self.medium.value.replace(' ', '-')}"

    @property
    def may_lose_tail(self) -> bool:
        """Whether the end of the process alone may lose the newest acknowledged messages."""
        return self == Mode(False, Medium.ANONYMOUS)

    def settings(self, buffers: Path) -> dict[str, str]:
        """Return the keys of broker.conf; `buffers` is the directory of buffers that survive their process."""
        keys = {"flushDiskType": "SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH"}
        if self.medium is not Medium.OFF:
            keys |= {"transientStorePoolEnable": "true", "transientStorePoolSize": str(BUFFERS)}
        if self.medium is Medium.TMPFS:
            keys["transientStorePoolPath"] = str(buffers)
        return keys


MODES: Final = tuple(Mode(is_sync, medium) for is_sync in (False, True) for medium in Medium)
"""All six modes: both flush modes with no buffer, one on tmpfs, and one in anonymous memory."""


@contextmanager
def buffer_directory() -> Iterator[Path]:
    """Yield an empty directory in memory, which is deleted at the end."""
    made = Path(tempfile.mkdtemp(prefix="gantry-buffers-", dir=SHARED_MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def lose_buffers(buffers: Path) -> None:
    """Delete the buffers, as a power loss does."""
    for path in buffers.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
