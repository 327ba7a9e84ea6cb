"""The log-end file: how far the log was written, in a mapped page that survives a kill of the process.

    <root>/log-end    | a sealed line and JSON: store, generation, machine | zeros | heads 8 x 24 | end 8, inverted 8 |
    a head            | where a log file begins 8 | CRC-32 of its first record 8 | the two, exclusive or, inverted 8 |

Every append changes the page, or with SYNC_FLUSH every flush. A process that is killed loses nothing of the page cache,
nor of write buffers that survive it. So what was written before a kill is present at the next start, and this page,
which is in the page cache too, records how far that was. A log that ends before the recorded end has lost its end, for
example with a write buffer that was truncated, replaced, rolled back or removed. And a kill tears no record: damage
before the recorded end, with whole records after it, is corruption of stored data.

The page is valid for one start of one store on one boot of the machine. After a power loss pages may have reached the
disk in any order, or not at all, so on another boot it is ignored; for the same reason it is never synced. A store
whose write buffers are anonymous memory has no such page.

The end is stored twice, and the lesser one counts: neither a kill between the two writes nor a flipped bit makes it
more than was written. A page that cannot be read is ignored. The heads are those of the newest files, which
``log-heads.json`` may not have yet (see ``file_heads``).
"""

from __future__ import annotations

import logging
import struct
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.ports.disk import Disk, DiskFile
from gantry_broker.store.identity import StoreIdentity
from gantry_store_files.sealed import decode_sealed, encode_sealed

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
"""The size of the file, one page of memory."""
ENDS: Final = struct.Struct(">QQ")
"""The end and its inverted copy, the last bytes of the page."""
ENDS_POSITION: Final = PAGE_BYTES - ENDS.size
"""Where the end of the log is in the page."""
HEAD: Final = struct.Struct(">QQQ")
"""A head: base offset of a file, CRC-32, and the check of the two."""
HEADS_MAX: Final = 8
"""How many heads of new files fit into the page until ``log-heads.json`` is written."""

HEADS_POSITION: Final = ENDS_POSITION - HEADS_MAX * HEAD.size
"""Where the heads begin in the page."""
_ALL_BITS: Final = (1 << 64) - 1


class LogEndOwner(msgspec.Struct, frozen=True):
    """The start of a store that wrote a log-end page."""

    store: str
    """The uuid of the store."""

    generation: int
    """The number of the start."""

    machine: str
    """The boot id of the machine, and the scope of its memory."""


class LogEnd(NamedTuple):
    """The decoded content of a log-end page."""

    owner: LogEndOwner
    end: int
    """The log was written at least up to this offset."""

    heads: dict[int, int]
    """The CRC-32 of the first record of each new log file, by the file's base offset."""


def encode_log_end(owner: LogEndOwner, end: int) -> bytes:
    """Encode the whole page, without heads."""
    return encode_sealed(owner).ljust(ENDS_POSITION, b"\0") + ENDS.pack(end, end ^ _ALL_BITS)


def decode_log_end(data: bytes) -> LogEnd:
    """Decode the whole page. Raises ValueError if it is damaged."""
    if len(data) != PAGE_BYTES:
        raise ValueError(f"it has {len(data)} bytes, not {PAGE_BYTES}")
    end, inverted = ENDS.unpack_from(data, ENDS_POSITION)
    heads = {
        base: crc
        for base, crc, check in HEAD.iter_unpack(data[HEADS_POSITION:ENDS_POSITION])
        if check == base ^ crc ^ _ALL_BITS
    }
    owner = decode_sealed(data[:HEADS_POSITION].rstrip(b"\0"), LogEndOwner)
    return LogEnd(owner, min(end, inverted ^ _ALL_BITS), heads)


def read_memory_scope(disk: Disk, root: str) -> str:
    """Return the scope of the memory in which the store's last start ran; empty if its page cannot be read."""
    path = f"{root}/log-end"
    try:
        return decode_log_end(disk.read_file(path)).owner.machine.partition("/")[2] if disk.exists(path) else ""
    except (ValueError, OSError):
        return ""  # The start reports why.


@final
class LogEndFile:
    """``<root>/log-end``. Read and begun by the thread that opens the store.

    Then ``set`` belongs to the loop's thread, which moves ``wrote``. With SYNC_FLUSH the page follows ``flushed``
    instead: ``raise_to`` is called by the holder of the sync lock, and by the loop. If both call it at once, the lesser
    end may stay until the next call. ``note_head`` belongs to the loop's thread, too. The thread that changes the log
    while nothing else uses the store calls ``lower`` and ``set``.
    """

    def __init__(self, disk: Disk, root: str, machine: str) -> None:
        self._disk: Final = disk
        self._path: Final = f"{root}/log-end"
        self._machine: Final = machine
        self._file: DiskFile | None = None
        self._view: memoryview | None = None
        self._end = 0
        self._slot = 0

    def read(self, identity: StoreIdentity | None) -> LogEnd | None:
        """Return the page that the last start of this store wrote on this boot of the machine.

        None if there is no such page or it is damaged. The latter is logged.
        """
        if identity is None or not self._machine or not self._disk.exists(self._path):
            return None
        try:
            found = decode_log_end(self._disk.read_file(self._path))
        except ValueError as exc:
            log.warning(
                "log-end file is damaged and is ignored; this start cannot detect lost write buffers",
                extra={"path": self._path, "reason": str(exc)},
            )
            return None
        is_last = found.owner == LogEndOwner(identity.uuid, identity.generation, self._machine)
        return found if is_last else None

    def begin(self, identity: StoreIdentity, end: int) -> None:
        """Write a new page for this start. If it cannot be created, as on a full disk, there is none."""
        if not self._machine:
            self.remove()
            return
        try:
            self._open()
        except OSError as exc:
            log.warning(
                "could not create the log-end file; the next start cannot detect lost write buffers",
                extra={"path": self._path, "reason": str(exc)},
            )
            self.remove()
            return
        view = self._view
        assert view is not None, "it was opened just now"
        self.set(0)  # a kill before the next statements are complete leaves a page that claims nothing
        view[:] = encode_log_end(LogEndOwner(identity.uuid, identity.generation, self._machine), 0)
        self.set(end)

    def _open(self) -> None:
        disk, path = self._disk, self._path
        if disk.exists(path) and disk.file_size(path) != PAGE_BYTES:
            disk.remove(path)
        file = disk.open(path) if disk.exists(path) else disk.create(path, PAGE_BYTES)
        try:
            file.reserve(PAGE_BYTES)
            self._view = file.view
        except BaseException:
            file.close()
            raise
        self._file = file

    def set(self, end: int) -> None:
        """Record that the log was written up to ``end``. Does nothing without a page."""
        view = self._view
        if view is not None:
            self._end = end
            ENDS.pack_into(view, ENDS_POSITION, end, end ^ _ALL_BITS)

    def raise_to(self, end: int) -> None:
        """Record that the log was written at least up to ``end``."""
        if end > self._end:
            self.set(end)

    def lower(self, end: int) -> None:
        """Record that the log is about to be truncated at ``end`` or before."""
        view = self._view
        if view is None:
            return
        for position in range(HEADS_POSITION, ENDS_POSITION, HEAD.size):
            if HEAD.unpack_from(view, position)[0] >= end:
                view[position : position + HEAD.size] = bytes(HEAD.size)
        self.set(min(self._end, end))

    def note_head(self, base_offset: int, crc: int) -> None:
        """Record the CRC-32 of the first record of a new log file."""
        view = self._view
        if view is not None:
            position = HEADS_POSITION + self._slot * HEAD.size
            self._slot = (self._slot + 1) % HEADS_MAX
            HEAD.pack_into(view, position, base_offset, crc, base_offset ^ crc ^ _ALL_BITS)

    def remove(self) -> None:
        """Close and delete the file, so that the next start has no recorded end."""
        self.close()
        if self._disk.exists(self._path):
            self._disk.remove(self._path)

    def close(self) -> None:
        self._view = None
        if self._file is not None:
            self._file.close()
            self._file = None
