"""The recovery point: from where the next start has to read the log, and what must be there before it.

    [min_physical ......... through ......... end of the log)
      log, queues and index      to be read again after an unclean stop
      are durable

A small JSON file with a CRC, replaced whole. It lists every queue with the end it had, so that a queue whose files are
gone is noticed and built again; RocketMQ has nothing that says which queues there ought to be. ``through`` is proved at
the start by the record that ends there. RocketMQ ignores the file; if it is missing or damaged the whole log is read.
"""

from __future__ import annotations

import logging
from typing import Final, final

import msgspec

from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.index_file import IndexHeader
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_store_files.recovery_point import RECOVERY_POINT_FILE, RecoveryPointHead

log = logging.getLogger(__name__)


class IndexPoint(msgspec.Struct, frozen=True):
    """The newest index file as it was."""

    name: str
    header: IndexHeader


class RecoveryPoint(RecoveryPointHead, frozen=True, kw_only=True):
    """The whole document: everything before ``through`` is durable."""

    tail: int
    """Where the record begins that ends at ``through``; -1 when there is none."""

    timestamp_ms: int
    """The newest store time before ``through``."""

    queues: dict[str, dict[str, int]]
    """Topic, queue id, end of the queue."""

    is_indexed: bool = False
    """Whether every message before ``through`` that has keys is in the index."""

    index: IndexPoint | None = None
    index_files: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """Every index file with the physical offset where its last message begins: none of them may be missing."""

    min_physical: int = -1
    """Where the log began; -1 from an older version."""

    starts: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """Topic, queue id, first message of the queue, where that is not 0."""

    damaged: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """Queues that were seen to be wrong and must be built again."""

    log_file_bytes: int = 0
    """The size of the log's files, so that a truncated one is not taken for the setting; 0 from an older version."""

    queue_file_bytes: int = 0


@final
class RecoveryPointFile:
    """``<root>/recovery-point.json``. Written by the flush thread, read at the start."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self._path: Final = f"{root}/{RECOVERY_POINT_FILE}"

    def read(self) -> RecoveryPoint | None:
        """The last point, or None when there is none to believe."""
        try:
            return read_sealed(self._disk, self._path, RecoveryPoint)
        except ValueError as exc:
            log.warning("the recovery point is not usable, the whole log will be read", extra={"reason": str(exc)})
            return None

    def write(self, point: RecoveryPoint) -> None:
        """Replace it, durably. What it describes must be durable already."""
        write_sealed(self._disk, self._path, point)

    def remove(self) -> None:
        """Forget it, so that the next start reads everything."""
        remove_durably(self._disk, self._path)
