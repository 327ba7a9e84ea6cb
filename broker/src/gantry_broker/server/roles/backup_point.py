"""The point of a backup: what a copy of the volume has for certain that is made after the point was marked.

    tables written -> log flushed -> backup-point.json written -> (answered) -> the volume is copied
                           `- flushed: the copy has everything before this offset

The copy need not be made at one moment of the broker's time only: it is that of a crash, which a start recovers. So it
may have later messages, too. Its consumer offsets are those that this broker had at the point, or later ones: a slave
has them from its master, up to a second late. None is beyond its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, final

import msgspec

from gantry_broker.ports.disk import Disk
from gantry_broker.store.sealed_file import write_sealed
from gantry_status.orders import HaStatus

FILE: Final = "backup-point.json"


@final
class BackupPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The last point that was marked, as the file has it."""

    backup: str
    """The name of the backup."""

    cluster: str
    broker_name: str
    broker_id: int
    identity: str
    """The uuid of the store."""

    last_epoch: int
    """The epoch of the last record before the point."""

    flushed: int
    """The end of the log on the disk."""

    marked_ms: int
    """When the point was marked, in milliseconds since 1970."""


@final
class BackupPointFile:
    """The file with the last point. Owned by the loop."""

    def __init__(
        self, disk: Disk, root: str, *, write_tables: Callable[[], Awaitable[None]], wall_ms: Callable[[], int]
    ) -> None:
        """``write_tables`` writes all tables to the disk."""
        self.write_tables: Final = write_tables
        self._disk: Final = disk
        self._path: Final = f"{root}/{FILE}"
        self._wall_ms: Final = wall_ms

    def __repr__(self) -> str:
        return f"<BackupPointFile {self._path}>"

    async def write(self, backup: str, status: HaStatus) -> None:
        """Record a point at what the broker has reported after its tables were written and its log was flushed.

        Raises OSError.
        """
        assert status.flushed is not None, "a broker knows its own log"
        point = BackupPoint(
            backup=backup, cluster=status.cluster, broker_name=status.broker_name, broker_id=status.broker_id or 0,
            identity=status.identity, last_epoch=status.last_epoch, flushed=status.flushed, marked_ms=self._wall_ms(),
        )  # fmt: skip
        await asyncio.to_thread(write_sealed, self._disk, self._path, point)
