"""RocketMQ's file of its progress of timers, `config/timercheck`: read at a start, and written with Gantry's progress.

    last read ms | position in RocketMQ's timer log | queue offset | queue offset of the master | version, 3 numbers

RocketMQ keeps pending timers in files of its own, `timerwheel` and `timerlog`, which Gantry does not write. So a
RocketMQ broker that takes over the store has to read the timer topic from the first pending message on: that is the
queue offset in the file. It delivers again what is behind this offset and was due, and nothing from before it. Its own
files from before Gantry have messages that are delivered meanwhile, so they are removed once the file is written.

RocketMQ has no checksum in its file. So a file without Gantry's seal counts only if RocketMQ's files of pending timers
are in the store, too, as a RocketMQ broker leaves them. Otherwise it is damaged: if it were believed, wrong numbers
would skip timers that are pending.
"""

from __future__ import annotations

import logging
import struct
from contextlib import closing
from typing import Final, NamedTuple

from gantry_broker.ports import Disk
from gantry_broker.server.timers.entries import JAVA_PRECISION_MAX_MS
from gantry_broker.server.timers.marks import Mark, TimerState
from gantry_wire.checksum import crc32
from gantry_wire.commands.admin import DataVersion

log = logging.getLogger(__name__)

FILE: Final = "timercheck"
WHEEL_FILES: Final = ("timerwheel", "timerlog")
"""RocketMQ's files of pending timers, in the root of the store."""
FILE_BYTES: Final = 4096
"""RocketMQ maps so much of the file."""
QUEUE_OFFSET_MAX: Final = 1 << 62
"""An offset beyond any queue: RocketMQ's progress has only a time."""
_NUMBERS: Final = struct.Struct(">4q")
_ALL: Final = struct.Struct(">7q")
_CRC: Final = struct.Struct(">I")
_MARK: Final = b"GANTRY"


class JavaProgress(NamedTuple):
    """What Gantry writes into the file."""

    last_due_ms: int
    """Messages that are due up to this time, and before the queue offset, are delivered."""

    queue_offset: int
    """The first message of the queue that may be pending."""

    version: DataVersion

    def encode(self) -> bytes:
        """Return the content of the file."""
        version = self.version
        numbers = (version.state_version, version.timestamp, version.counter)
        last_ms = self.last_due_ms // JAVA_PRECISION_MAX_MS * JAVA_PRECISION_MAX_MS  # RocketMQ counts whole intervals.
        data = _ALL.pack(last_ms, 0, self.queue_offset, self.queue_offset, *numbers)
        return (data + _seal(data)).ljust(FILE_BYTES, b"\0")


def _seal(data: bytes) -> bytes:
    """Return what follows the numbers that Gantry has written; RocketMQ neither reads nor writes it."""
    return _MARK + _CRC.pack(crc32(data))


def read_java_state(disk: Disk, store_path: str) -> TimerState:
    """Return the progress that a RocketMQ broker has left in this store; the start of the queue if there is none.

    What Gantry has written is none, also if it is that of another store; neither is a damaged file, which is reported.
    """
    path = f"{store_path}/config/{FILE}"
    if not disk.exists(path):
        return TimerState()
    with closing(disk.open(path)) as file:
        data = file.pread(_ALL.size + len(_MARK) + _CRC.size, 0)
    if data[_ALL.size :] == _seal(data[: _ALL.size]):
        return TimerState()
    if len(data) < _NUMBERS.size or not any(disk.exists(f"{store_path}/{name}") for name in WHEEL_FILES):
        log.warning("progress of timers for RocketMQ is damaged; it will be rewritten", extra={"path": path})
        return TimerState()
    last_read_ms, _, queue_offset, _ = _NUMBERS.unpack_from(data)
    if last_read_ms < 0 or queue_offset < 0:
        return TimerState()
    return TimerState(queue_offset, (Mark(0, last_read_ms, QUEUE_OFFSET_MAX),))


def write_java_progress(disk: Disk, store_path: str, progress: JavaProgress) -> None:
    """Write the file, and then remove RocketMQ's files of pending timers, whose content is older.

    If a crash leaves them beside the new file, a RocketMQ broker delivers some messages twice, and loses none.
    """
    disk.write_file(f"{store_path}/config/{FILE}", progress.encode())
    for name in WHEEL_FILES:
        path = f"{store_path}/{name}"
        if disk.exists(path):
            log.info("removed timers of RocketMQ, which are older than this broker's progress", extra={"path": path})
            (disk.remove_tree if disk.is_directory(path) else disk.remove)(path)
