"""The files of a store, read while the broker writes them. Every method blocks: call them in a thread.

The invariant: **no byte beyond min(confirmed, committed) is read as a message.** The caller passes that limit, from the
status page. Files may be rolled and deleted meanwhile: all files of a range are opened before its first byte is sent,
and if one is deleted before that, the range is gone. ``gantry_store_files`` reads files and units; this module maps its
results to error answers.

Single messages are read by queue and offset, or by their offset in the log, also while the broker is stalled or is
gone. A record is shown only if its own head contains the requested offset, so a copy of a record inside of a body is
not taken for a message.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple, final

from gantry_admin.errors import Problem
from gantry_admin.ranges import Span
from gantry_store_files import (
    UNIT,
    PlainDisk,
    QueueBounds,
    QueueReader,
    Segment,
    Unit,
    is_filler,
    queue_ids,
    queue_location,
    read_identity,
    segments_of,
    split_span,
)
from gantry_store_files.queue_units import STORE_TIME_BYTES, head_store_time
from gantry_store_files.store_identity import Epoch
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import RECORD_BYTES_MAX, RECORD_BYTES_MIN, RECORD_HEAD, StoredMessage, decode_record
from gantry_wire.names import topic_fault

QUEUE_ID_MAX: Final = 0xFFFF
"""The largest queue id that the API accepts."""
ANSWER_BYTES_MAX: Final = 8 << 20
"""The bytes of records that are read for one answer; the newest requested record is read regardless of its size."""
EXPIRED_MS: Final = -1
"""The store time of a deleted message: older than any."""


class Piece(NamedTuple):
    """A part of an open file."""

    file: FileIO
    position: int
    """Where the part begins in its file."""

    length: int


@final
class StoreFiles:
    """The files of one store. It keeps no file open, and is safe to use from any thread."""

    def __init__(self, root: Path) -> None:
        self.root: Final = root
        self._disk: Final = PlainDisk()

    def __repr__(self) -> str:
        return f"<StoreFiles {self.root}>"

    # -- the log -------------------------------------------------------------------------------------------------------

    def log_segments(self) -> tuple[Segment, ...]:
        """Return the files of the log, sorted by offset."""
        return segments_of(self._disk, f"{self.root}/commitlog")

    def epochs(self) -> list[Epoch]:
        """Return the epochs of the parts of the log; empty without a valid ``store.json``."""
        identity = read_identity(self._disk, str(self.root))
        return [] if identity is None else identity.epochs

    def open_range(self, start: int, end: int, stack: ExitStack) -> list[Piece]:
        """Return the parts of files that make up ``[start, end)`` of the log, open until ``stack`` ends.

        Raises ``Problem`` 410 if the beginning was deleted meanwhile, and 503 if a part in the middle is missing.
        """
        pieces: list[Piece] = []
        offset = start
        for piece in split_span(self.log_segments(), start, end):
            if piece.segment is None:
                break
            try:
                file = stack.enter_context(FileIO(piece.segment.path))
            except FileNotFoundError:
                break
            pieces.append(Piece(file, piece.start - piece.segment.base_offset, piece.end - piece.start))
            offset = piece.end
        if offset == end:
            return pieces
        oldest = next((segment.base_offset for segment in self.log_segments()), end)
        if oldest > start:
            raise Problem(410, f"the log before offset {oldest} has been deleted", oldest=oldest)
        raise Problem(503, f"the log has no file for offset {offset}; check the broker", offset=offset)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a short range. Raises as ``open_range``."""
        with ExitStack() as stack:
            pieces = self.open_range(start, end, stack)
            return b"".join(os.pread(piece.file.fileno(), piece.length, piece.position) for piece in pieces)

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues that have files."""
        return [queue_id for queue_id in queue_ids(self._disk, str(self.root), topic) if queue_id <= QUEUE_ID_MAX]

    def bounds(self, topic: str, queue_id: int, begin: int, end: int) -> QueueBounds:
        """Return the units whose messages are in ``[begin, end)`` of the log. Raises ``Problem`` 404."""
        queue = self._queue(topic, queue_id)
        if not queue.segments:
            raise Problem(404, "queue not found")
        return queue.bounds(begin, end)

    def first_unit(self, topic: str, queue_id: int) -> int | None:
        """Return the first unit that the files of a queue have; None without a file."""
        queue = self._queue(topic, queue_id)
        return queue.first if queue.segments else None

    def units(self, topic: str, queue_id: int, start: int, end: int) -> bytes:
        """Return the units ``[start, end)``, which the caller has bounded. Raises ``Problem`` 410 if they are gone."""
        data = self._queue(topic, queue_id).read(start, end)
        if data is None:
            raise Problem(410, "these units have been deleted")
        return data

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, begin: int, end: int) -> tuple[int, int]:
        """Return (the first unit that was stored at ``timestamp_ms`` or later, the queue's end)."""
        bounds = self.bounds(topic, queue_id, begin, end)
        queue = self._queue(topic, queue_id)
        return queue.first_stored_at(timestamp_ms, bounds, begin, self._store_time), bounds.end

    def stored_at(self, topic: str, queue_id: int, offset: int, begin: int) -> int | None:
        """Return when the message of one unit was stored; None without a message, or if it was deleted."""
        unit = self._queue(topic, queue_id).read_single_unit(offset)
        is_message = not is_filler(unit) and unit[1] >= RECORD_BYTES_MIN and unit[0] >= begin
        stored_ms = self._store_time(unit) if is_message else None
        return None if stored_ms == EXPIRED_MS else stored_ms

    def _queue(self, topic: str, queue_id: int) -> QueueReader:
        """Return the reader of a queue. Raises ``Problem`` 404 for invalid names."""
        if topic_fault(topic) is not None or not 0 <= queue_id <= QUEUE_ID_MAX:
            raise Problem(404, "queue not found")
        return QueueReader(self._disk, queue_location(str(self.root), topic, queue_id))

    def _store_time(self, unit: Unit) -> int | None:
        """Return when the message of a unit was stored; None if none begins there, ``EXPIRED_MS`` if it was deleted.

        Raises ``Problem`` 503 if the log has no file where a message should be.
        """
        try:
            return head_store_time(self.read(unit[0], unit[0] + STORE_TIME_BYTES), unit[0])
        except Problem as problem:
            if problem.status == 410:
                return EXPIRED_MS
            if is_filler(unit):
                return None
            raise


class QueueMessages(NamedTuple):
    """Messages of a queue, its bounds, and the number of messages left out because of the size limit."""

    bounds: QueueBounds
    messages: Sequence[StoredMessage]
    left_out: int


def queue_messages(
    files: StoreFiles, span: Span, topic: str, queue_id: int, start: int | None, count: int
) -> QueueMessages:
    """Return up to ``count`` messages from ``start`` on, or the newest. Raises ``Problem`` 404, 410, 416 or 503."""
    bounds = files.bounds(topic, queue_id, span.begin, span.end)
    if start is None:
        start = max(bounds.end - count, bounds.begin)
    elif start < bounds.begin:
        text = f"the messages before offset {bounds.begin} of the queue have been deleted"
        raise Problem(410, text, oldest=bounds.begin)
    elif start >= bounds.end:
        raise Problem(416, f"the queue ends at offset {bounds.end} now", oldest=bounds.begin, end=bounds.end)
    end = min(start + count, bounds.end)
    if start >= end:
        return QueueMessages(bounds, (), 0)
    wanted = [
        (physical, size) for physical, size, _ in UNIT.iter_unpack(files.units(topic, queue_id, start, end))
        if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX
    ]  # fmt: skip
    kept, total = 0, 0
    for _, size in reversed(wanted):  # if not all fit, the newest messages are kept
        total += size
        if kept and total > ANSWER_BYTES_MAX:
            break
        kept += 1
    read = (record_at(files, span, physical, size) for physical, size in wanted[len(wanted) - kept :])
    return QueueMessages(bounds, [one for one in read if one is not None], len(wanted) - kept)


def message_at(files: StoreFiles, span: Span, physical: int) -> StoredMessage | None:
    """Return the message that begins at an offset of the log; None if none does."""
    if not span.begin <= physical <= span.end - RECORD_BYTES_MIN:
        return None
    size, *_ = RECORD_HEAD.unpack(files.read(physical, physical + RECORD_HEAD.size))
    return record_at(files, span, physical, size) if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX else None


def record_at(files: StoreFiles, span: Span, physical: int, size: int) -> StoredMessage | None:
    """Return the message of a unit; None if no readable message of this size begins at its offset."""
    if physical < span.begin or physical + size > span.end:
        return None
    try:
        message = decode_record(files.read(physical, physical + size))
    except RemoteProtocolError:
        return None
    return message if message.physical_offset == physical else None
