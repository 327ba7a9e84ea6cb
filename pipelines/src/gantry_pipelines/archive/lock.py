"""The writer lock of an archive: only one process may change it, and one that has lost the lock is fenced.

In a folder it is a lock of the operating system (`flock`) on `_manifest/writer.lock`. The kernel releases it when the
process ends, so no cleanup is needed. Beside it `writer.json` names the owner: the process that takes the lock writes
its token there, and checks the token before every change of the manifest. That is the fence for file systems whose
locks can be lost (NFS after a server's restart) or have no effect; one that refuses locks is refused.

An object store has no such lock, so there the owner renews `writer.json` with a growing number every few seconds. A
process that wants to write watches it: an owner whose number does not change for `TAKEOVER_S` is dead. Clocks are not
compared. An owner that could not renew for half of that time stops by itself.

The lock guards the manifest, the names that readers see, compaction and expiry. It does not guard `_staged`: workers
of a dead writer may still write there for a moment, and their files are ignored. On an object store workers upload
files under their final names: a worker of a dead writer may do so after the next writer has started. With the same
checkpoint these have the same rows; so recover a lost checkpoint on an object store only when the old job's pods are
gone.
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

from gantry_pipelines.archive.errors import ArchiveBusy, CannotLock, FencedOut
from gantry_pipelines.archive.layout import LOCK, WRITER
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_remoting.durable_files import make_folders

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S: Final = 5.0
"""How often the owner of an archive in an object store renews its lock."""

TAKEOVER_S: Final = 60.0
"""How long an owner must not have renewed its lock before another may take it over; a start after a crash waits that
long."""


class WriterLock(Protocol):
    """The exclusive right to change an archive."""

    def check(self) -> None:
        """Raise FencedOut if the lock is lost."""

    def release(self) -> None:
        """Release the lock, and remove the owner's name."""


def acquire_writer_lock(storage: Storage) -> WriterLock:
    """Take the writer lock of an archive. Raises ArchiveBusy, CannotLock."""
    return FolderLock(storage) if isinstance(storage, Folder) else ObjectLock(storage)


class _OwnerFile:
    """The file `writer.json`, which names the owner of the lock."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Final = storage
        self.token: Final = secrets.token_hex(8)

    def write(self, heartbeat: int = 0) -> None:
        document = {"owner": self.token, "host": socket.gethostname(), "process": os.getpid(), "beat": heartbeat}
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
            raise FencedOut(
                f"the archive in {self._storage} has been taken over by another writer, {owner_text(found)}"
            )


def owner_text(document: dict[str, Any]) -> str:
    """Describe an owner by process and host."""
    return f"process {document['process']} on {document['host']}" if "host" in document else "an unknown process"


@final
class FolderLock:
    """The lock of an archive in a folder; the kernel releases it at the latest when the process ends."""

    def __init__(self, folder: Folder) -> None:
        path = Path(folder.root, LOCK)
        make_folders(path.parent)
        self._owner: Final = _OwnerFile(folder)
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            self._descriptor = None
            if isinstance(error, BlockingIOError):
                busy = f"the archive in {folder} is being written by {owner_text(self._owner.read())}"
                raise ArchiveBusy(busy) from error
            raise CannotLock(f"cannot lock {path}: {error.strerror}; use a file system with locks") from error
        self._owner.write()

    def check(self) -> None:
        """Raise FencedOut if the lock is lost."""
        if self._descriptor is None:
            raise FencedOut("the lock of this archive was released")
        self._owner.check()

    def release(self) -> None:
        """Release the lock, and remove the owner's name."""
        if self._descriptor is not None:
            self._owner.clear()
            os.close(self._descriptor)
            self._descriptor = None


@final
class ObjectLock:
    """The lock of an archive in an object store, held as long as it is renewed.

    The thread `archive-lock` renews it and owns `_renewed_s`, which callers only read.
    """

    def __init__(
        self, storage: Storage, now: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._owner: Final = _OwnerFile(storage)
        self._now: Final = now
        before = self._owner.read()
        deadline = now() + TAKEOVER_S
        while before and now() < deadline:
            wait(HEARTBEAT_INTERVAL_S)
            found = self._owner.read()
            if found and found != before:
                raise ArchiveBusy(f"the archive in {storage} is being written by {owner_text(found)}")
            before = found
        self._owner.write()
        # Another process may have written at the same time: the last one wins, and the others find its token.
        wait(HEARTBEAT_INTERVAL_S)
        try:
            self._owner.check()
        except FencedOut as error:
            raise ArchiveBusy(str(error)) from error
        self._renewed_s = now()
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._renew, name="archive-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise FencedOut if the lock is lost."""
        if self._now() - self._renewed_s > TAKEOVER_S / 2:
            raise FencedOut("the archive's lock could not be renewed in time")
        self._owner.check()

    def release(self) -> None:
        """Release the lock. If the owner's name cannot be removed, the next start waits for `TAKEOVER_S`."""
        self._ended.set()
        self._thread.join()
        try:
            self._owner.clear()
        except OSError as error:  # not raised: the error that ended the run must not be hidden
            log.warning(
                "failed to release archive lock; next start waits for lock timeout",
                extra={"reason": str(error).splitlines()[0]},
            )

    def _renew(self) -> None:
        heartbeat = 0
        while not self._ended.wait(HEARTBEAT_INTERVAL_S):
            heartbeat += 1
            started_s = self._now()
            try:
                self._owner.check()
                self._owner.write(heartbeat)
            except OSError:
                continue  # `check` fails when renewal has failed for too long
            except FencedOut:
                return
            self._renewed_s = started_s
