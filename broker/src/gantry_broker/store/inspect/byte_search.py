"""Looking for records in bytes that need not hold any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gantry_wire.message import PHYSICAL_OFFSET_POSITION

SEARCH_BYTES: Final = 1 << 20
"""How much is searched at once."""

SEARCH_OVERLAP: Final = PHYSICAL_OFFSET_POSITION + 8
"""How much more has to be read, since a record that begins in a piece may say its offset in the next."""

_MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
_MAGIC_POSITION: Final = 4
_ZEROS: Final = bytes(SEARCH_BYTES + SEARCH_OVERLAP)


def is_zero(data: bytes) -> bool:
    """Whether all of it is zero. Most of what is searched is: what a log has allocated and not used yet."""
    return data == (_ZEROS if len(data) == len(_ZEROS) else _ZEROS[: len(data)])


def record_starts(data: bytes, offset: int) -> Iterator[int]:
    """Where in the first ``SEARCH_BYTES`` of ``data``, which lies at ``offset``, a magic and its own offset stand."""
    if is_zero(data):
        return
    for place in sorted(place for magic in _MAGICS for place in _places(data, magic)):
        begin = place - _MAGIC_POSITION
        if 0 <= begin < SEARCH_BYTES and begin + SEARCH_OVERLAP <= len(data):
            own = int.from_bytes(data[begin + PHYSICAL_OFFSET_POSITION : begin + SEARCH_OVERLAP], "big")
            if own == offset + begin:
                yield own


def _places(data: bytes, pattern: bytes) -> Iterator[int]:
    place = data.find(pattern)
    while place >= 0:
        yield place
        place = data.find(pattern, place + 1)
