"""The files of a store, read beside the broker that writes them. Every method blocks: call them in a thread.

The rule it guards: **no byte beyond min(confirmed, committed) is read as a message.** The limit is the caller's, from
the status page. Files may roll and be deleted meanwhile: all files of a range are open before the first byte of it
leaves, and one that is gone by then makes the range gone. How files and units are read is ``gantry_store_files``'s;
what is decided here is which of its answers is which refusal.

Single messages are read by queue and offset, or by their place in the log, while the broker stands still or is gone,
too. A record is shown when its own head says that it is the one that was asked for; a body that holds a whole record of
somebody's making is still a body.
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
    pieces_of,
    queue_ids,
    queue_place,
    read_identity,
    segments_of,
)
from gantry_store_files.queue_units import STORE_TIME_BYTES, head_store_time
from gantry_store_files.store_identity import Epoch
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import RECORD_BYTES_MAX, RECORD_BYTES_MIN, RECORD_HEAD, StoredMessage, decode_record
from gantry_wire.names import topic_fault

QUEUE_ID_MAX: Final = 0xFFFF
"""Of the queues that the API shows."""
ANSWER_BYTES_MAX: Final = 8 << 20
"""Of records that are read for one answer; the first one is read whatever its size."""
EXPIRED_MS: Final = -1
"""The store time of a message that is gone: older than any."""


class Piece(NamedTuple):
    """A part of an open file."""

    file: FileIO
    position: int
    length: int


@final
class StoreFiles:
    """One store. Holds nothing open; any thread."""

    def __init__(self, root: Path) -> None:
        self.root: Final = root
        self._disk: Final = PlainDisk()

    def __repr__(self) -> str:
        return f"<StoreFiles {self.root}>"

    # -- the log -------------------------------------------------------------------------------------------------------

    def log_segments(self) -> tuple[Segment, ...]:
        """The files of the log."""
        return segments_of(self._disk, f"{self.root}/commitlog")

    def epochs(self) -> list[Epoch]:
        """Who wrote which part of the log; none where no whole ``store.json`` says it."""
        identity = read_identity(self._disk, str(self.root))
        return [] if identity is None else identity.epochs

    def open_range(self, start: int, end: int, stack: ExitStack) -> list[Piece]:
        """The parts of files that make up ``[start, end)`` of the log, open until ``stack`` ends.

        Raises ``Problem`` 410 when the beginning is gone meanwhile, and 503 when something in the middle is missing.
        """
        pieces: list[Piece] = []
        offset = start
        for piece in pieces_of(self.log_segments(), start, end):
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
            raise Problem(410, f"what lies before offset {oldest} is not there any more", oldest=oldest)
        raise Problem(503, f"the log has no file for offset {offset}; look at its broker", offset=offset)

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a short range. Raises as ``open_range``."""
        with ExitStack() as stack:
            pieces = self.open_range(start, end, stack)
            return b"".join(os.pread(piece.file.fileno(), piece.length, piece.position) for piece in pieces)

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic that have files."""
        return [queue_id for queue_id in queue_ids(self._disk, str(self.root), topic) if queue_id <= QUEUE_ID_MAX]

    def bounds(self, topic: str, queue_id: int, begin: int, end: int) -> QueueBounds:
        """The units whose messages lie in ``[begin, end)`` of the log. Raises ``Problem`` 404 without such a queue."""
        queue = self._queue(topic, queue_id)
        if not queue.segments:
            raise Problem(404, "there is no such queue here")
        return queue.bounds(begin, end)

    def units(self, topic: str, queue_id: int, start: int, end: int) -> bytes:
        """The units ``[start, end)``, which the caller has bounded. Raises ``Problem`` 410 when they are gone."""
        data = self._queue(topic, queue_id).read(start, end)
        if data is None:
            raise Problem(410, "these units are not there any more")
        return data

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, begin: int, end: int) -> tuple[int, int]:
        """(the first unit that was stored at ``timestamp_ms`` or later, the queue's end)."""
        bounds = self.bounds(topic, queue_id, begin, end)
        queue = self._queue(topic, queue_id)
        return queue.first_stored_at(timestamp_ms, bounds, begin, self._store_time), bounds.end

    def stored_at(self, topic: str, queue_id: int, offset: int, begin: int) -> int | None:
        """When the message of one unit was stored; None where there is no message, or none any more."""
        unit = self._queue(topic, queue_id).lone_unit(offset)
        is_message = not is_filler(unit) and unit[1] >= RECORD_BYTES_MIN and unit[0] >= begin
        stored_ms = self._store_time(unit) if is_message else None
        return None if stored_ms == EXPIRED_MS else stored_ms

    def _queue(self, topic: str, queue_id: int) -> QueueReader:
        """Raises ``Problem`` 404 for names that cannot be a queue's."""
        if topic_fault(topic) is not None or not 0 <= queue_id <= QUEUE_ID_MAX:
            raise Problem(404, "there is no such queue here")
        return QueueReader(self._disk, queue_place(str(self.root), topic, queue_id))

    def _store_time(self, unit: Unit) -> int | None:
        """When the message at a unit's place was stored; None where none begins, ``EXPIRED_MS`` where it has expired.

        Raises ``Problem`` 503 where a message should be, and the log has no file.
        """
        try:
            return head_store_time(self.read(unit[0], unit[0] + STORE_TIME_BYTES), unit[0])
        except Problem as problem:
            if problem.status == 410:
                return EXPIRED_MS
            if is_filler(unit):
                return None
            raise


class Found(NamedTuple):
    """Messages of a queue, and how many were left out since they would be too much."""

    bounds: QueueBounds
    messages: Sequence[StoredMessage]
    left_out: int


def queue_messages(files: StoreFiles, span: Span, topic: str, queue_id: int, start: int | None, count: int) -> Found:
    """``count`` messages from ``start`` on, or the newest. Raises ``Problem`` 404, 410 or 416."""
    bounds = files.bounds(topic, queue_id, span.begin, span.end)
    if start is None:
        start = max(bounds.end - count, bounds.begin)
    elif start < bounds.begin:
        text = f"what lies before offset {bounds.begin} of the queue is not there any more"
        raise Problem(410, text, oldest=bounds.begin)
    elif start >= bounds.end:
        raise Problem(416, f"the queue ends at offset {bounds.end} now", oldest=bounds.begin, end=bounds.end)
    end = min(start + count, bounds.end)
    if start >= end:
        return Found(bounds, (), 0)
    wanted = [
        (physical, size) for physical, size, _ in UNIT.iter_unpack(files.units(topic, queue_id, start, end))
        if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX
    ]  # fmt: skip
    kept, total = 0, 0
    for _, size in reversed(wanted):  # the newest are what people look for
        total += size
        if kept and total > ANSWER_BYTES_MAX:
            break
        kept += 1
    read = (_record(files, span, physical, size) for physical, size in wanted[len(wanted) - kept :])
    return Found(bounds, [one for one in read if one is not None], len(wanted) - kept)


def message_at(files: StoreFiles, span: Span, physical: int) -> StoredMessage | None:
    """The message that begins there, if one does."""
    if not span.begin <= physical <= span.end - RECORD_BYTES_MIN:
        return None
    size, *_ = RECORD_HEAD.unpack(files.read(physical, physical + RECORD_HEAD.size))
    return _record(files, span, physical, size) if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX else None


def _record(files: StoreFiles, span: Span, physical: int, size: int) -> StoredMessage | None:
    if physical < span.begin or physical + size > span.end:
        return None
    try:
        message = decode_record(files.read(physical, physical + size))
    except RemoteProtocolError:
        return None
    return message if message.physical_offset == physical else None
