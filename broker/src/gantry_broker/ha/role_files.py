"""A broker's promises and its last role, on its disk.

    <root>/promise.json      a sealed document: to follow no master below an epoch, nor to give it a grant
    <root>/promise.json.bak  its copy
    <root>/role.json         a sealed document: the last role, its epoch, and the other members of that epoch

A promise counts when both files are durable, and is never revoked: a candidate or tool that has enough promises may be
promoting a member at this moment. A repeated request for the same epoch gets the same answer; a request for an older
epoch is refused. The higher epoch of the two files counts, so a damaged, missing or rolled back file is repaired from
the other one. If at least one exists and none can be read, the start is refused: a broker that has forgotten its
promises must not vote.

The role record does not decide the role at startup: the configuration or an order does, and the order to regain a role
refers to the record (``server/roles/role_status``). It names the members that a master must compare with after a start
that may have lost bytes, and the members that may be elected. So an unreadable record is logged and ignored, unlike a
promise.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, final

import msgspec

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.disk import Disk
from gantry_broker.store.sealed_file import read_sealed, write_sealed

log = logging.getLogger(__name__)


class Promise(msgspec.Struct, frozen=True):
    """The promise to follow no master of an epoch below ``epoch``."""

    epoch: int
    to: str = ""
    """Name of the member or tool that requested it; only displayed."""


class PromiseRefused(Exception):
    """A newer epoch was promised already. The text names it, and who requested the promise."""


@final
class PromiseFile:
    """The promise on the disk. Only the process that holds the store's lock uses it; its methods wait for the disk."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.promise = Promise(0)
        self._disk: Final = disk
        self._path: Final = f"{root}/promise.json"
        self._paths: Final = (self._path, f"{self._path}.bak")

    def load(self) -> Promise:
        """Return the promise; epoch 0 if there never was one. Raises ``ConfigCorrupt`` if neither file can be read.

        A file that is missing, damaged or older than the other one is rewritten. That only the copy is missing is not
        logged, because earlier versions wrote none.
        """
        found: dict[str, Promise] = {}
        faults: dict[str, str] = {}
        for path in self._paths:
            try:
                promise = read_sealed(self._disk, path, Promise)
            except ValueError as exc:
                faults[path] = str(exc)
                continue
            if promise is not None:
                found[path] = promise
        if not found:
            if faults:
                raise ConfigCorrupt(_refusal(self._path, "; ".join(f"{path}: {why}" for path, why in faults.items())))
            return self.promise
        self.promise = max(found.values(), key=lambda promise: promise.epoch)
        stale = [path for path in self._paths if found.get(path) != self.promise]
        for path in stale:
            reason = faults.get(path) or ("it is older than its copy" if path in found else "it is missing")
            if self._path in found and path not in found and path not in faults:
                continue
            log.warning("promise file is not usable; its copy is used", extra={"path": path, "reason": reason})
        if stale:
            self._write(self.promise, stale)
        return self.promise

    def check(self, epoch: int) -> None:
        """Raise ``PromiseRefused`` if a newer epoch was promised."""
        if epoch < self.promise.epoch:
            to_whom = f" to {self.promise.to}" if self.promise.to else ""
            raise PromiseRefused(f"epoch {epoch} is too old: epoch {self.promise.epoch} was promised{to_whom} already")

    def give(self, epoch: int, to: str) -> Promise:
        """Promise ``epoch``, durably. Raises ``PromiseRefused`` and OSError.

        After an OSError the old promise holds in this process; a restart may find the new one in one of the files.
        """
        self.check(epoch)
        if epoch > self.promise.epoch:
            promise = Promise(epoch, to)
            self._write(promise, self._paths)
            self.promise = promise
        return self.promise

    def _write(self, promise: Promise, paths: Sequence[str]) -> None:
        for path in paths:
            write_sealed(self._disk, path, promise)


def _refusal(path: str, reason: str) -> str:
    """Return the error text for unreadable promises, with the remedy."""
    return (
        f"{path} and its .bak cannot be read: {reason}. They hold the epoch below which this broker has promised "
        f"neither to follow a master nor to grant it anything. Wait until no promotion is running; then, in a group, "
        f"move the store away and start empty: the broker copies everything from its master. If the broker is "
        f"standalone, remove {path} and remove {path}.bak"
    )


class RoleRecord(msgspec.Struct, frozen=True):
    """A broker's role in one epoch."""

    epoch: int = 0
    """The epoch of the role; 0 without a role."""

    is_master: bool = False
    electable: list[int] = []
    """Broker ids of the slaves of the epoch that may be promoted after it."""

    master: str = ""
    """Address of the master's replication port, on a slave."""

    master_id: int = -1
    """Broker id of the master, on a slave."""

    acks_needed: int = -1
    """Number of slaves the master waits for; -1 on a slave that has had no stream from it."""

    grant_ms: int = 0
    """Duration of each grant that the slave gives to its master, in milliseconds."""

    is_over: bool = False
    """Whether the role was fenced in this epoch, or the master was withdrawn: then it is not regained."""


@final
class RoleFile:
    """The role on the disk. Only the process that holds the store's lock uses it; its methods wait for the disk."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.record = RoleRecord()
        self._disk: Final = disk
        self._path: Final = f"{root}/role.json"

    def load(self) -> RoleRecord:
        """Return the last role; an empty record if there is none."""
        try:
            self.record = read_sealed(self._disk, self._path, RoleRecord) or self.record
        except ValueError as exc:
            log.warning(
                "role file is not usable; the last role is unknown", extra={"path": self._path, "reason": str(exc)}
            )
        return self.record

    def write(self, record: RoleRecord) -> None:
        """Write the record, durably. Raises OSError."""
        if record != self.record:
            write_sealed(self._disk, self._path, record)
            self.record = record
