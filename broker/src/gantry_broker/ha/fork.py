"""Where two logs part that ought to be the same: bisection by checksums of pieces, without a socket.

The search asks for the sums of some pieces of a range, compares them with its own, and goes on in the first piece that
differs, until a piece is small enough to name. Usually one question settles it: the last piece is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final

from gantry_wire.checksum import crc32

PIECES_MAX: Final = 256
PIECE_BYTES_MIN: Final = 4_096
TAIL_BYTES: Final = 1 << 20
SEARCH_BYTES: Final = 64 << 20
"""How far back the place is looked for: whoever reads all of a log for a message holds up everybody."""

OwnBytes = Callable[[int, int], bytes]
"""Up to so many bytes of the log from an offset on; fewer at the end of a file."""

Question = tuple[int, int, int]
"""Start, end, bytes of a piece."""


def sums_of(own: OwnBytes, start: int, end: int, piece_bytes: int) -> list[int]:
    """The CRC-32 of every piece of ``[start, end)``; fewer if the log ends before."""
    sums: list[int] = []
    for piece in range(start, end, piece_bytes):
        position, stop, value = piece, min(piece + piece_bytes, end), 0
        while position < stop:
            data = own(position, stop - position)
            if not data:
                return sums
            value = crc32(data, value)
            position += len(data)
        sums.append(value)
    return sums


def find_fork(own: OwnBytes, begin: int, end: int) -> Generator[Question, Sequence[int], int | None]:
    """Ask (``yield``) and be answered (``send``); returns where the logs part in ``[begin, end)``, None if nowhere.

    They part there at the latest: farther back than ``SEARCH_BYTES`` nobody looks. Only the last bytes are compared if
    they are the same: whoever has them has all that came before.
    """
    start = max(begin, end - TAIL_BYTES)
    if start >= end:
        return None
    answer = yield start, end, end - start
    if list(answer) == sums_of(own, start, end, end - start):
        return None
    start = max(begin, end - SEARCH_BYTES)
    while True:
        piece_bytes = max(-(-(end - start) // PIECES_MAX), PIECE_BYTES_MIN)
        answer = yield start, end, piece_bytes
        mine = sums_of(own, start, end, piece_bytes)
        place = next((at for at, pair in enumerate(zip(mine, answer, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            place = min(len(mine), len(answer))
        start, end = start + place * piece_bytes, min(end, start + (place + 1) * piece_bytes)
        if end - start <= PIECE_BYTES_MIN:
            return start
