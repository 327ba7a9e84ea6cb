"""Header blocks of HTTP/2 (RFC 7541): the decoder with its table, and the blocks that a server sends.

    1xxxxxxx  a field of the table          01xxxxxx  a field that is added to the table
    001xxxxx  a new size of the table       000xxxxx  a field that is not added

The first entries of the table are the same for all; the client adds the others. Its own table of replies a server need
not keep: replies have few headers, so they are encoded as texts, once, when the program starts. Memory is bounded by
the size of the table, and by the limit of a block's bytes and fields: fields from the table share their texts.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Final, final

from gantry_proxy.http2 import huffman
from gantry_proxy.http2.frames import ErrorCode, Http2Error
from gantry_speedups import native

TABLE_BYTES_MAX: Final = 4_096
"""The size of the table by default; this server does not allow another one."""
FIELD_OVERHEAD: Final = 32
"""How many bytes a field counts in addition to its texts."""
FIELDS_MAX: Final = 256
"""How many fields a block may have; SDKs send about 20."""
_INTEGER_BYTES_MAX: Final = 5

Field = tuple[str, str]
_WITHOUT_VALUE: Final = (
    "accept-charset", "accept-encoding", "accept-language", "accept-ranges", "accept",
    "access-control-allow-origin", "age", "allow", "authorization", "cache-control", "content-disposition",
    "content-encoding", "content-language", "content-length", "content-location", "content-range", "content-type",
    "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match", "if-modified-since",
    "if-none-match", "if-range", "if-unmodified-since", "last-modified", "link", "location", "max-forwards",
    "proxy-authenticate", "proxy-authorization", "range", "referer", "refresh", "retry-after", "server",
    "set-cookie", "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via",
    "www-authenticate",
)  # fmt: skip
STATIC: Final[tuple[Field, ...]] = (
    ("", ""), (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"),
    *((":status", code) for code in ("200", "204", "206", "304", "400", "404", "500")),
    *((name, "gzip, deflate" if name == "accept-encoding" else "") for name in _WITHOUT_VALUE),
)  # fmt: skip
"""The table before a client adds to it; there is no index 0."""
STATIC_FIELDS: Final = len(STATIC)


@final
class HeaderTable:
    """The fields that a client has added, and the reading of blocks with them. `gantry_speedups` has the same."""

    __slots__ = ("_added", "_size_limit", "_size_max", "_static", "size")

    def __init__(self, static: tuple[Field, ...], size_max: int) -> None:
        """``static`` are the fields that are the same for all."""
        self._static: Final = static
        self._added: Final[list[Field]] = []
        """Newest last."""
        self.size = 0
        """As HPACK counts it."""
        self._size_limit: Final = size_max
        self._size_max = size_max

    def __repr__(self) -> str:
        return f"<HeaderTable fields={len(self._added)} bytes={self.size}>"

    def read(self, block: bytes, fields_max: int) -> list[Field]:
        """Return the fields of a block, at most one more than ``fields_max``. Raises ValueError."""
        found: list[Field] = []
        position, end = 0, len(block)
        while position < end and len(found) <= fields_max:
            first = block[position]
            if 0x80 < first < 0xFF:  # an index of one byte, as almost every field of a repeated request
                position += 1
                found.append(self._find(first & 0x7F))
            elif first >= 0x80:
                index, position = _integer(block, position, 0x7F)
                found.append(self._find(index))
            elif first >= 0x40:
                field, position = self._literal(block, position, 0x3F)
                found.append(field)
                self._add(field)
            elif first < 0x20:
                field, position = self._literal(block, position, 0x0F)
                found.append(field)
            elif found:
                raise ValueError("the size of the table changes within a block")
            else:
                size, position = _integer(block, position, 0x1F)
                self._set_size(size)
        return found

    def _find(self, index: int) -> Field:
        """Return the field with this index."""
        place = len(self._added) - 1 - (index - STATIC_FIELDS)
        if index == 0 or place < 0:
            raise ValueError(f"index {index}")
        return self._static[index] if index < STATIC_FIELDS else self._added[place]

    def _literal(self, block: bytes, position: int, mask: int) -> tuple[Field, int]:
        """Return a field whose value is in the block, and its name there or in the table."""
        index, position = _integer(block, position, mask)
        if index == 0:
            name, position = _text(block, position)
        else:
            name = self._find(index)[0]
        value, position = _text(block, position)
        return (name, value), position

    def _add(self, field: Field) -> None:
        self._added.append(field)
        self.size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        if self.size > self._size_max:
            self._evict()

    def _set_size(self, size: int) -> None:
        if size > self._size_limit:
            raise ValueError(f"a table of {size} bytes, at most {self._size_limit}")
        self._size_max = size
        self._evict()

    def _evict(self) -> None:
        """Remove the oldest fields until the rest fits; a field larger than the table empties it."""
        count = 0
        while self.size > self._size_max:
            name, value = self._added[count]
            self.size -= len(name) + len(value) + FIELD_OVERHEAD
            count += 1
        del self._added[:count]


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """Return a number that begins in the low bits of a byte, and the position after it."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    for count, byte in enumerate(block[position : position + _INTEGER_BYTES_MAX]):
        value += (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise ValueError("a number is too large, or cut short")


def _text(block: bytes, position: int) -> tuple[str, int]:
    if position >= len(block):
        raise ValueError("a text is missing")
    is_coded = block[position] >= 0x80
    length, position = _integer(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise ValueError("a text is longer than its block")
    data = block[position:end]
    return huffman.decode(data) if is_coded else data.decode("latin-1"), end


def choose_table(speedups: ModuleType | None) -> Callable[[tuple[Field, ...], int], HeaderTable]:
    """Return the class of the compiled module, or the one above without such a module."""
    if speedups is None:
        return HeaderTable
    speedups.prepare_huffman(huffman.NODES, huffman.ENDS)
    compiled: Callable[[tuple[Field, ...], int], HeaderTable] = speedups.HeaderTable
    return compiled


_new_table: Final = choose_table(native)


@final
class HpackDecoder:
    """The header blocks of one connection. They must be decoded in the order in which they arrive."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table: Final = _new_table(STATIC, TABLE_BYTES_MAX)

    def __repr__(self) -> str:
        return f"<HpackDecoder bytes={self.table_bytes}>"

    @property
    def table_bytes(self) -> int:
        """The size of what the client has added, as HPACK counts it."""
        return self._table.size

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block. Raises Http2Error; the connection cannot be used after that."""
        try:
            found = self._table.read(block, FIELDS_MAX)
        except ValueError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"a header block is malformed: {error}") from error
        if len(found) > FIELDS_MAX:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"a header block has more than {FIELDS_MAX} fields")
        return found


# ------- blocks that a server sends


def encode(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return a block with these fields, none of which changes the table of the receiver."""
    return b"".join(b"\x00" + _counted(name) + _counted(value) for name, value in fields)


def _counted(text: bytes) -> bytes:
    """Return a text with its length before it."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    rest, found = length - 0x7F, bytearray((0x7F,))
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found) + text
