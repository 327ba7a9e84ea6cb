"""Replay of write buffers: records that the buffers of a dead process hold and the log's files lack are restored.

    files    [......................... end)                 the log's end as the files have it
    buffer              [start ................... stop)     whole records, each at its own place
    replay                              [end ..... stop)     only onto bytes that are zero, or equal already

A buffer is replayed only if its header names this store, the start before this one and the current epoch, and if its
bytes before the log's end equal those of the files: then it is the same history, and its records follow without a gap.
Anything else that the files lack is *set aside*: copied to the folder ``set-aside``, with the reason, and never
written to the log.

The plan is pure; ``execute_step`` and ``set_aside`` carry it out. Both are durable when they return, since the buffer
is voided next. Both may be interrupted anywhere and repeated: a replay writes the same bytes to the same places, and an
incomplete copy is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import msgspec

from gantry_broker.ports.disk import Disk, write_fully
from gantry_broker.store import crash_points
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.file_queue import make_durable_directory
from gantry_broker.store.identity import LOG_END_MAX, StoreIdentity
from gantry_broker.store.write_buffer import BufferHeader
from gantry_wire.message import RecordFault, check_record

CHUNK_BYTES: Final = 1 << 20
"""How many bytes are compared or written at a time."""
SET_ASIDE: Final = "set-aside"
"""The folder of data that was set aside, in the store's directory."""

FileBytes = Callable[[int, int], memoryview | None]
"""Returns the bytes of the log's file at (offset, size), or None if there is no such file yet."""


class FoundBuffer(NamedTuple):
    """A live write buffer that a start has found."""

    name: str
    """The name of the buffer's file."""

    store: str
    """The uuid of the store that wrote it."""

    generation: int
    """The number of the start of the store that wrote it."""

    epoch: int
    base_offset: int
    """The offset at which its log file begins."""

    start: int
    """The offset from which on it holds the log."""

    file_size: int
    """The size of its log file."""

    view: memoryview
    """The content of the buffer; position 0 is ``base_offset``."""

    @classmethod
    def of(cls, name: str, header: BufferHeader, data: memoryview) -> Self:
        """Return the buffer with this header and the content ``data``."""
        return cls(name, *header[:-1], data)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.file_size


class ExpectedHeader(NamedTuple):
    """The header that a buffer must have to be replayed."""

    store: str
    generation: int
    """The number of the last start of the store."""

    epoch: int
    file_size: int
    is_clean: bool
    """Whether the last stop was clean: then there is nothing to replay."""

    @classmethod
    def of(cls, identity: StoreIdentity | None, file_size: int, *, is_clean: bool) -> Self:
        """Return the expected header for a store. If the store has no identity yet, no buffer matches."""
        if identity is None:
            return cls("", 0, 0, file_size, is_clean)
        return cls(identity.uuid, identity.generation, identity.epoch, file_size, is_clean)


class ReplayStep(NamedTuple):
    """A step of the replay: write ``[start, end)`` of the log from the buffer."""

    buffer: FoundBuffer
    start: int
    end: int
    records: int


class RejectedBuffer(NamedTuple):
    """A buffer with data that the log lacks and that is not replayed, and the reason."""

    buffer: FoundBuffer
    end: int
    """The end of the last whole record of the buffer."""

    reason: str


@dataclass(slots=True)
class ReplayPlan:
    """The plan for all buffers. Buffers that are not in it hold nothing that the log lacks."""

    end: int
    """The end of the log after the replay."""

    steps: list[ReplayStep] = field(default_factory=list)
    set_aside: list[RejectedBuffer] = field(default_factory=list)
    """Buffers whose data is copied and not written to the log."""


def plan_replay(
    end: int, buffers: Sequence[FoundBuffer], expected: ExpectedHeader, file_bytes: FileBytes, *, begin: int = 0
) -> ReplayPlan:
    """Plan the replay of ``buffers`` for a log whose files hold ``[begin, end)``."""
    plan = ReplayPlan(end)
    for buffer in sorted(buffers, key=lambda one: (one.base_offset, one.name)):
        reason = _rejection_reason(buffer, expected)
        if reason is None and buffer.end_offset <= begin:
            continue  # everything in it had been committed and was deleted later
        if reason is None and buffer.start > plan.end:
            reason = f"the buffer begins at {buffer.start}, but the log ends at {plan.end}"
        if reason is None and not _is_same(buffer, buffer.start, min(plan.end, buffer.end_offset), file_bytes):
            reason = "the log holds other bytes where the buffer was committed"
        if reason is None and plan.end < buffer.end_offset:
            stop, records = scan_buffered_records(buffer, plan.end)
            if stop == plan.end:
                continue
            if _is_zero_or_same(buffer, plan.end, stop, file_bytes):
                plan.steps.append(ReplayStep(buffer, plan.end, stop, records))
                plan.end = stop
                continue
            reason = "the log's file holds other bytes after the end of the log"
        if reason is not None:
            stop, _ = scan_buffered_records(buffer, buffer.start)
            if not _is_same(buffer, buffer.start, stop, file_bytes):
                plan.set_aside.append(RejectedBuffer(buffer, stop, reason))
    return plan


def plan_refills(holes: Sequence[int], buffers: Sequence[FoundBuffer], expected: ExpectedHeader) -> list[ReplayStep]:
    """Plan the restoration of missing log files, each from a buffer that holds it from its beginning on."""
    steps: list[ReplayStep] = []
    for buffer in buffers:
        if buffer.start in holes and buffer.start == buffer.base_offset and _rejection_reason(buffer, expected) is None:
            stop, records = scan_buffered_records(buffer, buffer.start)
            if records:
                steps.append(ReplayStep(buffer, buffer.start, stop, records))
    return steps


def find_first_buffered(buffers: Sequence[FoundBuffer], expected: ExpectedHeader) -> int:
    """Return the first offset that buffers of this log hold; ``LOG_END_MAX`` if no buffer belongs to this log."""
    return min((one.start for one in buffers if _rejection_reason(one, expected) is None), default=LOG_END_MAX)


def _rejection_reason(buffer: FoundBuffer, expected: ExpectedHeader) -> str | None:
    if buffer.store != expected.store:
        return f"the buffer belongs to another store, {buffer.store}"
    if buffer.file_size != expected.file_size:
        return f"the buffer is for log files of {buffer.file_size} bytes, not {expected.file_size}"
    if buffer.generation != expected.generation:
        return (
            f"the buffer is of generation {buffer.generation} of the store, and the last one was {expected.generation}"
        )
    if buffer.epoch != expected.epoch:
        return f"the buffer was written in epoch {buffer.epoch}, and the log is in epoch {expected.epoch}"
    if expected.is_clean:
        return "the store was stopped cleanly after the buffer was written"
    return None


def scan_buffered_records(buffer: FoundBuffer, start: int) -> tuple[int, int]:
    """Return the end, and the number, of the good records that follow each other from ``start`` on in a buffer.

    If a blank record follows them that closes the file, the end is that of the file.
    """
    view, base, end = buffer.view, buffer.base_offset, buffer.end_offset
    offset, records = start, 0
    while offset < end:
        check = check_record(view, offset - base, physical_offset=offset, is_sealed=True)
        if check.is_good:
            offset += check.size
            records += 1
        elif check.fault is RecordFault.BLANK and offset + check.size == end:
            return end, records
        else:
            break
    return offset, records


def _is_same(buffer: FoundBuffer, start: int, end: int, file_bytes: FileBytes) -> bool:
    """Return whether the log's files and the buffer hold the same bytes in ``[start, end)``."""
    return all(
        in_file is not None and in_buffer == in_file for in_buffer, in_file in _chunks(buffer, start, end, file_bytes)
    )


def _is_zero_or_same(buffer: FoundBuffer, start: int, end: int, file_bytes: FileBytes) -> bool:
    """Return whether each byte of the files in ``[start, end)`` is zero or equals that of the buffer."""
    for in_buffer, in_file in _chunks(buffer, start, end, file_bytes):
        if in_file is None or in_file == in_buffer or in_file.count(0) == len(in_file):
            continue
        if not all(old in (0, new) for old, new in zip(in_file, in_buffer, strict=True)):
            return False
    return True


def _chunks(buffer: FoundBuffer, start: int, end: int, file_bytes: FileBytes) -> Iterator[tuple[bytes, bytes | None]]:
    for offset in range(start, end, CHUNK_BYTES):
        size = min(CHUNK_BYTES, end - offset)
        position = offset - buffer.base_offset
        data = file_bytes(offset, size)
        yield bytes(buffer.view[position : position + size]), None if data is None else bytes(data)


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


def set_aside(disk: Disk, root: str, aside: RejectedBuffer) -> str:
    """Copy the records of a buffer to ``<root>/set-aside``, with a note of the reason. Return the path of the copy."""
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
