"""Everything that can go wrong in a broker, as one small tree.

The leaves say who must act, and each ends with what the caller should do. Foreign exceptions (``OSError`` above all)
are mapped to these where they enter, with ``raise ... from``, so that no caller ever has to know what an ``errno`` is.
"""

from __future__ import annotations

import errno
from typing import Final, final


class BrokerError(Exception):
    """Root of every error a broker raises on purpose. Never raised itself."""


@final
class AccessFilesUnusable(BrokerError):
    """The file of accounts, or of this broker's own credentials, is missing or wrong.

    The broker does not start: the operator should mend the file that the text names.
    """


class StoreError(BrokerError):
    """Root of what the store raises. Never raised itself."""


class StoreFull(StoreError):
    """No room for another file, or for the next stride of one: of space, of descriptors, or the disk refuses.

    Nothing of the refused batch was stored and reads go on. Answer with a code that makes the client go elsewhere,
    and try again later: the store recovers by itself when space comes back.
    """


@final
class DiskTooSlow(StoreFull):
    """The next file of the log was not ready when the last one was full: the disk hangs.

    As with a full disk, nothing of the refused batch was stored, reads go on, and it passes by itself.
    """


@final
class PoolExhausted(StoreError):
    """Every write buffer is full of bytes that are not committed yet.

    Nothing of the refused batch was stored. Answer "busy" and let the client try again: the pool drains by itself, at
    the speed of the disk.
    """


@final
class LogReadOnly(StoreError):
    """The log takes no more bytes, since a flush failed or the store is closing or closed.

    Answer like a broker that is shutting down. It never becomes writable again in this process.
    """


@final
class StoreFailed(StoreError):
    """The store failed for good: an fsync failed, or a log file was replaced by one of another store.

    Final: acknowledge nothing more and end the process with a non-zero code. A sync is never tried again.
    """


@final
class StoreCorrupt(StoreError):
    """A record or a derived entry at ``offset`` is not what it must be.

    Tell the operator, serve the neighbours. ``offset`` is physical: a position in the whole commit log.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the record at physical offset {offset} is damaged: {reason}")
        self.offset = offset
        self.reason = reason


@final
class QueueRebuilding(StoreError):
    """A unit of a consume queue does not lead to its message, and is being rebuilt from the commit log.

    Nothing was served and nothing was skipped: ask again with the same queue offset. It passes by itself.
    """

    def __init__(self, topic: str, queue_id: int, offset: int) -> None:
        super().__init__(f"consume queue {topic}/{queue_id} is being rebuilt from the commit log at offset {offset}")


@final
class IndexRebuilding(StoreError):
    """The key index is being rebuilt from the commit log, and what was asked for may be in the part that is missing.

    Ask again later. It passes by itself.
    """


@final
class StoreLocked(StoreError):
    """Another process holds this store directory. Stop that one first; nothing here was touched."""


@final
class LogFileDamaged(StoreError):
    """A file of the commit log is missing, or does not have its size.

    Do what the text says: bring the file back, let the broker copy everything, or accept what is missing.
    """


@final
class StoreMismatch(StoreError):
    """The files on disk and the settings contradict each other. Change the setting that the text names."""


@final
class MessageTooLarge(StoreError):
    """A record, or a batch that must stay in one file, does not fit into a file at all.

    The sender's fault: answer "message illegal". Nothing was stored.
    """


@final
class StoreUnusable(StoreError):
    """The disk refused something that opening the store needs: a permission, a read, a flush.

    Mend what the text names and start again. What was flushed is still there.
    """


@final
class ConfigCorrupt(StoreError):
    """A JSON settings file and its copy are both unreadable.

    Do not start with empty offsets: put a good copy back, or remove both files on purpose.
    """


_NO_ROOM: Final = "make room on its file system, or let the volume grow, and start again; delete no file of the store"
_REMEDIES: Final = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EROFS: "its file system is read-only: mount it for writing and start again. One that turned read-only by "
    "itself has met an error, which the kernel's log names: check the file system first",
    errno.EACCES: "give the user of this process the right to read and to write it, and start again",
    errno.EPERM: "give the user of this process the right to read and to write it, and start again",
}


def is_disk_full(error: OSError) -> bool:
    """Whether there was no room, or the quota is used up: some may come back."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether there was no free descriptor: nothing was tried, so nothing has failed."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def describe_disk_error(error: OSError) -> str:
    """The text of an error of the disk, and what to do about it."""
    return f"{error}; {_REMEDIES.get(error.errno or 0, 'mend that and start again')}"
