"""The files of a store, read beside the broker that writes them. Every method blocks: call them in a thread.

The rule it guards: **no byte beyond min(confirmed, committed) is read as a message.** The limit is the caller's, from
the status page. Files may roll and be deleted meanwhile: all files of a range are open before the first byte of it
leaves, and one that is gone by then makes the range gone. How files and units are read is ``gantry_store_files``'s;
what is decided here is which of its answers is which refusal.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple, final

from gantry_admin.errors import Problem
from gantry_store_files import (
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
from gantry_wire.message import RECORD_BYTES_MIN
from gantry_wire.names import topic_fault

QUEUE_ID_MAX: Final = 0xFFFF
"""Of the queues that the API shows."""
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
