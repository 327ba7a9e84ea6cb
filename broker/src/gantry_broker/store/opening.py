"""What a start determines before it reads the log: who wrote which part of it, and which write buffers exist.

Write buffers are searched in the directory of the settings and in the one of the last start: a user who switches the
buffers off, or moves them, must not lose what the old ones hold. Such old buffers are replayed and then removed.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable
from typing import Final, final

from gantry_broker.errors import StoreLocked, StoreUnusable, is_disk_full
from gantry_broker.ports.buffers import BufferVolume
from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.checkpoint import CheckpointContent
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.file_heads import HEADS_FILE
from gantry_broker.store.identity import LOG_END_MAX, IdentityFile, StoreIdentity
from gantry_broker.store.recovery import Seals, no_seals, scan_log
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.replay import FoundBuffer
from gantry_broker.store.settings import PoolSettings
from gantry_broker.store.write_buffer import WriteBuffer
from gantry_broker.store.write_pool import NO_POOL, PoolStatus, WritePool

log = logging.getLogger(__name__)


def report_missing_files(
    disk: Disk,
    root: str,
    *,
    identity: StoreIdentity | None,
    point: RecoveryPoint | None,
    checkpoint: CheckpointContent,
    is_clean: bool,
) -> None:
    """Log which small files of the store are missing although other files prove that they were written.

    A first start writes ``store.json`` before the recovery point and the checkpoint, and a clean stop writes these two.
    In a store of RocketMQ, and in one whose first start was interrupted, no other file proves anything.
    """
    if identity is None:
        if point is not None or (checkpoint.is_ours and disk.exists(f"{root}/checkpoint")):
            log.error(
                "store.json and its copy are missing; this start creates a new identity",
                extra={
                    "path": f"{root}/store.json",
                    "reason": "it is unknown which records must have a seal, what epochs the log has, and which write "
                    "buffers belong to it",
                    "remedy": "put store.json back from a backup before a start; or move the store away and follow a "
                    "master that has everything",
                },
            )
    elif is_clean:
        effects = {"recovery-point.json": "the whole log is read", "checkpoint": "the recovery point is used alone"}
        if point is not None and point.store:  # an earlier version wrote no heads
            effects[HEADS_FILE] = "this start cannot notice log files of another store"
        for name, effect in effects.items():
            if not disk.exists(f"{root}/{name}"):
                extra = {"path": f"{root}/{name}", "effect": effect}
                log.warning("store file is missing after a clean stop; rewriting it", extra=extra)


def find_rocketmq_start(checkpoint: CheckpointContent, point: RecoveryPoint | None, min_physical: int) -> int | None:
    """Return the offset from which RocketMQ may have written, since the checkpoint is not Gantry's; else None."""
    if checkpoint.is_ours:
        return None
    return point.through if point is not None else min_physical


def find_first_unsealed(commit_log: CommitLog, identity: StoreIdentity, start: int, end: int) -> int | None:
    """Return where the first record of ``[start, end)`` begins that lacks the seal of our records, or None.

    RocketMQ writes no seals. If all records have one, Gantry wrote them, and the checkpoint is damaged and not
    RocketMQ's. Then no new epoch may begin, because one without an election would separate a member of a group from the
    others.
    """
    sealed = scan_log(commit_log.files.files, start, 0, _ignore_record, seals=identity.ownership_at)
    return sealed.end if sealed.end < end else None


def _ignore_record(_view: memoryview, _position: int, _offset: int, _size: int) -> None:
    """Do nothing with a record that the scan has checked."""


def seals_of(identity: StoreIdentity | None, rocketmq_start: int | None) -> Seals:
    """Return the function that returns whether records at an offset must have a seal, and up to where that holds."""
    if identity is None:
        return no_seals
    if rocketmq_start is not None:
        identity = identity.with_new_start(LOG_END_MAX, rocketmq_start=rocketmq_start)
    return identity.ownership_at


def write_identity_or_keep(file: IdentityFile, identity: StoreIdentity, started: StoreIdentity) -> StoreIdentity:
    """Write the identity of the next generation and return it; on a full disk keep the stored one if it is still right.

    A generation distinguishes buffers of this start from older ones, and all of those are void by now. The identity
    must record that Gantry writes the log from here on, and where its buffers are. The result is what the next start
    will read: it would reject buffers whose headers name anything else.
    """
    try:
        file.write(started)
    except OSError as exc:
        is_same = (identity.epochs, identity.pool_path) == (started.epochs, started.pool_path)
        if not is_disk_full(exc) or not is_same or identity.generation == 0:
            raise
        stored = file.read()
        if stored == started:
            file.remove_backup()
        elif stored != identity:
            raise
        log.warning(
            "disk is full: could not write store.json; this start uses the stored generation",
            extra={"reason": str(exc), "generation": stored.generation},
        )
        return stored
    return started


@final
class WritePools:
    """The pool of write buffers in use, and one that an earlier start has left in another directory."""

    def __init__(self, settings: PoolSettings, open_volume: Callable[[str], BufferVolume], *, file_size: int) -> None:
        self.pool: WritePool | None = None
        self._settings: Final = settings
        self._open_volume: Final = open_volume
        self._file_size: Final = file_size
        self.path: Final = os.path.abspath(settings.path) if settings.is_enabled and settings.path else ""
        """The directory of the pool in use; empty if its buffers have none."""

        self._previous: WritePool | None = None
        self.present = 0
        """How many buffers earlier starts have left, empty or not. Fewer than they had means that some are lost."""

    @property
    def status(self) -> PoolStatus:
        return NO_POOL if self.pool is None else self.pool.status

    def open(self, identity: StoreIdentity | None) -> None:
        """Open both pools. Raises ``StoreUnusable`` or ``StoreLocked``."""
        if self._settings.is_enabled:
            self.pool = self._make(self.path, self._settings.buffers_count)
            self.pool.open()
            self.present = len(self.pool)
        previous = identity.pool_path if identity is not None else ""
        if not previous or previous == self.path:
            return
        try:
            pool = self._make(previous, 0)
        except StoreUnusable as exc:
            log.warning(
                "write buffers of the last start not found; messages that only they held cannot be replayed",
                extra={"path": previous, "reason": str(exc)},
            )
            return
        try:
            pool.open()
        except StoreLocked as exc:
            # The store that uses the directory now has set aside what was in it.
            log.warning(
                "write buffers of the last start are locked by another process and are not replayed",
                extra={"path": previous, "reason": str(exc)},
            )
            return
        self._previous = pool
        self.present += len(pool)

    def _make(self, path: str, count: int) -> WritePool:
        try:
            volume = self._open_volume(path)
        except (OSError, ValueError) as exc:
            raise StoreUnusable(
                f"write buffers cannot be used in {path}: {exc}; repair that, or name another directory in"
                " transientStorePoolPath; without write buffers leave out transientStorePoolEnable and"
                " transientStorePoolPath"
            ) from exc
        return WritePool(volume, count=count, file_size=self._file_size)

    def find_leftover(self) -> list[FoundBuffer]:
        """Return the live buffers that earlier processes have left, in the form that the replay plan uses."""
        return [
            describe_buffer(buffer)
            for pool in (self._previous, self.pool)
            if pool is not None
            for buffer in pool.find_leftover()
        ]

    def void_leftover(self) -> None:
        """Mark all buffers that earlier processes have left as invalid, after they were replayed or set aside."""
        for pool in (self._previous, self.pool):
            if pool is not None:
                pool.void_leftover()

    def prepare(self, identity: StoreIdentity) -> None:
        """Prepare the pool for borrowing under ``identity``, after all found buffers were replayed or set aside."""
        if self._previous is not None:
            self._previous.prepare(identity)
            self._previous.close()
            self._previous = None
        if self.pool is not None:
            self.pool.prepare(identity)
            if not self.pool.is_crash_safe:
                log.warning(
                    "write buffers are anonymous memory; messages that are not committed are lost with this process",
                    extra={"crash_safe": False, "remedy": "set transientStorePoolPath"},
                )

    def set_identity(self, identity: StoreIdentity) -> None:
        """Write ``identity`` into the headers of buffers that are borrowed from now on. No buffer may be in use."""
        if self.pool is not None:
            self.pool.set_identity(identity)

    def close(self) -> None:
        for pool in (self._previous, self.pool):
            if pool is not None:
                pool.close()
        self._previous = None


def describe_buffer(buffer: WriteBuffer) -> FoundBuffer:
    """Return a live buffer in the form that the replay plan uses."""
    header = buffer.header
    assert header is not None, "a live buffer has a whole header"
    return FoundBuffer.of(buffer.piece.name, header, buffer.view)


@final
class AbortMarker:
    """``<root>/abort``: the file whose presence at a start means that the last run did not stop cleanly.

    Created, durably, before recovery changes anything; removed, durably, as the last change of a clean stop. Before
    it is created, a start may set log files of other stores aside, unlink an empty last one, put fillers in place of
    lost ones, and remove unusable write buffers. RocketMQ uses the same name and meaning.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self._root: Final = root
        self._path: Final = f"{root}/abort"

    def is_present(self) -> bool:
        return self._disk.exists(self._path)

    def create(self) -> None:
        if not self._disk.exists(self._path):
            self._disk.create(self._path, 0).close()
        self._disk.sync_directory(self._root)

    def remove(self) -> None:
        remove_durably(self._disk, self._path)
