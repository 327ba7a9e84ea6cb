"""The identity of a store on the disk: ``store.json`` and its twin, read at a start and written by who opens the store.

What the document says and which copy counts is decided in ``gantry_store_files.store_identity``. Both copies hold the
same bytes after every write: an older one would number a start twice, and call RocketMQ's records ours. When one is
damaged the other is used, and that is logged. When both are, nobody can tell which records to believe, and starting is
refused; without any file the whole log is taken for somebody else's, which is always safe.
"""

from __future__ import annotations

import logging
from typing import Final, final

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_store_files.store_identity import (
    IDENTITY_FILE,
    IDENTITY_TWIN,
    LOG_END_MAX,
    Epoch,
    IdentityCopies,
    StoreIdentity,
    Stretch,
    new_identity,
)

__all__ = ["LOG_END_MAX", "Epoch", "IdentityFile", "StoreIdentity", "Stretch", "new_identity"]

log = logging.getLogger(__name__)


@final
class IdentityFile:
    """``<root>/store.json`` and ``store.json.bak``. Read at the start and written by whoever opens the store."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self.path: Final = f"{root}/{IDENTITY_FILE}"
        self.twin_path: Final = f"{root}/{IDENTITY_TWIN}"

    def read(self) -> StoreIdentity | None:
        """What it says, or None if there has never been one. Raises ``ConfigCorrupt``.

        The twin is written last, so one that has seen more starts of the same store shows that the file was rolled
        back: what was written in them, in buffers and under newer epochs, would not be believed.
        """
        copies = IdentityCopies.of(self._read_copy(self.path), self._read_copy(self.twin_path))
        identity = copies.chosen
        if identity is not None:
            if copies.own is None:
                log.warning("the store's identity is not usable, its twin is used", extra={"reason": copies.fault})
            elif copies.fault:
                log.warning("the store's identity was rolled back, its twin is used", extra={"reason": copies.fault})
            return identity
        if not copies.fault:
            return None
        raise ConfigCorrupt(
            f"{copies.fault}. Put back {self.path} from a backup; or, in a group, move the store away and start "
            f"empty: the broker copies everything from its master. Without either remove {self.path} and remove "
            f"{self.twin_path}: then no record that is in the log needs a seal, and the store has another name"
        )

    def read_twin(self) -> StoreIdentity | None:
        """What the copy says; None if there is none to believe."""
        return self._read_copy(self.twin_path)[0]

    def _read_copy(self, path: str) -> tuple[StoreIdentity | None, str]:
        """One copy, or why it cannot be used; neither if there is nothing by that name.

        Raises ``OSError`` for what cannot be read, such as a directory: it is no proof that there has never been one.
        """
        try:
            return read_sealed(self._disk, path, StoreIdentity), ""
        except ValueError as exc:
            return None, str(exc)

    def write(self, identity: StoreIdentity) -> None:
        """Replace both, durably. At any moment one of them is whole."""
        write_sealed(self._disk, self.path, identity)
        write_sealed(self._disk, self.twin_path, identity)

    def forget_twin(self) -> None:
        """The twin could not be written, and says what is not true any more: better none."""
        if self._disk.exists(self.twin_path):
            self._disk.remove(self.twin_path)
        self._disk.sync_directory(self.path.rpartition("/")[0])
