"""Java's `String.hashCode`, which RocketMQ's files and filters are built on.

The hash runs over UTF-16 code units: h = 31*h + unit, wrapped to a signed 32-bit integer.
"""

from functools import lru_cache
from operator import mul
from typing import Final

_POWERS_COUNT: Final = 256
_POWERS: Final = tuple(pow(31, _POWERS_COUNT - 1 - i, 1 << 32) for i in range(_POWERS_COUNT))
_MASK: Final = 0xFFFFFFFF


def _utf16_units(text: str) -> bytes | tuple[int, ...]:
    if text.isascii():
        return text.encode("ascii")
    data = text.encode("utf-16-be", "surrogatepass")
    return tuple((data[i] << 8) | data[i + 1] for i in range(0, len(data), 2))


def java_string_hash(text: str) -> int:
    """Return `text.hashCode()` as Java computes it, a signed 32-bit value."""
    units: bytes | tuple[int, ...] = _utf16_units(text)
    value: int
    count = len(units)
    if count <= _POWERS_COUNT:
        value = sum(map(mul, units, _POWERS[_POWERS_COUNT - count :])) & _MASK
    else:
        value = 0
        for unit in units:
            value = (31 * value + unit) & _MASK
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)
def tags_code(tags: str | None) -> int:
    """Return the code of a consume queue unit for `tags`: the hash, sign-extended to 64 bits, or 0 without tags."""
    return java_string_hash(tags) if tags else 0
