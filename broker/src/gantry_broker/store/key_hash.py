"""The hash of keys in the index: Java's ``hashCode`` of ``topic#key``, made non-negative.

It is computed for every key of every message, so it is combined from pieces that repeat. A hash is a polynomial in 31,
so the hash of a text is the sum of its pieces' hashes times powers of 31. A unique key of 32 characters consists of 20
that identify its producer, 8 that change every millisecond and 4 that count; the first 2 of those 4 are combined with
the time, so that both tables fit into the processor's cache. The contributions of pieces are kept in bounded tables.
"""

from __future__ import annotations

from operator import mul
from typing import Final

from gantry_wire.hashing import java_string_hash

MASK: Final = 0xFFFFFFFF
"""Keeps a hash in 32 bits."""
UNIQUE_KEY_CHARACTERS: Final = 32
"""The length of a unique key of RocketMQ's clients."""
PRODUCER_END: Final = 20
"""The number of characters of a unique key that identify its producer."""
TIME_END: Final = 30
"""The number of characters up to which it tells the time, too; a counter follows."""
_ENTRIES_MAX: Final = 4_096
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(256))
_DESCENDING: Final = _POWERS[::-1]

prefix_hashes: Final[dict[str, int]] = {}
"""Contributions of the first 30 characters of unique keys: one producer, one millisecond, 256 numbers each."""

suffix_hashes: Final[dict[str, int]] = {}
"""Contributions of the last 2 characters of unique keys."""

_producers: Final[dict[str, int]] = {}
_times: Final[dict[str, int]] = {}


def non_negative(value: int) -> int:
    """Return Java's ``abs`` of ``value`` as a signed 32-bit number; 0 where that stays negative."""
    value &= MASK
    if value > 0x7FFFFFFF:
        value = 0x1_0000_0000 - value
        return 0 if value == 0x8000_0000 else value
    return value


def key_hash(topic: str, key: str) -> int:
    """Return the hash of one key, computed without the tables."""
    return non_negative(java_string_hash(f"{topic}#{key}"))


def seeded_hash(seed: int, key: str) -> int:
    """Return the unmasked hash of ``topic#key``, where ``seed`` is the hash of ``topic#``."""
    length = len(key)
    if length < len(_POWERS) and key.isascii():
        own: int = sum(map(mul, key.encode(), _DESCENDING[-length:]))
        return seed * _POWERS[length] + own
    length = len(key.encode("utf-16-be", "surrogatepass")) // 2
    return seed * pow(31, length, 1 << 32) + java_string_hash(key)


def _contribution(table: dict[str, int], piece: str, power: int) -> int:
    value = table.get(piece)
    if value is None:
        if len(table) >= _ENTRIES_MAX:
            table.clear()
        value = table[piece] = (java_string_hash(piece) * power) & MASK
    return value


def add_key_pieces(key: str) -> int:
    """Return the contribution of a key of 32 ASCII characters, and add its pieces to the tables."""
    assert key.isascii(), "characters must be code units for the pieces to add up"
    producer = _contribution(_producers, key[:PRODUCER_END], _POWERS[UNIQUE_KEY_CHARACTERS - PRODUCER_END])
    prefix = key[:TIME_END]
    time = _contribution(_times, key[PRODUCER_END:TIME_END], _POWERS[UNIQUE_KEY_CHARACTERS - TIME_END])
    if len(prefix_hashes) >= _ENTRIES_MAX:
        prefix_hashes.clear()
    prefix_hashes[prefix] = (producer + time) & MASK
    return prefix_hashes[prefix] + _contribution(suffix_hashes, key[TIME_END:], 1)
