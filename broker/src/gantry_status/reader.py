"""The reader of a status page: it never blocks, never mixes two publications, and follows a broker over restarts.

A read is a ``stat`` of the path, one ``pread`` of the whole page, one of the chosen copy's sequence, and an attempt to
lock the file: tens of microseconds. It uses read calls rather than a map, because a map of a file that another process
truncates kills the reader with SIGBUS, and a sidecar must survive that.

Conditions during a read, and the reader's action:

- another inode, or another header in the same one: the broker was restarted; open and check the file again;
- the newest copy is odd, changes while it is read, or has a wrong CRC: use the other one, or read again, with a limit;
- no whole copy in all these attempts: ``PageTorn``, and the caller decides.

The reader does not judge the broker. It reports how old the publication is and whether its writer lives; the caller
decides what follows.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass
from typing import Final, final

from gantry_status.clocks import Clock, machine_boot_id, now
from gantry_status.errors import PageNotFound, PageTooShort, PageTorn, PageUnreadable, StatusPageError
from gantry_status.layout import (
    COPIES_COUNT,
    HEADER_BYTES,
    SEQUENCE,
    decode_copy,
    decode_header,
    sequence_of,
)
from gantry_status.page_values import Origin, Status

ATTEMPTS_MAX: Final = 100
"""The number of attempts to read a page that is being written. Ten were not always enough beside a busy writer; a page
that stays torn costs a millisecond."""
PUBLISH_INTERVAL_MS: Final = 100
"""How often a broker publishes, even without changes."""
STALE_AFTER_MS: Final = 2_000
"""The age of a publication after which the event loop counts as stalled: stopped, blocked, or starved."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One publication, and what the reader determined about it."""

    origin: Origin
    status: Status
    age_ms: int | None
    """The age of the publication; None if it is from another machine, or from before the machine's last boot."""
    is_writer_alive: bool | None
    """Whether the process that made the page still runs; None if the file system cannot tell."""

    def is_stale(self, after_ms: int = STALE_AFTER_MS) -> bool:
        """Return whether a broker fails to publish. A final publication, stopped or failed, does not become stale."""
        if self.status.phase.is_final:
            return False
        return self.is_writer_alive is False or self.age_ms is None or self.age_ms > after_ms


@final
class PageReader:
    """A reader of the page at ``path``. It is used by one thread at a time."""

    def __init__(self, path: str, *, clock: Clock = now) -> None:
        """Create a reader without opening the page, which need not exist yet."""
        self.path: Final = path
        self._now: Final = clock
        self._machine_boot_id: Final = machine_boot_id()
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None
        self._header = b""
        self._origin: Origin | None = None
        self._copy_bytes = 0

    def __repr__(self) -> str:
        return f"<PageReader {self.path} {'open' if self._descriptor >= 0 else 'closed'}>"

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> Reading:
        """Return the newest whole publication. Raises a subclass of ``StatusPageError``."""
        try:
            status = self._read()
            is_alive = self._is_writer_alive()
        except FileNotFoundError as error:
            self.close()
            raise PageNotFound(f"there is no status page at {self.path}") from error
        except OSError as error:
            self.close()
            raise PageUnreadable(f"{self.path} cannot be read: {error.strerror}") from error
        except StatusPageError as error:
            self.close()
            raise type(error)(f"{self.path} is not a readable status page: {error}") from error
        origin = self._origin
        assert origin is not None, "a page that was read has a header"
        return Reading(origin=origin, status=status, age_ms=self._age_ms(origin, status), is_writer_alive=is_alive)

    def close(self) -> None:
        """Close the file. Another ``read`` opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._identity = None
        self._header = b""

    def _read(self) -> Status:
        for _ in range(ATTEMPTS_MAX):
            self._open_current()
            data = os.pread(self._descriptor, HEADER_BYTES + COPIES_COUNT * self._copy_bytes, 0)
            if data[:HEADER_BYTES] != self._header:
                self.close()  # another page was written over this one: open it again
                continue
            status = self._newest(data)
            if status is not None:
                return status
        raise PageTorn(f"no whole publication in {ATTEMPTS_MAX} attempts")

    def _open_current(self) -> None:
        """Open the file that is now at the path, unless it is already open."""
        file_status = os.stat(self.path)
        if self._identity == (file_status.st_dev, file_status.st_ino) and self._descriptor >= 0:
            return
        self.close()
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        file_status = os.fstat(self._descriptor)
        if not stat.S_ISREG(file_status.st_mode):
            raise PageUnreadable("it is not a regular file")
        header = os.pread(self._descriptor, HEADER_BYTES, 0)
        self._origin, self._copy_bytes = decode_header(header)
        size = HEADER_BYTES + COPIES_COUNT * self._copy_bytes
        if file_status.st_size < size:
            raise PageTooShort(f"it has {file_status.st_size} bytes of {size}")
        self._header = header
        self._identity = (file_status.st_dev, file_status.st_ino)

    def _newest(self, data: bytes) -> Status | None:
        """Return the newest copy that is whole and has not changed since it was read."""
        size = self._copy_bytes
        if len(data) < HEADER_BYTES + COPIES_COUNT * size:
            raise PageTooShort(f"it was cut to {len(data)} bytes")
        found = [(sequence_of(data[start : start + SEQUENCE.size]), start) for start in self._starts()]
        for sequence, start in sorted(found, reverse=True):
            # The sequence is read again before the copy is decoded, to keep the time in which it can change short.
            if sequence_of(os.pread(self._descriptor, SEQUENCE.size, start)) == sequence:
                status = decode_copy(data[start : start + size])
                if status is not None:
                    return status
        return None

    def _starts(self) -> list[int]:
        return [HEADER_BYTES + number * self._copy_bytes for number in range(COPIES_COUNT)]

    def _is_writer_alive(self) -> bool | None:
        """Return whether a process holds the exclusive lock, which a writer holds while it lives."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def _age_ms(self, origin: Origin, status: Status) -> int | None:
        if origin.machine_boot_id != self._machine_boot_id:
            return None
        return max(0, self._now().boottime_ns - status.published_boottime_ns) // 1_000_000
