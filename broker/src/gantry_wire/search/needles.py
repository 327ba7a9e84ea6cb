"""Needles: bytes that the record of every matching message contains, so that records without them are not decoded.

    record   | head 88 | body ...........needle........... | topic | properties ..needle.. |

A search of bytes in a block of the log is more than ten times as fast as decoding its records. A needle never decides
that a message matches, only that it cannot match. Bodies that are compressed, and batches of RocketMQ, are always
decoded, because the needle is not visible in their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gantry_wire.message import FLAG_COMPRESSED, FLAG_INNER_BATCH

ESCAPE: Final = b"\\"
"""The first byte of every escape in JSON text."""

SYS_FLAG_LOW_BYTE: Final = 39
"""Where the last byte of the system flag is in a record; it has the two bits of ``OPAQUE_FLAGS``."""

OPAQUE_FLAGS: Final = FLAG_COMPRESSED | FLAG_INNER_BATCH
"""Flags of records whose bodies do not show their content."""
assert OPAQUE_FLAGS < 0x100, "one byte of the system flag has them"


class Needle(NamedTuple):
    """Bytes in the records of all messages that match, unless the record is opaque."""

    data: bytes
    is_folded: bool = False
    """Whether the bytes of the record must be in lower case (``bytes.lower``) before they are searched."""

    may_be_escaped: bool = False
    """Whether a record that contains ``ESCAPE`` may match without the needle, because JSON can escape any character."""

    pattern: re.Pattern[bytes] | None = None
    """What is searched in place of the bytes, if the bytes of matches differ."""

    def places(self, block: bytearray, size: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each occurrence of the needle in the first ``size`` bytes of a block."""
        if self.pattern is not None:
            return (found.span() for found in self.pattern.finditer(block, 0, size))
        return places(self.data, block[:size].lower() if self.is_folded else block, size)


def places(data: bytes, block: bytearray, size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each occurrence of ``data`` in the first ``size`` bytes of a block."""
    at = block.find(data, 0, size)
    while at >= 0:
        yield at, at + len(data)
        at = block.find(data, at + 1, size)


def select_needle(needles: list[Needle]) -> Needle | None:
    """Return the needle that probably skips most records: the longest of those without escapes, else of all."""
    return max(needles, key=lambda one: (not one.may_be_escaped, len(one.data)), default=None)


def ascii_needle(text: str) -> Needle | None:
    """Return the needle for a text whose ASCII letters match in any case: its longest part in ASCII; None without one.

    Other letters may match in a form of another length, so no needle contains them.
    """
    parts = "".join(one if one.isascii() else "\n" for one in text).split("\n")
    longest = max(parts, key=len)
    return Needle(longest.lower().encode(), is_folded=True) if longest else None
