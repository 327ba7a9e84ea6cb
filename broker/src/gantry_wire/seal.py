"""The seal of a stored record: a CRC over the whole record, as the last of its properties.

    | record without its seal | __CRC32# 0x01 d0 d1 d2 d3 d4 d5 d6 d7 d8 d9 0x02 |
                              <---------------------- 20 ----------------------->

The CRC in a record's head covers the body only, so a record that is torn after its body would pass for a whole one. The
seal is RocketMQ's own property for that (RocketMQ can write and verify it, and does neither by default): the CRC-32 of
every byte before the property, 31 bits of it, as ten decimal digits, the least significant first. The property is only
a seal at the end of the record: RocketMQ copies it when it stores a message again, and a copy in the middle of the
properties, or one over other bytes, proves nothing.
"""

import struct
from typing import Final

from gantry_wire.checksum import crc32
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.properties import KEY_END, RECORD_CRC, terminate_properties

SEAL_MARK: Final = f"{RECORD_CRC}{KEY_END}".encode()
"""How a seal begins: the name of its property."""
SEAL_BYTES: Final = 20
"""The size of a seal with its separators."""
SEAL_REVERSED: Final = b"\x02%010d\x01#23CRC__"
"""The seal backwards: formatted with the CRC and reversed, it has the digits in their order."""

SEAL: Final = struct.Struct("20s")
assert SEAL.size == SEAL_BYTES == len(SEAL_REVERSED % 0)

SEALED_PROPERTIES_MAX: Final = PROPERTIES_BYTES_MAX - SEAL_BYTES
"""The maximum size of properties before their seal. Longer ones leave no space for it; their record has no seal."""

CRC_MASK: Final = 0x7FFFFFFF
"""Java keeps a CRC as a non-negative int."""


def seal(record: bytes | bytearray | memoryview) -> bytes:
    """Return the seal of `record`, whose lengths already include the seal."""
    return (SEAL_REVERSED % (crc32(record) & CRC_MASK))[::-1]


def sealable_properties(properties: bytes) -> tuple[bytes, int]:
    """Return (the properties as they must be before a seal, the size of the seal).

    The size is 20, or 0 if there is no space for a seal.
    """
    ended = terminate_properties(properties)
    return ended, SEAL_BYTES if len(ended) <= SEALED_PROPERTIES_MAX else 0


def has_seal(data: bytes | bytearray | memoryview, end: int) -> bool:
    """Return whether a seal's mark is at its place before `end`, a record's end.

    The CRC after the mark may be wrong, or the mark may be part of a value.
    """
    return bytes(data[end - SEAL_BYTES : end - SEAL_BYTES + len(SEAL_MARK)]) == SEAL_MARK
