"""The fields of a stored record and where they are, so that a test can change exactly one of them.

    total 4 | magic 4 | body crc 4 | queue id 4 | flag 4 | queue offset 8 | physical offset 8 | system flag 4
    | born time 8 | born host 8 | store time 8 | store host 8 | consumed again 4 | prepared offset 8 | body length 4
    | body | topic length 1 | topic | properties length 2 | properties, the seal last

For records with IPv4 hosts and a short topic, which is what the tests write.
"""

from typing import Final

from gantry_wire.message import RECORD_PREFIX_V4
from gantry_wire.seal import SEAL_BYTES

_HEAD: Final = (
    ("total", 4), ("magic", 4), ("body-crc", 4), ("queue-id", 4), ("flag", 4), ("queue-offset", 8),
    ("physical-offset", 8), ("system-flag", 4), ("born-time", 8), ("born-host", 8), ("store-time", 8),
    ("store-host", 8), ("consumed-again", 4), ("prepared-offset", 8), ("body-length", 4),
)  # fmt: skip
assert sum(size for _, size in _HEAD) == RECORD_PREFIX_V4.size
_REST: Final = ("body", "topic-length", "topic", "properties-length", "properties", "seal")

FIELDS: Final = tuple(name for name, _ in _HEAD) + _REST
"""The names of all fields, in the order of the record."""


def field_ranges(record: bytes) -> dict[str, tuple[int, int]]:
    """Return the half-open range of each field inside `record`, which must be whole."""
    found: dict[str, tuple[int, int]] = {}
    position = 0

    def take(name: str, size: int) -> bytes:
        nonlocal position
        found[name] = (position, position + size)
        position += size
        return record[position - size : position]

    for name, size in _HEAD:
        last = take(name, size)
    take("body", int.from_bytes(last, "big"))
    take("topic", take("topic-length", 1)[0])
    properties_bytes = int.from_bytes(take("properties-length", 2), "big")
    take("properties", properties_bytes - SEAL_BYTES)
    take("seal", SEAL_BYTES)
    assert position == len(record), "the record is not of the shape that is written here"
    return found
