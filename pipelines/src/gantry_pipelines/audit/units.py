"""Units of consume queues as bytes: what a record's unit must be, and what a unit that is there says.

| physical offset 8 | size 4 | tags code 8 |        unit n is at byte 20 n of its queue
"""

from __future__ import annotations

import struct
from typing import Final

UNIT: Final = struct.Struct(">qiq")
FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in a unit under whose number there is no message."""
EXTENSION_CODE_MAX: Final = -(1 << 31) - 1
"""Tags codes up to here are addresses in RocketMQ's queue extension, and say nothing about tags."""

Unit = tuple[int, int, int]
"""Physical offset, size, tags code."""


def is_empty(unit: Unit) -> bool:
    """Whether nobody wrote it, or it says that there is no message."""
    return unit[1] in (0, FILLER_SIZE)


def last_unit_end(data: bytes) -> int:
    """Behind the last unit in a file that is a message's, in bytes; 0 if there is none."""
    end = -(-len(data.rstrip(b"\0")) // UNIT.size) * UNIT.size
    while end and is_empty(UNIT.unpack_from(data.ljust(end, b"\0"), end - UNIT.size)):
        end -= UNIT.size
    return end
