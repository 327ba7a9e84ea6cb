"""The writer of a status page: a new file at each start, then one publication after the other.

    <path>.new: whole page with copy 1, locked  --rename-->  <path>  --> copy 0 --> copy 1 --> copy 0 --> ...

The invariant: **a reader never gets an incomplete page or publication.** The file has its header and a first
publication before it gets its name, so it is never short or empty, and it is never truncated. A later publication first
makes the sequence of its copy odd, then writes the rest, then the even sequence; the other copy is not changed.

The page is written with ``pwrite``, not through a map: a store to a mapped page that is under writeback can wait for
the disk, and would block the interpreter with every other thread meanwhile. The page cache is the same, so readers may
map the file. The file is never synced: a status page has no value after a crash of its machine.

The file is locked (``flock``) while the writer lives. So a second broker cannot take the path of a running one, and a
reader detects at once that a writer was killed, without waiting for the heartbeat to become stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from typing import Final, final

from gantry_status.clocks import Clock, machine_boot_id, now
from gantry_status.errors import PageInUse
from gantry_status.layout import (
    COPIES_COUNT,
    COPY_BYTES,
    HEADER_BYTES,
    MINOR,
    PAGE_BYTES,
    SEQUENCE,
    encode_copy,
    encode_header,
)
from gantry_status.page_values import HotPath, Origin, Status


def new_origin(
    broker_name: str,
    version: str,
    *,
    hot_path: HotPath = HotPath.UNKNOWN,
    hot_path_reason: str = "",
    clock: Clock = now,
) -> Origin:
    """Return the origin for this process, with a new boot id."""
    started = clock()
    return Origin(
        boot_id=uuid.uuid4(),
        machine_boot_id=machine_boot_id(),
        started_wall_ms=started.wall_ms,
        started_boottime_ns=started.boottime_ns,
        pid=os.getpid(),
        broker_name=broker_name,
        version=version,
        minor=MINOR,
        hot_path=hot_path,
        hot_path_reason=hot_path_reason,
    )


@final
class PageWriter:
    """A page that this process publishes. It is used by one thread at a time."""

    def __init__(self, path: str, origin: Origin, first: Status) -> None:
        """Create the page and rename it into place. Raises ``PageInUse``, or ``OSError`` with the path."""
        self.path: Final = path
        self.origin: Final = origin
        self._sequence = 0
        self._descriptor = -1
        _refuse_if_taken(path)
        temporary = f"{path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(encode_header(origin) + bytes(PAGE_BYTES - HEADER_BYTES), 0)
            self.publish(first)
            os.replace(temporary, path)
        except BaseException:
            self.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def __repr__(self) -> str:
        return f"<PageWriter {self.path} publications={self._sequence // 2}>"

    def publish(self, status: Status) -> None:
        """Publish ``status``. After an ``OSError`` the previous publication stays valid, and the next may succeed."""
        sequence = self._sequence + 2
        copy = encode_copy(sequence, status)
        position = HEADER_BYTES + sequence // 2 % COPIES_COUNT * COPY_BYTES
        self._write(SEQUENCE.pack(sequence - 1), position)
        self._write(copy[SEQUENCE.size :], position + SEQUENCE.size)
        self._write(copy[: SEQUENCE.size], position)
        self._sequence = sequence

    def _write(self, data: bytes, position: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], position + done)

    def close(self) -> None:
        """Close and unlock the file. The page stays with its last publication."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _refuse_if_taken(path: str) -> None:
    """Raise ``PageInUse`` if a running writer holds the page. The shared lock does not conflict with readers."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PageInUse(f"another process publishes its status at {path}") from error
    finally:
        os.close(descriptor)
