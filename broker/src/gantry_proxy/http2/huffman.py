"""The Huffman code of HPACK (RFC 7541, appendix B).

The code is canonical: the lengths of its codes define it. Decoding goes byte by byte through a table of steps, which is
filled as it is used: at most 255 nodes times 256 bytes.
"""

from functools import lru_cache
from typing import Final

_LENGTHS: Final = (
    *(13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28),
    *(28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15),
    *(6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6),
    *(15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22),
    *(20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23),
    *(23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22),
    *(22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26),
    *(27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27),
    *(26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26),
)
"""The bits of the code of each byte. The code of the end of a text, 30 ones, may only appear in part, as padding."""
PADDING_BITS_MAX: Final = 7
_CACHED_BYTES_MAX: Final = 128
_CACHED_TEXTS: Final = 2_048
"""The texts that are kept decoded: most headers of a client are the same in every call."""


class HuffmanError(ValueError):
    """A text is not a Huffman code."""


def _codes() -> dict[int, tuple[int, int]]:
    """Return code and length of each byte."""
    found: dict[int, tuple[int, int]] = {}
    code = length = 0
    for symbol in sorted(range(256), key=lambda byte: (_LENGTHS[byte], byte)):
        code <<= _LENGTHS[symbol] - length
        length = _LENGTHS[symbol]
        found[symbol] = code, length
        code += 1
    return found


CODES: Final = _codes()


def _tree() -> list[list[int]]:
    """Return the nodes of the code, each with what follows a 0 and a 1: another node, -1 - byte, or 0 for no code."""
    nodes = [[0, 0]]
    for symbol, (code, length) in CODES.items():
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = -1 - symbol
    return nodes


NODES: Final = _tree()
_STEPS: Final[dict[int, tuple[int, str]]] = {}
"""By node and byte: the node after it, and the text in between."""


def _ends() -> frozenset[int]:
    """Return the nodes at which a text may end: those that padding, the first bits of the end's code, leads to."""
    found, node = {0}, 0
    for _ in range(PADDING_BITS_MAX):
        node = NODES[node][1]
        found.add(node)
    return frozenset(found)


ENDS: Final = _ends()


def decode(data: bytes) -> str:
    """Return a text, each byte as one character. Raises HuffmanError."""
    return _decode_cached(data) if len(data) <= _CACHED_BYTES_MAX else _decode(data)


def _decode(data: bytes) -> str:
    node, parts = 0, []
    for byte in data:
        step = _STEPS.get(node << 8 | byte)
        node, text = step if step is not None else _add_step(node, byte)
        parts.append(text)
    if node not in ENDS:
        raise HuffmanError("a text ends within a code")
    return "".join(parts)


_decode_cached: Final = lru_cache(_CACHED_TEXTS)(_decode)


def _add_step(start: int, byte: int) -> tuple[int, str]:
    node, text = start, ""
    for shift in range(7, -1, -1):
        node = NODES[node][byte >> shift & 1]
        if node == 0:
            raise HuffmanError("a text contains the code of its end")
        if node < 0:
            text += chr(-1 - node)
            node = 0
    _STEPS[start << 8 | byte] = node, text
    return node, text
