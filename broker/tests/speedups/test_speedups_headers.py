"""The compiled table of header blocks equals the one in Python, for what encoders write and for any bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_proxy.http2 import huffman
from gantry_proxy.http2.hpack import STATIC, Field, HeaderTable, choose_table
from gantry_speedups import load_native

pytestmark = pytest.mark.needs_speedups

FIELDS_MAX = 20
TEXTS = st.text(st.characters(max_codepoint=255), max_size=40)


def tables(size_max: int) -> tuple[HeaderTable, HeaderTable]:
    """Return a table of each kind."""
    module, _ = load_native()
    assert module is not None, "needs_speedups"
    new_native: Callable[[tuple[Field, ...], int], HeaderTable] = choose_table(module)
    return HeaderTable(STATIC, size_max), new_native(STATIC, size_max)


def outcome(table: HeaderTable, block: bytes) -> object:
    """Return the fields and the size of the table, or the class of the refusal."""
    try:
        return table.read(block, FIELDS_MAX), table.size
    except (ValueError, IndexError):
        return ValueError


def number(value: int, mask: int, first: int = 0) -> bytes:
    """Return a number with ``first`` in the high bits of its first byte."""
    if value < mask:
        return bytes((first | value,))
    rest, found = value - mask, bytearray((first | mask,))
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def text(value: str, *, is_coded: bool) -> bytes:
    """Return a text, as it is or in the Huffman code."""
    data = value.encode("latin-1")
    if not is_coded:
        return number(len(data), 0x7F) + data
    bits = "".join(format(code, f"0{length}b") for code, length in (huffman.CODES[byte] for byte in data))
    bits += "1" * (-len(bits) % 8)
    data = bytes(int(bits[start : start + 8], 2) for start in range(0, len(bits), 8))
    return number(len(data), 0x7F, 0x80) + data


INDEXES = st.builds(lambda index: number(index, 0x7F, 0x80), st.integers(0, 200))
SIZES = st.builds(lambda size: number(size, 0x1F, 0x20), st.integers(0, 500))
LITERALS = st.builds(
    lambda kind, index, name, value, is_coded: (
        number(index, *kind) + (text(name, is_coded=is_coded) if index == 0 else b"") + text(value, is_coded=is_coded)
    ),
    st.sampled_from([(0x3F, 0x40), (0x0F, 0x00), (0x0F, 0x10)]), st.integers(0, 100), TEXTS, TEXTS, st.booleans(),
)  # fmt: skip
BLOCKS = st.builds(b"".join, st.lists(st.one_of(LITERALS, INDEXES, LITERALS, SIZES), max_size=2 * FIELDS_MAX))


@given(blocks=st.lists(BLOCKS, max_size=8), size_max=st.sampled_from([0, 100, 400, 4_096]))
def test_blocks_of_encoders_have_the_same_fields(blocks: Sequence[bytes], size_max: int) -> None:
    """Literals, indexes of fields that left the table or never were there, and changes of its size."""
    python, native = tables(size_max)
    for block in blocks:
        expected = outcome(python, block)

        assert outcome(native, block) == expected
        if expected is ValueError:  # the connection is over
            return


@given(blocks=st.lists(st.binary(max_size=80), max_size=6))
def test_any_bytes_have_the_same_fields_or_are_refused(blocks: Sequence[bytes]) -> None:
    """Cut texts and numbers, and codes that do not exist, are refused by both."""
    python, native = tables(4_096)
    for block in blocks:
        expected = outcome(python, block)

        assert outcome(native, block) == expected
        if expected is ValueError:
            return


@given(block=BLOCKS, cut=st.integers(0, 60))
def test_cut_blocks_have_the_same_fields_or_are_refused(block: bytes, cut: int) -> None:
    """A block that is cut anywhere is read up to its end, and no further."""
    python, native = tables(4_096)

    assert outcome(native, block[: len(block) - cut]) == outcome(python, block[: len(block) - cut])


@pytest.mark.parametrize("size", [4_000, 100_000])
def test_long_texts_are_read(size: int) -> None:
    """A text of any length that fits a block."""
    python, native = tables(4_096)
    block = b"\x00" + text("n", is_coded=True) + text("long " * (size // 5), is_coded=True)

    assert outcome(native, block) == outcome(python, block) == ([("n", "long " * (size // 5))], 0)


def test_wrong_arguments_are_refused() -> None:
    """A mistake of the caller is an exception, and no crash."""
    _, native = tables(4_096)
    with pytest.raises(TypeError):
        native.read(None, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="static fields"):
        type(native)((("a", "b"),), 4_096)
