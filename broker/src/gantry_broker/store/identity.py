"""The identity of a store on the disk: ``store.json`` and its backup copy ``store.json.bak``.

``gantry_store_files.store_identity`` defines the document and decides which copy is used. Both copies hold the same
bytes after every write: an older copy would reuse a generation number, and expect seals on records that RocketMQ wrote.
If one is damaged, the other is used, and that is logged. If both are damaged, it is unknown which records must have a
seal, and the start is refused. Without any file the whole log is treated as written by RocketMQ, which is always safe.
"""

from __future__ import annotations

import logging
from typing import Final, final

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_store_files.store_identity import (
    IDENTITY_BACKUP,
    IDENTITY_FILE,
    LOG_END_MAX,
    Epoch,
    IdentityCopies,
    OwnershipRange,
    StoreIdentity,
    create_identity,
)

__all__ = ["LOG_END_MAX", "Epoch", "IdentityFile", "OwnershipRange", "StoreIdentity", "create_identity"]

log = logging.getLogger(__name__)


@final
class IdentityFile:
    """The files ``<root>/store.json`` and ``store.json.bak``. Read when the store is opened, and written then.

    They are also written when the log is truncated or discarded, when its epochs change, and when a loss is accepted.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self.path: Final = f"{root}/{IDENTITY_FILE}"
        self.backup_path: Final = f"{root}/{IDENTITY_BACKUP}"

    def read(self) -> StoreIdentity | None:
        """Return the identity, or None if there has never been one. Raises ``ConfigCorrupt``.

        The backup copy is written last. If it counts more starts of the same store, the main file was rolled back:
        with that file, records of the missing starts, in buffers and under newer epochs, would not be trusted.
        """
        copies = IdentityCopies.of(self._read_copy(self.path), self._read_copy(self.backup_path))
        identity = copies.chosen
        if identity is not None:
            if copies.current is None:
                log.warning("store.json is unusable; using store.json.bak", extra={"reason": copies.fault})
            elif copies.fault:
                log.warning("store.json was rolled back; using store.json.bak", extra={"reason": copies.fault})
            return identity
        if not copies.fault:
            return None
        raise ConfigCorrupt(
            f"{copies.fault}. Put back {self.path} from a backup; or, in a group, move the store away and start "
            f"empty: the broker copies everything from its master. If you have neither, remove {self.path} and remove "
            f"{self.backup_path}: then no existing record needs a seal, and the store gets a new uuid"
        )

    def read_backup(self) -> StoreIdentity | None:
        """Return the identity in the backup copy; None if it is missing or damaged."""
        return self._read_copy(self.backup_path)[0]

    def _read_copy(self, path: str) -> tuple[StoreIdentity | None, str]:
        """Return one copy, or the reason why it cannot be used; neither if the file does not exist.

        Raises ``OSError`` for an unreadable path, such as a directory: it does not prove that there was never a file.
        """
        try:
            return read_sealed(self._disk, path, StoreIdentity), ""
        except ValueError as exc:
            return None, str(exc)

    def write(self, identity: StoreIdentity) -> None:
        """Replace both copies, durably. At any moment one of them is intact."""
        write_sealed(self._disk, self.path, identity)
        write_sealed(self._disk, self.backup_path, identity)

    def remove_backup(self) -> None:
        """Remove the backup copy, which is outdated and could not be rewritten."""
        if self._disk.exists(self.backup_path):
            self._disk.remove(self.backup_path)
        self._disk.sync_directory(self.path.rpartition("/")[0])
