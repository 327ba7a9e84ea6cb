"""The checkpoint file: positions and times of what is on the disk, written only after they are true.

    | physic time 8 | logics time 8 | index time 8 | master flushed offset 8 | confirmed offset 8 | ... 4096
                                             at 256:   | seal "GANTRYCP" 8 | flushed 8 | CRC 4 |
                                             at 288:   | seal "GANTRYLB" 8 | begin 8   | CRC 4 |

The first five are RocketMQ's: store times of the newest message that is flushed in log, queues and index, and two
offsets of its replication. The seal is Gantry's, in the same sector, so that no power loss separates them. Its CRC
covers RocketMQ's five fields, too, so that a checkpoint which RocketMQ has written since is not taken for Gantry's:
what RocketMQ calls confirmed is not necessarily flushed.

The second seal records where the log begins, and is durable before an older file is unlinked, unless the disk is too
full for that (``raise_begin``). It is written in place, so that a full disk seldom prevents that. A log that begins
later has lost its first files.
"""

from __future__ import annotations

import logging
import struct
import threading
from typing import Final, NamedTuple, final
from zlib import crc32

from gantry_broker.errors import is_disk_full
from gantry_broker.ports.disk import Disk, DiskFile, write_fully
from gantry_broker.store import crash_points

log = logging.getLogger(__name__)

CHECKPOINT_BYTES: Final = 4096
"""The size of the file, one page, of which most is unused."""
FIELDS: Final = struct.Struct(">qqqqq")
"""RocketMQ's five fields at the start of the file."""
SEAL_POSITION: Final = 256
"""Where Gantry's first seal begins in the file."""
SEAL_MARK: Final = b"GANTRYCP"
"""How the first seal, of the flushed offset, begins."""
SEAL: Final = struct.Struct(">8sqI")
"""The mark, the flushed offset, and the CRC over RocketMQ's fields and that offset."""
BEGIN_SEAL_POSITION: Final = 288
"""The position of the second seal, which has the layout of the first one."""
BEGIN_SEAL_MARK: Final = b"GANTRYLB"
"""How the second seal, of the log's begin, begins."""


class CheckpointContent(NamedTuple):
    """The content of the checkpoint file. ``flushed`` is 0 unless Gantry's seal is intact."""

    log_timestamp_ms: int = 0
    """Store time of the newest message that is on the disk in the log."""

    queues_timestamp_ms: int = 0
    """Store time of the newest message that is on the disk in its queue."""

    index_timestamp_ms: int = 0
    """Store time of the newest message that is on the disk in the key index."""

    master_flushed: int = 0
    """A field of RocketMQ's replication, which Gantry writes as 0."""

    confirmed: int = 0
    """RocketMQ's field of this name. Gantry writes the flushed end of the log to it."""

    flushed: int = 0
    is_ours: bool = True
    """False if RocketMQ or another program wrote the file last, or if it is damaged. True without any file."""
    begin: int | None = None
    """Start of the range up to ``flushed`` in which the log is complete; None unless the second seal is intact."""


def encode_checkpoint(content: CheckpointContent) -> bytes:
    """Return the bytes of a checkpoint file that holds ``content``."""
    fields = FIELDS.pack(*content[:5])
    seal = SEAL.pack(SEAL_MARK, content.flushed, _seal_crc(fields, content.flushed))
    data = bytearray(CHECKPOINT_BYTES)
    data[: len(fields)] = fields
    data[SEAL_POSITION : SEAL_POSITION + SEAL.size] = seal
    if content.begin is not None:
        crc = _begin_crc(fields, content.flushed, content.begin)
        SEAL.pack_into(data, BEGIN_SEAL_POSITION, BEGIN_SEAL_MARK, content.begin, crc)
    return bytes(data)


def decode_checkpoint(data: bytes) -> CheckpointContent:
    """Decode the bytes of a checkpoint file; values that are missing or negative become 0."""
    padded = data.ljust(CHECKPOINT_BYTES, b"\0")
    log_ms, queues_ms, index_ms, master_flushed, confirmed = (max(0, number) for number in FIELDS.unpack_from(padded))
    mark, flushed, crc = SEAL.unpack_from(padded, SEAL_POSITION)
    is_ours = mark == SEAL_MARK and crc == _seal_crc(padded[: FIELDS.size], flushed)
    begin_mark, begin, begin_crc = SEAL.unpack_from(padded, BEGIN_SEAL_POSITION)
    has_begin = is_ours and begin_mark == BEGIN_SEAL_MARK
    has_begin = has_begin and begin_crc == _begin_crc(padded[: FIELDS.size], flushed, begin)
    return CheckpointContent(
        log_ms, queues_ms, index_ms, master_flushed, confirmed,
        flushed if is_ours else 0, is_ours, begin if has_begin else None,
    )  # fmt: skip


def _seal_crc(fields: bytes, flushed: int) -> int:
    return crc32(struct.pack(">q", flushed), crc32(fields))


def _begin_crc(fields: bytes, flushed: int, begin: int) -> int:
    return crc32(struct.pack(">q", begin), _seal_crc(fields, flushed))


@final
class Checkpoint:
    """The file ``<root>/checkpoint``, which is read by the thread that opens the store.

    It is written by the thread ``gantry-point`` (``point_writer``), by the thread that deletes the oldest files of the
    log, and by the thread that opens, changes or closes the store while nothing else uses it. A lock serializes the
    writers.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self._root: Final = root
        self._path: Final = f"{root}/checkpoint"
        self._file: DiskFile | None = None
        self._written: CheckpointContent | None = None
        self._lock: Final = threading.Lock()

    def read(self) -> CheckpointContent:
        """Return what the last run wrote; an empty ``CheckpointContent`` without a file."""
        if not self._disk.exists(self._path):
            return CheckpointContent()
        return decode_checkpoint(self._disk.read_file(self._path)[:CHECKPOINT_BYTES])

    def write(self, content: CheckpointContent) -> None:
        """Make ``content`` durable. What it describes must be durable already. ``begin`` never goes back."""
        with self._lock:
            known = self._written.begin if self._written is not None else None
            if known is not None and content.begin is not None and content.begin < known:
                content = content._replace(begin=known)
            self._write(content)

    def raise_begin(self, begin: int) -> bool:
        """Record durably that the log may begin at ``begin``, before the files before it are deleted.

        Return False if the disk is too full to create the file or, on a file system that copies on write, to overwrite
        it. Then the files are deleted first, to make room, and the caller retries. A process that ends in between
        leaves a begin that is too low, and the next start reports the deleted range as lost.
        """
        with self._lock:
            written = self._written or CheckpointContent()  # Nothing was written if the disk was full.
            if written.begin is not None and written.begin >= begin:
                return True
            try:
                self._write(written._replace(begin=begin))
            except OSError as exc:
                if not is_disk_full(exc):
                    raise
                log.warning(
                    "failed to record the new start of the log; retrying after files are deleted",
                    extra={"reason": str(exc)},
                )
                return False
            return True

    def invalidate_flushed(self, begin: int) -> None:
        """Record durably that no byte of the log is known to be flushed, since the log is about to be discarded.

        The new log begins at ``begin``.
        """
        with self._lock:
            written = self._written or CheckpointContent()
            self._write(written._replace(confirmed=0, flushed=0, begin=begin))

    def _write(self, content: CheckpointContent) -> None:
        if content == self._written:
            return
        if self._file is None:
            self._file = self._open()
        write_fully(self._file, encode_checkpoint(content), 0)
        crash_points.hit(crash_points.MID_CHECKPOINT)
        self._file.sync()
        self._written = content

    def _open(self) -> DiskFile:
        if self._disk.exists(self._path) and self._disk.file_size(self._path) == CHECKPOINT_BYTES:
            return self._disk.open(self._path)
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
        file = self._disk.create(self._path, CHECKPOINT_BYTES, reserve=CHECKPOINT_BYTES)
        self._disk.sync_directory(self._root)
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
