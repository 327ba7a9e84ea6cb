"""The checkpoint file: small facts about what is on the disk, written only after they are true.

    | physic time 8 | logics time 8 | index time 8 | master flushed offset 8 | confirmed offset 8 | ... 4096
                                             at 256:   | seal "GANTRYCP" 8 | flushed 8 | CRC 4 |

The first five are RocketMQ's: store times of the newest message that is flushed in log, queues and index, and two
offsets of its replication. The seal is ours, in the same sector, so that no power loss parts them. Its CRC covers
RocketMQ's five, too, so that a checkpoint which RocketMQ has written since does not pass for ours: what it calls
confirmed is not necessarily flushed.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, final
from zlib import crc32

from gantry_broker.ports.disk import Disk, DiskFile, write_fully
from gantry_broker.store import points

CHECKPOINT_BYTES: Final = 4096
FACTS: Final = struct.Struct(">qqqqq")
SEAL_POSITION: Final = 256
SEAL_MARK: Final = b"GANTRYCP"
SEAL: Final = struct.Struct(">8sqI")


class CheckpointFacts(NamedTuple):
    """What the file says. ``flushed`` is 0 unless the seal is ours and whole."""

    log_timestamp_ms: int = 0
    queues_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed: int = 0
    confirmed: int = 0
    flushed: int = 0
    is_ours: bool = True
    """False when somebody else has written the file since we did. True without any file."""


def encode_checkpoint(facts: CheckpointFacts) -> bytes:
    """The whole file."""
    head = FACTS.pack(*facts[:5])
    seal = SEAL.pack(SEAL_MARK, facts.flushed, _seal_crc(head, facts.flushed))
    return head + bytes(SEAL_POSITION - len(head)) + seal + bytes(CHECKPOINT_BYTES - SEAL_POSITION - len(seal))


def decode_checkpoint(data: bytes) -> CheckpointFacts:
    """What ``data`` says; zeros for whatever is missing or negative."""
    padded = data.ljust(CHECKPOINT_BYTES, b"\0")
    log_ms, queues_ms, index_ms, master_flushed, confirmed = (max(0, number) for number in FACTS.unpack_from(padded))
    mark, flushed, crc = SEAL.unpack_from(padded, SEAL_POSITION)
    is_ours = mark == SEAL_MARK and crc == _seal_crc(padded[: FACTS.size], flushed)
    return CheckpointFacts(log_ms, queues_ms, index_ms, master_flushed, confirmed, flushed if is_ours else 0, is_ours)


def _seal_crc(head: bytes, flushed: int) -> int:
    return crc32(struct.pack(">q", flushed), crc32(head))


@final
class Checkpoint:
    """``<root>/checkpoint``. Read at the start by the loop's thread, then written by the flush thread only."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self._root: Final = root
        self._path: Final = f"{root}/checkpoint"
        self._file: DiskFile | None = None
        self._written: CheckpointFacts | None = None

    def read(self) -> CheckpointFacts:
        """What the last run left; zeros without a file."""
        if not self._disk.exists(self._path):
            return CheckpointFacts()
        return decode_checkpoint(self._disk.read_file(self._path)[:CHECKPOINT_BYTES])

    def write(self, facts: CheckpointFacts) -> None:
        """Make ``facts`` durable. What they describe must be durable already."""
        if facts == self._written:
            return
        if self._file is None:
            self._file = self._open()
        write_fully(self._file, encode_checkpoint(facts), 0)
        points.reached(points.MID_CHECKPOINT)
        self._file.sync()
        self._written = facts

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
