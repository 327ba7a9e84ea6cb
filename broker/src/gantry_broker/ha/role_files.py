"""What this broker has on its disk of its part in the group: what it promised, and which role it had last.

    <root>/promise.json      a sealed document: to follow no master and to grant no request below an epoch
    <root>/promise.json.bak  its copy
    <root>/role.json         a sealed document: the last role, its epoch, and the other members of that epoch

A promise counts when both are durable, and is never taken back: a decider that has gathered enough of them may be
promoting a member at this moment. Asking again for the same epoch is answered as before; for an older one it is
refused. The higher epoch of the two files holds, so one that is damaged, missing or rolled back is mended by the other.
If neither can be read the start is refused: a broker that has forgotten what it promised must not vote.

The last role gives no role: a role is given by the configuration or by an order, and the order to regain one is for
just what is recorded here (``server/roles/role_status``). It names the members that a master has to compare with after
a start that may have lost bytes, and those that may be elected. So one that cannot be read is logged and forgotten,
unlike a promise.
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
    """No master of an epoch below ``epoch`` is followed."""

    epoch: int
    to: str = ""
    """Who asked, for people."""


class PromiseRefused(Exception):
    """A newer epoch was promised already. Says which, and to whom."""


@final
class PromiseFile:
    """Owned by the holder of the store's lock. Reading and writing wait for the disk."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.promise = Promise(0)
        self._disk: Final = disk
        self._path: Final = f"{root}/promise.json"
        self._paths: Final = (self._path, f"{self._path}.bak")

    def load(self) -> Promise:
        """What was promised; epoch 0 if nothing ever was. Writes a file that is worse again. Raises ``ConfigCorrupt``.

        A first promise from before there were copies has none.
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
            log.warning("a file of promises is not usable, its copy is used", extra={"path": path, "reason": reason})
        if stale:
            self._write(self.promise, stale)
        return self.promise

    def give(self, epoch: int, to: str) -> Promise:
        """Promise ``epoch``, durably. Raises ``PromiseRefused``, and OSError; then nothing is promised that was not."""
        if epoch < self.promise.epoch:
            to_whom = f" to {self.promise.to}" if self.promise.to else ""
            raise PromiseRefused(f"epoch {epoch} is too old: epoch {self.promise.epoch} was promised{to_whom} already")
        if epoch > self.promise.epoch:
            promise = Promise(epoch, to)
            self._write(promise, self._paths)
            self.promise = promise
        return self.promise

    def _write(self, promise: Promise, paths: Sequence[str]) -> None:
        for path in paths:
            write_sealed(self._disk, path, promise)


def _refusal(path: str, reason: str) -> str:
    """What is wrong with the file of promises, and what to do."""
    return (
        f"{path} and its .bak cannot be read: {reason}. They hold the epoch below which this broker has promised to "
        f"follow and to grant to no master. While no promotion is under way, in a group, move the store away and start "
        f"empty: the broker copies everything from its master. A broker that belongs to no group any more needs "
        f"neither: remove {path} and remove {path}.bak then"
    )


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
    """How many slaves the master waits for; -1 if its slave has had no stream from it."""

    grant_ms: int = 0
    """For how long its slave grants it to acknowledge, at a time."""

    is_over: bool = False
    """Whether the role was taken from this broker, or its clients were sent elsewhere, in this very epoch."""


@final
class RoleFile:
    """Owned by the holder of the store's lock. Reading and writing wait for the disk."""

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
