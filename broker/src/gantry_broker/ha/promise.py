"""What this broker has promised, on its disk: to follow and to grant nobody below an epoch.

    <root>/promise.json      a sealed document

A promise counts when it is durable, and is never taken back: whoever gathers enough of them may be promoting somebody
right now. Asking again for the same epoch is answered as before; for an older one it is refused. A file that cannot be
read stops the start: a broker that has forgotten what it promised must not have a voice.
"""

from __future__ import annotations

from typing import Final, final

import msgspec

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ha.sealed_file import read_sealed, write_sealed
from gantry_broker.ports.disk import Disk


class Promise(msgspec.Struct, frozen=True):
    """Nobody below ``epoch`` is followed."""

    epoch: int
    to: str = ""
    """Who asked, for people."""


class PromiseRefused(Exception):
    """A newer epoch was promised already. Says which, and to whom."""


@final
class PromiseFile:
    """Owned by whoever holds the store's lock. Reading and writing wait for the disk."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.promise = Promise(0)
        self._disk: Final = disk
        self._path: Final = f"{root}/promise.json"

    def load(self) -> Promise:
        """What was promised; epoch 0 if nothing ever was. Raises ``ConfigCorrupt``."""
        try:
            self.promise = read_sealed(self._disk, self._path, Promise) or self.promise
        except ValueError as exc:
            raise ConfigCorrupt(f"{self._path}: {exc}") from exc
        return self.promise

    def give(self, epoch: int, to: str) -> Promise:
        """Promise ``epoch``, durably. Raises ``PromiseRefused``, and OSError; then nothing is promised that was not."""
        if epoch < self.promise.epoch:
            raise PromiseRefused(f"epoch {self.promise.epoch} was promised to {self.promise.to or 'somebody'}")
        if epoch > self.promise.epoch:
            promise = Promise(epoch, to)
            write_sealed(self._disk, self._path, promise)
            self.promise = promise
        return self.promise
