"""The recovery point: where the next start has to begin reading the log, and what must exist before that offset.

    [min_physical ......... through ......... end of the log)
      log, queues and index      to be read again after an unclean stop
      are durable

It is a small JSON file with a CRC, replaced whole. It lists every queue with its end, so that a queue whose files are
missing is detected and rebuilt; RocketMQ has no list of the queues that must exist. A start proves ``through`` by the
record that ends there, or by a log file that begins there. RocketMQ ignores the file; if it is missing or damaged, the
whole log is read.
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
    """The name and the header of the newest index file that has an entry."""

    name: str
    header: IndexHeader


class RecoveryPoint(RecoveryPointHead, frozen=True, kw_only=True):
    """An offset of the log before which log, queues and index are durable, and what they have there."""

    tail: int
    """The physical offset of the last record before ``through``; -1 if there is none or it is unknown.

    It ends at ``through``, unless the blank record that closes a file follows it.
    """

    timestamp_ms: int
    """The newest store time of a message before ``through``."""

    queues: dict[str, dict[str, int]]
    """The end of each queue, by topic and queue id."""

    is_indexed: bool = False
    """Whether every message before ``through`` that has keys is in the index."""

    index: IndexPoint | None = None
    """The newest index file; None if the index has no entry."""

    index_files: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """Every index file but the newest, with the physical offset where its last message begins: none may be missing."""

    min_physical: int = -1
    """The first offset of the log; -1 in a point of an older version."""

    starts: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """The first offset of each queue where that is not 0, by topic and queue id."""

    damaged: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """Queues that were found wrong and must be rebuilt."""

    log_file_bytes: int = 0
    """The size of the log's files, so that a truncated file does not change the setting; 0 in an older version."""

    queue_file_bytes: int = 0
    """The size of the consume queues' files; 0 in an older version."""


@final
class RecoveryPointFile:
    """The file ``<root>/recovery-point.json``, which a start reads.

    Written by the thread ``gantry-point`` (``point_writer``), by a start, a clean stop and a change of the log.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self._path: Final = f"{root}/{RECOVERY_POINT_FILE}"

    def read(self) -> RecoveryPoint | None:
        """Return the last point, or None if there is none or it is damaged."""
        try:
            return read_sealed(self._disk, self._path, RecoveryPoint)
        except ValueError as exc:
            log.warning("recovery point is not usable; the whole log is read", extra={"reason": str(exc)})
            return None

    def write(self, point: RecoveryPoint) -> None:
        """Replace the point, durably. Everything that it describes must be durable already."""
        write_sealed(self._disk, self._path, point)

    def remove(self) -> None:
        """Delete the point, so that the next start reads the whole log."""
        remove_durably(self._disk, self._path)
