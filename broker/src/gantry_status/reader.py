"""The reading half: never blocks, never mixes two publications, follows a broker over its restarts.

A look is a ``stat`` of the path, one ``pread`` of the whole page and one of the sequence it chose: tens of
microseconds. Read calls rather than a map, because a map of a file that somebody else truncates kills the reader with
SIGBUS, and a sidecar must outlive everything.

How a look can go wrong, and what the reader does then:

- another inode, or another header in the same one: the broker was started again; open and check anew;
- the newest copy is odd, changes while it is read, or has a wrong CRC: take the other one, or look again, so often;
- nothing whole in all these attempts: ``PageTorn``, and the caller decides.

What it refuses to judge is the broker. It says how old the publication is and whether its writer lives; what
follows from it is for whoever asks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass
from typing import Final, final

from gantry_status.errors import PageAbsent, PageTooShort, PageTorn, PageUnreadable, StatusPageError
from gantry_status.facts import Origin, Status
from gantry_status.layout import (
    COPIES_COUNT,
    HEADER_BYTES,
    SEQUENCE,
    decode_copy,
    decode_header,
    sequence_of,
)
from gantry_status.moment import Now, machine_boot_id, now

ATTEMPTS_MAX: Final = 100
"""Attempts to read a page while it is written. Ten were not always enough beside a busy writer; a page that stays torn
costs a millisecond."""
PUBLISH_INTERVAL_MS: Final = 100
"""How often a broker publishes, when nothing changes, too."""
STALE_AFTER_MS: Final = 2_000
"""So long without a publication means that the event loop stands still: stopped, wedged, or starved."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One publication, and what the reader knows about it."""

    origin: Origin
    status: Status
    age_ms: int | None
    """Time since the publication; None when it was made before the machine was started last."""
    is_writer_alive: bool | None
    """Whether the process that made the page still runs; None where the file system cannot tell."""

    def is_stale(self, after_ms: int = STALE_AFTER_MS) -> bool:
        """Whether a broker that should publish does not. Its last word, stopped or failed, does not get old."""
        if self.status.phase.is_final:
            return False
        return self.is_writer_alive is False or self.age_ms is None or self.age_ms > after_ms


@final
class PageReader:
    """A page that somebody publishes at ``path``. One thread at a time."""

    def __init__(self, path: str, *, clock: Now = now) -> None:
        """Touches nothing: the page need not be there yet."""
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
        """The newest whole publication. Raises a leaf of ``StatusPageError``."""
        try:
            status = self._read()
            is_alive = self._is_writer_alive()
        except FileNotFoundError as error:
            self.close()
            raise PageAbsent(f"there is no status page at {self.path}") from error
        except OSError as error:
            self.close()
            raise PageUnreadable(f"{self.path} cannot be read: {error.strerror}") from error
        except StatusPageError as error:
            self.close()
            raise type(error)(f"{self.path} is no status page that can be read: {error}") from error
        origin = self._origin
        assert origin is not None, "a page that was read has a header"
        return Reading(origin=origin, status=status, age_ms=self._age_ms(origin, status), is_writer_alive=is_alive)

    def close(self) -> None:
        """Let go of the file. Another ``read`` opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._identity = None
        self._header = b""

    def _read(self) -> Status:
        for _ in range(ATTEMPTS_MAX):
            self._follow()
            data = os.pread(self._descriptor, HEADER_BYTES + COPIES_COUNT * self._copy_bytes, 0)
            if data[:HEADER_BYTES] != self._header:
                self.close()  # somebody wrote another page over this one: begin anew
                continue
            status = self._newest(data)
            if status is not None:
                return status
        raise PageTorn(f"no whole publication in {ATTEMPTS_MAX} attempts")

    def _follow(self) -> None:
        """Have the file open that is at the path now."""
        facts = os.stat(self.path)
        if self._identity == (facts.st_dev, facts.st_ino) and self._descriptor >= 0:
            return
        self.close()
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        facts = os.fstat(self._descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise PageUnreadable("it is no file")
        header = os.pread(self._descriptor, HEADER_BYTES, 0)
        self._origin, self._copy_bytes = decode_header(header)
        size = HEADER_BYTES + COPIES_COUNT * self._copy_bytes
        if facts.st_size < size:
            raise PageTooShort(f"it has {facts.st_size} bytes of {size}")
        self._header = header
        self._identity = (facts.st_dev, facts.st_ino)

    def _newest(self, data: bytes) -> Status | None:
        """The newest copy that is whole and still the same after it was read."""
        size = self._copy_bytes
        if len(data) < HEADER_BYTES + COPIES_COUNT * size:
            raise PageTooShort(f"it was cut to {len(data)} bytes")
        found = [(sequence_of(data[start : start + SEQUENCE.size]), start) for start in self._starts()]
        for sequence, start in sorted(found, reverse=True):
            # Asked again before the copy is decoded, not after: the shorter the time, the rarer another look.
            if sequence_of(os.pread(self._descriptor, SEQUENCE.size, start)) == sequence:
                status = decode_copy(data[start : start + size])
                if status is not None:
                    return status
        return None

    def _starts(self) -> list[int]:
        return [HEADER_BYTES + number * self._copy_bytes for number in range(COPIES_COUNT)]

    def _is_writer_alive(self) -> bool | None:
        """Whether somebody holds the exclusive lock that a writer has for life."""
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
