"""Doing what a replay plan says: bytes of a buffer into the log's files, or out of the way.

Both are durable when they return, since the buffer is voided next. Both may be cut off anywhere and done again: a
replay writes the same bytes to the same places, and a half copy is replaced by a whole one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_broker.ports.disk import Disk, write_fully
from gantry_broker.store import crash_points
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.file_queue import make_durable_directory
from gantry_broker.store.replay import ReplayStep, SetAside

CHUNK_BYTES: Final = 1 << 20
SET_ASIDE: Final = "set-aside"


def execute_step(commit_log: CommitLog, step: ReplayStep) -> None:
    """Write ``[step.start, step.end)`` into the log's file and sync it."""
    file = commit_log.open_file(step.buffer.base_offset)
    for start in range(step.start, step.end, CHUNK_BYTES):
        position = start - file.base_offset
        with step.buffer.view[position : position + min(CHUNK_BYTES, step.end - start)] as chunk:
            half = len(chunk) // 2
            write_fully(file.file, chunk[:half], position)
            crash_points.hit(crash_points.MID_REPLAY)
            write_fully(file.file, chunk[half:], position + half)
    file.file.sync()


def set_aside(disk: Disk, root: str, aside: SetAside) -> str:
    """Copy the records of a buffer to ``<root>/set-aside``, with a note why; where they are now."""
    directory = f"{root}/{SET_ASIDE}"
    make_durable_directory(disk, directory)
    buffer = aside.buffer
    path = f"{directory}/{buffer.start:020d}-{buffer.store[:8]}-{buffer.generation}-{buffer.name}"
    if disk.exists(path):
        disk.remove(path)
    size = aside.end - buffer.start
    file = disk.create(path, size, reserve=size)
    try:
        for start in range(0, size, CHUNK_BYTES):
            position = buffer.start - buffer.base_offset + start
            with buffer.view[position : position + min(CHUNK_BYTES, size - start)] as chunk:
                write_fully(file, chunk, start)
        file.sync()
    finally:
        file.close()
    note = {
        "reason": aside.reason, "store": buffer.store, "generation": buffer.generation, "epoch": buffer.epoch,
        "start": buffer.start, "end": aside.end,
    }  # fmt: skip
    disk.write_file(f"{path}.json", msgspec.json.format(msgspec.json.encode(note)))
    disk.sync_directory(directory)
    return path
