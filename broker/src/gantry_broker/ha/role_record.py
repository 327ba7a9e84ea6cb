"""Which role this broker had last, in which epoch, and who else was there: for the next start, and for elections.

    <root>/role.json      a sealed document

It gives nobody a role: a role is given by the configuration or by an order; the order to regain one is for just what
stands here (``server/roles/regaining``). It says whom a master has to compare with
after a start that may have lost bytes, and tells whoever elects who may be elected. So one that cannot be read is
logged and forgotten, unlike a promise.
"""

from __future__ import annotations

import logging
from typing import Final, final

import msgspec

from gantry_broker.ports.disk import Disk
from gantry_broker.store.sealed_file import read_sealed, write_sealed

log = logging.getLogger(__name__)


class RoleRecord(msgspec.Struct, frozen=True):
    """A role in an epoch."""

    epoch: int = 0
    is_master: bool = False
    electable: list[int] = []
    """The slaves of the epoch that may be promoted after it, by their numbers."""

    master: str = ""
    """The replication port of the master, for its slaves."""

    master_id: int = -1
    """Its number, for its slaves."""

    acks_needed: int = -1
    """How many slaves the master waits for; -1 if its slave has not heard from it."""

    grant_ms: int = 0
    """For how long its slave grants it to acknowledge, at a time."""

    is_over: bool = False
    """Whether the role was taken from this broker, or its clients were sent elsewhere, in this very epoch."""


@final
class RoleFile:
    """Owned by whoever holds the store's lock. Reading and writing wait for the disk."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.record = RoleRecord()
        self._disk: Final = disk
        self._path: Final = f"{root}/role.json"

    def load(self) -> RoleRecord:
        """The last role; none if nothing was recorded."""
        try:
            self.record = read_sealed(self._disk, self._path, RoleRecord) or self.record
        except ValueError as exc:
            log.warning("the last role is not known", extra={"path": self._path, "reason": str(exc)})
        return self.record

    def write(self, record: RoleRecord) -> None:
        """Durable when this returns. Raises OSError."""
        if record != self.record:
            write_sealed(self._disk, self._path, record)
            self.record = record
