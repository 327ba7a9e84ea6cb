"""The errors of a broker, as one small tree.

Each leaf is one cause, and its docstring says what the caller should do. Foreign exceptions (``OSError`` above all) are
mapped to these where they enter, with ``raise ... from``, so that no caller has to interpret an ``errno``.
"""

from __future__ import annotations

import errno
from typing import Final, final


class BrokerError(Exception):
    """Root of the errors of the store, of access files, and of a broker's start and stop. Never raised itself.

    The refusal of a single request or order is none: ``Refused``, ``NotChangeable``, ``OrderRefused``.
    """


@final
class AccessFilesUnusable(BrokerError):
    """The file of accounts, or of this broker's own credentials, is missing or invalid.

    The broker does not start: an administrator should repair the file that the text names.
    """


class StoreError(BrokerError):
    """Root of the errors of the store. Never raised itself."""


class StoreFull(StoreError):
    """No room for another file, or for the next part of one: no space, no descriptor, or the disk refuses.

    Nothing of the refused batch was stored, and reads continue. Answer with a code that makes the client choose another
    broker, and try again later: the store recovers by itself when space is available.
    """


@final
class OutOfDescriptors(StoreFull):
    """No file can be opened: this process, or the system, has reached its limit of open files.

    As with a full disk, nothing of the refused batch was stored, and reads continue. The limit must be raised, or
    connections closed; the store recovers by itself then.
    """


@final
class DiskTooSlow(StoreFull):
    """The next file of the log was not ready when the last one was full: the disk hangs.

    As with a full disk, nothing of the refused batch was stored, reads continue, and the store recovers by itself.
    """


@final
class PoolExhausted(StoreError):
    """Every write buffer is full of bytes that are not committed yet.

    Nothing of the refused batch was stored. Answer "busy" and let the client try again: the pool drains by itself, at
    the speed of the disk.
    """


@final
class LogReadOnly(StoreError):
    """The log takes no more bytes, since a write or a flush failed, or the store is closing or closed.

    Answer like a broker that is shutting down. It never becomes writable again in this process.
    """


@final
class StoreFailed(StoreError):
    """The store failed permanently: a commit or fsync failed, or a log file was replaced by one of another store.

    The write of a small file counts, too; a failed write of an append only makes the log read-only (``LogReadOnly``).

    Acknowledge nothing more and end the process with a non-zero code. A failed fsync is never retried.
    """


@final
class StoreCorrupt(StoreError):
    """A record or a derived entry at ``offset`` is damaged.

    Report it to administrators, and serve its neighbours. ``offset`` is physical: an offset of the whole commit log.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the record at physical offset {offset} is damaged: {reason}")
        self.offset = offset
        self.reason = reason


@final
class QueueRebuilding(StoreError):
    """A unit of a consume queue does not point to its message, and is being rebuilt from the commit log.

    Nothing was served and nothing was skipped: retry with the same queue offset. The rebuild ends by itself.
    """

    def __init__(self, topic: str, queue_id: int, offset: int) -> None:
        super().__init__(f"consume queue {topic}/{queue_id} is being rebuilt from the commit log at offset {offset}")


@final
class IndexRebuilding(StoreError):
    """The key index is being rebuilt from the commit log, and the result may be in the missing part.

    Retry later. The rebuild ends by itself.
    """


@final
class StoreLocked(StoreError):
    """Another process holds this store directory. Stop that process first; nothing here was changed."""


@final
class LogFileDamaged(StoreError):
    """A file of the commit log is missing, or has the wrong size.

    Follow the text: restore the file, let the broker copy everything, or accept the loss.
    """


@final
class StoreMismatch(StoreError):
    """The files on disk and the settings contradict each other. Change the setting that the text names."""


@final
class MessageTooLarge(StoreError):
    """A record, or a batch that must stay in one file, does not fit into a file at all.

    The sender must change it: answer "message illegal". Nothing was stored.
    """


@final
class StoreUnusable(StoreError):
    """The disk refused something that opening the store needs: a permission, a read, a flush.

    Repair what the text names and start again. Flushed data is still there.
    """


@final
class ConfigCorrupt(StoreError):
    """A JSON table file and its copy are both unreadable.

    Do not start with empty offsets: restore a good copy, or remove both files on purpose.
    """


_NO_ROOM: Final = "make room on its file system, or let the volume grow, and start again; delete no file of the store"
_REMEDIES: Final = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EROFS: "its file system is read-only: mount it for writing and start again. One that turned read-only by "
    "itself has met an error, which the kernel's log names: check the file system first",
    errno.EACCES: "give the user of this process the right to read and to write it, and start again",
    errno.EPERM: "give the user of this process the right to read and to write it, and start again",
    errno.EMFILE: "raise the hard limit of open files of this process (LimitNOFILE=, ulimit -Hn), and start again; "
    "each queue with messages needs one",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max), and start again",
}
"""What to do about an error of the disk, by its number."""


def is_disk_full(error: OSError) -> bool:
    """Return whether there was no room, or the quota was exhausted: space may become available again."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether there was no free descriptor: nothing was tried, so nothing has failed."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def describe_disk_error(error: OSError) -> str:
    """Return the text of a disk error, with its remedy."""
    return f"{error}; {_REMEDIES.get(error.errno or 0, 'repair that and start again')}"
