"""What a start has to know before it reads the log: whose bytes are where, and which write buffers there may be.

Buffers are looked for where the settings say and where the last start had them: whoever switches the buffer off, or
moves it, must not lose what the old one holds. Such old buffers are replayed and then removed.

"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_broker.errors import StoreLocked, StoreUnusable, is_disk_full
from gantry_broker.ports.buffers import BufferVolume
from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.checkpoint import CheckpointFacts
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
    checkpoint: CheckpointFacts,
    is_clean: bool,
) -> None:
    """Report the small files of a store of ours that are gone although other files prove that they were written.

    A first start writes ``store.json`` before the other two, and a clean stop writes both of those. A store of
    RocketMQ, and one whose first start was cut off, has no such proof.
    """
    if identity is None:
        if point is not None or (checkpoint.is_ours and disk.exists(f"{root}/checkpoint")):
            log.error(
                "store.json and its copy are missing; this start draws a new identity",
                extra={
                    "path": f"{root}/store.json",
                    "reason": "which records must have a seal, the epochs of the log, and which write buffers belong "
                    "to it are not known",
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
                facts = {"path": f"{root}/{name}", "effect": effect}
                log.warning("a file that a clean stop writes is missing; it is written again", extra=facts)


def written_by_others_from(checkpoint: CheckpointFacts, point: RecoveryPoint | None, min_physical: int) -> int | None:
    """From where somebody else may have written, since the checkpoint is not as we left it; None if nobody has."""
    if checkpoint.is_ours:
        return None
    return point.through if point is not None else min_physical


def first_unsealed(commit_log: CommitLog, identity: StoreIdentity, start: int, end: int) -> int | None:
    """Where the first record of ``[start, end)`` begins that lacks the seal which our records have; None if none does.

    Other brokers seal nothing. Without such a record a foreign checkpoint is damaged, and all records are ours:
    an epoch that no election gave would part a member of a group from the others.
    """
    sealed = scan_log(commit_log.files.files, start, 0, _pass_over, seals=identity.ours_from)
    return sealed.end if sealed.end < end else None


def _pass_over(_view: memoryview, _position: int, _offset: int, _size: int) -> None:
    """The scan checks the record; nothing else is done with it."""


def seals_of(identity: StoreIdentity | None, others_from: int | None) -> Seals:
    """Where records must be sealed."""
    if identity is None:
        return no_seals
    if others_from is not None:
        identity = identity.started(LOG_END_MAX, written_by_others_from=others_from)
    return identity.ours_from


def write_or_keep(file: IdentityFile, identity: StoreIdentity, started: StoreIdentity) -> StoreIdentity:
    """Write the next generation and answer it; on a full disk go on with what stands there, if it says nothing wrong.

    A generation tells buffers of this start from older ones, and all of those are void by now. What must not go
    unwritten is who wrote the log from here on, and where its buffers are. Whatever is answered is what the next start
    will read: buffers stamped with anything else would not be believed by it.
    """
    try:
        file.write(started)
    except OSError as exc:
        is_same = (identity.epochs, identity.pool_path) == (started.epochs, started.pool_path)
        if not is_disk_full(exc) or not is_same or identity.generation == 0:
            raise
        standing = file.read()
        if standing == started:
            file.forget_twin()
        elif standing != identity:
            raise
        log.warning("the disk is too full to count this start", extra={"reason": str(exc)})
        return standing
    return started


@final
class OpenPools:
    """The pool in use, and one that an earlier start has left elsewhere."""

    def __init__(self, settings: PoolSettings, open_volume: Callable[[str], BufferVolume], *, file_size: int) -> None:
        self.pool: WritePool | None = None
        self._settings: Final = settings
        self._open_volume: Final = open_volume
        self._file_size: Final = file_size
        self._path: Final = os.path.abspath(settings.path) if settings.is_enabled and settings.path else ""
        self._previous: WritePool | None = None
        self.present = 0
        """How many buffers earlier starts have left, whatever is in them. Fewer than there were: some are lost."""

    @property
    def status(self) -> PoolStatus:
        return NO_POOL if self.pool is None else self.pool.status

    def open(self, identity: StoreIdentity | None) -> None:
        """Open both. Raises ``StoreUnusable`` or ``StoreLocked``."""
        if self._settings.is_enabled:
            self.pool = self._make(self._path, self._settings.buffers_count)
            self.pool.open()
            self.present = len(self.pool)
        previous = identity.pool_path if identity is not None else ""
        if not previous or previous == self._path:
            return
        try:
            pool = self._make(previous, 0)
        except StoreUnusable as exc:
            log.warning("the write buffers of the last start are not there any more", extra={"reason": str(exc)})
            return
        try:
            pool.open()
        except StoreLocked as exc:
            # Whoever has it has set aside what was in it.
            log.warning("the write buffers of the last start are somebody else's now", extra={"reason": str(exc)})
            return
        self._previous = pool
        self.present += len(pool)

    def _make(self, path: str, count: int) -> WritePool:
        try:
            volume = self._open_volume(path)
        except (OSError, ValueError) as exc:
            raise StoreUnusable(
                f"write buffers cannot be used in {path}: {exc}; mend that, or name another directory in"
                " transientStorePoolPath; without write buffers leave out transientStorePoolEnable and"
                " transientStorePoolPath"
            ) from exc
        return WritePool(volume, count=count, file_size=self._file_size)

    def found(self) -> list[FoundBuffer]:
        """What dead processes have left."""
        return [
            describe_buffer(buffer)
            for pool in (self._previous, self.pool)
            if pool is not None
            for buffer in pool.found()
        ]

    def moved(self, identity: StoreIdentity) -> StoreIdentity:
        """The identity, with the place of the pool that is used now. Buffers found elsewhere are void before that."""
        for pool in (self._previous, self.pool):
            if pool is not None:
                pool.void_found()
        return msgspec.structs.replace(identity, pool_path=self._path)

    def prepare(self, identity: StoreIdentity) -> None:
        """Everything found is in the log or set aside, and void: be ready to lend, in the name of ``identity``."""
        if self._previous is not None:
            self._previous.prepare(identity)
            self._previous.close()
            self._previous = None
        if self.pool is not None:
            self.pool.prepare(identity)
            if not self.pool.is_crash_safe:
                log.warning(
                    "the write buffer is anonymous memory, which does not survive this process",
                    extra={"crash_safe": False, "remedy": "set transientStorePoolPath"},
                )

    def rename(self, identity: StoreIdentity) -> None:
        """Lend in the name of ``identity`` from now on. No buffer may be in use."""
        if self.pool is not None:
            self.pool.rename(identity)

    def close(self) -> None:
        for pool in (self._previous, self.pool):
            if pool is not None:
                pool.close()
        self._previous = None


def describe_buffer(buffer: WriteBuffer) -> FoundBuffer:
    """A live buffer in the words of the plan."""
    facts = buffer.facts
    assert facts is not None, "a live buffer has a whole header"
    return FoundBuffer.of(buffer.piece.name, facts, buffer.view)


@final
class AbortMarker:
    """``<root>/abort``: the file whose presence at a start says that the last run did not end well.

    Created, durably, before a start changes anything; removed, durably, as the very last step of a clean stop. RocketMQ
    uses the same name and meaning.
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
