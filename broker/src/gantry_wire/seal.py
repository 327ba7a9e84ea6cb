"""The seal of a stored record: a CRC over all of it, as the last of its properties.

    | record without its seal | __CRC32# 0x01 d0 d1 d2 d3 d4 d5 d6 d7 d8 d9 0x02 |
                              <---------------------- 20 ----------------------->

The CRC in a record's head covers the body only, so a record that is torn behind its body passes for a whole one. The
seal is RocketMQ's own property for that (it can write and verify it, and by default does neither): the CRC-32 of every
byte before the property, 31 bits of it, as ten decimal digits, the least significant first. Its place is what makes it
a seal: RocketMQ carries the property along when it stores a message again, and a copy in the middle of the properties,
or one over other bytes, says nothing.
"""

import struct
from typing import Final

from gantry_wire.checksum import crc32
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.properties import ended_properties

SEAL_MARK: Final = b"__CRC32#\x01"
SEAL_BYTES: Final = 20
SEAL_REVERSED: Final = b"\x02%010d\x01#23CRC__"
"""To be filled with the CRC and turned around, which puts the digits in their order."""

SEAL: Final = struct.Struct("20s")
assert SEAL.size == SEAL_BYTES == len(SEAL_REVERSED % 0)

SEALED_PROPERTIES_MAX: Final = PROPERTIES_BYTES_MAX - SEAL_BYTES
"""Properties longer than this have no room for a seal, and their record goes without one."""

_CRC_MASK: Final = 0x7FFFFFFF


def seal(record: bytes | bytearray | memoryview) -> bytes:
    """What goes behind `record` to seal it. The lengths in `record` count the seal."""
    return (SEAL_REVERSED % (crc32(record) & _CRC_MASK))[::-1]


def sealable_properties(properties: bytes) -> tuple[bytes, int]:
    """(the properties as they must stand before a seal, how many bytes the seal takes: 20, or 0 if it has no room)."""
    ended = ended_properties(properties)
    return ended, SEAL_BYTES if len(ended) <= SEALED_PROPERTIES_MAX else 0


def has_seal(data: bytes | bytearray | memoryview, end: int) -> bool:
    """Whether something that calls itself a seal ends at `end`, a record's end. It may be wrong, or part of a value."""
    return bytes(data[end - SEAL_BYTES : end - SEAL_BYTES + len(SEAL_MARK)]) == SEAL_MARK
