"""A write buffer: memory that takes the appends to one log file until its bytes are committed.

    | header, one page | position 0 of the file ............................................ file size |
                                 [start ...... committed ...... wrote ...... zeros)

The header records, as durably as the memory is, what the bytes belong to: the store, its generation, the epoch, the
file, and the offset from which the buffer holds what was written. It does not record how far the buffer is filled: that
follows from the records' own offsets and checksums, so that an append touches nothing but its bytes.

    FREE   all of it is zero                     LIVE   the header is valid, bytes may be in it
    VOID   its content is invalid, not zero yet

    FREE -> LIVE (borrow) -> VOID (give back, first of all) -> FREE (zeroed)

Zeroing is necessary: if a buffer were reused without it, old records after new ones of the same size would look valid
in every respect at the next crash.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple, final
from zlib import crc32

from gantry_broker.ports.buffers import BufferPiece

MAGIC: Final = b"GANTRYWB"
"""How the header of a write buffer begins."""
VERSION: Final = 1
"""The version of the layout of the header."""
_STATE: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">8sI16sQQQQQQ")
"""Magic, version, store, generation, epoch, base offset, start offset, file size, header bytes."""
_CRC: Final = struct.Struct(">I")
_COMMITTED: Final = struct.Struct(">Q")
STATE_POSITION: Final = 0
HEADER_POSITION: Final = 8
CRC_POSITION: Final = HEADER_POSITION + _HEADER.size
COMMITTED_POSITION: Final = CRC_POSITION + 8
assert COMMITTED_POSITION + _COMMITTED.size <= 4096


class BufferState(IntEnum):
    """The state of a buffer, as the module describes."""

    FREE = 0
    """All of the buffer is zero, and it can be borrowed."""

    LIVE = 1
    """The header is valid, and bytes may be in it."""

    VOID = 2
    """The content is invalid, and is not zero yet."""


class BufferHeader(NamedTuple):
    """The header of a live buffer."""

    store: str
    """The store's uuid, 32 hex digits."""

    generation: int
    """The number of the start of the store that wrote the buffer."""

    epoch: int
    base_offset: int
    """The offset at which the buffer's log file begins."""

    start: int
    """The offset from which on the buffer holds the log."""

    file_size: int
    header_bytes: int


def header_bytes(page_bytes: int) -> int:
    """Return the size of the header: one page, so that the data begins on a page."""
    return page_bytes


def piece_bytes(file_size: int, page_bytes: int) -> int:
    """Return the size of the piece of memory that a buffer for files of ``file_size`` needs."""
    return header_bytes(page_bytes) + -(-file_size // page_bytes) * page_bytes


def read_state(view: memoryview) -> BufferState:
    """Return the state of a buffer. A live one whose header is incomplete never got a byte, and counts as void."""
    if len(view) < COMMITTED_POSITION + _COMMITTED.size:
        return BufferState.VOID
    (state,) = _STATE.unpack_from(view, STATE_POSITION)
    if state == BufferState.FREE:
        return BufferState.FREE
    return BufferState.LIVE if state == BufferState.LIVE and read_header(view) is not None else BufferState.VOID


def read_header(view: memoryview) -> BufferHeader | None:
    """Return the header, or None if it is incomplete."""
    magic, version, store, *numbers = _HEADER.unpack_from(view, HEADER_POSITION)
    (crc,) = _CRC.unpack_from(view, CRC_POSITION)
    if magic != MAGIC or version != VERSION or crc != crc32(view[HEADER_POSITION:CRC_POSITION]):
        return None
    header = BufferHeader(store.hex(), *numbers)
    fits = header.header_bytes + header.file_size <= len(view)
    return header if fits and header.base_offset <= header.start <= header.base_offset + header.file_size else None


def read_committed(view: memoryview) -> int:
    """Return how far the buffer was committed, as its process last recorded: a hint that recovery does not use."""
    return int(_COMMITTED.unpack_from(view, COMMITTED_POSITION)[0])


@final
class WriteBuffer:
    """One buffer of the pool.

    The loop's thread borrows it and writes ``view``; the threads that commit and flush read ``view``, and the commit
    thread gives the buffer back.
    """

    def __init__(self, piece: BufferPiece, *, file_size: int, page_bytes: int) -> None:
        self.piece: Final = piece
        self.file_size: Final = file_size
        self._memory: Final = piece.view
        self._header_bytes: Final = header_bytes(page_bytes)
        self.view: Final = piece.view[self._header_bytes : self._header_bytes + file_size]
        """The part of the memory that holds records, after the header."""
        self.base_offset = 0
        """Where the log file begins to which the buffer belongs."""
        self.start = 0
        """The offset from which on the buffer holds the log."""

    def __repr__(self) -> str:
        return f"<WriteBuffer {self.piece.name} {self.state.name} base={self.base_offset} start={self.start}>"

    @property
    def state(self) -> BufferState:
        return read_state(self._memory)

    @property
    def header(self) -> BufferHeader | None:
        """The header, or None if it is incomplete."""
        return read_header(self._memory)

    def borrow(self, *, store: str, generation: int, epoch: int, base_offset: int, start: int) -> None:
        """Take the buffer into use for the file at ``base_offset``, from the offset ``start`` on."""
        assert self.state is BufferState.FREE, self
        self.base_offset, self.start = base_offset, start
        _HEADER.pack_into(
            self._memory, HEADER_POSITION, MAGIC, VERSION, bytes.fromhex(store), generation, epoch, base_offset, start,
            self.file_size, self._header_bytes,
        )  # fmt: skip
        _CRC.pack_into(self._memory, CRC_POSITION, crc32(self._memory[HEADER_POSITION:CRC_POSITION]))
        self.note_committed(start)
        _STATE.pack_into(self._memory, STATE_POSITION, BufferState.LIVE)

    def note_committed(self, offset: int) -> None:
        """Record how far the buffer is committed, for tools that inspect it."""
        _COMMITTED.pack_into(self._memory, COMMITTED_POSITION, offset)

    def void(self) -> None:
        """Mark the content of the buffer as invalid."""
        _STATE.pack_into(self._memory, STATE_POSITION, BufferState.VOID)

    def clean(self) -> None:
        """Make all of a void buffer zero, and mark it free."""
        assert self.state is BufferState.VOID, self
        self.piece.zero(self._header_bytes, self.piece.size)
        self.piece.zero(HEADER_POSITION, self._header_bytes)
        _STATE.pack_into(self._memory, STATE_POSITION, BufferState.FREE)

    def close(self) -> None:
        self.view.release()
        self.piece.close()
