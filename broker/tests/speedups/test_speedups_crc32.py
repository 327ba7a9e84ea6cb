"""The compiled CRC-32 equals zlib's, for every length, alignment, start value and kind of buffer."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_speedups import load_native

pytestmark = pytest.mark.needs_speedups

Buffer = bytes | bytearray | memoryview | mmap.mmap
LENGTHS = (*range(301), *range(505, 600))
ALIGNMENTS = range(17)
PATTERN = bytes((17 * number + (number >> 3)) & 0xFF for number in range(1024))


def native_crc32() -> Callable[..., int]:
    """Return the function under test."""
    module, _ = load_native()
    assert module is not None, "needs_speedups"
    function: Callable[..., int] = module.crc32
    return function


def test_every_length_at_every_alignment() -> None:
    """Lengths up to 300 and around 512, at every alignment up to 16, have zlib's checksum, from any start value."""
    crc32, view = native_crc32(), memoryview(PATTERN)
    for length in LENGTHS:
        for alignment in ALIGNMENTS:
            part = view[alignment : alignment + length]
            assert crc32(part) == zlib.crc32(part), (length, alignment)
            assert crc32(part, 0xDEADBEEF) == zlib.crc32(part, 0xDEADBEEF), (length, alignment)


@given(data=st.binary(max_size=5000), skipped=st.integers(0, 70), value=st.integers(0, 0xFFFFFFFF))
def test_any_bytes_have_the_checksum_of_zlib(data: bytes, skipped: int, value: int) -> None:
    """Any bytes, seen through a misaligned view, have zlib's checksum from any start value."""
    crc32, view = native_crc32(), memoryview(data)[skipped:]

    assert crc32(view, value) == zlib.crc32(view, value)
    assert crc32(data, value) == zlib.crc32(data, value)


@given(parts=st.lists(st.binary(max_size=200), max_size=6))
def test_parts_continue_each_other(parts: list[bytes]) -> None:
    """A checksum that is continued part by part is that of all parts together."""
    crc32, value = native_crc32(), 0
    for part in parts:
        value = crc32(part, value)

    assert value == zlib.crc32(b"".join(parts))


def test_every_kind_of_buffer_is_taken() -> None:
    """Bytes, bytearrays, views and maps are read in place, and released again."""
    crc32, expected, writable = native_crc32(), zlib.crc32(PATTERN), bytearray(PATTERN)
    with mmap.mmap(-1, len(PATTERN)) as mapped:
        mapped[:] = PATTERN
        buffers: list[Buffer] = [PATTERN, writable, memoryview(writable), mapped]

        assert [crc32(buffer) for buffer in buffers] == [expected] * 4
        buffers.clear()
    writable.append(0)  # fails while a buffer of it is held


@pytest.mark.parametrize("wrong", [None, 7, "text", memoryview(PATTERN)[::2]], ids=["none", "int", "str", "strided"])
def test_other_objects_are_refused(wrong: object) -> None:
    """What has no contiguous bytes is a TypeError or a BufferError, and no crash."""
    with pytest.raises((TypeError, BufferError)):
        native_crc32()(wrong)


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_a_start_value_of_more_than_32_bits_is_refused(value: int) -> None:
    """zlib takes such a value modulo 2**32; here it is an error of the caller."""
    with pytest.raises(OverflowError):
        native_crc32()(b"x", value)
