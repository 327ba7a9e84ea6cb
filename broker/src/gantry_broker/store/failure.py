"""Permanent failure of a store: a commit, a sync or a small file failed, a log file is of another store, or changed.

A failed write of an append is none: it only makes the log read-only (``CommitLog.write_all``), and reads are served.

After a failed fsync the kernel may report pages as clean that are on no disk, so no later fsync proves anything. The
log becomes read-only, ``flushed`` never moves again, and ``on_fatal`` is called, once, in the thread in which it
happened. The flushed offset is recorded in a file, if the disk still accepts writes: the next start rewrites everything
after it, and never trusts the page cache there.

A log file that was replaced by one of another store is a permanent failure as well: everything that is derived from the
log would follow the foreign records, and records from a replica, written over foreign ones, would hide that the file is
foreign. The next start sets the file aside.

A store whose damaged records were replaced by void ones must be opened again, because its memory and its queues still
have what the lost records said.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final
from zlib import crc32

from gantry_broker.errors import StoreFailed, describe_disk_error
from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.commit_log import CommitLog

log = logging.getLogger(__name__)


OFFSET_DIGITS_MAX: Final = 20
"""An offset has fewer digits than this, since it is less than 2**63."""


def decode_flush_failure(data: bytes) -> int:
    """Decode the offset in the file ``flush-failed``; return 0 if it is damaged."""
    text = data.partition(b" ")[0]
    is_number = text.isdigit() and len(text) < OFFSET_DIGITS_MAX
    return int(text) if is_number and data == _encode_flush_failure(int(text)) else 0


def _encode_flush_failure(flushed: int) -> bytes:
    text = b"%d" % flushed
    return b"%b %08x\n" % (text, crc32(text))


@final
class FailureRecord:
    """The file ``<root>/flush-failed``, with the flushed end of the log at a failed flush."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self._path: Final = f"{root}/flush-failed"

    def read(self) -> int | None:
        """Return the offset; 0 for an unreadable record, None if no flush has failed."""
        if not self._disk.exists(self._path):
            return None
        return decode_flush_failure(self._disk.read_file(self._path))

    def write(self, flushed: int) -> None:
        self._disk.write_file(self._path, _encode_flush_failure(flushed))

    def remove(self) -> None:
        """Remove the file, when the log after the offset was rewritten and synced."""
        remove_durably(self._disk, self._path)


@final
class StoreFailure:
    """The permanent failure of a store, if there is one. Any thread may read and report it."""

    def __init__(self, commit_log: CommitLog, record: FailureRecord, on_fatal: Callable[[Exception], None]) -> None:
        self.error: StoreFailed | None = None
        self._log: Final = commit_log
        self._record: Final = record
        self._on_fatal: Final = on_fatal
        self._lock: Final = threading.Lock()

    def report(self, what: str, cause: OSError) -> StoreFailed:
        """Report that ``what`` failed. Only the first report has an effect; return the error to raise."""
        with self._lock:
            if self.error is not None:
                return self.error
            self._log.refuse_writes()
            error = StoreFailed(f"{what} failed: {describe_disk_error(cause)}")
            error.__cause__ = cause
            self.error = error
        with suppress(OSError):
            self._record.write(self._log.flushed)
        log.critical(
            "commit log is read-only after a failed write or fsync",
            extra={"reason": str(error), "flushed": self._log.flushed},
        )
        self._on_fatal(error)
        return error

    def report_foreign(self, path: str, start: int, end: int) -> StoreFailed:
        """Report that the log file of ``[start, end)`` belongs to another store; return the error to raise."""
        with self._lock:
            if self.error is not None:
                return self.error
            self._log.refuse_writes()
            error = self.error = StoreFailed(f"{path} was replaced by a file of another store")
        log.critical(
            "log file was replaced by a file of another store; the next start sets it aside",
            extra={
                "path": path, "start": start, "end": end,
                "remedy": "restart the broker; if no replica has these messages, put this store's own file back first",
            },
        )  # fmt: skip
        self._on_fatal(error)
        return error

    def report_void(self, start: int, end: int, path: str) -> None:
        """Report that the damage in ``[start, end)`` was replaced by void records; ``path`` has a copy of it."""
        with self._lock:
            if self.error is not None:
                return
            self._log.refuse_writes()
            text = f"the damaged records in [{start}, {end}), which no replica has, were replaced by void ones"
            error = self.error = StoreFailed(f"{text}; the log must be read again")
        extra = {"start": start, "end": end, "set_aside": path}
        log.critical("damaged messages that no replica has were removed from the log; restarting", extra=extra)
        self._on_fatal(error)
