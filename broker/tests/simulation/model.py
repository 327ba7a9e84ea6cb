"""The model of a store's content, as far as a sender can know it: a list of the log's pieces.

    0 ..[record][record][blank][record]... end          pending: the unfinished append, present or not

The model places records itself (queue offsets, physical offsets, blanks at the ends of files) and encodes them with the
wire's own encoder, so that it is independent of the append loop. After a crash the log must end between two pieces, not
before the guaranteed end, and must have exactly these bytes. Pieces after that end are removed from the model, so that
a byte of them that returns later is a foreign byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, final

from gantry_broker.store.draft import Draft
from gantry_testing.store_world import STORE_HOST
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, StoredMessage, encode_record

BLANK_BYTES: Final = 8
PREPARED: Final = 0x4

Queue = tuple[str, int]


class Piece(NamedTuple):
    """Bytes of the log that are present together or not at all: a record, or the blank that closes a file."""

    start: int
    data: bytes
    queue: Queue | None
    """None for a blank or a prepared message."""

    queue_offset: int
    key: str
    body_bytes: int
    """The size of the body; -1 for a blank."""

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @property
    def is_blank(self) -> bool:
        return self.body_bytes < 0


class TooLarge(Exception):
    """The draft does not fit into a log file."""


@final
class Model:
    """The expected content of one store. ``pieces`` are in order and without gaps, from 0 to ``end``."""

    def __init__(self, file_size: int) -> None:
        self.file_size: Final = file_size
        self.pieces: list[Piece] = []
        self.pending: list[Piece] = []
        """The pieces of an append that has not returned: none, some or all of them may be in the log."""

        self.queue_ends: dict[Queue, int] = {}
        """The next offset of every queue."""

        self.min_physical = 0
        """The begin of the log since its head was deleted; the pieces before it stay in the model."""

        self.cut: list[Piece] = []
        """The pieces that the last recovery has cut off, to be refilled with others of the same sizes."""

        self.ends_before: dict[Queue, int] = {}
        """The ends of the queues before the last recovery."""

        self._restarts: dict[Queue, tuple[int, int]] = {}
        """(physical offset, queue offset): from that place in the log on, a queue is numbered from that offset on."""

    @property
    def end(self) -> int:
        return self.pieces[-1].end if self.pieces else 0

    @property
    def room(self) -> int:
        """The free bytes of the current file, including those for a blank."""
        return self.file_size - self.end % self.file_size

    def records(self) -> Iterable[Piece]:
        """Return all records that are not deleted, oldest first."""
        return (piece for piece in self.pieces if not piece.is_blank and piece.start >= self.min_physical)

    def of(self, queue: Queue) -> list[Piece]:
        """Return the records of one queue that are not deleted."""
        return [piece for piece in self.records() if piece.queue == queue]

    # -- appending -----------------------------------------------------------------------------------------------------

    def place(self, drafts: Sequence[Draft], now_ms: int, *, is_contiguous: bool) -> None:
        """Set ``pending`` to the pieces that an append of these drafts writes. Raises ``TooLarge``."""
        self.pending = []
        pending: list[Piece] = []
        end, ends = self.end, dict(self.queue_ends)
        sizes = [len(self._encode(draft, 0, 0, 0)) for draft in drafts]
        if is_contiguous and sum(sizes) + BLANK_BYTES > self.file_size:
            raise TooLarge
        if is_contiguous and end % self.file_size + sum(sizes) + BLANK_BYTES > self.file_size:
            end = self._close_file(pending, end)
        for draft, size in zip(drafts, sizes, strict=True):
            if end % self.file_size + size > self.file_size - BLANK_BYTES:
                if size > self.file_size - BLANK_BYTES:
                    raise TooLarge
                end = self._close_file(pending, end)
            queue = (draft.queue.topic, draft.queue.queue_id)
            is_queued = not draft.sys_flag & PREPARED
            queue_offset = ends.get(queue, 0) if is_queued else 0
            data = self._encode(draft, queue_offset, end, now_ms)
            pending.append(Piece(end, data, queue if is_queued else None, queue_offset, draft.keys[0], len(draft.body)))
            ends[queue] = queue_offset + 1 if is_queued else ends.get(queue, 0)
            end += size
        self.pending = pending

    def _close_file(self, pending: list[Piece], end: int) -> int:
        room = self.file_size - end % self.file_size
        blank = BLANK_RECORD.pack(room, BLANK_MAGIC) + bytes(room - BLANK_RECORD.size)
        pending.append(Piece(end, blank, None, 0, "", -1))
        return end + room

    @staticmethod
    def _encode(draft: Draft, queue_offset: int, physical: int, now_ms: int) -> bytes:
        message = StoredMessage(
            topic=draft.queue.topic, queue_id=draft.queue.queue_id, body=bytes(draft.body), queue_offset=queue_offset,
            physical_offset=physical, flag=draft.flag, sys_flag=draft.sys_flag,
            born_timestamp_ms=draft.born_timestamp_ms, born_host=draft.born_host, store_timestamp_ms=now_ms,
            store_host=STORE_HOST, properties_bytes=draft.properties,
        )  # fmt: skip
        return encode_record(message, is_sealed=True)

    def accept(self) -> None:
        """Move the pending append into the log."""
        self._extend(self.pending)
        self.pending = []

    def refuse(self, wrote: int) -> None:
        """Drop the pending append, for which at most a file was closed."""
        if wrote != self.end:
            assert self.pending and self.pending[0].is_blank and self.pending[0].end == wrote, (
                f"an append was refused and has moved the log from {self.end} to {wrote}"
            )
            self._extend(self.pending[:1])
        self.pending = []

    def _extend(self, pieces: Sequence[Piece]) -> None:
        self.pieces += pieces
        for piece in pieces:
            if piece.queue is not None:
                self.queue_ends[piece.queue] = piece.queue_offset + 1

    # -- after a crash -------------------------------------------------------------------------------------------------

    def recover(self, end: int) -> bool:
        """Cut the model at ``end``, where recovery found the end of the log: the rest must never return.

        Return True if records that were cut earlier might have reappeared, since others of the same sizes had replaced
        some of them.
        """
        everything = self.pieces + self.pending
        borders = {0} | {piece.end for piece in everything}
        assert end in borders, f"the log ends at {end}, which is inside of a record"
        kept = [piece for piece in everything if piece.start < end]
        has_refill = end in {piece.start for piece in self.cut[1:]}
        self.pieces, self.pending, self.cut = kept, [], everything[len(kept) :]
        self.ends_before = {queue: max(end, self.ends_before.get(queue, 0)) for queue, end in self.queue_ends.items()}
        self.queue_ends = {queue: self._restarts.get(queue, (0, 0))[1] for queue in self.queue_ends}
        for piece in kept:
            if piece.queue is not None and piece.start >= self._restarts.get(piece.queue, (0, 0))[0]:
                self.queue_ends[piece.queue] = piece.queue_offset + 1
        return has_refill

    def number_from(self, queue: Queue, end: int) -> None:
        """Let the next message of ``queue``, which has none, get the offset ``end``."""
        if self.queue_ends[queue] != end:
            self._restarts[queue] = (self.end, end)
            self.queue_ends[queue] = end

    def file(self, base_offset: int) -> bytes:
        """Return the expected content of the log file at ``base_offset``: the pieces, and zeros after them."""
        end = base_offset + self.file_size
        data = b"".join(piece.data for piece in self.pieces if base_offset <= piece.start < end)
        return data.ljust(self.file_size, b"\0")
