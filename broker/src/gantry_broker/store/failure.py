"""The final failure of a store: a failed write or sync of the log, or a log file of another store, ends it.

After a failed sync the kernel may call pages clean that are on no disk, so nothing that happens later proves anything:
the log turns read-only, ``flushed`` never moves again, and ``on_fatal`` is told, once, in the thread in which it
happened. How far the log was flushed is written down, if the disk still takes it: the next start rewrites everything
behind that, and never believes the page cache about it.

A log file that another store's has replaced ends it as well: everything that is derived from the log would follow the
foreign records, and a record that a replica gives back could hide whose file it is. The next start sets it aside.
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
"""Offsets are 64-bit."""


def decode_flush_failure(data: bytes) -> int:
    """The offset in the file ``flush-failed``; 0 where it is damaged."""
    text = data.partition(b" ")[0]
    is_number = text.isdigit() and len(text) < OFFSET_DIGITS_MAX
    return int(text) if is_number and data == _encode_flush_failure(int(text)) else 0


def _encode_flush_failure(flushed: int) -> bytes:
    text = b"%d" % flushed
    return b"%b %08x\n" % (text, crc32(text))


@final
class FailureRecord:
    """``<root>/flush-failed``: up to where the log was flushed when a flush failed."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self._path: Final = f"{root}/flush-failed"

    def read(self) -> int | None:
        """The offset, 0 for a record that cannot be read, or None when no flush has failed."""
        if not self._disk.exists(self._path):
            return None
        return decode_flush_failure(self._disk.read_file(self._path))

    def write(self, flushed: int) -> None:
        self._disk.write_file(self._path, _encode_flush_failure(flushed))

    def remove(self) -> None:
        """What it was about has been rewritten and synced."""
        remove_durably(self._disk, self._path)


@final
class StoreFailure:
    """Whether the store has failed, and why. Any thread may ask and report."""

    def __init__(self, commit_log: CommitLog, record: FailureRecord, on_fatal: Callable[[Exception], None]) -> None:
        self.error: StoreFailed | None = None
        self._log: Final = commit_log
        self._record: Final = record
        self._on_fatal: Final = on_fatal
        self._lock: Final = threading.Lock()

    def report(self, what: str, cause: OSError) -> StoreFailed:
        """``what`` failed. The first report counts; the answer is the error to raise."""
        with self._lock:
            if self.error is not None:
                return self.error
            self._log.refuse_writes()
            error = StoreFailed(f"{what} failed: {describe_disk_error(cause)}")
            error.__cause__ = cause
            self.error = error
        with suppress(OSError):
            self._record.write(self._log.flushed)
        log.critical("the log is read-only now", extra={"reason": str(error), "flushed": self._log.flushed})
        self._on_fatal(error)
        return error

    def report_foreign(self, path: str, start: int, end: int) -> StoreFailed:
        """The log file that holds ``[start, end)`` is another store's now. The answer is the error to raise."""
        with self._lock:
            if self.error is not None:
                return self.error
            self._log.refuse_writes()
            error = self.error = StoreFailed(f"{path} was replaced by a file of another store")
        log.critical(
            "a log file was replaced by one of another store; the next start sets it aside",
            extra={
                "path": path, "start": start, "end": end,
                "remedy": "start again; where no replica has these messages, put this store's own file back first",
            },
        )  # fmt: skip
        self._on_fatal(error)
        return error
