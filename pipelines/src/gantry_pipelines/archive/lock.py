"""One writer: who may change an archive, and how somebody who lost that right notices.

In a folder the right is a lock of the operating system (`flock`) on `_manifest/writer.lock`. It ends with its
process, however that ends, so nobody has to clean up. Beside it `writer.json` names the owner: who takes the lock
writes the name down, and every change of the manifest looks whether it is still its own. That is the fence for file
systems whose locks can be lost (NFS after a server's restart) or are none.

An object store has neither, so there the owner writes its name with a growing number every few seconds. Who wants to
write watches: a name whose number stands still for `TAKEOVER_S` belongs to nobody. Clocks are not compared. The owner
stops by itself when it could not write for half of that time.

What it guards: the manifest, the names that readers see, compaction and expiry. It does not guard `_staged`: workers
of a dead writer may go on there for a moment, and nobody looks at what they leave. On an object store workers put
files under their own names: one of a dead writer may still do so after the next has started, with the same rows, as
long as the checkpoint is the same one; so a lost checkpoint is recovered on an object store when the old job's pods
are gone.
"""

import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, final

from gantry_pipelines.archive.errors import ArchiveBusy, FencedOut
from gantry_pipelines.archive.layout import LOCK, WRITER
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_remoting.durable_files import make_folders

log = logging.getLogger(__name__)

BEAT_S: Final = 5.0
"""How often an owner in an object store says that it lives."""

TAKEOVER_S: Final = 60.0
"""How long its name must stand still before another takes its place; also how long a start after a crash waits
there."""


class WriterLock(Protocol):
    """The right to write."""

    def check(self) -> None:
        """Raises FencedOut when it is lost."""

    def release(self) -> None:
        """Give it back."""


def take(storage: Storage) -> WriterLock:
    """The right to write this archive. Raises ArchiveBusy."""
    return FolderLock(storage) if isinstance(storage, Folder) else ObjectLock(storage)


class _Owner:
    """The name in `writer.json`."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Final = storage
        self.token: Final = secrets.token_hex(8)

    def write(self, beat: int = 0) -> None:
        document = {"owner": self.token, "host": socket.gethostname(), "process": os.getpid(), "beat": beat}
        self._storage.write(WRITER, json.dumps(document).encode() + b"\n")

    def clear(self) -> None:
        if self.read().get("owner") == self.token:
            self._storage.remove(WRITER)

    def read(self) -> dict[str, Any]:
        try:
            document = json.loads(self._storage.read(WRITER))
        except (FileNotFoundError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    def check(self) -> None:
        found = self.read()
        if found.get("owner") != self.token:
            raise FencedOut(f"the archive in {self._storage} has another writer by now: {named(found)}")


def named(document: dict[str, Any]) -> str:
    """An owner, for people."""
    return f"process {document['process']} on {document['host']}" if "host" in document else "nobody known"


@final
class FolderLock:
    """Held by this process as long as it lives."""

    def __init__(self, folder: Folder) -> None:
        path = Path(folder.root, LOCK)
        make_folders(path.parent)
        self._owner: Final = _Owner(folder)
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            self._descriptor = None
            raise ArchiveBusy(f"the archive in {folder} is being written by {named(self._owner.read())}") from error
        self._owner.write()

    def check(self) -> None:
        """Raises FencedOut when it is lost."""
        if self._descriptor is None:
            raise FencedOut("the lock of this archive was given back")
        self._owner.check()

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            self._owner.clear()
            os.close(self._descriptor)
            self._descriptor = None


@final
class ObjectLock:
    """Held as long as its name grows. The thread `archive-lock` owns the beat, callers only read `_beaten_s`."""

    def __init__(
        self, storage: Storage, now: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._owner: Final = _Owner(storage)
        self._now: Final = now
        before = self._owner.read()
        deadline = now() + TAKEOVER_S
        while before and now() < deadline:
            wait(BEAT_S)
            found = self._owner.read()
            if found and found != before:
                raise ArchiveBusy(f"the archive in {storage} is being written by {named(found)}")
            before = found
        self._owner.write()
        wait(BEAT_S)  # another may have done the same: the last name stays, and the others see it
        try:
            self._owner.check()
        except FencedOut as error:
            raise ArchiveBusy(str(error)) from error
        self._beaten_s = now()
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._go_on, name="archive-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises FencedOut when it is lost."""
        if self._now() - self._beaten_s > TAKEOVER_S / 2:
            raise FencedOut("the archive's lock could not be renewed in time")
        self._owner.check()

    def release(self) -> None:
        """Give it back. A name that cannot be taken away stands still, and the next start watches it."""
        self._ended.set()
        self._thread.join()
        try:
            self._owner.clear()
        except OSError as error:  # a store that is gone; what the run says is why it ended
            log.warning("the archive's writer cannot take its name away", extra={"reason": str(error).splitlines()[0]})

    def _go_on(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT_S):
            beat += 1
            began_s = self._now()
            try:
                self._owner.check()
                self._owner.write(beat)
            except OSError:
                continue  # `check` notices when it goes on for long
            except FencedOut:
                return
            self._beaten_s = began_s
